//! The first lane in a world where a core writes the records, and that core. The lane is the shipped one with the shipped
//! [`CorePool`]; the core is played.
//!
//! ```text
//!  lane   admit ─► slot counted ─► dispatched ····· sees it finished ─► stash goes ─► rest
//!  core                   takes it: slot found ─► finished ─► record
//! ```
//!
//! Asked to end, a lane at rest looks until the core owes nothing, and publishes the stash and what the current buffer has.
//!
//! Each arrow is a step that anything may come between. A core has all the time it wants for its record; in these worlds it
//! is never given up.

use std::rc::Rc;

use sluice_core::layout::{BufferLayout, PoolKind};
use sluice_core::mem::{Memory, Word};
use sluice_core::producer::{
    Admission, CorePool, CoreRecords, CoreState, Lane, PoolState, Progress, Records, Settlement, Stash,
    Subsystem, Switch, Turn,
};

use super::layout::{self, PAIR, TOKENS};
use super::memory::{Actor, ModelMemory, ModelWord, Owner, Stepped};
use super::state::{HostProcess, LaneProcess, Process, State, Step};
use super::world::{World, forget_accounts, forget_accounts_of_lane};

/// Two records fill a buffer, and a core writes them.
#[derive(Debug)]
pub struct CoreRecord;

impl Records for CoreRecord {
    type Record = [u8; 32];
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout = layout::PAIR_BUFFER;
    const KIND: PoolKind = PoolKind::SOLE;
    const BY_CORE: bool = true;
}

impl CoreRecords for CoreRecord {
    const TOKEN_AT: u64 = layout::TOKEN_AT;
    const END_AT: u64 = layout::END_AT;
}

/// Where the lane is with the item at hand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// There is none.
    #[default]
    Rest,
    /// It may go once its turn has come, at [`Turn::Begin`].
    Begin,
    /// At [`Turn::Stash`], with its switch.
    Stash,
    /// At [`Turn::Full`].
    Full,
    /// At [`Turn::Switch`], with its switch.
    Switch,
    /// It may go.
    Granted,
    /// The core has it.
    Runs,
    /// It has finished; the stash is being published.
    Finished,
    /// Recording is over, but for what the core owes.
    Settle,
    /// The stash is being published for the last time.
    FlushStash,
    /// What the current buffer has is being published.
    Flush,
    /// All is published.
    Over,
}

/// What the lane remembers of its core beside the pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Items {
    /// Shipped state.
    pub known: CoreState,
    /// The item at hand.
    pub phase: Phase,
}

/// The core between two steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Core {
    /// The sequence that it knows.
    known: Option<u8>,
    /// The buffer that goes with it.
    buffer: u8,
    /// Slots of that buffer that it has taken.
    taken: u8,
    /// The item whose record it owes.
    item: Option<Item>,
}

/// An item in the core's hands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Item {
    buffer: u8,
    slot: u8,
    token: u8,
    has_finished: bool,
}

impl Core {
    /// The same core where tokens and sequences have other names.
    pub(super) fn renamed(self, token: impl Fn(u8) -> u8, sequence: impl Fn(u8) -> u8) -> Self {
        let item = self.item.map(|item| Item { token: token(item.token), ..item });
        Self { known: self.known.map(sequence), item, ..self }
    }
}

type Objects<S> = (Lane<ModelMemory, S>, CorePool<ModelMemory, CoreRecord, S>);

impl<S: Subsystem> World<S> {
    /// A step of the lane, and whether the clock could have said something else.
    pub(super) fn item_step(&mut self, state: &State, late: bool) -> Option<(Step, bool)> {
        let here = &*state.lanes[0];
        if here.items.phase == Phase::Over {
            return None;
        }
        let host_is_down = state.host == HostProcess::Down;
        let objects = self.core.as_mut()?;
        self.memory.begin(state.shared, &here.log, Actor::Lane(0), host_is_down, late);
        let (lane, pool) = &mut *objects;
        pool.pool_mut().restore(here.pool).expect("a known buffer");
        pool.restore(here.items.known);
        lane.restore(here.lane);
        let (phase, switch) = match here.items.phase {
            Phase::Rest | Phase::Begin if state.past.stopping => (Phase::Settle, None),
            phase => advance(objects, phase, here.switch, &self.memory),
        };
        let Stepped { shared, log, finished, late_was_used, mut violation, .. } = self.memory.end();
        let (lane, pool) = objects;
        let mut progress = None;
        let next = if finished {
            let is_served = !host_is_down && !state.past.crashed && state.host != HostProcess::Gone;
            if is_served && pool.pool().state().dropped_total() > 0 {
                violation.get_or_insert_with(|| "the lane lost a record while the host lives".into());
            }
            progress = matches!(phase, Phase::Rest | Phase::Over).then_some(0);
            LaneProcess {
                pool: forget_accounts_of_core(pool.pool().state()),
                lane: forget_accounts_of_lane(lane.state()),
                switch: switch.map(Switch::waiting_since_zero),
                items: Items { known: forget_time(pool.state()), phase },
                log,
                ..here.clone()
            }
        } else {
            LaneProcess { log, ..here.clone() }
        };
        let is_voluntary = (here.items.phase == Phase::Rest && !state.past.stopping) || late;
        let mut state = State { shared, ..state.clone() };
        state.lanes[0] = Rc::new(next);
        Some((Step { process: Process::Lane0, is_voluntary, progress, state, violation }, late_was_used))
    }

