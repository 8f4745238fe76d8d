//! Links images for the board with its own memory map.

use std::path::Path;

fn main() {
    // Builds for the host have no image to link.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none") {
        let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo names the manifest's folder");
        let scripts = Path::new(&manifest).join("../../linker/an385");
        println!("cargo:rustc-link-search={}", scripts.display());
        println!("cargo:rustc-link-arg-bins=-Timage.x");
        println!("cargo:rerun-if-changed={}", scripts.display());
    }
    println!("cargo:rerun-if-changed=build.rs");
}
