//! The recorder of arguments: one record per argument, with the bytes of tensors in the lane's [`Arena`].
//!
//! | level | records | with bytes |
//! |---|---|---|
//! | off | none | |
//! | partial | arguments that were chosen | all of them |
//! | full | all | all of them |
//! | hybrid | all | those that were chosen |
//!
//! What an item takes is recorded before it is handed to its core, what it gives after it has finished, what it takes and
//! gives both times. A view is gathered into a row of bytes. One that is larger than the arena is cut to half of it, and marked.

use super::{
    Append, AppendError, Arena, AttachError, Attachment, DropCause, Lane, Pool, Records, Subsystem, SwitchEnd,
};
use crate::exec::DeviceRange;
use crate::exec::tasks::{Arg, Binding, Item};
use crate::gate::WaitEnv;
use crate::layout::args_dump::{
    ArgFlags, ArgKind, BUFFER, Level, MAX_FUNC_IDS, Record, Role, Stage, UNKNOWN_FUNC,
};
use crate::layout::extension::LaneActivity;
use crate::layout::{self, BufferLayout, Instance, PoolKind};
use crate::mem::{CopyMemory, DevAddr, Fault, Memory};
use zerocopy::FromZeros;

/// The argument subsystem.
#[derive(Debug)]
pub struct ArgsDump;

impl Subsystem for ArgsDump {}

/// Pools of arguments.
#[derive(Debug)]
pub struct Args;

impl Records for Args {
    type Record = Record;
    type Hooks<M: Memory> = Arena<M>;
    const LAYOUT: BufferLayout = BUFFER;
    const KIND: PoolKind = PoolKind::SOLE;
}

/// An argument of a task that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'a> {
    /// The task.
    pub task: u64,
    /// The item that the task is.
    pub item: &'a Item,
    /// Place of the argument among those of the item.
    pub index: u32,
    /// What it is.
    pub arg: &'a Arg,
    /// Where its tensor is bound, if it is.
    pub binding: Option<Binding>,
}

/// Whether arguments of that role are recorded at that time.
pub const fn is_due(role: Role, stage: Stage) -> bool {
    match stage {
        Stage::BEFORE_DISPATCH => role.0 != Role::OUTPUT.0,
        _ => role.0 != Role::INPUT.0,
    }
}

/// What one lane records.
pub struct ArgsDumpRecorder<M: CopyMemory> {
    memory: M,
    ram: DeviceRange,
    lane: Lane<M, ArgsDump>,
    pool: Pool<M, Args, ArgsDump>,
    level: Level,
}

impl<M: CopyMemory> ArgsDumpRecorder<M> {
    /// A recorder for `lane`. Tensors and its arena have to lie in `ram`.
    ///
    /// # Errors
    /// A lane that the region does not have, or memory that cannot be reached.
    pub fn attach(
        memory: &M,
        ram: DeviceRange,
        attachment: &Attachment,
        lane: layout::Lane,
        level: Level,
    ) -> Result<Self, AttachError> {
        let recorder = Self {
            memory: memory.clone(),
            ram,
            lane: attachment.lane(memory, lane)?,
            pool: attachment.pool(memory, Instance(lane.0))?,
            level,
        };
        recorder.lane.show(LaneActivity::RUNNING);
        Ok(recorder)
    }

    /// Records an argument at `stage`, if the level asks for it and the argument is due then.
    ///
    /// # Errors
    /// [`AppendError`] when the record is lost; it is counted.
    pub fn argument(
        &mut self,
        argument: &Argument<'_>,
        stage: Stage,
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        let is_chosen = argument.item.is_chosen(argument.index);
        let (is_recorded, with_bytes) = match self.level {
            Level::PARTIAL => (is_chosen, true),
            Level::FULL => (true, true),
            Level::HYBRID => (true, is_chosen),
            _ => (false, false),
        };
        if !is_recorded || !is_due(argument.arg.role, stage) {
            return Ok(());
        }
        let source = if with_bytes { self.source(argument) } else { Source::default() };
        self.pool.count_attempt();
        self.make_room(source.bytes, env)?;
        let mut record = record_of(argument, stage);
        record.truncated = source.is_cut.into();
        if source.bytes > 0 {
            let (offset, at) = self.pool.hooks().reserve(source.bytes);
            match gather(&self.memory, source.from, argument.arg, at, source.bytes) {
                Ok(()) => {
                    (record.payload_offset, record.payload_size) = (offset, source.bytes);
                    self.pool.hooks().note_payload();
                }
                Err(_) => record.truncated = 1,
            }
        }
        match self.pool.try_append(&record) {
            Append::Stored => Ok(()),
            Append::Full => self.lane.append_switching(&mut self.pool, env),
            Append::NoBuffer => self.lane.lose(&mut self.pool, DropCause::HostGone),
        }
    }