    /// A step of the core.
    pub(super) fn core_step(&self, state: &State) -> Option<Step> {
        self.core.as_ref()?;
        let mut next = state.clone();
        let mut violation = None;
        let slots = &mut next.shared.slots;
        next.core.item = match state.core.item {
            None => {
                let token = slots[usize::from(layout::DISPATCHED)];
                if token == slots[usize::from(layout::FINISHED)] {
                    return None;
                }
                let sequence = slots[usize::from(layout::SEQUENCE)];
                if state.core.known != Some(sequence) {
                    let buffer = slots[usize::from(layout::current(0))];
                    next.core = Core { known: Some(sequence), buffer, ..Core::default() };
                }
                let Core { buffer, taken: slot, .. } = next.core;
                if buffer == 0 || u32::from(slot) >= PAIR {
                    violation = Some("records: the core finds no slot".into());
                }
                next.core.taken += 1;
                Some(Item { buffer, slot, token, has_finished: false })
            }
            Some(item @ Item { token, has_finished: false, .. }) => {
                slots[usize::from(layout::FINISHED)] = token;
                Some(Item { has_finished: true, ..item })
            }
            Some(Item { buffer, slot, token, has_finished: true }) => {
                let buffer = usize::from(buffer) - 1;
                slots[usize::from(layout::record(buffer, slot))] = token;
                let owner = next.shared.owners[buffer];
                if owner != Owner::Lane {
                    violation = Some(format!("the core writes into buffer {buffer}, which {owner:?} holds"));
                }
                None
            }
        };
        Some(Step { process: Process::Core, is_voluntary: false, progress: None, state: next, violation })
    }
}

/// What one look of the lane makes of the item at hand.
fn advance<S: Subsystem>(
    (lane, pool): &mut Objects<S>,
    phase: Phase,
    switch: Option<Switch>,
    memory: &ModelMemory,
) -> (Phase, Option<Switch>) {
    let mut turn = match (phase, switch) {
        (Phase::Rest, _) => return (Phase::Begin, None),
        (Phase::Granted, _) => {
            let token = pool.state().token % TOKENS + 1;
            if !pool.reserve(lane) {
                return (Phase::Rest, None);
            }
            pool.dispatched(token);
            ModelWord::at(memory, layout::DISPATCHED).store_release(token);
            return (Phase::Runs, None);
        }
        (Phase::Runs, _) => {
            if ModelWord::at(memory, layout::FINISHED).load_acquire() != pool.state().token {
                return (Phase::Runs, None);
            }
            let switch = pool.note_finished(lane);
            return (if switch.is_some() { Phase::Finished } else { Phase::Rest }, switch);
        }
        (Phase::Finished, Some(mut switch)) => {
            return match lane.poll_switch(pool.pool_mut(), &mut switch, memory) {
                Progress::Done(_) => (Phase::Rest, None),
                Progress::Waiting(_) | Progress::Moved => (Phase::Finished, Some(switch)),
            };
        }
        (Phase::Settle, _) => {
            return match pool.settle(lane, memory) {
                Settlement::Owed { .. } => (Phase::Settle, None),
                Settlement::Settled if pool.pool().stashed().is_some() => {
                    (Phase::FlushStash, Some(lane.begin_stash_publication()))
                }
                Settlement::Settled => (Phase::Flush, Some(lane.begin_switch())),
            };
        }
        (Phase::FlushStash, Some(mut switch)) => {
            return match lane.poll_switch(pool.pool_mut(), &mut switch, memory) {
                Progress::Done(_) => (Phase::Flush, Some(lane.begin_switch())),
                Progress::Waiting(_) | Progress::Moved => (Phase::FlushStash, Some(switch)),
            };
        }
        (Phase::Flush, Some(mut switch)) => {
            return match lane.poll_flush(pool.pool_mut(), &mut switch, memory) {
                Progress::Done(_) => (Phase::Over, None),
                Progress::Waiting(_) | Progress::Moved => (Phase::Flush, Some(switch)),
            };
        }
        (Phase::Over, _) => return (Phase::Over, None),
        (Phase::Stash, Some(switch)) => Turn::Stash(switch),
        (Phase::Switch, Some(switch)) => Turn::Switch(switch),
        (Phase::Full, _) => Turn::Full,
        (
            Phase::Begin | Phase::Stash | Phase::Switch | Phase::Finished | Phase::FlushStash | Phase::Flush,
            _,
        ) => Turn::Begin,
    };
    match pool.poll_admission(lane, &mut turn, memory) {
        Admission::Granted => (Phase::Granted, None),
        Admission::Withheld { .. } | Admission::Waiting(_) | Admission::Moved => match turn {
            Turn::Begin => (Phase::Begin, None),
            Turn::Stash(switch) => (Phase::Stash, Some(switch)),
            Turn::Full => (Phase::Full, None),
            Turn::Switch(switch) => (Phase::Switch, Some(switch)),
        },
    }
}

/// A core goes by the sequence, and the stash is a place for a buffer.
fn forget_accounts_of_core(state: PoolState) -> PoolState {
    let stash = Stash { sequence: 0, ..state.stash };
    PoolState { sequence: state.sequence, stash, ..forget_accounts(state) }
}

/// Since when a record is missing decides nothing where nobody's time is ever over.
fn forget_time(state: CoreState) -> CoreState {
    CoreState { since_cycles: None, ..state }
}
