//! Whether every record that lanes made up came, once and in order: they number the records of each pool.
//!
//! | record | where its number stands |
//! |---|---|
//! | task, of a lane or of its core | dispatch token |
//! | phase of a lane | iteration of the loop |
//! | submit | submit number |
//! | counters, dependencies, argument | lower half of the task's identity |
//! | scope | source line |
//!
//! A chain of dependencies is one record with one number.
//!
//! Memory: a few words per pool, whatever the number of records. Numbers have 32 bits and count on from 1 beyond that.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_core::layout::dep_gen::RecordFlags;
use sluice_core::layout::swimlane::{
    AicoreTaskRecord, AicpuOrchPhaseRecord, AicpuSchedPhaseRecord, AicpuTaskRecord,
};
use sluice_core::layout::{PoolKind, SubsystemId, args_dump, dep_gen, pmu, scope_stats};

use crate::capture::Pool;
use crate::report::Sequences;

/// The numbers of every pool. Buffers of one pool have to come in order; of several they may come at once.
#[derive(Debug, Default)]
pub struct SequenceCheck {
    pools: Mutex<BTreeMap<Pool, Course>>,
}

/// How far one pool has come.
#[derive(Clone, Copy, Debug, Default)]
struct Course {
    /// Numbers that have come or were left out.
    passed: u64,
    /// Slots that belong to the record before them.
    links: u64,
    found: Sequences,
}

impl Course {
    fn meet(&mut self, number: u32) {
        self.found.records += 1;
        let next = (self.passed as u32).wrapping_add(1);
        // More than half of all numbers ahead is behind.
        match number.wrapping_sub(next) {
            ahead if ahead <= u32::MAX / 2 => {
                self.found.missing += u64::from(ahead);
                self.passed += u64::from(ahead) + 1;
            }
            _ => self.found.repeated += 1,
        }
    }
}

/// Where the number stands in records of `pool`, and how long they are; `None` for kinds that are not numbered.
fn place_of(pool: Pool) -> Option<(usize, usize)> {
    macro_rules! place {
        ($record:ty, $field:ident) => {
            (offset_of!($record, $field), size_of::<$record>())
        };
    }
    Some(match (pool.subsystem.id()?, pool.kind) {
        (SubsystemId::Swimlane, PoolKind::AICPU_TASK) => place!(AicpuTaskRecord, reg_task_id),
        (SubsystemId::Swimlane, PoolKind::AICORE_TASK) => place!(AicoreTaskRecord, reg_task_id),
        (SubsystemId::Swimlane, PoolKind::SCHED_PHASE) => place!(AicpuSchedPhaseRecord, loop_iter),
        (SubsystemId::Swimlane, PoolKind::ORCH_PHASE) => place!(AicpuOrchPhaseRecord, submit_idx),
        // The same on either architecture.
        (SubsystemId::Pmu, _) => place!(pmu::a5::Record, task_id),
        (SubsystemId::DepGen, _) => place!(dep_gen::Record, task_id),
        (SubsystemId::ArgsDump, _) => place!(args_dump::Record, task_id),
        (SubsystemId::ScopeStats, _) => place!(scope_stats::Record, site_line),
        _ => return None,
    })
}

/// Whether a record is no more than a part of the one before it.
fn is_link(pool: Pool, record: &[u8]) -> bool {
    if pool.subsystem.id() != Some(SubsystemId::DepGen) {
        return false;
    }
    let flags = record[offset_of!(dep_gen::Record, flags)..].first_chunk();
    flags.is_some_and(|flags| u32::from_le_bytes(*flags) & RecordFlags::IS_OVERFLOW.bits() != 0)
}

impl SequenceCheck {
    fn pools(&self) -> MutexGuard<'_, BTreeMap<Pool, Course>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the records of one buffer.
    pub fn buffer(&self, pool: Pool, records: &[u8]) {
        let Some((offset, bytes)) = place_of(pool) else { return };
        let mut course = self.pools().get(&pool).copied().unwrap_or_default();
        for record in records.chunks_exact(bytes) {
            if is_link(pool, record) {
                course.links += 1;
                continue;
            }
            if let Some(number) = record[offset..].first_chunk() {
                course.meet(u32::from_le_bytes(*number));
            }
        }
        self.pools().insert(pool, course);
    }

