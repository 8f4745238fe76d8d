//! The toolchains behind the builds: rustup's own, or Debian's for bare-metal targets rustup cannot fetch.
//!
//! Debian's compiler has no prebuilt bare-metal libraries; with its library source, cargo builds `core` itself.
//! Only the bare-metal builds take it: everything on the host uses the toolchain that started `cargo xtask`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{process, workspace};

/// Packages that build a bare-metal target without rustup.
pub(crate) const DEBIAN_PACKAGES: &[&str] = &["rustc-web", "rust-web-src", "lld"];

const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_LIBRARY: &str = "/usr/lib/rustlib/src/rust/library";
const DEBIAN_LINKER: &str = "/usr/bin/ld.lld";

/// A bare-metal target of the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Cortex-M3: `mps2-an385`.
    Thumbv7m,
    /// Cortex-M33 with floating point: `mps2-an521`.
    Thumbv8m,
    /// AArch64: `virt`.
    Aarch64,
}

impl Target {
    /// The name rustc gives it.
    pub(crate) fn triple(self) -> &'static str {
        match self {
            Target::Thumbv7m => "thumbv7m-none-eabi",
            Target::Thumbv8m => "thumbv8m.main-none-eabihf",
            Target::Aarch64 => "aarch64-unknown-none",
        }
    }
}

/// What can build a bare-metal target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builder {
    /// The active toolchain, which has the target's libraries.
    Active,
    /// Debian's compiler, with `core` built from source.
    Debian,
}

/// What can build `target` here, if anything.
pub(crate) fn builder(target: Target) -> Option<Builder> {
    let prebuilt = sysroot().is_some_and(|root| root.join("lib/rustlib").join(target.triple()).is_dir());
    let debian = || [DEBIAN_RUSTC, DEBIAN_LIBRARY, DEBIAN_LINKER].iter().all(|path| Path::new(path).exists());
    if prebuilt {
        Some(Builder::Active)
    } else if debian() {
        Some(Builder::Debian)
    } else {
        None
    }
}

impl Builder {
    /// `cargo SUBCOMMAND --target …`, run in the workspace root.
    pub(crate) fn cargo(self, subcommand: &str, target: Target) -> Command {
        let mut command = workspace::cargo();
        command.current_dir(workspace::root()).args([subcommand, "--target", target.triple()]);
        if self == Builder::Debian {
            let linker =
                format!("CARGO_TARGET_{}_LINKER", target.triple().replace(['-', '.'], "_").to_uppercase());
            command
                .arg("-Zbuild-std=core")
                .env("RUSTC", DEBIAN_RUSTC)
                .env("RUSTC_BOOTSTRAP", "1")
                .env(linker, DEBIAN_LINKER);
        }
        command
    }
}

/// The active toolchain's folder.
pub(crate) fn sysroot() -> Option<PathBuf> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "sysroot"]);
    process::capture(rustc).map(PathBuf::from)
}

/// The nightly toolchain's folder.
pub(crate) fn nightly_sysroot() -> Option<PathBuf> {
    let mut rustc = Command::new("rustup");
    rustc.args(["run", "nightly", "rustc", "--print", "sysroot"]);
    process::capture(rustc).map(PathBuf::from)
}
