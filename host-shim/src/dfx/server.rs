//! One subsystem as the service serves it: its drain and its keeper in turn, and what both count.

use std::mem::offset_of;
use std::sync::Arc;
use std::time::Instant;

use sluice_core::layout::extension::PoolStatus;
use sluice_core::layout::{self, LaneOffsets, PoolKind};
use sluice_core::mem::{Fault, Memory, Own};
use sluice_core::producer::Rules;

use super::arena::PayloadsUnderWay;
use super::attach::{Attach, ScanViews};
use super::config::DfxConfig;
use super::drain::{Drain, Drained};
use super::freeze::{FreezeLog, LaneWatch, Moment};
use super::keeper::{Keeper, KeeperViews, Kept};
use super::ledger::{BufferId, CounterWord, Directory, GivenSide, TakenSide};
use super::pipe::WaitPipe;
use super::plan::{Part, Plan};
use super::release::{self, ReleaseReady};
use super::service::Orders;
use super::sink::{Freeze, Wait};
use super::waits::{Logged, WaitLogs};
use super::{FreeQueueFeed, Full, GateControl, HeldWords, Pipe, RingDrain, RingWatch};
use crate::device::Device;

/// Where a lane shows the stash of a pool.
const STASH: usize = offset_of!(PoolStatus, stash_ptr);

/// What a collector is given; parts are numbered as in the plan.
#[derive(Clone, Copy, Debug)]
pub(super) enum ToCollect {
    Buffer { part: usize, full: Full, drained: Instant },
    Freeze { part: usize, freeze: Freeze },
}

/// The way from one subsystem's drain to the collectors. All buffers of a pool go to the same one, so that they keep their
/// order.
pub(super) struct Outlet {
    pub(super) part: usize,
    pub(super) directory: Arc<Directory>,
    pub(super) collectors: Arc<[WaitPipe<ToCollect>]>,
    pub(super) payloads: Arc<PayloadsUnderWay>,
    pub(super) waits: Arc<WaitPipe<Wait>>,
}

impl Pipe<Full> for Outlet {
    fn push(&self, full: Full) {
        let pool = self.directory.pool_of(full.buffer);
        self.payloads.hand(self.directory.pool(pool).instance);
        let pool = pool.0 as usize;
        let buffer = ToCollect::Buffer { part: self.part, full, drained: Instant::now() };
        self.collectors[pool % self.collectors.len()].push(buffer);
    }

    fn pop(&self) -> Option<Full> {
        None
    }
}

/// What was counted of one subsystem.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerCounts {
    pub(super) drained: u64,
    pub(super) served: u64,
    pub(super) corrupt_words: u64,
    pub(super) imbalances: u64,
    faults: u64,
}

/// One subsystem's half of the host.
pub(super) struct Server<D: Device> {
    drain: Drain<D::Mem, CounterWord>,
    keeper: Keeper<D::Mem, CounterWord>,
    ready: Box<dyn ReleaseReady + Send>,
    outlet: Outlet,
    returned: Arc<WaitPipe<BufferId>>,
    detached: Own<<D::Mem as Memory>::Word>,
    lanes: LaneWatch<D::Mem>,
    freezes: FreezeLog,
    waits: WaitLogs<D::Mem>,
    orders: Arc<Orders>,
    counts: ServerCounts,
    /// The last turn did not see everything: the transport failed.
    cut_short: bool,
}

