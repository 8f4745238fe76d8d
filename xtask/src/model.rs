//! `cargo xtask model`: the exhaustive check of the protocol, and what notices each rule and each order that is left out.

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;

use crate::{process, workspace};

/// Explores the shipped protocol code in every interleaving, then with each rule left out once. Orders of memory accesses,
/// which that exploration takes for granted, are left out one at a time under loom.
///
/// The last line is `states N, violations 0, mutants caught K of K`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out the explorations that take minutes.
    #[arg(long)]
    quick: bool,
}

/// More than the search under loom has needed, so that only a hang meets it.
const BOUND: Duration = Duration::from_secs(20 * 60);

/// What all tests are called that leave an order out and expect the search to notice.
const REPORTED: &str = "reported";

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let orders = orders_left_out()?;
    for order in &orders {
        println!("{order}");
    }
    let caught = orders.iter().filter(|order| order.is_caught).count();
    let mut command = command(args.quick);
    command.args(["--more", &format!("{caught}/{}", orders.len())]);
    Err(workspace::exec(command))
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

/// The loom tests whose names contain `names`; all of them if that is empty.
pub(crate) fn loom_tests(names: &str) -> Command {
    let mut command = workspace::cargo();
    command.args(["test", "--release", "--no-fail-fast", "--package", "sluice-tests"]);
    command.args(["--features", "loom", "--test", "loom", names]);
    command
}

/// An order that a loom test leaves out.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    test: String,
    is_caught: bool,
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { test, is_caught } = self;
        let name = test.rsplit("::").next().unwrap_or(test);
        let omission =
            name.trim_end_matches("_is_reported").trim_end_matches("_are_reported").replace('_', " ");
        let end = if *is_caught { "caught" } else { "NOT CAUGHT" };
        write!(f, "{omission}: {end} by loom test {test}")
    }
}

/// Runs the tests that leave an order out.
fn orders_left_out() -> anyhow::Result<Vec<Order>> {
    let mut command = loom_tests(REPORTED);
    command.current_dir(workspace::root());
    let finished = process::run_bounded(command, BOUND, &mut std::io::sink())?;
    let orders: Vec<_> = finished.output.lines().filter_map(order).collect();
    anyhow::ensure!(!orders.is_empty(), "no loom test ran:\n{}", process::tail(&finished.output, 40));
    match finished.complaint() {
        Some(end) if orders.iter().all(|order| order.is_caught) => Err(anyhow::anyhow!(end)),
        _ => Ok(orders),
    }
    .context("the loom tests")
}

/// `test NAME - should panic ... ok`
fn order(line: &str) -> Option<Order> {
    let (test, end) = line.strip_prefix("test ")?.split_once(" - should panic ... ")?;
    Some(Order { test: test.to_owned(), is_caught: end == "ok" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_told_from_other_lines() {
        let caught = order("test tables::a_tail_without_order_is_reported - should panic ... ok").unwrap();
        assert_eq!(
            caught.to_string(),
            "a tail without order: caught by loom test tables::a_tail_without_order_is_reported"
        );
        let missed =
            order("test gates::counts_without_order_are_reported - should panic ... FAILED").unwrap();
        assert!(missed.to_string().starts_with("counts without order: NOT CAUGHT"));
        for other in
            ["test a_release_is_seen ... ok", "running 3 tests", "test result: ok. 3 passed; 0 failed"]
        {
            assert_eq!(order(other), None);
        }
    }
}
