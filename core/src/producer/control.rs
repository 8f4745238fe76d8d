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
use core::ops::Range;

use crate::layout::extension::{LaneStatus, Service, WindowUnit};
use crate::mem::{DevAddr, Fault, Memory, Own, Peer};

/// The part of a run that is recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordWindow {
    /// All of it.
    Whole,
    /// Executions of each TPB, by their ordinal.
    Executions(Range<u64>),
    /// Ticks of the architecture's counter.
    Cycles(Range<u64>),
}

/// What is to be recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Control {
    /// How much, in the subsystem's own levels; 0 = nothing.
    pub level: u32,
    /// Every how many candidates one is recorded, at least 1.
    pub sample_every: u32,
    /// Where.
    pub window: RecordWindow,
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
        let range = || long(&self.start)..long(&self.stop);
        let control = Control {
            level: self.level.observe(),
            sample_every: self.sample_every.observe().max(1),
            window: match WindowUnit(self.unit.observe()) {
                WindowUnit::EXECUTIONS => RecordWindow::Executions(range()),
                WindowUnit::CYCLES => RecordWindow::Cycles(range()),
                // A unit of a later version cannot be followed; it hides nothing.
                _ => RecordWindow::Whole,
            },
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
        let range = 0x1_0000_0005..0x2_0000_0006;
        for (unit, window) in [
            (WindowUnit::EXECUTIONS, RecordWindow::Executions(range.clone())),
            (WindowUnit::CYCLES, RecordWindow::Cycles(range)),
            (WindowUnit(9), RecordWindow::Whole),
        ] {
            set(offset_of!(Service, window_unit), unit.0);
            set(offset_of!(Service, control_seq), unit.0 + 1);
            assert_eq!(control.poll(), Some(Control { level: 3, sample_every: 10, window }));
        }
        assert_eq!(seen(), 10);
    }
}
