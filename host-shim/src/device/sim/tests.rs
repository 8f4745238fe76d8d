//! Whole executions on the simulated device, put in front of it by a hand-written host.

use std::mem::offset_of;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice_aicpu_fw::test_host::{TestHost, copy};
use sluice_core::dma::{CopySpec, RingSize};
use sluice_core::exec::{HostBoot, Instruction, Recorders, RunBlock, SemaphoreWait, SideTables, SubType};
use sluice_core::layout::extension::{self, Extension, Head, LaneActivity, LaneStatus};
use sluice_core::layout::swimlane::{self, Level};
use sluice_core::layout::{EnableMask, Lane, PoolKind, SUBSYSTEMS, Shape, SubsystemId};
use sluice_core::mem::{CopyMemory, Fault, Memory, Word};
use sluice_core::mmio::{QueueId, SemaphoreId};
use sluice_core::producer::{Control, RecordWindow, Span};
use zerocopy::{FromZeros, IntoBytes};

use super::*;
use crate::device::heap::Heap;
use crate::device::process::in_fork;
use crate::device::status::DeviceStatus;
use crate::dfx::{BufferMeta, Change, DfxConfig, Freeze, Session, SessionError, Sink, SubsystemConfig};

/// Long enough for anything that ends at all.
const PATIENCE: Duration = Duration::from_secs(60);

fn host(device: &SimDevice, tpb: u32, exec_descriptors: u32) -> TestHost<SimMemory> {
    let bytes = 1 << 30;
    let arena = DeviceRange { base: device.map().ram.base.offset(u64::from(tpb) * bytes), bytes };
    let size = RingSize::new(exec_descriptors).unwrap();
    TestHost::bring_up(device.memory(), &device.map(), TpbId::new(tpb).unwrap(), arena, (size, size))
}

fn kick(device: &SimDevice, tpb: u32, host: &mut TestHost<SimMemory>) {
    host.kick();
    device.ring_doorbell(TpbId::new(tpb).unwrap());
}

/// Waits until `done` holds, woken by the device.
fn wait_until(device: &SimDevice, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        let seen = device.progress();
        if done() {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{what} never came");
        device.wait_progress(seen, Duration::from_millis(100));
    }
}

fn wait_done(device: &SimDevice, host: &mut TestHost<SimMemory>) {
    wait_until(device, "the end of an execution", || {
        host.control().executions_done.observe() == host.kicked()
    });
    assert_eq!(host.errors(), []);
}

fn run_block(queue: u32, pairs: u32, wait: Option<(u32, u32)>, signal: Option<u32>) -> Instruction {
    let semaphore = |id| SemaphoreId::new(id).unwrap();
    let waits = wait.map(|(id, at_least)| SemaphoreWait { semaphore: semaphore(id), at_least });
    Instruction::RunBlock(RunBlock {
        queue: QueueId::new(queue).unwrap(),
        block: 0,
        pairs,
        waits: waits.into_iter().collect(),
        signal: signal.map(semaphore),
        kernel: 0,
    })
}

/// A program of ten items on all engines whose result shows their order: each engine adds its part behind the last.
struct Relay {
    input: Vec<u8>,
    source: DevAddr,
    target: DevAddr,
    bases: [DevAddr; 5],
    swaps: Vec<CopySpec>,
}

const PART_BYTES: u64 = 96;
const STEPS: u32 = 10;

impl Relay {
    fn new(host: &mut TestHost<SimMemory>, seed: u8) -> Self {
        let input: Vec<u8> = (0..PART_BYTES).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)).collect();
        let source = host.place(&input);
        let cells: Vec<DevAddr> = (1..STEPS).map(|_| host.alloc(PART_BYTES)).collect();
        let target = host.alloc(PART_BYTES);
        let places: Vec<DevAddr> = [&[source][..], &cells, &[target]].concat();
        let mut programs = [const { Vec::new() }; 5];
        let mut swaps = Vec::new();
        for step in 0..STEPS {
            let hop = copy(places[step as usize], places[step as usize + 1], PART_BYTES);
            swaps.extend(host.rings(QueueId::new(step).unwrap(), &[hop]));
            let wait = step.checked_sub(1).map(|before| (before, 1));
            // Every other engine, so that neighbours in the chain belong to different lanes.
            programs[step as usize * 2 % 5].push(run_block(step, 1, wait, Some(step)));
        }
        let bases = programs.map(|program| host.program(&program));
        let swaps = host.swap_copies(&swaps);
        Self { input, source, target, bases, swaps }
    }

    fn stage(&self, host: &mut TestHost<SimMemory>) {
        let mut batch = self.swaps.clone();
        batch.extend(host.trigger(self.bases, false));
        host.post(&batch);
    }
}

