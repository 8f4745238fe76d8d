//! Rules about how long a lane waits. The explored worlds know no durations, so these are single runs of the shipped lane, on
//! memory of its own and with a clock that moves by one cycle per look.

use sluice_core::gate::Gate;
use sluice_core::mem::Relax;
use sluice_core::mem::testing::{BlockMemory, Poke, block};
use sluice_core::producer::tiny::{self, Record, Surroundings};
use sluice_core::producer::{Lane, Pool, Progress, Subsystem, Switch, SwitchEnd};

use super::explore::{Report, Violation};

/// Longest wait of a switch.
const LIMIT_CYCLES: u64 = 100;
/// Entries of the ready ring, and slots of the free queue.
const SLOTS: u32 = 2;

/// Something that the host does at the end of a cycle.
type Deed = (u64, fn(&dyn Fn(usize, u32)));

struct Run<S: Subsystem> {
    lane: Lane<BlockMemory, S>,
    pool: Pool<BlockMemory, Record, S>,
    memory: BlockMemory,
    env: Surroundings<fn(u32)>,
    looks: usize,
}

impl<S: Subsystem> Run<S> {
    /// A lane with a full buffer and a ready ring without room.
    fn new() -> Self {
        let memory = block(tiny::BASE, tiny::BYTES);
        let queue = tiny::pool(0);
        memory.poke_address(tiny::at(queue.free_slot(0, SLOTS)), tiny::buffer(0));
        memory.poke(tiny::at(queue.free_tail), 1);
        let mut run = Self {
            lane: tiny::attach_lane(&memory, 0, SLOTS, LIMIT_CYCLES).expect("a lane"),
            pool: tiny::attach_pool(&memory, 0, SLOTS).expect("a pool"),
            memory,
            env: Surroundings::new(|_| ()),
            looks: 0,
        };
        let _ = run.switch(&[]);
        run.fill();
        run.memory.poke(tiny::at(tiny::ring(0).tail), 1);
        run
    }

    fn fill(&mut self) {
        while self.pool.state().count < tiny::RECORDS {
            let _ = self.pool.try_append(&[0; 4]);
        }
    }

    /// Switches while the host does its deeds; returns the cycles that it took.
    fn switch(&mut self, deeds: &[Deed]) -> (u64, SwitchEnd) {
        let begin_cycles = self.env.now_cycles.get();
        let mut switch: Switch = self.lane.begin_switch();
        loop {
            self.looks += 1;
            let cycles = self.env.now_cycles.get() - begin_cycles;
            match self.lane.poll_switch(&mut self.pool, &mut switch, &self.env) {
                Progress::Done(end) => return (cycles, end),
                Progress::Moved => {}
                Progress::Waiting(Gate::Ready | Gate::Free) => self.env.relax(0),
            }
            let at = self.env.now_cycles.get() - begin_cycles;
            let memory = &self.memory;
            let due = deeds.iter().filter(|(when, _)| *when == at && at != cycles);
            due.for_each(|(_, deed)| deed(&|offset, value| memory.poke(tiny::at(offset), value)));
        }
    }

    fn report(self, check: &'static str, violation: Option<String>) -> Report {
        let violation =
            violation.map(|what| Violation { check, what, trace: Vec::new(), state: String::new() });
        Report { states: self.looks, steps: self.looks, violation }
    }
}

/// The ring has room after most of the deadline, and no buffer ever comes: the whole switch takes one deadline.
pub(super) fn one_deadline<S: Subsystem>() -> Report {
    let mut run = Run::<S>::new();
    let (cycles, _) = run.switch(&[(LIMIT_CYCLES - 1, |poke| poke(tiny::ring(0).head, 1))]);
    let late = (cycles > LIMIT_CYCLES).then(|| format!("a switch took {cycles} cycles of {LIMIT_CYCLES}"));
    run.report("deadline", late)
}

/// Nobody serves: the first switch waits, the others do not.
pub(super) fn wait_once<S: Subsystem>() -> Report {
    let mut run = Run::<S>::new();
    let mut cycles = 0;
    for _ in 0..3 {
        cycles += run.switch(&[]).0;
        run.fill();
    }
    let again = (cycles > LIMIT_CYCLES).then(|| format!("three switches waited {cycles} cycles for nobody"));
    run.report("patience", again)
}
