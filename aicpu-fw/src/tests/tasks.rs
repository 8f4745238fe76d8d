//! What lanes record of what items are: arguments, by the task table that an execution names.

use core::mem::offset_of;
use std::vec::Vec;

use sluice_core::exec::tasks::{Arg, Binding, ElementType, Item, TableParts, TaskId, bindings_head};
use sluice_core::exec::{CoreIndex, HostBoot, Recorders, SideTables};
use sluice_core::layout::args_dump::{
    BUFFER, BufferState, Level, MAGIC, Record, Role, Stage, header_words, region,
};
use sluice_core::layout::extension::{self, Extension, Head, layout_hash};
use sluice_core::layout::{
    ArchId, EnableMask, Instance, Lane, PoolKind, Region, SUBSYSTEMS, Shape, SubsystemId,
};
use sluice_core::mem::{CopyMemory, DevAddr, Memory as _, Word};
use sluice_core::mmio::{Engine, TpbId};
use sluice_core::producer::ReadyEntry;
use zerocopy::{FromZeros, IntoBytes};

use super::bench::{Bench, Memory, NO_DELAY, NONE, assert_done, block, bytes, with_bench};
use crate::test_host::{TestHost, copy};

const LANES: u32 = 2;
const ARENA_BYTES: u64 = 4096;

/// An ArgsDump region, without an extension block unless one is said; one buffer per lane.
struct Session<'a> {
    memory: Memory<'a>,
    boot: HostBoot<Memory<'a>>,
    region: Region,
    at: DevAddr,
}

impl<'a> Session<'a> {
    fn attach(bench: &Bench<'a>, host: &mut TestHost<Memory<'a>>, magic: u32) -> Self {
        Self::attach_beside(bench, host, magic, DevAddr::NULL)
    }

    fn attach_beside(
        bench: &Bench<'a>,
        host: &mut TestHost<Memory<'a>>,
        magic: u32,
        extension: DevAddr,
    ) -> Self {
        let region = region(Shape::new(ArchId::A2a3, LANES, 10).unwrap());
        let at = host.alloc(region.bytes() as u64);
        let boot = HostBoot::attach(&bench.memory, bench.map.boot).unwrap();
        let session = Self { memory: bench.memory.clone(), boot, region, at };
        let words = header_words(ArchId::A2a3);
        session.set(words.magic, magic);
        session.set(words.dump_args_level, Level::FULL.0);
        for lane in 0..LANES {
            let pool = session.region.pool(PoolKind::SOLE, Instance(lane)).unwrap();
            let (arena, buffer) = (host.alloc(ARENA_BYTES), host.alloc(BUFFER.bytes as u64));
            session.set_long(pool.base + offset_of!(BufferState, arena_base), arena.0);
            session.set_long(pool.base + offset_of!(BufferState, arena_size), ARENA_BYTES);
            session.set_long(pool.free_ptrs, buffer.0);
            session.set(pool.free_tail, 1);
        }
        let mut regions = [DevAddr::NULL; SUBSYSTEMS];
        regions[SubsystemId::ArgsDump.index()] = at;
        let (enabled, tables) = (EnableMask::ARGS_DUMP, SideTables::default());
        let recorders = Recorders { enabled, extension, regions, tables };
        session.boot.attach_recorders(&recorders).unwrap();
        session
    }

    fn set(&self, offset: usize, value: u32) {
        self.memory.word(self.at.offset(offset as u64)).unwrap().store_release(value);
    }

    fn set_long(&self, offset: usize, value: u64) {
        self.memory.write_bytes(self.at.offset(offset as u64), &value.to_le_bytes()).unwrap();
    }

    fn get(&self, at: DevAddr) -> u32 {
        self.memory.word(at).unwrap().load_acquire()
    }