#[test]
fn two_tpbs_relay_their_data_through_all_engines() {
    for lanes in 1..=4 {
        let device = SimDevice::start(SimConfig { lanes, ..SimConfig::default() }).unwrap();
        let mut hosts = [host(&device, 0, 256), host(&device, 1, 256)];
        let relays = [0, 1].map(|tpb| Relay::new(&mut hosts[tpb], tpb as u8 * 100));
        for round in 0..5u8 {
            for (tpb, (host, relay)) in hosts.iter_mut().zip(&relays).enumerate() {
                host.write(relay.source, &[round; 8]);
                relay.stage(host);
                kick(&device, tpb as u32, host);
            }
            for (host, relay) in hosts.iter_mut().zip(&relays) {
                wait_done(&device, host);
                let mut expected = relay.input.clone();
                expected[..8].fill(round);
                assert_eq!(host.read(relay.target, PART_BYTES as usize), expected);
                for engine in Engine::ALL {
                    let records = host.statuses(engine);
                    let marks: Vec<_> = records.iter().map(|one| (one.sub_type(), one.custom_id())).collect();
                    assert_eq!(marks, [(SubType::START, round.into()), (SubType::END, round.into())]);
                    assert!(records[0].time_cycles() <= records[1].time_cycles());
                }
            }
        }
    }
}

#[test]
fn a_thousand_executions_with_seeded_delays_keep_every_byte() {
    // Up to 10 microseconds per item.
    let delays = AgentDelays { seed: 11, max_cycles: 500 };
    let device = SimDevice::start(SimConfig { delays, ..SimConfig::default() }).unwrap();
    let mut hosts = [host(&device, 0, 256), host(&device, 1, 256)];
    let relays = [0, 1].map(|tpb| Relay::new(&mut hosts[tpb], tpb as u8 * 100));
    for round in 0..1_000u32 {
        for (tpb, (host, relay)) in hosts.iter_mut().zip(&relays).enumerate() {
            host.write(relay.source, &round.to_le_bytes());
            relay.stage(host);
            kick(&device, tpb as u32, host);
        }
        for (host, relay) in hosts.iter_mut().zip(&relays) {
            wait_done(&device, host);
            assert_eq!(host.read(relay.target, 4), round.to_le_bytes());
            assert!(Engine::ALL.into_iter().all(|engine| host.statuses(engine).len() == 2));
        }
    }
}

/// Counts records of tasks, and keeps changes of what is recorded.
#[derive(Default)]
struct Tasks(AtomicU64, Mutex<Vec<Change>>);

impl Sink for Tasks {
    fn buffer(&self, meta: &BufferMeta, _records: &[u8]) -> io::Result<()> {
        if meta.kind == PoolKind::AICPU_TASK {
            self.0.fetch_add(meta.count.into(), Ordering::Relaxed);
        }
        Ok(())
    }

    fn change(&self, change: &Change) -> io::Result<()> {
        // What is noted stands before the records that are made by it.
        let mut changes = self.1.lock().unwrap();
        assert!(!changes.is_empty() || self.0.load(Ordering::Relaxed) == 0);
        changes.push(*change);
        Ok(())
    }

