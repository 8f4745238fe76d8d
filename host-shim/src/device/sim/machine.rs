//! The machine that the simulated firmware runs on: one thread per processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sluice_aicpu_fw::{Place, Platform};
use sluice_core::exec::LaneIndex;
use sluice_core::exec::vitals::StackUse;
use sluice_core::gate::Gate;
use sluice_core::layout::ArchId;
use sluice_core::mem::Clock;

use super::SimMemory;
use super::parker::Parker;
use crate::device::progress::Progress;

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// What all threads of a simulated device share.
#[derive(Debug)]
pub(super) struct Machine {
    start: Instant,
    /// Nanoseconds of a cycle; a whole number on both architectures.
    cycle_ns: u64,
    closing: AtomicBool,
    parkers: Box<[Parker]>,
    pub(super) progress: Progress,
}

impl Machine {
    /// A machine of `processors` processors with the counter of `arch`.
    pub(super) fn new(arch: ArchId, processors: u32) -> Self {
        Self {
            start: Instant::now(),
            cycle_ns: SECOND_NS / arch.facts().clock_hz,
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
        if self.is_closing() {
            // Time has passed for everyone who waits for it to pass.
            return u64::MAX;
        }
        let elapsed = self.start.elapsed();
        (elapsed.as_secs() * SECOND_NS + u64::from(elapsed.subsec_nanos())) / self.cycle_ns
    }

    fn frequency_hz(&self) -> u64 {
        SECOND_NS / self.cycle_ns
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

    fn wait(&self, bound_cycles: u64, has_news: impl Fn() -> bool) {
        let bound = Duration::from_nanos(bound_cycles.saturating_mul(self.machine.cycle_ns));
        if !self.machine.is_closing()
            && let Some(parker) = self.machine.parkers.get(self.id as usize)
        {
            parker.wait(bound, has_news);
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

    fn stack(&self) -> Option<StackUse> {
        // A thread's stack is the system's: it grows as it is touched, and has a guard.
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_runs_at_the_rate_of_the_architecture() {
        for arch in ArchId::ALL {
            let machine = Machine::new(arch, 1);
            assert_eq!(machine.frequency_hz(), arch.facts().clock_hz);
            let (before, first) = (machine.start.elapsed(), machine.now_cycles());
            let after = machine.start.elapsed();
            let cycles = |time: Duration| time.as_secs_f64() * arch.facts().clock_hz as f64;
            assert!((cycles(before) - 1.0..=cycles(after)).contains(&(first as f64)));
            machine.close();
            assert_eq!(machine.now_cycles(), u64::MAX);
        }
    }
}
