//! Rings: sizes, cursors, phases, all-or-nothing reservation, doorbell counts.
//!
//! ```text
//!            completed            next
//!               │◄─ outstanding ─►│◄── free ──►│◄─ 16 kept empty ─►│ completed, one lap on
//!   index  … ───┴─────────────────┴────────────┴───────────────────┴───
//!   ring id          k                  k, then k + 1 mod 4 behind the wrap
//! ```
//!
//! A ring starts at index 0 with ring id 1. A descriptor carries the id that is current when its slot is handed
//! out; handing out the last slot moves on to index 0 and the next id. The device counts along and stops at a
//! descriptor whose id is not the one it expects. TX and RX wrap on their own (wire contract).

use core::fmt;

use super::word::{RingId, RingIds};
use crate::mmio::Half;

/// Slots of a ring that always stay empty.
pub const RING_GAP: u32 = 16;

/// Descriptors that a ring has room for: a multiple of 16 in 32..=16,777,200.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingSize(u32);

impl RingSize {
    /// The smallest ring.
    pub const MIN: Self = Self(32);
    /// The largest ring, 2^24 − 16.
    pub const MAX: Self = Self((1 << 24) - RING_GAP);
    /// What is allocated for up to 31 descriptors: 1,024 bytes.
    const SMALL: Self = Self(64);

    /// A ring of `descriptors` slots.
    ///
    /// # Errors
    /// Not a multiple of 16, or outside the range of the length register.
    pub const fn new(descriptors: u32) -> Result<Self, RingError> {
        if !descriptors.is_multiple_of(RING_GAP) {
            Err(RingError::NotMultiple { descriptors })
        } else if descriptors < Self::MIN.0 || descriptors > Self::MAX.0 {
            Err(RingError::OutOfRange { descriptors })
        } else {
            Ok(Self(descriptors))
        }
    }

    /// The ring to allocate for `descriptors` that are run over and over: 64, or the next power of two that
    /// leaves the gap.
    ///
    /// # Errors
    /// More than fit a ring whose size is a power of two.
    pub const fn wrapping(descriptors: u32) -> Result<Self, RingError> {
        if descriptors < 32 {
            return Ok(Self::SMALL);
        }
        if descriptors > (1 << 23) - RING_GAP {
            return Err(RingError::OutOfRange { descriptors });
        }
        Ok(Self((descriptors + RING_GAP).next_power_of_two()))
    }

    /// The ring to allocate for `descriptors` that run once, from the start: 64, or the next multiple of 16 that
    /// leaves the gap.
    ///
    /// # Errors
    /// More than fit a ring.
    pub const fn linear(descriptors: u32) -> Result<Self, RingError> {
        if descriptors < 32 {
            return Ok(Self::SMALL);
        }
        if descriptors > Self::MAX.usable() {
            return Err(RingError::OutOfRange { descriptors });
        }
        Ok(Self((descriptors + RING_GAP).next_multiple_of(RING_GAP)))
    }

    /// Slots of the ring.
    pub const fn descriptors(self) -> u32 {
        self.0
    }

    /// Most descriptors that can be outstanding at once.
    pub const fn usable(self) -> u32 {
        self.0 - RING_GAP
    }

    /// Bytes of the ring.
    pub const fn bytes(self) -> u64 {
        self.0 as u64 * 16
    }
}

/// A ring operation that was refused; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum RingError {
    /// A ring size that is not a multiple of 16.
    NotMultiple {
        /// Size asked for.
        descriptors: u32,
    },
    /// A size that no ring has.
    OutOfRange {
        /// Descriptors asked for.
        descriptors: u32,
    },
    /// No room now; there will be when the device has gone on.
    Full {
        /// The ring that is short.
        half: Half,
        /// Slots asked for.
        need: u32,
        /// Slots free.
        free: u32,
    },
    /// A batch that never fits the ring.
    BatchTooLarge {
        /// The ring that is too small.
        half: Half,
        /// Slots asked for.
        need: u32,
        /// Slots that can be outstanding at once.
        usable: u32,
    },
    /// The device reports more descriptors done than it was given.
    CompletedAhead {
        /// The ring concerned.
        half: Half,
        /// Descriptors reported.
        count: u32,
        /// Descriptors outstanding.
        outstanding: u32,
    },
    /// A doorbell count that no ring can mean.
    DoorbellCount {
        /// The ring concerned.
        half: Half,
        /// Count asked for.
        count: u32,
        /// Size of the ring.
        size: u32,
    },
}

