//! Arguments and their bytes on memory of its own, with the host played by direct stores.

use core::mem::offset_of;
use std::vec::Vec;

use zerocopy::{FromBytes, FromZeros};

use super::super::tiny::Surroundings;
use super::*;
use crate::exec::tasks::ElementType;
use crate::gate::Gate;
use crate::layout::args_dump::BufferState;
use crate::layout::extension::{self, Extension, PoolStatus, Service};
use crate::layout::{ArchId, Lane as LaneNumber, Region, Shape, SubsystemId};
use crate::mem::testing::{BlockMemory, Poke, block};
use crate::producer::{ArenaState, PoolState, Progress, ReadyEntry};

const BASE: DevAddr = DevAddr(0x1_0000_0000);
/// Where parts lie, from the base.
const EXTENSION: u64 = 0x4000;
const BUFFERS: u64 = 0x10000;
const ARENA: u64 = 0x40000;
const TENSOR: u64 = 0x50000;
const BYTES: u64 = 0x60000;
const ARENA_BYTES: u64 = 256;
const LIMIT_CYCLES: u64 = 50;
const RAM: DeviceRange = DeviceRange { base: BASE, bytes: BYTES };

/// The host, played word by word.
#[derive(Clone)]
struct Host<M> {
    memory: M,
    region: Region,
}

/// One lane's recorder and its host.
struct Bench<M: CopyMemory> {
    host: Host<M>,
    recorder: ArgsDumpRecorder<M>,
}

/// A record of a published buffer and its bytes.
type Taken = (Record, Vec<u8>);

impl Bench<BlockMemory> {
    fn new(level: Level, buffers: u32) -> Self {
        Self::on(block(BASE, BYTES), level, buffers)
    }
}

impl<M: CopyMemory + Poke> Bench<M> {
    fn on(memory: M, level: Level, buffers: u32) -> Self {
        let shape = Shape::new(ArchId::A2a3, 1, 1).unwrap();
        let region = layout::region(SubsystemId::ArgsDump, shape);
        let pool = region.pool(PoolKind::SOLE, Instance(0)).unwrap();
        let state = |offset: usize| BASE.offset((pool.base + offset) as u64);
        memory.poke_address(state(offset_of!(BufferState, arena_base)), BASE.offset(ARENA));
        memory.poke(state(offset_of!(BufferState, arena_size)), ARENA_BYTES as u32);
        assert!(region.bytes() as u64 <= EXTENSION);
        assert!(EXTENSION + Extension::new(shape).bytes() as u64 <= BUFFERS);
        let deadline = offset_of!(extension::Head, deadline_cycles) + extension::HEAD;
        memory.poke(BASE.offset(EXTENSION + deadline as u64), LIMIT_CYCLES as u32);
        let at = BASE.offset(EXTENSION);
        let attachment = Attachment::open(&memory, SubsystemId::ArgsDump, BASE, at, shape).unwrap();
        let recorder = ArgsDumpRecorder::attach(&memory, RAM, &attachment, LaneNumber(0), level).unwrap();
        let host = Host { memory, region };
        (0..buffers).for_each(|number| host.give(buffer(number)));
        for word in 0..256u32 {
            let value = u32::from_le_bytes([0, 1, 2, 3].map(|byte| (4 * word + byte) as u8));
            host.memory.poke(BASE.offset(TENSOR + 4 * u64::from(word)), value);
        }
        Self { host, recorder }
    }

    /// Records a view of the tensor under a task of that number.
    fn record(&mut self, task: u64, dims: &[(u32, u32)], env: &mut impl WaitEnv) -> Result<(), AppendError> {
        self.record_as(task, Role::INPUT, u64::MAX, dims, env)
    }

