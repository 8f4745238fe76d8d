//! The buffer-switch engine on the board, against an emulated host.

use sluice_core::gate::Gates;
use sluice_core::layout::swimlane::AicpuTaskRecord;
use sluice_core::layout::{BufferLayout, Instance, Lane as LaneNumber, PoolKind};
use sluice_core::mem::{CopyMemory, DevAddr, Memory};
use sluice_core::producer::{AppendError, DropCause, Lane, Pool, PoolSetup, ReadyRing, Records, Subsystem};

use crate::board::Shared;
use crate::harness::{Failure, Outcome, Test, check, check_eq};
use crate::host::{EXTENSION, Found, Host, KIND, REGION, REGION_AT, Waiting, buffer, peek, poke};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "producer: a full buffer is published byte for byte", run: published_bytes },
    Test { name: "producer: a starved lane waits for the refill and loses nothing", run: starved },
    Test { name: "producer: a full ring freezes, is drained, and loses nothing", run: frozen },
    Test { name: "producer: free-running counters wrap at 2^32", run: counters_wrap },
    Test { name: "producer: a host that is gone costs records, each one counted", run: host_gone },
    Test { name: "producer: a corrupt queue counter is never followed", run: corrupt_counter },
    Test { name: "producer: buffers of wire size carry every record", run: wire_size },
];

struct Swimlane;

impl Subsystem for Swimlane {}

/// Numbers in buffers of four, so that switches are frequent.
struct Numbers;

impl Records for Numbers {
    type Record = u64;
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout =
        BufferLayout { bytes: 64, count: 32, records: 0, record_bytes: size_of::<u64>(), capacity: 4 };
    const KIND: PoolKind = KIND;
}

/// The task records of the wire contract.
struct Tasks;

impl Records for Tasks {
    type Record = AicpuTaskRecord;
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout = match REGION.array(KIND) {
        Some(array) => array.buffer,
        None => panic!("the region has the pool"),
    };
    const KIND: PoolKind = KIND;
}

impl From<AppendError> for Failure {
    fn from(error: AppendError) -> Self {
        cortex_m_semihosting::hprintln!("  {}", error);
        Self { line: 0 }
    }
}

/// Longer than any wait that a host ends here.
const PATIENCE: u64 = 1_000;

type Bench<K> = (Lane<Shared, Swimlane>, Pool<Shared, K, Swimlane>);

fn attach<K: Records>(shared: &Shared, ring_entries: u32) -> Result<Bench<K>, Failure> {
    let (Some(lane), Some(offsets)) = (REGION.lane(LaneNumber(0)), REGION.pool(KIND, Instance(0))) else {
        return Err(Failure { line: line!() });
    };
    let gates = Gates::attach(shared, REGION_AT, REGION.gates(), Some(EXTENSION))?;
    let ring = ReadyRing::attach(shared, REGION_AT, lane, ring_entries)?;
    let setup =
        PoolSetup { region: REGION_AT, offsets, free_slots: REGION.free_slots(), instance: Instance(0) };
    Ok((Lane::new(gates, ring, None, PATIENCE), Pool::attach(shared, &setup, None)?))
}

/// What arrived, in order: numbers that must run from 0 without a gap.
#[derive(Default)]
struct Arrived {
    next_number: u64,
    next_sequence: u32,
    out_of_order: u32,
}

impl Arrived {
    /// Takes the numbers out of a found buffer and gives the buffer back.
    fn collect(&mut self, shared: &Shared, host: &Host<'_>, found: Found) {
        if found.sequence != self.next_sequence || found.kind != KIND.0 || found.instance != 0 {
            self.out_of_order += 1;
        }
        self.next_sequence = found.sequence + 1;
        for index in 0..peek(shared, found.buffer.offset(32)) {
            let at = found.buffer.offset(u64::from(index) * 8);
            let number = DevAddr::join(peek(shared, at), peek(shared, at.offset(4))).0;
            if number != self.next_number {
                self.out_of_order += 1;
            }
            self.next_number = number + 1;
        }
        host.give(found.buffer);
    }
}

