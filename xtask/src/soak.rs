//! `cargo xtask soak`: the long form of tests that otherwise take seconds.

use std::process::ExitCode;

use crate::workspace;

/// Has threads load, build, execute and remove models of one unit at random, and compares every byte; or, with --records, has
/// lanes make up records with one buffer per pool, on a host that stands still ten times for up to five seconds, and looks at
/// the number of each.
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
    /// So many records instead: a hundred million take some minutes.
    #[arg(long, conflicts_with_all = ["minutes", "threads", "seed"])]
    records: Option<u64>,
}

pub(crate) fn run(Args { minutes, threads, seed, records }: Args) -> anyhow::Result<ExitCode> {
    let mut command = workspace::cargo();
    if let Some(records) = records {
        command.args(["run", "--release", "--package", "sluice-host", "--bin", "sluice", "--", "stress"]);
        command.args(["--buffers", "1", "--no-capture", "--pause-all", "--records", &records.to_string()]);
        command.args(["--pause-host", &standstills(), "--out", "target/sluice/soak"]);
        return Err(workspace::exec(command));
    }
    command.args(["run", "--release", "--package", "sluice-tests", "--bin", "soak", "--"]);
    for (option, value) in [("--seconds", minutes * 60), ("--threads", threads), ("--seed", seed)] {
        command.arg(option).arg(value.to_string());
    }
    Err(workspace::exec(command))
}

/// Ten, from half a second to five; each begins when its share of the records is collected, not at a time.
fn standstills() -> String {
    let standstill = |number: u32| format!("{}@86400000", 500 * number);
    (1..=10).map(standstill).collect::<Vec<_>>().join(",")
}
