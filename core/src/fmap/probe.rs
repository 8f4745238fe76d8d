//! Open addressing: from a hash to an entry.
//!
//! A slot holds the hash and the number of its entry. There are two slots per entry, so a look-up sees an empty slot
//! soon; it starts at the slot that the hash, scaled to the number of slots, falls on and goes on to the next one.

/// One slot of the index.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    hash: u32,
    /// Entry number + 1; 0 is an empty slot.
    entry: u32,
}

impl Slot {
    /// An empty slot.
    pub const EMPTY: Self = Self { hash: 0, entry: 0 };

    pub(super) const fn of(hash: u32, entry: usize) -> Self {
        Self { hash, entry: entry as u32 + 1 }
    }
}

/// The slots that one entry brings along.
pub type SlotPair = [Slot; 2];

/// Where a key is, or would be.
pub(super) enum Probe {
    /// In this entry.
    Found(usize),
    /// In none; this slot is free for it.
    Vacant(usize),
    /// In none, and there is no free slot.
    Full,
}

/// Looks for the entry with this hash for which `same` holds.
#[inline]
pub(super) fn probe(slots: &[Slot], hash: u32, same: impl Fn(usize) -> bool) -> Probe {
    let start = ((u64::from(hash) * slots.len() as u64) >> 32) as usize;
    let (before, after) = slots.split_at(start);
    for (from, part) in [(start, after), (0, before)] {
        for (at, slot) in part.iter().enumerate() {
            let Some(entry) = slot.entry.checked_sub(1) else { return Probe::Vacant(from + at) };
            if slot.hash == hash && same(entry as usize) {
                return Probe::Found(entry as usize);
            }
        }
    }
    Probe::Full
}
