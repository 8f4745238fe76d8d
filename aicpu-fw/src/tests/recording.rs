//! What lanes record of executions, and what becomes of it when nobody takes it.

use core::mem::offset_of;
use std::vec::Vec;

use sluice_core::exec::vitals::{GateAt, LaneState, StatusReader};
use sluice_core::exec::{
    CoreIndex, HostBoot, Instruction, LaneIndex, Recorders, SideTables, Workload, WorkloadKinds, status_block,
};
use sluice_core::layout::device_phase::{self, BufferHeader, DevicePhase, NEVER, PHASES, PhaseRecord};
use sluice_core::layout::extension::{
    self, ANSWER, Answer, AnswerCode, Extension, Head, LaneStatus, MAGIC, PoolStatus, Service, WindowUnit,
    layout_hash, service,
};
use sluice_core::layout::swimlane::{
    AICORE_TASK_BUFFER, AICPU_TASK_BUFFER, AicoreTaskRecord, AicpuOrchPhaseRecord, AicpuSchedPhaseRecord,
    AicpuTaskRecord, Level, ORCH_PHASE_BUFFER, SCHED_PHASE_BUFFER, SchedPhaseKind, header_words, region,
};
use sluice_core::layout::{
    ArchId, BufferLayout, EnableMask, Instance, Lane, PoolKind, Region, SUBSYSTEMS, Shape, SubsystemId,
};
use sluice_core::mem::{CopyMemory, DevAddr, Memory as _, Word};
use sluice_core::mmio::Engine;
use sluice_core::producer::{DropCause, ReadyEntry};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::bench::{BOOT, Bench, Memory, NO_DELAY, NONE, assert_done, block, with_bench};
use crate::test_host::TestHost;
use crate::{Activity, AgentDelays};

const ID: SubsystemId = SubsystemId::Swimlane;
const ARCH: ArchId = ArchId::A2a3;
const LANES: u32 = 2;
const CORES: u32 = 10;
const DEADLINE_CYCLES: u64 = 1_000_000;

/// A swimlane region and its extension block, with `buffers` buffers in each pool that records.
struct Session<'a> {
    memory: Memory<'a>,
    boot: HostBoot<Memory<'a>>,
    region: Region,
    at: DevAddr,
    extension: Extension,
    extension_at: DevAddr,
    tables: SideTables,
}

impl<'a> Session<'a> {
    fn plan(bench: &Bench<'a>, host: &mut TestHost<Memory<'a>>, level: Level, buffers: u32) -> Self {
        let shape = Shape::new(ARCH, LANES, CORES).unwrap();
        let (region, extension) = (region(shape), Extension::new(shape));
        let at = host.alloc(region.bytes() as u64);
        let extension_at = host.alloc(extension.bytes() as u64);
        let boot = HostBoot::attach(&bench.memory, bench.map.boot).unwrap();
        let tables = SideTables {
            aicore_heads: host.alloc(u64::from(CORES) * 8),
            device_phases: host.alloc(device_phase::bytes(LANES) as u64),
            ..SideTables::default()
        };
        let memory = bench.memory.clone();
        let session = Self { memory, boot, region, at, extension, extension_at, tables };
        let words = header_words(ARCH);
        session.set(at.offset(words.num_cores as u64), CORES);
        session.set(at.offset(words.chip_swimlane_level as u64), level.0);
        let head = Head {
            magic: MAGIC,
            version: extension::VERSION,
            layout_hash: layout_hash(ARCH),
            bytes: extension.bytes() as u32,
            lanes: LANES,
            cores: CORES,
            deadline_cycles: DEADLINE_CYCLES,
            ..Head::new_zeroed()
        };
        bench.memory.write_bytes(extension_at, head.as_bytes()).unwrap();
        for array in region.arrays() {
            let of_core = matches!(array.kind, PoolKind::AICPU_TASK | PoolKind::AICORE_TASK);
            let instances = if of_core { CORES } else { LANES };
            for instance in (0..instances).map(Instance) {
                for _ in 0..buffers {
                    let buffer = host.alloc(array.buffer.bytes as u64);
                    session.give(array.kind, instance, buffer);
                }
            }
        }
        session
    }

