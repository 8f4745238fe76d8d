//! Links images for boards with their own memory maps.

use std::path::Path;

fn main() {
    let is = |name: &str, wanted: &str| std::env::var(name).is_ok_and(|value| value == wanted);
    // Builds for the host have no image to link.
    if is("CARGO_CFG_TARGET_OS", "none") && is("CARGO_CFG_TARGET_ARCH", "aarch64") {
        let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo names the manifest's folder");
        let scripts = Path::new(&manifest).join("../linker/virt");
        println!("cargo:rustc-link-search={}", scripts.display());
        println!("cargo:rustc-link-arg-bins=-Timage.ld");
        println!("cargo:rustc-link-arg-bin=sluice-virt=-Tmemory.ld");
        println!("cargo:rustc-link-arg-bin=sluice-virt-stub=-Tstub.ld");
        println!("cargo:rerun-if-changed={}", scripts.display());
    }
    println!("cargo:rerun-if-changed=build.rs");
}
