//! What the host wants recorded, for a lane that follows while it records.
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `level`, `sample_every`, window | host → lanes | relaxed, before `control_seq` | what to record |
//! | `control_seq` | host → lanes | release → acquire | the words above |
//! | `control_seen` | lane → host | release → acquire | the lane records by them; all lanes have: they may change again |
//!
//! A lane looks once per round of its loop, which costs one load while nothing changes.

use core::mem::offset_of;

use crate::layout::extension::{LaneStatus, Service, WindowUnit};
use crate::mem::{DevAddr, Fault, Memory, Own, Peer};

/// From one number to another, which is not one of them any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first.
    pub from: u64,
    /// The first behind them.
    pub to: u64,
}

impl Span {
    /// Whether `number` is one of them.
    pub const fn has(self, number: u64) -> bool {
        self.from <= number && number < self.to
    }
}

/// The part of a run that is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordWindow {
    /// All of it.
    Whole,
    /// Executions of each TPB, by their ordinal.
    Executions(Span),
    /// Ticks of the architecture's counter.
    Cycles(Span),
}

impl RecordWindow {
    /// What the words say.
    pub fn of_words(unit: WindowUnit, span: impl FnOnce() -> Span) -> Self {
        match unit {
            WindowUnit::EXECUTIONS => Self::Executions(span()),
            WindowUnit::CYCLES => Self::Cycles(span()),
            // A unit of a later version cannot be followed; it hides nothing.
            _ => Self::Whole,
        }
    }

    /// As the words say it.
    pub const fn words(self) -> (WindowUnit, Span) {
        match self {
            Self::Whole => (WindowUnit::NONE, Span { from: 0, to: 0 }),
            Self::Executions(span) => (WindowUnit::EXECUTIONS, span),
            Self::Cycles(span) => (WindowUnit::CYCLES, span),
        }
    }
}

/// What is to be recorded. A sample is made of whole executions, so that what is recorded of one fits together, whichever
/// subsystem it is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    /// How much, in the subsystem's own levels; 0 = nothing.
    pub level: u32,
    /// Every how many executions one is recorded, at least 1; the first of a window of executions is.
    pub sample_every: u32,
    /// Where.
    pub window: RecordWindow,
}

impl Control {
    /// All that there is at `level`.
    pub const fn at_level(level: u32) -> Self {
        Self { level, sample_every: 1, window: RecordWindow::Whole }
    }

    /// Whether something of the run is passed over.
    pub const fn selects(&self) -> bool {
        self.sample_every > 1 || !matches!(self.window, RecordWindow::Whole)
    }

    /// Whether what belongs to that execution of a TPB, and happens now, is recorded.
    pub fn picks(&self, execution: u32, now_cycles: impl FnOnce() -> u64) -> bool {
        let (is_inside, first) = match self.window {
            RecordWindow::Whole => (true, 0),
            RecordWindow::Executions(span) => (span.has(execution.into()), span.from as u32),
            RecordWindow::Cycles(span) => (span.has(now_cycles()), 0),
        };
        is_inside && execution.wrapping_sub(first).checked_rem(self.sample_every) == Some(0)
    }
}

/// A lane's side of a subsystem's control words.
pub struct ControlWords<M: Memory> {
    sequence: Peer<M::Word>,
    level: Peer<M::Word>,
    sample_every: Peer<M::Word>,
    unit: Peer<M::Word>,
    start: [Peer<M::Word>; 2],
    stop: [Peer<M::Word>; 2],
    seen: Own<M::Word>,
}

impl<M: Memory> ControlWords<M> {
    /// The words of the subsystem's [`Service`] at `service` and of the lane's [`LaneStatus`] at `lane`.
    ///
    /// # Errors
    /// [`Fault`] when they lie outside device memory.
    pub fn attach(memory: &M, service: DevAddr, lane: DevAddr) -> Result<Self, Fault> {
        let peer = |offset: usize| memory.word(service.offset(offset as u64)).map(Peer::new);
        let (start, stop) = (offset_of!(Service, window_start), offset_of!(Service, window_stop));
        Ok(Self {
            sequence: peer(offset_of!(Service, control_seq))?,
            level: peer(offset_of!(Service, level))?,
            sample_every: peer(offset_of!(Service, sample_every))?,
            unit: peer(offset_of!(Service, window_unit))?,
            start: [peer(start)?, peer(start + 4)?],
            stop: [peer(stop)?, peer(stop + 4)?],
            seen: Own::new(memory.word(lane.offset(offset_of!(LaneStatus, control_seen) as u64))?),
        })
    }

