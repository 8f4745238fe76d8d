//! One name for all states that differ only in how far counters have run.
//!
//! Free-running counters would make the world infinite. What decides is only how they stand to each other: ring indices and
//! queue counters are turned so that each head is 0, epochs are ranked, ledger counters keep only whether they differ. The
//! logs of unfinished polls are renamed along, so that their replay sees the same world.

use std::rc::Rc;

use sluice_core::gate::GateSigns;
use sluice_core::producer::{HostSigns, Latch, Patience};
use sluice_host::dfx::keeper::Step;

use super::arena::Payloads;
use super::layout::{self, BUFFERS, LANES};
use super::memory::Logged;
use super::state::{HostProcess, Role, State};

/// The same state with its names made canonical, so that states which differ only in how far counters have run are one.
pub(super) fn canonical(mut state: State) -> State {
    for lane in 0..LANES {
        forget_stale_signs(&mut state, lane);
    }
    if state.shared.slots[layout::EPOCH as usize] != 0 {
        rank_epochs(&mut state);
    }
    for lane in 0..LANES {
        if state.shared.slots[layout::ring_head(lane) as usize] != 0 {
            rotate_ring(&mut state, lane);
        }
        if state.shared.slots[layout::queue_head(lane) as usize] != 0 {
            rotate_queue(&mut state, lane);
        }
    }
    for buffer in 0..BUFFERS {
        if state.shared.slots[layout::taken(buffer) as usize] != 0 {
            flip_ledger(&mut state, buffer);
        }
    }
    if state.lanes[0].items.known.token != 0 {
        turn_items(&mut state);
    }
    turn_arena(&mut state);
    for lane in 0..LANES {
        // Turning rings and queues turns what a lane remembers of them, stale or not.
        forget_stale_signs(&mut state, lane);
    }
    state
}

/// The heartbeat moves once, when a new host serves: signs read before that never match again, whatever else they say, and
/// a wait that nothing ends any more need not know when it began.
fn forget_stale_signs(state: &mut State, lane: usize) {
    let now = state.shared.slots[layout::HEARTBEAT as usize];
    let epoch = state.shared.slots[layout::EPOCH as usize];
    let here = &state.lanes[lane];
    let is_last_look = here.switch.is_some_and(|switch| switch.patience() == Patience::LastLook);
    if let Some(switch) = here.switch
        && switch.heartbeat() != u32::from(now)
    {
        let process = Rc::make_mut(&mut state.lanes[lane]);
        match switch.patience() {
            // What it would find in a last look, it compares with these.
            Patience::Ended if switch.parked().is_some() => {}
            Patience::Ended => {
                for logged in &mut process.log {
                    let stale = if logged.slot == layout::EPOCH { epoch } else { 0 };
                    logged.loaded = logged.loaded.map(|_| stale);
                }
            }
            Patience::Waiting | Patience::LastLook if state.host == HostProcess::Down => {}
            Patience::Waiting | Patience::LastLook => {
                process.switch = Some(switch.waiting_since_heartbeat(u32::from(now)));
            }
        }
    }
    if let Some(signs) = state.lanes[lane].lane.latch.signs()
        && signs.gates.heartbeat != u32::from(now)
        // A poll under way may have compared the heartbeat already; then it goes by the rest, as a last look does.
        && state.lanes[lane].log.is_empty()
        && !is_last_look
    {
        let gates = GateSigns { flags: [0; 2], epoch: u32::from(epoch), ..signs.gates };
        let stale = HostSigns { gates, ring_head: 0, queue_tail: 0, ..signs };
        if signs != stale {
            Rc::make_mut(&mut state.lanes[lane]).lane.latch = Latch::with(Some(stale));
        }
    }
}

fn for_each_log(state: &mut State, mut change: impl FnMut(&mut Logged)) {
    for lane in &mut state.lanes {
        if !lane.log.is_empty() {
            Rc::make_mut(lane).log.iter_mut().for_each(&mut change);
        }
    }
    match &mut state.host {
        HostProcess::Down | HostProcess::Gone => {}
        HostProcess::Attaching(scan) => change_role(scan, &mut change),
        HostProcess::Up { drain, keeper } => {
            change_role(drain, &mut change);
            change_role(keeper, &mut change);
        }
    }
}