impl RingError {
    /// The driver's number for this error: −1, −12 or −22.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotMultiple { .. } | Self::BatchTooLarge { .. } => -1,
            Self::Full { .. } => -12,
            Self::OutOfRange { .. } | Self::CompletedAhead { .. } | Self::DoorbellCount { .. } => -22,
        }
    }
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMultiple { descriptors } => {
                write!(f, "ring size {descriptors} is not a multiple of {RING_GAP}")
            }
            Self::OutOfRange { descriptors } => {
                write!(f, "{descriptors} descriptors: a ring has {} to {}", RingSize::MIN.0, RingSize::MAX.0)
            }
            Self::Full { half, need, free } => write!(f, "{half} ring full: need {need} slots, {free} free"),
            Self::BatchTooLarge { half, need, usable } => {
                write!(f, "{half} ring too small: need {need} slots, {usable} usable")
            }
            Self::CompletedAhead { half, count, outstanding } => {
                write!(f, "{half} ring: {count} descriptors completed, {outstanding} outstanding")
            }
            Self::DoorbellCount { half, count, size } => {
                write!(f, "{half} doorbell of {count} on a ring of {size}")
            }
        }
    }
}

impl core::error::Error for RingError {}

/// A slot of a ring in a certain lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index in the ring.
    pub index: u32,
    /// The lap.
    pub ring_id: RingId,
}

/// A descriptor whose ring id is not that of the lap its reader is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PhaseMismatch {
    /// Index of the descriptor.
    pub index: u32,
    /// Id the reader expected.
    pub expected: RingId,
    /// Id it found.
    pub found: RingId,
}

impl fmt::Display for PhaseMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, expected, found } = self;
        write!(f, "descriptor {index} carries ring id {}, expected {}", found.get(), expected.get())
    }
}

impl core::error::Error for PhaseMismatch {}

/// A place in a ring that moves forward: where the builder writes next, or the device reads next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    size: RingSize,
    slot: Slot,
}

impl Position {
    /// The start of a ring that was just set up.
    pub const fn start(size: RingSize) -> Self {
        Self { size, slot: Slot { index: 0, ring_id: RingId::FIRST } }
    }

    /// The place of `slot`; `None` when the ring has no such index.
    pub const fn at(size: RingSize, slot: Slot) -> Option<Self> {
        if slot.index < size.0 { Some(Self { size, slot }) } else { None }
    }

    /// The slot at this place.
    pub const fn slot(&self) -> Slot {
        self.slot
    }

    /// Size of the ring.
    pub const fn size(&self) -> RingSize {
        self.size
    }

    /// Moves on by one slot and returns the one left behind.
    #[inline]
    pub const fn step(&mut self) -> Slot {
        let left = self.slot;
        self.skip(1);
        left
    }

    /// The reader's check: the descriptor at this place has to belong to this lap. Moves on if it does.
    ///
    /// # Errors
    /// Another lap; the place stays.
    pub fn accept(&mut self, found: RingId) -> Result<Slot, PhaseMismatch> {
        self.check(found)?;
        Ok(self.step())
    }

    /// The same check without the move.
    ///
    /// # Errors
    /// Another lap.
    #[inline]
    pub fn check(&self, found: RingId) -> Result<(), PhaseMismatch> {
        let Slot { index, ring_id: expected } = self.slot;
        if found == expected { Ok(()) } else { Err(PhaseMismatch { index, expected, found }) }
    }

    /// Moves on by at most one lap.
    #[inline]
    const fn skip(&mut self, count: u32) {
        let index = self.slot.index + count;
        if index < self.size.0 {
            self.slot.index = index;
        } else {
            self.slot = Slot { index: index - self.size.0, ring_id: self.slot.ring_id.next() };
        }
    }
}

/// The builder's side of one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    half: Half,
    next: Position,
    completed: u32,
}

impl Cursor {
    /// The cursor of a ring that was just set up.
    pub const fn new(half: Half, size: RingSize) -> Self {
        Self { half, next: Position::start(size), completed: 0 }
    }

    /// The slot that is handed out next.
    pub const fn next(&self) -> Slot {
        self.next.slot
    }

    /// Size of the ring.
    pub const fn size(&self) -> RingSize {
        self.next.size
    }

    /// Descriptors handed out and not known to be completed.
    pub const fn outstanding(&self) -> u32 {
        let (next, size) = (self.next.slot.index, self.next.size.0);
        if next >= self.completed { next - self.completed } else { next + size - self.completed }
    }

