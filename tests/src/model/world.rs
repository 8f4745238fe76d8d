//! The world that is explored: two lanes, drain, collector, keeper, a host that may crash once and attach again, or stop,
//! and a transport that may fail once.
//!
//! All of it is the shipped code: [`Lane`] and [`Pool`] of the device, [`Drain`], [`Keeper`] and [`Attach`] of the host, on
//! [`ModelMemory`]. Only the collector, which shares nothing but pipes, is played here. Lanes run for ever: append one
//! record, which fills the buffer, switch, rest for as long as they like, append again.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use sluice_core::gate::Gates;
use sluice_core::layout::extension::DROP_CAUSES;
use sluice_core::layout::{BufferLayout, Instance, PoolKind, PoolOffsets};
use sluice_core::mem::{DevAddr, LongOwn, Memory, Own, OwnCount, Word};
use sluice_core::producer::{
    Append, CorePool, CountWords, Lane, LaneState, Pool, PoolSetup, PoolState, Progress, ReadyRing, Records,
    Subsystem, Switch, SwitchEnd,
};
use sluice_host::dfx::attach::{Attach, AttachState, Found, ScanViews};
use sluice_host::dfx::drain::{Drain, DrainState, Drained};
use sluice_host::dfx::keeper::{GateScope, Keeper, KeeperState, KeeperViews, Kept, Step as KeeperStep};
use sluice_host::dfx::ledger::{BufferId, Directory, GivenSide, PoolId, TakenSide};
use sluice_host::dfx::release::Unconditional;
use sluice_host::dfx::{FreeQueueFeed, Full, GateControl, HeldWords, Pipe, RingDrain, RingWatch};

use super::arena::{self, PayloadRecord, Payloads};
use super::checks::{copy_of, is_frozen, note_delivery, note_empty_rings, passes_shut_gate, takes_early};
use super::layout::{self, BUFFERS, LANES};
use super::memory::{Actor, Grain, ModelMemory, ModelPipe, ModelWord, Owner, PlannedFault, Shared, Stepped};
use super::rotation::{Core, CoreRecord, Items};
use super::state::{Collecting, Config, HostProcess, LaneProcess, Past, Process, Role, State, Step};

/// One record fills a buffer.
#[derive(Debug)]
pub struct OneRecord;

impl Records for OneRecord {
    type Record = [u8; 32];
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout = layout::BUFFER;
    const KIND: PoolKind = PoolKind::SOLE;
}

type LaneObjects<S> = (Lane<ModelMemory, S>, Pool<ModelMemory, OneRecord, S>);
type ArenaObjects<S> = (Lane<ModelMemory, S>, Pool<ModelMemory, PayloadRecord, S>);
type CoreObjects<S> = (Lane<ModelMemory, S>, CorePool<ModelMemory, CoreRecord, S>);

/// The shipped objects, into which states are put and from which they are taken.
pub struct World<S: Subsystem> {
    config: Config,
    pub(super) memory: ModelMemory,
    lanes: [LaneObjects<S>; LANES],
    /// The first lane again, where a core writes its records.
    pub(super) core: Option<CoreObjects<S>>,
    /// The first lane again, where its records have payloads.
    pub(super) arena: Option<ArenaObjects<S>>,
    drain: Drain<ModelMemory, ModelWord>,
    keeper: Keeper<ModelMemory, ModelWord>,
    attach: Attach,
    scan: Scan,
    collect: ModelPipe,
    returned: ModelPipe,
    second_refiller: GivenSide<ModelWord>,
    directory: Arc<Directory>,
}

struct Scan {
    queues: Vec<FreeQueueFeed<ModelMemory>>,
    held: Vec<HeldWords<ModelMemory>>,
    rings: Vec<RingDrain<ModelMemory>>,
    gates: GateControl<ModelMemory>,
}

const REGION: DevAddr = DevAddr(0);

