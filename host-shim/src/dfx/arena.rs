//! Payload arenas as the host sees them: what is copied out, and how a lane hears that it is safe.
//!
//! ```text
//!   drain ── handed + 1 ──► collector: payloads out of the arena ──► sink ──► records ──► sink
//!                                        └── completed_payload_count ──► lane          done + 1
//!   keeper, in a freeze: done has come to where handed was when it first asked ──► the freeze may end
//! ```
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `completed_payload_count` | collector → lane | release → acquire, low half first | so many payloads are safe: their place may be written again |
//! | `handed`, `done` | drain, collector → keeper | release → acquire | buffers on their way, and those whose payloads are acknowledged |
//!
//! Only the bytes of a payload are read, never an arena. A payload that lies nowhere in its arena is not read; it is acknowledged all
//! the same, for the lane counts it, and the run is told.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_core::layout::args_dump::{ArgKind, BufferState, Record};
use sluice_core::layout::{Instance, PoolKind, Region};
use sluice_core::mem::{DevAddr, Fault, Memory, Word};

use super::release::ReleaseReady;
use crate::device::heap::DeviceBlock;
use zerocopy::FromBytes;

/// The word in which a lane hears how many of its payloads are safe.
pub struct Acknowledgement<M: Memory> {
    low: M::Word,
    high: M::Word,
}

impl<M: Memory> Acknowledgement<M> {
    /// The one whose low half lies at `at`.
    ///
    /// # Errors
    /// [`Fault`] when it lies outside device memory.
    pub fn at(memory: &M, at: DevAddr) -> Result<Self, Fault> {
        Ok(Self { low: memory.word(at)?, high: memory.word(at.offset(4))? })
    }

    /// So many payloads are safe. The low half goes first: in between, a count that carries over reads as less than it is.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails; a lane may have seen half of it then.
    pub fn store(&self, completed: u64) -> Result<(), Fault> {
        self.low.try_store(completed as u32)?;
        self.high.try_store((completed >> 32) as u32)
    }
}

/// One lane's arena, and the word that acknowledges its payloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ArenaPlace {
    base: DevAddr,
    size_bytes: u64,
    completed: DevAddr,
}

impl ArenaPlace {
    /// The arenas of the lanes of `region`, which lies at `region_at`.
    pub(super) fn all(region: &Region, region_at: DevAddr, arenas: &[DeviceBlock]) -> Vec<Self> {
        let place = |(lane, arena): (u32, &DeviceBlock)| {
            let pool = region.pool(PoolKind::SOLE, Instance(lane))?;
            let completed = pool.base + offset_of!(BufferState, completed_payload_count);
            let completed = region_at.offset(completed as u64);
            Some(Self { base: arena.at(), size_bytes: arena.bytes(), completed })
        };
        (0..).zip(arenas).filter_map(place).collect()
    }

    /// Tells the lane that so many of its payloads are safe.
    pub(super) fn acknowledge<M: Memory>(&self, memory: &M, completed: u64) -> Result<(), Fault> {
        Acknowledgement::at(memory, self.completed)?.store(completed)
    }

    /// Where the payload of `record` lies; `None` when that is no place in the arena.
    pub(super) fn payload_at(&self, record: &Record) -> Option<DevAddr> {
        let offset = record.payload_offset.checked_rem(self.size_bytes)?;
        let end = offset.checked_add(record.payload_size)?;
        (end <= self.size_bytes).then(|| self.base.offset(offset))
    }
}

/// The records in the bytes of a buffer.
pub(super) fn records_of(bytes: &[u8]) -> impl Iterator<Item = Record> + '_ {
    bytes.chunks_exact(size_of::<Record>()).filter_map(|record| Record::read_from_bytes(record).ok())
}

/// Whether a record has bytes in the arena, as the lane counts them.
pub(super) fn has_payload(record: &Record) -> bool {
    record.kind == ArgKind::TENSOR && record.payload_size > 0
}