    fn set(&self, at: DevAddr, value: u32) {
        self.memory.word(at).unwrap().store_release(value);
    }

    fn get(&self, at: DevAddr) -> u32 {
        self.memory.word(at).unwrap().load_acquire()
    }

    /// Puts an empty buffer into a free queue.
    fn give(&self, kind: PoolKind, instance: Instance, buffer: DevAddr) {
        let pool = self.region.pool(kind, instance).unwrap();
        let tail_at = self.at.offset(pool.free_tail as u64);
        let tail = self.get(tail_at);
        let slot = self.at.offset((pool.free_ptrs + (tail % self.region.free_slots()) as usize * 8) as u64);
        self.memory.write_bytes(slot, buffer.0.as_bytes()).unwrap();
        self.set(tail_at, tail.wrapping_add(1));
    }

    fn attach(&self) {
        let mut regions = [DevAddr::NULL; SUBSYSTEMS];
        regions[ID.index()] = self.at;
        let recorders = Recorders {
            enabled: EnableMask::SWIMLANE,
            extension: self.extension_at,
            regions,
            tables: self.tables,
        };
        self.boot.attach_recorders(&recorders).unwrap();
    }

    fn answer(&self) -> AnswerCode {
        AnswerCode(self.get(self.extension_at.offset((ANSWER + offset_of!(Answer, answer)) as u64)))
    }

    fn lane_word(&self, lane: u32, offset: usize) -> u32 {
        let line = self.extension.lane(ID, Lane(lane)).unwrap();
        self.get(self.extension_at.offset((line + offset) as u64))
    }

    /// Attempts and losses of a pool.
    fn counts(&self, kind: PoolKind, instance: u32) -> (u32, u32) {
        let pool = self.region.pool(kind, Instance(instance)).unwrap();
        let at = |offset: usize| self.get(self.at.offset(offset as u64));
        (at(pool.total_records.unwrap()), at(pool.dropped_records))
    }

    /// Everything that the lanes have published, by lane.
    fn published(&self) -> Vec<(u32, ReadyEntry)> {
        let mut entries = Vec::new();
        for lane in 0..LANES {
            let offsets = self.region.lane(Lane(lane)).unwrap();
            let ring = self.at.offset(offsets.ring as u64);
            let words = ReadyEntry::table_words(self.region.ready_entries());
            let table = self.memory.words(ring, words).unwrap();
            for index in 0..self.get(self.at.offset(offsets.tail as u64)) {
                entries.push((lane, ReadyEntry::read(&table, index).unwrap()));
            }
        }
        entries
    }

    fn records<R: FromBytes>(&self, buffer: DevAddr, layout: BufferLayout) -> Vec<R> {
        let count = self.get(buffer.offset(layout.count as u64));
        let record = |index| {
            let mut bytes = std::vec![0; layout.record_bytes];
            let at = buffer.offset(layout.record(index).unwrap() as u64);
            self.memory.read_bytes(at, &mut bytes).unwrap();
            R::read_from_bytes(&bytes).unwrap()
        };
        (0..count).map(record).collect()
    }
}

/// A program on ACT and DVE: two blocks and one, one of them waiting; three items in all.
fn programs(host: &mut TestHost<Memory<'_>>) -> [DevAddr; Engine::COUNT] {
    let act = host.program(&[block(0, 0, &[], Some(1)), block(0, 0, &[(2, 1)], None)]);
    let dve = host.program(&[block(1, 0, &[(1, 1)], Some(2))]);
    [NONE, act, NONE, dve, NONE]
}

fn execute(
    bench: &mut Bench<'_>,
    host: &mut TestHost<Memory<'_>>,
    bases: [DevAddr; Engine::COUNT],
    times: u32,
) {
    for _ in 0..times {
        let trigger = host.trigger(bases, false);
        host.post(&trigger);
        host.kick();
        bench.settle();
        assert_done(host);
        for engine in Engine::ALL {
            host.statuses(engine);
        }
    }
}

