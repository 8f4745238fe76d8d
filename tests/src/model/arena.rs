//! The first lane in a world where its records have bytes in an arena. Lane, pool, arena and the wait for an acknowledgement
//! are the shipped ones; what is recorded, and how the collector copies it, is played.
//!
//! ```text
//!  lane       room? ─► (barrier) ─► payload written, record stored ─► full: switch ─► rest
//!  collector                              payloads of a buffer copied ─► acknowledged ─► buffer returned
//! ```
//!
//! A payload takes one place of the arena, and two records fill a buffer: laps of one or three places end within a buffer,
//! those of two between buffers.

use std::rc::Rc;

use sluice_core::layout::{BufferLayout, PoolKind};
use sluice_core::mem::{Memory, Word};
use sluice_core::producer::{
    Append, Arena, ArenaState, Lane, Pool, PoolState, Progress, Records, Subsystem, Switch, SwitchEnd,
};

use super::layout::{self, TOKEN_AT};
use super::memory::{Actor, ModelMemory, ModelWord, Slots, Stepped};
use super::state::{HostProcess, LaneProcess, Process, State, Step};
use super::world::{World, forget_accounts, forget_accounts_of_lane};

/// Two records fill a buffer, and each has a payload.
#[derive(Debug)]
pub struct PayloadRecord;

impl Records for PayloadRecord {
    type Record = [u8; 32];
    type Hooks<M: Memory> = Arena<M>;
    const LAYOUT: BufferLayout = layout::PAIR_BUFFER;
    const KIND: PoolKind = PoolKind::SOLE;
}

/// Where the lane is with the record at hand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// There is none.
    #[default]
    Rest,
    /// It needs a buffer with room, and an arena with room.
    Begin,
    /// The arena is being emptied.
    Barrier,
    /// There is room.
    Write,
    /// A buffer is published, if there is one, and another claimed, before the record is written.
    SwitchBefore,
    /// The same after the record that filled the buffer.
    SwitchAfter,
    /// Recording is over: what the buffer has is being published.
    Flush,
    /// All is published.
    Over,
}

/// What the lane remembers of its arena.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Payloads {
    /// Shipped state.
    pub arena: ArenaState,
    /// Bytes of a lap.
    pub lap: u64,
    /// The record at hand.
    pub phase: Phase,
}

impl<S: Subsystem> World<S> {
    /// A step of the lane, and whether the clock could have said something else.
    pub(super) fn payload_step(&mut self, state: &State, late: bool) -> Option<(Step, bool)> {
        let here = &*state.lanes[0];
        if here.payloads.phase == Phase::Over {
            return None;
        }
        let host_is_down = state.host == HostProcess::Down;
        let (lane, pool) = self.arena.as_mut()?;
        self.memory.begin(state.shared, &here.log, Actor::Lane(0), host_is_down, late);
        pool.restore(here.pool).expect("a known buffer");
        pool.hooks().restore(here.payloads.arena);
        lane.restore(here.lane);
        let (phase, switch, is_lost) = match here.payloads.phase {
            Phase::Rest if state.past.stopping => (Phase::Flush, Some(lane.begin_switch()), false),
            phase => advance(lane, pool, phase, here.switch, &self.memory),
        };
        let Stepped { mut shared, log, finished, late_was_used, mut violation, .. } = self.memory.end();
        let mut progress = None;
        let next = if finished {
            let (before, after) = (here.payloads.arena, pool.hooks().state());
            if after.in_current < before.in_current && after.published == before.published {
                forget_payloads(&mut shared.slots, &state.shared.slots, here.pool);
            }
            if is_lost && !host_is_down && state.host != HostProcess::Gone {
                violation.get_or_insert_with(|| "the lane lost a record while the host lives".into());
            }
            progress = matches!(phase, Phase::Rest | Phase::Over).then_some(0);
            LaneProcess {
                pool: forget_accounts(pool.state()),
                lane: forget_accounts_of_lane(lane.state()),
                switch: switch.map(Switch::waiting_since_zero),
                payloads: Payloads { arena: pool.hooks().state(), phase, ..here.payloads },
                log,
                ..here.clone()
            }
        } else {
            LaneProcess { log, ..here.clone() }
        };
        let is_rest = here.payloads.phase == Phase::Rest && !state.past.stopping;
        // Nobody comes back to a lane whose host is dead: that its time is over is only a matter of time.
        let is_voluntary = is_rest || (late && !host_is_down);
        let mut state = State { shared, ..state.clone() };
        state.lanes[0] = Rc::new(next);
        Some((Step { process: Process::Lane0, is_voluntary, progress, state, violation }, late_was_used))
    }
}