    fn record_as(
        &mut self,
        task: u64,
        role: Role,
        chosen: u64,
        dims: &[(u32, u32)],
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        let mut arg = Arg { role, element: ElementType::named("int16").unwrap(), ..Arg::new_zeroed() };
        (arg.start_offset, arg.ndims) = (3, dims.len() as u8);
        for (place, &(size, stride)) in dims.iter().enumerate() {
            (arg.shape[place], arg.strides[place]) = (size, stride);
        }
        let item = Item { chosen, kernels: [4, -1, -1], ..Item::new_zeroed() };
        let binding = Some(Binding { base: BASE.offset(TENSOR).0, size_bytes: 1024 });
        let argument = Argument { task, item: &item, index: 0, arg: &arg, binding };
        let stage = if role == Role::OUTPUT { Stage::AFTER_COMPLETION } else { Stage::BEFORE_DISPATCH };
        self.recorder.argument(&argument, stage, env)
    }

    fn total(&self) -> u64 {
        self.recorder.pool.state().total()
    }

    fn dropped(&self) -> u64 {
        self.recorder.pool.state().dropped_total()
    }
}

impl<M: CopyMemory + Poke> Host<M> {
    fn state(&self, offset: usize) -> DevAddr {
        let pool = self.region.pool(PoolKind::SOLE, Instance(0)).unwrap();
        BASE.offset((pool.base + offset) as u64)
    }

    fn published(&self) -> u32 {
        self.memory.peek(self.state(offset_of!(BufferState, published_payload_count)))
    }

    fn complete(&self, payloads: u32) {
        self.memory.poke(self.state(offset_of!(BufferState, completed_payload_count)), payloads);
    }

    fn give(&self, buffer: DevAddr) {
        let pool = self.region.pool(PoolKind::SOLE, Instance(0)).unwrap();
        let tail_at = BASE.offset(pool.free_tail as u64);
        let tail = self.memory.peek(tail_at);
        let slot = pool.free_slot(tail, self.region.free_slots());
        self.memory.poke_address(BASE.offset(slot as u64), buffer);
        self.memory.poke(tail_at, tail + 1);
    }

    /// Takes the oldest buffer that is published, copies what it holds, gives it back and acknowledges its payloads.
    fn collect(&self) -> Option<Vec<Taken>> {
        let ring = self.region.lane(LaneNumber(0)).unwrap();
        let head = self.memory.peek(BASE.offset(ring.head as u64));
        if head == self.memory.peek(BASE.offset(ring.tail as u64)) {
            return None;
        }
        let entries = self.region.ready_entries();
        let table = self.memory.words(BASE.offset(ring.ring as u64), ReadyEntry::table_words(entries));
        let entry = ReadyEntry::read(&table.unwrap(), head).unwrap();
        let count = self.memory.peek(entry.buffer.offset(BUFFER.count as u64));
        let taken = (0..count).map(|index| {
            let mut bytes = [0; size_of::<Record>()];
            let at = entry.buffer.offset(BUFFER.record(index).unwrap() as u64);
            self.memory.read_bytes(at, &mut bytes).unwrap();
            let record = Record::read_from_bytes(&bytes).unwrap();
            let mut payload = std::vec![0; record.payload_size as usize];
            if !payload.is_empty() {
                let at = BASE.offset(ARENA + record.payload_offset % ARENA_BYTES);
                self.memory.read_bytes(at, &mut payload).unwrap();
            }
            (record, payload)
        });
        let taken: Vec<Taken> = taken.collect();
        self.memory.poke(BASE.offset(ring.head as u64), (head + 1) % entries);
        self.give(entry.buffer);
        let payloads = taken.iter().filter(|(record, _)| record.payload_size > 0).count() as u32;
        assert_eq!(entry.beside.get(), Some(payloads));
        let at = self.state(offset_of!(BufferState, completed_payload_count));
        self.complete(self.memory.peek(at) + payloads);
        Some(taken)
    }

    fn collect_all(&self) -> Vec<Taken> {
        core::iter::from_fn(|| self.collect()).flatten().collect()
    }
}

fn buffer(number: u32) -> DevAddr {
    BASE.offset(BUFFERS + u64::from(number) * BUFFER.bytes as u64)
}

fn alone() -> Surroundings<fn(u32)> {
    Surroundings::new((|_| ()) as fn(u32))
}