#[test]
fn every_item_phase_and_submit_is_recorded_once() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        let bases = programs(&mut host);
        execute(bench, &mut host, bases, 1);
        let session = Session::plan(bench, &mut host, Level::FULL, 1);
        session.attach();
        execute(bench, &mut host, bases, 5);
        assert_eq!(session.answer(), AnswerCode::ACCEPTED);
        assert_eq!(session.published().len(), 0, "no buffer is full yet");
        session.boot.stop_recorders().unwrap();
        bench.settle();
        execute(bench, &mut host, bases, 1);

        let mut tasks = Vec::new();
        let mut own = Vec::new();
        let mut phases = [0u32; LANES as usize];
        let mut submits = Vec::new();
        for (lane, entry) in session.published() {
            match entry.kind {
                PoolKind::AICPU_TASK => {
                    let core = CoreIndex::all(2).nth(entry.instance.0 as usize).unwrap();
                    assert_eq!(core.lane(LANES).get(), lane);
                    tasks.push((core, session.records::<AicpuTaskRecord>(entry.buffer, AICPU_TASK_BUFFER)));
                }
                PoolKind::AICORE_TASK => {
                    let core = CoreIndex::all(2).nth(entry.instance.0 as usize).unwrap();
                    own.push((core, session.records::<AicoreTaskRecord>(entry.buffer, AICORE_TASK_BUFFER)));
                }
                PoolKind::SCHED_PHASE => {
                    assert_eq!(entry.instance.0, lane);
                    let records = session.records::<AicpuSchedPhaseRecord>(entry.buffer, SCHED_PHASE_BUFFER);
                    let of = |kind| records.iter().filter(|record| record.kind == kind).count();
                    assert_eq!(of(SchedPhaseKind::DISPATCH), of(SchedPhaseKind::COMPLETE));
                    assert!(
                        records.iter().all(|one| one.tasks_processed == 1 && one.start_time <= one.end_time)
                    );
                    let looks = |kind| {
                        let of_kind = records.iter().filter(move |record| record.kind == kind);
                        of_kind.map(|record| record.phase_data)
                    };
                    assert!(looks(SchedPhaseKind::DISPATCH).all(|[hits, _]| hits == 1));
                    // Of the three blocks of an execution two wait for another.
                    let late = looks(SchedPhaseKind::DISPATCH).filter(|&[_, misses]| misses > 0);
                    assert_eq!(late.count(), 2 * records.len() / 6);
                    assert!(looks(SchedPhaseKind::COMPLETE).all(|looks| looks == [0; 2]));
                    phases[lane as usize] = records.len() as u32;
                }
                PoolKind::ORCH_PHASE => {
                    assert_eq!((lane, entry.instance.0), (0, 0));
                    submits = session.records::<AicpuOrchPhaseRecord>(entry.buffer, ORCH_PHASE_BUFFER);
                }
                kind => panic!("nothing records {kind}"),
            }
        }
        // The first execution ran before the recorders were attached, the last after they had stopped.
        tasks.sort_by_key(|(core, _)| *core);
        let tokens: Vec<(usize, Vec<u32>)> = tasks
            .iter()
            .map(|(core, records)| (core.get(), records.iter().map(|one| one.reg_task_id).collect()))
            .collect();
        // TPB 1: ACT is core 6, DVE core 8. Tokens count over the device's life.
        assert_eq!(tokens, [(6, (3..=12).collect()), (8, (2..=6).collect::<Vec<u32>>())]);
        for (_, records) in &tasks {
            assert!(records.iter().all(|one| one.dispatch_time < one.finish_time));
            assert!(records.windows(2).all(|pair| pair[0].finish_time <= pair[1].dispatch_time));
        }
        // Every core recorded the same items, inside the times at which its lane saw them.
        own.sort_by_key(|(core, _)| *core);
        for ((core, tasks), (same, own)) in tasks.iter().zip(&own) {
            assert_eq!((core, tasks.len()), (same, own.len()));
            for (task, own) in tasks.iter().zip(own) {
                assert_eq!(task.reg_task_id, own.reg_task_id);
                assert!(task.dispatch_time < own.start_time && own.start_time < own.end_time);
                assert!(own.end_time < task.finish_time && own.receive_to_start_cycles > 0);
                assert_eq!(own.task_token_raw >> 32, u64::from(core.get() == 8), "the queue of its block");
            }
        }
        // Cores 6 and 8 both belong to lane 0.
        assert_eq!(phases, [2 * 15, 0]);
        let submits: Vec<(u64, u32)> = submits.iter().map(|one| (one.task_id, one.submit_idx)).collect();
        assert_eq!(submits, (1..=5).map(|n| (1 << 32 | u64::from(n), n)).collect::<Vec<_>>());
        for lane in 0..LANES {
            assert_eq!(session.lane_word(lane, offset_of!(LaneStatus, flushed)), 1);
            assert_eq!(session.lane_word(lane, offset_of!(LaneStatus, dropped_records)), 0);
        }
        let words = header_words(ARCH);
        let header = |offset: usize| session.get(session.at.offset(offset as u64));
        assert_eq!(header(words.num_phase_cores), CORES);
        assert_eq!((header(words.num_sched_phase_threads), header(words.num_orch_phase_threads)), (LANES, 1));
        let owners = host.read(session.at.offset(words.core_to_thread as u64), CORES as usize);
        assert_eq!(owners, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
    });
}

