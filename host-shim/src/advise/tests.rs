//! Captures made by hand, with answers worked out by hand.

use std::io::Cursor;

use sluice_core::layout::ArchId;
use sluice_core::layout::swimlane::AicpuTaskRecord;
use zerocopy::{FromZeros, IntoBytes};

use super::*;
use crate::capture::{
    BufferHeader, Core, FileHeader, FreezeEvent, Manifest, Pool, RunId, Subsystem, TransitNote, WaitNote,
    Writer,
};

/// A capture at 1 GHz whose device counter is the host's time: two cores on lane 0, one on lane 1.
struct Tale(Writer<Vec<u8>>);

const CORE: fn(u32) -> Pool =
    |instance| Pool { subsystem: Subsystem::SWIMLANE, kind: PoolKind::AICPU_TASK, instance };

impl Tale {
    fn begin() -> Self {
        let header =
            FileHeader { run: RunId(1), arch: ArchId::A2a3, clock_hz: 1_000_000_000, started_unix_ns: 0 };
        let writer = Writer::start(Vec::new(), &header).unwrap();
        let cores = [0, 0, 1].map(|lane| Core { lane, ..Core::default() }).into();
        let buffers = [("aicpu_task".to_owned(), 1)].into();
        let manifest = Manifest { lanes: 2, cores, buffers, ..Manifest::default() };
        writer.append_manifest(&manifest).unwrap();
        Self(writer)
    }

    /// A buffer of the tasks of `core`, the last of which ended at `published`.
    fn tasks(self, core: u32, seq: u32, [published, drained, collected]: [u64; 3]) -> Self {
        let record = AicpuTaskRecord { finish_time: published, ..FromZeros::new_zeroed() };
        let header = BufferHeader::new(CORE(core), seq, 1, size_of_val(&record) as u32);
        self.0.append_buffer(&header, record.as_bytes()).unwrap();
        self.transit(CORE(core), seq, drained, collected)
    }

    fn transit(self, pool: Pool, seq: u32, drained_ns: u64, collected_ns: u64) -> Self {
        self.0.append_transits(&[TransitNote::new(pool, seq, drained_ns, collected_ns)]).unwrap();
        self
    }

    fn wait(self, lane: u32, gate: Gate, pool: Pool, [begin, end]: [u64; 2]) -> Self {
        let wait = WaitNote {
            subsystem: pool.subsystem,
            lane,
            gate,
            kind: pool.kind,
            instance: pool.instance,
            gave_up: 0,
            begin_cycles: begin,
            end_cycles: end,
        };
        self.0.append_waits(&[wait]).unwrap();
        self
    }

    fn freeze(self, gate: Gate) -> Self {
        let freeze = FreezeEvent {
            subsystem: Subsystem::SWIMLANE,
            gate,
            opened_by: 0,
            lanes_parked: 1,
            opened_ns: 0,
            released_ns: 1,
            buffers_drained: 0,
        };
        self.0.append_freezes(&[freeze]).unwrap();
        self
    }

    fn advice(self) -> Advice {
        Advice::of(&mut Reader::new(Cursor::new(self.0.into_storage())).unwrap()).unwrap()
    }
}

/// Peak, buffers recommended and their bytes in units of a buffer.
fn of(advice: &Advice, name: &str) -> (u32, u32, u64) {
    let kind = advice.kinds.iter().find(|kind| kind.name == name).expect("a kind that handed over a buffer");
    let region = layout::region(kind.subsystem, Shape::full(ArchId::A2a3));
    let buffer_bytes = region.array(kind.kind).unwrap().buffer.bytes as u64;
    assert_eq!(kind.device_bytes % buffer_bytes, 0);
    (kind.peak, kind.recommended, kind.device_bytes / buffer_bytes)
}

#[test]
fn a_host_that_takes_each_buffer_at_once_needs_one_beside_the_one_that_is_filled() {
    let tale = (0..10).fold(Tale::begin(), |tale, number: u32| {
        let at = 1000 * u64::from(number + 1);
        tale.tasks(0, number, [at, at + 10, at + 100])
    });
    let advice = tale.advice();
    assert_eq!(of(&advice, "aicpu_task"), (1, 2, 2));
    assert_eq!((advice.kinds[0].had, advice.kinds[0].buffers), (Some(1), 10));
    assert_eq!((advice.freezes, advice.freezes_avoided, advice.is_host_busy()), (0, 0, false));
    assert_eq!(advice.buffers_option().unwrap(), "aicpu_task=2");
    assert_eq!(advice.host_load, 1000.0 / 9100.0, "a hundred of each thousand, to the end of the last");
}

