//! A lane's stamps in the table of device phases: when it recorded, submitted, scheduled.
//!
//! | phase | lanes | from | to |
//! |---|---|---|---|
//! | run wall | all | recorders attached | recorders flushed |
//! | orchestration window | sequencer's | first submit taken up | last submit told |
//! | scheduling window | all | first dispatch | last finish seen |
//! | after orchestration | sequencer's | last execution ended | recorders flushed |
//!
//! Stamps are kept here and written at the end, before the lane says in the extension block that it has flushed. A phase
//! that did not occur, and those that this firmware does not have, read as never stamped.

use sluice_core::exec::LaneIndex;
use sluice_core::layout::SubsystemId;
use sluice_core::layout::device_phase::{BufferHeader, DevicePhase, NEVER, PHASES, PhaseRecord};
use sluice_core::mem::{Clock, CopyMemory, DevAddr, DeviceMemory};
use sluice_core::mmio::TpbId;
use zerocopy::IntoBytes;

use super::event::{Dispatch, Finish, Recording, Stamps, Submit};
use super::parking::Parking;
use super::run::Run;
use crate::platform::{Context, Platform};

/// A lane's row of the table.
pub(super) struct Recorder<M: DeviceMemory, const CORES: usize> {
    memory: M,
    row: DevAddr,
    stamps: [PhaseRecord; PHASES],
}

impl<M: DeviceMemory, const CORES: usize> Recorder<M, CORES> {
    /// The row of `lane`, if the run has a table.
    pub(super) fn attach<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        run: &Run<'_>,
    ) -> Option<Self> {
        let table = run.recorders.tables.device_phases;
        if table.is_null() {
            return None;
        }
        let before = size_of::<BufferHeader>() + lane.get() as usize * PHASES * size_of::<PhaseRecord>();
        let never = PhaseRecord { start_cycle: NEVER, end_cycle: 0 };
        let mut recorder =
            Self { memory: cx.memory().clone(), row: table.offset(before as u64), stamps: [never; PHASES] };
        recorder.begin(DevicePhase::RUN_WALL, cx.now_cycles());
        Some(recorder)
    }

    /// The phase begins, if it has not before.
    fn begin(&mut self, phase: DevicePhase, now_cycles: u64) {
        let stamp = &mut self.stamps[phase.0 as usize];
        if stamp.start_cycle == NEVER {
            *stamp = PhaseRecord { start_cycle: now_cycles, end_cycle: now_cycles };
        }
    }

    /// The phase lasts until now at least, if it has begun.
    fn extend(&mut self, phase: DevicePhase, now_cycles: u64) {
        let stamp = &mut self.stamps[phase.0 as usize];
        if stamp.start_cycle != NEVER {
            stamp.end_cycle = now_cycles;
        }
    }
}

impl<P: Platform<Memory: DeviceMemory>, const CORES: usize> Recording<P> for Recorder<P::Memory, CORES> {
    const SUBSYSTEM: Option<SubsystemId> = None;

    fn stamps(&self) -> Stamps {
        Stamps { submits: true, items: true }
    }

    fn submitted(&mut self, submit: &Submit, _: &mut Parking<'_, P>) {
        if let (Some(start_cycles), Some(end_cycles)) = (submit.start_cycles, submit.end_cycles) {
            self.begin(DevicePhase::ORCH_WINDOW, start_cycles);
            self.extend(DevicePhase::ORCH_WINDOW, end_cycles);
        }
    }

    fn dispatched(&mut self, dispatch: &Dispatch, _: &mut Parking<'_, P>) {
        if let Some(dispatch_cycles) = dispatch.dispatch_cycles {
            self.begin(DevicePhase::SCHED_WINDOW, dispatch_cycles);
        }
    }

    fn finished(&mut self, finish: &Finish, _: &mut Parking<'_, P>) {
        if let Some(finish_cycles) = finish.finish_cycles {
            self.extend(DevicePhase::SCHED_WINDOW, finish_cycles);
        }
    }

    fn execution_ended(&mut self, _: TpbId, env: &mut Parking<'_, P>) {
        self.stamps[DevicePhase::POST_ORCH.0 as usize].start_cycle = env.now_cycles();
    }

    fn flush(&mut self, env: &mut Parking<'_, P>) {
        let now_cycles = env.now_cycles();
        for phase in [DevicePhase::RUN_WALL, DevicePhase::POST_ORCH] {
            self.extend(phase, now_cycles);
        }
        // A table that cannot be reached stays as the host made it.
        let _ = self.memory.write_bytes(self.row, self.stamps.as_bytes());
    }
}
