//! Freezes as they happen: who stands at a gate, who stood there first, and what was drained meanwhile.
//!
//! A lane says in the extension block at which gate it waits and since when. The host looks when it shuts a gate and in every
//! turn until it opens it again; after that the lanes are gone and there is nothing left to see.

use std::mem::offset_of;

use sluice_core::gate::Gate;
use sluice_core::layout::extension::{LaneActivity, LaneStatus};
use sluice_core::layout::{Lane, SubsystemId};
use sluice_core::mem::{Fault, LongPeer, Memory, Peer};

use super::plan::Plan;
use super::sink::Freeze;

/// A lane at a gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    lane: Lane,
    gate: Gate,
    since_cycles: u64,
}

/// What the lanes of one subsystem say of themselves.
pub(super) struct LaneWatch<M: Memory> {
    lanes: Vec<LaneWords<M::Word>>,
}

struct LaneWords<W> {
    state: Peer<W>,
    parked_since: LongPeer<W>,
}

impl<M: Memory> LaneWatch<M> {
    /// The lanes of `subsystem`.
    ///
    /// # Errors
    /// [`Fault`] when a word lies outside device memory.
    pub(super) fn attach(memory: &M, plan: &Plan, subsystem: SubsystemId, lanes: u32) -> Result<Self, Fault> {
        let lane = |lane| {
            let at = |offset| plan.lane_word(subsystem, lane, offset);
            Ok(LaneWords {
                state: Peer::new(memory.word(at(offset_of!(LaneStatus, state))?)?),
                parked_since: LongPeer::at(memory, at(offset_of!(LaneStatus, parked_since_cycles))?)?,
            })
        };
        Ok(Self { lanes: (0..lanes).map(lane).collect::<Result<_, _>>()? })
    }

    /// The lanes at a gate. One whose words cannot be read now is left out: the next look comes soon.
    fn waiting(&self) -> impl Iterator<Item = Waiting> + '_ {
        self.lanes.iter().zip(0..).filter_map(|(words, lane)| {
            let gate = match LaneActivity(words.state.try_observe().ok()?) {
                LaneActivity::READY_GATE => Gate::Ready,
                LaneActivity::FREE_GATE => Gate::Free,
                _ => return None,
            };
            let since_cycles = words.parked_since.try_observe().ok()?.0;
            Some(Waiting { lane: Lane(lane), gate, since_cycles })
        })
    }

    /// Whether any lane stands at a gate.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting().next().is_some()
    }
}

/// An instant on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Host clock.
    pub(super) ns: u64,
    /// Device clock.
    pub(super) cycles: u64,
}

/// A gate that is shut.
#[derive(Clone, Copy, Debug)]
struct Shut {
    opened: Moment,
    drained_before: u64,
    lanes_parked: u32,
    /// The lane that waited longest, and since when.
    first: Option<(u64, Lane)>,
}

/// The freezes of one subsystem that are under way.
#[derive(Debug)]
pub(super) struct FreezeLog {
    subsystem: SubsystemId,
    shut: [Option<Shut>; 2],
}

const GATES: [Gate; 2] = [Gate::Ready, Gate::Free];

impl FreezeLog {
    pub(super) fn new(subsystem: SubsystemId) -> Self {
        Self { subsystem, shut: [None; 2] }
    }

    /// Whether any gate is shut.
    pub(super) fn is_open(&self) -> bool {
        self.shut.iter().any(Option::is_some)
    }

    /// A freeze begins at `gate`, after `drained` buffers.
    pub(super) fn open(&mut self, gate: Gate, now: Moment, drained: u64) {
        let place = GATES.iter().position(|&other| other == gate).unwrap_or_default();
        self.shut[place] = Some(Shut { opened: now, drained_before: drained, lanes_parked: 0, first: None });
    }

    /// Looks who stands at a gate.
    pub(super) fn look<M: Memory>(&mut self, lanes: &LaneWatch<M>) {
        if !self.is_open() {
            return;
        }
        let mut parked = 0;
        for Waiting { lane, gate, since_cycles } in lanes.waiting() {
            parked += 1;
            let place = GATES.iter().position(|&other| other == gate).unwrap_or_default();
            if let Some(shut) = &mut self.shut[place]
                && shut.first.is_none_or(|(first, _)| since_cycles < first)
            {
                shut.first = Some((since_cycles, lane));
            }
        }
        for shut in self.shut.iter_mut().flatten() {
            shut.lanes_parked = shut.lanes_parked.max(parked);
        }
    }

    /// The freezes that end now, after `drained` buffers.
    pub(super) fn release(&mut self, now: Moment, drained: u64) -> impl Iterator<Item = Freeze> + use<> {
        let subsystem = self.subsystem;
        GATES.into_iter().zip(std::mem::take(&mut self.shut)).filter_map(move |(gate, shut)| {
            let shut = shut?;
            Some(Freeze {
                subsystem,
                gate,
                opened_by: shut.first.map(|(_, lane)| lane),
                opened_ns: shut.opened.ns,
                released_ns: now.ns,
                opened_cycles: shut.opened.cycles,
                released_cycles: now.cycles,
                lanes_parked: shut.lanes_parked,
                buffers_drained: drained - shut.drained_before,
            })
        })
    }
}
