//! The recorder of dependencies: one record per submitted task, with a chain behind it where it waits for many.
//!
//! ```text
//!   slot n       n + 1              n + 2                   of one buffer, never of two
//!   ┌─────────┐┌──────────────────┐┌─────────────────────┐
//!   │ task    ││ dependencies     ││ the last of them    │
//!   │ 64 deps ││ 64 .. 646        ││ 646 ..              │
//!   └─────────┘└──────────────────┘└─────────────────────┘
//! ```
//!
//! A task takes 1 + ⌈(dependencies − 64) / 582⌉ slots. One that takes more than a buffer has is counted as lost to `no_buffer`,
//! and nothing of it is stored. Slots collected, and tasks lost, are the tasks and the slots that chains took beside.

use core::mem::offset_of;

use super::{AppendError, AttachError, Attachment, Lane, Pool, Records, Slot, Subsystem, SwitchEnd};
use crate::gate::WaitEnv;
use crate::layout::dep_gen::{
    BUFFER, MAX_EXPLICIT_DEPS, MAX_TENSORS, OVERFLOW_DEPS, OverflowRecord, Record, RecordFlags, TENSOR_BYTES,
};
use crate::layout::extension::LaneActivity;
use crate::layout::{self, BufferLayout, Instance, PoolKind};
use crate::mem::{Memory, Window};

/// The dependency subsystem.
#[derive(Debug)]
pub struct DepGen;

impl Subsystem for DepGen {}

/// The pool of submitted tasks.
#[derive(Debug)]
pub struct Submits;

impl Records for Submits {
    type Record = Record;
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout = BUFFER;
    const KIND: PoolKind = PoolKind::SOLE;
}

/// A task that is submitted. Its lists are asked for one by one while they are recorded, so none has to fit anywhere.
pub trait Submitted {
    /// Its identity.
    fn id(&self) -> u64;
    /// Its kernels on the matrix core and the two vector cores; −1 = none.
    fn kernels(&self) -> [i32; 3];
    /// Blocks it is split into, at least 1.
    fn blocks(&self) -> u32;
    /// How many tasks it waits for.
    fn deps(&self) -> u32;
    /// The identity of the one of that number.
    fn dep(&self, number: u32) -> u64;
    /// How many tensors it has. Those beyond [`MAX_TENSORS`] are not recorded.
    fn tensors(&self) -> u32;
    /// Kind and opaque descriptor of the one of that number.
    fn tensor(&self, number: u32) -> (u8, [u8; TENSOR_BYTES]);
}

/// Slots that a task with so many dependencies takes.
pub const fn slots(deps: u32) -> u32 {
    1 + deps.saturating_sub(MAX_EXPLICIT_DEPS as u32).div_ceil(OVERFLOW_DEPS as u32)
}

/// What one lane records: submitted tasks on the lane that decodes requests, nothing on the others.
pub struct DepGenRecorder<M: Memory> {
    lane: Lane<M, DepGen>,
    pool: Option<Pool<M, Submits, DepGen>>,
}

impl<M: Memory> DepGenRecorder<M> {
    /// A recorder for `lane`.
    ///
    /// # Errors
    /// A lane that the region does not have, or memory that cannot be reached.
    pub fn attach(
        memory: &M,
        attachment: &Attachment,
        lane: layout::Lane,
        decodes_requests: bool,
    ) -> Result<Self, AttachError> {
        let recorder = Self {
            lane: attachment.lane(memory, lane)?,
            pool: decodes_requests.then(|| attachment.pool(memory, Instance(0))).transpose()?,
        };
        recorder.lane.show(LaneActivity::RUNNING);
        Ok(recorder)
    }

    /// Records a task; nothing on a lane that decodes no requests.
    ///
    /// # Errors
    /// [`AppendError`] when the task is lost; it is counted.
    pub fn task(&mut self, task: &impl Submitted, env: &mut impl WaitEnv) -> Result<(), AppendError> {
        let Some(pool) = &mut self.pool else { return Ok(()) };
        append(&mut self.lane, pool, task, env)
    }

    /// Publishes everything and tells the host so. Blocks up to one deadline while the host is silent, and not at all once it
    /// is known to be gone.
    pub fn flush(&mut self, env: &mut impl WaitEnv) {
        if let Some(pool) = &mut self.pool {
            let _: SwitchEnd = self.lane.flush(pool, env);
        }
        self.lane.show(LaneActivity::FLUSHED);
        self.lane.show_flushed();
    }

