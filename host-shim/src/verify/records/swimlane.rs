//! Swimlane records.
//!
//! | pool | from level | records | known by |
//! |---|---|---|---|
//! | the core's own, per core | core | one per work item and execution | dispatch token 1, 2, … n |
//! | task, per core | task | likewise, around the core's own time of the same item | dispatch token 1, 2, … n |
//! | scheduler phase, per lane | sched | one dispatch and one complete per item of the lane's cores | kind |
//! | orchestrator phase, of the lane that runs the sequencers | full | one per execution and TPB | task id `tpb << 32 \| execution`, submit number of the TPB |

use std::collections::HashMap;

use sluice_core::exec::LaneIndex;
use sluice_core::layout::PoolKind;
use sluice_core::layout::swimlane::{
    AicoreTaskRecord, AicpuOrchPhaseRecord, AicpuSchedPhaseRecord, AicpuTaskRecord, Level, SchedPhaseKind,
};

use super::{Expectation, ExpectedCore, ExpectedRecords, Extent, Once, RecordCheck};
use crate::capture::{Items, Pool};

/// What has been met of each core, each lane and the submits.
pub(super) struct Ledger {
    cores: Vec<Core>,
    /// By lane: dispatches and completes expected and met.
    phases: Vec<Phases>,
    /// By TPB: executions, and submit numbers.
    submits: Vec<[Once; 2]>,
}

/// The tasks of one core.
struct Core {
    number: u32,
    /// As its lane saw them.
    seen: Once,
    /// As it recorded them itself.
    own: Once,
    /// By token: records whose counterpart has not been met.
    single: HashMap<u32, Record>,
}

/// Begin and end of a task.
#[derive(Clone, Copy)]
enum Record {
    OfLane(u64, u64),
    OfCore(u64, u64),
}

