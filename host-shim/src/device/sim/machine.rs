//! The machine that the simulated firmware runs on: one thread per processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sluice_aicpu_fw::{Place, Platform};
use sluice_core::exec::LaneIndex;
use sluice_core::gate::Gate;
use sluice_core::layout::ArchId;
use sluice_core::mem::Clock;

use super::memory::SimMemory;
use super::parker::Parker;
use crate::device::progress::Progress;

/// Nanoseconds of a second.
const SECOND_NS: u128 = 1_000_000_000;

/// What all threads of a simulated device share.
#[derive(Debug)]
pub(super) struct Machine {
    start: Instant,
    frequency_hz: u64,
    closing: AtomicBool,
    parkers: Box<[Parker]>,
    pub(super) progress: Progress,
}

impl Machine {
    /// A machine of `processors` processors with the counter of `arch`.
    pub(super) fn new(arch: ArchId, processors: u32) -> Self {
        Self {
            start: Instant::now(),
            frequency_hz: arch.facts().clock_hz,
            closing: AtomicBool::new(false),
            parkers: (0..processors).map(|_| Parker::default()).collect(),
            progress: Progress::default(),
        }
    }

    /// How many processors it has.
    pub(super) fn processors(&self) -> u32 {
        self.parkers.len() as u32
    }

    /// Wakes a processor.
    pub(super) fn wake(&self, processor: u32) {
        if let Some(parker) = self.parkers.get(processor as usize) {
            parker.wake();
        }
    }

    /// Ends the machine: its threads stop at the end of their round, and every deadline of a lane that waits has passed.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.parkers.iter().for_each(Parker::wake);
    }

    /// Whether the machine is being ended.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Processors that sleep.
    pub(super) fn asleep(&self) -> usize {
        self.parkers.iter().filter(|parker| parker.is_asleep()).count()
    }

    /// Times that processors went to sleep.
    pub(super) fn sleeps(&self) -> u64 {
        self.parkers.iter().map(Parker::sleeps).sum()
    }
}

impl Clock for Machine {
    fn now_cycles(&self) -> u64 {
        // When the machine ends, time has passed for everyone who waits for it to pass.
        const END: u64 = 1 << 62;
        let cycles = self.start.elapsed().as_nanos() * u128::from(self.frequency_hz) / SECOND_NS;
        if self.is_closing() { END + cycles as u64 } else { cycles as u64 }
    }

    fn frequency_hz(&self) -> u64 {
        self.frequency_hz
    }
}

/// One processor of the machine.
#[derive(Clone, Debug)]
pub(super) struct Processor {
    pub(super) machine: Arc<Machine>,
    pub(super) memory: SimMemory,
    pub(super) place: Place,
    pub(super) id: u32,
}

impl Clock for Processor {
    fn now_cycles(&self) -> u64 {
        self.machine.now_cycles()
    }

    fn frequency_hz(&self) -> u64 {
        self.machine.frequency_hz()
    }
}

impl Platform for Processor {
    type Memory = SimMemory;

    fn memory(&self) -> &SimMemory {
        &self.memory
    }

    fn place(&self) -> Place {
        self.place
    }

    fn core_id(&self) -> u32 {
        self.id
    }

    fn processors(&self) -> u32 {
        self.machine.processors()
    }

    fn wait(&self, bound_cycles: u64) {
        let bound_ns = u128::from(bound_cycles) * SECOND_NS / u128::from(self.machine.frequency_hz);
        let bound = Duration::from_nanos(u64::try_from(bound_ns).unwrap_or(u64::MAX));
        if !self.machine.is_closing()
            && let Some(parker) = self.machine.parkers.get(self.id as usize)
        {
            parker.wait(bound);
        }
    }

    fn wake(&self, processor: u32) {
        self.machine.wake(processor);
    }

    fn wake_host(&self) {
        self.machine.progress.raise();
    }

    fn note_parked(&self, lane: LaneIndex, gate: Gate) {
        tracing::trace!(%lane, gate = gate.name(), "lane parked");
    }
}
