//! The life of models and executions on a device whose firmware is the test.

mod collective;
mod errors;
mod faults;
mod flow;
mod fork;
mod kickoff;
mod leaks;
mod load;
mod meddling;
mod placement;
mod rearm;
mod rebuild;
mod removal;

use std::time::Duration;

use super::{UnitOptions, *};

/// Long enough that a test which waits so long has failed.
const SOON: Duration = Duration::from_secs(20);
const AT_ONCE: Duration = Duration::ZERO;

/// Sizes at which rings wrap and lines fill up.
fn small() -> UnitOptions {
    UnitOptions { depth: 8, exec_ring: 256, ..UnitOptions::default() }
}