/// The bytes of a view of the tensor, element by element.
fn expected(dims: &[(u32, u32)]) -> Vec<u8> {
    let starts = dims.iter().fold(std::vec![3u32], |starts, &(size, stride)| {
        starts.iter().flat_map(|start| (0..size).map(move |i| start + i * stride)).collect()
    });
    starts.iter().flat_map(|start| [(2 * start) as u8, (2 * start + 1) as u8]).collect()
}

#[test]
fn views_are_gathered_element_by_element_in_their_order() {
    let views: [&[(u32, u32)]; 6] = [
        &[(10, 1)],
        &[(5, 7)],
        &[(4, 16), (3, 1)],
        &[(3, 0), (4, 1)],
        &[(2, 100), (3, 9), (2, 4)],
        &[(2, 1), (2, 50), (1, 1), (2, 10), (2, 3)],
    ];
    let mut bench = Bench::new(Level::FULL, 1);
    for (task, dims) in (0..).zip(views) {
        bench.record(task, dims, &mut alone()).unwrap();
    }
    bench.recorder.flush(&mut alone());
    let taken = bench.host.collect_all();
    assert_eq!(taken.len(), views.len());
    for ((record, payload), dims) in taken.iter().zip(views) {
        assert_eq!(*payload, expected(dims), "{dims:?}");
        assert_eq!((record.is_contiguous == 1, record.truncated), (dims == [(10, 1)], 0));
        assert_eq!((record.func_ids, record.func_count, record.dtype), ([4, 0xFFFF, 0xFFFF], 1, 3));
    }
}

#[test]
fn levels_say_which_arguments_are_recorded_and_which_have_bytes() {
    // Records and payloads of one argument that was chosen and one that was not.
    for (level, records, payloads) in
        [(Level::OFF, 0, 0), (Level::PARTIAL, 1, 1), (Level::FULL, 2, 2), (Level::HYBRID, 2, 1)]
    {
        let mut bench = Bench::new(level, 1);
        for chosen in [0, 1] {
            bench.record_as(chosen, Role::INOUT, chosen, &[(4, 1)], &mut alone()).unwrap();
        }
        bench.recorder.flush(&mut alone());
        assert_eq!((bench.host.published(), bench.total()), (payloads, records), "{level}");
        assert_eq!(bench.host.collect_all().len() as u64, records);
    }
    let due = [Role::INPUT, Role::OUTPUT, Role::INOUT]
        .map(|role| [Stage::BEFORE_DISPATCH, Stage::AFTER_COMPLETION].map(|stage| is_due(role, stage)));
    assert_eq!(due, [[true, false], [false, true], [true, true]]);
}

#[test]
fn a_view_larger_than_the_arena_is_cut_to_half_of_it_and_marked() {
    let mut bench = Bench::new(Level::FULL, 1);
    bench.record(1, &[(ARENA_BYTES as u32 / 2, 1)], &mut alone()).unwrap();
    bench.recorder.flush(&mut alone());
    let [(whole, _)] = &bench.host.collect_all()[..] else { panic!() };
    assert_eq!((whole.payload_size, whole.truncated), (ARENA_BYTES, 0));
    bench.record(2, &[(ARENA_BYTES as u32 / 2 + 1, 1)], &mut alone()).unwrap();
    bench.recorder.flush(&mut alone());
    let [(cut, payload)] = &bench.host.collect_all()[..] else { panic!() };
    assert_eq!((cut.payload_size, cut.truncated), (ARENA_BYTES / 2, 1));
    assert_eq!(*payload, expected(&[(ARENA_BYTES as u32 / 4, 1)]));
    // Of a view that leaves its tensor nothing is taken.
    bench.record(3, &[(600, 1)], &mut alone()).unwrap();
    bench.recorder.flush(&mut alone());
    let [(outside, _)] = &bench.host.collect_all()[..] else { panic!() };
    assert_eq!((outside.payload_size, outside.truncated), (0, 1));
}

