//! The swimlane's recorder: what one lane records about its cores and about itself.
//!
//! | pool | instance | record | when |
//! |---|---|---|---|
//! | AICPU task | core | dispatch, finish, token | the lane saw FIN |
//! | scheduler phase | lane | phase kind, start, end, work | a phase of the lane's loop ended |
//! | orchestrator phase | 0 | submit, start, end | a request was decoded |

use heapless::Vec;

use super::{AppendError, AttachError, Attachment, Lane, Pool, Records, Subsystem, SwitchEnd};
use crate::gate::WaitEnv;
use crate::layout::extension::LaneActivity;
use crate::layout::swimlane::{
    AICPU_TASK_BUFFER, AicpuOrchPhaseRecord, AicpuSchedPhaseRecord, AicpuTaskRecord, Level,
    ORCH_PHASE_BUFFER, SCHED_PHASE_BUFFER,
};
use crate::layout::{self, BufferLayout, Instance, PoolKind};
use crate::mem::Memory;

/// The swimlane subsystem.
#[derive(Debug)]
pub struct Swimlane;

impl Subsystem for Swimlane {}

/// Pools of tasks as their lane saw them.
#[derive(Debug)]
pub struct AicpuTasks;

impl Records for AicpuTasks {
    type Record = AicpuTaskRecord;
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout = AICPU_TASK_BUFFER;
    const KIND: PoolKind = PoolKind::AICPU_TASK;
}

/// Pools of scheduler phases.
#[derive(Debug)]
pub struct SchedPhases;

impl Records for SchedPhases {
    type Record = AicpuSchedPhaseRecord;
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout = SCHED_PHASE_BUFFER;
    const KIND: PoolKind = PoolKind::SCHED_PHASE;
}

/// The pool of orchestrator phases.
#[derive(Debug)]
pub struct OrchPhases;

impl Records for OrchPhases {
    type Record = AicpuOrchPhaseRecord;
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout = ORCH_PHASE_BUFFER;
    const KIND: PoolKind = PoolKind::ORCH_PHASE;
}

/// What one lane records. `CORES` is the most cores that a lane may own.
pub struct SwimlaneRecorder<M: Memory, const CORES: usize> {
    lane: Lane<M, Swimlane>,
    level: Level,
    tasks: Vec<(u32, Pool<M, AicpuTasks, Swimlane>), CORES>,
    sched: Pool<M, SchedPhases, Swimlane>,
    orch: Option<Pool<M, OrchPhases, Swimlane>>,
}

impl<M: Memory, const CORES: usize> SwimlaneRecorder<M, CORES> {
    /// A recorder for `lane`, which owns `cores`, at most `CORES` of them; further ones are left unrecorded. The lane that
    /// decodes requests (`decodes_requests`) also records orchestrator phases.
    ///
    /// # Errors
    /// A lane or core that the region does not have, or memory that cannot be reached.
    pub fn attach(
        memory: &M,
        attachment: &Attachment,
        lane: layout::Lane,
        level: Level,
        cores: impl IntoIterator<Item = u32>,
        decodes_requests: bool,
    ) -> Result<Self, AttachError> {
        let mut tasks = Vec::new();
        for core in cores {
            let pool = attachment.pool(memory, Instance(core))?;
            if tasks.push((core, pool)).is_err() {
                break;
            }
        }
        let recorder = Self {
            lane: attachment.lane(memory, lane)?,
            level,
            tasks,
            sched: attachment.pool(memory, Instance(lane.0))?,
            orch: decodes_requests.then(|| attachment.pool(memory, Instance(0))).transpose()?,
        };
        recorder.lane.show(LaneActivity::RUNNING);
        Ok(recorder)
    }

    /// Records a task of `core`. A core that the lane does not own is not recorded.
    ///
    /// # Errors
    /// [`AppendError`] when the record is lost; it is counted.
    #[inline]
    pub fn task(
        &mut self,
        core: u32,
        record: &AicpuTaskRecord,
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        if self.level < Level::TASK {
            return Ok(());
        }
        match self.tasks.iter_mut().find(|(owned, _)| *owned == core) {
            Some((_, pool)) => self.lane.append(pool, record, env),
            None => Ok(()),
        }
    }

    /// Records a phase of the lane's scheduler loop.
    ///
    /// # Errors
    /// [`AppendError`] when the record is lost; it is counted.
    #[inline]
    pub fn sched_phase(
        &mut self,
        record: &AicpuSchedPhaseRecord,
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        if self.level < Level::SCHED {
            return Ok(());
        }
        self.lane.append(&mut self.sched, record, env)
    }

    /// Records the decoding of a request; nothing on a lane that decodes none.
    ///
    /// # Errors
    /// [`AppendError`] when the record is lost; it is counted.
    #[inline]
    pub fn orch_phase(
        &mut self,
        record: &AicpuOrchPhaseRecord,
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        match &mut self.orch {
            Some(pool) if self.level >= Level::FULL => self.lane.append(pool, record, env),
            _ => Ok(()),
        }
    }

    /// Publishes everything and tells the host so. Blocks up to one deadline per pool while the host is silent, and not at
    /// all once it is known to be gone.
    pub fn flush(&mut self, env: &mut impl WaitEnv) {
        for (_, pool) in &mut self.tasks {
            let _: SwitchEnd = self.lane.flush(pool, env);
        }
        let _: SwitchEnd = self.lane.flush(&mut self.sched, env);
        if let Some(orch) = &mut self.orch {
            let _: SwitchEnd = self.lane.flush(orch, env);
        }
        self.lane.show(LaneActivity::FLUSHED);
        self.lane.show_flushed();
    }

    /// How much is recorded.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Records so much from now on.
    pub fn set_level(&mut self, level: Level) {
        self.level = level;
    }

    /// The lane, for its counters.
    pub fn lane(&self) -> &Lane<M, Swimlane> {
        &self.lane
    }
}
