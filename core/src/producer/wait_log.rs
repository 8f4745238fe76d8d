//! A lane's log of its waits, for a host that wants to know which times a freeze has spoilt.
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | record | lane → host | relaxed, before `waits_logged` | one wait |
//! | `waits_logged` | lane → host | release → acquire | the record |
//! | `taken` | host → lane | release → acquire | the slot may be written again |
//!
//! Counters run freely. Waiting for room in the log of waits would be absurd: a wait that finds it full goes unlogged.

use crate::layout::extension::WaitRecord;
use crate::mem::{DevAddr, Fault, Memory, Own, Peer, Words};

/// 32-bit words per record.
const RECORD_WORDS: u32 = (size_of::<WaitRecord>() / 4) as u32;

/// The lane's side of its log.
pub struct WaitLog<M: Memory> {
    records: M::Words,
    slots: u32,
    taken: Peer<M::Word>,
    logged: Own<M::Word>,
}

impl<M: Memory> WaitLog<M> {
    /// The log of `slots` records (a power of two) from `records` on. Goes on from where its counter stands.
    ///
    /// # Errors
    /// [`Fault`] when the log lies outside device memory.
    pub fn attach(
        memory: &M,
        records: DevAddr,
        slots: u32,
        taken: DevAddr,
        logged: DevAddr,
    ) -> Result<Self, Fault> {
        Ok(Self {
            records: memory.words(records, slots * RECORD_WORDS)?,
            slots,
            taken: Peer::new(memory.word(taken)?),
            logged: Own::new(memory.word(logged)?),
        })
    }

    /// Logs `wait` if there is room.
    pub fn push(&self, wait: &WaitRecord) {
        let logged = self.logged.get();
        // A counter of the host's that is no counter of this log shows a full one.
        if logged.wrapping_sub(self.taken.observe()) >= self.slots {
            return;
        }
        let words = [
            wait.begin_cycles as u32,
            (wait.begin_cycles >> 32) as u32,
            wait.end_cycles as u32,
            (wait.end_cycles >> 32) as u32,
            wait.gate.0,
            wait.next.0,
            wait.kind.0,
            wait.instance,
        ];
        let first = (logged & (self.slots - 1)) * RECORD_WORDS;
        for (index, word) in (first..).zip(words) {
            self.records.set(index, word);
        }
        self.logged.publish(logged.wrapping_add(1));
    }
}