impl<S: Subsystem> World<S> {
    /// The world of `config`.
    pub fn new(config: Config) -> Self {
        let memory = ModelMemory::new(config.grain, !config.second_refiller);
        if config.faults {
            memory.allow_repetition();
        }
        if config.core || config.arena_places > 0 {
            memory.track_records(config.arena_places);
        }
        let mut next = 0;
        let directory = Arc::new(Directory::new((0..LANES).map(|pool| {
            let buffers = (next..next + config.buffers[pool]).map(layout::buffer_address).collect();
            next += config.buffers[pool];
            (PoolKind::SOLE, Instance(pool as u32), buffers)
        })));
        let used = directory.buffers() as usize;
        let words = |at: fn(usize) -> layout::Slot| (0..used).map(at);
        let given = || words(layout::given).map(|slot| ModelWord::at(&memory, slot));
        let taken = || words(layout::taken).map(|slot| ModelWord::at(&memory, slot));
        let lanes = [0, 1].map(|lane| {
            let pool = Pool::attach(&memory, &pool_setup(lane), None).expect("mapped");
            (attach_lane(&memory, lane), pool)
        });
        let core = config.core.then(|| {
            let pool = Pool::attach(&memory, &pool_setup(0), Some(status_words(&memory)));
            (attach_lane(&memory, 0), CorePool::new(&memory, pool.expect("mapped"), u64::MAX))
        });
        let arena = (config.arena_places > 0).then(|| {
            let setup = pool_setup(0);
            let offsets = PoolOffsets { base: layout::ARENA_WORDS_AT as usize, ..setup.offsets };
            let pool = Pool::attach(&memory, &PoolSetup { offsets, ..setup }, None);
            (attach_lane(&memory, 0), pool.expect("mapped"))
        });
        let queue = |pool| {
            FreeQueueFeed::attach(
                &memory,
                REGION,
                &layout::pool_offsets(pool),
                layout::FREE_SLOTS,
                layout::COUNTER_MASK,
            )
            .expect("mapped")
        };
        let ring = |lane| {
            RingDrain::attach(&memory, REGION, layout::lane_offsets(lane), layout::READY_ENTRIES)
                .expect("mapped")
        };
        let held = |pool| {
            let current = DevAddr(layout::pool_offsets(pool).current_ptr as u64);
            let stash = (config.core && pool == 0).then_some(layout::status(0));
            HeldWords::attach(&memory, current, stash).expect("mapped")
        };
        let gates = || {
            GateControl::attach(&memory, REGION, layout::GATES, Some(layout::EXTENSION.release_epoch))
                .expect("mapped")
        };
        let views = KeeperViews {
            queues: (0..LANES).map(queue).collect(),
            rings: (0..LANES)
                .map(|lane| {
                    let offsets = layout::lane_offsets(lane);
                    RingWatch::attach(&memory, REGION, offsets, layout::READY_ENTRIES).expect("mapped")
                })
                .collect(),
            gates: gates(),
        };
        let drain = Drain::new(
            Arc::clone(&directory),
            (0..LANES).map(ring).collect(),
            (0..LANES).map(held).collect(),
            TakenSide::new(given(), taken(), layout::LEDGER_MASK),
            Vec::new(),
        );
        let all = (0..directory.buffers()).map(BufferId);
        let keeper = Keeper::new(
            Arc::clone(&directory),
            views,
            GivenSide::new(given(), taken(), layout::LEDGER_MASK),
            config.scope,
            S::RULES,
            all,
            Default::default(),
        );
        Self {
            config,
            lanes,
            core,
            arena,
            drain,
            keeper,
            attach: Attach::new(Arc::clone(&directory), S::RULES),
            scan: Scan {
                queues: (0..LANES).map(queue).collect(),
                held: (0..LANES).map(held).collect(),
                rings: (0..LANES).map(ring).collect(),
                gates: gates(),
            },
            collect: ModelPipe::at(&memory, layout::COLLECT),
            returned: ModelPipe::at(&memory, layout::RETURNED),
            second_refiller: GivenSide::new(given(), taken(), layout::LEDGER_MASK),
            memory: memory.clone(),
            directory,
        }
    }

