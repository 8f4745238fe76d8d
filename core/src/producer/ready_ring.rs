//! A lane's ready ring: full buffers on their way to the host.
//!
//! Indices are stored already reduced; the ring is full when the slot after the tail is the head, so it holds one entry
//! fewer than it has slots.

use crate::layout::{Instance, LaneOffsets, PoolKind, READY_ENTRY_BYTES};
use crate::mem::{DevAddr, Fault, Memory, Own, Peer, Words};

/// 32-bit words per entry.
const ENTRY_WORDS: u32 = (READY_ENTRY_BYTES / 4) as u32;

/// A full buffer as it stands in the ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadyEntry {
    /// Pool of its kind.
    pub instance: Instance,
    /// Kind of pool.
    pub kind: PoolKind,
    /// The buffer.
    pub buffer: DevAddr,
    /// Its sequence number in the pool.
    pub sequence: u32,
    /// What its records have beside them.
    pub beside: Beside,
}

/// How many things lie beside the records of a buffer and are acknowledged apart, such as payloads in an arena: known to the
/// host even if the buffer cannot be read. Stands in a word of the entry that the wire contract leaves unused, as one more
/// than there are; a peer that does not count them leaves 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Beside(u32);

impl Beside {
    /// Nobody says.
    pub const UNSAID: Self = Self(0);

    /// So many.
    pub const fn count(things: u32) -> Self {
        Self(things.saturating_add(1))
    }

    /// How many, if that is said.
    pub const fn get(self) -> Option<u32> {
        self.0.checked_sub(1)
    }
}

impl ReadyEntry {
    /// Reads entry `index` of a table of entries.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn read(entries: &impl Words, index: u32) -> Result<Self, Fault> {
        let mut words = [0; 6];
        entries.try_read(index.wrapping_mul(ENTRY_WORDS), &mut words)?;
        let [instance, kind, low, high, sequence, beside] = words;
        Ok(Self {
            instance: Instance(instance),
            kind: PoolKind(kind),
            buffer: DevAddr::join(low, high),
            sequence,
            beside: Beside(beside),
        })
    }

    fn write(&self, entries: &impl Words, index: u32) {
        let first = index.wrapping_mul(ENTRY_WORDS);
        let (low, high) = self.buffer.split();
        entries.set(first, self.instance.0);
        entries.set(first + 1, self.kind.0);
        entries.set(first + 2, low);
        entries.set(first + 3, high);
        entries.set(first + 4, self.sequence);
        if self.beside != Beside::UNSAID {
            entries.set(first + 5, self.beside.0);
        }
    }

    /// Words that a table of `entries` entries takes.
    pub const fn table_words(entries: u32) -> u32 {
        entries * ENTRY_WORDS
    }
}

/// What a look at the ring shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingLook {
    /// The tail slot is free; `depth` entries wait before it.
    Room {
        /// Entries not yet drained.
        depth: u32,
    },
    /// No slot is free.
    Full,
    /// An index is no index of this ring; nothing may be written.
    Corrupt {
        /// What the host's index read.
        head: u32,
        /// What the lane's own read.
        tail: u32,
    },
}

/// The lane's side of its ready ring.
pub struct ReadyRing<M: Memory> {
    tail: Own<M::Word>,
    head: Peer<M::Word>,
    entries: M::Words,
    count: u32,
}

impl<M: Memory> ReadyRing<M> {
    /// The ring of `count` entries at `offsets` in the region at `region`.
    ///
    /// # Errors
    /// [`Fault`] when the ring lies outside device memory.
    pub fn attach(memory: &M, region: DevAddr, offsets: LaneOffsets, count: u32) -> Result<Self, Fault> {
        Ok(Self {
            tail: Own::new(memory.word(region.offset(offsets.tail as u64))?),
            head: Peer::new(memory.word(region.offset(offsets.head as u64))?),
            entries: memory.words(region.offset(offsets.ring as u64), ReadyEntry::table_words(count))?,
            count,
        })
    }

    /// Looks whether an entry can be published.
    pub fn look(&self) -> RingLook {
        let head = self.head.observe();
        let tail = self.tail.get();
        if head >= self.count || tail >= self.count {
            return RingLook::Corrupt { head, tail };
        }
        if self.after(tail) == head {
            RingLook::Full
        } else {
            let depth = if tail >= head { tail - head } else { tail + self.count - head };
            RingLook::Room { depth }
        }
    }

    /// Publishes `entry`. Call only after [`look`](ReadyRing::look) said [`RingLook::Room`]; the host only ever makes more
    /// room, so the answer stays true.
    pub fn publish(&self, entry: &ReadyEntry) {
        let tail = self.tail.get();
        entry.write(&self.entries, tail);
        self.tail.publish(self.after(tail));
    }

    /// The lane's own index.
    pub fn tail(&self) -> u32 {
        self.tail.get()
    }

    /// The host's index as it reads now.
    pub fn head(&self) -> u32 {
        self.head.observe()
    }

    fn after(&self, index: u32) -> u32 {
        let next = index + 1;
        if next >= self.count { 0 } else { next }
    }
}