    fn freeze(&self, _freeze: &Freeze) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_is_recorded_changes_between_two_executions_of_a_running_device() {
    let device = Arc::new(SimDevice::start(SimConfig { tpbs: 1, lanes: 2, ..SimConfig::default() }).unwrap());
    let mut host = host(&device, 0, 256);
    let relay = Relay::new(&mut host, 0);
    // Behind what the hand-written host uses.
    let heap = Heap::new(device.map().ram.base.offset(1 << 30), 1 << 30);
    let shape = Shape::new(ArchId::A2a3, 2, Engine::COUNT as u32).unwrap();
    let on = Control::at_level(Level::TASK.0);
    let swimlane = SubsystemConfig { level: on.level, ..SubsystemConfig::new(SubsystemId::Swimlane, shape) };
    let config = DfxConfig::new(shape).with(SubsystemId::Swimlane, swimlane);
    let tasks = Arc::new(Tasks::default());
    let mut session = Session::start(&device, &heap, config, Arc::clone(&tasks) as _).unwrap();
    let execute = |host: &mut TestHost<SimMemory>, times: u32| {
        for _ in 0..times {
            relay.stage(host);
            kick(&device, 0, host);
            wait_done(&device, host);
            for engine in Engine::ALL {
                host.statuses(engine);
            }
        }
    };
    execute(&mut host, 3);
    let changes = [
        (Control::at_level(Level::OFF.0), 4),
        (on, 2),
        (Control { sample_every: 2, ..on }, 6),
        (Control { window: RecordWindow::Executions(Span { from: 16, to: 18 }), ..on }, 5),
    ];
    for (control, executions) in changes {
        session.set(SubsystemId::Swimlane, &control).unwrap();
        execute(&mut host, executions);
    }
    assert!(matches!(session.set(SubsystemId::Pmu, &on), Err(SessionError::NotOn(SubsystemId::Pmu))));
    let accounts = session.stop().unwrap();
    let account = &accounts[&SubsystemId::Swimlane];
    // 3 before the first change, none, 2, every other of 6, and executions 16 and 17 of those from 15 on.
    let recorded = u64::from(STEPS) * (3 + 2 + 3 + 2);
    assert_eq!(tasks.0.load(Ordering::Relaxed), recorded);
    let noted = tasks.1.lock().unwrap();
    let told = changes
        .iter()
        .zip(2..)
        .flat_map(|((control, _), number)| [(number, *control, false), (number, *control, true)]);
    let noted_as = noted.iter().map(|change| (change.number, change.control, change.is_followed));
    assert!(noted_as.eq([(1, on, true)].into_iter().chain(told)), "{noted:?}");
    assert!(noted.is_sorted_by_key(|change| change.at_cycles), "{noted:?}");
    assert!(account.is_lossless());
}

#[test]
fn an_idle_device_sleeps_and_a_doorbell_wakes_it() {
    let device = SimDevice::start(SimConfig::default()).unwrap();
    let mut host = host(&device, 0, 64);
    let all_asleep = || {
        let start = Instant::now();
        while device.asleep() < device.processors() {
            assert!(start.elapsed() < PATIENCE, "{} of {} sleep", device.asleep(), device.processors());
            thread::yield_now();
        }
        device.sleeps()
    };
    let mut before = all_asleep();
    for _ in 0..10 {
        let trigger = host.trigger([DevAddr::NULL; 5], false);
        host.post(&trigger);
        assert_eq!(device.asleep(), device.processors(), "posting wakes nobody");
        kick(&device, 0, &mut host);
        wait_done(&device, &mut host);
        let after = all_asleep();
        // The two lanes tell each other a few times; no thread goes round and round.
        assert!(after - before < 100, "{} naps for one empty execution", after - before);
        before = after;
    }
}

#[test]
fn a_device_address_is_no_host_address() {
    let device = SimDevice::start(SimConfig { ram_bytes: 1 << 20, ..SimConfig::default() }).unwrap();
    let on_the_host = [1u8; 16];
    let mistaken = DevAddr(on_the_host.as_ptr() as u64);
    assert_eq!(device.read(mistaken, &mut [0; 16]), Err(Fault::OutOfRange { at: mistaken, bytes: 16 }));
    let map = device.map();
    assert!(device.memory().copy(map.ram.base, mistaken, 16).is_err());
    assert_eq!((map.ram.bytes, map.registers.tpbs(), map.lanes, device.name()), (1 << 20, 2, 2, "sim"));
}

#[test]
fn configurations_that_no_device_has_are_refused() {
    let start = |tpbs, lanes| SimDevice::start(SimConfig { tpbs, lanes, ..SimConfig::default() }).err();
    assert!(matches!(start(9, 2), Some(SimError::Boot(BootError::Tpbs { asked: 9 }))));
    assert!(matches!(start(0, 2), Some(SimError::Boot(BootError::Tpbs { asked: 0 }))));
    assert!(matches!(start(2, 5), Some(SimError::Boot(BootError::Lanes { asked: 5, max: 4 }))));
    for ram_bytes in [1 << 60, u64::MAX] {
        let error = SimDevice::start(SimConfig { ram_bytes, ..SimConfig::default() }).unwrap_err();
        assert!(matches!(error, SimError::Map { bytes, .. } if bytes == ram_bytes), "{error}");
    }
}

#[test]
fn dropping_a_busy_device_ends_its_threads() {
    let device = SimDevice::start(SimConfig::default()).unwrap();
    let mut host = host(&device, 0, 64);
    host.control().set_opaque_engine_cycles(u64::MAX);
    let endless = host.program(&[Instruction::Opaque { opcode: 0 }]);
    let trigger = host.trigger([endless; 5], false);
    host.post(&trigger);
    kick(&device, 0, &mut host);
    wait_until(&device, "the start", || {
        Engine::ALL.into_iter().any(|engine| !host.statuses(engine).is_empty())
    });
    let memory = device.memory().clone();
    drop(device);
    // Memory outlives the device for whoever holds it.
    let mut word = [0; 4];
    memory.read_bytes(endless, &mut word).unwrap();
}

#[test]
fn dropping_a_device_releases_a_lane_at_a_shut_gate() {
    let device = SimDevice::start(SimConfig::default()).unwrap();
    let mut host = host(&device, 0, 64);
    let shape = Shape::new(ArchId::A2a3, 2, 10).unwrap();
    let (region, extension) = (swimlane::region(shape), Extension::new(shape));
    let region_at = host.alloc(region.bytes() as u64);
    let words = swimlane::header_words(ArchId::A2a3);
    let set = |offset: usize, value: u32| host.write(region_at.offset(offset as u64), &value.to_le_bytes());
    set(words.num_cores, 10);
    set(words.chip_swimlane_level, Level::FULL.0);
    set(region.gates().fq_freeze_active, 1);
    let head = Head {
        magic: extension::MAGIC,
        version: extension::VERSION,
        layout_hash: extension::layout_hash(ArchId::A2a3),
        bytes: extension.bytes() as u32,
        lanes: 2,
        cores: 10,
        // Longer than anyone waits: only the end of the device ends this wait.
        deadline_cycles: u64::MAX / 2,
        ..Head::new_zeroed()
    };
    let extension_at = host.alloc(extension.bytes() as u64);
    host.write(extension_at, head.as_bytes());
    let mut regions = [DevAddr::NULL; SUBSYSTEMS];
    regions[SubsystemId::Swimlane.index()] = region_at;
    let tables = SideTables::default();
    let recorders = Recorders { enabled: EnableMask::SWIMLANE, extension: extension_at, regions, tables };
    HostBoot::attach(device.memory(), device.map().boot).unwrap().attach_recorders(&recorders).unwrap();
    device.wake_lanes();

    let trigger = host.trigger([DevAddr::NULL; 5], false);
    host.post(&trigger);
    kick(&device, 0, &mut host);
    let parked = extension.lane(SubsystemId::Swimlane, Lane(0)).unwrap() + offset_of!(LaneStatus, state);
    let parked = device.memory().word(extension_at.offset(parked as u64)).unwrap();
    wait_until(&device, "a parked lane", || parked.load_acquire() == LaneActivity::FREE_GATE.0);
    let status = || DeviceStatus::read(device.memory(), device.map().boot).unwrap();
    wait_until(&device, "a status that says so", || status().lanes[0].parked.is_some());
    let status = status();
    assert_eq!(
        (&*status.phase, status.lanes.len(), status.processors.len()),
        ("executing", 2, device.processors())
    );
    let lane = &status.lanes[0];
    let at = lane.parked.as_ref().map(|parked| (&*parked.gate, parked.subsystem.as_deref()));
    assert_eq!((&*lane.state, lane.stalls, at), ("parked", 1, Some(("fq", Some("swimlane")))));
    assert!(status.lanes[1].parked.is_none() && status.faults().next().is_none());
    drop(device);
}

#[test]
fn a_device_may_be_dropped_in_a_fork() {
    let mut device =
        Some(SimDevice::start(SimConfig { ram_bytes: 1 << 20, ..SimConfig::default() }).unwrap());
    assert!(in_fork(|| {
        drop(device.take());
        true
    }));
    assert!(device.is_some_and(|device| device.processors() > 0));
}