    /// Before anything has happened: the host has every buffer, the lanes have asked for none.
    pub fn initial(&mut self) -> State {
        let arena = self.arena.as_mut().map(|(_, pool)| pool.hooks().state());
        let lane = |index: usize| {
            let pool = forget_accounts(self.lanes[index].1.state());
            Rc::new(LaneProcess {
                pool,
                lane: LaneState::default(),
                switch: None,
                items: Items::default(),
                payloads: Payloads {
                    arena: arena.unwrap_or_default(),
                    lap: self.config.arena_places.into(),
                    ..Payloads::default()
                },
                log: Vec::new(),
            })
        };
        State {
            shared: Shared { slots: [0; layout::SLOTS], owners: [Owner::Host; BUFFERS] },
            lanes: [lane(0), lane(1)],
            core: Core::default(),
            host: HostProcess::Up {
                drain: Role::new(self.drain.state().clone()),
                keeper: Role::new(self.keeper.state().clone()),
            },
            past: Past::default(),
        }
    }

    /// All steps that `process` can make from `state`.
    pub fn steps(&mut self, state: &State, process: Process, into: &mut Vec<Step>) {
        match process {
            Process::Lane0 => self.lane_steps(state, 0, into),
            Process::Lane1 => self.lane_steps(state, 1, into),
            Process::Drain => self.with_faults(state, into, Self::drain_step),
            Process::Collector => self.collector_steps(state, into),
            Process::Keeper => match &state.host {
                HostProcess::Up { .. } => self.with_faults(state, into, Self::keeper_step),
                HostProcess::Attaching(_) => into.extend(self.attach_step(state)),
                HostProcess::Down | HostProcess::Gone => {}
            },
            Process::Restart => into.extend(self.restart(state)),
            Process::Crash => into.extend(self.crash(state)),
            Process::Stop => self.stop_steps(state, into),
            Process::Core => into.extend(self.core_step(state)),
        }
        if self.config.watch_rings {
            into.iter_mut().for_each(|step| note_empty_rings(&mut step.state));
        }
    }

    /// A step of the host as it is, and with each of its accesses over the transport failing.
    fn with_faults(
        &mut self,
        state: &State,
        into: &mut Vec<Step>,
        step: fn(&mut Self, &State, Option<PlannedFault>) -> Option<Step>,
    ) {
        into.extend(step(self, state, None));
        if !self.config.faults || state.past.faulted {
            return;
        }
        for is_done in [false, true] {
            for after in 0.. {
                let Some(mut step) = step(self, state, Some(PlannedFault { after, is_done })) else { break };
                if self.memory.fault_is_due() {
                    break;
                }
                step.state.past.faulted = true;
                step.is_voluntary = true;
                into.push(step);
            }
        }
    }

    fn lane_steps(&mut self, state: &State, index: usize, into: &mut Vec<Step>) {
        let flushes = index == 0 && (self.config.core || self.config.arena_places > 0);
        let is_over = !flushes && (state.past.stopping || state.host == HostProcess::Gone);
        if index >= self.config.lanes || (is_over && state.lanes[index].switch.is_none()) {
            return;
        }
        let Some((step, late_was_used)) = self.step_of_lane(state, index, false) else { return };
        // A look that comes before the time is over changes nothing for a lane whose host never comes back.
        let is_last_chance = late_was_used && !self.restarts() && state.host == HostProcess::Down;
        if !is_last_chance {
            into.push(step);
        }
        if late_was_used {
            into.extend(self.step_of_lane(state, index, true).map(|(step, _)| step));
        }
    }

    fn step_of_lane(&mut self, state: &State, index: usize, late: bool) -> Option<(Step, bool)> {
        match index {
            0 if self.config.core => self.item_step(state, late),
            0 if self.config.arena_places > 0 => self.payload_step(state, late),
            _ => Some(self.lane_step(state, index, late)),
        }
    }

