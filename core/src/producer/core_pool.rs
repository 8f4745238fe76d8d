//! A pool whose records a compute core writes, while its lane owns the buffers.
//!
//! ```text
//!  lane   admit ─► slot counted ─► dispatch n ····· sees FIN n ─► admit ─► …
//!  core              takes n: slot found ─► runs ─► FIN n ─► record n, its token last
//! ```
//!
//! A core reports an item finished *before* it writes its record, so when a buffer's last slot has been dispatched the lane
//! does not know yet whether the buffer is complete. What then, before the next item may go to the core:
//!
//! | buffers | what the lane does | when the full buffer is published |
//! |---|---|---|
//! | another one waits | rotates: the full one into the stash, the other one current | when the item after it has finished |
//! | none waits, or the gate is shut | withholds the item until the last record is there | then, by an ordinary switch |
//!
//! Cores write their records in the order of their items, so an item that finished proves every record before its own, and
//! the token in the last slot proves a whole buffer. Slots are cleared when a buffer is claimed: what they show is of this
//! use. A stash that could not be published goes before anything waits. Nothing here waits for a core: the lane looks, and
//! comes again, because the core may need the lane's own processor. A core that leaves no record within the operation
//! timeout loses it to [`DropCause::CoreBusy`].
//!
//! The core goes by the pool's words alone: with another sequence than it knows it takes the pointer and begins with the
//! first slot, else it takes the next; so the lane and the core count the same slots.

use super::lane::pause;
use super::{Append, DropCause, Lane, Pool, Progress, Records, Subsystem, Switch, SwitchEnd};
use crate::gate::{Gate, WaitEnv};
use crate::mem::{Clock, Memory, Word};

/// Records that a core writes.
pub trait CoreRecords: Records {
    /// Where in a record the dispatch token stands, which the core writes last.
    const TOKEN_AT: u64;
    /// Where in it the time stands at which the item ended; never 0 in a record.
    const END_AT: u64;
}

/// What a core's pool remembers beside the pool itself; plain data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CoreState {
    /// Token of the item that was given the slot counted last.
    pub token: u32,
    /// Whether that item may still run.
    pub is_running: bool,
    /// When the lane found for the first time that the record of that slot is not there, if it waits for it.
    pub since_cycles: Option<u64>,
    /// A record was given up that the core may still write.
    pub is_owed: bool,
}

/// How far the preparation of a dispatch is; plain data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use = "an item may be dispatched only when its turn has come"]
pub enum Turn {
    /// Nothing looked at yet.
    Begin,
    /// A stash that could not be published before is tried once more.
    Stash(Switch),
    /// The current buffer is full.
    Full,
    /// The full buffer is published, if there is one, and the next claimed.
    Switch(Switch),
}

/// What one look at a [`Turn`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Admission {
    /// The item may be dispatched.
    Granted,
    /// The core owes the last record of the full buffer. Look again later, before these cycles at the latest.
    Withheld {
        /// When the core's time is over.
        until_cycles: u64,
    },
    /// The lane stands at this gate; relax and look again.
    Waiting(Gate),
    /// A step was made; look again at once.
    Moved,
}

/// Whether a core has left all records that it was given slots for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Settlement {
    /// It has, or its time is over.
    Settled,
    /// It has not. Look again later, before these cycles at the latest.
    Owed {
        /// When its time is over.
        until_cycles: u64,
    },
}

/// The pool of one core's own records.
pub struct CorePool<M: Memory, K: CoreRecords, S> {
    memory: M,
    pool: Pool<M, K, S>,
    limit_cycles: u64,
    state: CoreState,
}

impl<M: Memory, K: CoreRecords, S: Subsystem> CorePool<M, K, S> {
    /// `pool` for a core that has `limit_cycles` for an item and its record.
    pub fn new(memory: &M, pool: Pool<M, K, S>, limit_cycles: u64) -> Self {
        const { assert!(K::BY_CORE, "slots are cleared at claim") };
        Self { memory: memory.clone(), pool, limit_cycles, state: CoreState::default() }
    }

    /// The pool.
    pub fn pool(&self) -> &Pool<M, K, S> {
        &self.pool
    }

    /// The pool, to publish its stash or to put it into a state.
    pub fn pool_mut(&mut self) -> &mut Pool<M, K, S> {
        &mut self.pool
    }

    /// What is remembered of the core.
    pub fn state(&self) -> CoreState {
        self.state
    }

    /// Puts what is remembered of the core into `state`, for a checker that explores from many states.
    pub fn restore(&mut self, state: CoreState) {
        self.state = state;
    }

    /// Whether the next item may go to the core. Blocks at gates, up to one deadline, never for the core: when the item is
    /// withheld, returns until when at most.
    #[inline]
    pub fn admit(&mut self, lane: &mut Lane<M, S>, env: &mut impl WaitEnv) -> Option<u64> {
        if self.has_slot() {
            return None;
        }
        let (mut turn, mut round) = (Turn::Begin, 0);
        loop {
            match self.poll_admission(lane, &mut turn, &*env) {
                Admission::Granted => return None,
                Admission::Withheld { until_cycles } => return Some(until_cycles),
                Admission::Moved => round = 0,
                Admission::Waiting(gate) => pause(gate, &mut round, env),
            }
        }
    }

