//! A lane's part of the arguments: what items of its cores take, before they are dispatched, and what they give, once they
//! have finished and before anybody who waits for them knows.
//!
//! The region's header says how much to record until the host says otherwise. A header without its magic number is none, and
//! nothing is recorded. An execution that names no task table is not recorded.

use sluice_core::exec::tasks::{Arg, Binding, ElementType, Item, TaskId};
use sluice_core::exec::{CoreIndex, LaneIndex, Workload, WorkloadKinds};
use sluice_core::layout::args_dump::{Level, MAGIC, Role, Stage, header_words};
use sluice_core::layout::extension::AnswerCode;
use sluice_core::layout::{Instance, Lane, PoolKind, SubsystemId};
use sluice_core::mem::{DevAddr, DeviceMemory, Word};
use sluice_core::producer::args_dump::{ArgsDumpRecorder, Argument};
use sluice_core::producer::{AttachError, Attachment};
use zerocopy::FromZeros;

use super::batch::Batch;
use super::event::{Finish, ItemAt, Recording, Stamps};
use super::parking::Parking;
use super::run::Run;
use super::tasks;
use super::wishes::{Events, Wishes};
use crate::platform::{Context, Platform};

/// What one lane records. What is lost is counted by cause in its pool.
pub(super) struct Recorder<M: DeviceMemory, const CORES: usize> {
    records: ArgsDumpRecorder<M>,
    wishes: Wishes<M>,
}

impl<M: DeviceMemory, const CORES: usize> Recorder<M, CORES> {
    /// The recorder of `lane`, if the run has arguments and they can be reached.
    pub(super) fn attach<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        run: &Run<'_>,
    ) -> Option<Self> {
        let region = run.recorders.region(SubsystemId::ArgsDump)?;
        Self::open(cx, lane, run, region).ok()
    }

    fn open<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        run: &Run<'_>,
        region: DevAddr,
    ) -> Result<Self, AttachError> {
        let (words, memory) = (header_words(cx.arch()), cx.memory());
        let read = |offset: usize| memory.word(region.offset(offset as u64)).map(|word| word.load_acquire());
        if read(words.magic)? != MAGIC {
            return Err(AttachError::Refused(AnswerCode::BAD_LAYOUT));
        }
        let level = Level(read(words.dump_args_level)?);
        let extension = run.recorders.extension;
        let attachment = Attachment::open(memory, SubsystemId::ArgsDump, region, extension, run.shape)?;
        let lane = Lane(lane.get());
        let records = ArgsDumpRecorder::attach(memory, cx.map().ram, &attachment, lane, level)?;
        let at = (PoolKind::SOLE, Instance(lane.0));
        let wishes = Wishes::attach(memory, &attachment, lane, level.0, Events::Items, Some(at))?;
        Ok(Self { records, wishes })
    }

    fn arguments<P: Platform<Memory = M>>(
        &mut self,
        core: CoreIndex,
        at: &ItemAt,
        stage: Stage,
        env: &mut Parking<'_, P>,
    ) {
        let Some(table) = tasks::table(env.context(), core.tpb()) else { return };
        let Some(place) = table.place_of(core.engine(), at.instruction) else { return };
        let Some(item) = table.item(place) else { return };
        let task = TaskId::new(core, place.ordinal, at.execution).0;
        for index in 0..item.args {
            let Some(arg) = table.arg(&item, index) else { return };
            let binding = table.binding(&arg);
            let argument = Argument { task, item: &item, index, arg: &arg, binding };
            let _ = self.records.argument(&argument, stage, env);
        }
    }
}

impl<P: Platform<Memory: DeviceMemory>, const CORES: usize> Recording<P> for Recorder<P::Memory, CORES> {
    const SUBSYSTEM: Option<SubsystemId> = Some(SubsystemId::ArgsDump);

    fn stamps(&self) -> Stamps {
        Stamps::default()
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

    fn dispatching(&mut self, core: CoreIndex, at: &ItemAt, env: &mut Parking<'_, P>) {
        self.arguments(core, at, Stage::BEFORE_DISPATCH, env);
    }

    fn finished(&mut self, finish: &Finish, env: &mut Parking<'_, P>) {
        if let Some(at) = &finish.item {
            self.arguments(finish.core, at, Stage::AFTER_COMPLETION, env);
        }
    }

    fn make_up(&mut self, batch: &mut Batch<'_>, env: &mut Parking<'_, P>) {
        if batch.kind != WorkloadKinds::ARGS_DUMP {
            return;
        }
        let wanted = batch.wanted;
        let item = Item { chosen: u64::MAX, blocks: 1, args: 1, ..FromZeros::new_zeroed() };
        let mut arg = Arg { element: ElementType::BYTE, ..FromZeros::new_zeroed() };
        // Without bytes nothing of anybody's memory is read.
        let mut binding = Binding { base: env.context().map().ram.base.0, size_bytes: 0 };
        if wanted.payload_bytes > 0 {
            (arg.ndims, arg.shape[0], arg.strides[0]) = (1, wanted.payload_bytes, 1);
            binding = Binding { base: wanted.payload_source.0, size_bytes: wanted.source_bytes() };
        }
        let stage = if arg.role == Role::OUTPUT { Stage::AFTER_COMPLETION } else { Stage::BEFORE_DISPATCH };
        for made in batch {
            let start = made.number % Workload::PAYLOAD_STARTS * Workload::PAYLOAD_STEP_BYTES;
            arg.start_offset = start.into();
            let (task, binding) = (made.number.into(), Some(binding));
            let argument = Argument { task, item: &item, index: 0, arg: &arg, binding };
            let _ = self.records.argument(&argument, stage, env);
        }
    }

    fn flush(&mut self, env: &mut Parking<'_, P>) {
        self.records.flush(env);
    }
}
