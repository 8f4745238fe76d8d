//! Images that test themselves on an emulated board.
//!
//! An image prints one line per test, then `N passed, M failed`, then ends the emulator with an exit code. Anything
//! else is a failure: another last line (a fault), no end within the bound (a hang), a status that is not zero.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Outcome, counts, run_counted};
use crate::components::Component;
use crate::toolchain::{self, Target};

/// What the unit tests on a Cortex-M3 need.
pub(super) const NEEDS: &[Component] = &[Component::Target(Target::Thumbv7m), Component::Qemu];

/// A hundred times what the image needs on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// Unit tests of `core` on the `mps2-an385` board.
pub(super) fn unit_tests() -> anyhow::Result<Outcome> {
    let image = build(Target::Thumbv7m, "sluice-target-tests", "image")?;
    run_counted(mps2_an385(&image), BOUND, |output| counts::of_last_line(output).unwrap_or_default())
}

/// The emulated board, with nothing attached but semihosting.
fn mps2_an385(image: &Path) -> Command {
    let mut command = Command::new("qemu-system-arm");
    command.args([
        "-M",
        "mps2-an385",
        "-display",
        "none",
        "-monitor",
        "none",
        "-serial",
        "null",
        "-nic",
        "none",
    ]);
    command.args(["-semihosting-config", "enable=on,target=native", "-kernel"]).arg(image);
    command
}

/// Builds the one binary of `package` and says where it lies.
fn build(target: Target, package: &str, features: &str) -> anyhow::Result<PathBuf> {
    let builder =
        toolchain::builder(target).with_context(|| format!("nothing builds {}", target.triple()))?;
    let mut cargo = builder.cargo("build", target);
    cargo.args(["--package", package, "--features", features, "--message-format", "json-render-diagnostics"]);
    let output =
        cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("`{package}` does not build for {}", target.triple());
    }
    executable(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("cargo named no executable of `{package}`"))
}

/// The last executable in cargo's messages, one JSON object a line.
fn executable(messages: &str) -> Option<PathBuf> {
    let parsed = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?))).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_the_one_cargo_names() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"executable\":null}\n",
            "not json\n",
            "{\"reason\":\"compiler-artifact\",\"executable\":\"target/x/image\"}\n",
            "{\"reason\":\"build-finished\",\"success\":true}\n",
        );
        assert_eq!(executable(messages), Some(PathBuf::from("target/x/image")));
        assert_eq!(executable(""), None);
    }
}
