//! The words in which a pool shows the host what it holds and what it has counted.
//!
//! They are the same for every kind of pool, so that the code that finds them is there once.

use super::{DropCause, DropCounts};
use crate::layout::extension::DROP_CAUSES;
use crate::layout::{Instance, PoolOffsets};
use crate::mem::{DevAddr, Fault, LongOwn, Memory, Own, OwnCount};

/// Where a pool stands and how long its queue is.
#[derive(Clone, Copy, Debug)]
pub struct PoolSetup {
    /// Base of the subsystem's region.
    pub region: DevAddr,
    /// The pool's words.
    pub offsets: PoolOffsets,
    /// Slots of its free queue.
    pub free_slots: u32,
    /// Which pool of its kind.
    pub instance: Instance,
}

/// Words of a pool that only our own hosts have: high halves of the counters and losses by cause.
#[derive(Clone, Debug)]
pub struct CountWords<W> {
    /// Lower half of the attempts, for a pool whose region has no word for them.
    pub total_low: Option<Own<W>>,
    /// Upper half of the attempts.
    pub total_high: Own<W>,
    /// Upper half of the overflow records.
    pub overflow_high: Own<W>,
    /// Losses by cause.
    pub by_cause: [OwnCount<W>; DROP_CAUSES],
    /// Fewest buffers seen waiting when one was claimed.
    pub free_low_water: Own<W>,
    /// The stashed buffer.
    pub stash: LongOwn<W>,
    /// Its sequence number.
    pub stash_sequence: Own<W>,
}

/// A pool's words.
pub(super) struct PoolWords<M: Memory> {
    /// The buffer being filled.
    pub(super) current: LongOwn<M::Word>,
    /// Its sequence number.
    pub(super) sequence: Own<M::Word>,
    total: Option<Own<M::Word>>,
    dropped: Own<M::Word>,
    overflow: Option<Own<M::Word>>,
    mismatched: Option<Own<M::Word>>,
    loss_saturates: bool,
    /// Those that only our own hosts have.
    pub(super) counts: Option<CountWords<M::Word>>,
}

impl<M: Memory> PoolWords<M> {
    /// The words at `setup`, cleared.
    ///
    /// # Errors
    /// [`Fault`] when one lies outside device memory.
    pub(super) fn attach(
        memory: &M,
        setup: &PoolSetup,
        mut counts: Option<CountWords<M::Word>>,
    ) -> Result<Self, Fault> {
        let at = |offset: usize| setup.region.offset(offset as u64);
        let word = |offset: usize| memory.word(at(offset)).map(Own::new);
        let total = match setup.offsets.total_records {
            Some(offset) => Some(word(offset)?),
            None => counts.as_mut().and_then(|counts| counts.total_low.take()),
        };
        let words = Self {
            current: LongOwn::at(memory, at(setup.offsets.current_ptr))?,
            sequence: word(setup.offsets.current_seq)?,
            total,
            dropped: word(setup.offsets.dropped_records)?,
            overflow: setup.offsets.overflow_records.map(word).transpose()?,
            mismatched: setup.offsets.mismatch_records.map(word).transpose()?,
            loss_saturates: setup.offsets.total_records.is_none(),
            counts,
        };
        words.current.publish(DevAddr::NULL);
        words.sequence.set(0);
        words.store_total(0);
        words.store_dropped(&DropCounts::default());
        words.store_overflow(0);
        if let Some(counts) = &words.counts {
            counts.free_low_water.set(setup.free_slots);
            counts.stash.publish(DevAddr::NULL);
        }
        Ok(words)
    }

    /// Shows how many attempts there were.
    #[inline]
    pub(super) fn store_total(&self, total: u64) {
        if let Some(word) = &self.total {
            word.set(total as u32);
        }
        if total as u32 == 0 {
            self.store_total_high(total);
        }
    }

    #[cold]
    fn store_total_high(&self, total: u64) {
        if let Some(counts) = &self.counts {
            counts.total_high.set((total >> 32) as u32);
        }
    }

    /// Shows how many slots chains took beyond one per record.
    pub(super) fn store_overflow(&self, slots: u64) {
        if let Some(overflow) = &self.overflow {
            overflow.set(slots as u32);
        }
        if let Some(counts) = &self.counts {
            counts.overflow_high.set((slots >> 32) as u32);
        }
    }

    /// Shows what was lost.
    pub(super) fn store_dropped(&self, lost: &DropCounts) {
        let mut dropped: u64 = lost.iter().sum();
        if let Some(mismatched) = &self.mismatched {
            let mismatches = lost[DropCause::Mismatch.index()];
            mismatched.set(mismatches as u32);
            dropped = dropped.wrapping_sub(mismatches);
        }
        // Where the contract has no total to compare with, its losses stop at the most that the word holds.
        self.dropped.set(if self.loss_saturates { dropped.min(u64::from(u32::MAX)) } else { dropped } as u32);
        if let Some(counts) = &self.counts {
            for (words, &lost) in counts.by_cause.iter().zip(lost) {
                words.set(lost);
            }
        }
    }
}
