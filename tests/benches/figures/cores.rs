//! Which core the calling thread runs on. A thread that it starts runs there too.

use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process was given.
#[derive(Debug)]
pub(crate) struct Cores(Vec<usize>);

impl Cores {
    /// Those that the calling thread may run on; it must not be pinned yet.
    pub(crate) fn allowed() -> anyhow::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        Ok(Self((0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()))
    }

    pub(crate) fn one(&self) -> anyhow::Result<usize> {
        self.0.first().copied().context("no core to run on")
    }

    pub(crate) fn two(&self) -> anyhow::Result<[usize; 2]> {
        self.0.first_chunk().copied().context("takes two cores, and this process was given one")
    }
}

/// Keeps the calling thread on `core`.
pub(crate) fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on core {core}"))
}
