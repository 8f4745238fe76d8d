//! The service thread: drain and keeper in turn, hot while traffic flows, asleep when none does.
//!
//! Hot means polling with nothing but a yield in between, for one millisecond after the last buffer or signal; asleep means
//! waiting for the device's progress count, at most a millisecond at a time, so that a device without a doorbell is still
//! noticed within that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice_core::gate::Gate;
use sluice_core::layout::extension::LaneActivity;
use sluice_core::mem::{Fault, Memory, Own, Peer};

use super::drain::{Drain, Drained};
use super::keeper::{Keeper, Kept, Shut};
use super::ledger::{BufferId, CounterWord};
use super::pipe::WaitPipe;
use super::sink::Freeze;
use super::{Full, Pipe};
use crate::device::Device;

/// How long the service stays hot after the last traffic.
const HOT: Duration = Duration::from_millis(1);
/// Longest sleep between two looks.
const SLEEP: Duration = Duration::from_millis(1);

/// How long a stopping service waits for a collector that returns nothing.
const LINGER: Duration = Duration::from_secs(10);

/// What the collector is given.
#[derive(Clone, Copy, Debug)]
pub(super) enum ToCollect {
    Buffer(Full),
    Freeze(Freeze),
}

/// The pipe to the collector, for a role that knows only buffers.
pub(super) struct CollectPipe(pub(super) Arc<WaitPipe<ToCollect>>);

impl Pipe<Full> for CollectPipe {
    fn push(&self, item: Full) {
        self.0.push(ToCollect::Buffer(item));
    }

    fn pop(&self) -> Option<Full> {
        None
    }
}

/// How the session tells its service what to do.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// Ends the thread once everything that is published has been drained.
    pub(super) stop: AtomicBool,
    /// Ends the collector once nothing is left in its pipe; set by the service when it ends.
    pub(super) collector_stop: AtomicBool,
    /// The collector is no more: nothing that is drained can be written any longer.
    pub(super) collector_gone: AtomicBool,
    /// Host time until which nothing is drained, ns since the session's start; for tests of a stalled host.
    pub(super) pause_until_ns: AtomicU64,
}

/// What the service counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServiceCounts {
    pub(super) drained: u64,
    pub(super) served: u64,
    pub(super) corrupt_words: u64,
    pub(super) faults: u64,
}

/// The service's possessions.
pub(super) struct Service<D: Device> {
    pub(super) device: Arc<D>,
    pub(super) drain: Drain<D::Mem, CounterWord>,
    pub(super) keeper: Keeper<D::Mem, CounterWord>,
    pub(super) collect: Arc<WaitPipe<ToCollect>>,
    pub(super) returned: Arc<WaitPipe<BufferId>>,
    pub(super) heartbeat: Own<<D::Mem as Memory>::Word>,
    pub(super) detached: Own<<D::Mem as Memory>::Word>,
    pub(super) lane_states: Vec<Peer<<D::Mem as Memory>::Word>>,
    pub(super) orders: Arc<Orders>,
    pub(super) started: Instant,
    pub(super) counts: ServiceCounts,
    pub(super) open: Option<OpenFreeze>,
    pub(super) corrupt_noted: u32,
}

/// A freeze under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFreeze {
    gates: Shut,
    opened_ns: u64,
    opened_cycles: u64,
    drained_before: u64,
}

impl<D: Device> Service<D> {
    /// Serves until told to stop; then until nothing is left.
    pub(super) fn run(mut self) -> Self {
        let mut last_traffic = Instant::now();
        let mut stop_by = None;
        loop {
            let seen = self.device.progress();
            let is_stopping = self.orders.stop.load(Ordering::Acquire);
            if self.orders.collector_gone.load(Ordering::Acquire) {
                // Lanes must not wait for a host that looks alive and takes nothing.
                if let Err(fault) = self.detach() {
                    self.note_fault(fault);
                }
                return self;
            }
            let moved = self.turn(!is_stopping && self.is_paused());
            if moved {
                last_traffic = Instant::now();
            } else if is_stopping
                && (self.is_done() || *stop_by.get_or_insert(Instant::now() + LINGER) < Instant::now())
            {
                self.orders.collector_stop.store(true, Ordering::Release);
                return self;
            } else if last_traffic.elapsed() < HOT {
                std::thread::yield_now();
            } else {
                self.device.wait_progress(seen, SLEEP);
            }
        }
    }