    fn lane_step(&mut self, state: &State, index: usize, late: bool) -> (Step, bool) {
        let process = [Process::Lane0, Process::Lane1][index];
        let here = &*state.lanes[index];
        let host_is_down = state.host == HostProcess::Down;
        self.memory.begin(state.shared, &here.log, Actor::Lane(index as u8), host_is_down, late);
        let (lane, pool) = &mut self.lanes[index];
        pool.restore(here.pool).expect("a known buffer");
        lane.restore(here.lane);
        let is_rest = here.switch.is_none();
        let is_gone = state.host == HostProcess::Gone;
        let (switch, end) = match here.switch {
            None => (
                Some(match pool.try_append(&[0; 32]) {
                    Append::Full | Append::Stored => lane.begin_switch(),
                    Append::NoBuffer => lane.begin_claim(),
                }),
                None,
            ),
            Some(mut switch) => match lane.poll_switch(pool, &mut switch, &self.memory) {
                Progress::Waiting(_) | Progress::Moved => (Some(switch), None),
                Progress::Done(end) => (None, Some(end)),
            },
        };
        let Stepped { shared, log, finished, late_was_used, mut violation, .. } = self.memory.end();
        let mut progress = None;
        let next = if finished {
            let is_served = !host_is_down && !is_gone && !state.past.crashed;
            if end.is_some_and(|end| end != SwitchEnd::Switched) && is_served {
                violation.get_or_insert_with(|| format!("lane {index} lost a record while the host lives"));
            }
            if self.config.grain == Grain::Poll && passes_shut_gate(state, &shared, index) {
                violation.get_or_insert_with(|| format!("lane {index} passes a shut gate"));
            }
            progress = end.filter(|end| is_gone || *end == SwitchEnd::Switched).map(|_| index);
            LaneProcess {
                pool: forget_accounts(pool.state()),
                lane: forget_accounts_of_lane(lane.state()),
                switch: switch.map(Switch::waiting_since_zero),
                log,
                ..here.clone()
            }
        } else {
            LaneProcess { log, ..here.clone() }
        };
        let mut state = State { shared, ..state.clone() };
        state.lanes[index] = Rc::new(next);
        (Step { process, is_voluntary: is_rest || late, progress, state, violation }, late_was_used)
    }

    fn host_step(&self, process: Process, state: State, violation: Option<String>) -> Step {
        self.checked(Step { process, is_voluntary: false, progress: None, state, violation })
    }

    fn drain_step(&mut self, state: &State, fault: Option<PlannedFault>) -> Option<Step> {
        let HostProcess::Up { drain, keeper } = &state.host else { return None };
        self.memory.begin(state.shared, &drain.log, Actor::Host, false, false);
        fault.into_iter().for_each(|fault| self.memory.plan_fault(fault));
        self.drain.restore(drain.state.clone());
        let drained = self.drain.poll(&self.collect, &self.returned).unwrap_or(Drained::Nothing);
        if self.config.second_refiller && matches!(drained, Drained::Buffer(_)) {
            self.refill_beside_the_keeper();
        }
        let Stepped { shared, log, finished, mut violation, .. } = self.memory.end();
        let mut now = drain.state.clone();
        if finished {
            now = self.drain.state().clone();
            match drained {
                Drained::Refused { entry, why, .. } => {
                    violation.get_or_insert_with(|| format!("entry for {} refused: {why:?}", entry.buffer));
                }
                Drained::CorruptRing { tail, .. } => {
                    violation.get_or_insert_with(|| format!("ring tail {tail} out of range"));
                }
                Drained::Nothing | Drained::Buffer(_) | Drained::Recovered(_) => {}
            }
        }
        let host = HostProcess::Up { drain: Rc::new(Role { state: now, log }), keeper: Rc::clone(keeper) };
        Some(self.host_step(Process::Drain, State { shared, host, ..state.clone() }, violation))
    }

    /// What a drain does that tops up queues from what was returned, as a second writer of their tails.
    fn refill_beside_the_keeper(&mut self) {
        let Some(buffer) = Pipe::<BufferId>::pop(&self.returned) else { return };
        let pool = self.directory.pool_of(buffer);
        let queue = &self.scan.queues[pool.0 as usize];
        self.second_refiller.give(buffer);
        queue.push(queue.tail(), self.directory.address(buffer)).expect("mapped");
    }

