//! Notification queues: rings of records that the device fills and the host harvests.
//!
//! ```text
//!   device                                   host
//!   record → slot tail mod slots
//!   tail + 1 (release)            ─────────► sees tail, reads the slot
//!   room again                    ◄───────── head + 1 (release)
//!   full: nothing written, lost + 1 (release)
//! ```
//!
//! Base and size stand in the queue's register block, which the host writes at bring-up; head, tail and lost are free-running
//! words of the control page. A record is never overwritten before it was harvested.

use core::fmt;

use zerocopy::IntoBytes;

use super::{NOTIFICATION_BYTES, Notification};
use crate::mem::{CopyMemory, DevAddr, Fault, Memory, Peer, Tally, Word};
use crate::mmio::{ControlWord, Engine, NotificationQueue, TpbRegisters};

const BASE_LOW: u64 = 0;
const BASE_HIGH: u64 = 4;
const SIZE_BYTES: u64 = 8;

/// A notification queue that this device uses: which one, and where its counters stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Start and end of an engine's programs.
    Status(Engine),
    /// Errors of the whole TPB.
    Errors,
}

impl Channel {
    /// The queue of the wire contract.
    pub const fn queue(self) -> NotificationQueue {
        match self {
            Self::Status(engine) => NotificationQueue::status_of(engine),
            Self::Errors => NotificationQueue::ERRORS,
        }
    }

    const fn tail(self) -> ControlWord {
        match self {
            Self::Status(engine) => ControlWord::NqTail(engine),
            Self::Errors => ControlWord::ErrNqTail,
        }
    }

    const fn lost(self) -> ControlWord {
        match self {
            Self::Status(engine) => ControlWord::NqLost(engine),
            Self::Errors => ControlWord::ErrNqLost,
        }
    }

    const fn head(self) -> ControlWord {
        match self {
            Self::Status(engine) => ControlWord::NqHead(engine),
            Self::Errors => ControlWord::ErrNqHead,
        }
    }
}

/// Records that a queue of `bytes` bytes holds: a power of two, or none.
const fn slots(bytes: u32) -> Option<u32> {
    let slots = bytes / NOTIFICATION_BYTES;
    if bytes.is_power_of_two() && slots > 0 { Some(slots) } else { None }
}

/// The slot of a free-running counter in a queue of `slots` slots, a power of two.
const fn slot_index(slots: u32, counter: u32) -> u32 {
    counter & (slots - 1)
}

fn slot_address(base: DevAddr, slots: u32, counter: u32) -> DevAddr {
    base.offset(u64::from(slot_index(slots, counter)) * u64::from(NOTIFICATION_BYTES))
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is in the queue.
    Written,
    /// The queue was full; one more is counted as lost.
    Lost,
    /// The host has set up no such queue, or not in its own memory.
    NoQueue,
}

/// The device's side of one queue.
#[derive(Debug)]
pub struct NotificationSender<M: CopyMemory> {
    memory: M,
    base: [Peer<M::Word>; 2],
    size_bytes: Peer<M::Word>,
    tail: Tally<M::Word>,
    head: Peer<M::Word>,
    lost: Tally<M::Word>,
}

impl<M: CopyMemory> NotificationSender<M> {
    /// The queue `channel` of `tpb`.
    ///
    /// # Errors
    /// [`Fault`] when its registers lie outside device memory.
    pub fn attach(memory: &M, tpb: TpbRegisters, channel: Channel) -> Result<Self, Fault> {
        let block = tpb.notification(channel.queue());
        let peer = |at| memory.word(at).map(Peer::new);
        Ok(Self {
            memory: memory.clone(),
            base: [peer(block.offset(BASE_LOW))?, peer(block.offset(BASE_HIGH))?],
            size_bytes: peer(block.offset(SIZE_BYTES))?,
            tail: Tally::take(memory.word(tpb.control_word(channel.tail()))?)?,
            head: peer(tpb.control_word(channel.head()))?,
            lost: Tally::take(memory.word(tpb.control_word(channel.lost()))?)?,
        })
    }

    /// Puts `record` into the queue if there is room.
    pub fn send(&mut self, record: &Notification) -> Sent {
        let base = DevAddr::join(self.base[0].observe(), self.base[1].observe());
        let Some(slots) = slots(self.size_bytes.observe()) else { return Sent::NoQueue };
        let tail = self.tail.get();
        // Partner of the host's release store: what it harvested may be written over.
        if tail.wrapping_sub(self.head.observe()) >= slots {
            self.lost.publish(self.lost.get().wrapping_add(1));
            return Sent::Lost;
        }
        if self.memory.write_bytes(slot_address(base, slots, tail), record.as_bytes()).is_err() {
            return Sent::NoQueue;
        }
        self.tail.publish(tail.wrapping_add(1));
        Sent::Written
    }
}

