//! Swimlane records: a slice per task, twice where the core records too, per phase and per submit.

use std::io::{self, Write};

use sluice_core::layout::PoolKind;
use sluice_core::layout::swimlane::{
    AicoreTaskRecord, AicpuOrchPhaseRecord, AicpuSchedPhaseRecord, AicpuTaskRecord, SchedPhaseKind,
};

use super::super::trace::{Group, TraceWriter};
use super::Records;
use super::pmu::Times;
use crate::capture::{Items, Pool};

impl Records<'_> {
    /// Shows the records of a buffer; `false` when they are of no kind that this version shows.
    pub(super) fn swimlane<W: Write>(
        &mut self,
        trace: &mut TraceWriter<W>,
        pool: Pool,
        records: &[u8],
    ) -> io::Result<bool> {
        let instance = pool.instance;
        match pool.kind {
            PoolKind::AICPU_TASK => {
                Items::new(records).try_for_each(|record: AicpuTaskRecord| {
                    self.task(trace, instance, &record)?;
                    let times = Times { dispatch: record.dispatch_time, finish: record.finish_time };
                    self.task_met(trace, instance, record.reg_task_id, times)
                })?;
            }
            PoolKind::AICORE_TASK => {
                Items::new(records).try_for_each(|record| self.kernel(trace, instance, &record))?;
            }
            PoolKind::SCHED_PHASE => {
                Items::new(records).try_for_each(|record| self.phase(trace, instance, &record))?;
            }
            PoolKind::ORCH_PHASE => {
                Items::new(records).try_for_each(|record: AicpuOrchPhaseRecord| {
                    self.submit(trace, instance, &record)?;
                    let execution = ((record.task_id >> 32) as u32, record.task_id as u32);
                    self.submit_met(trace, execution, [record.start_time, record.end_time])
                })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn task<W: Write>(
        &mut self,
        trace: &mut TraceWriter<W>,
        core: u32,
        record: &AicpuTaskRecord,
    ) -> io::Result<()> {
        let stalled = self.stalls.of(core, record);
        if let Some(stalled) = stalled {
            self.late.add(stalled);
        }
        let work = self.work(core, record.reg_task_id);
        let late = stalled.into_iter().flat_map(|stalled| {
            [
                ("late", "yes".into()),
                ("raw_cycles", stalled.raw_cycles.into()),
                ("corrected_cycles", stalled.corrected_cycles.into()),
            ]
        });
        let arguments = work
            .arguments([
                ("token", record.reg_task_id.into()),
                ("dispatch_cycles", record.dispatch_time.into()),
                ("finish_cycles", record.finish_time.into()),
            ])
            .chain(late);
        let flows = work.execution.map(|execution| self.waits.flows(core, work.place, execution));
        let times = [record.dispatch_time, record.finish_time].map(|cycles| self.time.ns(cycles));
        let group = Group::Core { core };
        trace.slice_with(group, work.name(), times, &flows.unwrap_or_default(), arguments)
    }

    fn kernel<W: Write>(
        &self,
        trace: &mut TraceWriter<W>,
        core: u32,
        record: &AicoreTaskRecord,
    ) -> io::Result<()> {
        let work = self.work(core, record.reg_task_id);
        let arguments = work.arguments([
            ("token", record.reg_task_id.into()),
            ("start_cycles", record.start_time.into()),
            ("end_cycles", record.end_time.into()),
        ]);
        let (start, end) = (record.start_time, record.end_time);
        self.slice(trace, Group::Kernel { core }, work.name(), start, end, arguments)
    }

    fn phase<W: Write>(
        &self,
        trace: &mut TraceWriter<W>,
        lane: u32,
        record: &AicpuSchedPhaseRecord,
    ) -> io::Result<()> {
        let [pop_hit, pop_miss] = record.phase_data;
        let is_dispatch = record.kind == SchedPhaseKind::DISPATCH;
        let arguments = [
            Some(("loop_iteration", record.loop_iter.into())),
            Some(("tasks_processed", record.tasks_processed.into())),
            is_dispatch.then_some(("pop_hit", pop_hit.into())),
            is_dispatch.then_some(("pop_miss", pop_miss.into())),
            Some(("start_cycles", record.start_time.into())),
            Some(("end_cycles", record.end_time.into())),
        ];
        let name = record.kind.name().unwrap_or("unknown phase");
        let (start, end) = (record.start_time, record.end_time);
        self.slice(trace, Group::Scheduler { lane }, name, start, end, arguments.into_iter().flatten())
    }

    fn submit<W: Write>(
        &self,
        trace: &mut TraceWriter<W>,
        lane: u32,
        record: &AicpuOrchPhaseRecord,
    ) -> io::Result<()> {
        let arguments = [
            ("tpb", (record.task_id >> 32).into()),
            ("execution", (record.task_id & u64::from(u32::MAX)).into()),
            ("submit_index", record.submit_idx.into()),
            ("start_cycles", record.start_time.into()),
            ("end_cycles", record.end_time.into()),
        ];
        let (start, end) = (record.start_time, record.end_time);
        self.slice(trace, Group::Orchestrator { lane }, "submit", start, end, arguments)
    }
}
