//! The toolchains behind the builds: the one that started `cargo xtask`, and what can build a bare-metal target.
//!
//! | builder | has to have | `core` is |
//! |---|---|---|
//! | the active toolchain | the target's libraries: `rustup target add` | prebuilt |
//! | a compiler with the source of its library | the version this workspace needs, a linker for the target | built by cargo |
//!
//! The second may be the active toolchain too (`rustup component add rust-src`) or Debian's, whose packages need no
//! rustup. Everything on the host uses the active toolchain.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{process, workspace};

/// Packages that build a bare-metal target without rustup; the first is the compiler.
pub(crate) const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "rust-web-src", "lld"];

/// Where they put the compiler, its library source and the linker.
const DEBIAN_SYSROOT: &str = "/usr";

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

/// A release of Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// The oldest one that the workspace's manifest admits.
    pub(crate) fn needed() -> Version {
        Version::at_start(env!("CARGO_PKG_RUST_VERSION")).expect("cargo has checked its form")
    }

    /// The version that begins `text`: `1.95`, `1.96.0-nightly (…)`, `1.85.0+dfsg3-1`.
    pub(crate) fn at_start(text: &str) -> Option<Version> {
        let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let mut numbers = numbers.split('.').map(str::parse);
        let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Version { major, minor, patch: numbers.next().unwrap_or(Ok(0)).ok()? })
    }

    fn of(rustc: &Path) -> Option<Version> {
        let mut command = Command::new(rustc);
        command.arg("--version");
        Version::at_start(process::capture(command)?.strip_prefix("rustc ")?)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What can build a bare-metal target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Builder {
    /// The active toolchain, which has the target's libraries.
    Prebuilt,
    /// The toolchain in this folder, with `core` built from the source beside it.
    Source(PathBuf),
}

/// What can build `target` here, if anything.
pub(crate) fn builder(target: Target) -> Option<Builder> {
    let active = sysroot();
    if active.as_ref().is_some_and(|root| libraries(root).join(target.triple()).is_dir()) {
        return Some(Builder::Prebuilt);
    }
    let candidates = active.into_iter().chain([PathBuf::from(DEBIAN_SYSROOT)]);
    candidates
        .filter(|root| has_source_and_linker(root))
        .find(|root| Version::of(&rustc(root)) >= Some(Version::needed()))
        .map(Builder::Source)
}

impl Builder {
    /// `cargo SUBCOMMAND --target …`, run in the workspace root.
    pub(crate) fn cargo(&self, subcommand: &str, target: Target) -> Command {
        let mut command = workspace::cargo();
        command.current_dir(workspace::root()).args([subcommand, "--target", target.triple()]);
        if let Builder::Source(root) = self {
            command.arg("-Zbuild-std=core").env("RUSTC", rustc(root)).env("RUSTC_BOOTSTRAP", "1");
            if !has_own_linker(root) {
                let name = target.triple().replace(['-', '.'], "_").to_uppercase();
                command.env(format!("CARGO_TARGET_{name}_LINKER"), linker(root));
            }
        }
        command
    }
}

fn rustc(root: &Path) -> PathBuf {
    root.join("bin/rustc")
}

/// The linker of a toolchain that was built without one of its own.
fn linker(root: &Path) -> PathBuf {
    root.join("bin/ld.lld")
}

fn libraries(root: &Path) -> PathBuf {
    root.join("lib/rustlib")
}

fn has_source_and_linker(root: &Path) -> bool {
    libraries(root).join("src/rust/library/Cargo.lock").is_file()
        && (has_own_linker(root) || linker(root).is_file())
}

/// Whether the `rust-lld` that rustc takes for these targets lies among the libraries of the host.
fn has_own_linker(root: &Path) -> bool {
    let hosts = std::fs::read_dir(libraries(root)).into_iter().flatten().flatten();
    hosts.into_iter().any(|host| host.path().join("bin/rust-lld").is_file())
}

/// The active toolchain's folder.
fn sysroot() -> Option<PathBuf> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A toolchain's folder with nothing but empty files at `paths`, gone at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn with(name: &str, paths: &[&str]) -> Folder {
            let root = std::env::temp_dir().join(format!("sluice-toolchain-{name}-{}", std::process::id()));
            for path in paths {
                let file = root.join(path);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, "").unwrap();
            }
            Folder(root)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const SOURCE: &str = "lib/rustlib/src/rust/library/Cargo.lock";
    const OWN_LINKER: &str = "lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-lld";

    fn environment(command: &Command, name: &str) -> Option<PathBuf> {
        let (_, value) = command.get_envs().find(|(key, _)| *key == name)?;
        value.map(PathBuf::from)
    }

    #[test]
    fn versions_are_read_and_ordered_as_numbers() {
        let version = |text| Version::at_start(text).map(|version| version.to_string());
        assert_eq!(version("1.85.0+dfsg3-1~deb12u3").as_deref(), Some("1.85.0"));
        assert_eq!(version("1.96.2-nightly (2026)").as_deref(), Some("1.96.2"));
        assert_eq!(version("1.95").as_deref(), Some("1.95.0"));
        assert_eq!(version("1"), None);
        assert_eq!(version("rustc 1.95"), None);
        assert_eq!(version("1.95.x"), None);
        assert!(Version::at_start("1.100.0") > Version::at_start("1.95.7"));
        assert!(Version::at_start("1.95") > None);
    }

    #[test]
    fn the_compiler_that_builds_this_is_new_enough() {
        assert!(Version::of(&rustc(&sysroot().unwrap())).unwrap() >= Version::needed());
        assert_eq!(Version::of(Path::new("/no/compiler")), None);
    }

    #[test]
    fn source_without_a_linker_builds_nothing() {
        let bare = Folder::with("bare", &[SOURCE]);
        let own = Folder::with("own", &[SOURCE, OWN_LINKER]);
        let beside = Folder::with("beside", &[SOURCE, "bin/ld.lld"]);
        let no_source = Folder::with("no-source", &[OWN_LINKER]);
        assert_eq!(
            [&bare, &own, &beside, &no_source].map(|folder| has_source_and_linker(&folder.0)),
            [false, true, true, false]
        );
    }

    #[test]
    fn a_build_from_source_names_compiler_and_missing_linker() {
        let beside = Folder::with("names-linker", &[SOURCE, "bin/ld.lld"]);
        let command = Builder::Source(beside.0.clone()).cargo("build", Target::Thumbv8m);
        assert!(command.get_args().any(|argument| argument == "-Zbuild-std=core"));
        assert_eq!(environment(&command, "RUSTC"), Some(rustc(&beside.0)));
        assert_eq!(
            environment(&command, "CARGO_TARGET_THUMBV8M_MAIN_NONE_EABIHF_LINKER"),
            Some(linker(&beside.0))
        );
        let own = Folder::with("has-linker", &[SOURCE, OWN_LINKER]);
        let command = Builder::Source(own.0.clone()).cargo("build", Target::Thumbv8m);
        assert_eq!(environment(&command, "CARGO_TARGET_THUMBV8M_MAIN_NONE_EABIHF_LINKER"), None);
    }
}