    /// The lane, for its counters.
    pub fn lane(&self) -> &Lane<M, DepGen> {
        &self.lane
    }
}

fn append<M: Memory, S: Subsystem>(
    lane: &mut Lane<M, S>,
    pool: &mut Pool<M, Submits, S>,
    task: &impl Submitted,
    env: &mut impl WaitEnv,
) -> Result<(), AppendError> {
    let slots = slots(task.deps());
    lane.append_chain(pool, slots, env, |number, slot| match number {
        0 => write_task(slot, task, slots > 1),
        _ => write_overflow(slot, task, number, number + 1 == slots),
    })
}

fn write_task<W: Window>(slot: &mut Slot<'_, W>, task: &impl Submitted, has_overflow: bool) {
    let flags = if has_overflow { RecordFlags::HAS_OVERFLOW } else { RecordFlags::empty() };
    let deps = task.deps().min(MAX_EXPLICIT_DEPS as u32);
    let tensors = task.tensors().min(MAX_TENSORS as u32);
    let mut writer = Writer { slot, at: offset_of!(Record, task_id) };
    writer.put(&task.id().to_le_bytes());
    writer.put(&flags.bits().to_le_bytes());
    writer.put(&(tensors as u16).to_le_bytes());
    writer.put(&(deps as u16).to_le_bytes());
    (0..deps).for_each(|number| writer.put(&task.dep(number).to_le_bytes()));
    writer.zero_to(offset_of!(Record, arg_types));
    (0..tensors).for_each(|number| writer.put(&[task.tensor(number).0]));
    writer.zero_to(offset_of!(Record, kernel_id));
    task.kernels().iter().for_each(|kernel| writer.put(&kernel.to_le_bytes()));
    writer.put(&task.blocks().to_le_bytes());
    (0..tensors).for_each(|number| writer.put(&task.tensor(number).1));
    writer.zero_to(size_of::<Record>());
}

fn write_overflow<W: Window>(slot: &mut Slot<'_, W>, task: &impl Submitted, number: u32, is_last: bool) {
    let mut flags = RecordFlags::IS_OVERFLOW;
    flags.set(RecordFlags::LAST_OVERFLOW, is_last);
    let first = MAX_EXPLICIT_DEPS as u32 + (number - 1) * OVERFLOW_DEPS as u32;
    let deps = (task.deps() - first).min(OVERFLOW_DEPS as u32);
    let mut writer = Writer { slot, at: offset_of!(OverflowRecord, task_id) };
    writer.put(&task.id().to_le_bytes());
    writer.put(&flags.bits().to_le_bytes());
    writer.put(&(deps as u16).to_le_bytes());
    writer.zero_to(offset_of!(OverflowRecord, deps));
    (first..first + deps).for_each(|number| writer.put(&task.dep(number).to_le_bytes()));
    writer.zero_to(size_of::<OverflowRecord>());
}

/// Fills a slot from its beginning, with zeros where nothing is said.
struct Writer<'a, 'b, W> {
    slot: &'a mut Slot<'b, W>,
    at: usize,
}

impl<W: Window> Writer<'_, '_, W> {
    fn put(&mut self, bytes: &[u8]) {
        self.slot.write(self.at as u32, bytes);
        self.at += bytes.len();
    }

