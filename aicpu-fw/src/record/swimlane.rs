//! A lane's part of the swimlane: tasks of its cores, phases of its loop, submits on the sequencer's lane.
//!
//! The region's header says how much to record until the host says otherwise. Lane 0 also writes what the header says of the device: which lane owns which
//! core, how many phase pools are live. Every lane tells its cores where their own pools begin.

use core::num::NonZeroU32;

use sluice_core::exec::{CoreIndex, LaneIndex, WorkloadKinds};
use sluice_core::layout::swimlane::{
    AicpuOrchPhaseRecord, AicpuSchedPhaseRecord, AicpuTaskRecord, HeaderWords, Level, SchedPhaseKind,
    header_words,
};
use sluice_core::layout::{Instance, Lane, PoolKind, Region, SubsystemId};
use sluice_core::mem::{Clock, CopyMemory, DevAddr, DeviceMemory, Fault, Memory, Word};
use sluice_core::mmio::CoreRecording;
use sluice_core::producer::swimlane::{self, SwimlaneRecorder};
use sluice_core::producer::{AttachError, Attachment, Settlement};
use zerocopy::FromZeros;

use super::batch::Batch;
use super::event::{Dispatch, Finish, Grant, Recording, Stamps, Submit};
use super::parking::Parking;
use super::run::{Run, cores};
use super::wishes::{Events, Wishes};
use crate::platform::{Context, Platform};

/// What one lane records. What is lost is counted by cause in its pool.
pub(super) struct Recorder<M: DeviceMemory, const CORES: usize> {
    records: SwimlaneRecorder<M, CORES>,
    wishes: Wishes<M>,
    run: NonZeroU32,
}

impl<M: DeviceMemory, const CORES: usize> Recorder<M, CORES> {
    /// The recorder of `lane`, if the run has a swimlane and it can be reached.
    pub(super) fn attach<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        run: &Run<'_>,
    ) -> Option<Self> {
        let region = run.recorders.region(SubsystemId::Swimlane)?;
        Self::open(cx, lane, run, region).ok()
    }

    fn open<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        run: &Run<'_>,
        region: DevAddr,
    ) -> Result<Self, AttachError> {
        let header = Header { cx, region, words: header_words(cx.arch()) };
        let speaks = lane == LaneIndex::SEQUENCER;
        let level = Level(header.word(header.words.chip_swimlane_level)?.load_acquire());
        let extension = run.recorders.extension;
        let attachment = Attachment::open(cx.memory(), SubsystemId::Swimlane, region, extension, run.shape)?;
        let own = || cores(cx).filter(|core| core.lane(cx.map().lanes) == lane).map(|core| core.get() as u32);
        let records =
            SwimlaneRecorder::attach(cx.memory(), &attachment, Lane(lane.get()), level, own(), speaks)?;
        if speaks {
            header.describe_device(level)?;
        }
        let heads = run.recorders.tables.aicore_heads;
        if !heads.is_null() {
            tell_cores(cx.memory(), heads, region, attachment.region(), own())?;
        }
        let (lane, at) = (Lane(lane.get()), (PoolKind::SCHED_PHASE, Instance(lane.get())));
        let events = Events::ItemsAndSubmits;
        let wishes = Wishes::attach(cx.memory(), &attachment, lane, level.0, events, Some(at))?;
        Ok(Self { records, wishes, run: run.number })
    }

    fn phase<P: Platform<Memory = M>>(
        &mut self,
        kind: SchedPhaseKind,
        start_cycles: u64,
        iteration: u32,
        phase_data: [u32; 2],
        env: &mut Parking<'_, P>,
    ) {
        let record = AicpuSchedPhaseRecord {
            start_time: start_cycles,
            end_time: env.now_cycles(),
            loop_iter: iteration,
            kind,
            tasks_processed: 1,
            phase_data,
            ..FromZeros::new_zeroed()
        };
        let _ = self.records.sched_phase(&record, env);
    }
}

impl<P: Platform<Memory: DeviceMemory>, const CORES: usize> Recording<P> for Recorder<P::Memory, CORES> {
    const SUBSYSTEM: Option<SubsystemId> = Some(SubsystemId::Swimlane);

    fn stamps(&self) -> Stamps {
        let level = self.records.level();
        Stamps { submits: level >= Level::FULL, items: level >= Level::TASK }
    }

    fn published(&self) -> u32 {
        self.records.lane().ready_tail()
    }

    fn dropped(&self) -> u32 {
        self.records.lane().state().dropped
    }

    #[inline]
    fn wishes(&mut self) -> Option<&mut Wishes<P::Memory>> {
        Some(&mut self.wishes)
    }

    fn set_level(&mut self, level: u32) {
        self.records.set_level(Level(level));
    }

    fn grants(&self) -> bool {
        self.records.level() >= Level::CORE
    }

    #[inline]
    fn grant(&mut self, core: CoreIndex, env: &mut Parking<'_, P>) -> Grant {
        match self.records.admit(core.get() as u32, env) {
            swimlane::Grant::Withheld { until_cycles } => Grant::Withheld { until_cycles },
            swimlane::Grant::Granted(DevAddr::NULL) => Grant::Granted(None),
            swimlane::Grant::Granted(head) => Grant::Granted(Some(CoreRecording { run: self.run, head })),
        }
    }

