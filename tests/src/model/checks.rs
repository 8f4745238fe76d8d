//! What must hold whatever was done before: looks at one state, or at two that follow each other.

use sluice_core::gate::Gate;
use sluice_host::dfx::ledger::BufferId;

use super::layout::{self, LANES, TOKENS};
use super::memory::{Owner, Shared};
use super::state::State;

/// Flag and signal of a gate by number.
fn gate_slots(gate: u8) -> [usize; 2] {
    let (flag, signal) = match gate {
        0 => (layout::GATES.rq_freeze_active, layout::GATES.rq_contended),
        _ => (layout::GATES.fq_freeze_active, layout::GATES.fq_contended),
    };
    [flag, signal].map(|offset| usize::from(layout::tracked(offset as u64).expect("tracked")))
}

/// Whether a gate is shut.
pub(super) fn is_frozen(state: &State) -> bool {
    [0, 1].iter().any(|&gate| state.shared.slots[gate_slots(gate)[0]] != 0)
}

/// Whether a signal went between two states while its gate was open all the time.
pub(super) fn takes_early(before: &Shared, after: &Shared, gate: u8) -> bool {
    let [flag, signal] = gate_slots(gate);
    before.slots[flag] == 0 && before.slots[signal] == 1 && after.slots[signal] == 0
}

/// Whether a lane that a gate should have held has published or claimed.
pub(super) fn passes_shut_gate(before: &State, after: &Shared, index: usize) -> bool {
    let Some(switch) = before.lanes[index].switch else { return false };
    let (gate, moved) = match switch.gate() {
        Gate::Ready => (0, layout::ring_tail(index)),
        Gate::Free => (1, layout::queue_head(index)),
    };
    let slots = &before.shared.slots;
    let epoch = u32::from(slots[layout::EPOCH as usize]);
    slots[gate_slots(gate)[0]] != 0
        && slots[moved as usize] != after.slots[moved as usize]
        && !before.lanes[index].lane.latch.is_set()
        && switch.parked().is_none_or(|parked| parked.epoch == epoch)
}

pub(super) fn copy_of(shared: &Shared, buffer: BufferId) -> Option<String> {
    let owner = shared.owners[buffer.0 as usize];
    (owner != Owner::Host).then(|| format!("the collector copies buffer {}, which {owner:?} holds", buffer.0))
}

/// Holds the records of a core in a buffer that is being copied against those that come next. What a dead host had is gone.
pub(super) fn note_delivery(state: &mut State, buffer: BufferId) -> Option<String> {
    let slots = &state.shared.slots;
    let buffer = buffer.0 as usize;
    for index in 0..slots[layout::count(buffer) as usize] {
        let token = slots[layout::record(buffer, index) as usize];
        let expected = state.past.delivered % TOKENS as u8 + 1;
        if token != expected && !state.past.crashed {
            return Some(format!("records: {token} is delivered where {expected} comes next"));
        }
        state.past.delivered = token;
    }
    None
}

/// Notes which rings are empty while a gate is shut.
pub(super) fn note_empty_rings(state: &mut State) {
    if !is_frozen(state) {
        state.past.drained = 0;
        return;
    }
    let slots = &state.shared.slots;
    for lane in 0..LANES {
        let is_empty = slots[layout::ring_head(lane) as usize] == slots[layout::ring_tail(lane) as usize];
        state.past.drained |= u8::from(is_empty) << lane;
    }
}
