//! A profiling session: from planned memory to an account that adds up.
//!
//! ```text
//!  start                                    stop
//!   plan memory, fill free queues            ask the lanes to flush
//!   service thread ── collector thread       keep serving until each has, or its deadline passed
//!   hand the lanes their regions             drain what is left, collect it
//!                                            open both gates, say that nobody serves, add up
//! ```
//!
//! Two threads serve the whole subsystem: the service (drain and keeper in turn) and the collector,
//! which copies each buffer out, hands its records to the [`Sink`], and only then lets the buffer go back.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_core::exec::{HostBoot, Recorders};
use sluice_core::layout::extension::{Answer, AnswerCode, Heartbeat, LaneActivity, LaneStatus, PoolStatus};
use sluice_core::layout::{self, EnableMask, SUBSYSTEMS, SubsystemId, extension};
use sluice_core::mem::{DevAddr, Fault, LongPeer, Memory, Own, Peer, Word};
use sluice_core::producer::{DropCause, Rules};

use super::account::{Account, Lost, PoolAccount};
use super::attach::{Attach, ScanViews};
use super::collector::{Collected, Collector};
use super::drain::Drain;
use super::keeper::{Keeper, KeeperViews};
use super::ledger::{CounterWord, GivenSide, TakenSide};
use super::pipe::WaitPipe;
use super::plan::{Plan, PlanError, SwimlaneConfig};
use super::service::{Orders, Service, ServiceCounts};
use super::sink::Sink;
use super::{FreeQueueFeed, GateControl, RingDrain, RingWatch};
use crate::device::Device;
use crate::device::heap::Heap;

