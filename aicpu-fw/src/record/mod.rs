//! What a lane records, and when: attached, flushed and detached as the boot block says.
//!
//! ```text
//!   dfx_generation moves ──► attach: region, extension block, answer
//!   dispatch, FIN, submit ──► records, in the lane's own pools
//!   dfx_stop_generation catches up ──► flush every pool, say so, record no more
//! ```
//!
//! Recording blocks, and only recording does: a lane with a full buffer stands at the push gate or waits for a slot, one
//! with none stands at the pop gate or waits for a buffer, up to the deadline of one switch. A lane that is not asked to
//! record spends two loads per round.

mod heartbeat;
mod parking;
mod swimlane;

use sluice_core::exec::{CoreIndex, LaneBoot, LaneIndex, Recorders};
use sluice_core::layout::SubsystemId;
use sluice_core::layout::swimlane::{
    AicpuOrchPhaseRecord, AicpuSchedPhaseRecord, AicpuTaskRecord, SchedPhaseKind,
};
use sluice_core::mem::{DeviceMemory, Fault};
use sluice_core::producer::AppendError;
use sluice_core::producer::swimlane::SwimlaneRecorder;
use zerocopy::FromZeros;

use crate::platform::{Context, Platform};
use heartbeat::Heartbeat;
use parking::Parking;

/// One task as its lane saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TaskTimes {
    /// Dispatch token, counted per core over the device's life from 1.
    pub(crate) token: u32,
    /// Just before the dispatch was written.
    pub(crate) dispatch_cycles: u64,
    /// When the completion was seen.
    pub(crate) finish_cycles: u64,
}

/// One phase of a lane's loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SchedPhase {
    /// What the lane did.
    pub(crate) kind: SchedPhaseKind,
    /// When it began.
    pub(crate) start_cycles: u64,
    /// When it was done.
    pub(crate) end_cycles: u64,
    /// Round of the lane's loop.
    pub(crate) iteration: u32,
    /// Tasks it concerned.
    pub(crate) tasks: u32,
}

/// One submit as the sequencer took it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OrchPhase {
    /// When staging began.
    pub(crate) start_cycles: u64,
    /// When the lanes were told.
    pub(crate) end_cycles: u64,
    /// TPB in the upper half, ordinal of the execution in the lower.
    pub(crate) task_id: u64,
    /// Submits of the TPB before this one.
    pub(crate) submit_index: u32,
}

/// The recorders of one lane.
pub(crate) struct Recorder<M: DeviceMemory, const CORES: usize> {
    lane: LaneIndex,
    boot: LaneBoot<M>,
    generation: Option<u32>,
    heartbeat: Heartbeat<M>,
    swimlane: Option<SwimlaneRecorder<M, CORES>>,
}

impl<M: DeviceMemory, const CORES: usize> Recorder<M, CORES> {
    /// The recorders of `lane`, none attached yet.
    ///
    /// # Errors
    /// [`Fault`] when the boot block lies outside device memory.
    pub(crate) fn attach<P: Platform<Memory = M>>(cx: &Context<P>, lane: LaneIndex) -> Result<Self, Fault> {
        let boot = LaneBoot::attach(cx.memory(), cx.map().boot)?;
        Ok(Self { lane, boot, generation: None, heartbeat: Heartbeat::silent(), swimlane: None })
    }

    /// Follows the boot block: attaches to what the host asks for, or flushes when it asks for the end. Called at the start
    /// of every round, so that what is kicked off after an attach is recorded. Blocks while it flushes.
    pub(crate) fn sync<P: Platform<Memory = M>>(&mut self, cx: &Context<P>) {
        self.heartbeat.beat();
        let generation = self.boot.generation();
        if generation == self.generation {
            return;
        }
        if generation.is_none()
            && let Some(mut swimlane) = self.swimlane.take()
        {
            swimlane.flush(&mut Parking::new(cx, self.lane, &mut self.heartbeat));
        }
        self.heartbeat = Heartbeat::silent();
        self.swimlane = None;
        self.generation = generation;
        if generation.is_some()
            && let Ok(recorders) = self.boot.recorders()
        {
            self.begin(cx, &recorders);
        }
        cx.note_host_news();
    }

    /// Attaches what can be attached. What the host asked for and the device refuses it finds in the answer.
    fn begin<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, recorders: &Recorders) {
        if let Some(region) = recorders.region(SubsystemId::Swimlane) {
            self.swimlane = swimlane::attach(cx, self.lane, region, recorders.extension).ok();
        }
        if self.lane == LaneIndex::SEQUENCER && self.swimlane.is_some() {
            self.heartbeat = Heartbeat::at(cx.memory(), recorders.extension);
        }
    }

    /// The time, if it is to be recorded.
    pub(crate) fn clock<P: Platform<Memory = M>>(&self, cx: &Context<P>) -> Option<u64> {
        self.swimlane.is_some().then(|| cx.now_cycles())
    }

    /// Records a task of `core`.
    pub(crate) fn task<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
        core: CoreIndex,
        task: &TaskTimes,
    ) {
        self.append(cx, |swimlane, parking| {
            let record = AicpuTaskRecord {
                dispatch_time: task.dispatch_cycles,
                finish_time: task.finish_cycles,
                reg_task_id: task.token,
                ..FromZeros::new_zeroed()
            };
            swimlane.task(core.get() as u32, &record, parking)
        });
    }

    /// Records a phase of the lane's loop.
    pub(crate) fn sched_phase<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, phase: &SchedPhase) {
        self.append(cx, |swimlane, parking| {
            let record = AicpuSchedPhaseRecord {
                start_time: phase.start_cycles,
                end_time: phase.end_cycles,
                loop_iter: phase.iteration,
                kind: phase.kind,
                tasks_processed: phase.tasks,
                ..FromZeros::new_zeroed()
            };
            swimlane.sched_phase(&record, parking)
        });
    }

    /// Records a submit.
    pub(crate) fn orch_phase<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, phase: &OrchPhase) {
        self.append(cx, |swimlane, parking| {
            let record = AicpuOrchPhaseRecord {
                start_time: phase.start_cycles,
                end_time: phase.end_cycles,
                task_id: phase.task_id,
                submit_idx: phase.submit_index,
                ..FromZeros::new_zeroed()
            };
            swimlane.orch_phase(&record, parking)
        });
    }

    /// Appends with `append`, if there is a recorder. A record that is lost is counted by cause in its pool.
    fn append<'a, P: Platform<Memory = M>>(
        &'a mut self,
        cx: &'a Context<P>,
        append: impl FnOnce(&mut SwimlaneRecorder<M, CORES>, &mut Parking<'a, P>) -> Result<(), AppendError>,
    ) {
        let Some(swimlane) = &mut self.swimlane else { return };
        let tail = swimlane.lane().ready_tail();
        let _ = append(swimlane, &mut Parking::new(cx, self.lane, &mut self.heartbeat));
        if swimlane.lane().ready_tail() != tail {
            cx.note_host_news();
        }
    }
}