    /// Slots that can be handed out: (completed − (next + 16)) mod size.
    pub const fn free(&self) -> u32 {
        self.next.size.usable() - self.outstanding()
    }

    /// The ring id of the descriptor that lies, or is going to lie, at `index`: slots at or past the cursor
    /// still belong to the lap before.
    pub const fn ring_id_at(&self, index: u32) -> RingId {
        let Slot { index: next, ring_id } = self.next.slot;
        if index < next { ring_id } else { ring_id.previous() }
    }

    /// Hands out `count` slots, or none.
    ///
    /// # Errors
    /// `Full` when they are not free now, `BatchTooLarge` when they never can be.
    pub const fn reserve(&mut self, count: u32) -> Result<Slots, RingError> {
        match self.check(count) {
            Ok(()) => Ok(self.take(count)),
            Err(error) => Err(error),
        }
    }

    /// Takes note that the device has finished `count` more descriptors.
    ///
    /// # Errors
    /// More than are outstanding.
    pub const fn complete(&mut self, count: u32) -> Result<(), RingError> {
        match self.check_complete(count) {
            Ok(()) => {
                self.retire(count);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    const fn check(&self, count: u32) -> Result<(), RingError> {
        let (half, need, free, usable) = (self.half, count, self.free(), self.next.size.usable());
        if need > usable {
            Err(RingError::BatchTooLarge { half, need, usable })
        } else if need > free {
            Err(RingError::Full { half, need, free })
        } else {
            Ok(())
        }
    }

    const fn take(&mut self, count: u32) -> Slots {
        let slots = Slots { at: self.next, left: count };
        self.next.skip(count);
        slots
    }

    const fn check_complete(&self, count: u32) -> Result<(), RingError> {
        let (half, outstanding) = (self.half, self.outstanding());
        if count > outstanding { Err(RingError::CompletedAhead { half, count, outstanding }) } else { Ok(()) }
    }

    const fn retire(&mut self, count: u32) {
        let completed = self.completed + count;
        let size = self.next.size.0;
        self.completed = if completed < size { completed } else { completed - size };
    }
}

/// Slots that were handed out together, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    at: Position,
    left: u32,
}

impl Slots {
    /// The slots as pieces without a wrap: none, one or two.
    pub const fn runs(&self) -> Runs {
        Runs { slots: *self }
    }
}

impl Iterator for Slots {
    type Item = Slot;

    fn next(&mut self) -> Option<Slot> {
        self.left = self.left.checked_sub(1)?;
        Some(self.at.step())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Slots {}

/// Neighbouring slots of one lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the first slot.
    pub index: u32,
    /// Slots in this piece, at least 1.
    pub count: u32,
    /// Ring id of all of them.
    pub ring_id: RingId,
}

/// The pieces of [`Slots`].
#[derive(Clone, Copy, Debug)]
pub struct Runs {
    slots: Slots,
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let Slot { index, ring_id } = self.slots.at.slot;
        let count = self.slots.left.min(self.slots.at.size.0 - index);
        self.slots.at.skip(count);
        self.slots.left -= count;
        (count > 0).then_some(Run { index, count, ring_id })
    }
}

/// Slots for the same number of descriptors on both rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairSlots {
    /// Slots of the TX ring.
    pub tx: Slots,
    /// Slots of the RX ring.
    pub rx: Slots,
}

impl Iterator for PairSlots {
    type Item = (Slot, Slot);

