//! A lane's part of the dependencies: what each item of an execution waits for, told when the execution starts.
//!
//! Only the sequencer's lane is told of submits, so only it has records. Items stand in the order of their cores. An
//! execution that names no task table is not recorded.

use sluice_core::exec::tasks::{Item, ItemPlace, TaskId, TaskTable};
use sluice_core::exec::{CoreIndex, LaneIndex, WorkloadKinds};
use sluice_core::layout::args_dump::Role;
use sluice_core::layout::dep_gen::{MAX_EXPLICIT_DEPS, NO_KERNEL, OVERFLOW_DEPS, TENSOR_BYTES};
use sluice_core::layout::{Instance, Lane, PoolKind, SubsystemId};
use sluice_core::mem::{CopyMemory, DevAddr, DeviceMemory};
use sluice_core::mmio::{Engine, TpbId};
use sluice_core::producer::dep_gen::{DepGenRecorder, Submitted};
use sluice_core::producer::{AttachError, Attachment};
use zerocopy::IntoBytes;

use super::batch::Batch;
use super::event::{Recording, Stamps, Submit};
use super::parking::Parking;
use super::run::Run;
use super::tasks;
use super::wishes::{Events, Wishes};
use crate::platform::{Context, Platform};

/// What one lane records. What is lost is counted by cause in its pool.
pub(super) struct Recorder<M: DeviceMemory, const CORES: usize> {
    records: DepGenRecorder<M>,
    wishes: Wishes<M>,
}

impl<M: DeviceMemory, const CORES: usize> Recorder<M, CORES> {
    /// The recorder of `lane`, if the run has dependencies and they can be reached.
    pub(super) fn attach<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        run: &Run<'_>,
    ) -> Option<Self> {
        let region = run.recorders.region(SubsystemId::DepGen)?;
        Self::open(cx, lane, run, region).ok()
    }

    fn open<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        run: &Run<'_>,
        region: DevAddr,
    ) -> Result<Self, AttachError> {
        let extension = run.recorders.extension;
        let attachment = Attachment::open(cx.memory(), SubsystemId::DepGen, region, extension, run.shape)?;
        let decodes_requests = lane == LaneIndex::SEQUENCER;
        let records = DepGenRecorder::attach(cx.memory(), &attachment, Lane(lane.get()), decodes_requests)?;
        let at = decodes_requests.then_some((PoolKind::SOLE, Instance(0)));
        let wishes = Wishes::attach(cx.memory(), &attachment, Lane(lane.get()), 1, Events::Submits, at)?;
        Ok(Self { records, wishes })
    }
}

impl<P: Platform<Memory: DeviceMemory>, const CORES: usize> Recording<P> for Recorder<P::Memory, CORES> {
    const SUBSYSTEM: Option<SubsystemId> = Some(SubsystemId::DepGen);

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

    fn submitted(&mut self, submit: &Submit, env: &mut Parking<'_, P>) {
        let Some(table) = tasks::table(env.context(), submit.tpb) else { return };
        for engine in Engine::ALL {
            for ordinal in 1..=table.items(engine) {
                let place = ItemPlace { engine, ordinal };
                let Some(item) = table.item(place) else { continue };
                let (tpb, execution) = (submit.tpb, submit.ordinal);
                let _ = self.records.task(&Task { table: &table, tpb, place, item, execution }, env);
            }
        }
    }

    fn make_up(&mut self, batch: &mut Batch<'_>, env: &mut Parking<'_, P>) {
        if batch.kind == WorkloadKinds::DEP_GEN {
            let chain = batch.wanted.chain;
            batch.for_each(|made| _ = self.records.task(&MadeUpTask::new(made.number, chain), env));
        }
    }

    fn flush(&mut self, env: &mut Parking<'_, P>) {
        self.records.flush(env);
    }
}

/// A task that is nothing but a number, and waits for those before it: for up to seven, or for as many as its chain is to
/// have room for.
struct MadeUpTask {
    number: u32,
    deps: u32,
}