impl<D: Device> Server<D> {
    /// Attaches to `part` of `plan`, finds out who holds which buffer, and fills the free queues, so that the first record
    /// of each lane waits for nobody.
    ///
    /// # Errors
    /// [`Fault`] when device memory cannot be reached.
    pub(super) fn attach(
        memory: &D::Mem,
        plan: &Plan,
        part: &Part,
        config: &DfxConfig,
        outlet: Outlet,
        returned: Arc<WaitPipe<BufferId>>,
        orders: Arc<Orders>,
    ) -> Result<Self, Fault> {
        let views = Views { memory, plan, part };
        let gates = plan.release_epoch(part.subsystem);
        let gates = GateControl::attach(memory, part.region_block.at(), part.region.gates(), Some(gates))?;
        let queues = views.queues()?;
        let (held, rings) = (views.held()?, views.rings()?);
        let scan = ScanViews { queues: &queues, held: &held, rings: &rings, gates: &gates };
        let found = Attach::new(Arc::clone(&part.directory), Rules::ALL).run(&scan)?;
        let buffers = part.directory.buffers();
        let (given, taken) = (CounterWord::table(buffers), CounterWord::table(buffers));
        let taken_side = TakenSide::new(given.clone(), taken.clone(), u32::MAX);
        let given_side = GivenSide::new(given, taken, u32::MAX);
        for &buffer in &found.device {
            given_side.give(buffer);
        }
        let mut keeper = Keeper::new(
            Arc::clone(&part.directory),
            KeeperViews { queues, rings: views.watches()?, gates },
            given_side,
            config.scope,
            Rules::ALL,
            found.host,
            found.shut,
        );
        let mut ready = release::of(part.subsystem, &outlet.payloads);
        keeper.round(&*returned, &mut *ready, |_| {})?;
        let directory = Arc::clone(&part.directory);
        let (subsystem, lanes) = (part.subsystem, config.shape.lanes());
        Ok(Self {
            drain: Drain::new(directory, rings, held, taken_side, found.unsettled),
            keeper,
            ready,
            waits: WaitLogs::attach(memory, plan, subsystem, lanes, Arc::clone(&outlet.waits))?,
            outlet,
            returned,
            detached: Own::new(memory.word(plan.host_detached(part.subsystem))?),
            lanes: LaneWatch::attach(memory, plan, subsystem, lanes)?,
            freezes: FreezeLog::new(subsystem),
            orders,
            counts: ServerCounts::default(),
            cut_short: false,
        })
    }

    /// What was counted so far.
    pub(super) fn counts(&self) -> ServerCounts {
        self.counts
    }

    /// One turn over all rings and all pools. Whether anything moved.
    pub(super) fn turn(&mut self, device: &D, is_paused: bool) -> bool {
        self.cut_short = false;
        self.freezes.look(&self.lanes);
        self.take_waits();
        let drained = !is_paused && self.drain_all();
        let kept = self.keep(device);
        drained || kept
    }

    /// Whether any lane stands at a gate.
    pub(super) fn has_waiting_lane(&self) -> bool {
        self.lanes.has_waiting()
    }

    /// Takes what waits, in rotation, until a whole rotation finds nothing; at most a few buffers per ring, so that the
    /// keeper is never starved.
    fn drain_all(&mut self) -> bool {
        let mut moved = false;
        let mut idle = 0;
        for _ in 0..self.drain.rings() * 8 {
            match self.drain.poll(&self.outlet, &*self.returned) {
                Ok(Drained::Nothing) => idle += 1,
                Ok(Drained::Buffer(_)) => {
                    self.counts.drained += 1;
                    moved = true;
                    idle = 0;
                }
                Ok(Drained::Recovered(_)) => moved = true,
                Ok(Drained::Refused { ring, entry, why }) => {
                    moved = true;
                    self.note_corrupt(&format!("lane {ring}: {entry:?} refused: {why:?}"));
                }
                Ok(Drained::CorruptRing { ring, head, tail }) => {
                    idle += 1;
                    self.note_corrupt(&format!("lane {ring}: ready head {head} or tail {tail} out of range"));
                }
                Err(fault) => {
                    self.note_fault(fault);
                    return moved;
                }
            }
            if idle >= self.drain.rings() {
                break;
            }
        }
        moved
    }

    /// A wait is handed on before the buffers that its lane published after it.
    fn take_waits(&mut self) {
        let mut corrupt = None;
        let taken = self.waits.take(|logged| {
            if let Logged::Corrupt { lane } = logged {
                corrupt = Some(lane);
            }
        });
        if let Err(fault) = taken {
            self.note_fault(fault);
        }
        if let Some(lane) = corrupt {
            self.note_corrupt(&format!("lane {}: log of waits out of range", lane.0));
        }
    }

    fn keep(&mut self, device: &D) -> bool {
        let mut was_event = false;
        loop {
            match self.keeper.poll(&*self.returned, &mut *self.ready) {
                Ok(Kept::Step | Kept::Refilled(_)) => {}
                Ok(Kept::RoundOver { moved }) => return moved > 0 || was_event,
                Ok(Kept::Opened(gate)) => {
                    self.freezes.open(gate, self.now(device), self.counts.drained);
                    self.freezes.look(&self.lanes);
                    was_event = true;
                }
                Ok(Kept::Served(_)) => {
                    self.counts.served += 1;
                    was_event = true;
                }
                Ok(Kept::Released) => {
                    self.note_released(device);
                    was_event = true;
                }
                Ok(Kept::CorruptHead { pool, head }) => {
                    self.note_corrupt(&format!("pool {}: free head {head} out of range", pool.0));
                }
                Err(fault) => {
                    self.note_fault(fault);
                    return was_event;
                }
            }
        }
    }