    /// What was found of `pool`, of which `produced` records were made: those that never came are missing too.
    pub fn of(&self, pool: Pool, produced: u64) -> Sequences {
        if place_of(pool).is_none() {
            return Sequences::default();
        }
        let Course { passed, links, found } = self.pools().get(&pool).copied().unwrap_or_default();
        Sequences { missing: found.missing + produced.saturating_sub(passed + links), ..found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Subsystem;
    use crate::capture::chains::tests::slots;
    use zerocopy::{FromZeros, IntoBytes};

    const POOL: Pool = Pool { subsystem: Subsystem::SWIMLANE, kind: PoolKind::AICPU_TASK, instance: 3 };

    fn tasks(numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
        let task = |number| {
            let task = AicpuTaskRecord { reg_task_id: number, ..FromZeros::new_zeroed() };
            task.as_bytes().to_vec()
        };
        numbers.into_iter().flat_map(task).collect()
    }

    fn found(buffers: &[&[u32]], produced: u64) -> (u64, u64, u64) {
        let check = SequenceCheck::default();
        for numbers in buffers {
            check.buffer(POOL, &tasks(numbers.iter().copied()));
        }
        let Sequences { records, missing, repeated } = check.of(POOL, produced);
        (records, missing, repeated)
    }

    #[test]
    fn every_number_once_is_right_and_anything_else_is_counted() {
        assert_eq!(found(&[&[1, 2], &[], &[3]], 3), (3, 0, 0));
        assert_eq!(found(&[&[1, 2], &[5]], 5), (3, 2, 0), "left out in between");
        assert_eq!(found(&[&[1, 2]], 5), (2, 3, 0), "at the end");
        assert_eq!(found(&[&[2, 3]], 3), (2, 1, 0), "at the beginning");
        assert_eq!(found(&[&[1, 2, 2, 3]], 3), (4, 0, 1), "twice");
        assert_eq!(found(&[&[2], &[1]], 2), (2, 1, 1), "out of order");
        assert_eq!(found(&[], 2), (0, 2, 0), "none");
    }

    #[test]
    fn numbers_go_on_beyond_their_width() {
        let mut course = Course { passed: u64::from(u32::MAX) - 1, ..Course::default() };
        [u32::MAX, 0, 1, 3].into_iter().for_each(|number| course.meet(number));
        assert_eq!((course.passed, course.found.missing), ((1 << 32) + 3, 1));
        assert_eq!((course.found.records, course.found.repeated), (4, 0));
    }

    #[test]
    fn pools_count_for_themselves_and_what_has_no_numbers_is_left_alone() {
        let check = SequenceCheck::default();
        check.buffer(POOL, &tasks([1, 2]));
        let other = Pool { instance: 4, ..POOL };
        check.buffer(other, &tasks([1]));
        let unknown = Pool { kind: PoolKind(77), ..POOL };
        check.buffer(unknown, &tasks([7]));
        assert_eq!(check.of(POOL, 2), Sequences { records: 2, ..Sequences::default() });
        assert_eq!(check.of(other, 1), Sequences { records: 1, ..Sequences::default() });
        assert_eq!(check.of(unknown, 1), Sequences::default());
    }

    #[test]
    fn a_chain_is_one_record_with_one_number() {
        let check = SequenceCheck::default();
        let pool = Pool { subsystem: SubsystemId::DepGen.into(), kind: PoolKind::SOLE, instance: 0 };
        let chain = |number: u64, deps: usize| slots(number, &vec![0; deps], &[]);
        check.buffer(pool, &[chain(1, 0), chain(2, 700), chain(3, 65)].concat());
        let three = Sequences { records: 3, ..Sequences::default() };
        assert_eq!(check.of(pool, 6), three, "three tasks in six slots");
        assert_eq!(check.of(pool, 7), Sequences { missing: 1, ..three });
    }
}