    /// One look at whether the next item may go to the core, whose last item has finished. Never blocks.
    pub fn poll_admission(
        &mut self,
        lane: &mut Lane<M, S>,
        turn: &mut Turn,
        clock: &impl Clock,
    ) -> Admission {
        match turn {
            Turn::Begin if self.has_slot() => return Admission::Granted,
            // What is in the stash is complete: items after it have finished.
            Turn::Begin if self.pool.stashed().is_some() => {
                *turn = Turn::Stash(lane.begin_stash_publication())
            }
            Turn::Begin if self.pool.has_buffer() => *turn = Turn::Full,
            Turn::Begin => *turn = Turn::Switch(lane.begin_claim()),
            Turn::Stash(switch) => match lane.poll_switch(&mut self.pool, switch, clock) {
                Progress::Waiting(gate) => return Admission::Waiting(gate),
                Progress::Moved => {}
                Progress::Done(_) if self.pool.has_buffer() => *turn = Turn::Full,
                Progress::Done(_) => *turn = Turn::Switch(lane.begin_claim()),
            },
            Turn::Full => {
                if lane.try_rotate(&mut self.pool) {
                    self.state.since_cycles = None;
                    return Admission::Granted;
                }
                if !S::RULES.publish_before_claim {
                    lane.gates().mark_contended(Gate::Free);
                    return Admission::Waiting(Gate::Free);
                }
                if let Settlement::Owed { until_cycles } = self.look(lane, clock) {
                    *turn = Turn::Begin;
                    return Admission::Withheld { until_cycles };
                }
                *turn = Turn::Switch(lane.begin_switch());
            }
            Turn::Switch(switch) => match lane.poll_switch(&mut self.pool, switch, clock) {
                Progress::Waiting(gate) => return Admission::Waiting(gate),
                Progress::Moved => {}
                // With a buffer or without.
                Progress::Done(_) => return Admission::Granted,
            },
        }
        Admission::Moved
    }

    /// Counts the item that is dispatched next, and the slot that is its record's. Without one, which is counted as lost, the
    /// core is to be told to record nothing.
    #[inline]
    pub fn reserve(&mut self, lane: &mut Lane<M, S>) -> bool {
        self.pool.count_attempt();
        if self.has_slot() && self.pool.commit(1) != Append::NoBuffer {
            return true;
        }
        // The one reason not to get a buffer in a whole deadline.
        let _ = lane.lose(&mut self.pool, DropCause::HostGone);
        false
    }

    /// The item that a slot was counted for was dispatched under `token`.
    #[inline]
    pub fn dispatched(&mut self, token: u32) {
        self.state = CoreState { token, is_running: true, since_cycles: None, ..self.state };
    }

    /// An item of the core has finished, so every record before its own is there: publishes the stash, if there is one.
    /// Blocks up to one deadline.
    #[inline]
    pub fn finished(&mut self, lane: &mut Lane<M, S>, env: &mut impl WaitEnv) {
        if let Some(switch) = self.note_finished(lane) {
            let _: SwitchEnd = lane.drive(&mut self.pool, switch, env);
        }
    }

    /// As [`finished`](Self::finished) for a caller that polls: the switch to run on the pool, if there is a stash.
    #[inline]
    pub fn note_finished(&mut self, lane: &Lane<M, S>) -> Option<Switch> {
        self.state.is_running = false;
        self.pool.stashed().is_some().then(|| lane.begin_stash_publication())
    }

    /// Whether everything can be published: no item that was given a slot runs, and its record is there.
    pub fn settle(&mut self, lane: &mut Lane<M, S>, clock: &impl Clock) -> Settlement {
        if !S::RULES.evidence_at_flush {
            return Settlement::Settled;
        }
        self.look(lane, clock)
    }

    /// Publishes what the pool holds, once it is settled. Blocks up to one deadline per buffer.
    pub fn flush(&mut self, lane: &mut Lane<M, S>, env: &mut impl WaitEnv) {
        if self.pool.stashed().is_some() {
            let _: SwitchEnd = lane.drive(&mut self.pool, lane.begin_stash_publication(), env);
        }
        let _: SwitchEnd = lane.flush(&mut self.pool, env);
    }

    #[inline]
    fn has_slot(&self) -> bool {
        self.pool.has_buffer() && self.pool.state().count < K::LAYOUT.capacity
    }

    /// Looks for the record of the slot counted last, and gives it up when the core's time is over.
    fn look(&mut self, lane: &mut Lane<M, S>, clock: &impl Clock) -> Settlement {
        if !S::RULES.record_evidence || self.is_recorded() {
            self.state.since_cycles = None;
            return Settlement::Settled;
        }
        let now_cycles = clock.now_cycles();
        let since_cycles = *self.state.since_cycles.get_or_insert(now_cycles);
        if now_cycles.wrapping_sub(since_cycles) < self.limit_cycles {
            return Settlement::Owed { until_cycles: since_cycles.saturating_add(self.limit_cycles) };
        }
        self.state = CoreState { is_running: false, since_cycles: None, is_owed: true, ..self.state };
        self.pool.drop_last(DropCause::CoreBusy);
        lane.note_lost(1);
        Settlement::Settled
    }

    /// Whether the core has left the record of the slot counted last.
    fn is_recorded(&self) -> bool {
        let Some(slot) = self.pool.last_slot() else { return true };
        if self.state.is_running {
            return false;
        }
        let read = |offset: u64| self.memory.word(slot.offset(offset)).map_or(0, |word| word.load_acquire());
        // Partner of the core's release store of the token, after the rest of the record.
        read(K::TOKEN_AT) == self.state.token && (read(K::END_AT) != 0 || read(K::END_AT + 4) != 0)
    }
}
