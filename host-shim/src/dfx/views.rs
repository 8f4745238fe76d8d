//! Shared words as the host's roles see them; the counterparts of the device's ready ring, free queue and gates.

use sluice_core::gate::Gate;
use sluice_core::layout::{GateOffsets, LaneOffsets, PoolOffsets};
use sluice_core::mem::{Consume, DevAddr, Fault, LongPeer, Memory, Own, Peer, Words};
use sluice_core::producer::ReadyEntry;

/// What a ready ring shows. Indices were checked against the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingState {
    /// Nothing waits.
    Empty,
    /// The entry at `index` is the oldest of `waiting`.
    Entry {
        /// Slot of the oldest entry.
        index: u32,
        /// Entries waiting.
        waiting: u32,
    },
    /// An index is no index of this ring; nothing is read until it is one again.
    Corrupt {
        /// What the host's own index read.
        head: u32,
        /// What the device's read.
        tail: u32,
    },
}

/// The words in which a lane shows the buffers that it holds of a pool.
pub struct HeldWords<M: Memory> {
    /// The one being filled.
    pub current: LongPeer<M::Word>,
    /// A full one that made room for it and is not published yet, where pools have such.
    pub stash: Option<LongPeer<M::Word>>,
}

impl<M: Memory> HeldWords<M> {
    /// The words at these addresses.
    ///
    /// # Errors
    /// [`Fault`] when one lies outside device memory.
    pub fn attach(memory: &M, current: DevAddr, stash: Option<DevAddr>) -> Result<Self, Fault> {
        let stash = stash.map(|at| LongPeer::at(memory, at)).transpose()?;
        Ok(Self { current: LongPeer::at(memory, current)?, stash })
    }
}

/// A ready ring as the drain sees it: owner of the head.
pub struct RingDrain<M: Memory> {
    head: Own<M::Word>,
    tail: Peer<M::Word>,
    entries: M::Words,
    count: u32,
}

impl<M: Memory> RingDrain<M> {
    /// The ring of `count` entries at `offsets` in the region at `region`.
    ///
    /// # Errors
    /// [`Fault`] when the ring lies outside device memory.
    pub fn attach(memory: &M, region: DevAddr, offsets: LaneOffsets, count: u32) -> Result<Self, Fault> {
        Ok(Self {
            head: Own::new(memory.word(region.offset(offsets.head as u64))?),
            tail: Peer::new(memory.word(region.offset(offsets.tail as u64))?),
            entries: memory.words(region.offset(offsets.ring as u64), ReadyEntry::table_words(count))?,
            count,
        })
    }

    /// Looks at the ring.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn look(&self) -> Result<RingState, Fault> {
        // Partner of the lane's tail store: the entry and the buffer are whole.
        let tail = self.tail.try_observe()?;
        let head = self.head.get();
        Ok(if tail >= self.count || head >= self.count {
            RingState::Corrupt { head, tail }
        } else if tail == head {
            RingState::Empty
        } else {
            let waiting = if tail > head { tail - head } else { tail + self.count - head };
            RingState::Entry { index: head, waiting }
        })
    }

    /// Reads entry `index`. What it says is the device's claim.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn read(&self, index: u32) -> Result<ReadyEntry, Fault> {
        ReadyEntry::read(&self.entries, index)
    }

    /// Gives slot `index`, that of the oldest entry, back to the lane.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails. The lane may or may not have the slot then; giving it back again does no harm.
    pub fn give_back(&self, index: u32) -> Result<(), Fault> {
        let next = index + 1;
        self.head.try_publish(if next >= self.count { 0 } else { next })
    }

    /// Reads all entries that wait, oldest first.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn waiting(&self) -> Result<impl Iterator<Item = Result<ReadyEntry, Fault>> + '_, Fault> {
        let (first, waiting) = match self.look()? {
            RingState::Entry { index, waiting } => (index, waiting),
            RingState::Empty | RingState::Corrupt { .. } => (0, 0),
        };
        Ok((0..waiting).map(move |i| self.read((first + i) % self.count)))
    }
}

/// A ready ring as the keeper sees it: owner of nothing.
pub struct RingWatch<M: Memory> {
    head: Peer<M::Word>,
    tail: Peer<M::Word>,
    count: u32,
}

impl<M: Memory> RingWatch<M> {
    /// The ring of `count` entries at `offsets` in the region at `region`.
    ///
    /// # Errors
    /// [`Fault`] when the ring lies outside device memory.
    pub fn attach(memory: &M, region: DevAddr, offsets: LaneOffsets, count: u32) -> Result<Self, Fault> {
        Ok(Self {
            head: Peer::new(memory.word(region.offset(offsets.head as u64))?),
            tail: Peer::new(memory.word(region.offset(offsets.tail as u64))?),
            count,
        })
    }

    /// Whether nothing waits. The tail is read first: an entry published after that look belongs to a later one. A ring
    /// whose index is nonsense has nothing that could be drained; it must not hold the others.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn is_drained(&self) -> Result<bool, Fault> {
        let tail = self.tail.try_observe()?;
        let head = self.head.try_observe()?;
        Ok(tail >= self.count || head >= self.count || tail == head)
    }
}

/// How full a free queue is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occupancy {
    /// This many buffers wait for the lane.
    Waiting(u32),
    /// The device's counter is no counter of this queue; nothing is added until it is one again.
    Corrupt {
        /// What it read.
        head: u32,
    },
}

