//! What lanes record of their cores' counters, on both architectures.

use std::vec::Vec;

use sluice_core::exec::{HostBoot, Instruction, Recorders, SideTables};
use sluice_core::layout::pmu::{self, BUFFER, CoreType, DEFAULT_EVENT_TYPE, header_words};
use sluice_core::layout::{ArchId, EnableMask, Instance, PoolKind, Region, SUBSYSTEMS, Shape, SubsystemId};
use sluice_core::mem::{CopyMemory, DevAddr, Memory as _, Word};
use sluice_core::mmio::{AgentCounters, Engine, RING_BYTES};
use zerocopy::{FromBytes, IntoBytes};

use super::bench::{Bench, Memory, NO_DELAY, NONE, assert_done, block, bytes, queue, with_bench_of};
use crate::Activity;
use crate::test_host::{TestHost, copy};

const CORES: u32 = 10;
/// ACT of TPB 0.
const ACT: u32 = 1;

/// A PMU region in which every core has one buffer and, on a5, a ring.
struct Session<'a> {
    memory: Memory<'a>,
    boot: HostBoot<Memory<'a>>,
    region: Region,
    at: DevAddr,
    buffers: Vec<DevAddr>,
    rings: DevAddr,
}

impl<'a> Session<'a> {
    fn plan(bench: &Bench<'a>, host: &mut TestHost<Memory<'a>>, arch: ArchId) -> Self {
        let region = pmu::region(Shape::new(arch, 1, CORES).unwrap());
        let at = host.alloc(region.bytes() as u64);
        let rings = host.alloc(u64::from(CORES) * RING_BYTES as u64);
        let memory = bench.memory.clone();
        let set = |offset: usize, value: u32| {
            memory.word(at.offset(offset as u64)).unwrap().store_release(value);
        };
        set(header_words(arch).num_cores, CORES);
        set(header_words(arch).event_type, DEFAULT_EVENT_TYPE);
        let mut buffers = Vec::new();
        for core in 0..CORES {
            let pool = region.pool(PoolKind::SOLE, Instance(core)).unwrap();
            let buffer = host.alloc(BUFFER.bytes as u64);
            memory.write_bytes(at.offset(pool.free_ptrs as u64), buffer.0.as_bytes()).unwrap();
            set(pool.free_tail, 1);
            if let Some(staging) = pool.staging_ptr {
                let ring = rings.offset(u64::from(core) * RING_BYTES as u64);
                memory.write_bytes(at.offset(staging as u64), ring.0.as_bytes()).unwrap();
            }
            buffers.push(buffer);
        }
        let boot = HostBoot::attach(&memory, bench.map.boot).unwrap();
        Self { memory, boot, region, at, buffers, rings }
    }

    fn attach(&self) {
        let mut regions = [DevAddr::NULL; SUBSYSTEMS];
        regions[SubsystemId::Pmu.index()] = self.at;
        let tables = SideTables::default();
        let recorders = Recorders { enabled: EnableMask::PMU, extension: DevAddr::NULL, regions, tables };
        self.boot.attach_recorders(&recorders).unwrap();
    }

    /// Attempts and losses of ACT's pool.
    fn counts(&self) -> (u32, u32) {
        let pool = self.region.pool(PoolKind::SOLE, Instance(ACT)).unwrap();
        let get = |offset: usize| self.memory.word(self.at.offset(offset as u64)).unwrap().load_acquire();
        let mismatches = pool.mismatch_records.map_or(0, get);
        (get(pool.total_records.unwrap()), get(pool.dropped_records) + mismatches)
    }