    fn collector_steps(&mut self, state: &State, into: &mut Vec<Step>) {
        if !matches!(state.host, HostProcess::Up { .. }) {
            return;
        }
        if let Some(buffer) = state.past.copying.checked_sub(1) {
            into.push(self.late_copy(state, BufferId(buffer.into())));
            return;
        }
        into.extend(self.collector_step(state, true));
        if self.config.collector == Collecting::KeptOnFailure {
            into.extend(self.collector_step(state, false));
        }
    }

    /// Copies a buffer that was given up, or acknowledged, before.
    fn late_copy(&mut self, state: &State, buffer: BufferId) -> Step {
        let past = Past { copying: 0, ..state.past };
        let mut next = State { past, ..state.clone() };
        let violation = if self.config.collector == Collecting::AcknowledgedFirst {
            self.memory.begin(state.shared, &[], Actor::Host, false, false);
            Pipe::<BufferId>::push(&self.returned, buffer);
            next.shared = self.memory.end().shared;
            arena::copy(&mut next, buffer.0 as usize)
        } else {
            copy_of(&state.shared, buffer)
        };
        self.host_step(Process::Collector, next, violation)
    }

    /// Takes a buffer, copies it, returns it: one step, for between taking and returning it only the collector knows of it.
    fn collector_step(&mut self, state: &State, is_returned: bool) -> Option<Step> {
        self.memory.begin(state.shared, &[], Actor::Host, false, false);
        let Full { buffer, .. } = Pipe::<Full>::pop(&self.collect)?;
        let is_acknowledged_first = self.config.collector == Collecting::AcknowledgedFirst;
        if is_returned && !is_acknowledged_first {
            Pipe::<BufferId>::push(&self.returned, buffer);
        }
        let Stepped { shared, mut violation, .. } = self.memory.end();
        let mut past = state.past;
        if self.config.collector == Collecting::ReturnedFirst || is_acknowledged_first {
            past.copying = buffer.0 as u8 + 1;
        } else {
            violation = violation.or_else(|| copy_of(&state.shared, buffer));
        }
        let mut next = State { shared, past, ..state.clone() };
        if self.config.core {
            violation = violation.or_else(|| note_delivery(&mut next, buffer));
        }
        if self.config.arena_places > 0 {
            if !is_acknowledged_first {
                violation = violation.or_else(|| arena::copy(&mut next, buffer.0 as usize));
            }
            arena::acknowledge(&mut next, buffer.0 as usize);
        }
        Some(self.host_step(Process::Collector, next, violation))
    }

    /// The host asks the lanes to end. It leaves when they have and everything is collected, or when their time is over.
    fn stop_steps(&mut self, state: &State, into: &mut Vec<Step>) {
        let HostProcess::Up { keeper, .. } = &state.host else { return };
        if !self.config.stop {
            return;
        }
        let mut next = state.clone();
        if !state.past.stopping {
            next.past.stopping = true;
        } else {
            self.memory.begin(state.shared, &[], Actor::Host, false, false);
            self.keeper.restore(keeper.state.clone());
            ModelWord::at(&self.memory, layout::DETACHED).store_release(1);
            self.keeper.open_all().expect("no fault is due");
            next.shared = self.memory.end().shared;
            next.host = HostProcess::Gone;
        }
        let stays_shut = next.host == HostProcess::Gone && is_frozen(&next);
        let violation = stays_shut.then(|| "a stop leaves a gate shut for good".to_owned());
        into.push(Step {
            process: Process::Stop,
            is_voluntary: true,
            progress: None,
            state: next,
            violation,
        });
    }