/// How much longer than the device's own deadline the host waits for a flush.
const FLUSH_GRACE: Duration = Duration::from_secs(1);

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Its memory could not be had.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Device memory could not be reached.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The device does not understand the extension block.
    #[error("device refused the extension block: {}", .0.name().unwrap_or("unknown answer"))]
    Refused(AnswerCode),
    /// A thread could not be started.
    #[error("cannot start the {role} thread of the profiling session")]
    Thread {
        /// What it is for.
        role: &'static str,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// A thread of the session panicked; what it held is lost.
    #[error("the {0} thread of the profiling session panicked")]
    Panicked(&'static str),
}

/// A running session. Dropped without [`stop`](Session::stop), it ends its threads and detaches from the device; what is
/// not collected by then is lost.
pub struct Session<D: Device> {
    device: Arc<D>,
    plan: Arc<Plan>,
    /// Whether every lane has, so that none writes the session's memory any more.
    flushed: bool,
    config: SwimlaneConfig,
    boot: HostBoot<D::Mem>,
    orders: Arc<Orders>,
    started: Instant,
    service: Option<JoinHandle<Service<D>>>,
    collector: Option<JoinHandle<Collected>>,
}

impl<D: Device> Session<D> {
    /// Plans the memory, starts serving, and has the lanes attach.
    ///
    /// # Errors
    /// [`SessionError`]; nothing stays behind.
    pub fn start(
        device: &Arc<D>,
        heap: &Heap,
        config: SwimlaneConfig,
        sink: Box<dyn Sink>,
    ) -> Result<Self, SessionError> {
        let memory = device.memory();
        let plan = Plan::swimlane(&config, memory, heap)?;
        let boot = HostBoot::attach(memory, device.map().boot)?;
        let orders = Arc::new(Orders::default());
        let started = Instant::now();
        let buffers = plan.directory.buffers() as usize;
        let collect = Arc::new(WaitPipe::with_capacity(buffers + 64));
        let returned = Arc::new(WaitPipe::with_capacity(buffers));
        let directory = Arc::new(plan.directory.clone());
        let service =
            build_service(device, &plan, &config, &directory, &orders, &collect, &returned, started)?;
        let collector =
            Collector::new(memory.clone(), plan.region, Arc::clone(&directory), collect, returned, sink);
        let mut session = Self {
            device: Arc::clone(device),
            plan: Arc::new(plan),
            // None has attached yet.
            flushed: true,
            config,
            boot,
            orders: Arc::clone(&orders),
            started,
            service: None,
            collector: None,
        };
        session.collector = Some(spawn("collect", move || collector.run(&orders))?);
        session.service = Some(spawn("serve", move || service.run())?);
        session.flushed = false;
        session.boot.attach_recorders(&session.recorders())?;
        device.wake_lanes();
        Ok(session)
    }

    /// What the lanes are told to attach to.
    pub fn recorders(&self) -> Recorders {
        let mut regions = [DevAddr::NULL; SUBSYSTEMS];
        regions[SubsystemId::Swimlane.index()] = self.plan.region_block.at();
        Recorders { enabled: EnableMask::SWIMLANE, extension: self.plan.extension_block.at(), regions }
    }

    /// Bytes of device memory the session holds.
    pub fn device_bytes(&self) -> u64 {
        self.plan.bytes()
    }

    /// Stops draining for `duration`, as a host that is busy elsewhere would; lanes must wait it out, and the freeze that stops
    /// them meanwhile is recorded.
    pub fn pause(&self, duration: Duration) {
        let until = self.started.elapsed() + duration;
        self.orders.pause_until_ns.store(until.as_nanos() as u64, Ordering::Release);
    }

    /// Asks the lanes to flush, serves them until they have, and adds up. Blocks until every lane has flushed or its deadline
    /// and a second more have passed. The memory of a session whose lanes have not flushed is not used again: they may still
    /// write it.
    ///
    /// # Errors
    /// [`SessionError`] when the device's memory cannot be reached any more or a thread panicked.
    pub fn stop(mut self) -> Result<Account, SessionError> {
        let limit = Instant::now() + self.deadline() + FLUSH_GRACE;
        // A lane that was told to stop before it ever attached would say nothing.
        let attached =
            self.wait_lanes(limit, offset_of!(LaneStatus, state), |state| state != LaneActivity::IDLE.0);
        // A device that refuses has attached nothing.
        self.flushed = matches!(attached, Err(SessionError::Refused(_)));
        attached?;
        self.boot.stop_recorders()?;
        self.device.wake_lanes();
        let lanes_missing =
            self.wait_lanes(limit, offset_of!(LaneStatus, flushed), |flushed| flushed == 1)?;
        self.flushed = lanes_missing == 0;
        let (counts, collected) = self.end_threads()?;
        self.account(lanes_missing, counts, &collected)
    }

    fn end_threads(&mut self) -> Result<(ServiceCounts, Collected), SessionError> {
        self.orders.stop.store(true, Ordering::Release);
        if self.service.is_none() {
            // Nobody else tells the collector.
            self.orders.collector_stop.store(true, Ordering::Release);
        }
        let service = self.service.take().map(JoinHandle::join);
        let collected = self.collector.take().map(JoinHandle::join);
        let mut service = match service {
            Some(Ok(service)) => service,
            _ => return Err(SessionError::Panicked("serving")),
        };
        service.detach()?;
        match collected {
            Some(Ok(collected)) => Ok((service.counts, collected)),
            _ => Err(SessionError::Panicked("collecting")),
        }
    }

    fn deadline(&self) -> Duration {
        let facts = self.config.shape.arch().facts();
        let cycles = self.config.deadline_cycles.unwrap_or(facts.default_deadline_cycles());
        Duration::from_secs_f64(cycles as f64 / self.device.frequency_hz() as f64)
    }

    /// Waits until the word at `offset` of what each lane says of itself is `as_wanted`. Returns of how many it is not by
    /// `limit`. A device that refused the extension block has attached no recorder, so nothing is waited for.
    fn wait_lanes(
        &self,
        limit: Instant,
        offset: usize,
        as_wanted: impl Fn(u32) -> bool,
    ) -> Result<u32, SessionError> {
        let words = (0..self.config.shape.lanes()).map(|lane| self.lane_word(lane, offset).map(Peer::new));
        let words = words.collect::<Result<Vec<_>, Fault>>()?;
        loop {
            let seen = self.device.progress();
            let answer = AnswerCode(self.answer()?);
            if answer != AnswerCode::NONE && answer != AnswerCode::ACCEPTED {
                return Err(SessionError::Refused(answer));
            }
            let missing = words.iter().filter(|word| !as_wanted(word.observe())).count() as u32;
            if missing == 0 || Instant::now() >= limit {
                return Ok(missing);
            }
            self.device.wait_progress(seen, Duration::from_millis(1));
        }
    }

    fn answer(&self) -> Result<u32, Fault> {
        let at = extension::ANSWER + offset_of!(Answer, answer);
        Peer::new(self.device.memory().word(self.plan.extension_block.at().offset(at as u64))?).try_observe()
    }

    fn lane_word(&self, lane: u32, offset: usize) -> Result<<D::Mem as Memory>::Word, Fault> {
        lane_word(self.device.memory(), &self.plan, lane, offset)
    }

    fn account(
        &self,
        lanes_missing: u32,
        counts: ServiceCounts,
        collected: &Collected,
    ) -> Result<Account, SessionError> {
        let memory = self.device.memory();
        let read = |at: DevAddr| -> Result<u32, Fault> { memory.word(at)?.try_load() };
        let mut pools = Vec::new();
        for (pool, number) in self.plan.directory.pools().iter().zip(0..) {
            let Some(offsets) = self.plan.region.pool(pool.kind, pool.instance) else { continue };
            let line = self
                .plan
                .region
                .pool_number(pool.kind, pool.instance)
                .and_then(|number| self.plan.extension.pool(SubsystemId::Swimlane, number))
                .map(|offset| self.plan.extension_block.at().offset(offset as u64));
            let word = |offset: usize| line.map_or(Ok(0), |line| read(line.offset(offset as u64)));
            let low = match offsets.total_records {
                Some(offset) => read(self.plan.region_block.at().offset(offset as u64))?,
                None => word(offset_of!(PoolStatus, total_records_lo))?,
            };
            let produced = DevAddr::join(low, word(offset_of!(PoolStatus, total_records_hi))?).0;
            let cause = |cause: DropCause| -> Result<u64, Fault> {
                let at = offset_of!(PoolStatus, drops) + cause.index() * 8;
                Ok(DevAddr::join(word(at)?, word(at + 4)?).0)
            };
            let tally = collected.pools[number];
            let mut lost = Lost {
                host_gone: cause(DropCause::HostGone)?,
                no_buffer: cause(DropCause::NoBuffer)?,
                corrupt: cause(DropCause::Corrupt)?,
                core_busy: cause(DropCause::CoreBusy)?,
                copy_failed: tally.copy_failed,
                host_crash: 0,
            };
            // What the device says it made and nobody can show was damaged on the way.
            lost.corrupt += produced.saturating_sub(tally.collected + lost.total());
            pools.push(PoolAccount {
                kind: pool.kind,
                instance: pool.instance,
                produced,
                collected: tally.collected,
                lost,
                switches: tally.buffers,
                free_low_water: word(offset_of!(PoolStatus, free_low_water))?,
            });
        }
        let mut ready_high_water = 0;
        for lane in 0..self.config.shape.lanes() {
            let word = self.lane_word(lane, offset_of!(LaneStatus, ready_high_water))?;
            ready_high_water = ready_high_water.max(word.try_load()?);
        }
        Ok(Account {
            pools,
            buffers: self.plan.directory.buffers(),
            ready_high_water,
            rq: collected.rq,
            fq: collected.fq,
            served: counts.served,
            corrupt_words: counts.corrupt_words,
            lanes_missing,
        })
    }
}

impl<D: Device> Drop for Session<D> {
    fn drop(&mut self) {
        self.end();
        if !self.flushed {
            tracing::warn!("lanes may still record: the memory of their session is not used again");
            std::mem::forget(Arc::clone(&self.plan));
        }
    }
}

impl<D: Device> Session<D> {
    /// Ends the threads that are left.
    fn end(&mut self) {
        if self.service.is_none() && self.collector.is_none() {
            return;
        }
        let stopped = self.boot.stop_recorders();
        if let Err(error) = stopped.map_err(SessionError::from).and_then(|()| self.end_threads().map(drop)) {
            tracing::warn!("profiling session dropped: {error}");
        }
    }
}

fn lane_word<M: Memory>(memory: &M, plan: &Plan, lane: u32, offset: usize) -> Result<M::Word, Fault> {
    let (at, bytes) = (plan.extension_block.at(), size_of::<LaneStatus>() as u64);
    memory.word(plan.lane_word(lane, offset).ok_or(Fault::OutOfRange { at, bytes })?)
}

fn spawn<T: Send + 'static>(
    role: &'static str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, SessionError> {
    let thread = std::thread::Builder::new().name(format!("sluice-{role}")).spawn(run);
    thread.map_err(|error| SessionError::Thread { role, error })
}

