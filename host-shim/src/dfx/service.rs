//! The service: every subsystem's drain and keeper in turn, hot while traffic flows, asleep when none does.
//!
//! ```text
//!   service thread   turn ─ turn ─ yield ─ turn ─ … ─ asleep        unless a collector does
//!   collectors       collect ─ turn ─ collect ─ turn ─ turn ─ …     while they are awake anyway
//! ```
//!
//! A turn belongs to whoever holds the desk, and only one thread does: rings, free queues and flags have one writer at a
//! time. Collectors take a turn after each buffer, so that one they give back is with its lane at once. The service steps back
//! meanwhile, so that it does not take the processor from them; at most a tenth of a millisecond after a collector's last
//! turn it takes the next itself, whatever a sink does, so lanes are seen to.
//!
//! Hot means polling with nothing but a yield in between, for one millisecond after the last buffer or signal; asleep means
//! waiting for the device's progress count, at most a millisecond at a time, so that a device without a doorbell is still
//! noticed within that. A pause stands for a host whose consumers are busy elsewhere: until it ends nothing is drained or
//! collected. The owner of the gates goes on, so the freeze that follows says how long the lanes stood still. In a standstill it
//! does not: nothing is written that a lane could take for a sign of life.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use sluice_core::mem::{Fault, Memory, Own};

use super::server::{Server, ServerCounts};
use super::tables::HeapMirror;
use crate::device::Device;

/// How long the service stays hot after the last traffic.
const HOT: Duration = Duration::from_millis(1);
/// How long the service leaves the device to a collector that took the last turn.
const STEP_BACK: Duration = Duration::from_micros(100);
/// Longest sleep between two looks.
const SLEEP: Duration = Duration::from_millis(1);

/// How the session tells its threads what to do.
#[derive(Debug)]
pub(super) struct Orders {
    started: Instant,
    /// Ends the service once everything that is published has been drained.
    pub(super) stop: AtomicBool,
    /// Ends the collectors once nothing is left in their pipes.
    pub(super) collector_stop: AtomicBool,
    /// Ends the collectors whatever is left: nobody waits for them any more.
    pub(super) abandoned: AtomicBool,
    /// A collector is no more: what is drained can no longer be written.
    pub(super) collector_gone: AtomicBool,
    /// Host time until which nothing is drained or collected, ns since the start; for tests of a stalled host.
    pause_until_ns: AtomicU64,
    /// Host time until which the service does nothing at all, ns since the start.
    still_until_ns: AtomicU64,
}

impl Orders {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            stop: AtomicBool::default(),
            collector_stop: AtomicBool::default(),
            abandoned: AtomicBool::default(),
            collector_gone: AtomicBool::default(),
            pause_until_ns: AtomicU64::default(),
            still_until_ns: AtomicU64::default(),
        }
    }

    /// Host time since the session's start.
    pub(super) fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn after(&self, duration: Duration) -> u64 {
        self.now_ns().saturating_add(duration.as_nanos() as u64)
    }

    fn is_before(&self, until_ns: &AtomicU64) -> bool {
        !self.stop.load(Ordering::Acquire) && self.now_ns() < until_ns.load(Ordering::Acquire)
    }

    pub(super) fn pause(&self, duration: Duration) {
        self.pause_until_ns.fetch_max(self.after(duration), Ordering::Release);
    }

    pub(super) fn stand_still(&self, duration: Duration) {
        self.still_until_ns.fetch_max(self.after(duration), Ordering::Release);
        self.pause(duration);
    }

    pub(super) fn resume(&self) {
        self.pause_until_ns.store(0, Ordering::Release);
        self.still_until_ns.store(0, Ordering::Release);
    }

    /// Whether the service is to do nothing at all for now. A stop ends that.
    fn is_still(&self) -> bool {
        self.is_before(&self.still_until_ns)
    }

    /// Whether nothing is to be drained or collected for now. A stop ends every pause.
    pub(super) fn is_paused(&self) -> bool {
        self.is_before(&self.pause_until_ns)
    }
}

/// What a turn takes.
struct Desk<D: Device> {
    device: Arc<D>,
    servers: Vec<Server<D>>,
    heartbeat: Own<<D::Mem as Memory>::Word>,
    heap: HeapMirror<<D::Mem as Memory>::Word>,
    last_traffic: Instant,
}

/// A way to serve for threads that are awake anyway.
pub(super) trait Serve: Send + Sync {
    /// One turn, unless another thread is at it; drains nothing in a pause. Whether anything moved. Never blocks.
    fn try_turn(&self, is_paused: bool) -> bool;
    /// The caller takes no more turns for a while, so the service need not step back any longer.
    fn leave(&self);
}

/// The desk and who is at it.
struct Office<D: Device> {
    desk: Mutex<Desk<D>>,
    /// Turns of collectors. Only whether it changes matters.
    turns_of_collectors: AtomicU64,
    service: OnceLock<Thread>,
}

