//! One half of a DMA queue as the device sees it: where its ring lies and how far it has run.
//!
//! ```text
//!   0x28  base low     0x34  head pointer      next descriptor to run
//!   0x2C  base high    0x38  tail increment    never stored: a write adds to the tail
//!   0x30  length       0x3C  tail pointer      behind the last descriptor started
//!                      0x50  lap               laps the head has finished, modulo 4; ours, not the hardware's
//! ```
//!
//! A write to base or length re-arms the half: head, tail and lap are 0 again, so the first descriptor expected carries
//! ring id 1. Everything the device knows of a queue stands in these words; after a crash they tell where it stood.
//!
//! The words belong to whichever service runs the queue. The host writes those of the execution ring
//! alone, and only when it sets the TPB up: its sequencer is then idle or stopped.

use super::ring::{Position, RingSize, Slot};
use super::word::RingId;
use crate::mem::{DevAddr, Fault, Memory, Word};
use crate::mmio::{QueueBank, QueueRegister};

/// A ring as its registers describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Address of descriptor 0.
    pub base: DevAddr,
    /// Its size.
    pub size: RingSize,
}

/// What a ring's base and end address have to be multiples of (wire contract), in bytes.
pub const RING_ALIGN_BYTES: u64 = 256;

/// The registers of one half of one queue.
#[derive(Clone, Debug)]
pub struct QueueRegisters<W> {
    base_low: W,
    base_high: W,
    length: W,
    head: W,
    tail: W,
    lap: W,
}

impl<W: Word> QueueRegisters<W> {
    /// The registers of `bank`.
    ///
    /// # Errors
    /// [`Fault`] when they lie outside device memory.
    pub fn attach<M: Memory<Word = W>>(memory: &M, bank: QueueBank) -> Result<Self, Fault> {
        let at = |register| memory.word(bank.register(register));
        Ok(Self {
            base_low: at(QueueRegister::BaseLow)?,
            base_high: at(QueueRegister::BaseHigh)?,
            length: at(QueueRegister::Length)?,
            head: at(QueueRegister::HeadPointer)?,
            tail: at(QueueRegister::TailPointer)?,
            lap: at(QueueRegister::Lap)?,
        })
    }

    /// The ring, if base and length describe one.
    pub fn ring(&self) -> Option<Ring> {
        let base = DevAddr::join(self.base_low.load_acquire(), self.base_high.load_acquire());
        let size = RingSize::new(self.length.load_acquire()).ok()?;
        base.0.is_multiple_of(RING_ALIGN_BYTES).then_some(Ring { base, size })
    }

    /// Sets a queue up: the host's bring-up, and the device's own re-arming by base and length at once.
    pub fn set_up(&self, ring: Ring) {
        let (low, high) = ring.base.split();
        self.write_ring([low, high, ring.size.descriptors()]);
    }

    /// Performs a write of `value` to `register`. Reports whether descriptors may write that register.
    #[must_use]
    pub fn write(&self, register: QueueRegister, value: u32) -> bool {
        match register {
            QueueRegister::BaseLow => self.base_low.store_relaxed(value),
            QueueRegister::BaseHigh => self.base_high.store_relaxed(value),
            QueueRegister::Length => self.length.store_relaxed(value),
            QueueRegister::TailIncrement => return self.increment_tail(value),
            QueueRegister::HeadPointer | QueueRegister::TailPointer | QueueRegister::Lap => return false,
        }
        self.rearm();
        true
    }

    /// Performs a write of the three registers that describe the ring: both halves of its address, then its length.
    pub fn write_ring(&self, [base_low, base_high, length]: [u32; 3]) {
        self.base_low.store_relaxed(base_low);
        self.base_high.store_relaxed(base_high);
        self.length.store_relaxed(length);
        self.rearm();
    }

    /// Goes back to the start of the ring and its first lap, with nothing started.
    pub fn rearm(&self) {
        // Most queues of most models stand there: looking is cheaper than storing.
        let clear = |word: &W| word.load_relaxed() == 0;
        if clear(&self.head) && clear(&self.lap) && clear(&self.tail) {
            return;
        }
        self.head.store_relaxed(0);
        self.lap.store_relaxed(0);
        self.tail.store_release(0);
    }

