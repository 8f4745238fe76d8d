//! Records that are made up, a batch at a time.

use core::ops::Range;

use sluice_core::exec::{CoreIndex, Workload, WorkloadKinds};
use sluice_core::mmio::{Engine, TpbId};

/// Where a kind of record stands: whose turn it is, and how many rounds there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Turn {
    core: usize,
    rounds: u32,
}

/// A record to make up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MadeUp {
    /// In which core's pool, where cores have one.
    pub(crate) core: CoreIndex,
    /// Its number among those of the pool, from 1, wrapping.
    pub(crate) number: u32,
    /// When it began.
    pub(crate) begin_cycles: u64,
    /// When it ended.
    pub(crate) end_cycles: u64,
}

/// Records of one kind; each is handed out once.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    /// Their kind.
    pub(crate) kind: WorkloadKinds,
    /// What the host wants of records.
    pub(crate) wanted: &'a Workload,
    left: u64,
    /// Those that take turns; none where the kind has one pool per lane.
    cores: &'a [CoreIndex],
    turn: &'a mut Turn,
    at_cycles: u64,
    step_cycles: u64,
}

impl<'a> Batch<'a> {
    /// So many `records` of `kind`, spread over `cycles`, that go on from `turn`.
    pub(crate) fn new(
        wanted: &'a Workload,
        kind: WorkloadKinds,
        records: u64,
        cores: &'a [CoreIndex],
        turn: &'a mut Turn,
        cycles: Range<u64>,
    ) -> Self {
        let step_cycles = cycles.end.saturating_sub(cycles.start) / records.max(1);
        Self { kind, wanted, left: records, cores, turn, at_cycles: cycles.start, step_cycles }
    }
}

impl Iterator for Batch<'_> {
    type Item = MadeUp;

    #[inline]
    fn next(&mut self) -> Option<MadeUp> {
        self.left = self.left.checked_sub(1)?;
        let core = self.cores.get(self.turn.core).copied();
        let number = self.turn.rounds.wrapping_add(1);
        self.turn.core += 1;
        if self.turn.core >= self.cores.len() {
            self.turn.core = 0;
            self.turn.rounds = number;
        }
        let begin_cycles = self.at_cycles;
        self.at_cycles += self.step_cycles;
        let core = core.unwrap_or(CoreIndex::of(TpbId::FIRST, Engine::Pe));
        Some(MadeUp { core, number, begin_cycles, end_cycles: self.at_cycles })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_take_turns_and_each_counts_for_itself() {
        let (cores, mut turn): (std::vec::Vec<_>, _) = (CoreIndex::all(1).take(3).collect(), Turn::default());
        let mut made = std::vec::Vec::new();
        for records in [4, 0, 3] {
            made.extend(Batch::new(
                &Workload::NONE,
                WorkloadKinds::PMU,
                records,
                &cores,
                &mut turn,
                100..140,
            ));
        }
        let numbers = made.iter().map(|made| (made.core.get(), made.number));
        assert!(numbers.eq([(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2), (0, 3)]));
        let times: std::vec::Vec<_> =
            made.iter().take(4).map(|made| made.begin_cycles..made.end_cycles).collect();
        assert_eq!(times, [100..110, 110..120, 120..130, 130..140]);
    }

    #[test]
    fn a_pool_that_no_core_owns_counts_alone() {
        let mut turn = Turn::default();
        let batch = Batch::new(&Workload::NONE, WorkloadKinds::SCHED_PHASE, 3, &[], &mut turn, 5..5);
        assert!(batch.map(|made| made.number).eq([1, 2, 3]));
    }
}
