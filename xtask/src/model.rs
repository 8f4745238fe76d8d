//! `cargo xtask model`: the exhaustive check of the protocol.

use std::process::{Command, ExitCode};

use crate::workspace;

/// Explores the shipped protocol code in every interleaving, then with each rule left out once.
///
/// The last line is `states N, violations 0, mutants caught K of K`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out the explorations that take minutes.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    Err(workspace::exec(command(args.quick)))
}

/// The checker, built optimised: it visits millions of states.
pub(crate) fn command(is_quick: bool) -> Command {
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--package", "sluice-tests", "--bin", "model", "--"]);
    if is_quick {
        command.arg("--quick");
    }
    command
}
