//! `cargo xtask run`: from a built tree or a fresh clone to a report and a trace.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use crate::components::{self, Component};
use crate::toolchain::Target;
use crate::{image, workspace};

/// Loads a model, executes it while everything is recorded, and writes report, capture and trace.
///
/// All arguments go to `sluice run`; `--out` defaults to `target/sluice/latest`, and `--firmware` to an image that is built first.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Arguments of `sluice run`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    forwarded: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let device = option(&args.forwarded, "--device").and_then(OsStr::to_str).unwrap_or_default();
    components::ensure(needs(device))?;
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--package", "sluice-host", "--bin", "sluice", "--", "run"]);
    if option(&args.forwarded, "--out").is_none() {
        command.arg("--out").arg(workspace::artefact("latest"));
    }
    if device == "qemu-aarch64" && option(&args.forwarded, "--firmware").is_none() {
        command.arg("--firmware").arg(image::build(&image::VIRT)?);
    }
    command.args(&args.forwarded);
    Err(workspace::exec(command))
}

/// What a device needs; the simulated one needs nothing.
fn needs(device: &str) -> &'static [Component] {
    match device {
        "qemu-aarch64" => &[Component::Target(Target::Aarch64), Component::Qemu],
        "qemu-cortex-m" => {
            &[Component::Target(Target::Thumbv7m), Component::Target(Target::Thumbv8m), Component::Qemu]
        }
        _ => &[],
    }
}

/// The value of `--name VALUE` or `--name=VALUE`; the last one wins.
fn option<'a>(arguments: &'a [OsString], name: &str) -> Option<&'a OsStr> {
    let mut found = None;
    for (index, argument) in arguments.iter().enumerate() {
        if argument == name {
            found = arguments.get(index + 1).map(OsString::as_os_str);
        } else if let Some(value) =
            argument.to_str().and_then(|text| text.strip_prefix(name)?.strip_prefix('='))
        {
            found = Some(OsStr::new(value));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn both_spellings_of_an_option_are_found() {
        let line = arguments("--executions 3 --out=a --device sim --outer b");
        assert_eq!(option(&line, "--out"), Some(OsStr::new("a")));
        assert_eq!(option(&line, "--device"), Some(OsStr::new("sim")));
        assert_eq!(option(&line, "--model"), None);
    }

    #[test]
    fn the_last_of_a_repeated_option_wins() {
        assert_eq!(option(&arguments("--out a --out=b"), "--out"), Some(OsStr::new("b")));
    }
}
