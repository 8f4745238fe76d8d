//! Images for boards: what they are built from, and by what.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::toolchain::{self, Target};

/// What an image is built from: a binary of a package.
pub(crate) struct Image {
    target: Target,
    package: &'static str,
    binary: &'static str,
    features: &'static str,
    profile: &'static str,
}

/// Unit tests of `core` for `mps2-an385`.
pub(crate) const CORTEX_M_TESTS: Image = Image {
    target: Target::Thumbv7m,
    package: "sluice-target-tests",
    binary: "target-tests",
    features: "image",
    profile: "dev",
};

/// The firmware for `virt`.
pub(crate) const VIRT: Image = Image {
    target: Target::Aarch64,
    package: "sluice-aicpu-fw",
    binary: "sluice-virt",
    features: "virt",
    profile: "firmware",
};

/// What loads it into a board that runs.
pub(crate) const VIRT_STUB: Image = Image { binary: "sluice-virt-stub", ..VIRT };

/// The same with a processor that uses up its stack.
pub(crate) const VIRT_OVERFLOW: Image = Image { features: "virt-overflow", ..VIRT };

/// Builds `image` and copies it beside itself as `name`: the next image of the package takes its place.
pub(crate) fn build_as(image: &Image, name: &str) -> anyhow::Result<PathBuf> {
    let built = build(image)?;
    let copied = built.with_file_name(name);
    std::fs::copy(&built, &copied).with_context(|| format!("cannot write {}", copied.display()))?;
    Ok(copied)
}

/// Builds `image` and says where it lies.
pub(crate) fn build(
    &Image { target, package, binary, features, profile }: &Image,
) -> anyhow::Result<PathBuf> {
    let builder =
        toolchain::builder(target).with_context(|| format!("nothing builds {}", target.triple()))?;
    let mut cargo = builder.cargo("build", target);
    cargo.args(["--package", package, "--bin", binary, "--features", features, "--profile", profile]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let output =
        cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("`{binary}` does not build for {}", target.triple());
    }
    executable(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("cargo named no executable `{binary}`"))
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
