//! Records as slices, subsystem by subsystem: a module each, and a line in [`Records::show`].

mod pmu;
mod scope_stats;
mod swimlane;
mod touches;
mod waits;

use std::io::{self, Write};

use sluice_core::layout::{ArchId, SubsystemId};

use super::trace::{Argument, Group, TraceWriter};
use crate::capture::check::layout_of;
use crate::capture::{BufferHeader, Core, DevicePhaseNote, Gate, Manifest, Pool, WaitNote, WorkItem};
use crate::export::clock::DeviceTime;
use crate::export::stall::{Late, Stalls};
use pmu::Pairing;
use scope_stats::Pending;
pub(super) use touches::Touches;
pub(super) use waits::Waits;

/// What is needed to show records.
pub(super) struct Records<'a> {
    arch: ArchId,
    cores: &'a [Core],
    time: DeviceTime,
    pairing: Pairing,
    pending: Pending,
    waits: Waits,
    touches: Touches,
    stalls: &'a Stalls,
    late: Late,
}

impl<'a> Records<'a> {
    pub(super) fn new(
        arch: ArchId,
        manifest: &'a Manifest,
        time: DeviceTime,
        waits: Waits,
        touches: Touches,
        stalls: &'a Stalls,
    ) -> Self {
        Self {
            arch,
            cores: &manifest.cores,
            time,
            pairing: Pairing::new(arch, manifest.event_group),
            pending: Pending::new(manifest.has_scopes),
            waits,
            touches,
            stalls,
            late: Late::default(),
        }
    }

    /// Records so far whose place in time is not known.
    pub(super) fn unplaced(&self) -> u64 {
        self.pairing.unplaced() + self.pending.unplaced()
    }

    /// Tasks so far whose completion was seen late.
    pub(super) fn late(&self) -> Late {
        self.late
    }

    /// Shows the records of a buffer; `false` when it belongs to no pool that this version shows.
    pub(super) fn show<W: Write>(
        &mut self,
        trace: &mut TraceWriter<W>,
        buffer: &BufferHeader,
        records: &[u8],
    ) -> io::Result<bool> {
        let pool = buffer.pool();
        match layout_of(self.arch, pool) {
            Some(layout) if layout.record_bytes == buffer.record_bytes as usize => {}
            _ => return Ok(false),
        }
        match pool.subsystem.id() {
            Some(SubsystemId::Swimlane) => self.swimlane(trace, pool, records),
            Some(SubsystemId::Pmu) => self.pmu(trace, pool, records),
            Some(SubsystemId::ScopeStats) => self.scopes(trace, records),
            // They have no time of their own: they stand at the tasks that they are about.
            Some(SubsystemId::DepGen | SubsystemId::ArgsDump) => Ok(true),
            _ => Ok(false),
        }
    }

    /// Shows what a lane of the device went through.
    pub(super) fn phase_of_lane<W: Write>(
        &self,
        trace: &mut TraceWriter<W>,
        phase: &DevicePhaseNote,
    ) -> io::Result<()> {
        let name = phase.phase.name().unwrap_or("unknown phase");
        let (start, end) = (phase.start_cycles, phase.end_cycles);
        let arguments = [("start_cycles", start.into()), ("end_cycles", end.into())];
        self.slice(trace, Group::Phases { lane: phase.lane }, name, start, end, arguments)
    }

    /// Shows a wait of a lane.
    pub(super) fn wait_of_lane<W: Write>(
        &self,
        trace: &mut TraceWriter<W>,
        wait: &WaitNote,
    ) -> io::Result<()> {
        let name = match wait.gate {
            Gate::READY => "waits: ready ring full",
            Gate::FREE => "waits: free queue empty",
            _ => "waits",
        };
        let pool = Pool { subsystem: wait.subsystem, kind: wait.kind, instance: wait.instance }.to_string();
        let (start, end) = (wait.begin_cycles, wait.end_cycles);
        let arguments = [
            Some(("pool", pool.as_str().into())),
            Some(("start_cycles", start.into())),
            Some(("end_cycles", end.into())),
            (wait.gave_up != 0).then_some(("gave_up", 1_u32.into())),
        ];
        let group = Group::Waits { lane: wait.lane };
        self.slice(trace, group, name, start, end, arguments.into_iter().flatten())
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
            (Some(ordinal), per_execution @ 1..) => {
                let place = (ordinal % per_execution) as u32 + 1;
                Work {
                    execution: Some(ordinal / per_execution),
                    place,
                    item: items.get(place as usize - 1),
                    waits_for: self.waits.of_item(core, place),
                    touches: self.touches.of_item(core, place),
                }
            }
            _ => Work { execution: None, place: 0, item: None, waits_for: None, touches: [None; 2] },
        }
    }
}

/// One work item of one execution, where it is known.
struct Work<'a> {
    execution: Option<u64>,
    /// In the program of the core, from 1.
    place: u32,
    item: Option<&'a WorkItem>,
    waits_for: Option<&'a str>,
    /// What it takes and gives.
    touches: [Option<&'a str>; 2],
}

impl<'a> Work<'a> {
    fn name(&self) -> &'a str {
        self.item.map_or("task", |item| &item.name)
    }

    /// What is known of the work, then `own`.
    fn arguments<const N: usize>(
        &self,
        own: [Argument<'a>; N],
    ) -> impl Iterator<Item = Argument<'a>> + use<'a, N> {
        let item = self.item;
        let known = [
            self.execution.map(|execution| ("execution", execution.into())),
            item.map(|item| ("block", item.block.into())),
            item.and_then(|item| item.queue).map(|queue| ("queue", queue.into())),
            item.and_then(|item| item.bytes).map(|bytes| ("bytes", bytes.into())),
            item.and_then(|item| item.pairs).map(|pairs| ("descriptor_pairs", pairs.into())),
            self.waits_for.map(|waits_for| ("waits_for", waits_for.into())),
            self.touches[0].map(|takes| ("takes_before_dispatch", takes.into())),
            self.touches[1].map(|gives| ("gives_after_completion", gives.into())),
        ];
        known.into_iter().flatten().chain(own)
    }
}
