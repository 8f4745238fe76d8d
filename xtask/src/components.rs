//! What the commands need beside a stable Rust toolchain, and how each thing is found and installed.
//!
//! Finding costs a few file look-ups or one short command, so every command may ask each time.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{self, tail};
use crate::toolchain::{self, Target, Version};

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

/// Longer than any download that still moves takes.
const INSTALL_BOUND: Duration = Duration::from_secs(20 * 60);

/// The line that brings rustup.
const RUSTUP: &str = "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh";

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
}

/// Installs what is missing of `wanted`; silent when nothing is.
///
/// # Errors
/// After trying all of them: one line per thing that is still missing, with what a person has to type.
pub(crate) fn ensure(wanted: &[Component]) -> anyhow::Result<()> {
    let mut complaints = Vec::new();
    let all_targets =
        |a: &Component, b: &Component| matches!((a, b), (Component::Target(_), Component::Target(_)));
    for group in absent(wanted).chunk_by(all_targets) {
        eprintln!("setup: installing {}", names(group).join(", "));
        let installed = install(group);
        let still = names(&absent(group)).join(", ");
        match installed {
            _ if still.is_empty() => {}
            Ok(()) => complaints.push(format!("{still}: still missing after the installation")),
            Err(error) => complaints.push(format!("{still}: missing; {error:#}")),
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

fn absent(wanted: &[Component]) -> Vec<Component> {
    wanted.iter().copied().filter(|component| !component.is_present()).collect()
}

fn names(components: &[Component]) -> Vec<&'static str> {
    components.iter().map(|component| component.name()).collect()
}

/// Installs one thing, or any number of targets at once.
fn install(group: &[Component]) -> anyhow::Result<()> {
    match group {
        [Component::Miri] => install_miri(),
        [Component::Qemu] => install_packages(&["qemu-system-arm"], &["qemu-utils"]),
        targets => install_targets(&names(targets)),
    }
}

/// By rustup where that works, else by Debian's compiler where that is new enough.
fn install_targets(triples: &[&str]) -> anyhow::Result<()> {
    let arguments = [&["target", "add"], triples].concat();
    let has_rustup = on_path("rustup").is_some();
    if has_rustup && succeeds("rustup", &arguments) {
        return Ok(());
    }
    let packages = &toolchain::DEBIAN_PACKAGES;
    if may_install_packages() {
        refresh_lists(packages);
    }
    let packaged = candidate(packages[0]).as_deref().and_then(Version::at_start);
    if packaged >= Some(Version::needed()) {
        eprintln!("setup: taking the system's packages, which build {} from source", triples.join(", "));
        return install_packages(packages, &[]);
    }
    Err(anyhow::anyhow!(nothing_builds(packaged, &by_rustup(has_rustup, &arguments))))
}

/// Why neither rustup nor a package helped, and what to type.
fn nothing_builds(packaged: Option<Version>, advice: &str) -> String {
    match packaged {
        Some(version) => {
            let (package, needed) = (toolchain::DEBIAN_PACKAGES[0], Version::needed());
            format!("{package} is {version} here and would have to be {needed}; {advice}")
        }
        None => advice.to_owned(),
    }
}

fn install_miri() -> anyhow::Result<()> {
    let has_nightly = toolchain::nightly_sysroot().is_some();
    let arguments: &[&str] = if has_nightly {
        &["component", "add", "--toolchain", "nightly", "miri", "rust-src"]
    } else {
        &["toolchain", "install", "nightly", "--profile", "minimal", "--component", "miri,rust-src"]
    };
    let has_rustup = on_path("rustup").is_some();
    if has_rustup && succeeds("rustup", arguments) {
        return Ok(());
    }
    Err(anyhow::anyhow!(by_rustup(has_rustup, arguments)))
}

/// What a person types where rustup is missing, or failed: then mostly because its downloads are not let through.
fn by_rustup(has_rustup: bool, arguments: &[&str]) -> String {
    let line = format!("`rustup {}`", arguments.join(" "));
    if has_rustup {
        format!("type {line} (with RUSTUP_DIST_SERVER=URL before it where downloads come from a mirror)")
    } else {
        format!("type `{RUSTUP}`, then in a new shell {line}")
    }
}

/// By apt-get when this user may, otherwise the error is the line to type. Never removes a package.
///
/// `companions` are built from the same source as the first of `packages`; one that is installed in a version that
/// does not fit beside it (from a backport, say) is brought to the version of that first one rather than lost.
fn install_packages(packages: &[&str], companions: &[&str]) -> anyhow::Result<()> {
    if !may_install_packages() {
        return Err(anyhow::anyhow!(by_hand(packages)));
    }
    refresh_lists(packages);
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

fn may_install_packages() -> bool {
    on_path("apt-get").is_some() && is_root()
}

/// Fetches the package lists where they lack one of `packages`, as those of a fresh container do.
fn refresh_lists(packages: &[&str]) {
    if packages.iter().any(|package| candidate(package).is_none()) {
        succeeds("apt-get", &["update", "-qq"]);
    }
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
    command.args(arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C").env("RUST_BACKTRACE", "0");
    match process::run_bounded(command, INSTALL_BOUND, &mut std::io::sink()) {
        Ok(finished) => {
            let complaint = finished.complaint();
            if let Some(end) = &complaint {
                eprintln!("setup: `{program} {}` {end}", arguments.join(" "));
                eprintln!("{}", tail(&finished.output, 5));
            }
            complaint.is_none()
        }
        Err(error) => {
            eprintln!("setup: {error:#}");
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
    fn a_packaged_compiler_that_is_too_old_is_told_with_both_versions() {
        let advice = by_rustup(true, &["target", "add", "thumbv7m-none-eabi"]);
        assert!(advice.starts_with("type `rustup target add thumbv7m-none-eabi`"), "{advice}");
        let said = nothing_builds(Version::at_start("1.85.0+dfsg3-1"), &advice);
        let needed = Version::needed();
        assert_eq!(said, format!("rustc-web is 1.85.0 here and would have to be {needed}; {advice}"));
        assert_eq!(nothing_builds(None, &advice), advice);
    }

    #[test]
    fn without_rustup_the_line_that_brings_it_comes_first() {
        let advice = by_rustup(false, &["component", "add", "miri"]);
        let (first, second) =
            (advice.find(RUSTUP).unwrap(), advice.find("`rustup component add miri`").unwrap());
        assert!(first < second, "{advice}");
    }

    #[test]
    fn what_is_present_is_not_installed_again() {
        let everything = [REQUIRED, OPTIONAL].concat();
        let present: Vec<_> = everything.into_iter().filter(|component| component.is_present()).collect();
        ensure(&present).unwrap();
    }
}
