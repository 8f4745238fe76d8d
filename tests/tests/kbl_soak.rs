//! Models of one unit, used by many threads at random. `cargo xtask soak` does the same for minutes.

use std::io::Write;
use std::time::Duration;

use sluice_tests::soak::{self, Totals, Until};

/// Past the macros, whose output the test harness keeps to itself.
fn print(what: &str, totals: &Totals) {
    std::io::stdout().write_all(format!("{what}\n{totals}\n").as_bytes()).unwrap();
}

#[test]
fn threads_share_models_tensors_and_a_unit() {
    let totals = soak::run(16, 2026, Until::Elapsed(Duration::from_secs(5))).unwrap();
    print("16 threads", &totals);
    let Totals { executions, queue_full, waiters_dropped, timeouts, unloads, .. } = totals;
    let rare = [executions, queue_full, waiters_dropped, timeouts, unloads];
    assert!(rare.iter().all(|&count| count > 0), "a case that never came up: {totals:?}");
}

#[test]
fn ten_thousand_executions_with_tensors_bound_anew_at_random() {
    let totals = soak::run(1, 10_000, Until::Executions(10_000)).unwrap();
    print("1 thread", &totals);
    assert!(totals.executions >= 10_000 && totals.rebinds > 1000 && totals.hits > 0, "{totals:?}");
}