    /// Starts `count` more descriptors; refused when that is more than the ring has, or when there is no ring.
    #[must_use]
    pub fn increment_tail(&self, count: u32) -> bool {
        let Ok(size) = RingSize::new(self.length.load_relaxed()) else { return false };
        let size = size.descriptors();
        if count > size {
            return false;
        }
        let tail = u64::from(self.tail.load_relaxed()) + u64::from(count);
        self.tail.store_release((tail % u64::from(size)) as u32);
        true
    }

    /// Descriptors started and not yet run. A ring that was started once around reads as empty.
    pub fn pending(&self, size: RingSize) -> u32 {
        let size = size.descriptors();
        let (tail, head) = (self.tail.load_acquire() % size, self.head.load_relaxed() % size);
        if tail >= head { tail - head } else { tail + size - head }
    }

    /// Where the head stands in a ring of `size`.
    pub fn position(&self, size: RingSize) -> Position {
        let index = self.head.load_relaxed() % size.descriptors();
        // Lap 0 carries id 1.
        let lap = RingId::new((self.lap.load_relaxed() % 4) as u8).unwrap_or(RingId::UNPLACED);
        let slot = Slot { index, ring_id: lap.next() };
        Position::at(size, slot).unwrap_or(Position::start(size))
    }

    /// Moves the head to `position`.
    pub fn advance(&self, position: &Position) {
        let Slot { index, ring_id } = position.slot();
        self.lap.store_relaxed(ring_id.previous().get().into());
        self.head.store_release(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Line, Mapped, Memory, Slab};

    const BANK: QueueBank = QueueBank(DevAddr(0x1000));
    const RING: Ring = Ring { base: DevAddr(0x12_3456_7800), size: RingSize::MIN };

    #[test]
    fn a_queue_runs_through_its_laps_and_starts_afresh() {
        let mut lines = [Line::ZERO; 2];
        let memory = Mapped::new(Slab::over(&mut lines, BANK.0));
        let queue = QueueRegisters::attach(&memory, BANK).unwrap();
        assert_eq!(queue.ring(), None);
        assert!(!queue.increment_tail(1));
        queue.set_up(RING);
        assert_eq!(queue.ring(), Some(RING));
        let mut ids = std::vec::Vec::new();
        for _ in 0..5 {
            for part in [20, 12] {
                assert!(queue.increment_tail(part));
                assert_eq!(queue.pending(RING.size), part);
                let mut position = queue.position(RING.size);
                ids.push(position.slot().ring_id.get());
                for _ in 0..part {
                    position.step();
                }
                queue.advance(&position);
                assert_eq!(queue.pending(RING.size), 0);
            }
        }
        assert_eq!(ids, [1, 1, 2, 2, 3, 3, 0, 0, 1, 1]);
        // A ring run through in one go ends where it began, one lap on.
        let mut position = queue.position(RING.size);
        for _ in 0..32 {
            position.step();
        }
        queue.advance(&position);
        assert_eq!(queue.position(RING.size).slot(), Slot { index: 0, ring_id: position.slot().ring_id });
        assert!(queue.write(QueueRegister::BaseLow, 0x100));
        assert_eq!(queue.position(RING.size), Position::start(RING.size));
        assert_eq!(queue.ring().unwrap().base, DevAddr(0x12_0000_0100));
    }

    #[test]
    fn descriptors_may_not_move_pointers_nor_start_more_than_a_ring() {
        let mut lines = [Line::ZERO; 2];
        let memory = Mapped::new(Slab::over(&mut lines, BANK.0));
        let queue = QueueRegisters::attach(&memory, BANK).unwrap();
        queue.set_up(RING);
        for register in [QueueRegister::HeadPointer, QueueRegister::TailPointer, QueueRegister::Lap] {
            assert!(!queue.write(register, 5));
            assert_eq!(memory.word(BANK.register(register)).unwrap().load_relaxed(), 0);
        }
        assert!(!queue.write(QueueRegister::TailIncrement, 33));
        assert!(queue.write(QueueRegister::TailIncrement, 32));
        assert!(queue.write(QueueRegister::BaseLow, 0x80));
        assert_eq!(queue.ring(), None, "a base that is no multiple of 256");
        assert!(queue.write(QueueRegister::BaseLow, 0) && queue.write(QueueRegister::Length, 33));
        assert_eq!(queue.ring(), None, "a length that no ring has");
    }
}