    fn next(&mut self) -> Option<(Slot, Slot)> {
        Some((self.tx.next()?, self.rx.next()?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.tx.size_hint()
    }
}

impl ExactSizeIterator for PairSlots {}

/// The builder's side of one queue: a TX and an RX ring that take descriptors in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairCursor {
    tx: Cursor,
    rx: Cursor,
}

impl PairCursor {
    /// Sets up a queue with rings of these sizes, both at index 0 with ring id 1.
    ///
    /// # Errors
    /// The first size that no ring can have, TX before RX.
    pub const fn new(tx_descriptors: u32, rx_descriptors: u32) -> Result<Self, RingError> {
        match (RingSize::new(tx_descriptors), RingSize::new(rx_descriptors)) {
            (Ok(tx), Ok(rx)) => Ok(Self { tx: Cursor::new(Half::Tx, tx), rx: Cursor::new(Half::Rx, rx) }),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    /// The queue with rings that are in the laps of these ids instead.
    #[must_use]
    pub const fn in_laps(mut self, ring_ids: RingIds) -> Self {
        self.tx.next.slot.ring_id = ring_ids.tx;
        self.rx.next.slot.ring_id = ring_ids.rx;
        self
    }

    /// The TX ring.
    pub const fn tx(&self) -> &Cursor {
        &self.tx
    }

    /// The RX ring.
    pub const fn rx(&self) -> &Cursor {
        &self.rx
    }

    /// Pairs that can be handed out now.
    pub const fn free(&self) -> u32 {
        let (tx, rx) = (self.tx.free(), self.rx.free());
        if tx < rx { tx } else { rx }
    }

    /// The ring ids that the next pair gets.
    pub const fn ring_ids(&self) -> RingIds {
        RingIds { tx: self.tx.next().ring_id, rx: self.rx.next().ring_id }
    }

    /// Hands out `count` slots on both rings, or none on either.
    ///
    /// # Errors
    /// As [`Cursor::reserve`], of the first ring that is short, TX before RX.
    pub const fn reserve(&mut self, count: u32) -> Result<PairSlots, RingError> {
        match (self.tx.check(count), self.rx.check(count)) {
            (Ok(()), Ok(())) => Ok(PairSlots { tx: self.tx.take(count), rx: self.rx.take(count) }),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    /// Takes note that the device has finished `count` more pairs.
    ///
    /// # Errors
    /// More than are outstanding on either ring; neither moves.
    pub const fn complete(&mut self, count: u32) -> Result<(), RingError> {
        match (self.tx.check_complete(count), self.rx.check_complete(count)) {
            (Ok(()), Ok(())) => {
                self.tx.retire(count);
                self.rx.retire(count);
                Ok(())
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    /// The tail increments that start new descriptors, in the order they have to be written: RX, then TX. TX is
    /// left out when its count is 0, for RX may be started alone.
    ///
    /// All descriptors have to be visible in memory before the first increment is written.
    ///
    /// # Errors
    /// An RX count outside 1..=size, or a TX count above its size.
    pub fn doorbells(
        &self,
        tx_count: u32,
        rx_count: u32,
    ) -> Result<impl Iterator<Item = Doorbell>, RingError> {
        for (cursor, count, least) in [(&self.rx, rx_count, 1), (&self.tx, tx_count, 0)] {
            let size = cursor.size().descriptors();
            if count < least || count > size {
                return Err(RingError::DoorbellCount { half: cursor.half, count, size });
            }
        }
        let tx = (tx_count > 0).then_some(Doorbell { half: Half::Tx, count: tx_count });
        Ok(core::iter::once(Doorbell { half: Half::Rx, count: rx_count }).chain(tx))
    }
}

/// One write to a tail-increment register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// The ring whose register it is.
    pub half: Half,
    /// Number of new descriptors, not an index.
    pub count: u32,
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_follow_the_register_check() {
        for (descriptors, errno) in [(0, -22), (16, -22), (24, -1), (31, -1), (40, -1), (1 << 24, -22)] {
            assert_eq!(RingSize::new(descriptors).unwrap_err().errno(), errno, "{descriptors}");
        }
        for descriptors in [32, 48, 4096, (1 << 24) - 16] {
            assert_eq!(RingSize::new(descriptors).unwrap().descriptors(), descriptors);
        }
    }

    #[test]
    fn allocation_follows_the_sizing_table() {
        let wrapping = |n| RingSize::wrapping(n).map(RingSize::descriptors);
        let linear = |n| RingSize::linear(n).map(RingSize::descriptors);
        assert_eq!([0, 31, 32, 48, 49, 112].map(wrapping), [64, 64, 64, 64, 128, 128].map(Ok));
        assert_eq!([0, 31, 32, 33, 48, 49].map(linear), [64, 64, 48, 64, 64, 80].map(Ok));
        assert_eq!(wrapping((1 << 23) - 16), Ok(1 << 23));
        assert_eq!(
            wrapping((1 << 23) - 15).unwrap_err(),
            RingError::OutOfRange { descriptors: (1 << 23) - 15 }
        );
        assert_eq!(linear((1 << 24) - 32), Ok((1 << 24) - 16));
        assert!(linear((1 << 24) - 31).is_err() && linear(u32::MAX).is_err());
        assert_eq!(RingSize::SMALL.bytes(), 1024);
    }

    #[test]
    fn a_batch_is_handed_out_whole_or_not_at_all() {
        let mut queue = PairCursor::new(64, 32).unwrap();
        assert_eq!(
            queue.reserve(17).unwrap_err(),
            RingError::BatchTooLarge { half: Half::Rx, need: 17, usable: 16 }
        );
        queue.reserve(10).unwrap();
        let before = queue;
        let full = queue.reserve(7).unwrap_err();
        assert_eq!((full, full.errno()), (RingError::Full { half: Half::Rx, need: 7, free: 6 }, -12));
        assert_eq!(queue, before);
        assert_eq!(
            queue.complete(11).unwrap_err(),
            RingError::CompletedAhead { half: Half::Tx, count: 11, outstanding: 10 }
        );
        assert_eq!(queue, before);
        queue.complete(10).unwrap();
        assert_eq!((queue.free(), queue.tx().free()), (16, 48));
    }

    #[test]
    fn rx_is_rung_first_and_may_be_rung_alone() {
        let queue = PairCursor::new(32, 64).unwrap();
        let rung = |tx, rx| queue.doorbells(tx, rx).map(|d| d.map(|d| (d.half, d.count)).collect::<Vec<_>>());
        assert_eq!(rung(3, 4).unwrap(), [(Half::Rx, 4), (Half::Tx, 3)]);
        assert_eq!(rung(0, 64).unwrap(), [(Half::Rx, 64)]);
        assert_eq!(rung(1, 0).unwrap_err(), RingError::DoorbellCount { half: Half::Rx, count: 0, size: 64 });
        assert_eq!(
            rung(33, 1).unwrap_err(),
            RingError::DoorbellCount { half: Half::Tx, count: 33, size: 32 }
        );
    }

    #[test]
    fn a_reader_accepts_only_its_own_lap() {
        let mut reader = Position::start(RingSize::MIN);
        for _ in 0..32 {
            reader.accept(RingId::FIRST).unwrap();
        }
        let stale = reader.accept(RingId::FIRST).unwrap_err();
        assert_eq!((stale.index, stale.expected.get(), stale.found.get()), (0, 2, 1));
        assert_eq!(reader.accept(stale.expected).unwrap().index, 0);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Reserve(u32),
        Complete(u32),
    }

    proptest! {
        /// Against free-running counts: slot k of all ever handed out has index k mod size and id 1 + k / size.
        #[test]
        #[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
        fn cursors_follow_free_running_counts(
            sizes in (2u32..9, 2u32..9),
            ops in prop::collection::vec(
                prop_oneof![(0u32..150).prop_map(Op::Reserve), (0u32..150).prop_map(Op::Complete)], 1..200),
        ) {
            let (tx_size, rx_size) = (sizes.0 * 16, sizes.1 * 16);
            let mut queue = PairCursor::new(tx_size, rx_size).unwrap();
            let (mut given, mut done) = (0u32, 0u32);
            for op in ops {
                let room = |size: u32| (done + 2 * size - given % size - 16) % size;
                prop_assert_eq!(queue.tx().free(), room(tx_size));
                prop_assert_eq!(queue.rx().free(), room(rx_size));
                match op {
                    Op::Reserve(count) => {
                        let fits = count <= room(tx_size).min(room(rx_size));
                        let slots = queue.reserve(count);
                        prop_assert_eq!(slots.is_ok(), fits);
                        let Ok(slots) = slots else { continue };
                        let want = |size: u32| {
                            (given..given + count)
                                .map(move |k| (k % size, (1 + k / size) % 4))
                                .collect::<Vec<_>>()
                        };
                        let got = |slots: Slots| {
                            slots.map(|s| (s.index, u32::from(s.ring_id.get()))).collect::<Vec<_>>()
                        };
                        prop_assert_eq!(got(slots.tx), want(tx_size));
                        prop_assert_eq!(got(slots.rx), want(rx_size));
                        let runs = slots.tx.runs().flat_map(|run| {
                            (run.index..run.index + run.count).map(move |i| (i, u32::from(run.ring_id.get())))
                        });
                        prop_assert_eq!(runs.collect::<Vec<_>>(), want(tx_size));
                        for slot in slots.rx {
                            prop_assert_eq!(queue.rx().ring_id_at(slot.index), slot.ring_id);
                        }
                        given += count;
                    }
                    Op::Complete(count) => {
                        let fits = count <= given - done;
                        prop_assert_eq!(queue.complete(count).is_ok(), fits);
                        done += if fits { count } else { 0 };
                    }
                }
            }
        }
    }
}