/// Buffers whose payloads are on their way, by lane.
#[derive(Debug)]
pub(super) struct PayloadsUnderWay {
    handed: Box<[AtomicU64]>,
    done: Box<[AtomicU64]>,
}

impl PayloadsUnderWay {
    pub(super) fn new(lanes: usize) -> Self {
        let counters = || (0..lanes).map(|_| AtomicU64::new(0)).collect();
        Self { handed: counters(), done: counters() }
    }

    /// A buffer of `lane` goes to its collector.
    pub(super) fn hand(&self, lane: Instance) {
        Self::count(&self.handed, lane);
    }

    /// Nothing of a buffer of `lane` is in the arena any more that the lane does not know of.
    pub(super) fn finish(&self, lane: Instance) {
        Self::count(&self.done, lane);
    }

    fn count(counters: &[AtomicU64], lane: Instance) {
        if let Some(counter) = counters.get(lane.0 as usize) {
            counter.fetch_add(1, Ordering::Release);
        }
    }
}

/// Lanes of this subsystem wait for acknowledgements too.
#[derive(Debug)]
pub(super) struct Acknowledged {
    payloads: Arc<PayloadsUnderWay>,
    /// What had been handed on when this freeze first asked: what a lane that runs on adds to it counts for the next.
    wanted: Option<Vec<u64>>,
}

impl Acknowledged {
    pub(super) fn new(payloads: Arc<PayloadsUnderWay>) -> Self {
        Self { payloads, wanted: None }
    }
}

impl ReleaseReady for Acknowledged {
    fn is_ready(&mut self) -> Result<bool, Fault> {
        let read = |counters: &[AtomicU64]| -> Vec<u64> {
            counters.iter().map(|counter| counter.load(Ordering::Acquire)).collect()
        };
        let wanted = self.wanted.get_or_insert_with(|| read(&self.payloads.handed));
        let is_ready = read(&self.payloads.done).iter().zip(wanted).all(|(done, wanted)| *done >= *wanted);
        if is_ready {
            self.wanted = None;
        }
        Ok(is_ready)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn a_busy_peer_does_not_postpone_a_release() {
        let payloads = Arc::new(PayloadsUnderWay::new(2));
        let mut ready = Acknowledged::new(Arc::clone(&payloads));
        assert_eq!(ready.is_ready(), Ok(true), "nothing is under way");
        [0, 1, 1].into_iter().for_each(|lane| payloads.hand(Instance(lane)));
        assert_eq!(ready.is_ready(), Ok(false));
        payloads.finish(Instance(0));
        payloads.finish(Instance(1));
        // Lane 0 goes on, and is always one ahead.
        payloads.hand(Instance(0));
        assert_eq!(ready.is_ready(), Ok(false), "lane 1 had two under way");
        payloads.finish(Instance(1));
        assert_eq!(ready.is_ready(), Ok(true));
        assert_eq!(ready.is_ready(), Ok(false), "the next freeze waits for what is under way now");
        payloads.finish(Instance(0));
        assert_eq!(ready.is_ready(), Ok(true));
        // A surplus of one lane does not stand in for another.
        payloads.finish(Instance(0));
        payloads.hand(Instance(1));
        assert_eq!(ready.is_ready(), Ok(false));
        payloads.hand(Instance(7));
    }

    #[test]
    fn payloads_lie_inside_the_arena_or_nowhere() {
        let arena = ArenaPlace { base: DevAddr(0x1000), size_bytes: 100, completed: DevAddr(0) };
        let at = |payload_offset, payload_size| {
            arena.payload_at(&Record { payload_offset, payload_size, ..Record::new_zeroed() })
        };
        assert_eq!(at(0, 100), Some(DevAddr(0x1000)));
        assert_eq!(at(530, 70), Some(DevAddr(0x1000 + 30)));
        for (offset, size) in [(530, 71), (1, 100), (0, 101), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            assert_eq!(at(offset, size), None, "{offset} {size}");
        }
        assert_eq!(ArenaPlace { size_bytes: 0, ..arena }.payload_at(&Record::new_zeroed()), None);
    }
}
