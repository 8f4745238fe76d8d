//! What the host itself did and when, on the device's time base, so that a trace shows both sides on one axis.

use std::sync::{Mutex, PoisonError};

use sluice_core::layout::host_phase::HostPhaseKind;
use sluice_core::mem::Clock;

/// A step in the life of a model or of one execution.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Placing a program in device memory.
    Load,
    /// Joining tensors to a program.
    Build,
    /// Putting an execution into the exec rings.
    Stage,
    /// Ringing the doorbells.
    Kickoff,
    /// Waiting for notifications.
    Wait,
}

impl Phase {
    /// The name that traces show.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Build => "build",
            Self::Stage => "stage",
            Self::Kickoff => "kickoff",
            Self::Wait => "wait",
        }
    }

    /// The host phase of the wire contract that comes nearest.
    pub const fn kind(self) -> HostPhaseKind {
        match self {
            Self::Load => HostPhaseKind::GRAPH_UPLOAD,
            Self::Build => HostPhaseKind::RELOCATE,
            Self::Stage => HostPhaseKind::SUBMIT_TASK,
            Self::Kickoff => HostPhaseKind::GRAPH_SUBMIT,
            Self::Wait => HostPhaseKind::HOST_VIEW_CLOSE,
        }
    }
}

/// One step, with its time in nanoseconds since the device's counter was 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// What was done.
    pub phase: Phase,
    /// For which execution; a load or a build belongs to none yet.
    pub ticket: Option<u64>,
    /// Begin.
    pub start_ns: u64,
    /// End, not before the begin.
    pub end_ns: u64,
}

/// The steps of a run, the first ones up to a limit.
#[derive(Debug)]
pub struct PhaseLog {
    capacity: usize,
    frequency_hz: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    steps: Vec<Step>,
    omitted: u64,
}

/// A span as it is kept: whoever takes it has the time to divide.
#[derive(Debug)]
struct Step {
    phase: Phase,
    ticket: Option<u64>,
    start_cycles: u64,
    end_cycles: u64,
}

impl PhaseLog {
    /// Spans that it has room for from the start, if it is to keep so many: recording does not allocate before there are more.
    pub const ROOM: usize = 1 << 16;

    /// An empty log that keeps at most `capacity` spans and counts the rest. One of capacity 0 is off: it does neither, nor does
    /// it look at the clock, which counts at `frequency_hz`.
    pub fn new(capacity: usize, frequency_hz: u64) -> Self {
        let kept = Kept { steps: Vec::with_capacity(capacity.min(Self::ROOM)), omitted: 0 };
        Self { capacity, frequency_hz, kept: Mutex::new(kept) }
    }

    /// Takes the spans kept since the last call, in order of their ends, and the number of those that were not kept.
    pub fn take(&self) -> (Vec<Span>, u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // The room stays for those to come.
        (kept.steps.drain(..).map(|step| self.span(&step)).collect(), std::mem::take(&mut kept.omitted))
    }

    fn span(&self, step: &Step) -> Span {
        let ns = |cycles: u64| {
            let ns = u128::from(cycles) * 1_000_000_000 / u128::from(self.frequency_hz.max(1));
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        let &Step { phase, ticket, start_cycles, end_cycles } = step;
        Span { phase, ticket, start_ns: ns(start_cycles), end_ns: ns(end_cycles) }
    }

    /// Starts a step.
    pub(super) fn start<'a, C: Clock>(&'a self, clock: &'a C, phase: Phase) -> Started<'a, C> {
        let start_cycles = if self.is_off() { 0 } else { clock.now_cycles() };
        Started { log: self, clock, phase, start_cycles }
    }

    fn is_off(&self) -> bool {
        self.capacity == 0
    }

    fn push(&self, step: Step) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.steps.len() < self.capacity {
            kept.steps.push(step);
        } else {
            kept.omitted += 1;
        }
    }
}

/// A step that has begun. One that is dropped instead of ended is not recorded.
#[must_use]
#[derive(Debug)]
pub(super) struct Started<'a, C> {
    log: &'a PhaseLog,
    clock: &'a C,
    phase: Phase,
    start_cycles: u64,
}

impl<C: Clock> Started<'_, C> {
    /// Ends the step and records it.
    pub(super) fn end(self, ticket: Option<u64>) {
        let Self { log, clock, phase, start_cycles } = self;
        if !log.is_off() {
            let end_cycles = clock.now_cycles().max(start_cycles);
            log.push(Step { phase, ticket, start_cycles, end_cycles });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    struct Ticks(AtomicU64);

    impl Clock for Ticks {
        fn now_cycles(&self) -> u64 {
            self.0.fetch_add(50, Ordering::Relaxed)
        }

        fn frequency_hz(&self) -> u64 {
            50_000_000
        }
    }

    #[test]
    fn spans_are_nanoseconds_of_the_device() {
        let (log, clock) = (PhaseLog::new(2, 50_000_000), Ticks(AtomicU64::new(1 << 59)));
        log.start(&clock, Phase::Build).end(None);
        log.start(&clock, Phase::Wait).end(Some(7));
        let _dropped = log.start(&clock, Phase::Load);
        log.start(&clock, Phase::Wait).end(Some(8));
        let (spans, omitted) = log.take();
        let base = (1u64 << 59) * 20;
        assert_eq!(
            spans,
            [
                Span { phase: Phase::Build, ticket: None, start_ns: base, end_ns: base + 1000 },
                Span { phase: Phase::Wait, ticket: Some(7), start_ns: base + 2000, end_ns: base + 3000 },
            ]
        );
        assert_eq!((omitted, log.take()), (1, (vec![], 0)));
    }

    #[test]
    fn a_log_of_no_capacity_is_off() {
        let (log, clock) = (PhaseLog::new(0, 50_000_000), Ticks(AtomicU64::new(0)));
        log.start(&clock, Phase::Build).end(None);
        assert_eq!((log.take(), clock.0.into_inner()), ((vec![], 0), 0));
    }

    #[test]
    fn every_phase_has_its_own_kind() {
        let all = [Phase::Load, Phase::Build, Phase::Stage, Phase::Kickoff, Phase::Wait];
        for (place, phase) in all.iter().enumerate() {
            assert!(!all[..place].iter().any(|other| other.kind() == phase.kind()), "{}", phase.name());
        }
    }
}