#[test]
fn a_lower_level_records_less() {
    let levels =
        [(Level::OFF, 0, 0, 0), (Level::CORE, 2, 0, 0), (Level::TASK, 2, 2, 0), (Level::SCHED, 2, 2, 6)];
    for (level, own, tasks, phases) in levels {
        with_bench(LANES, NO_DELAY, |bench| {
            let mut host = bench.host(1);
            let bases = programs(&mut host);
            let session = Session::plan(bench, &mut host, level, 1);
            session.attach();
            execute(bench, &mut host, bases, 1);
            assert_eq!(session.counts(PoolKind::AICORE_TASK, 6), (own, 0), "{level}");
            assert_eq!(session.counts(PoolKind::AICPU_TASK, 6), (tasks, 0), "{level}");
            assert_eq!(session.counts(PoolKind::SCHED_PHASE, 0), (phases, 0), "{level}");
            assert_eq!(session.counts(PoolKind::ORCH_PHASE, 0), (0, 0), "{level}");
        });
    }
}

#[test]
fn a_lane_that_nobody_serves_waits_once_and_counts_what_it_loses() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        let bases = programs(&mut host);
        let session = Session::plan(bench, &mut host, Level::TASK, 0);
        session.attach();
        execute(bench, &mut host, bases, 1);
        let waited = bench.machine.cycles();
        assert!((DEADLINE_CYCLES..2 * DEADLINE_CYCLES).contains(&waited), "{waited} cycles");
        assert!(bench.machine.parked.get() > 0);
        execute(bench, &mut host, bases, 10);
        assert!(bench.machine.cycles() - waited < DEADLINE_CYCLES, "it waits no second time");
        assert_eq!(session.counts(PoolKind::AICPU_TASK, 6), (22, 22));
        assert_eq!(session.counts(PoolKind::AICPU_TASK, 8), (11, 11));
        assert_eq!(session.lane_word(0, offset_of!(LaneStatus, expiries)), 1);
        let number = session.region.pool_number(PoolKind::AICPU_TASK, Instance(6)).unwrap();
        let line = session.extension.pool(ID, number).unwrap() + offset_of!(PoolStatus, drops);
        assert_eq!(session.get(session.extension_at.offset(line as u64)), 22, "all to host_gone");

        // The host comes back with buffers.
        for core in [6, 8].map(Instance) {
            let buffer = host.alloc(AICPU_TASK_BUFFER.bytes as u64);
            session.give(PoolKind::AICPU_TASK, core, buffer);
        }
        execute(bench, &mut host, bases, 1);
        session.boot.stop_recorders().unwrap();
        bench.settle();
        assert_eq!(session.counts(PoolKind::AICPU_TASK, 6), (24, 22));
        assert_eq!(session.published().len(), 2);
        // The status block counts on over attachments, and needs no session.
        let lane = StatusReader::new(bench.memory.clone(), status_block(BOOT)).lane(0).unwrap();
        assert_eq!((lane.state, lane.stalls), (LaneState::RUNNING, 1));
        assert_eq!(lane.dropped, session.lane_word(0, offset_of!(LaneStatus, dropped_records)));
        assert!(lane.dropped >= 22 + 11, "{lane:?}");
        assert!((DEADLINE_CYCLES..2 * DEADLINE_CYCLES).contains(&lane.stalled_cycles), "{lane:?}");
    });
}