fn change_role<T: Clone>(role: &mut Rc<Role<T>>, change: &mut impl FnMut(&mut Logged)) {
    if !role.log.is_empty() {
        Rc::make_mut(role).log.iter_mut().for_each(change);
    }
}

/// Only equality with the epoch of now matters, and order among those remembered.
fn rank_epochs(state: &mut State) {
    let mut values = vec![state.shared.slots[layout::EPOCH as usize]];
    for lane in &state.lanes {
        values.extend(lane.switch.and_then(|switch| switch.parked()).map(|parked| parked.epoch as u8));
        values.extend(lane.lane.latch.signs().map(|signs| signs.gates.epoch as u8));
    }
    for_each_log(state, |logged| {
        if logged.slot == layout::EPOCH {
            values.extend(logged.loaded);
        }
    });
    values.sort_unstable();
    values.dedup();
    let rank = |value: u8| values.iter().position(|&v| v == value).unwrap_or_default() as u8;
    state.shared.slots[layout::EPOCH as usize] = rank(state.shared.slots[layout::EPOCH as usize]);
    for lane in &mut state.lanes {
        let lane = Rc::make_mut(lane);
        if let Some(switch) = &mut lane.switch
            && let Some(mut parked) = switch.parked()
        {
            parked.epoch = u32::from(rank(parked.epoch as u8));
            switch.set_parked(Some(parked));
        }
        if let Some(mut signs) = lane.lane.latch.signs() {
            signs.gates.epoch = u32::from(rank(signs.gates.epoch as u8));
            lane.lane.latch = Latch::with(Some(signs));
        }
    }
    for_each_log(state, |logged| {
        if logged.slot == layout::EPOCH {
            logged.loaded = logged.loaded.map(rank);
        }
    });
}

/// Turns a ring so that its head is entry 0, and forgets what stands outside.
fn rotate_ring(state: &mut State, lane: usize) {
    let entries = layout::READY_ENTRIES as u8;
    let (head_slot, tail_slot) = (layout::ring_head(lane), layout::ring_tail(lane));
    let turn = state.shared.slots[head_slot as usize];
    let turned = |index: u8| (index + entries - turn) % entries;
    let slots = &mut state.shared.slots;
    let old: Vec<u8> = (0..entries).map(|index| slots[layout::ring_entry(lane, index) as usize]).collect();
    slots[head_slot as usize] = 0;
    slots[tail_slot as usize] = turned(slots[tail_slot as usize]);
    let waiting = slots[tail_slot as usize];
    for index in 0..entries {
        let entry = old[usize::from((index + turn) % entries)];
        slots[layout::ring_entry(lane, index) as usize] = if index < waiting { entry } else { 0 };
    }
    let first = layout::ring_entry(lane, 0);
    for_each_log(state, |logged| {
        if logged.slot == head_slot || logged.slot == tail_slot {
            logged.loaded = logged.loaded.map(turned);
        } else if (first..first + entries).contains(&logged.slot) {
            logged.slot = layout::ring_entry(lane, turned(logged.slot - first));
        }
    });
    if let HostProcess::Up { drain, .. } = &mut state.host
        && drain.state.ring as usize == lane
        && let Some((index, drained)) = drain.state.judged
    {
        Rc::make_mut(drain).state.judged = Some((u32::from(turned(index as u8)), drained));
    }
    if let Some(mut signs) = state.lanes[lane].lane.latch.signs() {
        signs.ring_head = u32::from(turned(signs.ring_head as u8));
        Rc::make_mut(&mut state.lanes[lane]).lane.latch = Latch::with(Some(signs));
    }
}