impl MadeUpTask {
    /// The task of that number, where the longest chain has so many slots.
    fn new(number: u32, chain: u32) -> Self {
        let deps = match number.checked_rem(chain) {
            None | Some(0) => number % 8,
            Some(links) => {
                let full = (links - 1).saturating_mul(OVERFLOW_DEPS as u32);
                full.saturating_add(MAX_EXPLICIT_DEPS as u32 + 1 + number % OVERFLOW_DEPS as u32)
            }
        };
        Self { number, deps }
    }
}

impl Submitted for MadeUpTask {
    fn id(&self) -> u64 {
        self.number.into()
    }

    fn kernels(&self) -> [i32; 3] {
        [NO_KERNEL; 3]
    }

    fn blocks(&self) -> u32 {
        1
    }

    fn deps(&self) -> u32 {
        self.deps
    }

    fn dep(&self, number: u32) -> u64 {
        self.number.wrapping_sub(number + 1).into()
    }

    fn tensors(&self) -> u32 {
        0
    }

    fn tensor(&self, _number: u32) -> (u8, [u8; TENSOR_BYTES]) {
        (0, [0; TENSOR_BYTES])
    }
}

/// An item as its table has it.
struct Task<'a, M> {
    table: &'a TaskTable<M>,
    tpb: TpbId,
    place: ItemPlace,
    item: Item,
    execution: u32,
}

impl<M> Task<'_, M> {
    fn id_of(&self, ItemPlace { engine, ordinal }: ItemPlace) -> u64 {
        TaskId::new(CoreIndex::of(self.tpb, engine), ordinal, self.execution).0
    }
}

impl<M: CopyMemory> Submitted for Task<'_, M> {
    fn id(&self) -> u64 {
        self.id_of(self.place)
    }

    fn kernels(&self) -> [i32; 3] {
        self.item.kernels
    }

    fn blocks(&self) -> u32 {
        self.item.blocks
    }

    fn deps(&self) -> u32 {
        self.item.deps
    }

    /// A dependency that the table does not have is no task.
    fn dep(&self, number: u32) -> u64 {
        self.table.dep(&self.item, number).map_or(0, |place| self.id_of(place))
    }

    fn tensors(&self) -> u32 {
        self.item.args
    }

    /// The argument and where its tensor is bound; zeros where it is only written.
    fn tensor(&self, number: u32) -> (u8, [u8; TENSOR_BYTES]) {
        let mut descriptor = [0; TENSOR_BYTES];
        let Some(arg) = self.table.arg(&self.item, number) else { return (0, descriptor) };
        if arg.role != Role::OUTPUT
            && let Some(binding) = self.table.binding(&arg)
        {
            let (bound, described) = descriptor.split_at_mut(size_of_val(&binding));
            bound.copy_from_slice(binding.as_bytes());
            described[..size_of_val(&arg)].copy_from_slice(arg.as_bytes());
        }
        (arg.role.0, descriptor)
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::producer::dep_gen::slots;

    use super::*;

    #[test]
    fn chains_of_made_up_tasks_take_turns_in_length() {
        for chain in [0, 1] {
            let deps = (6..=10).map(|number| MadeUpTask::new(number, chain).deps);
            assert!(deps.eq([6, 7, 0, 1, 2]), "no chains");
        }
        for chain in [2, 3, 1024] {
            let lengths = (0..5000).map(|number| slots(MadeUpTask::new(number, chain).deps));
            assert!(lengths.eq((0..5000).map(|number| 1 + number % chain)));
        }
        let fills = (0..OVERFLOW_DEPS as u32).map(|round| MadeUpTask::new(2 * round + 1, 2).deps);
        let (fewest, most) = (fills.clone().min(), fills.max());
        assert!(fewest < Some(70) && most == Some(64 + 582), "the last slot is filled differently");
        assert_eq!(
            MadeUpTask::new(u32::MAX - 1, u32::MAX).deps,
            u32::MAX,
            "more than any buffer has room for"
        );
    }
}