    fn keeper_step(&mut self, state: &State, fault: Option<PlannedFault>) -> Option<Step> {
        let HostProcess::Up { drain, keeper } = &state.host else { return None };
        let mut now = keeper.state.clone();
        let mut log = keeper.log.clone();
        let mut violation = None;
        loop {
            if self.config.signals_only
                && !now.shut.any()
                && matches!(now.step, KeeperStep::Returns | KeeperStep::Refill(_))
            {
                now.step = KeeperStep::Signal(0);
            }
            self.memory.begin(state.shared, &log, Actor::Host, false, false);
            fault.into_iter().for_each(|fault| self.memory.plan_fault(fault));
            self.keeper.restore(now.clone());
            let kept = self.keeper.poll(&self.returned, &mut Unconditional).unwrap_or(Kept::Step);
            let stepped = self.memory.end();
            violation = violation.or(stepped.violation);
            if let KeeperStep::Signal(gate) = now.step
                && self.config.scope == GateScope::All
                && takes_early(&state.shared, &stepped.shared, gate)
            {
                violation.get_or_insert_with(|| "a signal is taken while its gate is open".into());
            }
            let releases = |step| matches!(step, KeeperStep::Release(_));
            if self.config.watch_rings
                && stepped.finished
                && releases(self.keeper.state().step)
                && !releases(now.step)
                && u32::from(state.past.drained).count_ones() < LANES as u32
            {
                violation.get_or_insert_with(|| "a release, though a ring was not seen empty".into());
            }
            if stepped.finished {
                now = KeeperState { moved: 0, ..self.keeper.state().clone() };
                if let Kept::CorruptHead { pool: PoolId(pool), head } = kept {
                    violation.get_or_insert_with(|| format!("free queue {pool}: head {head} out of range"));
                }
            }
            log = stepped.log;
            let has_failed = fault.is_some() && !self.memory.fault_is_due();
            if stepped.finished && !stepped.is_visible && !has_failed {
                // Nobody could see it: the next poll belongs to the same step.
                continue;
            }
            let host = HostProcess::Up { drain: Rc::clone(drain), keeper: Rc::new(Role { state: now, log }) };
            let state = State { shared: stepped.shared, host, ..state.clone() };
            return Some(self.host_step(Process::Keeper, state, violation));
        }
    }

    fn attach_step(&mut self, state: &State) -> Option<Step> {
        let HostProcess::Attaching(scan) = &state.host else { return None };
        self.memory.begin(state.shared, &scan.log, Actor::Host, false, false);
        self.attach.restore(scan.state.clone());
        let found = self.attach.poll(&self.scan.views()).expect("mapped");
        if found.is_some() {
            // The heartbeat is the last act: from here on a latched lane knows that somebody serves.
            ModelWord::at(&self.memory, layout::HEARTBEAT).store_release(1);
        }
        let Stepped { mut shared, log, finished, violation, .. } = self.memory.end();
        let host = match found.filter(|_| finished) {
            Some(found) => self.serve(found, &mut shared),
            None => {
                let state = if finished { self.attach.state().clone() } else { scan.state.clone() };
                HostProcess::Attaching(Rc::new(Role { state, log }))
            }
        };
        Some(self.host_step(Process::Keeper, State { shared, host, ..state.clone() }, violation))
    }

    /// A host that begins with what a scan found.
    fn serve(&self, found: Found, shared: &mut Shared) -> HostProcess {
        for buffer in &found.device {
            shared.slots[layout::given(buffer.0 as usize) as usize] = 1;
        }
        let mut spare = vec![VecDeque::new(); LANES];
        for &buffer in &found.host {
            spare[self.directory.pool_of(buffer).0 as usize].push_back(buffer);
        }
        HostProcess::Up {
            drain: Role::new(DrainState { unsettled: found.unsettled, ..DrainState::default() }),
            keeper: Role::new(KeeperState { shut: found.shut, spare, ..KeeperState::default() }),
        }
    }

    /// Whether another host comes after one that crashed.
    fn restarts(&self) -> bool {
        self.config.arena_places == 0
    }