#[expect(clippy::too_many_arguments, reason = "builds the one value that needs them all")]
fn build_service<D: Device>(
    device: &Arc<D>,
    plan: &Plan,
    config: &SwimlaneConfig,
    directory: &Arc<super::ledger::Directory>,
    orders: &Arc<Orders>,
    collect: &Arc<WaitPipe<super::service::ToCollect>>,
    returned: &Arc<WaitPipe<super::ledger::BufferId>>,
    started: Instant,
) -> Result<Service<D>, Fault> {
    let memory = device.memory();
    let region_at = plan.region_block.at();
    let region = &plan.region;
    let lanes: Vec<_> =
        (0..config.shape.lanes()).filter_map(|lane| region.lane(layout::Lane(lane))).collect();
    let pools: Vec<_> =
        directory.pools().iter().filter_map(|pool| region.pool(pool.kind, pool.instance)).collect();
    let feed = |offsets| FreeQueueFeed::attach(memory, region_at, offsets, region.free_slots(), u32::MAX);
    let queues = pools.iter().map(feed).collect::<Result<Vec<_>, _>>()?;
    let rings = || {
        let ring = |offsets: &layout::LaneOffsets| {
            RingDrain::attach(memory, region_at, *offsets, region.ready_entries())
        };
        lanes.iter().map(ring).collect::<Result<Vec<_>, _>>()
    };
    let currents = || {
        let current = |offsets: &layout::PoolOffsets| {
            LongPeer::at(memory, region_at.offset(offsets.current_ptr as u64))
        };
        pools.iter().map(current).collect::<Result<Vec<_>, _>>()
    };
    let gates = GateControl::attach(memory, region_at, region.gates(), Some(plan.release_epoch()))?;
    let (scan_currents, scan_rings) = (currents()?, rings()?);
    let views = ScanViews { queues: &queues, currents: &scan_currents, rings: &scan_rings, gates: &gates };
    let found = Attach::new(Arc::clone(directory), Rules::ALL).run(&views)?;
    let (given, taken) = (CounterWord::table(directory.buffers()), CounterWord::table(directory.buffers()));
    let taken_side = TakenSide::new(given.clone(), taken.clone(), u32::MAX);
    let given_side = GivenSide::new(given, taken, u32::MAX);
    for &buffer in &found.device {
        given_side.give(buffer);
    }
    let watch = |offsets: &layout::LaneOffsets| {
        RingWatch::attach(memory, region_at, *offsets, region.ready_entries())
    };
    let keeper_views =
        KeeperViews { queues, rings: lanes.iter().map(watch).collect::<Result<_, _>>()?, gates };
    let heartbeat_at = extension::HEARTBEAT + offset_of!(Heartbeat, heartbeat_host);
    let state = |lane| lane_word(memory, plan, lane, offset_of!(LaneStatus, state)).map(Peer::new);
    let mut service = Service {
        device: Arc::clone(device),
        drain: Drain::new(Arc::clone(directory), rings()?, currents()?, taken_side, found.unsettled),
        keeper: Keeper::new(
            Arc::clone(directory),
            keeper_views,
            given_side,
            config.scope,
            Rules::ALL,
            found.host,
            found.shut,
        ),
        collect: Arc::clone(collect),
        returned: Arc::clone(returned),
        heartbeat: Own::new(memory.word(plan.extension_block.at().offset(heartbeat_at as u64))?),
        detached: Own::new(memory.word(plan.host_detached())?),
        lane_states: (0..config.shape.lanes()).map(state).collect::<Result<_, _>>()?,
        orders: Arc::clone(orders),
        started,
        counts: ServiceCounts::default(),
        open: None,
        corrupt_noted: 0,
    };
    // The lanes find their queues filled, so that the first record of each waits for nobody.
    service.keeper.round(&**returned, || true, |_| {})?;
    Ok(service)
}
