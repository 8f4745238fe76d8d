//! Where a core of a5 leaves what its counters came to: a ring of two slots in memory, one per item in turn.
//!
//! ```text
//!   core                                    lane
//!   token = 0, counts, token = n ─────────► token is n? ── counts ── token is still n?
//! ```
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | token | core → lane | release → acquire | the counts of the item with this dispatch token |
//! | counts | core → lane | release → acquire | that the token before them holds no more |
//!
//! A lane looks once the mailbox says that the item is finished, so with a core that behaves it finds its token. The second
//! look is for one that does not: what a core overwrites meanwhile is never taken for the counts of the item.

use core::mem::offset_of;

use heapless::Vec;

use crate::layout::pmu::AICORE_RING_SLOTS;
use crate::layout::pmu::a5::{AicoreRing, Record};
use crate::mem::{DevAddr, Fault, Memory, Own, Peer};

use super::counters::{COUNTERS, Counts};

/// Words of a slot that hold counts: both halves of the total, then the counters.
const COUNT_WORDS: usize = 2 + COUNTERS;

/// Bytes of a ring.
pub const RING_BYTES: usize = size_of::<AicoreRing>();

const _: () = {
    assert!(offset_of!(Record, pmu_counters) == offset_of!(Record, pmu_total_cycles) + 8);
    assert!(offset_of!(Record, pmu_counters) + 4 * COUNTERS == size_of::<Record>());
};

/// One slot: its token, then its counts.
type Slot<T> = (T, Vec<T, COUNT_WORDS>);

/// The slots of the ring at `ring`, seen as `side` sees words.
fn slots<M: Memory, T>(
    memory: &M,
    ring: DevAddr,
    side: impl Fn(M::Word) -> T,
) -> Result<Vec<Slot<T>, AICORE_RING_SLOTS>, Fault> {
    let word = |at: DevAddr, offset: usize| memory.word(at.offset(offset as u64)).map(&side);
    let slot = |number: usize| {
        let at = ring.offset((number * size_of::<Record>()) as u64);
        let count = |index: usize| word(at, offset_of!(Record, pmu_total_cycles) + 4 * index);
        let counts = (0..COUNT_WORDS).map(count).collect::<Result<_, _>>()?;
        Ok((word(at, offset_of!(Record, task_id))?, counts))
    };
    (0..AICORE_RING_SLOTS).map(slot).collect()
}

const fn slot_of(token: u32) -> usize {
    token as usize % AICORE_RING_SLOTS
}

/// The core's side.
#[derive(Debug)]
pub struct CoreStaging<M: Memory>(Vec<Slot<Own<M::Word>>, AICORE_RING_SLOTS>);

impl<M: Memory> CoreStaging<M> {
    /// The ring at `ring`.
    ///
    /// # Errors
    /// [`Fault`] when it lies outside device memory.
    pub fn attach(memory: &M, ring: DevAddr) -> Result<Self, Fault> {
        slots(memory, ring, Own::new).map(Self)
    }

    /// Leaves what the item with dispatch token `token` came to.
    pub fn show(&self, token: u32, counts: &Counts) {
        let Some((own_token, words)) = self.0.get(slot_of(token)) else { return };
        // No item has token 0.
        own_token.set(0);
        let halves = [counts.total_cycles as u32, (counts.total_cycles >> 32) as u32];
        let values = halves.into_iter().chain(counts.events);
        words.iter().zip(values).for_each(|(word, value)| word.publish(value));
        own_token.publish(token);
    }
}

/// The lane's side.
#[derive(Debug)]
pub struct LaneStaging<M: Memory>(Vec<Slot<Peer<M::Word>>, AICORE_RING_SLOTS>);

impl<M: Memory> LaneStaging<M> {
    /// The ring at `ring`.
    ///
    /// # Errors
    /// [`Fault`] when it lies outside device memory.
    pub fn attach(memory: &M, ring: DevAddr) -> Result<Self, Fault> {
        slots(memory, ring, Peer::new).map(Self)
    }

    /// What the item with dispatch token `token` came to; `None` when the ring holds another's.
    pub fn read(&self, token: u32) -> Option<Counts> {
        let (own_token, words) = self.0.get(slot_of(token))?;
        if own_token.observe() != token {
            return None;
        }
        let mut values = words.iter().map(Peer::observe);
        let (low, high) = (values.next()?, values.next()?);
        let mut events = [0; COUNTERS];
        events.iter_mut().zip(values).for_each(|(event, value)| *event = value);
        let counts = Counts { total_cycles: u64::from(high) << 32 | u64::from(low), events };
        (own_token.observe() == token).then_some(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::testing::Double;

    const RING: DevAddr = DevAddr(0x40_0000);

    fn counts(of: u32) -> Counts {
        Counts {
            total_cycles: u64::from(of) << 32 | u64::from(of),
            events: core::array::from_fn(|counter| of + counter as u32),
        }
    }

    #[test]
    fn each_of_the_last_two_items_is_found_under_its_own_token() {
        let memory = Double::new(RING, RING_BYTES as u64);
        let core = CoreStaging::attach(&memory, RING).unwrap();
        let lane = LaneStaging::attach(&memory, RING).unwrap();
        assert_eq!(lane.read(1), None);
        for token in 1..6 {
            core.show(token, &counts(token));
            assert_eq!(lane.read(token), Some(counts(token)));
            if token > 1 {
                assert_eq!(lane.read(token - 1), Some(counts(token - 1)));
            }
            assert_eq!(lane.read(token + 1), None);
            assert_eq!(lane.read(token + 2), None);
        }
        assert!(CoreStaging::attach(&memory, RING.offset(64)).is_err());
    }

    #[test]
    fn the_token_is_written_last() {
        let memory = Double::new(RING, RING_BYTES as u64);
        let core = CoreStaging::attach(&memory, RING).unwrap();
        core.show(3, &counts(3));
        let log = memory.take_log();
        let at_token = RING.offset(64);
        assert_eq!(log.first().map(|store| store.at()), Some(at_token), "taken back first");
        assert_eq!(log.last(), Some(&crate::mem::testing::Logged::Release { at: at_token, value: 3 }));
        assert_eq!(log.len(), 2 + COUNT_WORDS);
    }
}