    fn submitted(&mut self, submit: &Submit, env: &mut Parking<'_, P>) {
        let Some(end_cycles) = submit.end_cycles else { return };
        let record = AicpuOrchPhaseRecord {
            start_time: submit.start_cycles.unwrap_or(end_cycles),
            end_time: end_cycles,
            task_id: u64::from(submit.tpb.get()) << 32 | u64::from(submit.ordinal),
            submit_idx: submit.index,
            ..FromZeros::new_zeroed()
        };
        let _ = self.records.orch_phase(&record, env);
    }

    #[inline]
    fn dispatched(&mut self, dispatch: &Dispatch, env: &mut Parking<'_, P>) {
        if dispatch.is_recorded_by_core {
            self.records.dispatched(dispatch.core.get() as u32, dispatch.token);
        }
        if self.records.level() >= Level::SCHED
            && let Some(dispatch_cycles) = dispatch.dispatch_cycles
        {
            self.phase(
                SchedPhaseKind::DISPATCH,
                dispatch_cycles,
                dispatch.iteration,
                [1, dispatch.misses],
                env,
            );
        }
    }

    #[inline]
    fn finished(&mut self, finish: &Finish, env: &mut Parking<'_, P>) {
        self.records.finished(finish.core.get() as u32, env);
        // An item that was dispatched before the recorder was attached is not of this run.
        let (Some(dispatch_time), Some(finish_time)) = (finish.dispatch_cycles, finish.finish_cycles) else {
            return;
        };
        let record = AicpuTaskRecord {
            dispatch_time,
            finish_time,
            reg_task_id: finish.token,
            ..FromZeros::new_zeroed()
        };
        let _ = self.records.task(finish.core.get() as u32, &record, env);
    }

    #[inline]
    fn completed(&mut self, finish: &Finish, env: &mut Parking<'_, P>) {
        if self.records.level() >= Level::SCHED
            && let (Some(_), Some(finish_cycles)) = (finish.dispatch_cycles, finish.finish_cycles)
        {
            self.phase(SchedPhaseKind::COMPLETE, finish_cycles, finish.iteration, [0; 2], env);
        }
    }

    fn make_up(&mut self, batch: &mut Batch<'_>, env: &mut Parking<'_, P>) {
        match batch.kind {
            WorkloadKinds::AICPU_TASK => batch.for_each(|made| {
                let record = AicpuTaskRecord {
                    dispatch_time: made.begin_cycles,
                    finish_time: made.end_cycles,
                    reg_task_id: made.number,
                    ..FromZeros::new_zeroed()
                };
                let _ = self.records.task(made.core.get() as u32, &record, env);
            }),
            WorkloadKinds::SCHED_PHASE => batch.for_each(|made| {
                let record = AicpuSchedPhaseRecord {
                    start_time: made.begin_cycles,
                    end_time: made.end_cycles,
                    loop_iter: made.number,
                    kind: SchedPhaseKind::DISPATCH,
                    tasks_processed: 1,
                    ..FromZeros::new_zeroed()
                };
                let _ = self.records.sched_phase(&record, env);
            }),
            WorkloadKinds::ORCH_PHASE => batch.for_each(|made| {
                let record = AicpuOrchPhaseRecord {
                    start_time: made.begin_cycles,
                    end_time: made.end_cycles,
                    task_id: made.number.into(),
                    submit_idx: made.number,
                    ..FromZeros::new_zeroed()
                };
                let _ = self.records.orch_phase(&record, env);
            }),
            _ => {}
        }
    }

    fn settle(&mut self, env: &mut Parking<'_, P>) -> Settlement {
        self.records.settle(env)
    }

    fn flush(&mut self, env: &mut Parking<'_, P>) {
        self.records.flush(env);
    }
}

/// Tells `cores` in the table at `heads` where the line of their own pool is that shows its current buffer.
fn tell_cores<M: CopyMemory>(
    memory: &M,
    heads: DevAddr,
    region_at: DevAddr,
    region: &Region,
    cores: impl Iterator<Item = u32>,
) -> Result<(), Fault> {
    for core in cores {
        if let Some(pool) = region.pool(PoolKind::AICORE_TASK, Instance(core)) {
            let head = region_at.offset(pool.current_ptr as u64);
            memory.write_bytes(heads.offset(u64::from(core) * 8), &head.0.to_le_bytes())?;
        }
    }
    Ok(())
}

/// Words of the region's header that only this subsystem has.
struct Header<'a, P: Platform> {
    cx: &'a Context<P>,
    region: DevAddr,
    words: HeaderWords,
}

impl<P: Platform> Header<'_, P> {
    fn word(&self, offset: usize) -> Result<<P::Memory as Memory>::Word, Fault> {
        self.cx.memory().word(self.region.offset(offset as u64))
    }

    fn describe_device(&self, level: Level) -> Result<(), Fault> {
        let lanes = self.cx.map().lanes;
        let mut count = 0;
        for core in cores(self.cx) {
            let at = self.region.offset((self.words.core_to_thread + core.get()) as u64);
            self.cx.memory().write_bytes(at, &[core.lane(lanes).get() as u8])?;
            count += 1;
        }
        let live = |from: Level, pools: u32| if level >= from { pools } else { 0 };
        self.word(self.words.num_phase_cores)?.store_relaxed(count);
        self.word(self.words.num_sched_phase_threads)?.store_relaxed(live(Level::SCHED, lanes));
        self.word(self.words.num_orch_phase_threads)?.store_relaxed(live(Level::FULL, 1));
        Ok(())
    }
}
