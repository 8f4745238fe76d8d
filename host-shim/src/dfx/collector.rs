//! A collector thread: copies each buffer out, hands its records on, and lets the buffer go back.
//!
//! A buffer goes back whatever became of its records: a copy or a sink that fails is tried a few times, then the records are
//! counted as lost and the buffer is the device's again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_core::gate::Gate;
use sluice_core::layout::{BufferLayout, PoolKind, Region, SubsystemId};
use sluice_core::mem::{CopyMemory, DevAddr, Fault, Word};

use super::account::FreezeStats;
use super::ledger::{BufferId, Directory};
use super::pipe::WaitPipe;
use super::server::ToCollect;
use super::service::Orders;
use super::sink::{BufferMeta, Sink};
use super::{Full, Pipe};

/// Longest wait for a buffer before the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);
/// Longest sleep in a pause before the thread looks whether it is over.
const PAUSE_LOOK: Duration = Duration::from_millis(1);
/// How often a copy is made, and its bytes are offered to a sink, before the records are given up.
const ATTEMPTS: u32 = 3;

/// What was collected of one pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    /// Records the sink has.
    pub(super) collected: u64,
    /// Records that could not be copied, or that the sink would not take.
    pub(super) copy_failed: u64,
    /// Most records that stood in buffers of which not even the count could be read.
    pub(super) uncounted: u64,
    /// Buffers.
    pub(super) buffers: u64,
}

/// What was collected of one subsystem.
#[derive(Clone, Debug, Default)]
pub(super) struct Collected {
    /// By pool, in the directory's order.
    pub(super) pools: Vec<Tally>,
    /// Freezes of the push gate.
    pub(super) rq: FreezeStats,
    /// Freezes of the pop gate.
    pub(super) fq: FreezeStats,
}

impl Collected {
    /// Adds what another collector has of the same subsystem.
    pub(super) fn add(&mut self, other: &Self) {
        for (tally, other) in self.pools.iter_mut().zip(&other.pools) {
            tally.collected += other.collected;
            tally.copy_failed += other.copy_failed;
            tally.uncounted += other.uncounted;
            tally.buffers += other.buffers;
        }
        self.rq.add(&other.rq);
        self.fq.add(&other.fq);
    }
}

/// One subsystem as collectors know it.
pub(super) struct Source {
    pub(super) subsystem: SubsystemId,
    pub(super) region: Region,
    pub(super) directory: Arc<Directory>,
    pub(super) returned: Arc<WaitPipe<BufferId>>,
}

impl Source {
    fn layout_of(&self, kind: PoolKind) -> Option<BufferLayout> {
        self.region.array(kind).map(|array| array.buffer)
    }
}

pub(super) struct Collector<M> {
    memory: M,
    sources: Arc<[Source]>,
    pipes: Arc<[WaitPipe<ToCollect>]>,
    /// Which of the pipes is this collector's.
    number: usize,
    sink: Arc<dyn Sink>,
    bytes: Vec<u8>,
    pub(super) collected: Vec<Collected>,
    refusals_noted: u32,
}

impl<M: CopyMemory> Collector<M> {
    pub(super) fn new(
        memory: M,
        sources: Arc<[Source]>,
        pipes: Arc<[WaitPipe<ToCollect>]>,
        number: usize,
        sink: Arc<dyn Sink>,
    ) -> Self {
        let arrays = sources.iter().flat_map(|source| source.region.arrays());
        let largest = arrays.map(|array| array.buffer.bytes).max().unwrap_or(0);
        let empty = |source: &Source| Collected {
            pools: vec![Tally::default(); source.directory.pools().len()],
            ..Collected::default()
        };
        let collected = sources.iter().map(empty).collect();
        Self { memory, sources, pipes, number, sink, bytes: vec![0; largest], collected, refusals_noted: 0 }
    }

    /// Collects until told to stop and nothing is left. A sink that panics ends the session's service too.
    pub(super) fn run(mut self, orders: &Orders) -> Vec<Collected> {
        let _guard = TellIfPanicking(orders);
        while !orders.abandoned.load(Ordering::Acquire) {
            if orders.is_paused() {
                std::thread::sleep(PAUSE_LOOK);
                continue;
            }
            match self.pipes[self.number].pop_wait(LOOK) {
                Some(item) => self.take(item),
                None if orders.collector_stop.load(Ordering::Acquire) => break,
                None => {}
            }
        }
        self.collected
    }

    pub(super) fn take(&mut self, item: ToCollect) {
        match item {
            ToCollect::Buffer { part, full } => {
                self.collect(part, full);
                self.sources[part].returned.push(full.buffer);
            }
            ToCollect::Freeze { part, freeze } => {
                if let Err(error) = self.sink.freeze(&freeze) {
                    self.note(&format!("freeze not recorded: {error}"));
                }
                let stats = match freeze.gate {
                    Gate::Ready => &mut self.collected[part].rq,
                    Gate::Free => &mut self.collected[part].fq,
                };
                stats.note(freeze.released_ns.saturating_sub(freeze.opened_ns));
            }
        }
    }

    fn collect(&mut self, part: usize, full: Full) {
        let Source { subsystem, directory, .. } = &self.sources[part];
        let pool = directory.pool_of(full.buffer);
        let named = directory.pool(pool);
        let (at, kind, instance) = (directory.address(full.buffer), named.kind, named.instance);
        let Some(layout) = self.sources[part].layout_of(kind) else { return };
        let tally = &mut self.collected[part].pools[pool.0 as usize];
        tally.buffers += 1;
        let buffer =
            |what: &str| format!("{subsystem} pool {kind} {}, buffer {}: {what}", instance.0, full.sequence);
        // The device's number is read once.
        let count = match attempt(|| self.memory.word(at.offset(layout.count as u64))?.try_load()) {
            Ok(count) if count <= layout.capacity => count,
            Ok(count) => {
                let text = buffer(&format!("{count} records stated, room for {}", layout.capacity));
                return self.note(&text);
            }
            Err(fault) => {
                tally.uncounted += u64::from(layout.capacity);
                let text = buffer(&format!("count not copied: {fault}"));
                return self.note(&text);
            }
        };
        let records = &mut self.bytes[..count as usize * layout.record_bytes];
        if let Err(fault) = attempt(|| read(&self.memory, at.offset(layout.records as u64), records)) {
            tally.copy_failed += u64::from(count);
            let text = buffer(&format!("{count} records not copied: {fault}"));
            return self.note(&text);
        }
        let meta = BufferMeta { subsystem: *subsystem, kind, instance, sequence: full.sequence, count };
        match attempt(|| self.sink.buffer(&meta, records)) {
            Ok(()) => tally.collected += u64::from(count),
            Err(error) => {
                tally.copy_failed += u64::from(count);
                let text = buffer(&format!("{count} records not written: {error}"));
                self.note(&text);
            }
        }
    }

    fn note(&mut self, what: &str) {
        if self.refusals_noted < 2 {
            self.refusals_noted += 1;
            tracing::warn!("{what}");
        }
    }
}

fn read<M: CopyMemory>(memory: &M, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
    if into.is_empty() { Ok(()) } else { memory.read_bytes(from, into) }
}

/// Tries a few times; the last error if none succeeds.
fn attempt<T, E>(mut once: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let mut result = once();
    for _ in 1..ATTEMPTS {
        if result.is_ok() {
            break;
        }
        result = once();
    }
    result
}

struct TellIfPanicking<'a>(&'a Orders);

impl Drop for TellIfPanicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.collector_gone.store(true, Ordering::Release);
        }
    }
}