    fn now(&self, device: &D) -> Moment {
        Moment { ns: self.orders.now_ns(), cycles: device.now_cycles() }
    }

    fn note_released(&mut self, device: &D) {
        let now = self.now(device);
        for freeze in self.freezes.release(now, self.counts.drained) {
            self.outlet.collectors[0].push(ToCollect::Freeze { part: self.outlet.part, freeze });
        }
        match self.keeper.imbalance() {
            Ok(None) => {}
            Ok(Some(imbalance)) => {
                self.counts.imbalances += 1;
                if self.counts.imbalances == 1 {
                    tracing::warn!("buffers do not add up: {imbalance}");
                }
            }
            Err(fault) => self.note_fault(fault),
        }
    }

    /// A sick device repeats itself: the first lines say what, the count says how often.
    fn note_corrupt(&mut self, what: &str) {
        self.counts.corrupt_words += 1;
        if self.counts.corrupt_words <= 2 {
            tracing::warn!("device wrote nonsense: {what}");
        }
    }

    fn note_fault(&mut self, fault: Fault) {
        self.cut_short = true;
        self.counts.faults += 1;
        if self.counts.faults == 1 {
            tracing::warn!("profiling transport: {fault}; tried again every turn");
        }
    }

    /// Whether nothing is published and nothing is with the collectors, after a turn that moved nothing. A freeze that is still
    /// open then ends here.
    pub(super) fn is_done(&mut self, device: &D) -> bool {
        if self.cut_short {
            return false;
        }
        if self.freezes.is_open() && self.keeper.open_all().is_ok() {
            self.note_released(device);
        }
        self.outlet.collectors.iter().all(WaitPipe::is_empty) && self.returned.is_empty()
    }

    /// Ends every wait for this host: says that nobody serves and opens both gates. Wake the lanes afterwards.
    pub(super) fn detach(&mut self) -> Result<(), Fault> {
        self.detached.try_publish(1)?;
        self.keeper.open_all()
    }
}

/// The shared words of one subsystem, by role.
struct Views<'a, M> {
    memory: &'a M,
    plan: &'a Plan,
    part: &'a Part,
}

impl<M: Memory> Views<'_, M> {
    fn lanes<T>(&self, view: impl Fn(LaneOffsets) -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
        let region = &self.part.region;
        (0..region.shape().lanes()).filter_map(|lane| region.lane(layout::Lane(lane))).map(view).collect()
    }

    fn pools<T>(&self, view: impl Fn(&layout::PoolOffsets) -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
        let pools = self.part.directory.pools().iter();
        pools
            .filter_map(|pool| self.part.region.pool(pool.kind, pool.instance))
            .map(|pool| view(&pool))
            .collect()
    }

    fn rings(&self) -> Result<Vec<RingDrain<M>>, Fault> {
        let (region, entries) = (self.part.region_block.at(), self.part.region.ready_entries());
        self.lanes(|lane| RingDrain::attach(self.memory, region, lane, entries))
    }

    fn watches(&self) -> Result<Vec<RingWatch<M>>, Fault> {
        let (region, entries) = (self.part.region_block.at(), self.part.region.ready_entries());
        self.lanes(|lane| RingWatch::attach(self.memory, region, lane, entries))
    }

    fn queues(&self) -> Result<Vec<FreeQueueFeed<M>>, Fault> {
        let (region, slots) = (self.part.region_block.at(), self.part.region.free_slots());
        self.pools(|pool| FreeQueueFeed::attach(self.memory, region, pool, slots, u32::MAX))
    }

    /// Only pools that cores write have a stash.
    fn held(&self) -> Result<Vec<HeldWords<M>>, Fault> {
        let region = self.part.region_block.at();
        let pools = self.part.directory.pools().iter();
        let held = pools.filter_map(|pool| {
            let current = self.part.region.pool(pool.kind, pool.instance)?.current_ptr;
            let stash = (pool.kind == PoolKind::AICORE_TASK)
                .then(|| self.plan.pool_word(self.part, pool.kind, pool.instance, STASH))
                .flatten();
            Some(HeldWords::attach(self.memory, region.offset(current as u64), stash))
        });
        held.collect()
    }
}