/// How full a queue is, for a service of the device that puts nothing into it.
#[derive(Clone, Debug)]
pub struct NotificationWatch<W> {
    size_bytes: Peer<W>,
    tail: Peer<W>,
    head: Peer<W>,
}

impl<W: Word> NotificationWatch<W> {
    /// The queue `channel` of `tpb`.
    ///
    /// # Errors
    /// [`Fault`] when its registers lie outside device memory.
    pub fn attach<M: Memory<Word = W>>(
        memory: &M,
        tpb: TpbRegisters,
        channel: Channel,
    ) -> Result<Self, Fault> {
        let peer = |at| memory.word(at).map(Peer::new);
        Ok(Self {
            size_bytes: peer(tpb.notification(channel.queue()).offset(SIZE_BYTES))?,
            tail: peer(tpb.control_word(channel.tail()))?,
            head: peer(tpb.control_word(channel.head()))?,
        })
    }

    /// Records that the queue holds when it is full; 0 while the host has set up none.
    pub fn capacity(&self) -> u32 {
        slots(self.size_bytes.observe()).unwrap_or(0)
    }

    /// Records that the host has not harvested, at most as many as there is room for.
    pub fn unharvested(&self) -> u32 {
        self.tail.observe().wrapping_sub(self.head.observe()).min(self.capacity())
    }
}

/// The host cannot read a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// Memory could not be reached.
    Fault(Fault),
    /// The device's counter is no counter of this queue.
    Corrupt {
        /// Records written, as the device claims.
        tail: u32,
        /// Records harvested.
        head: u32,
        /// Records that the queue holds.
        slots: u32,
    },
    /// The size is not a power of two of at least 16 bytes.
    BadSize {
        /// The size asked for.
        bytes: u32,
    },
}

impl From<Fault> for ReceiveError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Corrupt { tail, head, slots } => {
                write!(f, "notification tail {tail} is not within {slots} records of head {head}")
            }
            Self::BadSize { bytes } => {
                write!(
                    f,
                    "notification queue of {bytes} bytes: need a power of two of at least {NOTIFICATION_BYTES}"
                )
            }
        }
    }
}

impl core::error::Error for ReceiveError {}

/// The host's side of one queue.
#[derive(Debug)]
pub struct NotificationReceiver<M: CopyMemory> {
    memory: M,
    base: DevAddr,
    slots: u32,
    tail: Peer<M::Word>,
    lost: Peer<M::Word>,
    head: Tally<M::Word>,
}

impl<M: CopyMemory> NotificationReceiver<M> {
    /// Sets up queue `channel` of `tpb` in the `bytes` bytes at `base`. Records that the device wrote before are skipped.
    ///
    /// # Errors
    /// A size that is not a power of two of at least 16 bytes, or memory that cannot be reached.
    pub fn bring_up(
        memory: &M,
        tpb: TpbRegisters,
        channel: Channel,
        base: DevAddr,
        bytes: u32,
    ) -> Result<Self, ReceiveError> {
        let slots = slots(bytes).ok_or(ReceiveError::BadSize { bytes })?;
        let block = tpb.notification(channel.queue());
        let (low, high) = base.split();
        let mut receiver = Self {
            memory: memory.clone(),
            base,
            slots,
            tail: Peer::new(memory.word(tpb.control_word(channel.tail()))?),
            lost: Peer::new(memory.word(tpb.control_word(channel.lost()))?),
            head: Tally::take(memory.word(tpb.control_word(channel.head()))?)?,
        };
        memory.word(block.offset(BASE_LOW))?.try_store(low)?;
        memory.word(block.offset(BASE_HIGH))?.try_store(high)?;
        receiver.head.try_publish(receiver.tail.try_observe()?)?;
        memory.word(block.offset(SIZE_BYTES))?.try_store(bytes)?;
        Ok(receiver)
    }

