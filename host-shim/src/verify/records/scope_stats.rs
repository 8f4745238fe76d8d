//! ScopeStats records: a tree of scopes per execution and TPB, each scope begun and ended once.
//!
//! ```text
//!   depth 0  execution
//!   depth 1    subgraph
//!   depth 2      PE, ACT, POOL, DVE, SP     beside each other
//! ```
//!
//! The ring is the TPB, the line the execution's number among those of the TPB. What is measured has to be possible:
//! within an execution at least one task is under way, and nothing ends before it begins.

use sluice_core::layout::PoolKind;
use sluice_core::layout::scope_stats::{Record, ScopePhase};
use sluice_core::mmio::Engine;

use super::{Expectation, ExpectedRecords, Extent, Once, RecordCheck};
use crate::capture::{Items, Pool};

/// Scopes of a tree: site and depth.
const TREE: [(&str, i16); 2 + Engine::COUNT] = {
    let [pe, act, pool, dve, sp] = Engine::ALL;
    [
        ("execution", 0),
        ("subgraph", 1),
        (pe.name(), 2),
        (act.name(), 2),
        (pool.name(), 2),
        (dve.name(), 2),
        (sp.name(), 2),
    ]
};

/// Records of a tree.
const PER_TREE: u64 = 2 * TREE.len() as u64;

/// What has been met of each TPB.
pub(super) struct Ledger {
    rings: Vec<Ring>,
}

struct Ring {
    /// Begin and end of each scope of each execution.
    records: Once,
    /// How many scopes of each depth are open.
    open: [u32; 3],
}

impl Ledger {
    pub(super) fn of(run: &ExpectedRecords, extent: &Extent) -> Self {
        let records = || Once::of_executions(run.executions, PER_TREE, |execution, _| extent.has(execution));
        let ring = |_| Ring { records: records(), open: [0; 3] };
        Self { rings: (0..run.tpbs).map(ring).collect() }
    }
}

impl Ring {
    /// What is wrong with `record`, the next of this ring.
    fn meet(&mut self, record: &Record) -> Option<String> {
        let end = record.site_file_basename.iter().position(|byte| *byte == 0);
        let site = &record.site_file_basename[..end.unwrap_or(record.site_file_basename.len())];
        let Record { site_line: execution, depth, phase, .. } = *record;
        let scope = TREE.iter().position(|(name, _)| name.as_bytes() == site);
        let number = scope.zip(u64::try_from(execution).ok()).map(|(scope, execution)| {
            execution * PER_TREE + 2 * scope as u64 + u64::from(phase == ScopePhase::END)
        });
        let site = String::from_utf8_lossy(site);
        let Some(number) = number.filter(|&number| self.records.meet(number)) else {
            return Some(format!(
                "{phase} of `{site}` in execution {execution} is not expected, or here again"
            ));
        };
        let (_, want) = TREE[(number % PER_TREE) as usize / 2];
        if depth != want {
            return Some(format!("`{site}` in execution {execution} has depth {depth}, want {want}"));
        }
        let [outer @ .., _] = &self.open;
        let inside = depth == 0 || outer[depth as usize - 1] > 0;
        let level = &mut self.open[depth as usize];
        let is_possible = if phase == ScopePhase::END {
            let was_open = *level > 0;
            *level = level.saturating_sub(1);
            was_open && self.open[depth as usize + 1..].iter().all(|inner| *inner == 0)
        } else {
            *level += 1;
            inside
        };
        if !is_possible {
            return Some(format!("{phase} of `{site}` in execution {execution} stands outside its place"));
        }
        let under_way = |start: i32, end: i32| end.wrapping_sub(start);
        let tasks = under_way(record.task_start, record.task_end);
        let pairs = under_way(record.dep_pool_start, record.dep_pool_end);
        (tasks < 1 || pairs < 0 || record.heap_start > record.heap_end).then(|| {
            format!(
                "`{site}` in execution {execution} cannot be: {tasks} tasks and {pairs} pairs under way, \
                 {} bytes handed out of which {} were taken back",
                record.heap_end, record.heap_start
            )
        })
    }
}

impl Expectation for Ledger {
    fn count(&self) -> u64 {
        self.rings.iter().map(|ring| ring.records.count).sum()
    }

    fn meet(&mut self, pool: Pool, records: &[u8], check: &mut RecordCheck) {
        if (pool.kind, pool.instance) != (PoolKind::SOLE, 0) {
            return check.find(|| format!("{pool}: records of a pool that is not expected"));
        }
        for record in Items::<Record>::new(records) {
            let number = record.ring_id;
            let ring = usize::try_from(number).ok().and_then(|number| self.rings.get_mut(number));
            let wrong = match ring {
                Some(ring) => ring.meet(&record),
                None => Some(format!("a scope of TPB {number}, which has no program")),
            };
            if let Some(wrong) = wrong {
                check.find(|| format!("{pool}: TPB {number}: {wrong}"));
            }
        }
    }