impl<D: Device> Serve for Office<D> {
    fn try_turn(&self, is_paused: bool) -> bool {
        let Ok(mut desk) = self.desk.try_lock() else { return false };
        self.turns_of_collectors.fetch_add(1, Ordering::Relaxed);
        desk.turn(is_paused)
    }

    fn leave(&self) {
        if let Some(service) = self.service.get() {
            service.unpark();
        }
    }
}

/// The service's possessions.
pub(super) struct Service<D: Device> {
    device: Arc<D>,
    office: Arc<Office<D>>,
    orders: Arc<Orders>,
    linger: Duration,
}

impl<D: Device> Service<D> {
    /// Serves all of `servers`; a stop waits up to `linger` for collectors that return nothing.
    pub(super) fn new(
        device: Arc<D>,
        servers: Vec<Server<D>>,
        heartbeat: Own<<D::Mem as Memory>::Word>,
        heap: HeapMirror<<D::Mem as Memory>::Word>,
        orders: Arc<Orders>,
        linger: Duration,
    ) -> Self {
        let last_traffic = Instant::now();
        let desk = Desk { device: Arc::clone(&device), servers, heartbeat, heap, last_traffic };
        let office = Office {
            desk: Mutex::new(desk),
            turns_of_collectors: AtomicU64::default(),
            service: OnceLock::new(),
        };
        Self { device, office: Arc::new(office), orders, linger }
    }

    /// For collectors.
    pub(super) fn desk(&self) -> Arc<dyn Serve> {
        Arc::clone(&self.office) as _
    }

    fn hold(&self) -> MutexGuard<'_, Desk<D>> {
        // Who panicked at it has ended the session's service already.
        self.office.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_hold(&self) -> Option<MutexGuard<'_, Desk<D>>> {
        match self.office.desk.try_lock() {
            Ok(desk) => Some(desk),
            Err(TryLockError::Poisoned(desk)) => Some(desk.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Serves until told to stop; then until nothing is left.
    pub(super) fn run(self) -> Self {
        // It runs once.
        let _ = self.office.service.set(thread::current());
        let mut turns_seen = 0;
        let mut stopping_since = None;
        loop {
            if self.orders.is_still() {
                thread::sleep(SLEEP);
                continue;
            }
            let seen = self.device.progress();
            if self.orders.stop.load(Ordering::Acquire) {
                stopping_since.get_or_insert_with(Instant::now);
            }
            if self.orders.collector_gone.load(Ordering::Acquire) {
                // Lanes must not wait for a host that looks alive and takes nothing.
                if let Err(fault) = self.detach() {
                    tracing::warn!("cannot detach from the device: {fault}");
                }
                return self;
            }
            let turns = self.office.turns_of_collectors.load(Ordering::Relaxed);
            if turns != turns_seen {
                turns_seen = turns;
                thread::park_timeout(STEP_BACK);
                continue;
            }
            // Another thread that is at it is as good.
            let Some(mut desk) = self.try_hold() else {
                thread::yield_now();
                continue;
            };
            if desk.turn(self.orders.is_paused()) {
                continue;
            }
            let last_traffic = desk.last_traffic;
            if let Some(since) = stopping_since
                && (desk.is_done() || since.max(last_traffic).elapsed() >= self.linger)
            {
                self.orders.collector_stop.store(true, Ordering::Release);
                drop(desk);
                return self;
            }
            drop(desk);
            if last_traffic.elapsed() < HOT {
                thread::yield_now();
            } else {
                self.device.wait_progress(seen, SLEEP);
            }
        }
    }

    /// Ends every wait for this host: says that nobody serves and opens all gates.
    pub(super) fn detach(&self) -> Result<(), Fault> {
        self.hold().detach()
    }

    /// What was counted of each subsystem, in their order.
    pub(super) fn counts(&self) -> Vec<ServerCounts> {
        self.hold().servers.iter().map(Server::counts).collect()
    }
}

impl<D: Device> Desk<D> {
    /// One turn over all subsystems, which drains nothing in a pause. Whether anything moved.
    fn turn(&mut self, is_paused: bool) -> bool {
        let (mut moved, mut wanted) = (false, false);
        for server in &mut self.servers {
            let did = server.turn(&*self.device, is_paused);
            moved |= did;
            wanted |= did && server.has_waiting_lane();
        }
        self.heap.show();
        self.heartbeat.publish(self.heartbeat.get().wrapping_add(1));
        if wanted {
            self.device.wake_lanes();
        }
        if moved {
            self.last_traffic = Instant::now();
        }
        moved
    }

    /// Whether nothing is published and nothing is with the collectors. A freeze that is still open then ends here.
    fn is_done(&mut self) -> bool {
        let busy =
            self.servers.iter_mut().filter_map(|server| (!server.is_done(&*self.device)).then_some(()));
        busy.count() == 0
    }

    /// Ends every wait for this host: says that nobody serves and opens all gates.
    fn detach(&mut self) -> Result<(), Fault> {
        let detached: Vec<_> = self.servers.iter_mut().map(Server::detach).collect();
        self.device.wake_lanes();
        detached.into_iter().collect()
    }
}
