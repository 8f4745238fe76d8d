//! Threads of the host and of the simulated device under a sanitizer that reports data races.
//!
//! The whole library is compiled for it, the standard one included: locks and channels that the sanitizer did not see
//! would look like races. It follows atomic accesses and locks; a fence tells it nothing, and nothing it runs here has one:
//! memory of the simulated device is ordered by its control words, which are atomics, and copies of payload beside them
//! are checked as plain accesses. There are no suppressions.

use std::process::Command;

use anyhow::Context;

use super::{Outcome, run_all};
use crate::components::Component;
use crate::{process, workspace};

/// The nightly compiler with the source of its library, which Miri brings.
pub(super) const NEEDS: &[Component] = &[Component::Miri];

/// Unit tests with threads: the life of models and executions, sessions, the simulated device.
const UNIT_TESTS: &[&str] = &["--package", "sluice-host", "--lib", "--", "kbl::", "dfx::", "device::"];

/// The soak's short form, with all its threads.
const SOAK: &[&str] =
    &["--package", "sluice-tests", "--test", "kbl_soak", "--", "threads_share", "--nocapture"];

pub(super) fn races() -> anyhow::Result<Outcome> {
    let mut query = nightly("rustc");
    query.args(["--print", "host-tuple"]);
    let host = process::capture(query).context("the nightly compiler does not say what it runs on")?;
    run_all([UNIT_TESTS, SOAK].map(|tests| test(&host, tests)))
}

fn test(host: &str, tests: &[&str]) -> Command {
    let mut command = nightly("cargo");
    command.current_dir(workspace::root()).args(["test", "-Zbuild-std", "--no-fail-fast", "--target", host]);
    command.args(tests);
    command.env("RUSTFLAGS", "-Zsanitizer=thread");
    command.env("CARGO_TARGET_DIR", workspace::root().join("target/sanitize"));
    // Property tests are about arithmetic; a few cases do here.
    command.env("PROPTEST_CASES", "4");
    command
}

fn nightly(program: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", program]);
    command
}
