//! `cargo xtask soak`: the long form of a test that otherwise takes seconds.

use std::process::ExitCode;

use crate::workspace;

/// Has threads load, build, execute and remove models of one unit at random, and compares every byte.
///
/// The exit status says whether anything was wrong, lost or left behind.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// How many threads.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// What the choices follow from.
    #[arg(long, default_value_t = 2026)]
    seed: u64,
}

pub(crate) fn run(Args { minutes, threads, seed }: Args) -> anyhow::Result<ExitCode> {
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--package", "sluice-tests", "--bin", "soak", "--"]);
    for (option, value) in [("--seconds", minutes * 60), ("--threads", threads), ("--seed", seed)] {
        command.arg(option).arg(value.to_string());
    }
    Err(workspace::exec(command))
}
