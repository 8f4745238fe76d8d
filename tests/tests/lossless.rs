//! Nothing is lost while the host lives: lanes of the simulated device make up records, and every one of them is collected.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_core::exec::{HostBoot, LaneIndex, Workload};
use sluice_core::layout::device_phase::DevicePhase;
use sluice_core::layout::swimlane::{AicpuTaskRecord, Level};
use sluice_core::layout::{ArchId, PoolKind, Shape, SubsystemId};
use sluice_core::mem::{DevAddr, Fault};
use sluice_host::device::Device;
use sluice_host::device::copy::Ranges;
use sluice_host::device::heap::Heap;
use sluice_host::device::sim::{SimConfig, SimDevice};
use sluice_host::device::unmapped::{MappedRanges, Unmapped};
use sluice_host::dfx::keeper::GateScope;
use sluice_host::dfx::{
    Account, BufferCounts, BufferMeta, DfxConfig, Freeze, LanePhase, Session, SessionError, Sink,
    SubsystemConfig,
};
use zerocopy::FromBytes;

/// What reached the host: per pool the sequence numbers of its buffers and the tokens of its tasks.
#[derive(Default)]
struct Seen {
    sequences: HashMap<(u32, u32), Vec<u32>>,
    tokens: HashMap<u32, Vec<u32>>,
    freezes: Vec<Freeze>,
    phases: Vec<LanePhase>,
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

    fn phases(&self, phases: &[LanePhase]) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).phases.extend(phases);
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

type Boot<D> = HostBoot<<D as Device>::Mem>;

fn device(load: &Load) -> Arc<SimDevice> {
    let config = SimConfig { arch: load.arch, lanes: load.lanes, tpbs: 2, ..SimConfig::default() };
    Arc::new(SimDevice::start(config).expect("a simulated device"))
}

fn prepare<D: Device>(device: &D, load: &Load) -> (Heap, Boot<D>, DfxConfig) {
    let map = device.map();
    let heap = Heap::new(map.ram.base, map.ram.bytes);
    let boot = HostBoot::attach(device.memory(), map.boot).expect("boot block");
    boot.set_workload(&Workload::tasks(load.records)).expect("boot block");
    let shape = Shape::new(load.arch, load.lanes, 10).expect("a shape of the architecture");
    let swimlane = SubsystemConfig {
        level: Level::FULL.0,
        buffers: BufferCounts::uniform(load.buffers),
        ..SubsystemConfig::new(SubsystemId::Swimlane, shape)
    };
    let config = DfxConfig { scope: load.scope, ..DfxConfig::new(shape) };
    let config = config.with(SubsystemId::Swimlane, swimlane);
    (heap, boot, config)
}

fn wait_made<D: Device>(device: &D, boot: &Boot<D>, lanes: u32) {
    for lane in (0..lanes).filter_map(LaneIndex::new) {
        loop {
            let seen = device.progress();
            // A transport that fails is asked again.
            if boot.workload_made(lane) == Ok(true) {
                break;
            }
            device.wait_progress(seen, Duration::from_millis(5));
        }
    }
}

fn stop<D: Device>(session: Session<D>) -> Account {
    session.stop().expect("accounts").remove(&SubsystemId::Swimlane).expect("swimlane recorded")
}

fn run<D: Device>(device: &Arc<D>, load: &Load, began: impl FnOnce()) -> (Account, Seen) {
    let (heap, boot, config) = prepare(&**device, load);
    let keep = Keep::default();
    let session = Session::start(device, &heap, config, Arc::new(keep.clone())).expect("a session");
    began();
    if let Some(pause) = load.pause {
        session.pause(pause);
    }
    wait_made(&**device, &boot, load.lanes);
    let account = stop(session);
    let seen = std::mem::take(&mut *keep.0.lock().unwrap_or_else(PoisonError::into_inner));
    (account, seen)
}

/// Every record made was collected once, in order, and the account says so.
fn check(load: &Load) -> Seen {
    check_on(&device(load), load, || {})
}

