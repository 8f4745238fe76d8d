//! What the lane of the sequencers records of the scopes of executions.

use std::string::String;
use std::vec::Vec;

use sluice_core::exec::{HostBoot, Recorders, SideTables};
use sluice_core::layout::scope_stats::{self, BUFFER, Record, ScopePhase, header_words};
use sluice_core::layout::{
    ArchId, EnableMask, Instance, Lane, PoolKind, Region, SUBSYSTEMS, Shape, SubsystemId,
};
use sluice_core::mem::{CopyMemory, DevAddr, Memory as _, Word};
use zerocopy::{FromBytes, IntoBytes};

use super::bench::{Bench, Memory, NO_DELAY, NONE, RAM, assert_done, block, with_bench};
use crate::test_host::{TestHost, copy};

const ARCH: ArchId = ArchId::A2a3;
const LANES: u32 = 2;
const CORES: u32 = 10;
/// Bytes that the host says it has handed out and taken back.
const HEAP: [u64; 2] = [7 << 32 | 64, 128];

struct Session<'a> {
    memory: Memory<'a>,
    boot: HostBoot<Memory<'a>>,
    region: Region,
    at: DevAddr,
    buffer: DevAddr,
}

impl<'a> Session<'a> {
    /// A region with one buffer, which the lanes attach to.
    fn attach(bench: &Bench<'a>, host: &mut TestHost<Memory<'a>>) -> Self {
        let region = scope_stats::region(Shape::new(ARCH, LANES, CORES).unwrap());
        let (at, buffer) = (host.alloc(region.bytes() as u64), host.alloc(BUFFER.bytes as u64));
        let pool = region.pool(PoolKind::SOLE, Instance(0)).unwrap();
        let memory = bench.memory.clone();
        memory.write_bytes(at.offset(pool.free_ptrs as u64), buffer.0.as_bytes()).unwrap();
        let boot = HostBoot::attach(&memory, bench.map.boot).unwrap();
        let session = Self { memory, boot, region, at, buffer };
        session.word(pool.free_tail).store_release(1);
        session.word(header_words(ARCH).num_instances).store_release(1);
        let mut regions = [DevAddr::NULL; SUBSYSTEMS];
        regions[SubsystemId::ScopeStats.index()] = at;
        let tables = SideTables { heap_totals: host.place(HEAP.as_bytes()), ..SideTables::default() };
        let recorders =
            Recorders { enabled: EnableMask::SCOPE_STATS, extension: DevAddr::NULL, regions, tables };
        session.boot.attach_recorders(&recorders).unwrap();
        session
    }

    fn word(&self, offset: usize) -> impl Word + use<'a> {
        self.memory.word(self.at.offset(offset as u64)).unwrap()
    }

    /// Buffers that the lane of the sequencers has published.
    fn published(&self) -> u32 {
        self.word(self.region.lane(Lane(0)).unwrap().tail).load_acquire()
    }

    fn records(&self) -> Vec<Record> {
        let count = self.memory.word(self.buffer.offset(BUFFER.count as u64)).unwrap().load_acquire();
        let record = |index| {
            let mut bytes = [0; size_of::<Record>()];
            let at = self.buffer.offset(BUFFER.record(index).unwrap() as u64);
            self.memory.read_bytes(at, &mut bytes).unwrap();
            Record::read_from_bytes(&bytes).unwrap()
        };
        (0..count).map(record).collect()
    }
}

fn name(record: &Record) -> String {
    let end = record.site_file_basename.iter().position(|byte| *byte == 0).unwrap();
    String::from_utf8(record.site_file_basename[..end].to_vec()).unwrap()
}

fn execute(bench: &mut Bench<'_>, host: &mut TestHost<Memory<'_>>) {
    let act = host.program(&[block(0, 0, &[], None)]);
    let trigger = host.trigger([NONE, act, NONE, NONE, NONE], false);
    host.post(&trigger);
    host.kick();
    bench.settle();
}

#[test]
fn an_execution_is_a_tree_of_scopes_with_real_occupancy() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        execute(bench, &mut host);
        let session = Session::attach(bench, &mut host);
        execute(bench, &mut host);
        session.boot.stop_recorders().unwrap();
        bench.settle();
        execute(bench, &mut host);
        let records = session.records();
        let begins: Vec<_> = records[..7].iter().map(|one| (name(one), one.depth)).collect();
        let tree = ["execution", "subgraph", "PE", "ACT", "POOL", "DVE", "SP"];
        assert!(
            begins
                .iter()
                .map(|(name, depth)| (name.as_str(), *depth))
                .eq(tree.into_iter().zip([0, 1, 2, 2, 2, 2, 2]))
        );
        assert!(records[..7].iter().all(|one| one.phase == ScopePhase::BEGIN));
        assert!(records[7..].iter().all(|one| one.phase == ScopePhase::END));
        let ends: Vec<_> = records[12..].iter().map(|one| (name(one), one.depth)).collect();
        assert_eq!(ends, [(String::from("subgraph"), 1), (String::from("execution"), 0)]);
        assert_eq!(records.len(), 14);
        let unharvested: Vec<_> = records.iter().map(|one| one.tensormap_used).collect();
        for record in &records {
            // The second execution of TPB 1, which is its ring.
            assert_eq!((record.site_line, record.ring_id), (1, 1));
            assert_eq!((record.task_start, record.task_end), (1, 2), "one kicked off, not done yet");
            assert_eq!(record.dep_pool_start, record.dep_pool_end, "all pairs are consumed");
            assert_eq!([record.heap_end, record.heap_start], HEAP);
        }
        assert!(unharvested.is_sorted() && unharvested[13] - unharvested[0] == 10, "{unharvested:?}");
        assert_eq!(session.published(), 1);
        let words = header_words(ARCH);
        assert_eq!(session.word(words.fatal_latched).load_acquire(), 0);
        assert_eq!(
            session.word(words.dep_pool_cap + 4).load_acquire(),
            64,
            "pairs that the ring of TPB 1 holds"
        );
        let heap_cap = host.read(session.at.offset(words.heap_cap as u64 + 8), 8);
        assert_eq!(heap_cap, RAM.bytes.to_le_bytes());
    });
}

#[test]
fn an_error_that_ends_a_sequencer_is_latched_and_what_there_is_published() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let session = Session::attach(bench, &mut host);
        execute(bench, &mut host);
        assert_done(&mut host);
        assert_eq!(session.published(), 0);
        let outside = RAM.base.offset(RAM.bytes);
        host.post(&[copy(DevAddr(8), outside, 4)]);
        host.kick();
        bench.settle();
        assert_eq!(session.word(header_words(ARCH).fatal_latched).load_acquire(), 1);
        assert_eq!((session.published(), session.records().len()), (1, 14));
    });
}