    /// Record `index` of ACT: identity, kernel, kind of core, cycles and counters.
    fn record(&self, arch: ArchId, index: u32) -> (u64, u32, CoreType, u64, Vec<u32>) {
        let mut bytes = [0; 64];
        let at = self.buffers[ACT as usize].offset(BUFFER.record(index).unwrap() as u64);
        self.memory.read_bytes(at, &mut bytes).unwrap();
        macro_rules! of {
            ($arch:ident) => {{
                let record = pmu::$arch::Record::read_from_bytes(&bytes).unwrap();
                let pmu::$arch::Record { task_id, func_id, core_type, pmu_total_cycles, .. } = record;
                (task_id, func_id, core_type, pmu_total_cycles, record.pmu_counters.to_vec())
            }};
        }
        match arch {
            ArchId::A2a3 => of!(a2a3),
            ArchId::A5 => of!(a5),
        }
    }
}

#[test]
fn each_item_is_recorded_with_what_its_core_counted() {
    for arch in ArchId::ALL {
        with_bench_of(arch, 1, NO_DELAY, |bench| {
            let mut host = bench.host(0);
            let source = host.place(&bytes(5, 4096));
            let target = host.alloc(4096);
            let swaps = host.rings(queue(2), &[copy(source, target, 4096)]);
            let set_up = host.swap_copies(&swaps);
            host.post(&set_up);
            let mut item = block(2, 1, &[], None);
            if let Instruction::RunBlock(block) = &mut item {
                block.kernel = 77;
            }
            let program = host.program(&[item]);
            let session = Session::plan(bench, &mut host, arch);
            let registers = host.registers();
            let mut run = |bench: &mut Bench<'_>| {
                let trigger = host.trigger([NONE, program, NONE, NONE, NONE], false);
                host.post(&trigger);
                host.kick();
                bench.settle();
                assert_done(&mut host);
            };
            run(bench);
            session.attach();
            run(bench);
            run(bench);
            assert_eq!(session.counts(), (2, 0), "{arch}");
            session.boot.stop_recorders().unwrap();
            bench.settle();
            for (index, token) in (0..).zip([2, 3]) {
                let (task_id, kernel, core_type, cycles, counters) = session.record(arch, index);
                assert_eq!((task_id, core_type), (u64::from(ACT) << 32 | token, CoreType::AIV));
                assert_eq!(kernel, 77);
                assert!(cycles > 0);
                let requests = if arch == ArchId::A2a3 { 7 } else { 6 };
                assert_eq!(counters[requests], 1, "{arch}: one item, one request");
                assert_eq!(u64::from(counters[0]), cycles, "{arch}");
            }
            for engine in Engine::ALL {
                let agent = AgentCounters::attach(&bench.memory, registers, engine).unwrap();
                assert!(!agent.is_on(), "left as they were found");
            }
            run(bench);
            assert_eq!(session.counts(), (2, 0), "{arch}");
        });
    }
}

#[test]
fn what_is_under_way_at_the_end_is_waited_for_and_nothing_later_reaches_a_ring() {
    for arch in ArchId::ALL {
        with_bench_of(arch, 1, NO_DELAY, |bench| {
            let mut host = bench.host(0);
            let opaque = host.program(&[Instruction::Opaque { opcode: 0 }]);
            host.control().set_opaque_engine_cycles(50_000);
            let session = Session::plan(bench, &mut host, arch);
            let start = |bench: &mut Bench<'_>, host: &mut TestHost<Memory<'_>>| {
                let trigger = host.trigger([NONE, opaque, NONE, NONE, NONE], false);
                host.post(&trigger);
                host.kick();
                while !matches!(bench.node.poll(), Activity::Until(_)) {}
            };
            start(bench, &mut host);
            session.attach();
            bench.settle();
            assert_done(&mut host);
            assert_eq!(session.counts(), (0, 0), "{arch}: dispatched before the counters ran");
            start(bench, &mut host);
            session.boot.stop_recorders().unwrap();
            bench.settle();
            assert_done(&mut host);
            assert_eq!(session.counts(), (1, 0), "{arch}");
            let ring = host.read(session.rings, CORES as usize * RING_BYTES);
            start(bench, &mut host);
            bench.settle();
            assert_done(&mut host);
            assert_eq!(session.counts(), (1, 0), "{arch}");
            assert_eq!(host.read(session.rings, CORES as usize * RING_BYTES), ring, "it is the host's again");
        });
    }
}
