//! PMU records: a slice per task beside the task itself, with what its core counted as arguments.
//!
//! A PMU record has no time of its own; its task has one in the swimlane, under the same token. Buffers of the two come in
//! any order, so whichever is met first waits for the other:
//!
//! ```text
//!   swimlane task ──► times by token ──┐
//!                                      ├── same core, same token ──► slice
//!   pmu record ─────► counts by token ─┘
//! ```
//!
//! At most [`MOST_WAITING`] of each wait per core. Counts that have to give way, or that wait when the capture ends, have no
//! place in a trace.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use sluice_core::layout::ArchId;
use sluice_core::layout::pmu::{CoreType, a2a3, a5};
use sluice_core::layout::pmu_events::{Event, event_group};

use super::super::trace::{Argument, Group, TraceWriter};
use super::Records;
use crate::capture::{Items, Pool};

/// A buffer of tasks and one of counts, several times over.
pub(super) const MOST_WAITING: usize = 8192;

/// What the counters of slots without an event are called.
const NAMELESS: [&str; 10] = [
    "counter_0",
    "counter_1",
    "counter_2",
    "counter_3",
    "counter_4",
    "counter_5",
    "counter_6",
    "counter_7",
    "counter_8",
    "counter_9",
];

/// What a core counted of a task.
#[derive(Clone, Copy, Debug)]
struct Counts {
    kernel: u32,
    core_type: CoreType,
    total_cycles: u64,
    counters: [u32; NAMELESS.len()],
}

/// Device cycles of a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) dispatch: u64,
    pub(super) finish: u64,
}

/// Tasks and counts that wait for each other.
pub(super) struct Pairing {
    arch: ArchId,
    /// Whether cores counted at all; if not, no task waits.
    is_on: bool,
    events: &'static [Event],
    cores: HashMap<u32, Waiting>,
    unplaced: u64,
}

#[derive(Default)]
struct Waiting {
    times: BTreeMap<u32, Times>,
    counts: BTreeMap<u32, Counts>,
}

impl Pairing {
    /// A pairing for cores of `arch` that count the events of this group, if they count any.
    pub(super) fn new(arch: ArchId, event_group_number: u32) -> Self {
        let events = event_group(arch, event_group_number).map_or(&[][..], |group| group.events);
        Self { arch, is_on: event_group_number != 0, events, cores: HashMap::new(), unplaced: 0 }
    }

    /// Counts without a task so far.
    pub(super) fn unplaced(&self) -> u64 {
        self.unplaced + self.cores.values().map(|waiting| waiting.counts.len() as u64).sum::<u64>()
    }

    /// A task was met: its counts, if they were before.
    fn task(&mut self, core: u32, token: u32, times: Times) -> Option<Counts> {
        if !self.is_on {
            return None;
        }
        let Waiting { times: waiting, counts } = self.cores.entry(core).or_default();
        let found = counts.remove(&token);
        if found.is_none() {
            waiting.insert(token, times);
            if waiting.len() > MOST_WAITING {
                waiting.pop_first();
            }
        }
        found
    }

    /// Counts were met: the times of their task, if it was before.
    fn counts(&mut self, core: u32, token: u32, counts: Counts) -> Option<Times> {
        let Waiting { times, counts: waiting } = self.cores.entry(core).or_default();
        let found = times.remove(&token);
        if found.is_none() {
            self.unplaced += u64::from(waiting.insert(token, counts).is_some());
            if waiting.len() > MOST_WAITING {
                waiting.pop_first();
                self.unplaced += 1;
            }
        }
        found
    }
}