#[test]
fn an_arena_that_wraps_loses_nothing() {
    // Interpreted, a task takes a sixth of a second.
    const TASKS: u32 = if cfg!(miri) { 60 } else { 600 };
    for buffers in [1, 2] {
        let mut bench = Bench::new(Level::FULL, buffers);
        let dims: Vec<[(u32, u32); 1]> = (0..TASKS).map(|task| [(1 + task * 7 % 60, 1)]).collect();
        let mut taken = Vec::new();
        for (task, dims) in (0..).zip(&dims) {
            // The host looks only once the lane waits.
            let host = bench.host.clone();
            let mut env = Surroundings::new(|_| taken.extend(host.collect_all()));
            bench.record(task, dims, &mut env).unwrap();
        }
        bench.recorder.flush(&mut alone());
        taken.extend(bench.host.collect_all());
        assert_eq!((bench.total(), bench.dropped()), (TASKS.into(), 0));
        let tasks: Vec<_> = taken.iter().map(|(record, _)| record.task_id).collect();
        assert_eq!(tasks, (0..TASKS.into()).collect::<Vec<u64>>());
        for ((record, payload), dims) in taken.iter().zip(&dims) {
            assert_eq!(*payload, expected(dims), "task {}", record.task_id);
            let at = record.payload_offset % ARENA_BYTES;
            assert!(at + record.payload_size <= ARENA_BYTES, "a payload never wraps");
        }
        assert!(taken.iter().any(|(record, _)| record.payload_offset > u64::from(TASKS / 30) * ARENA_BYTES));
    }
}

#[test]
fn an_arena_is_not_written_over_before_the_acknowledgement_whatever_flags_say() {
    let mut bench = Bench::new(Level::FULL, 2);
    bench.record(1, &[(100, 1)], &mut alone()).unwrap();
    let host = bench.host.clone();
    // Everything is served and every gate opens and shuts, but the bytes are not safe yet.
    let mut looks = 0;
    let mut env = Surroundings::new(|_| {
        looks += 1;
        let gates = host.region.gates();
        let set = |offset: usize, value| host.memory.poke(BASE.offset(offset as u64), value);
        set(gates.fq_contended, 0);
        set(gates.fq_freeze_active, looks & 1);
        let epoch = extension::service(SubsystemId::ArgsDump) + offset_of!(Service, release_epoch);
        let epoch = BASE.offset(EXTENSION + epoch as u64);
        host.memory.poke(epoch, looks);
        let mut first = [0; 2];
        host.memory.read_bytes(BASE.offset(ARENA), &mut first).unwrap();
        assert_eq!(first, expected(&[(1, 1)])[..], "the payload is still there");
        if looks == 20 {
            set(gates.fq_freeze_active, 0);
            assert_eq!(host.published(), 1);
            host.complete(1);
        }
    });
    bench.record(2, &[(90, 1)], &mut env).unwrap();
    assert_eq!((looks, bench.dropped()), (20, 0));
}

#[test]
fn one_deadline_covers_the_publication_and_the_acknowledgement() {
    let mut bench = Bench::new(Level::FULL, 2);
    bench.record(1, &[(100, 1)], &mut alone()).unwrap();
    let host = bench.host.clone();
    host.memory.poke(BASE.offset(host.region.gates().rq_freeze_active as u64), 1);
    let mut env = Surroundings::new(|round| {
        // The push gate takes most of the time there is.
        if round == 29 {
            host.memory.poke(BASE.offset(host.region.gates().rq_freeze_active as u64), 0);
        }
    });
    let lost = bench.record(2, &[(90, 1)], &mut env);
    assert_eq!(lost, Err(AppendError { cause: DropCause::HostGone }));
    assert_eq!(env.now_cycles.get(), LIMIT_CYCLES, "not once more for the acknowledgement");
    assert_eq!((bench.host.published(), bench.dropped()), (1, 1));
    let (clock_reads, mut env) = (0, alone());
    assert!(bench.record(3, &[(90, 1)], &mut env).is_err(), "known to be gone: no further wait");
    assert_eq!((env.now_cycles.get(), clock_reads), (0, 0));
    // What was published comes through, and with its acknowledgement the arena is free.
    let taken = bench.host.collect_all();
    assert_eq!(taken[0].1, expected(&[(100, 1)]));
    bench.record(4, &[(90, 1)], &mut alone()).unwrap();
    assert_eq!((bench.total(), bench.dropped()), (4, 2));
}

