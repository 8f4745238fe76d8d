//! Nothing is lost while the host lives: lanes of the simulated device make up records, and every one of them is collected.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_core::exec::{HostBoot, LaneIndex};
use sluice_core::layout::swimlane::{AicpuTaskRecord, Level};
use sluice_core::layout::{ArchId, PoolKind, Shape, SubsystemId};
use sluice_host::device::Device;
use sluice_host::device::heap::Heap;
use sluice_host::device::sim::{SimConfig, SimDevice};
use sluice_host::dfx::keeper::GateScope;
use sluice_host::dfx::{
    Account, BufferCounts, BufferMeta, DfxConfig, Freeze, Session, SessionError, Sink, SubsystemConfig,
};
use zerocopy::FromBytes;

/// What reached the host: per pool the sequence numbers of its buffers and the tokens of its tasks.
#[derive(Default)]
struct Seen {
    sequences: HashMap<(u32, u32), Vec<u32>>,
    tokens: HashMap<u32, Vec<u32>>,
    freezes: Vec<Freeze>,
}

#[derive(Clone, Default)]
struct Keep(Arc<Mutex<Seen>>);

impl Sink for Keep {
    fn buffer(&self, meta: &BufferMeta, records: &[u8]) -> io::Result<()> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.sequences.entry((meta.kind.0, meta.instance.0)).or_default().push(meta.sequence);
        if meta.kind == PoolKind::AICPU_TASK {
            assert_eq!(records.len(), meta.count as usize * size_of::<AicpuTaskRecord>());
            let token = |bytes| AicpuTaskRecord::read_from_bytes(bytes).expect("a whole record").reg_task_id;
            let tokens = records.chunks_exact(size_of::<AicpuTaskRecord>()).map(token);
            seen.tokens.entry(meta.instance.0).or_default().extend(tokens);
        }
        Ok(())
    }

    fn freeze(&self, freeze: &Freeze) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).freezes.push(*freeze);
        Ok(())
    }
}

struct Load {
    arch: ArchId,
    lanes: u32,
    records: u64,
    buffers: u32,
    scope: GateScope,
    pause: Option<Duration>,
}

type Boot = HostBoot<<SimDevice as Device>::Mem>;

fn prepare(load: &Load) -> (Arc<SimDevice>, Heap, Boot, DfxConfig) {
    let config = SimConfig { arch: load.arch, lanes: load.lanes, tpbs: 2, ..SimConfig::default() };
    let device = Arc::new(SimDevice::start(config).expect("a simulated device"));
    let map = device.map();
    let heap = Heap::new(map.ram.base, map.ram.bytes);
    let boot = HostBoot::attach(device.memory(), map.boot).expect("boot block");
    boot.set_workload(load.records).expect("boot block");
    let shape = Shape::new(load.arch, load.lanes, 10).expect("a shape of the architecture");
    let swimlane = SubsystemConfig { level: Level::FULL.0, buffers: BufferCounts::uniform(load.buffers) };
    let config = DfxConfig { scope: load.scope, ..DfxConfig::new(shape) };
    let config = config.with(SubsystemId::Swimlane, swimlane);
    (device, heap, boot, config)
}

fn wait_made(device: &SimDevice, boot: &Boot, lanes: u32) {
    for lane in (0..lanes).filter_map(LaneIndex::new) {
        loop {
            let seen = device.progress();
            if boot.workload_made(lane).expect("boot block") {
                break;
            }
            device.wait_progress(seen, Duration::from_millis(5));
        }
    }
}

fn stop(session: Session<SimDevice>) -> Account {
    session.stop().expect("accounts").remove(&SubsystemId::Swimlane).expect("swimlane recorded")
}

fn run(load: &Load) -> (Account, Seen) {
    let (device, heap, boot, config) = prepare(load);
    let keep = Keep::default();
    let session = Session::start(&device, &heap, config, Arc::new(keep.clone())).expect("a session");
    if let Some(pause) = load.pause {
        session.pause(pause);
    }
    wait_made(&device, &boot, load.lanes);
    let account = stop(session);
    let seen = std::mem::take(&mut *keep.0.lock().unwrap_or_else(PoisonError::into_inner));
    (account, seen)
}