fn pool_word(select: impl Fn(&sluice_core::layout::PoolOffsets) -> usize) -> DevAddr {
    let offsets = REGION.pool(KIND, Instance(0)).unwrap_or_else(|| unreachable!("the region has the pool"));
    REGION_AT.offset(select(&offsets) as u64)
}

fn published_bytes(shared: &Shared) -> Outcome {
    let (mut lane, mut pool) = attach::<Numbers>(shared, REGION.ready_entries())?;
    let host = Host::new(shared, REGION.ready_entries());
    host.give(buffer(0));
    host.give(buffer(1));
    let mut env = Waiting::with(|_| {});
    for number in [0x1122_3344_5566_7788_u64, 2, 3, 4] {
        lane.append(&mut pool, &number, &mut env)?;
    }
    check_eq!(env.parked, [0, 0]);
    let Some(rings) = REGION.lane(LaneNumber(0)) else { return Err(Failure { line: line!() }) };
    let mut entry = [0; 32];
    shared.read_bytes(REGION_AT.offset(rings.entry(0) as u64), &mut entry)?;
    let mut expected = [0; 32];
    expected[8..16].copy_from_slice(&buffer(0).0.to_le_bytes());
    check_eq!(entry, expected);
    check_eq!(peek(shared, REGION_AT.offset(rings.tail as u64)), 1);
    let mut records = [0; 36];
    shared.read_bytes(buffer(0), &mut records)?;
    check_eq!(records[..8], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    check_eq!(records[32..], [4, 0, 0, 0]);
    check_eq!(peek(shared, pool_word(|pool| pool.current_ptr)), buffer(1).split().0);
    check_eq!(peek(shared, pool_word(|pool| pool.current_ptr).offset(4)), buffer(1).split().1);
    check_eq!(peek(shared, pool_word(|pool| pool.current_seq)), 1);
    check_eq!(peek(shared, pool_word(|pool| pool.free_head)), 2);
    check_eq!(pool.state().total(), 4);
    Ok(())
}

/// Appends numbers from 0 while `host` acts in every wait, flushes, drains the rest: all must have arrived.
fn run_lossless(
    shared: &Shared,
    ring_entries: u32,
    buffers: u32,
    numbers: u64,
) -> Result<(u32, u32), Failure> {
    let (mut lane, mut pool) = attach::<Numbers>(shared, ring_entries)?;
    let mut host = Host::new(shared, ring_entries);
    (0..buffers).for_each(|index| host.give(buffer(index)));
    let mut arrived = Arrived::default();
    let mut env = Waiting::with(|_| host.step(|host, found| arrived.collect(shared, host, found)));
    for number in 0..numbers {
        lane.append(&mut pool, &number, &mut env)?;
    }
    let _ = lane.flush(&mut pool, &mut env);
    let parks = lane.state().parks;
    while let Some(found) = host.drain() {
        arrived.collect(shared, &host, found);
    }
    check_eq!(arrived.next_number, numbers);
    check_eq!(arrived.out_of_order, 0);
    check_eq!(pool.state().total(), numbers);
    check_eq!(pool.state().dropped_total(), 0);
    check_eq!(peek(shared, pool_word(|pool| pool.dropped_records)), 0);
    Ok((host.freezes, parks))
}

fn starved(shared: &Shared) -> Outcome {
    // One buffer: every switch finds the free queue empty until the host has copied and given it back.
    let (freezes, parks) = run_lossless(shared, REGION.ready_entries(), 1, 42)?;
    check_eq!(freezes, 10);
    check!(parks >= freezes);
    Ok(())
}

fn frozen(shared: &Shared) -> Outcome {
    // A ring of three holds two: with four buffers it is the ring that is full first.
    let (freezes, parks) = run_lossless(shared, 3, 4, 202)?;
    check!(freezes > 1);
    check!(parks >= freezes);
    Ok(())
}

fn counters_wrap(shared: &Shared) -> Outcome {
    for counter in [pool_word(|pool| pool.free_head), pool_word(|pool| pool.free_tail)] {
        poke(shared, counter, u32::MAX - 2);
    }
    run_lossless(shared, REGION.ready_entries(), 2, 80)?;
    check!(peek(shared, pool_word(|pool| pool.free_head)) < 1_000);
    Ok(())
}

fn host_gone(shared: &Shared) -> Outcome {
    let (mut lane, mut pool) = attach::<Numbers>(shared, 2)?;
    let host = Host::new(shared, 2);
    (0..3).for_each(|index| host.give(buffer(index)));
    let mut env = Waiting::with(|_| {});
    // A ring of two holds one: the first buffer is published, the second one's records are lost at the deadline.
    let lost = Err(AppendError { cause: DropCause::HostGone });
    for number in 0..7 {
        lane.append(&mut pool, &number, &mut env)?;
    }
    check_eq!(lane.append(&mut pool, &7, &mut env), lost);
    check!(lane.state().latch.is_set());
    check_eq!(u64::from(env.parked[0]), PATIENCE);
    check_eq!(pool.state().dropped[DropCause::HostGone.index()], 4);
    check_eq!(peek(shared, pool_word(|pool| pool.dropped_records)), 4);
    // Latched: the next full buffer is lost without another wait.
    for number in 8..11 {
        lane.append(&mut pool, &number, &mut env)?;
    }
    check_eq!(lane.append(&mut pool, &11, &mut env), lost);
    check_eq!(u64::from(env.parked[0]), PATIENCE);
    check_eq!(pool.state().dropped_total(), 8);
    // A host that moves is believed again.
    check!(host.drain().is_some());
    for number in 12..16 {
        lane.append(&mut pool, &number, &mut env)?;
    }
    check_eq!(pool.state().dropped_total(), 8);
    check_eq!(pool.state().total(), 16);
    check_eq!(host.drain().map(|found| (found.buffer, found.sequence)), Some((buffer(1), 1)));
    Ok(())
}

fn corrupt_counter(shared: &Shared) -> Outcome {
    let (mut lane, mut pool) = attach::<Numbers>(shared, REGION.ready_entries())?;
    let tail = pool_word(|pool| pool.free_tail);
    poke(shared, tail, REGION.free_slots() + 5);
    let mut env = Waiting::with(|round| {
        if round == 3 {
            // Right again, and a buffer behind it.
            poke(shared, tail, 0);
            Host::new(shared, REGION.ready_entries()).give(buffer(2));
        }
    });
    lane.append(&mut pool, &7, &mut env)?;
    check_eq!(env.parked, [0, 4]);
    check_eq!(pool.state().buffer, buffer(2));
    check_eq!(peek(shared, pool_word(|pool| pool.free_head)), 1);
    Ok(())
}

fn wire_size(shared: &Shared) -> Outcome {
    const RECORDS: u32 = 3_500;
    let (mut lane, mut pool) = attach::<Tasks>(shared, REGION.ready_entries())?;
    let host = Host::new(shared, REGION.ready_entries());
    (0..4).for_each(|index| host.give(buffer(index)));
    let mut env = Waiting::with(|_| {});
    for token in 1..=RECORDS {
        let record = AicpuTaskRecord {
            dispatch_time: u64::from(token) << 32,
            finish_time: u64::from(token) << 32 | 1,
            reg_task_id: token,
            tail: 0,
            tail_end: 0,
        };
        lane.append(&mut pool, &record, &mut env)?;
    }
    let _ = lane.flush(&mut pool, &mut env);
    check_eq!(env.parked, [0, 0]);
    let mut token = 0;
    for buffer_number in 0..4 {
        let Some(found) = host.drain() else { return Err(Failure { line: line!() }) };
        check_eq!((found.buffer, found.sequence), (buffer(buffer_number), buffer_number));
        for index in 0..peek(shared, found.buffer.offset(32_000)) {
            let record = found.buffer.offset(u64::from(index) * 32);
            token += 1;
            check_eq!(
                [0, 4, 8, 12, 16].map(|offset| peek(shared, record.offset(offset))),
                [0, token, 1, token, token]
            );
        }
    }
    check_eq!(token, RECORDS);
    check_eq!(host.drain(), None);
    Ok(())
}