    fn restart(&mut self, state: &State) -> Option<Step> {
        if state.host != HostProcess::Down || !self.restarts() {
            return None;
        }
        let host = HostProcess::Attaching(Role::new(AttachState::new(self.directory.buffers())));
        Some(self.host_step(Process::Restart, State { host, ..state.clone() }, None))
    }

    fn crash(&mut self, state: &State) -> Option<Step> {
        if !self.config.crash || state.past.crashed || !matches!(state.host, HostProcess::Up { .. }) {
            return None;
        }
        let mut shared = state.shared;
        for slot in layout::given(0) as usize..layout::SLOTS {
            shared.slots[slot] = 0;
        }
        Some(Step {
            process: Process::Crash,
            is_voluntary: true,
            progress: None,
            state: State {
                shared,
                host: HostProcess::Down,
                past: Past { crashed: true, ..state.past },
                ..state.clone()
            },
            violation: None,
        })
    }

    /// Between two polls of its roles the host must know of every buffer that it holds.
    fn checked(&self, mut step: Step) -> Step {
        let HostProcess::Up { drain, keeper } = &step.state.host else { return step };
        if step.violation.is_some() || !drain.log.is_empty() || !keeper.log.is_empty() {
            return step;
        }
        let slots = &step.state.shared.slots;
        for buffer in 0..self.directory.buffers() {
            if step.state.shared.owners[buffer as usize] != Owner::Host {
                continue;
            }
            let in_pipe = |first: layout::Slot| {
                let first = first as usize;
                slots[first + 1..=first + usize::from(slots[first])].contains(&(buffer as u8 + 1))
            };
            let buffer = BufferId(buffer);
            let is_known = keeper.state.spare.iter().any(|spare| spare.contains(&buffer))
                || drain.state.unsettled.contains(&buffer)
                || matches!(drain.state.judged, Some((_, Drained::Buffer(full))) if full.buffer == buffer)
                || usize::from(step.state.past.copying) == buffer.0 as usize + 1
                || in_pipe(layout::COLLECT)
                || in_pipe(layout::RETURNED);
            if !is_known {
                step.violation = Some(format!("lost buffer: nobody knows of buffer {}", buffer.0));
            }
        }
        step
    }
}

impl Scan {
    fn views(&self) -> ScanViews<'_, ModelMemory> {
        ScanViews { queues: &self.queues, held: &self.held, rings: &self.rings, gates: &self.gates }
    }
}

fn attach_lane<S: Subsystem>(memory: &ModelMemory, lane: usize) -> Lane<ModelMemory, S> {
    let gates = Gates::attach(memory, REGION, layout::GATES, Some(layout::EXTENSION)).expect("mapped");
    let ring = ReadyRing::attach(memory, REGION, layout::lane_offsets(lane), layout::READY_ENTRIES);
    Lane::new(gates, ring.expect("mapped"), None, layout::LATE_CYCLES)
}

fn pool_setup(pool: usize) -> PoolSetup {
    PoolSetup {
        region: REGION,
        offsets: layout::pool_offsets(pool),
        free_slots: layout::FREE_SLOTS,
        instance: Instance(pool as u32),
    }
}

/// The words that the first pool has with our own hosts. Of these only the stash decides anything.
fn status_words(memory: &ModelMemory) -> CountWords<ModelWord> {
    let word = || Own::new(memory.word(layout::status(2)).expect("mapped"));
    let count = || OwnCount::at(memory, layout::status(2)).expect("mapped");
    CountWords {
        total_low: None,
        total_high: word(),
        overflow_high: word(),
        by_cause: [(); DROP_CAUSES].map(|()| count()),
        free_low_water: word(),
        stash: LongOwn::at(memory, layout::status(0)).expect("mapped"),
        stash_sequence: word(),
    }
}

/// Counters for reports decide nothing; as part of the state they would make it infinite.
pub(super) fn forget_accounts(state: PoolState) -> PoolState {
    PoolState { buffer: state.buffer, count: state.count, ..PoolState::default() }
}

pub(super) fn forget_accounts_of_lane(state: LaneState) -> LaneState {
    LaneState { latch: state.latch, ..LaneState::default() }
}
