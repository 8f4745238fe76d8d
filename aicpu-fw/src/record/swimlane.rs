//! Swimlane records of one lane: tasks of the cores it owns, phases of its loop, and on lane 0 the submits.
//!
//! | level | records |
//! |---|---|
//! | 2 and more | one task record per item, in the pool of its core |
//! | 3 and more | one dispatch phase per item, one complete phase per FIN, in the pool of the lane |
//! | 4 | one orchestrator phase per execution and TPB, in the pool of lane 0 |

use heapless::Vec;
use sluice_core::exec::{CoreIndex, LaneIndex};
use sluice_core::gate::Gates;
use sluice_core::layout::extension::LaneActivity;
use sluice_core::layout::swimlane::{
    AicpuOrchPhaseRecord, AicpuSchedPhaseRecord, AicpuTaskRecord, Level, header_words, region,
};
use sluice_core::layout::{
    ArchId, BufferLayout, Instance, Lane as LaneNumber, PoolKind, Region, Shape, SubsystemId,
};
use sluice_core::mem::{CopyMemory, DevAddr, DeviceMemory, Fault, Memory, Word};
use sluice_core::producer::{Lane, Pool, PoolSetup, ReadyRing, Records, Subsystem};
use zerocopy::FromZeros;

use super::extension::{ExtensionBlock, FlushWords};
use super::parking::Parking;
use super::{OrchPhase, SchedPhase, TaskTimes};
use crate::platform::{Context, Platform};

const ID: SubsystemId = SubsystemId::Swimlane;

/// The subsystem as the buffer-switch engine sees it.
enum Swimlane {}

impl Subsystem for Swimlane {}

/// Buffers are laid out alike on both architectures.
const fn buffer(kind: PoolKind) -> BufferLayout {
    match region(Shape::full(ArchId::A2a3)).array(kind) {
        Some(array) => array.buffer,
        None => panic!("a kind of this subsystem"),
    }
}

macro_rules! kind {
    ($name:ident, $record:ty, $kind:expr) => {
        enum $name {}

        impl Records for $name {
            type Record = $record;
            const LAYOUT: BufferLayout = buffer($kind);
            const KIND: PoolKind = $kind;
        }
    };
}

kind!(Tasks, AicpuTaskRecord, PoolKind::AICPU_TASK);
kind!(SchedPhases, AicpuSchedPhaseRecord, PoolKind::SCHED_PHASE);
kind!(OrchPhases, AicpuOrchPhaseRecord, PoolKind::ORCH_PHASE);

/// The device cannot record into this region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AttachError {
    /// The region lies outside device memory.
    Fault,
    /// It has no place for this device's lanes or cores.
    Shape,
}

impl From<Fault> for AttachError {
    fn from(_: Fault) -> Self {
        Self::Fault
    }
}

/// The swimlane pools of one lane.
pub(super) struct SwimlaneRecorder<M: DeviceMemory> {
    lane: Lane<M, Swimlane>,
    lanes: u32,
    tasks: Vec<Pool<M, Tasks, Swimlane>, { CoreIndex::COUNT }>,
    sched: Option<Pool<M, SchedPhases, Swimlane>>,
    orch: Option<Pool<M, OrchPhases, Swimlane>>,
    flush: Option<FlushWords<M::Word>>,
}

/// How a region is put together for this device.
struct Setup<'a, P: Platform> {
    cx: &'a Context<P>,
    at: DevAddr,
    region: Region,
    extension: Option<&'a ExtensionBlock<P::Memory>>,
}

impl<P: Platform> Setup<'_, P> {
    fn pool<K: Records>(&self, instance: u32) -> Result<Pool<P::Memory, K, Swimlane>, AttachError> {
        let instance = Instance(instance);
        let offsets = self.region.pool(K::KIND, instance).ok_or(AttachError::Shape)?;
        let counts = match (self.extension, self.region.pool_number(K::KIND, instance)) {
            (Some(extension), Some(number)) => Some(extension.count_words(ID, number)?),
            _ => None,
        };
        let setup = PoolSetup { region: self.at, offsets, free_slots: self.region.free_slots(), instance };
        Ok(Pool::attach(self.cx.memory(), &setup, counts)?)
    }

    /// Writes what only lane 0 says of the run.
    fn describe_run(&self, level: Level) -> Result<(), Fault> {
        let words = header_words(self.cx.arch());
        let set = |offset: usize, value: u32| {
            self.cx.memory().word(self.at.offset(offset as u64)).map(|word| word.store_relaxed(value))
        };
        let lanes = self.cx.map().lanes;
        let mut cores = 0;
        for core in CoreIndex::all(self.cx.map().registers.tpbs()) {
            let owner = core.lane(lanes).get() as u8;
            let at = self.at.offset((words.core_to_thread + core.get()) as u64);
            self.cx.memory().write_bytes(at, &[owner])?;
            cores += 1;
        }
        set(words.num_phase_cores, cores)?;
        set(words.num_sched_phase_threads, if level.0 >= Level::SCHED.0 { lanes } else { 0 })?;
        set(words.num_orch_phase_threads, u32::from(level.0 >= Level::FULL.0))
    }
}