#[test]
fn a_lane_at_a_shut_gate_goes_on_when_it_opens() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        let bases = programs(&mut host);
        let session = Session::plan(bench, &mut host, Level::TASK, 1);
        let gate = session.at.offset(session.region.gates().fq_freeze_active as u64);
        session.set(gate, 1);
        session.attach();
        bench.machine.store_at_wait(5, gate, 0);
        execute(bench, &mut host, bases, 1);
        assert_eq!(bench.machine.waits(), 5, "the first record stood at the gate");
        assert!(bench.machine.host_wakes.get() > 0);
        assert_eq!(session.counts(PoolKind::AICPU_TASK, 6), (2, 0));
        assert!(session.lane_word(0, offset_of!(LaneStatus, parks)) > 0);
        let lane = StatusReader::new(bench.memory.clone(), status_block(BOOT)).lane(0).unwrap();
        assert_eq!((lane.state, lane.stalls, lane.gate), (LaneState::RUNNING, 1, GateAt::FREE));
        assert_eq!(lane.subsystem.subsystem(), Some(ID));
        assert!(lane.since_cycles < lane.seen_cycles && lane.stalled_cycles > 0, "{lane:?}");
        assert!(session.lane_word(0, offset_of!(LaneStatus, waited_fq_cycles)) > 0);
        assert_eq!(session.lane_word(0, offset_of!(LaneStatus, waits_logged)), 1);
    });
}

#[test]
fn a_block_or_region_for_another_device_is_refused_and_left_alone() {
    let refuse = |damage: &dyn Fn(&Session<'_>)| {
        let mut answer = AnswerCode::NONE;
        with_bench(LANES, NO_DELAY, |bench| {
            let mut host = bench.host(1);
            let bases = programs(&mut host);
            let session = Session::plan(bench, &mut host, Level::FULL, 1);
            damage(&session);
            session.attach();
            execute(bench, &mut host, bases, 1);
            assert_eq!(session.counts(PoolKind::AICPU_TASK, 6), (0, 0));
            answer = session.answer();
        });
        answer
    };
    let head = |session: &Session<'_>, offset: usize, value| {
        session.set(session.extension_at.offset(offset as u64), value)
    };
    assert_eq!(refuse(&|session| head(session, offset_of!(Head, version), 9)), AnswerCode::BAD_VERSION);
    assert_eq!(refuse(&|session| head(session, offset_of!(Head, layout_hash), 9)), AnswerCode::BAD_LAYOUT);
    assert_eq!(refuse(&|session| head(session, offset_of!(Head, lanes), 3)), AnswerCode::BAD_SHAPE);
    let fewer_cores =
        |session: &Session<'_>| session.set(session.at.offset(header_words(ARCH).num_cores as u64), 9);
    assert_eq!(refuse(&fewer_cores), AnswerCode::BAD_SHAPE);
}

#[test]
fn a_detached_host_is_not_waited_for() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        let opaque = host.program(&[Instruction::Opaque { opcode: 0 }]);
        let session = Session::plan(bench, &mut host, Level::TASK, 0);
        let detached = service(ID) + offset_of!(Service, host_detached);
        session.set(session.extension_at.offset(detached as u64), 1);
        session.attach();
        execute(bench, &mut host, [NONE, opaque, NONE, NONE, NONE], 3);
        assert!(bench.machine.cycles() < DEADLINE_CYCLES);
        assert_eq!(session.counts(PoolKind::AICPU_TASK, 6), (3, 3));
    });
}

#[test]
fn every_core_is_told_where_its_own_pool_begins() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        let session = Session::plan(bench, &mut host, Level::CORE, 1);
        session.attach();
        bench.settle();
        for core in 0..CORES {
            let entry = session.tables.aicore_heads.offset(u64::from(core) * 8);
            let pool = session.region.pool(PoolKind::AICORE_TASK, Instance(core)).unwrap();
            let head = DevAddr::join(session.get(entry), session.get(entry.offset(4)));
            assert_eq!(head, session.at.offset(pool.current_ptr as u64));
        }
    });
}