/// A free queue as the keeper sees it: owner of the tail.
pub struct FreeQueueFeed<M: Memory> {
    tail: Own<M::Word>,
    head: Peer<M::Word>,
    slots: M::Words,
    slot_count: u32,
    counter_mask: u32,
}

impl<M: Memory> FreeQueueFeed<M> {
    /// The queue of `slot_count` slots at `offsets` from `region`.
    ///
    /// # Errors
    /// [`Fault`] when the queue lies outside device memory.
    pub fn attach(
        memory: &M,
        region: DevAddr,
        offsets: &PoolOffsets,
        slot_count: u32,
        counter_mask: u32,
    ) -> Result<Self, Fault> {
        Ok(Self {
            tail: Own::new(memory.word(region.offset(offsets.free_tail as u64))?),
            head: Peer::new(memory.word(region.offset(offsets.free_head as u64))?),
            slots: memory.words(region.offset(offsets.free_ptrs as u64), slot_count * 2)?,
            slot_count,
            counter_mask,
        })
    }

    /// Slots of the queue.
    pub fn slots(&self) -> u32 {
        self.slot_count
    }

    /// Looks how full the queue is.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn occupancy(&self) -> Result<Occupancy, Fault> {
        // Partner of the lane's head store: the slot has been read.
        let head = self.head.try_observe()?;
        let waiting = self.tail.get().wrapping_sub(head) & self.counter_mask;
        Ok(if waiting > self.slot_count { Occupancy::Corrupt { head } } else { Occupancy::Waiting(waiting) })
    }

    /// The push counter.
    pub fn tail(&self) -> u32 {
        self.tail.get()
    }

    /// Adds `buffer` as number `tail`, the push counter. Call only after [`occupancy`](FreeQueueFeed::occupancy) showed
    /// room; the lane only ever takes.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails. The lane may or may not have the buffer then, so it must be added again with the
    /// same number before anything else is; that does no harm.
    pub fn push(&self, tail: u32, buffer: DevAddr) -> Result<(), Fault> {
        let slot = (tail & (self.slot_count - 1)) * 2;
        let (low, high) = buffer.split();
        self.slots.try_set(slot, low)?;
        self.slots.try_set(slot + 1, high)?;
        self.tail.try_publish(tail.wrapping_add(1) & self.counter_mask)
    }

    /// Reads the buffers that wait, oldest first, as an earlier owner of the tail left them.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn waiting(&self) -> Result<impl Iterator<Item = Result<DevAddr, Fault>> + '_, Fault> {
        let waiting = match self.occupancy()? {
            Occupancy::Waiting(waiting) => waiting,
            Occupancy::Corrupt { .. } => 0,
        };
        let first = self.tail.get().wrapping_sub(waiting);
        Ok((0..waiting).map(move |i| {
            let mut address = [0; 2];
            self.slots.try_read((first.wrapping_add(i) & (self.slot_count - 1)) * 2, &mut address)?;
            let [low, high] = address;
            Ok(DevAddr::join(low, high))
        }))
    }
}

/// The gates of one subsystem as the keeper sees them: owner of flags and epoch.
pub struct GateControl<M: Memory> {
    flags: [Own<M::Word>; 2],
    contended: [Consume<M::Word>; 2],
    epoch: Option<Own<M::Word>>,
}

impl<M: Memory> GateControl<M> {
    /// The gates of the region at `region`; `epoch` is the release epoch's address, if the device has an extension block.
    ///
    /// # Errors
    /// [`Fault`] when a word lies outside device memory.
    pub fn attach(
        memory: &M,
        region: DevAddr,
        offsets: GateOffsets,
        epoch: Option<DevAddr>,
    ) -> Result<Self, Fault> {
        let word = |offset: usize| memory.word(region.offset(offset as u64));
        Ok(Self {
            flags: [Own::new(word(offsets.rq_freeze_active)?), Own::new(word(offsets.fq_freeze_active)?)],
            contended: [Consume::new(word(offsets.rq_contended)?), Consume::new(word(offsets.fq_contended)?)],
            epoch: epoch.map(|at| memory.word(at).map(Own::new)).transpose()?,
        })
    }

    const fn index(gate: Gate) -> usize {
        match gate {
            Gate::Ready => 0,
            Gate::Free => 1,
        }
    }

    /// Whether a lane asks for service.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn is_raised(&self, gate: Gate) -> Result<bool, Fault> {
        self.contended[Self::index(gate)].is_raised()
    }

    /// Takes the signal.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn consume(&self, gate: Gate) -> Result<(), Fault> {
        self.contended[Self::index(gate)].clear()
    }

    /// Shuts or opens the gate.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails; the caller tries again and changes its state only on success.
    pub fn set_shut(&self, gate: Gate, shut: bool) -> Result<(), Fault> {
        self.flags[Self::index(gate)].try_publish(u32::from(shut))
    }

    /// What an earlier keeper left in the flag.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn was_shut(&self, gate: Gate) -> Result<bool, Fault> {
        Ok(self.flags[Self::index(gate)].recover()? != 0)
    }

    /// Moves the release epoch on: every lane parked now will look again.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn bump_epoch(&self) -> Result<(), Fault> {
        match &self.epoch {
            None => Ok(()),
            Some(epoch) => epoch.try_publish(epoch.get().wrapping_add(1)),
        }
    }
}