    /// Ends the recording: every record by lane, with its bytes.
    fn stop(&self, bench: &mut Bench<'_>) -> Vec<(u32, Record, Vec<u8>)> {
        self.boot.stop_recorders().unwrap();
        bench.settle();
        let mut all = Vec::new();
        for lane in 0..LANES {
            let ring = self.region.lane(Lane(lane)).unwrap();
            let words = ReadyEntry::table_words(self.region.ready_entries());
            let table = self.memory.words(self.at.offset(ring.ring as u64), words).unwrap();
            let pool = self.region.pool(PoolKind::SOLE, Instance(lane)).unwrap();
            let mut arena = [0; 8];
            let at = self.at.offset((pool.base + offset_of!(BufferState, arena_base)) as u64);
            self.memory.read_bytes(at, &mut arena).unwrap();
            for entry in 0..self.get(self.at.offset(ring.tail as u64)) {
                let buffer = ReadyEntry::read(&table, entry).unwrap().buffer;
                for index in 0..self.get(buffer.offset(BUFFER.count as u64)) {
                    let mut record = Record::new_zeroed();
                    let at = buffer.offset(BUFFER.record(index).unwrap() as u64);
                    self.memory.read_bytes(at, record.as_mut_bytes()).unwrap();
                    let mut payload = std::vec![0; record.payload_size as usize];
                    let at = DevAddr(u64::from_le_bytes(arena)).offset(record.payload_offset);
                    self.memory.read_bytes(at, &mut payload).unwrap();
                    all.push((lane, record, payload));
                }
            }
        }
        all
    }
}

/// A program of one block on ACT that copies 64 bytes, and what describes it.
struct Model {
    bases: [DevAddr; Engine::COUNT],
    /// The address of the bindings, in memory.
    named: DevAddr,
    x: DevAddr,
    y: DevAddr,
}

impl Model {
    fn place(host: &mut TestHost<Memory<'_>>) -> Self {
        let (x, y) = (host.place(&bytes(3, 64)), host.alloc(64));
        let act = host.program(&[block(0, 1, &[], None)]);
        let mut bases = [NONE; Engine::COUNT];
        bases[Engine::Act.index()] = act;
        let arg = |tensor, role| Arg {
            tensor,
            role,
            element: ElementType::BYTE,
            ndims: 1,
            shape: [64, 0, 0, 0, 0],
            strides: [1, 0, 0, 0, 0],
            ..Arg::new_zeroed()
        };
        let args = [arg(0, Role::INPUT), arg(1, Role::OUTPUT)];
        let items = [Item { args: 2, ..Item::new_zeroed() }];
        let items: [&[Item]; Engine::COUNT] = [&[], &items, &[], &[], &[]];
        let parts = TableParts { programs: bases, items, args: &args, deps: &[], tensors: 2 };
        let table: Vec<u8> = parts.pieces().flat_map(|piece| piece.as_ref().to_vec()).collect();
        let table = host.place(&table);
        let mut bindings = bindings_head(table, 2).to_vec();
        for at in [x, y] {
            bindings.extend_from_slice(Binding { base: at.0, size_bytes: 64 }.as_bytes());
        }
        let bindings = host.place(&bindings);
        Self { bases, named: host.place(&bindings.0.to_le_bytes()), x, y }
    }

    fn execute(&self, bench: &mut Bench<'_>, host: &mut TestHost<Memory<'_>>, names_table: bool) {
        host.write(self.y, &[0; 64]);
        let rings = host.rings(super::bench::queue(0), &[copy(self.x, self.y, 64)]);
        let mut pairs = host.swap_copies(&rings);
        if names_table {
            pairs.push(copy(self.named, host.registers().tasks(), 8));
        }
        pairs.extend(host.trigger(self.bases, false));
        host.post(&pairs);
        host.kick();
        bench.settle();
        assert_done(host);
        for engine in Engine::ALL {
            host.statuses(engine);
        }
    }
}

