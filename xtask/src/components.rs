//! What the commands need beside a stable Rust toolchain, and how each thing is found and installed.
//!
//! Finding costs a few file look-ups or one short command, so every command may ask each time.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{self, tail};
use crate::toolchain::{self, Target};

/// One thing that can be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Component {
    /// The core library of a bare-metal target.
    Target(Target),
    /// Miri and the library source it interprets, of the nightly toolchain.
    Miri,
    /// QEMU's `qemu-system-arm`, which brings `qemu-system-aarch64`.
    Qemu,
}

/// What the tests need.
pub(crate) const REQUIRED: &[Component] = &[
    Component::Target(Target::Thumbv7m),
    Component::Target(Target::Thumbv8m),
    Component::Target(Target::Aarch64),
    Component::Qemu,
];

/// What only continuous integration has to have.
pub(crate) const OPTIONAL: &[Component] = &[Component::Miri];

impl Component {
    /// How messages call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Component::Target(target) => target.triple(),
            Component::Miri => "miri",
            Component::Qemu => "qemu-system-arm",
        }
    }

    /// Whether it is there.
    pub(crate) fn is_present(self) -> bool {
        match self {
            Component::Target(target) => toolchain::builder(target).is_some(),
            Component::Miri => toolchain::nightly_sysroot().is_some_and(|root| {
                root.join("bin/cargo-miri").exists() && root.join("lib/rustlib/src/rust/library").exists()
            }),
            Component::Qemu => on_path("qemu-system-arm").is_some(),
        }
    }

    /// Installs it, saying what it does.
    ///
    /// # Errors
    /// One line that says what a person has to type.
    pub(crate) fn install(self) -> anyhow::Result<()> {
        match self {
            Component::Target(target) => install_target(target),
            Component::Miri => install_miri(),
            Component::Qemu => install_packages(&["qemu-system-arm"], &["qemu-utils"]),
        }
    }
}

/// Installs what is missing of `wanted`; silent when nothing is.
///
/// # Errors
/// After trying all of them: one line per thing that is still missing.
pub(crate) fn ensure(wanted: &[Component]) -> anyhow::Result<()> {
    let mut complaints = Vec::new();
    for component in wanted {
        if component.is_present() {
            continue;
        }
        eprintln!("setup: installing {}", component.name());
        match component.install() {
            Ok(()) if component.is_present() => {}
            Ok(()) => {
                complaints.push(format!("{} is still missing after its installation", component.name()))
            }
            Err(error) => complaints.push(format!("{} is missing: {error:#}", component.name())),
        }
    }
    if complaints.is_empty() { Ok(()) } else { Err(anyhow::anyhow!(complaints.join("\n"))) }
}

/// Whether `wanted` is there after an attempt to install it; what is still missing is said.
///
/// # Errors
/// Those of [`ensure`], in continuous integration, which may lack nothing.
pub(crate) fn ensure_where_possible(wanted: &[Component]) -> anyhow::Result<bool> {
    match ensure(wanted) {
        Ok(()) => Ok(true),
        Err(error) if in_continuous_integration() => Err(error),
        Err(error) => {
            eprintln!("setup: going on without {error:#}");
            Ok(false)
        }
    }
}

fn in_continuous_integration() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// By rustup where that works, else by Debian's toolchain, which builds the core library from source.
fn install_target(target: Target) -> anyhow::Result<()> {
    if succeeds("rustup", &["target", "add", target.triple()]) {
        return Ok(());
    }
    eprintln!("setup: rustup cannot add {}, trying the system's packages", target.triple());
    install_packages(toolchain::DEBIAN_PACKAGES, &[])
}

fn install_miri() -> anyhow::Result<()> {
    let has_nightly = toolchain::nightly_sysroot().is_some();
    let arguments: &[&str] = if has_nightly {
        &["component", "add", "--toolchain", "nightly", "miri", "rust-src"]
    } else {
        &["toolchain", "install", "nightly", "--profile", "minimal", "--component", "miri,rust-src"]
    };
    if succeeds("rustup", arguments) {
        return Ok(());
    }
    Err(anyhow::anyhow!("type `rustup {}`", arguments.join(" ")))
}