    fn close(&self, check: &mut RecordCheck) {
        for (tpb, ring) in self.rings.iter().enumerate().filter(|(_, ring)| ring.records.missing() > 0) {
            check.find(|| {
                let (missing, expected) = (ring.records.missing(), ring.records.count);
                format!("scopes of TPB {tpb}: {missing} of {expected} records are not there")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use sluice_core::layout::{ArchId, SubsystemId};
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::capture::{BufferHeader, FileHeader, Reader, RunId, Subsystem, Writer};

    fn record(scope: usize, execution: i32, phase: ScopePhase) -> Record {
        let (name, depth) = TREE[scope];
        let mut site = [0; 32];
        site[..name.len()].copy_from_slice(name.as_bytes());
        Record {
            site_file_basename: site,
            site_line: execution,
            depth,
            ring_id: 0,
            phase,
            task_start: i32::MAX,
            task_end: i32::MIN,
            heap_end: 64,
            ..FromZeros::new_zeroed()
        }
    }

    /// Two executions of one TPB.
    fn right() -> Vec<Record> {
        let tree = |execution| {
            let begins = (0..7).map(move |scope| record(scope, execution, ScopePhase::BEGIN));
            // Engines end in an order of their own.
            let ends = [4, 2, 3, 6, 5, 1, 0].map(|scope| record(scope, execution, ScopePhase::END));
            begins.chain(ends)
        };
        (0..2).flat_map(tree).collect()
    }

    fn check(records: &[Record]) -> RecordCheck {
        let header = FileHeader { run: RunId(1), arch: ArchId::A5, clock_hz: 1, started_unix_ns: 0 };
        let writer = Writer::start(Vec::new(), &header).unwrap();
        let pool = Pool { subsystem: Subsystem::SCOPE_STATS, kind: PoolKind::SOLE, instance: 0 };
        let header = BufferHeader::new(pool, 0, records.len() as u32, size_of::<Record>() as u32);
        writer.append_buffer(&header, records.as_bytes()).unwrap();
        let expected = ExpectedRecords {
            subsystems: vec![Extent::full(SubsystemId::ScopeStats)],
            cores: Vec::new(),
            tpbs: 1,
            executions: 2,
            event_group: 0,
            ..ExpectedRecords::default()
        };
        expected.check(&mut Reader::new(Cursor::new(writer.into_storage())).unwrap()).unwrap()
    }

    #[test]
    fn the_right_set_is_right() {
        assert_eq!(check(&right()), RecordCheck { expected: 28, found: 28, ..RecordCheck::default() });
    }

    #[test]
    fn every_record_left_out_or_doubled_is_noticed() {
        for which in 0..28 {
            let mut records = right();
            let record = records.remove(which);
            assert!(!check(&records).is_right(), "without record {which}");
            records.insert(which, record);
            records.insert(which, record);
            assert!(!check(&records).is_right(), "with record {which} twice");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let says = |change: fn(&mut Vec<Record>)| {
            let mut records = right();
            change(&mut records);
            check(&records).findings.join("; ")
        };
        assert_eq!(says(|records| _ = records.pop()), "scopes of TPB 0: 1 of 28 records are not there");
        assert_eq!(
            says(|records| records[3].depth = 1),
            "scope_stats[0]: TPB 0: `ACT` in execution 0 has depth 1, want 2; \
             scope_stats[0]: TPB 0: end of `DVE` in execution 0 stands outside its place"
        );
        assert_eq!(
            says(|records| records.swap(12, 13)),
            "scope_stats[0]: TPB 0: end of `execution` in execution 0 stands outside its place"
        );
        assert_eq!(
            says(|records| records[5].ring_id = 1),
            "scope_stats[0]: TPB 1: a scope of TPB 1, which has no program; \
             scope_stats[0]: TPB 0: end of `DVE` in execution 0 stands outside its place; \
             scopes of TPB 0: 1 of 28 records are not there"
        );
        assert_eq!(
            says(|records| records[0].task_end = records[0].task_start),
            "scope_stats[0]: TPB 0: `execution` in execution 0 cannot be: 0 tasks and 0 pairs under way, \
             64 bytes handed out of which 0 were taken back"
        );
        assert!(says(|records| records[9].heap_start = 65).contains("of which 65 were taken back"));
    }
}
