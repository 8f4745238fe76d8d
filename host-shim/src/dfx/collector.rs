//! The collector thread: copies each buffer out, hands its records on, and lets the buffer go back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_core::layout::{BufferLayout, Region, SubsystemId};
use sluice_core::mem::{Memory, Window};

use super::account::FreezeStats;
use super::ledger::{BufferId, Directory};
use super::pipe::WaitPipe;
use super::service::{Orders, ToCollect};
use super::sink::{BufferMeta, Sink};
use super::{Full, Pipe};

/// Longest wait for a buffer before the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);
/// How often the bytes of one buffer are offered to a sink that refuses them.
const ATTEMPTS: u32 = 3;

/// What was collected of one pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    /// Records the sink has.
    pub(super) collected: u64,
    /// Records the sink would not take.
    pub(super) copy_failed: u64,
    /// Buffers.
    pub(super) buffers: u64,
}

/// What the collector did.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) pools: Vec<Tally>,
    /// Freezes of the push gate.
    pub(super) rq: FreezeStats,
    /// Freezes of the pop gate.
    pub(super) fq: FreezeStats,
}

pub(super) struct Collector<M> {
    memory: M,
    region: Region,
    directory: Arc<Directory>,
    collect: Arc<WaitPipe<ToCollect>>,
    returned: Arc<WaitPipe<BufferId>>,
    sink: Box<dyn Sink>,
    bytes: Vec<u8>,
    collected: Collected,
    refusals_noted: u32,
}

impl<M: Memory> Collector<M> {
    pub(super) fn new(
        memory: M,
        region: Region,
        directory: Arc<Directory>,
        collect: Arc<WaitPipe<ToCollect>>,
        returned: Arc<WaitPipe<BufferId>>,
        sink: Box<dyn Sink>,
    ) -> Self {
        let largest = region.arrays().iter().map(|array| array.buffer.bytes).max().unwrap_or(0);
        let collected = Collected {
            pools: vec![Tally::default(); directory.pools().len()],
            rq: FreezeStats::default(),
            fq: FreezeStats::default(),
        };
        let bytes = vec![0; largest];
        Self { memory, region, directory, collect, returned, sink, bytes, collected, refusals_noted: 0 }
    }

    /// Collects until told to stop and nothing is left. A sink that panics ends the session's service too.
    pub(super) fn run(mut self, orders: &Orders) -> Collected {
        let _guard = TellIfPanicking(orders);
        loop {
            match self.collect.pop_wait(LOOK) {
                Some(ToCollect::Buffer(full)) => {
                    self.take(full);
                    self.returned.push(full.buffer);
                }
                Some(ToCollect::Freeze(freeze)) => {
                    if let Err(error) = self.sink.freeze(&freeze) {
                        self.note(&format!("freeze not recorded: {error}"));
                    }
                    let duration_ns = freeze.released_ns - freeze.opened_ns;
                    if freeze.gates.ready {
                        self.collected.rq.note(duration_ns);
                    }
                    if freeze.gates.free {
                        self.collected.fq.note(duration_ns);
                    }
                }
                None if orders.collector_stop.load(Ordering::Acquire) => return self.collected,
                None => {}
            }
        }
    }

    fn take(&mut self, full: Full) {
        let pool = self.directory.pool_of(full.buffer);
        let named = self.directory.pool(pool);
        let Some(layout) = self.region.array(named.kind).map(|array| array.buffer) else { return };
        let tally = &mut self.collected.pools[pool.0 as usize];
        tally.buffers += 1;
        let Some(count) = read(&self.memory, &self.directory, full.buffer, layout, &mut self.bytes) else {
            self.note(&format!(
                "pool {} {}: buffer {} unreadable",
                named.kind.0, named.instance.0, full.sequence
            ));
            return;
        };
        let records = &self.bytes[..count as usize * layout.record_bytes];
        let meta = BufferMeta {
            subsystem: SubsystemId::Swimlane,
            kind: named.kind,
            instance: named.instance,
            sequence: full.sequence,
            count,
        };
        let mut refused = None;
        for _ in 0..ATTEMPTS {
            match self.sink.buffer(&meta, records) {
                Ok(()) => {
                    tally.collected += u64::from(count);
                    return;
                }
                Err(error) => refused = Some(error),
            }
        }
        tally.copy_failed += u64::from(count);
        if let Some(error) = refused {
            self.note(&format!("{count} records not written: {error}"));
        }
    }

    fn note(&mut self, what: &str) {
        if self.refusals_noted < 2 {
            self.refusals_noted += 1;
            tracing::warn!("{what}");
        }
    }
}

struct TellIfPanicking<'a>(&'a Orders);

impl Drop for TellIfPanicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.collector_gone.store(true, Ordering::Release);
        }
    }
}

/// Copies the records of a buffer into `bytes`; their number, unless the device's count cannot be one. The count is read
/// once.
fn read<M: Memory>(
    memory: &M,
    directory: &Directory,
    buffer: BufferId,
    layout: BufferLayout,
    bytes: &mut [u8],
) -> Option<u32> {
    let window = memory.window(directory.address(buffer), layout.bytes as u32).ok()?;
    let mut word = [0; 4];
    if !window.read(layout.count as u32, &mut word) {
        return None;
    }
    let count = u32::from_le_bytes(word);
    if count > layout.capacity {
        return None;
    }
    window.read(layout.records as u32, &mut bytes[..count as usize * layout.record_bytes]).then_some(count)
}