impl Records<'_> {
    /// Shows the records of a buffer whose tasks have been met; the others wait.
    pub(super) fn pmu<W: Write>(
        &mut self,
        trace: &mut TraceWriter<W>,
        pool: Pool,
        records: &[u8],
    ) -> io::Result<bool> {
        macro_rules! of {
            ($arch:ident) => {
                for record in Items::<$arch::Record>::new(records) {
                    let mut counters = [0; NAMELESS.len()];
                    counters
                        .iter_mut()
                        .zip(record.pmu_counters)
                        .for_each(|(counter, count)| *counter = count);
                    let counts = Counts {
                        kernel: record.func_id,
                        core_type: record.core_type,
                        total_cycles: record.pmu_total_cycles,
                        counters,
                    };
                    let token = record.task_id as u32;
                    if let Some(times) = self.pairing.counts(pool.instance, token, counts) {
                        self.counted(trace, pool.instance, token, times, &counts)?;
                    }
                }
            };
        }
        match self.pairing.arch {
            ArchId::A2a3 => of!(a2a3),
            ArchId::A5 => of!(a5),
        }
        Ok(true)
    }

    /// A task was met: shows its counts if they have been.
    pub(super) fn task_met<W: Write>(
        &mut self,
        trace: &mut TraceWriter<W>,
        core: u32,
        token: u32,
        times: Times,
    ) -> io::Result<()> {
        match self.pairing.task(core, token, times) {
            Some(counts) => self.counted(trace, core, token, times, &counts),
            None => Ok(()),
        }
    }

    fn counted<W: Write>(
        &self,
        trace: &mut TraceWriter<W>,
        core: u32,
        token: u32,
        times: Times,
        counts: &Counts,
    ) -> io::Result<()> {
        let named = |(slot, &count): (usize, &u32)| -> Option<Argument<'_>> {
            match self.pairing.events.iter().find(|event| event.slot == slot) {
                Some(event) => Some((event.name, count.into())),
                None => (count != 0).then(|| (NAMELESS[slot], count.into())),
            }
        };
        let work = self.work(core, token);
        let own = [
            ("token", token.into()),
            ("kernel", counts.kernel.into()),
            ("core_type", counts.core_type.name().unwrap_or("unknown").into()),
            ("total_cycles", counts.total_cycles.into()),
        ];
        let arguments = work.arguments(own).chain(counts.counters.iter().enumerate().filter_map(named));
        self.slice(trace, Group::Counters { core }, work.name(), times.dispatch, times.finish, arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times { dispatch: 1, finish: 2 };
    const COUNTS: Counts =
        Counts { kernel: 0, core_type: CoreType::AIC, total_cycles: 0, counters: [0; NAMELESS.len()] };

    #[test]
    fn whichever_comes_first_waits_for_the_other() {
        let mut pairing = Pairing::new(ArchId::A5, 2);
        assert!(pairing.task(3, 1, TIMES).is_none());
        assert!(pairing.counts(3, 2, COUNTS).is_none());
        assert!(pairing.counts(4, 1, COUNTS).is_none(), "another core");
        assert_eq!(pairing.unplaced(), 2);
        assert!(pairing.counts(3, 1, COUNTS).is_some());
        assert!(pairing.task(3, 2, TIMES).is_some());
        assert_eq!(pairing.unplaced(), 1);
        assert!(pairing.task(3, 2, TIMES).is_none(), "shown once");
    }

    #[test]
    fn what_waits_is_bounded_and_what_gives_way_is_counted() {
        let mut pairing = Pairing::new(ArchId::A2a3, 2);
        let tokens = 1..=MOST_WAITING as u32 + 5;
        assert!(tokens.clone().all(|token| pairing.task(0, token, TIMES).is_none()));
        assert_eq!(pairing.cores[&0].times.len(), MOST_WAITING);
        assert!(tokens.clone().all(|token| pairing.counts(1, token, COUNTS).is_none()));
        assert_eq!(pairing.cores[&1].counts.len(), MOST_WAITING);
        assert_eq!(pairing.unplaced(), u64::from(*tokens.end()));
        let mut off = Pairing::new(ArchId::A2a3, 0);
        assert!(off.task(0, 1, TIMES).is_none());
        assert!(off.cores.is_empty(), "no task waits for counts that never come");
    }
}
