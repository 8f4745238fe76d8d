//! The swimlane's recorder: what one lane records about its cores and about itself.
//!
//! | pool | instance | record | when |
//! |---|---|---|---|
//! | AICPU task | core | dispatch, finish, token | the lane saw FIN |
//! | AICore task | core | start, end, token | the core's own ([`CorePool`]), after its FIN |
//! | scheduler phase | lane | phase kind, start, end, work | a phase of the lane's loop ended |
//! | orchestrator phase | 0 | submit, start, end | a request was decoded |

use core::mem::offset_of;

use heapless::Vec;

use super::{
    AppendError, AttachError, Attachment, CorePool, CoreRecords, Lane, Pool, Records, Settlement, Subsystem,
    SwitchEnd,
};
use crate::gate::WaitEnv;
use crate::layout::extension::LaneActivity;
use crate::layout::swimlane::{
    AICORE_TASK_BUFFER, AICPU_TASK_BUFFER, AicoreTaskRecord, AicpuOrchPhaseRecord, AicpuSchedPhaseRecord,
    AicpuTaskRecord, Level, ORCH_PHASE_BUFFER, SCHED_PHASE_BUFFER,
};
use crate::layout::{self, BufferLayout, Instance, PoolKind};
use crate::mem::{DevAddr, Memory};

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

/// Pools of tasks as their cores saw them.
#[derive(Debug)]
pub struct AicoreTasks;

impl Records for AicoreTasks {
    type Record = AicoreTaskRecord;
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout = AICORE_TASK_BUFFER;
    const KIND: PoolKind = PoolKind::AICORE_TASK;
    const BY_CORE: bool = true;
}

impl CoreRecords for AicoreTasks {
    const TOKEN_AT: u64 = offset_of!(AicoreTaskRecord, reg_task_id) as u64;
    const END_AT: u64 = offset_of!(AicoreTaskRecord, end_time) as u64;
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

/// What is recorded of one core.
struct CoreLine<M: Memory> {
    core: u32,
    tasks: Pool<M, AicpuTasks, Swimlane>,
    own: CorePool<M, AicoreTasks, Swimlane>,
    head: DevAddr,
}

/// Whether an item may go to its core, and where the core records it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// It may. The core goes by the pool words that lie here; null when it records nothing.
    Granted(DevAddr),
    /// The core owes a record that another buffer waits for. Ask again later, before these cycles at the latest.
    Withheld {
        /// When the core's time is over.
        until_cycles: u64,
    },
}

/// What one lane records. `CORES` is the most cores that a lane may own.
pub struct SwimlaneRecorder<M: Memory, const CORES: usize> {
    lane: Lane<M, Swimlane>,
    level: Level,
    cores: Vec<CoreLine<M>, CORES>,
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
        let limit_cycles = attachment.region().shape().arch().facts().operation_timeout_cycles();
        let mut lines = Vec::new();
        for core in cores {
            let line = CoreLine {
                core,
                tasks: attachment.pool(memory, Instance(core))?,
                own: CorePool::new(memory, attachment.pool(memory, Instance(core))?, limit_cycles),
                head: attachment.pool_head(PoolKind::AICORE_TASK, Instance(core))?,
            };
            if lines.push(line).is_err() {
                break;
            }
        }
        let recorder = Self {
            lane: attachment.lane(memory, lane)?,
            level,
            cores: lines,
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
        match self.cores.iter_mut().find(|line| line.core == core) {
            Some(line) => self.lane.append(&mut line.tasks, record, env),
            None => Ok(()),
        }
    }

    /// Whether the next item may go to `core`; once granted, it has to. Blocks at gates, up to one deadline.
    #[inline]
    pub fn admit(&mut self, core: u32, env: &mut impl WaitEnv) -> Grant {
        let line = self.cores.iter_mut().find(|line| line.core == core);
        let Some(line) = line.filter(|_| self.level >= Level::CORE) else {
            return Grant::Granted(DevAddr::NULL);
        };
        if let Some(until_cycles) = line.own.admit(&mut self.lane, env) {
            return Grant::Withheld { until_cycles };
        }
        Grant::Granted(if line.own.reserve(&mut self.lane) { line.head } else { DevAddr::NULL })
    }

    /// The item that `core` records itself was dispatched under `token`.
    #[inline]
    pub fn dispatched(&mut self, core: u32, token: u32) {
        if let Some(line) = self.cores.iter_mut().find(|line| line.core == core) {
            line.own.dispatched(token);
        }
    }

    /// An item of `core` has finished. Blocks up to one deadline if that completes a buffer.
    #[inline]
    pub fn finished(&mut self, core: u32, env: &mut impl WaitEnv) {
        if let Some(line) = self.cores.iter_mut().find(|line| line.core == core) {
            line.own.finished(&mut self.lane, env);
        }
    }

    /// Before a flush: whether all cores have left their records. Never blocks.
    pub fn settle(&mut self, env: &impl WaitEnv) -> Settlement {
        let mut all = Settlement::Settled;
        for line in &mut self.cores {
            let Settlement::Owed { until_cycles } = line.own.settle(&mut self.lane, env) else { continue };
            let soonest_cycles = match all {
                Settlement::Settled => until_cycles,
                Settlement::Owed { until_cycles: other } => until_cycles.min(other),
            };
            all = Settlement::Owed { until_cycles: soonest_cycles };
        }
        all
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

    /// Publishes everything and tells the host so, unless a core may still write: its record was given up, and the host must
    /// not use the memory for anything else. Blocks up to one deadline per pool while the host is silent, and not at all once
    /// it is known to be gone.
    pub fn flush(&mut self, env: &mut impl WaitEnv) {
        let mut is_owed = false;
        for line in &mut self.cores {
            let _: SwitchEnd = self.lane.flush(&mut line.tasks, env);
            line.own.flush(&mut self.lane, env);
            is_owed |= line.own.state().is_owed;
        }
        let _: SwitchEnd = self.lane.flush(&mut self.sched, env);
        if let Some(orch) = &mut self.orch {
            let _: SwitchEnd = self.lane.flush(orch, env);
        }
        if is_owed {
            return;
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