    fn is_paused(&self) -> bool {
        self.started.elapsed() < Duration::from_nanos(self.orders.pause_until_ns.load(Ordering::Acquire))
    }

    /// One turn over all rings, unless the drain is paused, and all pools. Whether anything moved.
    fn turn(&mut self, is_paused: bool) -> bool {
        let drained = !is_paused && self.drain_all();
        let kept = self.keep();
        self.heartbeat.publish(self.heartbeat.get().wrapping_add(1));
        let moved = drained || kept;
        if moved && self.lanes_waiting() > 0 {
            self.device.wake_lanes();
        }
        moved
    }

    /// Takes what waits, in rotation, until a whole rotation finds nothing; at most as many buffers as there are, so that
    /// the keeper is never starved.
    fn drain_all(&mut self) -> bool {
        let mut moved = false;
        let mut idle = 0;
        let collect = CollectPipe(Arc::clone(&self.collect));
        for _ in 0..self.drain.rings() * 8 {
            match self.drain.poll(&collect, &*self.returned) {
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

    fn keep(&mut self) -> bool {
        let returned = Arc::clone(&self.returned);
        let mut was_event = false;
        loop {
            match self.keeper.poll(&*returned, || true) {
                Ok(Kept::Step | Kept::Refilled(_)) => {}
                Ok(Kept::RoundOver { moved }) => return moved > 0 || was_event,
                Ok(Kept::Opened(gate)) => {
                    self.note_opened(gate);
                    was_event = true;
                }
                Ok(Kept::Served(_)) => {
                    self.counts.served += 1;
                    was_event = true;
                }
                Ok(Kept::Released) => {
                    self.note_released();
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

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn note_opened(&mut self, gate: Gate) {
        let now = (self.now_ns(), self.device.now_cycles());
        let drained = self.counts.drained;
        let open = self.open.get_or_insert(OpenFreeze {
            gates: Shut::default(),
            opened_ns: now.0,
            opened_cycles: now.1,
            drained_before: drained,
        });
        match gate {
            Gate::Ready => open.gates.ready = true,
            Gate::Free => open.gates.free = true,
        }
    }

    fn note_released(&mut self) {
        let Some(open) = self.open.take() else { return };
        let freeze = Freeze {
            gates: open.gates,
            opened_ns: open.opened_ns,
            released_ns: self.now_ns(),
            opened_cycles: open.opened_cycles,
            released_cycles: self.device.now_cycles(),
            lanes_parked: self.lanes_waiting(),
            buffers_drained: self.counts.drained - open.drained_before,
        };
        self.collect.push(ToCollect::Freeze(freeze));
    }

    fn lanes_waiting(&self) -> u32 {
        let waits = |state: u32| state == LaneActivity::READY_GATE.0 || state == LaneActivity::FREE_GATE.0;
        self.lane_states.iter().filter(|state| waits(state.observe())).count() as u32
    }

    /// A sick device repeats itself: the first line says what, the count says how often.
    fn note_corrupt(&mut self, what: &str) {
        self.counts.corrupt_words += 1;
        if self.corrupt_noted < 2 {
            self.corrupt_noted += 1;
            tracing::warn!("device wrote nonsense: {what}");
        }
    }

    fn note_fault(&mut self, fault: Fault) {
        self.counts.faults += 1;
        if self.counts.faults == 1 {
            tracing::warn!("profiling transport: {fault}; tried again every turn");
        }
    }

    /// Whether nothing is published and nothing is with the collector. A freeze that is still open then ends here.
    fn is_done(&mut self) -> bool {
        if self.open.is_some() && self.keeper.open_all().is_ok() {
            self.note_released();
        }
        self.collect.is_empty() && self.returned.is_empty()
    }

    /// Ends every wait for this host: opens both gates and says that nobody serves.
    pub(super) fn detach(&mut self) -> Result<(), Fault> {
        self.detached.try_publish(1)?;
        self.keeper.open_all()?;
        self.device.wake_lanes();
        Ok(())
    }
}