#[test]
fn phases_of_the_device_are_stamped_by_the_lanes_that_had_them() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        let bases = programs(&mut host);
        execute(bench, &mut host, bases, 1);
        let session = Session::plan(bench, &mut host, Level::FULL, 1);
        let before = bench.machine.cycles();
        session.attach();
        execute(bench, &mut host, bases, 2);
        session.boot.stop_recorders().unwrap();
        bench.settle();
        let after = bench.machine.cycles();
        let stamp = |lane: usize, phase: DevicePhase| {
            let number = lane * PHASES + phase.0 as usize;
            let at = size_of::<BufferHeader>() + number * size_of::<PhaseRecord>();
            let bytes = host.read(session.tables.device_phases.offset(at as u64), size_of::<PhaseRecord>());
            PhaseRecord::read_from_bytes(&bytes).unwrap()
        };
        let [run, orch, sched, post] = [
            DevicePhase::RUN_WALL,
            DevicePhase::ORCH_WINDOW,
            DevicePhase::SCHED_WINDOW,
            DevicePhase::POST_ORCH,
        ];
        // Lane 0 has the sequencers and, of the cores that run, all.
        let begins = [run, orch, sched].map(|phase| stamp(0, phase).start_cycle);
        assert!(before < begins[0] && begins.is_sorted(), "{begins:?}");
        let ends = [stamp(0, orch).end_cycle, stamp(0, sched).end_cycle, stamp(0, post).start_cycle];
        assert!(ends.is_sorted() && ends[2] < stamp(0, run).end_cycle, "{ends:?}");
        assert_eq!(stamp(0, post).end_cycle, stamp(0, run).end_cycle);
        assert!(stamp(0, run).end_cycle <= after);
        assert!(stamp(1, run).start_cycle < stamp(1, run).end_cycle);
        for phase in [orch, sched, post, DevicePhase::SO_LOAD] {
            assert_eq!(stamp(1, phase).start_cycle, NEVER, "{phase}");
        }
    });
}

#[test]
fn an_item_that_was_dispatched_before_the_recorders_came_is_not_recorded() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        let opaque = host.program(&[Instruction::Opaque { opcode: 0 }]);
        host.control().set_opaque_engine_cycles(50_000);
        let session = Session::plan(bench, &mut host, Level::SCHED, 1);
        let trigger = host.trigger([NONE, opaque, NONE, NONE, NONE], false);
        host.post(&trigger);
        host.kick();
        while !matches!(bench.node.poll(), Activity::Until(_)) {}
        session.attach();
        bench.settle();
        assert_done(&mut host);
        assert_eq!(session.counts(PoolKind::AICPU_TASK, 6), (0, 0));
        assert_eq!(session.counts(PoolKind::SCHED_PHASE, 0), (0, 0));
    });
}

#[test]
fn no_clock_is_read_for_times_that_nobody_records() {
    let reads = |level: Option<Level>| {
        let mut reads = 0;
        with_bench(LANES, NO_DELAY, |bench| {
            let mut host = bench.host(1);
            let bases = programs(&mut host);
            if let Some(level) = level {
                let mut session = Session::plan(bench, &mut host, level, 1);
                session.tables = SideTables::default();
                session.attach();
            }
            execute(bench, &mut host, bases, 1);
            let before = bench.machine.cycles();
            execute(bench, &mut host, bases, 1);
            reads = bench.machine.cycles() - before;
        });
        reads
    };
    let none = reads(None);
    assert_eq!(reads(Some(Level::OFF)), none);
    // Three items, each received, begun and ended by its core; dispatched and finished; phases of the loop end at times of
    // their own; a submit has two.
    let levels = [Level::CORE, Level::TASK, Level::SCHED, Level::FULL].map(|level| reads(Some(level)) - none);
    assert_eq!(levels, [9, 15, 21, 23]);
}