    /// Fills `records` from its start with the oldest not yet harvested, as far as there are any, and returns how many. Their
    /// slots are free again then.
    ///
    /// # Errors
    /// A counter of the device that cannot be, or memory that cannot be reached; nothing is harvested then.
    pub fn receive(&mut self, records: &mut [Notification]) -> Result<usize, ReceiveError> {
        // Partner of the device's release store: the records are whole.
        let tail = self.tail.try_observe()?;
        let head = self.head.get();
        let waiting = tail.wrapping_sub(head);
        if waiting > self.slots {
            return Err(ReceiveError::Corrupt { tail, head, slots: self.slots });
        }
        let count = records.len().min(waiting as usize);
        if count == 0 {
            return Ok(0);
        }
        let before_wrap = count.min((self.slots - slot_index(self.slots, head)) as usize);
        let (first, second) = records[..count].split_at_mut(before_wrap);
        self.memory.read_bytes(slot_address(self.base, self.slots, head), first.as_mut_bytes())?;
        if !second.is_empty() {
            self.memory.read_bytes(self.base, second.as_mut_bytes())?;
        }
        self.head.try_publish(head.wrapping_add(count as u32))?;
        Ok(count)
    }

    /// Records that found the queue full, as the device claims: a free-running count.
    ///
    /// # Errors
    /// Memory that cannot be reached.
    pub fn lost(&self) -> Result<u32, Fault> {
        self.lost.try_observe()
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use crate::exec::SubType;
    use crate::mem::{Line, Mapped, Memory, Slab};
    use crate::mmio::{RegisterMap, TpbId};

    const WINDOW: DevAddr = DevAddr(0x10_0000);
    const QUEUE: DevAddr = DevAddr(0x10_0000 + 0x8_0000);

    fn record(ordinal: u32) -> Notification {
        Notification::status(Engine::Act, ordinal, SubType::START, 0)
    }

    #[test]
    fn records_arrive_in_order_and_a_full_queue_keeps_what_it_has() {
        let mut lines = std::vec![Line::ZERO; 0x8_0000 / 64 + 1];
        let memory = Mapped::new(Slab::over(&mut lines, WINDOW));
        let tpb = RegisterMap::new(WINDOW, 1).unwrap().tpb(TpbId::new(0).unwrap()).unwrap();
        let channel = Channel::Status(Engine::Act);
        let head = memory.word(tpb.control_word(ControlWord::NqHead(Engine::Act))).unwrap();
        let tail = memory.word(tpb.control_word(ControlWord::NqTail(Engine::Act))).unwrap();
        // Counters wrap during the test.
        tail.store_relaxed(u32::MAX - 4);
        let mut sender = NotificationSender::attach(&memory, tpb, channel).unwrap();
        assert_eq!(sender.send(&record(99)), Sent::NoQueue);
        let mut receiver = NotificationReceiver::bring_up(&memory, tpb, channel, QUEUE, 64).unwrap();
        let receive = |receiver: &mut NotificationReceiver<_>, most: usize| {
            let mut records = std::vec![Notification::new_zeroed(); most];
            receiver.receive(&mut records).map(|count| records[..count].to_vec())
        };
        assert_eq!(receive(&mut receiver, 4), Ok(std::vec![]));
        for round in 0..3 {
            for n in 0..4 {
                assert_eq!(sender.send(&record(round * 4 + n)), Sent::Written);
            }
            assert_eq!((receiver.lost(), sender.send(&record(1000))), (Ok(round), Sent::Lost));
            // Pieces of every size, so that some lie on both sides of the ring's end.
            let first = round + 1;
            let numbers = |range: std::ops::Range<u32>| range.map(|n| record(round * 4 + n)).collect();
            assert_eq!(receive(&mut receiver, 0), Ok(std::vec![]));
            assert_eq!(receive(&mut receiver, first as usize), Ok(numbers(0..first)));
            assert_eq!(receive(&mut receiver, 9), Ok(numbers(first..4)));
            assert_eq!(receive(&mut receiver, 1), Ok(std::vec![]));
            // The next round begins elsewhere in the ring.
            assert_eq!(sender.send(&record(0)), Sent::Written);
            assert_eq!(receive(&mut receiver, 1), Ok(std::vec![record(0)]));
        }
        assert_eq!(receiver.lost(), Ok(3));

        let claimed = head.load_relaxed().wrapping_add(5);
        tail.store_relaxed(claimed);
        let corrupt = ReceiveError::Corrupt { tail: claimed, head: head.load_relaxed(), slots: 4 };
        assert_eq!(receive(&mut receiver, 1), Err(corrupt));
    }

    #[test]
    fn sizes_that_no_queue_has_are_refused() {
        assert_eq!([0, 8, 16, 48, 64].map(slots), [None, None, Some(1), None, Some(4)]);
    }
}