    fn zero_to(&mut self, end: usize) {
        const ZEROS: [u8; 64] = [0; 64];
        while let Some(left @ 1..) = end.checked_sub(self.at) {
            self.put(&ZEROS[..left.min(ZEROS.len())]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;
    use zerocopy::FromBytes;

    use super::super::tiny::Surroundings;
    use super::*;
    use crate::layout::{ArchId, Lane as LaneNumber, Region, Shape, SubsystemId};
    use crate::mem::testing::{BlockMemory, Poke, block};
    use crate::mem::{CopyMemory, DevAddr};
    use crate::producer::{DropCause, ReadyEntry};

    const BASE: DevAddr = DevAddr(0x1_0000_0000);
    const RECORD_BYTES: usize = size_of::<Record>();

    struct Task {
        id: u64,
        deps: u32,
        tensors: u32,
    }

    impl Submitted for Task {
        fn id(&self) -> u64 {
            self.id
        }

        fn kernels(&self) -> [i32; 3] {
            [-1, 5, -1]
        }

        fn blocks(&self) -> u32 {
            1
        }

        fn deps(&self) -> u32 {
            self.deps
        }

        fn dep(&self, number: u32) -> u64 {
            assert!(number < self.deps);
            self.id << 32 | u64::from(number)
        }

        fn tensors(&self) -> u32 {
            self.tensors
        }

        fn tensor(&self, number: u32) -> (u8, [u8; TENSOR_BYTES]) {
            (1, [number as u8; TENSOR_BYTES])
        }
    }

    /// A region with buffers behind it, and the host played word by word.
    struct Bench {
        memory: BlockMemory,
        region: Region,
        recorder: DepGenRecorder<BlockMemory>,
        env: Surroundings<fn(u32)>,
        buffers: u32,
        taken: u32,
    }

    impl Bench {
        fn new(buffers: u32) -> Self {
            let shape = Shape::new(ArchId::A2a3, 1, 1).unwrap();
            let region = layout::region(SubsystemId::DepGen, shape);
            let bytes = region.bytes().next_multiple_of(64) + buffers as usize * BUFFER.bytes;
            let memory = block(BASE, bytes as u64);
            let attachment =
                Attachment::open(&memory, SubsystemId::DepGen, BASE, DevAddr::NULL, shape).unwrap();
            let recorder = DepGenRecorder::attach(&memory, &attachment, LaneNumber(0), true).unwrap();
            let env = Surroundings::new((|_| ()) as fn(u32));
            let mut bench = Self { memory, region, recorder, env, buffers, taken: 0 };
            (0..buffers.min(4)).for_each(|buffer| bench.give(bench.buffer(buffer)));
            bench
        }

        fn buffer(&self, number: u32) -> DevAddr {
            let first = self.region.bytes().next_multiple_of(64);
            BASE.offset((first + number as usize * BUFFER.bytes) as u64)
        }

        fn give(&mut self, buffer: DevAddr) {
            let pool = self.region.pool(PoolKind::SOLE, Instance(0)).unwrap();
            let tail = self.memory.peek(BASE.offset(pool.free_tail as u64));
            let slot = pool.free_slot(tail, self.region.free_slots());
            self.memory.poke_address(BASE.offset(slot as u64), buffer);
            self.memory.poke(BASE.offset(pool.free_tail as u64), tail + 1);
        }

        fn word(&self, offset: usize) -> u32 {
            self.memory.peek(BASE.offset(offset as u64))
        }

        /// Slots of the oldest buffer that is published; it goes back to the device.
        fn take(&mut self) -> Option<Vec<Vec<u8>>> {
            let ring = self.region.lane(LaneNumber(0)).unwrap();
            let head = self.word(ring.head);
            if head == self.word(ring.tail) {
                return None;
            }
            let entries = self.region.ready_entries();
            let table = self.memory.words(BASE.offset(ring.ring as u64), ReadyEntry::table_words(entries));
            let entry = ReadyEntry::read(&table.unwrap(), head).unwrap();
            let count = self.memory.peek(entry.buffer.offset(BUFFER.count as u64));
            let slots = (0..count).map(|index| {
                let mut bytes = std::vec![0; RECORD_BYTES];
                let at = entry.buffer.offset(BUFFER.record(index).unwrap() as u64);
                self.memory.read_bytes(at, &mut bytes).unwrap();
                bytes
            });
            let slots = slots.collect();
            self.memory.poke(BASE.offset(ring.head as u64), (head + 1) % entries);
            self.taken += 1;
            self.give(entry.buffer);
            Some(slots)
        }

        fn counts(&self) -> (u32, u32, u32) {
            let pool = self.region.pool(PoolKind::SOLE, Instance(0)).unwrap();
            let at = |offset: Option<usize>| self.word(offset.unwrap());
            (at(pool.total_records), at(pool.overflow_records), self.word(pool.dropped_records))
        }
    }

    /// The tasks in the slots of one buffer: identity and dependencies. Chains have to be whole.
    fn tasks(slots: &[Vec<u8>]) -> Vec<(u64, Vec<u64>)> {
        let mut tasks: Vec<(u64, Vec<u64>)> = Vec::new();
        let mut is_open = false;
        for bytes in slots {
            let record = Record::read_from_bytes(bytes).unwrap();
            if !record.flags.contains(RecordFlags::IS_OVERFLOW) {
                assert!(!is_open, "a chain without an end");
                is_open = record.flags.contains(RecordFlags::HAS_OVERFLOW);
                let deps = record.explicit_deps[..record.explicit_dep_count as usize].to_vec();
                tasks.push((record.task_id, deps));
                continue;
            }
            let overflow = OverflowRecord::read_from_bytes(bytes).unwrap();
            let (task, deps) = tasks.last_mut().expect("no chain begins a buffer");
            assert!(is_open && overflow.task_id == *task);
            deps.extend(&overflow.deps[..overflow.dep_count as usize]);
            is_open = !overflow.flags.contains(RecordFlags::LAST_OVERFLOW);
        }
        assert!(!is_open, "a chain that goes on in another buffer");
        tasks
    }

    fn expected(task: &Task) -> (u64, Vec<u64>) {
        (task.id, (0..task.deps).map(|number| task.dep(number)).collect())
    }

    #[test]
    fn chains_are_as_long_as_their_dependencies_need() {
        let lengths = [0, 1, 64, 65, 200, 391, 646, 647, 1228, 1229];
        assert_eq!(lengths.map(slots), [1, 1, 1, 2, 2, 2, 2, 3, 3, 4]);
        let mut bench = Bench::new(1);
        let tasks_made: Vec<_> = (1..).zip(lengths).map(|(id, deps)| Task { id, deps, tensors: 2 }).collect();
        for task in &tasks_made {
            bench.recorder.task(task, &mut bench.env).unwrap();
        }
        bench.recorder.flush(&mut bench.env);
        let found = tasks(&bench.take().expect("published"));
        assert_eq!(found, tasks_made.iter().map(expected).collect::<Vec<_>>());
        assert_eq!(bench.counts(), (10, 11, 0));
    }

    #[test]
    fn a_record_says_everything_of_its_task_and_nothing_of_what_stood_there() {
        let mut bench = Bench::new(1);
        bench.memory.write_bytes(bench.buffer(0), &std::vec![0xEE; BUFFER.bytes]).unwrap();
        bench.recorder.task(&Task { id: 9, deps: 65, tensors: 40 }, &mut bench.env).unwrap();
        bench.recorder.flush(&mut bench.env);
        let slots = bench.take().expect("published");
        let record = Record::read_from_bytes(&slots[0]).unwrap();
        assert_eq!((record.tensor_count, record.block_num, record.kernel_id), (32, 1, [-1, 5, -1]));
        assert_eq!((record.arg_types, record.tensors[31]), ([1; 32], [31; TENSOR_BYTES]));
        let overflow = OverflowRecord::read_from_bytes(&slots[1]).unwrap();
        assert_eq!((overflow.dep_count, overflow._reserved), (1, 0));
        assert_eq!(overflow.deps[1..], [0; OVERFLOW_DEPS - 1]);
    }

    #[test]
    fn more_dependencies_than_a_buffer_holds_are_counted_and_never_cut_short() {
        let mut bench = Bench::new(1);
        let most = MAX_EXPLICIT_DEPS as u32 + (BUFFER.capacity - 1) * OVERFLOW_DEPS as u32;
        assert_eq!(slots(most), BUFFER.capacity);
        let lost = bench.recorder.task(&Task { id: 1, deps: most + 1, tensors: 0 }, &mut bench.env);
        assert_eq!(lost, Err(AppendError { cause: DropCause::NoBuffer }));
        assert_eq!(bench.counts(), (1, 0, 1));
        bench.recorder.flush(&mut bench.env);
        assert!(bench.take().is_none(), "nothing of it is stored");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// No chain spans buffers, none is lost or torn, and the counts add up, at any place in a buffer.
        #[test]
        #[cfg_attr(miri, ignore = "fills whole buffers of five megabytes, slow to interpret")]
        fn chains_never_span_buffers(
            start in 1000..1024_u32,
            lengths in prop::collection::vec(prop_oneof![0..70_u32, 60..8000_u32], 1..12),
        ) {
            let mut bench = Bench::new(2);
            let fill = (0..start).map(|_| 0);
            let made: Vec<_> =
                (1..).zip(fill.chain(lengths)).map(|(id, deps)| Task { id, deps, tensors: 0 }).collect();
            let (mut found, mut collected) = (Vec::new(), 0);
            for task in &made {
                bench.recorder.task(task, &mut bench.env).unwrap();
                while let Some(slots) = bench.take() {
                    collected += slots.len() as u32;
                    found.extend(tasks(&slots));
                }
            }
            bench.recorder.flush(&mut bench.env);
            while let Some(slots) = bench.take() {
                collected += slots.len() as u32;
                found.extend(tasks(&slots));
            }
            prop_assert_eq!(found, made.iter().map(expected).collect::<Vec<_>>());
            let (total, overflow, dropped) = bench.counts();
            prop_assert_eq!(collected + dropped, total + overflow);
            prop_assert!(bench.taken >= 1 && bench.buffers == 2);
        }
    }
}