#[test]
fn a_level_is_changed_while_the_lanes_record() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        let bases = programs(&mut host);
        let session = Session::plan(bench, &mut host, Level::TASK, 1);
        session.attach();
        execute(bench, &mut host, bases, 1);
        let word = |offset: usize| session.extension_at.offset((service(ID) + offset) as u64);
        let counts = [(Level::OFF, 2, 0), (Level::SCHED, 4, 6), (Level::TASK, 6, 6)];
        for (sequence, (level, tasks, phases)) in (1..).zip(counts) {
            session.set(word(offset_of!(Service, level)), level.0);
            session.set(word(offset_of!(Service, control_seq)), sequence);
            execute(bench, &mut host, bases, 1);
            assert_eq!(session.counts(PoolKind::AICPU_TASK, 6), (tasks, 0), "{level}");
            assert_eq!(session.counts(PoolKind::SCHED_PHASE, 0), (phases, 0), "{level}");
            let seen = (0..LANES).map(|lane| session.lane_word(lane, offset_of!(LaneStatus, control_seen)));
            assert!(seen.eq([sequence; LANES as usize]));
        }
    });
}

#[test]
fn a_sample_of_a_window_is_whole_executions_and_the_rest_is_counted() {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        let bases = programs(&mut host);
        let session = Session::plan(bench, &mut host, Level::FULL, 1);
        for (offset, value) in [
            (offset_of!(Service, level), Level::FULL.0),
            (offset_of!(Service, sample_every), 2),
            (offset_of!(Service, window_unit), WindowUnit::EXECUTIONS.0),
            (offset_of!(Service, window_start), 1),
            (offset_of!(Service, window_stop), 6),
            (offset_of!(Service, control_seq), 1),
        ] {
            session.set(session.extension_at.offset((service(ID) + offset) as u64), value);
        }
        session.attach();
        execute(bench, &mut host, bases, 8);
        // Those are 1, 3 and 5 of 0 to 7. Core 6 has two of the three items of lane 0.
        assert_eq!(session.counts(PoolKind::AICPU_TASK, 6), (6, 0));
        assert_eq!(session.counts(PoolKind::AICORE_TASK, 6), (6, 0));
        assert_eq!(session.counts(PoolKind::SCHED_PHASE, 0), (3 * 6, 0));
        assert_eq!(session.counts(PoolKind::ORCH_PHASE, 0), (3, 0));
        let number = session.region.pool_number(PoolKind::SCHED_PHASE, Instance(0)).unwrap();
        let status = session.extension.pool(ID, number).unwrap() + offset_of!(PoolStatus, passed_over);
        assert_eq!(session.get(session.extension_at.offset(status as u64)), 5 * (3 + 1));
    });
}

#[test]
fn an_item_waits_for_the_record_that_a_full_buffer_lacks() {
    // Records come later than the end of their items; only so is there anything to wait for.
    let late = AgentDelays { seed: 5, max_cycles: 50 };
    with_bench(LANES, late, |bench| {
        let mut host = bench.host(1);
        let act = host.program(&[(); 103].map(|()| block(0, 0, &[], None)));
        let session = Session::plan(bench, &mut host, Level::CORE, 1);
        // The host gives a second buffer only while the lane waits for one.
        let pool = session.region.pool(PoolKind::AICORE_TASK, Instance(6)).unwrap();
        let second = host.alloc(AICORE_TASK_BUFFER.bytes as u64);
        host.write(session.at.offset(pool.free_ptrs as u64 + 8), second.0.as_bytes());
        bench.machine.store_at_wait(1, session.at.offset(pool.free_tail as u64), 2);
        session.attach();
        execute(bench, &mut host, [NONE, act, NONE, NONE, NONE], 10);
        assert!(bench.machine.waits() >= 1);
        session.boot.stop_recorders().unwrap();
        bench.settle();
        assert_eq!(session.counts(PoolKind::AICORE_TASK, 6), (1030, 0));
        let published = session.published();
        let buffers: Vec<_> = published.iter().map(|(_, entry)| (entry.buffer, entry.sequence)).collect();
        assert_eq!(buffers.iter().map(|(_, sequence)| *sequence).collect::<Vec<_>>(), [0, 1]);
        let records = buffers
            .iter()
            .flat_map(|(buffer, _)| session.records::<AicoreTaskRecord>(*buffer, AICORE_TASK_BUFFER));
        let records: Vec<_> = records.collect();
        assert!(records.iter().map(|one| one.reg_task_id).eq(1..=1030));
        assert!(records.windows(2).all(|pair| pair[0].end_time < pair[1].start_time));
    });
}