/// The same on `device`; `began` is called once the session has begun.
fn check_on<D: Device>(device: &Arc<D>, load: &Load, began: impl FnOnce()) -> Seen {
    let (account, seen) = run(device, load, began);
    assert!(account.is_lossless(), "{account:?}");
    assert_eq!((account.produced(), account.collected()), (load.records, load.records));
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
    let runs = seen.phases.iter().filter(|phase| phase.phase == DevicePhase::RUN_WALL);
    let lanes: Vec<u32> = runs.clone().map(|run| run.lane.0).collect();
    assert_eq!(lanes, (0..load.lanes).collect::<Vec<_>>(), "each lane says when it recorded");
    assert!(runs.clone().all(|run| run.start_cycles < run.end_cycles));
    assert!(
        seen.phases.iter().all(|phase| phase.phase != DevicePhase::SO_LOAD),
        "what never was is left out"
    );
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
    let load = Load { records: 0, ..MILLION };
    let (account, seen) = run(&device(&load), &load, || {});
    assert!(account.is_lossless());
    assert_eq!((account.produced(), account.collected(), account.switches()), (0, 0, 0));
    assert!(seen.sequences.is_empty());
}

#[test]
fn a_session_that_is_stopped_before_its_lanes_have_looked_ends_at_once() {
    // However soon the stop comes: lanes are asked to flush only once they have attached.
    let load = Load { records: 0, ..MILLION };
    let device = device(&load);
    let (heap, _, config) = prepare(&*device, &load);
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
    let device = device(&MILLION);
    let (heap, boot, config) = prepare(&*device, &MILLION);
    let started = heap.usage();
    drop(Session::start(&device, &heap, config.clone(), Arc::new(Keep::default())).expect("a session"));
    assert!(heap.usage().free_bytes < started.free_bytes);
    boot.set_workload(&Workload::NONE).expect("boot block");
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
    let device = device(&load);
    let (heap, boot, config) = prepare(&*device, &load);
    let session = Session::start(&device, &heap, config, Arc::new(Panics)).expect("a session");
    wait_made(&*device, &boot, load.lanes);
    assert!(matches!(session.stop(), Err(SessionError::Panicked("collecting"))));
}

/// A transport to a simulated device that fails now and then, and counts the bytes of buffers that it reads.
struct Watched {
    ranges: MappedRanges<SimDevice>,
    /// One call of so many fails; 0 is never.
    failing: AtomicU32,
    calls: AtomicU32,
    failed: AtomicU32,
    record_bytes_read: AtomicU64,
}

impl Watched {
    fn call(&self, at: DevAddr) -> Result<(), Fault> {
        let (failing, call) = (self.failing.load(Relaxed), self.calls.fetch_add(1, Relaxed));
        if failing > 0 && call.is_multiple_of(failing) {
            self.failed.fetch_add(1, Relaxed);
            return Err(Fault::Transport { at });
        }
        Ok(())
    }
}

impl Ranges for Watched {
    fn read(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        self.call(from)?;
        // Control words are read one by one, or an entry at a time.
        if into.len() >= size_of::<AicpuTaskRecord>() {
            self.record_bytes_read.fetch_add(into.len() as u64, Relaxed);
        }
        self.ranges.read(from, into)
    }

    fn write(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.call(to)?;
        self.ranges.write(to, bytes)
    }
}

fn watched(load: &Load) -> (Arc<Unmapped<SimDevice, Arc<Watched>>>, Arc<Watched>) {
    let device = device(load);
    let watched = Arc::new(Watched {
        ranges: MappedRanges::new(Arc::clone(&device)),
        failing: AtomicU32::new(0),
        calls: AtomicU32::new(0),
        failed: AtomicU32::new(0),
        record_bytes_read: AtomicU64::new(0),
    });
    (Arc::new(Unmapped::over(device, Arc::clone(&watched))), watched)
}

#[test]
fn a_transport_that_fails_now_and_then_loses_and_doubles_nothing() {
    for scope in [GateScope::All, GateScope::Lane] {
        let load = Load { records: 100_000, scope, ..MILLION };
        let (device, watched) = watched(&load);
        check_on(&device, &load, || watched.failing.store(89, Relaxed));
        assert!(watched.failed.load(Relaxed) > 20, "it did fail");
    }
}

#[test]
fn only_the_bytes_of_a_payload_are_copied() {
    // Buffers hold a thousand; the last one of each pool holds fewer.
    let load = Load { records: 12_345, buffers: 2, ..MILLION };
    let (device, watched) = watched(&load);
    check_on(&device, &load, || {});
    let bytes = load.records * size_of::<AicpuTaskRecord>() as u64;
    assert_eq!(watched.record_bytes_read.load(Relaxed), bytes);
}
