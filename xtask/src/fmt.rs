//! `cargo xtask fmt`: the workspace's formatting.

use std::process::ExitCode;

use crate::workspace;

/// Formats every crate of the workspace.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing; fail when a file is not formatted.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut command = workspace::cargo();
    command.current_dir(workspace::root()).args(["fmt", "--all"]);
    if args.check {
        command.arg("--check");
    }
    Err(workspace::exec(command))
}