/// Stops while the core of one opaque item of `cycles` is at work.
fn stop_in_the_middle(cycles: u64, check: impl FnOnce(&Session<'_>, u64)) {
    with_bench(LANES, NO_DELAY, |bench| {
        let mut host = bench.host(1);
        let opaque = host.program(&[Instruction::Opaque { opcode: 0 }]);
        host.control().set_opaque_engine_cycles(cycles);
        let session = Session::plan(bench, &mut host, Level::TASK, 1);
        session.attach();
        let trigger = host.trigger([NONE, opaque, NONE, NONE, NONE], false);
        host.post(&trigger);
        host.kick();
        while !matches!(bench.node.poll(), Activity::Until(_)) {}
        session.boot.stop_recorders().unwrap();
        bench.settle();
        assert_done(&mut host);
        execute(bench, &mut host, [NONE, opaque, NONE, NONE, NONE], 1);
        check(&session, bench.machine.cycles());
    });
}

#[test]
fn what_a_core_is_at_when_recording_ends_is_recorded_to_its_end() {
    stop_in_the_middle(50_000, |session, cycles| {
        assert!(cycles < 200_000, "{cycles}");
        assert_eq!(session.counts(PoolKind::AICORE_TASK, 6), (1, 0));
        assert_eq!(session.counts(PoolKind::AICPU_TASK, 6), (1, 0));
        assert_eq!(session.published().len(), 2);
        assert_eq!(session.lane_word(0, offset_of!(LaneStatus, flushed)), 1);
    });
}

#[test]
fn memory_that_a_core_may_still_write_is_not_said_to_be_flushed() {
    let timeout_cycles = ARCH.facts().operation_timeout_cycles();
    stop_in_the_middle(timeout_cycles + 50_000, |session, _| {
        assert_eq!(session.counts(PoolKind::AICORE_TASK, 6), (1, 1));
        let number = session.region.pool_number(PoolKind::AICORE_TASK, Instance(6)).unwrap();
        let busy = offset_of!(PoolStatus, drops) + 8 * DropCause::CoreBusy.index();
        let line = session.extension.pool(ID, number).unwrap() + busy;
        assert_eq!(session.get(session.extension_at.offset(line as u64)), 1);
        assert_eq!(session.lane_word(0, offset_of!(LaneStatus, flushed)), 0);
        assert_eq!(session.lane_word(1, offset_of!(LaneStatus, flushed)), 1);
    });
}

#[test]
fn cores_record_items_that_belong_to_no_execution_and_nobody_else_does() {
    const RECORDS: u32 = 203;
    for max_cycles in [0, 50] {
        with_bench(LANES, AgentDelays { seed: 9, max_cycles }, |bench| {
            let mut host = bench.host(1);
            let core_item = host.program(&[block(0, 0, &[], None)]);
            let (records, kinds) = (RECORDS.into(), WorkloadKinds::AICORE_TASK);
            let session = Session::plan(bench, &mut host, Level::FULL, 1);
            session.boot.set_workload(&Workload { records, kinds, core_item, ..Workload::NONE }).unwrap();
            session.attach();
            bench.settle();
            let made = |lane| session.boot.workload_made(LaneIndex::new(lane).unwrap());
            assert_eq!([0, 1].map(made), [Ok(true), Ok(true)]);
            session.boot.stop_recorders().unwrap();
            bench.settle();
            let mut total = 0;
            for (_, entry) in session.published() {
                let own: Vec<AicoreTaskRecord> = session.records(entry.buffer, AICORE_TASK_BUFFER);
                let tokens = own.iter().map(|record| record.reg_task_id);
                assert!(tokens.eq(1..=own.len() as u32) && own.iter().all(|record| record.end_time > 0));
                let turns = if max_cycles == 0 { 20..=21 } else { 15..=25 };
                assert!(turns.contains(&own.len()), "cores take turns: {}", own.len());
                total += own.len() as u32;
            }
            assert_eq!(total, RECORDS, "and no record of any other kind");
            session.boot.set_workload(&Workload::NONE).unwrap();
            let execution = programs(&mut host);
            execute(bench, &mut host, execution, 1);
        });
    }
}
