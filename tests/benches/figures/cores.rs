//! Which core the calling thread runs on. Threads inherit it from the one that starts them.

use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The first core that the calling thread may run on. Ask before it is pinned.
pub(crate) fn first() -> anyhow::Result<usize> {
    let allowed = sched_getaffinity(None)?;
    (0..CpuSet::MAX_CPU).find(|&core| allowed.is_set(core)).context("no core to run on")
}

/// Keeps the calling thread on `core`.
pub(crate) fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on core {core}"))
}