    /// The bytes to take of an argument: none of a view that is no place in memory.
    fn source(&mut self, argument: &Argument<'_>) -> Source {
        let arg = argument.arg;
        let view = argument.binding.and_then(|binding| {
            let (bytes, end, element) = (arg.bytes()?, arg.end_bytes()?, arg.element.bytes()?);
            let base = DevAddr(binding.base);
            let is_inside = end <= binding.size_bytes && self.ram.contains(base, binding.size_bytes);
            is_inside.then_some((bytes, base, u64::from(element)))
        });
        let Some((bytes, from, element)) = view else {
            return Source { is_cut: true, ..Source::default() };
        };
        let size = self.pool.hooks().size_bytes();
        if bytes <= size {
            return Source { from, bytes, is_cut: false };
        }
        let half = size / 2;
        Source { from, bytes: half - half % element, is_cut: true }
    }

    /// Sees to a buffer with room for a record, and to an arena with room for `bytes`.
    fn make_room(&mut self, bytes: u64, env: &mut impl WaitEnv) -> Result<(), AppendError> {
        let Self { lane, pool, .. } = self;
        if pool.room() == 0 {
            let _: SwitchEnd = lane.drive(pool, lane.begin_switch(), env);
        }
        if !pool.hooks().has_room(bytes) {
            let _: SwitchEnd = lane.drive(pool, lane.begin_emptying(pool), env);
            if !pool.try_next_lap() {
                return lane.lose(pool, DropCause::HostGone);
            }
        }
        if pool.room() == 0 { lane.lose(pool, DropCause::HostGone) } else { Ok(()) }
    }

    /// Publishes everything and tells the host so. Blocks up to one deadline while the host is silent, and not at all once it
    /// is known to be gone.
    pub fn flush(&mut self, env: &mut impl WaitEnv) {
        let _: SwitchEnd = self.lane.flush(&mut self.pool, env);
        self.lane.show(LaneActivity::FLUSHED);
        self.lane.show_flushed();
    }

    /// Records so much from now on.
    pub fn set_level(&mut self, level: Level) {
        self.level = level;
    }

    /// The lane, for its counters.
    pub fn lane(&self) -> &Lane<M, ArgsDump> {
        &self.lane
    }
}

/// Bytes that are taken of a tensor.
#[derive(Clone, Copy, Default, Debug)]
struct Source {
    from: DevAddr,
    bytes: u64,
    /// Fewer than the view has.
    is_cut: bool,
}

fn record_of(argument: &Argument<'_>, stage: Stage) -> Record {
    let Argument { item, arg, .. } = *argument;
    let known = item.kernels.iter().filter_map(|&kernel| u16::try_from(kernel).ok());
    let mut func_ids = [UNKNOWN_FUNC; MAX_FUNC_IDS];
    let mut func_count = 0;
    for (place, kernel) in func_ids.iter_mut().zip(known) {
        (*place, func_count) = (kernel, func_count + 1);
    }
    Record {
        task_id: argument.task,
        role: arg.role,
        stage,
        ndims: arg.ndims,
        arg_index: argument.index,
        dtype: arg.element.0,
        is_contiguous: arg.is_dense().into(),
        kind: ArgKind::TENSOR,
        flags: ArgFlags::empty(),
        func_ids,
        func_count,
        start_offset: arg.start_offset,
        strides: arg.strides,
        shapes: arg.shape,
        ..Record::new_zeroed()
    }
}

/// Copies the first `bytes` bytes of a view of the tensor at `from` into a row at `to`.
fn gather<M: CopyMemory>(memory: &M, from: DevAddr, arg: &Arg, to: DevAddr, bytes: u64) -> Result<(), Fault> {
    let element = u64::from(arg.element.bytes().unwrap_or(1));
    let start = from.offset(arg.start_offset * element);
    if arg.is_dense() {
        return memory.copy(start, to, bytes);
    }
    // The innermost dimension is a run where its elements lie in a row.
    let is_run = arg.dims().next_back().is_some_and(|(_, stride)| stride == 1);
    let outer = usize::from(arg.ndims) - usize::from(is_run);
    let run = if is_run { u64::from(arg.shape[outer]) * element } else { element };
    let mut counters = [0u32; layout::args_dump::MAX_DIMS];
    let mut done = 0;
    while done < bytes {
        let offset: u64 = counters[..outer]
            .iter()
            .zip(arg.dims())
            .map(|(&at, (_, stride))| u64::from(at) * u64::from(stride))
            .sum();
        let piece = run.min(bytes - done);
        memory.copy(start.offset(offset * element), to.offset(done), piece)?;
        done += piece;
        for (place, (size, _)) in arg.dims().enumerate().take(outer).rev() {
            counters[place] += 1;
            if counters[place] < size {
                break;
            }
            counters[place] = 0;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