#[test]
fn what_an_item_takes_and_gives_is_recorded_with_its_bytes() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        let model = Model::place(&mut host);
        model.execute(bench, &mut host, true);
        let session = Session::attach(bench, &mut host, MAGIC);
        (0..2).for_each(|_| model.execute(bench, &mut host, true));
        let core = CoreIndex::of(TpbId::new(1).unwrap(), Engine::Act);
        let found = session.stop(bench);
        let told: Vec<_> = found.iter().map(|(_, r, _)| (r.task_id, r.arg_index, r.stage, r.role)).collect();
        let of = |execution| {
            let task = TaskId::new(core, 1, execution).0;
            [(task, 0, Stage::BEFORE_DISPATCH, Role::INPUT), (task, 1, Stage::AFTER_COMPLETION, Role::OUTPUT)]
        };
        assert_eq!(told, [of(1), of(2)].concat());
        assert!(
            found
                .iter()
                .all(|(lane, _, payload)| { *lane == core.lane(LANES).get() && *payload == bytes(3, 64) })
        );
    });
}

#[test]
fn an_execution_without_a_table_is_not_taken_for_the_one_before() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let model = Model::place(&mut host);
        // What ran before the recorders came is none of theirs either.
        model.execute(bench, &mut host, true);
        let session = Session::attach(bench, &mut host, MAGIC);
        for names_table in [false, true, false, false, true] {
            model.execute(bench, &mut host, names_table);
        }
        let found = session.stop(bench);
        let executions: Vec<_> = found.iter().map(|(_, r, _)| TaskId(r.task_id).execution()).collect();
        assert_eq!(executions, [2, 2, 5, 5]);
    });
}

#[test]
fn a_region_without_its_magic_number_is_left_alone() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let model = Model::place(&mut host);
        let session = Session::attach(bench, &mut host, MAGIC ^ 1);
        model.execute(bench, &mut host, true);
        assert_eq!(session.stop(bench).len(), 0);
        let pool = session.region.pool(PoolKind::SOLE, Instance(0)).unwrap();
        assert_eq!(session.get(session.at.offset(pool.free_head as u64)), 0, "no buffer was taken");
    });
}

#[test]
fn arguments_are_not_recorded_for_a_host_that_was_built_apart() {
    let (arch, cores) = (ArchId::A2a3, 10);
    let bytes_of_block = Extension::new(Shape::new(arch, LANES, cores).unwrap()).bytes();
    let built_together = Head {
        magic: extension::MAGIC,
        version: extension::VERSION,
        layout_hash: layout_hash(arch),
        bytes: bytes_of_block as u32,
        lanes: LANES,
        cores,
        ..Head::new_zeroed()
    };
    let apart = [
        Head { layout_hash: layout_hash(arch) ^ 1, ..built_together },
        Head { layout_hash: layout_hash(ArchId::A5), ..built_together },
        Head { version: 9, ..built_together },
        Head { lanes: LANES + 1, ..built_together },
    ];
    for (head, records) in [(built_together, 2)].into_iter().chain(apart.map(|head| (head, 0))) {
        with_bench(LANES, NO_DELAY, |bench| {
            let mut host = bench.host(1);
            let model = Model::place(&mut host);
            let extension = host.alloc(bytes_of_block as u64);
            host.write(extension, head.as_bytes());
            let session = Session::attach_beside(bench, &mut host, MAGIC, extension);
            model.execute(bench, &mut host, true);
            assert_eq!(session.stop(bench).len(), records, "{head:?}");
            let pool = session.region.pool(PoolKind::SOLE, Instance(0)).unwrap();
            let word = |offset: usize| session.get(session.at.offset(offset as u64));
            let cursor = word(pool.base + offset_of!(BufferState, arena_write_offset));
            let claimed = word(pool.free_head);
            let expected = if records > 0 { (128, 1) } else { (0, 0) };
            assert_eq!((cursor, claimed), expected, "neither arena nor buffers were touched: {head:?}");
        });
    }
}