    /// What the host wants from now on, if that has changed. The host is told that the lane records by it: apply it before
    /// anything else is recorded.
    #[inline]
    pub fn poll(&self) -> Option<Control> {
        let sequence = self.sequence.observe();
        (sequence != self.seen.get()).then(|| self.read(sequence))
    }

    #[cold]
    fn read(&self, sequence: u32) -> Control {
        let long = |[low, high]: &[Peer<M::Word>; 2]| DevAddr::join(low.observe(), high.observe()).0;
        let span = || Span { from: long(&self.start), to: long(&self.stop) };
        let control = Control {
            level: self.level.observe(),
            sample_every: self.sample_every.observe().max(1),
            window: RecordWindow::of_words(WindowUnit(self.unit.observe()), span),
        };
        self.seen.publish(sequence);
        control
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::testing::{Poke, block};

    const SERVICE: DevAddr = DevAddr(0x1_0000_0000);
    const LANE: DevAddr = DevAddr(0x1_0000_0100);

    #[test]
    fn a_change_is_read_once_and_seen_by_the_host() {
        let memory = block(SERVICE, 0x140);
        let control = ControlWords::attach(&memory, SERVICE, LANE).unwrap();
        let set = |offset: usize, value| memory.poke(SERVICE.offset(offset as u64), value);
        let seen = || memory.peek(LANE.offset(offset_of!(LaneStatus, control_seen) as u64));
        set(offset_of!(Service, level), 3);
        assert_eq!(control.poll(), None, "the sequence publishes the rest");
        set(offset_of!(Service, control_seq), 1);
        assert_eq!(seen(), 0);
        assert_eq!(control.poll(), Some(Control { level: 3, sample_every: 1, window: RecordWindow::Whole }));
        assert_eq!((control.poll(), seen()), (None, 1));
        set(offset_of!(Service, sample_every), 10);
        for (index, value) in [5, 1, 6, 2].into_iter().enumerate() {
            set(offset_of!(Service, window_start) + index * 4, value);
        }
        let span = Span { from: 0x1_0000_0005, to: 0x2_0000_0006 };
        for (unit, window) in [
            (WindowUnit::EXECUTIONS, RecordWindow::Executions(span)),
            (WindowUnit::CYCLES, RecordWindow::Cycles(span)),
            (WindowUnit(9), RecordWindow::Whole),
        ] {
            set(offset_of!(Service, window_unit), unit.0);
            set(offset_of!(Service, control_seq), unit.0 + 1);
            assert_eq!(control.poll(), Some(Control { level: 3, sample_every: 10, window }));
        }
        assert_eq!(seen(), 10);
    }

    #[test]
    fn samples_are_whole_executions_of_a_window() {
        let picked = |sample_every, window| {
            let control = Control { level: 1, sample_every, window };
            // Every execution takes 10 cycles.
            (0..12u32).filter(|&n| control.picks(n, || u64::from(n) * 10)).collect::<std::vec::Vec<_>>()
        };
        let span = |from, to| Span { from, to };
        assert_eq!(picked(1, RecordWindow::Whole).len(), 12);
        assert_eq!(picked(5, RecordWindow::Whole), [0, 5, 10]);
        assert_eq!(picked(1, RecordWindow::Executions(span(3, 6))), [3, 4, 5]);
        assert_eq!(picked(4, RecordWindow::Executions(span(3, 12))), [3, 7, 11]);
        assert_eq!(picked(1, RecordWindow::Executions(span(6, 3))), []);
        assert_eq!(picked(1, RecordWindow::Executions(span(10, u64::MAX))), [10, 11]);
        assert_eq!(picked(2, RecordWindow::Cycles(span(15, 65))), [2, 4, 6]);
        let control = Control { sample_every: 0, ..Control::at_level(1) };
        assert!(!control.picks(0, || 0), "no such sample");
        assert!(!Control::at_level(1).selects());
        assert!(Control { sample_every: 2, ..Control::at_level(1) }.selects());
    }
}