#[test]
fn a_pause_that_one_buffer_waited_out_needs_as_many_as_it_would_have_held() {
    // A buffer every 1000. The host takes 100 for each, and stands still from 2000 to 5100: the lane, with one buffer, waits
    // for it from 2000 to 5200, and goes on where it was.
    let mut tale = Tale::begin()
        .tasks(0, 0, [1000, 1010, 1100])
        .wait(0, Gate::FREE, CORE(0), [1000, 1100])
        .tasks(0, 1, [2100, 5110, 5200])
        .wait(0, Gate::FREE, CORE(0), [2100, 5200])
        .freeze(Gate::FREE);
    for number in 2..8 {
        let at = 5200 + 1000 * (u64::from(number) - 1) + 100 * (u64::from(number) - 2);
        tale = tale.tasks(0, number, [at, at + 10, at + 100]).wait(0, Gate::FREE, CORE(0), [at, at + 100]);
    }
    let advice = tale.advice();
    // Without waits it publishes at 1000, 2000, 3000 …; the second is done 3100 after 2000, at 5100, so those of 2000,
    // 3000, 4000 and 5000 are under way at once, and a fifth is being filled.
    assert_eq!(of(&advice, "aicpu_task"), (4, 5, 5));
    let kind = &advice.kinds[0];
    assert_eq!((kind.peak_instance, kind.peak_ns, kind.waits, kind.waited_ns), (0, 5000, 8, 3100 + 7 * 100));
    assert_eq!((advice.freezes, advice.freezes_avoided), (1, 1));
}

#[test]
fn each_kind_gets_what_its_neediest_pool_needs() {
    let scope = Pool { subsystem: Subsystem::SCOPE_STATS, kind: PoolKind::SOLE, instance: 0 };
    let mut tale = Tale::begin();
    // Core 1 publishes three at once, core 2 one on the other lane; the host takes 50 for each.
    for (core, seq, drained, collected) in
        [(1, 0, 101, 150), (1, 1, 102, 200), (1, 2, 103, 250), (2, 0, 104, 300)]
    {
        tale = tale.tasks(core, seq, [100, drained, collected]);
    }
    // A kind whose records have no times, and one buffer of which the host says nothing.
    let header = BufferHeader::new(scope, 0, 0, 80);
    tale.0.append_buffer(&header, &[]).unwrap();
    tale = tale.transit(scope, 0, 400, 410);
    tale.0.append_buffer(&BufferHeader::new(scope, 1, 0, 80), &[]).unwrap();
    let advice = tale.advice();
    assert_eq!(of(&advice, "aicpu_task"), (3, 4, 8), "for two pools");
    assert_eq!(of(&advice, "scope_stats"), (1, 2, 2));
    assert_eq!(advice.kinds[0].peak_instance, 1);
    assert_eq!(advice.buffers_without_times, 1);
    assert_eq!(advice.buffers_option().unwrap(), "aicpu_task=4,scope_stats=2");
}

#[test]
fn a_ring_that_would_have_been_full_is_told_because_no_buffer_helps() {
    let room = layout::region(SubsystemId::Swimlane, Shape::full(ArchId::A2a3)).ready_entries() - 1;
    for (published, is_full) in [(room, false), (room + 1, true)] {
        let mut tale = Tale::begin().freeze(Gate::READY).freeze(Gate::FREE);
        for seq in 0..published {
            tale = tale.tasks(0, seq, [100, 9000 + u64::from(seq), 9000 + u64::from(seq)]);
        }
        let advice = tale.advice();
        let [ring] = advice.rings[..] else { panic!("{:?}", advice.rings) };
        assert_eq!((ring.lane, ring.peak, ring.room, ring.is_full()), (0, published, room, is_full));
        assert_eq!((advice.freezes, advice.freezes_avoided), (2, if is_full { 1 } else { 2 }));
    }
}

#[test]
fn a_host_without_reserve_is_told() {
    // A buffer every 100, and 110 for each.
    let tale = (0..20).fold(Tale::begin(), |tale, number: u32| {
        let number_ns = u64::from(number);
        tale.tasks(0, number, [100 * number_ns, 100 * number_ns + 1, 110 * (number_ns + 1)])
    });
    let advice = tale.advice();
    assert!(advice.is_host_busy(), "{}", advice.host_load);
    assert_eq!(of(&advice, "aicpu_task").0, 3, "200 behind at the end, and growing");
}

#[test]
fn a_capture_without_buffers_recommends_nothing() {
    let advice = Tale::begin().advice();
    assert_eq!((advice.buffers_option(), advice.kinds.len(), advice.rings.len()), (None, 0, 0));
}