/// What one look of the lane makes of the record at hand, and whether that is lost.
fn advance<S: Subsystem>(
    lane: &mut Lane<ModelMemory, S>,
    pool: &mut Pool<ModelMemory, PayloadRecord, S>,
    phase: Phase,
    switch: Option<Switch>,
    memory: &ModelMemory,
) -> (Phase, Option<Switch>, bool) {
    if let Some(mut switch) = switch {
        let progress = match phase {
            Phase::Flush => lane.poll_flush(pool, &mut switch, memory),
            _ => lane.poll_switch(pool, &mut switch, memory),
        };
        let end = match progress {
            Progress::Waiting(_) | Progress::Moved => return (phase, Some(switch), false),
            Progress::Done(end) => end,
        };
        return match phase {
            Phase::SwitchBefore if pool.room() == 0 => (Phase::Rest, None, true),
            Phase::Barrier if !pool.try_next_lap() => (Phase::Rest, None, true),
            Phase::SwitchAfter => (Phase::Rest, None, matches!(end, SwitchEnd::Kept { .. })),
            Phase::Flush => (Phase::Over, None, matches!(end, SwitchEnd::Kept { .. })),
            _ => (Phase::Begin, None, false),
        };
    }
    match phase {
        Phase::Rest => (Phase::Begin, None, false),
        Phase::Begin if pool.room() == 0 => (Phase::SwitchBefore, Some(lane.begin_switch()), false),
        Phase::Begin if !pool.hooks().has_room(1) => (Phase::Barrier, Some(lane.begin_emptying(pool)), false),
        Phase::Begin => (Phase::Write, None, false),
        Phase::Over => (Phase::Over, None, false),
        Phase::Write | Phase::Barrier | Phase::SwitchBefore | Phase::SwitchAfter | Phase::Flush => {
            let (_, at) = pool.hooks().reserve(1);
            let place = (at.0 - layout::ARENA_AT) as u8;
            ModelWord::at(memory, layout::arena_place(place)).store_release(1);
            pool.hooks().note_payload();
            let mut record = [0; 32];
            record[TOKEN_AT as usize] = place + 1;
            match pool.try_append(&record) {
                Append::Stored => (Phase::Rest, None, false),
                Append::Full => (Phase::SwitchAfter, Some(lane.begin_switch()), false),
                Append::NoBuffer => (Phase::Rest, None, true),
            }
        }
    }
}

/// The records of a buffer were given up, and nobody ever copies their payloads.
fn forget_payloads(slots: &mut Slots, before: &Slots, pool: PoolState) {
    let Some(buffer) = layout::buffer_at(pool.buffer) else { return };
    for index in 0..pool.count as u8 {
        if let Some(place) = before[layout::record(buffer, index) as usize].checked_sub(1) {
            slots[layout::arena_place(place) as usize] = 0;
        }
    }
}

/// Payloads of a buffer that is being collected.
pub(super) fn places(state: &State, buffer: usize) -> impl Iterator<Item = usize> + '_ {
    let slots = &state.shared.slots;
    let count = slots[layout::count(buffer) as usize];
    (0..count)
        .filter_map(move |index| usize::from(slots[layout::record(buffer, index) as usize]).checked_sub(1))
}

/// Copies the payloads of a buffer: each has to stand where it was written.
pub(super) fn copy(state: &mut State, buffer: usize) -> Option<String> {
    let places: Vec<_> = places(state, buffer).collect();
    for place in places {
        let here = &mut state.shared.slots[layout::arena_place(place as u8) as usize];
        if std::mem::take(here) == 0 {
            return Some(format!("arena: the payload in place {place} was copied before"));
        }
    }
    None
}

/// Acknowledges the payloads of a buffer.
pub(super) fn acknowledge(state: &mut State, buffer: usize) {
    let payloads = places(state, buffer).count() as u8;
    state.shared.slots[layout::COMPLETED as usize] += payloads;
}