/// Turns a queue so that its head counter is 0, and forgets what stands outside.
fn rotate_queue(state: &mut State, pool: usize) {
    let mask = layout::COUNTER_MASK as u8;
    let count = layout::FREE_SLOTS as u8;
    let (head_slot, tail_slot) = (layout::queue_head(pool), layout::queue_tail(pool));
    let turn = state.shared.slots[head_slot as usize];
    let turned = |counter: u8| counter.wrapping_sub(turn) & mask;
    let slots = &mut state.shared.slots;
    let old: Vec<u8> = (0..count).map(|slot| slots[layout::queue_slot(pool, slot) as usize]).collect();
    slots[head_slot as usize] = 0;
    slots[tail_slot as usize] = turned(slots[tail_slot as usize]);
    let waiting = slots[tail_slot as usize];
    for index in 0..count {
        let buffer = old[usize::from((index + turn) % count)];
        slots[layout::queue_slot(pool, index) as usize] = if index < waiting { buffer } else { 0 };
    }
    let first = layout::queue_slot(pool, 0);
    for_each_log(state, |logged| {
        if logged.slot == head_slot || logged.slot == tail_slot {
            logged.loaded = logged.loaded.map(turned);
        } else if (first..first + count).contains(&logged.slot) {
            logged.slot = layout::queue_slot(pool, turned(logged.slot - first) % count);
        }
    });
    if let HostProcess::Up { keeper, .. } = &mut state.host
        && keeper.state.step == Step::Refill(pool as u32)
        && let Some(tail) = keeper.state.pushing
    {
        Rc::make_mut(keeper).state.pushing = Some(u32::from(turned(tail as u8)));
    }
    if let Some(mut signs) = state.lanes[pool].lane.latch.signs() {
        signs.queue_tail = u32::from(turned(signs.queue_tail as u8));
        Rc::make_mut(&mut state.lanes[pool]).lane.latch = Latch::with(Some(signs));
    }
}

/// Tokens are compared with each other, and so are sequences: the item given last gets the first token, the current buffer
/// sequence 0. After a crash nobody asks which records come next.
fn turn_items(state: &mut State) {
    let slots = &mut state.shared.slots;
    let (tokens, last) = (layout::TOKENS as u8, state.lanes[0].items.known.token as u8);
    let turned = |token: u8| (token + tokens - last) % tokens + 1;
    let token = |token: u8| if token == 0 { 0 } else { turned(token) };
    let turn = std::mem::take(&mut slots[layout::SEQUENCE as usize]);
    let sequence = |sequence: u8| sequence.wrapping_sub(turn) & layout::COUNTER_MASK as u8;
    for slot in layout::TOKEN_SLOTS.into_iter().flatten() {
        slots[slot as usize] = token(slots[slot as usize]);
    }
    for_each_log(state, |logged| {
        if layout::TOKEN_SLOTS.into_iter().flatten().any(|slot| slot == logged.slot) {
            logged.loaded = logged.loaded.map(token);
        }
    });
    state.core = state.core.renamed(token, sequence);
    state.past.delivered = if state.past.crashed { 0 } else { turned(state.past.delivered) };
    let lane = Rc::make_mut(&mut state.lanes[0]);
    lane.items.known.token = 1;
    lane.pool.sequence = u32::from(sequence(lane.pool.sequence as u8));
}

/// Of an arena's laps only the present one matters, and of its payloads those that are not known to be acknowledged.
fn turn_arena(state: &mut State) {
    let mut known = state.shared.slots[layout::COMPLETED as usize];
    let is_completed = |logged: &Logged| logged.slot == layout::COMPLETED;
    let logs = state.lanes.iter().flat_map(|lane| &lane.log).filter(|logged| is_completed(logged));
    known = logs.filter_map(|logged| logged.loaded).fold(known, u8::min);
    let Payloads { arena, lap, .. } = state.lanes[0].payloads;
    let before = arena.granted - lap;
    if known == 0 && before == 0 {
        return;
    }
    state.shared.slots[layout::COMPLETED as usize] -= known;
    for_each_log(state, |logged| {
        if is_completed(logged) {
            logged.loaded = logged.loaded.map(|completed| completed - known);
        }
    });
    let arena = &mut Rc::make_mut(&mut state.lanes[0]).payloads.arena;
    arena.cursor -= before;
    arena.granted -= before;
    arena.published -= u64::from(known);
}

/// Only whether the two counters differ matters.
fn flip_ledger(state: &mut State, buffer: usize) {
    let (given, taken) = (layout::given(buffer), layout::taken(buffer));
    let flip = |value: u8| value ^ layout::LEDGER_MASK as u8;
    for slot in [given, taken] {
        state.shared.slots[slot as usize] = flip(state.shared.slots[slot as usize]);
    }
    for_each_log(state, |logged| {
        if logged.slot == given || logged.slot == taken {
            logged.loaded = logged.loaded.map(flip);
        }
    });
}