impl<M: DeviceMemory> SwimlaneRecorder<M> {
    /// The recorder of `lane` in the region at `at`.
    pub(super) fn attach<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        at: DevAddr,
        extension: Option<&ExtensionBlock<M>>,
    ) -> Result<Self, AttachError> {
        let words = header_words(cx.arch());
        let read = |offset: usize| cx.memory().word(at.offset(offset as u64)).map(|word| word.load_acquire());
        let level = Level(read(words.chip_swimlane_level)?);
        let lanes = cx.map().lanes;
        let shape = Shape::new(cx.arch(), lanes, read(words.num_cores)?).map_err(|_| AttachError::Shape)?;
        if extension.is_some_and(|extension| extension.shape() != shape) {
            return Err(AttachError::Shape);
        }
        let region = region(shape);
        let ring = region.lane(LaneNumber(lane.get())).ok_or(AttachError::Shape)?;
        let setup = Setup { cx, at, region, extension };
        let mut tasks = Vec::new();
        if level.0 >= Level::TASK.0 {
            for core in CoreIndex::all(cx.map().registers.tpbs()).filter(|core| core.lane(lanes) == lane) {
                // As many as a device has cores.
                let _ = tasks.push(setup.pool(core.get() as u32)?);
            }
        }
        let has_sched = level.0 >= Level::SCHED.0;
        let has_orch = level.0 >= Level::FULL.0 && lane == LaneIndex::SEQUENCER;
        let sched = has_sched.then(|| setup.pool(lane.get())).transpose()?;
        let orch = has_orch.then(|| setup.pool(lane.get())).transpose()?;
        if lane == LaneIndex::SEQUENCER {
            setup.describe_run(level)?;
        }
        let gates =
            Gates::attach(cx.memory(), at, region.gates(), extension.map(|block| block.gate_addrs(ID)))?;
        let ring = ReadyRing::attach(cx.memory(), at, ring, region.ready_entries())?;
        let lane_words = extension.map(|block| block.lane_words(ID, lane)).transpose()?;
        let flush = extension.map(|block| block.flush_words(ID, lane)).transpose()?;
        let limit_cycles =
            extension.map_or(cx.arch().facts().default_deadline_cycles(), ExtensionBlock::deadline_cycles);
        let lane = Lane::new(gates, ring, lane_words, limit_cycles);
        lane.show(LaneActivity::RUNNING);
        if let Some(flush) = &flush {
            flush.dropped_records.set(0);
            flush.flushed.publish(0);
        }
        Ok(Self { lane, lanes, tasks, sched, orch, flush })
    }

    pub(super) fn task<P: Platform<Memory = M>>(
        &mut self,
        core: CoreIndex,
        task: &TaskTimes,
        parking: &mut Parking<'_, P>,
    ) {
        // Cores are dealt round the lanes, so the n-th of a lane is its core number divided by the lanes.
        let Some(pool) = self.tasks.get_mut(core.get() / self.lanes as usize) else { return };
        let record = AicpuTaskRecord {
            dispatch_time: task.dispatch_cycles,
            finish_time: task.finish_cycles,
            reg_task_id: task.token,
            ..FromZeros::new_zeroed()
        };
        append(&mut self.lane, pool, &record, parking);
    }

    pub(super) fn sched_phase<P: Platform<Memory = M>>(
        &mut self,
        phase: &SchedPhase,
        parking: &mut Parking<'_, P>,
    ) {
        let Some(pool) = &mut self.sched else { return };
        let record = AicpuSchedPhaseRecord {
            start_time: phase.start_cycles,
            end_time: phase.end_cycles,
            loop_iter: phase.iteration,
            kind: phase.kind,
            tasks_processed: phase.tasks,
            ..FromZeros::new_zeroed()
        };
        append(&mut self.lane, pool, &record, parking);
    }

    pub(super) fn orch_phase<P: Platform<Memory = M>>(
        &mut self,
        phase: &OrchPhase,
        parking: &mut Parking<'_, P>,
    ) {
        let Some(pool) = &mut self.orch else { return };
        let record = AicpuOrchPhaseRecord {
            start_time: phase.start_cycles,
            end_time: phase.end_cycles,
            task_id: phase.task_id,
            submit_idx: phase.submit_index,
            ..FromZeros::new_zeroed()
        };
        append(&mut self.lane, pool, &record, parking);
    }

    /// Publishes everything and says so. Blocks up to one deadline per pool.
    pub(super) fn flush<P: Platform<Memory = M>>(&mut self, parking: &mut Parking<'_, P>) {
        let mut dropped = 0u64;
        for pool in &mut self.tasks {
            let _ = self.lane.flush(pool, parking);
            dropped += pool.state().dropped_total();
        }
        if let Some(pool) = &mut self.sched {
            let _ = self.lane.flush(pool, parking);
            dropped += pool.state().dropped_total();
        }
        if let Some(pool) = &mut self.orch {
            let _ = self.lane.flush(pool, parking);
            dropped += pool.state().dropped_total();
        }
        self.lane.show(LaneActivity::FLUSHED);
        if let Some(flush) = &self.flush {
            flush.dropped_records.set(dropped as u32);
            flush.flushed.publish(1);
        }
    }
}

fn append<P: Platform, K: Records>(
    lane: &mut Lane<P::Memory, Swimlane>,
    pool: &mut Pool<P::Memory, K, Swimlane>,
    record: &K::Record,
    parking: &mut Parking<'_, P>,
) {
    let published = pool.state().published;
    // A record that is lost is counted by cause in the pool itself.
    let _ = lane.append(pool, record, parking);
    if pool.state().published != published {
        parking.note_published();
    }
}
