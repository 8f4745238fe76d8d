//! Swimlane records as slices.

use std::io::{self, Write};

use sluice_core::layout::swimlane::{
    AicoreTaskRecord, AicpuOrchPhaseRecord, AicpuSchedPhaseRecord, AicpuTaskRecord, SchedPhaseKind,
};
use sluice_core::layout::{ArchId, PoolKind};

use super::trace::{Argument, Group, TraceWriter};
use crate::capture::check::layout_of;
use crate::capture::{BufferHeader, Core, Items, Manifest, WorkItem};
use crate::export::clock::DeviceTime;

/// What is needed to show swimlane records.
pub(super) struct Swimlane<'a> {
    arch: ArchId,
    cores: &'a [Core],
    time: DeviceTime,
}

impl<'a> Swimlane<'a> {
    pub(super) fn new(arch: ArchId, manifest: &'a Manifest, time: DeviceTime) -> Self {
        Self { arch, cores: &manifest.cores, time }
    }

    /// Shows the records of a buffer; `false` when it belongs to no pool that this version shows.
    pub(super) fn show<W: Write>(
        &self,
        trace: &mut TraceWriter<W>,
        buffer: &BufferHeader,
        records: &[u8],
    ) -> io::Result<bool> {
        let pool = buffer.pool();
        match layout_of(self.arch, pool) {
            Some(layout) if layout.record_bytes == buffer.record_bytes as usize => {}
            _ => return Ok(false),
        }
        let instance = pool.instance;
        match pool.kind {
            PoolKind::AICPU_TASK => {
                Items::new(records).try_for_each(|record| self.task(trace, instance, &record))?;
            }
            PoolKind::AICORE_TASK => {
                Items::new(records).try_for_each(|record| self.kernel(trace, instance, &record))?;
            }
            PoolKind::SCHED_PHASE => {
                Items::new(records).try_for_each(|record| self.phase(trace, instance, &record))?;
            }
            PoolKind::ORCH_PHASE => {
                Items::new(records).try_for_each(|record| self.submit(trace, instance, &record))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn task<W: Write>(
        &self,
        trace: &mut TraceWriter<W>,
        core: u32,
        record: &AicpuTaskRecord,
    ) -> io::Result<()> {
        let work = self.work(core, record.reg_task_id);
        let arguments = work.arguments([
            ("token", record.reg_task_id.into()),
            ("dispatch_cycles", record.dispatch_time.into()),
            ("finish_cycles", record.finish_time.into()),
        ]);
        let (start, end) = (record.dispatch_time, record.finish_time);
        self.slice(trace, Group::Core { core }, work.name(), start, end, arguments)
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

    fn slice<'b, W: Write>(
        &self,
        trace: &mut TraceWriter<W>,
        group: Group,
        name: &str,
        start_cycles: u64,
        end_cycles: u64,
        arguments: impl IntoIterator<Item = Argument<'b>>,
    ) -> io::Result<()> {
        trace.slice(group, name, self.time.ns(start_cycles), self.time.ns(end_cycles), arguments)
    }

    /// What a core did under a dispatch token: tokens count through the work items of all executions, from 1.
    fn work(&self, core: u32, token: u32) -> Work<'_> {
        let items = self.cores.get(core as usize).map_or(&[][..], |core| &core.items);
        match (u64::from(token).checked_sub(1), items.len() as u64) {
            (Some(ordinal), per_execution @ 1..) => Work {
                execution: Some(ordinal / per_execution),
                item: items.get((ordinal % per_execution) as usize),
            },
            _ => Work { execution: None, item: None },
        }
    }
}

/// One work item of one execution, where it is known.
struct Work<'a> {
    execution: Option<u64>,
    item: Option<&'a WorkItem>,
}

impl<'a> Work<'a> {
    fn name(&self) -> &'a str {
        self.item.map_or("task", |item| &item.name)
    }

    /// What is known of the work, then `own`.
    fn arguments<'b, const N: usize>(&self, own: [Argument<'b>; N]) -> impl Iterator<Item = Argument<'b>> {
        let item = self.item;
        let known = [
            self.execution.map(|execution| ("execution", execution.into())),
            item.map(|item| ("block", item.block.into())),
            item.and_then(|item| item.queue).map(|queue| ("queue", queue.into())),
            item.and_then(|item| item.bytes).map(|bytes| ("bytes", bytes.into())),
            item.and_then(|item| item.pairs).map(|pairs| ("descriptor_pairs", pairs.into())),
        ];
        known.into_iter().flatten().chain(own)
    }
}