#[test]
fn payloads_of_a_buffer_that_waits_are_not_counted_yet() {
    let mut bench = Bench::new(Level::FULL, 1);
    bench.record(1, &[(4, 1)], &mut alone()).unwrap();
    let gates = bench.host.region.gates();
    bench.host.memory.poke(BASE.offset(gates.rq_freeze_active as u64), 1);
    let ArgsDumpRecorder { lane, pool, .. } = &mut bench.recorder;
    let (mut switch, env) = (lane.begin_switch(), alone());
    for _ in 0..3 {
        assert_eq!(lane.poll_switch(pool, &mut switch, &env), Progress::Waiting(Gate::Ready));
        assert_eq!(bench.host.published(), 0);
    }
    bench.host.memory.poke(BASE.offset(gates.rq_freeze_active as u64), 0);
    assert_eq!(lane.poll_switch(pool, &mut switch, &env), Progress::Moved);
    assert_eq!(bench.host.published(), 1);
}

#[test]
fn records_given_up_owe_no_acknowledgement() {
    let mut bench = Bench::new(Level::FULL, 1);
    bench.record(1, &[(100, 1)], &mut alone()).unwrap();
    let service = extension::service(SubsystemId::ArgsDump) + offset_of!(Service, host_detached);
    let detached = BASE.offset(EXTENSION + service as u64);
    bench.host.memory.poke(detached, 1);
    bench.host.memory.poke(BASE.offset(bench.host.region.gates().rq_freeze_active as u64), 1);
    // The buffer cannot be published; with its records its payloads are gone, and the arena is free.
    bench.record(2, &[(100, 1)], &mut alone()).unwrap();
    assert_eq!((bench.total(), bench.dropped(), bench.host.published()), (2, 1, 0));
}

#[test]
fn arguments_and_their_bytes_beyond_a_word_still_add_up() {
    let mut bench = Bench::new(Level::FULL, 2);
    let almost = u64::from(u32::MAX);
    let pool = &mut bench.recorder.pool;
    pool.restore(PoolState { attempts_elsewhere: almost, ..pool.state() }).expect("no buffer");
    let arena = pool.hooks().state();
    pool.hooks().restore(ArenaState { published: almost, ..arena });
    bench.record(1, &[(100, 1)], &mut alone()).unwrap();
    bench.recorder.flush(&mut alone());

    let host = bench.host.clone();
    let extension = Extension::new(Shape::new(ArchId::A2a3, 1, 1).unwrap());
    let status = extension.pool(SubsystemId::ArgsDump, 0).unwrap();
    let totals = [offset_of!(PoolStatus, total_records_lo), offset_of!(PoolStatus, total_records_hi)];
    let shown = totals.map(|offset| host.memory.peek(BASE.offset(EXTENSION + (status + offset) as u64)));
    assert_eq!((shown, bench.total()), ([0, 1], 1 << 32));
    let word = |offset: usize| host.memory.peek(host.state(offset));
    let published = offset_of!(BufferState, published_payload_count);
    assert_eq!([word(published), word(published + 4)], [0, 1]);

    // One word of it would be enough already: not even one payload was acknowledged.
    assert!(!bench.recorder.pool.try_next_lap(), "0 of 4,294,967,296");
    let completed = host.state(offset_of!(BufferState, completed_payload_count));
    host.memory.poke(completed, u32::MAX);
    assert!(!bench.recorder.pool.try_next_lap(), "all but one");
    host.memory.poke(completed, 0);
    host.memory.poke(completed.offset(4), 1);
    assert!(bench.recorder.pool.try_next_lap());
}