/// Every record made was collected once, in order, and the account says so.
fn check(load: &Load) -> Seen {
    let (account, seen) = run(load);
    assert_eq!(account.produced(), load.records);
    assert_eq!(account.collected(), load.records);
    assert!(account.is_lossless(), "{account:?}");
    for ((kind, instance), sequences) in &seen.sequences {
        let expected: Vec<u32> = (0..sequences.len() as u32).collect();
        assert_eq!(sequences, &expected, "buffers of pool {kind} {instance} come once and in order");
    }
    let mut total = 0;
    for (core, tokens) in &seen.tokens {
        total += tokens.len() as u64;
        assert!(tokens.is_sorted_by(|a, b| a < b), "tokens of core {core} rise");
    }
    assert_eq!(total, load.records);
    seen
}

const MILLION: Load =
    Load { arch: ArchId::A2a3, lanes: 2, records: 1_000_000, buffers: 1, scope: GateScope::All, pause: None };

#[test]
fn a_million_records_with_one_buffer_per_pool() {
    check(&MILLION);
}

#[test]
fn a_million_records_while_the_host_stands_still_for_two_seconds() {
    let seen = check(&Load { pause: Some(Duration::from_secs(2)), ..MILLION });
    let longest = seen.freezes.iter().map(|freeze| freeze.released_ns - freeze.opened_ns).max();
    assert!(longest > Some(1_000_000_000), "the lanes starved for most of the pause: {longest:?}");
}

#[test]
fn a_starving_lane_alone_is_served_without_a_freeze() {
    let seen = check(&Load { scope: GateScope::Lane, records: 200_000, ..MILLION });
    assert!(seen.freezes.is_empty());
}

#[test]
fn the_other_architecture_with_all_its_lanes() {
    check(&Load { arch: ArchId::A5, lanes: 5, records: 200_000, buffers: 2, ..MILLION });
}

#[test]
fn no_record_at_all() {
    let (account, seen) = run(&Load { records: 0, ..MILLION });
    assert!(account.is_lossless());
    assert_eq!((account.produced(), account.collected(), account.switches()), (0, 0, 0));
    assert!(seen.sequences.is_empty());
}

#[test]
fn a_session_that_is_stopped_before_its_lanes_have_looked_ends_at_once() {
    // However soon the stop comes: lanes are asked to flush only once they have attached.
    let load = Load { records: 0, ..MILLION };
    let (device, heap, _, config) = prepare(&load);
    let started = heap.usage();
    for _ in 0..200 {
        let keep = Arc::new(Keep::default());
        let session = Session::start(&device, &heap, config.clone(), keep).expect("a session");
        let account = stop(session);
        assert!(account.is_lossless(), "{account:?}");
        assert_eq!(heap.usage(), started);
    }
}

#[test]
fn memory_that_lanes_may_still_write_is_not_used_again() {
    let (device, heap, boot, config) = prepare(&MILLION);
    let started = heap.usage();
    drop(Session::start(&device, &heap, config.clone(), Arc::new(Keep::default())).expect("a session"));
    assert!(heap.usage().free_bytes < started.free_bytes);
    boot.set_workload(0).expect("boot block");
    let session = Session::start(&device, &heap, config, Arc::new(Keep::default())).expect("a session");
    assert!(stop(session).is_lossless());
}

/// A sink that fails in the worst way.
struct Panics;

impl Sink for Panics {
    fn buffer(&self, _meta: &BufferMeta, _records: &[u8]) -> io::Result<()> {
        panic!("the sink of this test panics");
    }

    fn freeze(&self, _freeze: &Freeze) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn lanes_do_not_wait_for_a_host_whose_collector_panicked() {
    let load = Load { records: 100_000, ..MILLION };
    let (device, heap, boot, config) = prepare(&load);
    let session = Session::start(&device, &heap, config, Arc::new(Panics)).expect("a session");
    wait_made(&device, &boot, load.lanes);
    assert!(matches!(session.stop(), Err(SessionError::Panicked("collecting"))));
}