impl Core {
    /// Whether both records of a task fit together; `true` while only one of them has been met.
    fn fits(&mut self, token: u32, record: Record) -> bool {
        match (record, self.single.remove(&token)) {
            (Record::OfLane(dispatch, finish), Some(Record::OfCore(start, end)))
            | (Record::OfCore(start, end), Some(Record::OfLane(dispatch, finish))) => {
                dispatch <= start && end <= finish
            }
            (record, _) => {
                self.single.insert(token, record);
                true
            }
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Phases {
    expected: u64,
    dispatches: u64,
    completes: u64,
}

impl Ledger {
    pub(super) fn of(run: &ExpectedRecords, extent: &Extent) -> Self {
        let from = |least: Level, each: u64| {
            let is_due = |execution, _| Level(extent.level(execution)) >= least;
            Once::of_executions(run.executions, each, is_due)
        };
        let lanes = run.cores.iter().map(|core| core.lane as usize + 1).max().unwrap_or(0);
        let mut phases = vec![Phases::default(); lanes];
        for core in &run.cores {
            phases[core.lane as usize].expected += from(Level::SCHED, core.items.len() as u64).count;
        }
        let core = |core: &ExpectedCore| {
            let tasks = |least| from(least, core.items.len() as u64);
            let (seen, own) = (tasks(Level::TASK), tasks(Level::CORE));
            Core { number: core.core, seen, own, single: HashMap::new() }
        };
        Self {
            cores: run.cores.iter().map(core).collect(),
            phases,
            submits: (0..run.tpbs).map(|_| [(); 2].map(|()| from(Level::FULL, 1))).collect(),
        }
    }
}

impl Expectation for Ledger {
    fn count(&self) -> u64 {
        let tasks: u64 = self.cores.iter().map(|core| core.seen.count + core.own.count).sum();
        let phases: u64 = self.phases.iter().map(|phases| 2 * phases.expected).sum();
        let submits: u64 = self.submits.iter().map(|[executions, _]| executions.count).sum();
        tasks + phases + submits
    }

    fn meet(&mut self, pool: Pool, records: &[u8], check: &mut RecordCheck) {
        match pool.kind {
            PoolKind::AICPU_TASK => {
                let Some(core) = self.cores.iter_mut().find(|core| core.number == pool.instance) else {
                    return check.find(|| format!("{pool}: records of a core that has no work"));
                };
                for record in Items::<AicpuTaskRecord>::new(records) {
                    let token = record.reg_task_id;
                    if !u64::from(token).checked_sub(1).is_some_and(|number| core.seen.meet(number)) {
                        check.find(|| format!("{pool}: token {token} is not expected, or here again"));
                    }
                    if record.finish_time < record.dispatch_time {
                        check.find(|| format!("{pool}: token {token} finishes before its dispatch"));
                    }
                    if !core.fits(token, Record::OfLane(record.dispatch_time, record.finish_time)) {
                        check.find(|| format!("{pool}: token {token} does not enclose the core's own times"));
                    }
                }
            }
            PoolKind::AICORE_TASK => {
                let Some(core) = self.cores.iter_mut().find(|core| core.number == pool.instance) else {
                    return check.find(|| format!("{pool}: records of a core that has no work"));
                };
                for record in Items::<AicoreTaskRecord>::new(records) {
                    let token = record.reg_task_id;
                    if !u64::from(token).checked_sub(1).is_some_and(|number| core.own.meet(number)) {
                        check.find(|| format!("{pool}: token {token} is not expected, or here again"));
                    }
                    if record.end_time < record.start_time {
                        check.find(|| format!("{pool}: token {token} ends before its start"));
                    }
                    if !core.fits(token, Record::OfCore(record.start_time, record.end_time)) {
                        check.find(|| format!("{pool}: token {token} is not inside the lane's times"));
                    }
                }
            }
            PoolKind::SCHED_PHASE => {
                let Some(phases) = self.phases.get_mut(pool.instance as usize) else {
                    return check.find(|| format!("{pool}: records of a lane that has no work"));
                };
                for record in Items::<AicpuSchedPhaseRecord>::new(records) {
                    match record.kind {
                        SchedPhaseKind::DISPATCH => phases.dispatches += 1,
                        SchedPhaseKind::COMPLETE => phases.completes += 1,
                        kind => check.find(|| format!("{pool}: phase {kind} is not expected")),
                    }
                    if record.tasks_processed != 1 {
                        let tasks = record.tasks_processed;
                        check.find(|| format!("{pool}: a phase of {tasks} tasks, want 1"));
                    }
                }
            }
            PoolKind::ORCH_PHASE => {
                if pool.instance != LaneIndex::SEQUENCER.get() {
                    return check.find(|| format!("{pool}: records of a lane that runs no sequencer"));
                }
                for record in Items::<AicpuOrchPhaseRecord>::new(records) {
                    let (tpb, execution) = (record.task_id >> 32, record.task_id & u64::from(u32::MAX));
                    let number = record.submit_idx;
                    let Some([executions, numbers]) = self.submits.get_mut(tpb as usize) else {
                        check.find(|| format!("{pool}: a submit of TPB {tpb}, which has no program"));
                        continue;
                    };
                    if !executions.meet(execution) || !numbers.meet(number.into()) {
                        check.find(|| {
                            format!(
                                "{pool}: execution {execution}, submit {number} of TPB {tpb} is not expected, \
                                 or here again"
                            )
                        });
                    }
                }
            }
            _ => check.find(|| format!("{pool}: records of a kind that is not expected")),
        }
    }

    fn close(&self, check: &mut RecordCheck) {
        let mut missing = |what: String, expected: u64, missing: u64| {
            if missing > 0 {
                check.find(|| format!("{what}: {missing} of {expected} records are not there"));
            }
        };
        for Core { number, seen, own, .. } in &self.cores {
            missing(format!("tasks of core {number}"), seen.count, seen.missing());
            missing(format!("own records of core {number}"), own.count, own.missing());
        }
        for (tpb, [executions, _]) in self.submits.iter().enumerate() {
            missing(format!("submits of TPB {tpb}"), executions.count, executions.missing());
        }
        for (lane, phases) in self.phases.iter().enumerate() {
            let Phases { expected, dispatches, completes } = *phases;
            for (kind, met) in [("dispatch", dispatches), ("complete", completes)] {
                if met != expected {
                    check.find(|| format!("lane {lane}: {met} {kind} phases, want {expected}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use sluice_core::layout::{ArchId, SubsystemId};
    use zerocopy::{Immutable, IntoBytes};

    use super::super::{ExpectedCore, ExpectedItem};
    use super::*;
    use crate::capture::{BufferHeader, FileHeader, Reader, RunId, Subsystem, Writer};

    /// Two cores on two lanes, 2 and 1 items, over three executions of two TPBs.
    fn expected() -> ExpectedRecords {
        ExpectedRecords {
            subsystems: vec![Extent::full(SubsystemId::Swimlane)],
            cores: vec![
                ExpectedCore { core: 0, lane: 0, items: vec![ExpectedItem::default(); 2] },
                ExpectedCore { core: 7, lane: 1, items: vec![ExpectedItem::default(); 1] },
            ],
            tpbs: 2,
            executions: 3,
            event_group: 0,
            ..ExpectedRecords::default()
        }
    }

    fn task(token: u32) -> AicpuTaskRecord {
        AicpuTaskRecord { dispatch_time: 5, finish_time: 9, reg_task_id: token, tail: 0, tail_end: 0 }
    }

    fn phase(kind: SchedPhaseKind) -> AicpuSchedPhaseRecord {
        AicpuSchedPhaseRecord {
            start_time: 0,
            end_time: 0,
            loop_iter: 0,
            kind,
            tasks_processed: 1,
            phase_data: [0; 2],
            shared_depth_at_start: [0; 3],
            shared_depth_at_end: [0; 3],
            _pad: [0; 4],
        }
    }

    fn submit(tpb: u64, execution: u64, submit_idx: u32) -> AicpuOrchPhaseRecord {
        AicpuOrchPhaseRecord {
            start_time: 0,
            end_time: 0,
            task_id: tpb << 32 | execution,
            submit_idx,
            _pad: 0,
        }
    }

    fn own(token: u32) -> AicoreTaskRecord {
        AicoreTaskRecord {
            start_time: 6,
            end_time: 8,
            task_token_raw: 0,
            reg_task_id: token,
            receive_to_start_cycles: 0,
        }
    }

    struct Run {
        tasks: Vec<(u32, AicpuTaskRecord)>,
        own: Vec<(u32, AicoreTaskRecord)>,
        phases: Vec<(u32, AicpuSchedPhaseRecord)>,
        submits: Vec<(u32, AicpuOrchPhaseRecord)>,
    }

    impl Run {
        fn right() -> Self {
            let both = |lane, count| {
                (0..count).flat_map(move |_| {
                    [SchedPhaseKind::DISPATCH, SchedPhaseKind::COMPLETE].map(|kind| (lane, phase(kind)))
                })
            };
            Self {
                tasks: (1..=6).map(|t| (0, task(t))).chain((1..=3).map(|t| (7, task(t)))).collect(),
                own: (1..=6).map(|t| (0, own(t))).chain((1..=3).map(|t| (7, own(t)))).collect(),
                phases: both(0, 6).chain(both(1, 3)).collect(),
                submits: (0..6).map(|i| (0, submit(u64::from(i % 2), u64::from(i / 2), i / 2))).collect(),
            }
        }

        /// One buffer per record: the finest mixture there is.
        fn check(&self) -> RecordCheck {
            let header = FileHeader { run: RunId(1), arch: ArchId::A5, clock_hz: 1, started_unix_ns: 0 };
            let writer = Writer::start(Vec::new(), &header).unwrap();
            fn append<T: IntoBytes + Immutable>(
                writer: &Writer<Vec<u8>>,
                kind: PoolKind,
                records: &[(u32, T)],
            ) {
                for (seq, (instance, record)) in records.iter().enumerate() {
                    let pool = Pool { subsystem: Subsystem::SWIMLANE, kind, instance: *instance };
                    let header = BufferHeader::new(pool, seq as u32, 1, size_of::<T>() as u32);
                    writer.append_buffer(&header, record.as_bytes()).unwrap();
                }
            }
            append(&writer, PoolKind::AICPU_TASK, &self.tasks);
            append(&writer, PoolKind::AICORE_TASK, &self.own);
            append(&writer, PoolKind::SCHED_PHASE, &self.phases);
            append(&writer, PoolKind::ORCH_PHASE, &self.submits);
            let mut reader = Reader::new(Cursor::new(writer.into_storage())).unwrap();
            expected().check(&mut reader).unwrap()
        }
    }

    #[test]
    fn the_right_set_is_right() {
        let check = Run::right().check();
        assert_eq!(check, RecordCheck { expected: 42, found: 42, ..RecordCheck::default() });
    }

    #[test]
    fn every_record_left_out_or_doubled_is_noticed() {
        for which in 0..42 {
            for doubled in [false, true] {
                let mut run = Run::right();
                let change = |len: usize, at: usize| (at < len).then_some(at);
                if let Some(at) = change(9, which) {
                    let record = run.tasks.remove(at);
                    run.tasks.extend([record, record].into_iter().take(2 * usize::from(doubled)));
                } else if let Some(at) = change(9, which - 9) {
                    let record = run.own.remove(at);
                    run.own.extend([record, record].into_iter().take(2 * usize::from(doubled)));
                } else if let Some(at) = change(18, which - 18) {
                    let record = run.phases.remove(at);
                    run.phases.extend([record, record].into_iter().take(2 * usize::from(doubled)));
                } else {
                    let record = run.submits.remove(which - 36);
                    run.submits.extend([record, record].into_iter().take(2 * usize::from(doubled)));
                }
                assert!(!run.check().is_right(), "record {which}, doubled: {doubled}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let says = |change: fn(&mut Run)| {
            let mut run = Run::right();
            change(&mut run);
            run.check().findings.join("; ")
        };
        assert_eq!(says(|run| _ = run.tasks.remove(0)), "tasks of core 0: 1 of 6 records are not there");
        assert_eq!(
            says(|run| run.tasks.push((7, task(4)))),
            "swimlane/aicpu_task[7]: token 4 is not expected, or here again"
        );
        assert_eq!(
            says(|run| run.tasks.push((3, task(1)))),
            "swimlane/aicpu_task[3]: records of a core that has no work"
        );
        assert_eq!(
            says(|run| run.tasks[1].1.finish_time = 4),
            "swimlane/aicpu_task[0]: token 2 finishes before its dispatch; \
             swimlane/aicore_task[0]: token 2 is not inside the lane's times"
        );
        assert_eq!(
            says(|run| run.own[8].1.end_time = 10),
            "swimlane/aicore_task[7]: token 3 is not inside the lane's times"
        );
        assert_eq!(says(|run| _ = run.own.pop()), "own records of core 7: 1 of 3 records are not there");
        assert_eq!(
            says(|run| run.phases[0].1.kind = SchedPhaseKind::DRAIN),
            "swimlane/sched_phase[0]: phase drain is not expected; lane 0: 5 dispatch phases, want 6"
        );
        assert_eq!(
            says(|run| run.submits[5].1.task_id = 1 << 32 | 3),
            "swimlane/orch_phase[0]: execution 3, submit 2 of TPB 1 is not expected, or here again; \
             submits of TPB 1: 1 of 3 records are not there"
        );
    }
}