/// By apt-get when this user may, otherwise the error is the line to type. Never removes a package.
///
/// `companions` are built from the same source as the first of `packages`; one that is installed in a version that
/// does not fit beside it (from a backport, say) is brought to the version of that first one rather than lost.
fn install_packages(packages: &[&str], companions: &[&str]) -> anyhow::Result<()> {
    if on_path("apt-get").is_none() || !is_root() {
        return Err(anyhow::anyhow!(by_hand(packages)));
    }
    if packages.iter().any(|package| candidate(package).is_none()) {
        succeeds("apt-get", &["update", "-qq"]);
    }
    let common = ["install", "-qq", "--yes", "--no-remove", "--no-install-recommends"];
    if succeeds("apt-get", &[&common, packages].concat()) {
        return Ok(());
    }
    if let Some(version) = packages.first().and_then(|package| candidate(package)) {
        let fitting: Vec<String> = companions
            .iter()
            .filter(|name| is_installed(name))
            .map(|name| format!("{name}={version}"))
            .collect();
        let fitting: Vec<&str> = fitting.iter().map(String::as_str).collect();
        if !fitting.is_empty() {
            eprintln!("setup: trying once more, with {}", fitting.join(" "));
            if succeeds("apt-get", &[&common, &["--allow-downgrades"][..], packages, &fitting].concat()) {
                return Ok(());
            }
        }
    }
    Err(anyhow::anyhow!(by_hand(packages)))
}

/// What a person types where nothing may be installed for them.
fn by_hand(packages: &[&str]) -> String {
    let managers = ["apt-get", "dnf", "pacman", "brew"];
    let names = packages.join(" ");
    match managers.into_iter().find(|name| on_path(name).is_some()) {
        Some("apt-get") => format!("type `sudo apt-get install --yes {names}`"),
        Some("dnf") => format!("type `sudo dnf install {names}`"),
        Some("pacman") => format!("type `sudo pacman -S {names}`"),
        Some(_) => "type `brew install qemu`".to_owned(),
        None => format!("install it by the system's package manager ({names})"),
    }
}

fn is_installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${db:Status-Status}", package]);
    process::capture(query).as_deref() == Some("installed")
}

/// The version of `package` that would be installed, where the package lists know one.
fn candidate(package: &str) -> Option<String> {
    let mut policy = Command::new("apt-cache");
    policy.args(["policy", package]).env("LC_ALL", "C");
    candidate_in(&process::capture(policy)?)
}

/// The candidate in what `apt-cache policy` printed for one package.
fn candidate_in(policy: &str) -> Option<String> {
    let version = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate:"))?.trim();
    (version != "(none)").then(|| version.to_owned())
}

fn is_root() -> bool {
    let mut id = Command::new("id");
    id.arg("-u");
    process::capture(id).as_deref() == Some("0")
}

/// Runs an installer; what it printed is shown only when it fails.
fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C").stdin(Stdio::null());
    match command.output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            eprintln!("setup: `{program} {}`: {}", arguments.join(" "), output.status);
            eprintln!("{}", tail(&String::from_utf8_lossy(&text), 5));
            false
        }
        Err(error) => {
            eprintln!("setup: cannot start `{program}`: {error}");
            false
        }
    }
}

/// Where `program` lies on the search path.
pub(crate) fn on_path(program: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    find_in(&path, program.as_ref())
}

fn find_in(path: &OsStr, program: &Path) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_first_folder_that_has_it() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = std::env::join_paths([here.join("absent"), here.to_path_buf(), here.join("src")]).unwrap();
        assert_eq!(find_in(&path, Path::new("main.rs")), Some(here.join("src/main.rs")));
        assert_eq!(find_in(&path, Path::new("Cargo.toml")), Some(here.join("Cargo.toml")));
        assert_eq!(find_in(&path, Path::new("nothing")), None);
    }

    #[test]
    fn the_candidate_is_the_version_that_would_be_installed() {
        let policy =
            |version: &str| format!("tool:\n  Installed: 1:10.0\n  Candidate: {version}\n  Version table:\n");
        assert_eq!(candidate_in(&policy("1:7.2+dfsg-7")).as_deref(), Some("1:7.2+dfsg-7"));
        assert_eq!(candidate_in(&policy("(none)")), None);
        assert_eq!(candidate_in(""), None);
    }

    #[test]
    fn what_is_present_is_not_installed_again() {
        let everything = [REQUIRED, OPTIONAL].concat();
        let present: Vec<_> = everything.into_iter().filter(|component| component.is_present()).collect();
        ensure(&present).unwrap();
    }
}
