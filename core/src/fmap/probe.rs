//! Open addressing: from a hash to an entry.
//!
//! A slot holds the hash and the number of its entry. There are two slots per entry, so a look-up sees an empty slot
//! soon; it starts at the slot that the hash, scaled to the number of slots, falls on and goes on to the next one. It goes
//! on for a bounded number of slots: an entry that would lie further away is not put in.

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

/// Most slots that are looked at for one key. Chance makes a longer run in one of 10^15 tables of a million names; names that
/// were chosen to make long runs are refused instead of walked over by every look-up.
pub(super) const MAX_LOOKS: usize = 256;

/// Most entries with the hash of one key. Chance gives three of a million names the same 32 bits in one table of a hundred.
pub(super) const MAX_ALIKE: usize = 8;

/// Where a key is, or would be.
pub(super) enum Probe {
    /// In this entry.
    Found(usize),
    /// In none; this slot is free for it.
    Vacant(usize),
    /// In none, and there is no free slot.
    Full,
    /// In none, and too many others are where it would be.
    Crowded,
}

/// Looks for the entry with this hash for which `same` holds.
#[inline]
pub(super) fn probe(slots: &[Slot], hash: u32, same: impl Fn(usize) -> bool) -> Probe {
    let start = ((u64::from(hash) * slots.len() as u64) >> 32) as usize;
    let (before, after) = slots.split_at(start);
    let after = &after[..after.len().min(MAX_LOOKS)];
    let before = &before[..before.len().min(MAX_LOOKS - after.len())];
    let mut alike = 0;
    for (from, part) in [(start, after), (0, before)] {
        for (at, slot) in part.iter().enumerate() {
            let Some(entry) = slot.entry.checked_sub(1) else { return Probe::Vacant(from + at) };
            if slot.hash == hash {
                if same(entry as usize) {
                    return Probe::Found(entry as usize);
                }
                alike += 1;
                if alike == MAX_ALIKE {
                    return Probe::Crowded;
                }
            }
        }
    }
    if slots.len() > MAX_LOOKS { Probe::Crowded } else { Probe::Full }
}
