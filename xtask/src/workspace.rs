//! Where the workspace is, and how its other commands are started.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace root.
///
/// # Panics
/// When the binary was not started by cargo, which says where the manifest lies.
pub(crate) fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").expect("started as `cargo xtask`");
    Path::new(&manifest).parent().expect("xtask lies one folder below the workspace root").to_path_buf()
}

/// `target/sluice/NAME` of the workspace, relative when the caller stands in its root.
pub(crate) fn artefact(name: &str) -> PathBuf {
    let relative = Path::new("target/sluice").join(name);
    match std::env::current_dir() {
        Ok(here) if here == root() => relative,
        _ => root().join(relative),
    }
}

/// The cargo that started this process.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

/// Replaces this process, so that signals, terminal and exit status are the command's own. Returns only on failure.
pub(crate) fn exec(mut command: Command) -> anyhow::Error {
    let error = command.exec();
    anyhow::Error::from(error).context(format!("cannot start `{}`", command.get_program().to_string_lossy()))
}
