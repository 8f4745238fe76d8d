//! The device's side of recording where nobody is in its way: a record into a buffer with room, and a buffer switch.
//!
//! The baselines do the same stores and loads on the same memory, and nothing else.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::Context;
use sluice_core::gate::{Gate, WaitEnv};
use sluice_core::layout::extension::Extension;
use sluice_core::layout::swimlane::{AICPU_TASK_RECORDS, AicpuTaskRecord};
use sluice_core::layout::{
    self, ArchId, Instance, LaneOffsets, PoolKind, PoolOffsets, Region, Shape, SubsystemId,
};
use sluice_core::mem::{Clock, DevAddr, Lent, Line, Mapped, Memory, Relax, Slab, Word, Words};
use sluice_core::producer::swimlane::{AicpuTasks, Swimlane};
use sluice_core::producer::{Attachment, Lane, Pool, ReadyEntry, Records, SwitchEnd};
use zerocopy::FromZeros;

use crate::Figure;
use crate::cores::{Cores, pin};
use crate::windows::{Effort, best_ns};

type Ram<'a> = Mapped<Slab<Lent<'a>>>;

const RAM: DevAddr = DevAddr(0x10_0000_0000);

/// Room for the region, the extension block and two buffers.
const RAM_BYTES: usize = 16 << 20;

/// A device on which nothing ever has to wait.
struct Uncontended;

impl Clock for Uncontended {
    fn now_cycles(&self) -> u64 {
        unreachable!("a lane that need not wait has no use for the time")
    }

    fn frequency_hz(&self) -> u64 {
        1_000_000_000
    }
}

impl Relax for Uncontended {
    fn relax(&mut self, _round: u32) {
        unreachable!("the host is always ahead")
    }
}

impl WaitEnv for Uncontended {
    fn note_parked(&mut self, _gate: Gate) {}
}

/// Where things lie.
struct Place {
    region: Region,
    region_at: DevAddr,
    pool: PoolOffsets,
    lane: LaneOffsets,
    buffers: [DevAddr; 2],
}

impl Place {
    fn new(shape: Shape) -> anyhow::Result<(Self, DevAddr)> {
        let region = layout::region(SubsystemId::Swimlane, shape);
        let pool = region.pool(PoolKind::AICPU_TASK, Instance(0)).context("a pool of tasks")?;
        let lane = region.lane(layout::Lane(0)).context("a lane")?;
        let line = |bytes: usize| bytes.next_multiple_of(64) as u64;
        let extension_at = RAM.offset(line(region.bytes()));
        let first = extension_at.offset(line(Extension::new(shape).bytes()));
        let buffers = [first, first.offset(line(AicpuTasks::LAYOUT.bytes))];
        Ok((Self { region, region_at: RAM, pool, lane, buffers }, extension_at))
    }

    fn at(&self, offset: usize) -> DevAddr {
        self.region_at.offset(offset as u64)
    }
}

/// The host in its shortest form: takes what was published, and gives the other buffer.
struct Host<W, T> {
    ready_head: W,
    ready_tail: W,
    free_tail: W,
    free_slots: T,
    slot_mask: u32,
    buffers: [DevAddr; 2],
    given: u32,
}

impl<'a> Host<<Ram<'a> as Memory>::Word, <Ram<'a> as Memory>::Words> {
    fn new(memory: &Ram<'a>, place: &Place) -> anyhow::Result<Self> {
        let slots = place.region.free_slots();
        Ok(Self {
            ready_head: memory.word(place.at(place.lane.head))?,
            ready_tail: memory.word(place.at(place.lane.tail))?,
            free_tail: memory.word(place.at(place.pool.free_tail))?,
            free_slots: memory.words(place.at(place.pool.free_ptrs), slots * 2)?,
            slot_mask: slots - 1,
            buffers: place.buffers,
            given: 0,
        })
    }

    fn serve(&mut self) {
        self.ready_head.store_release(self.ready_tail.load_acquire());
        let (low, high) = self.buffers[self.given as usize % 2].split();
        let slot = (self.given & self.slot_mask) * 2;
        self.free_slots.set(slot, low);
        self.free_slots.set(slot + 1, high);
        self.given = self.given.wrapping_add(1);
        self.free_tail.store_release(self.given);
    }
}

fn memory(lines: &mut [Line]) -> Ram<'_> {
    Mapped::new(Slab::over(lines, RAM))
}

type Tasks<'a> = Pool<Ram<'a>, AicpuTasks, Swimlane>;

/// A lane with a pool that has a buffer.
fn recording<'a>(
    memory: &Ram<'a>,
    shape: Shape,
) -> anyhow::Result<(Lane<Ram<'a>, Swimlane>, Tasks<'a>, Place)> {
    let (place, extension_at) = Place::new(shape)?;
    let attachment = Attachment::open(memory, SubsystemId::Swimlane, place.region_at, extension_at, shape)?;
    let mut lane = attachment.lane(memory, layout::Lane(0))?;
    let mut pool: Tasks<'_> = attachment.pool(memory, Instance(0))?;
    Host::new(memory, &place)?.serve();
    let end = lane.drive(&mut pool, lane.begin_claim(), &mut Uncontended);
    anyhow::ensure!(end == SwitchEnd::Switched, "no first buffer: {end:?}");
    Ok((lane, pool, place))
}

fn shape() -> Shape {
    Shape::full(ArchId::A2a3)
}

/// A buffer's words where a buffer has them.
#[repr(C, align(64))]
struct BareBuffer {
    records: [[AtomicU64; 4]; AICPU_TASK_RECORDS],
    count: AtomicU32,
}

impl BareBuffer {
    fn empty() -> Box<Self> {
        let records = [const { [const { AtomicU64::new(0) }; 4] }; AICPU_TASK_RECORDS];
        Box::new(Self { records, count: AtomicU32::new(0) })
    }
}

/// A pool's total, in a line that is not the buffer's.
#[derive(Default)]
#[repr(align(64))]
struct BareTotal(AtomicU32);

/// Nanoseconds per record of 32 bytes into a buffer that has room.
pub(crate) fn append(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    pin(cores.one()?)?;
    let mut device = vec![Line::ZERO; RAM_BYTES / 64];
    let device = memory(&mut device);
    let (mut lane, mut pool, _) = recording(&device, shape())?;
    let empty = pool.state();
    let room = u64::from(AicpuTasks::LAYOUT.capacity) - 1;

    // Memory that others can see, or the stores would be left out.
    let (bare, total) = (BareBuffer::empty(), BareTotal::default());
    let (BareBuffer { records, count }, BareTotal(total)) = (black_box(&*bare), black_box(&total));
    let mut total_records = 0;

    let mut failed = 0;
    let (baseline, value) = best_ns(
        effort,
        |rounds| {
            for first in (0..rounds).step_by(room as usize) {
                for (record, number) in records.iter().zip(first..rounds.min(first + room)) {
                    total_records += 1;
                    total.store(total_records, Ordering::Relaxed);
                    record.iter().for_each(|part| part.store(number, Ordering::Relaxed));
                    count.store((number - first) as u32 + 1, Ordering::Relaxed);
                }
            }
        },
        |rounds| {
            let mut lost = 0;
            for first in (0..rounds).step_by(room as usize) {
                lost += u32::from(pool.restore(empty).is_err());
                for number in first..rounds.min(first + room) {
                    let record = AicpuTaskRecord {
                        dispatch_time: number,
                        finish_time: number,
                        ..AicpuTaskRecord::new_zeroed()
                    };
                    lost += u32::from(lane.append(&mut pool, &record, &mut Uncontended).is_err());
                }
            }
            failed += lost;
        },
    );
    anyhow::ensure!(failed == 0, "{failed} records were lost");
    Ok(vec![Figure { name: "append_32b", unit: "ns", value, baseline: ("bare_stores", baseline) }])
}

/// The loads and stores of a switch.
struct BareSwitch<W, T> {
    gates: [W; 2],
    ready_head: W,
    ready_tail: W,
    entries: T,
    ready_entries: u32,
    current: [W; 2],
    sequence: W,
    free_tail: W,
    free_head: W,
    free_slots: T,
    slot_mask: u32,
    counts: [W; 2],
}

impl<'a> BareSwitch<<Ram<'a> as Memory>::Word, <Ram<'a> as Memory>::Words> {
    fn new(memory: &Ram<'a>, place: &Place) -> anyhow::Result<Self> {
        let word = |offset: usize| memory.word(place.at(offset));
        let gates = place.region.gates();
        let count = |buffer: DevAddr| memory.word(buffer.offset(AicpuTasks::LAYOUT.count as u64));
        Ok(Self {
            gates: [word(gates.rq_freeze_active)?, word(gates.fq_freeze_active)?],
            ready_head: word(place.lane.head)?,
            ready_tail: word(place.lane.tail)?,
            entries: memory
                .words(place.at(place.lane.ring), ReadyEntry::table_words(place.region.ready_entries()))?,
            ready_entries: place.region.ready_entries(),
            current: [word(place.pool.current_ptr)?, word(place.pool.current_ptr + 4)?],
            sequence: word(place.pool.current_seq)?,
            free_tail: word(place.pool.free_tail)?,
            free_head: word(place.pool.free_head)?,
            free_slots: memory.words(place.at(place.pool.free_ptrs), place.region.free_slots() * 2)?,
            slot_mask: place.region.free_slots() - 1,
            counts: [count(place.buffers[0])?, count(place.buffers[1])?],
        })
    }

    /// Publishes a buffer and takes the next. Reports whether both could be done.
    fn switch(&self) -> bool {
        let shut = self.gates[0].load_acquire();
        let (head, tail) = (self.ready_head.load_acquire(), self.ready_tail.load_relaxed());
        let next = if tail + 1 == self.ready_entries { 0 } else { tail + 1 };
        for word in 0..5 {
            self.entries.set(tail * 6 + word, word);
        }
        self.ready_tail.store_release(next);
        self.current.iter().for_each(|half| half.store_release(0));
        let shut = shut | self.gates[1].load_acquire();
        let (free_tail, free_head) = (self.free_tail.load_acquire(), self.free_head.load_relaxed());
        let slot = (free_head & self.slot_mask) * 2;
        let address = [self.free_slots.get(slot), self.free_slots.get(slot + 1)];
        self.counts[free_head as usize % 2].store_relaxed(0);
        self.current.iter().zip(address).for_each(|(half, value)| half.store_release(value));
        self.sequence.store_relaxed(free_head);
        self.free_head.store_release(free_head.wrapping_add(1));
        shut == 0 && next != head && free_tail != free_head
    }
}

/// Nanoseconds per switch with a host that is always ahead; its few stores are on both sides.
pub(crate) fn switch(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    pin(cores.one()?)?;
    let (mut device, mut bare) = (vec![Line::ZERO; RAM_BYTES / 64], vec![Line::ZERO; RAM_BYTES / 64]);
    let device = memory(&mut device);
    let (mut lane, mut pool, place) = recording(&device, shape())?;
    let mut host = Host::new(&device, &place)?;
    host.given = 1;

    let bare = memory(&mut bare);
    let bare_switch = BareSwitch::new(&bare, &place)?;
    let mut bare_host = Host::new(&bare, &place)?;

    let (mut failed, mut not_bare) = (0, 0);
    let (baseline, value) = best_ns(
        effort,
        |rounds| {
            for _ in 0..rounds {
                bare_host.serve();
                not_bare += u32::from(!bare_switch.switch());
            }
        },
        |rounds| {
            for _ in 0..rounds {
                host.serve();
                let end = lane.drive(&mut pool, lane.begin_switch(), &mut Uncontended);
                failed += u32::from(end != SwitchEnd::Switched);
            }
        },
    );
    anyhow::ensure!(failed == 0 && not_bare == 0, "{failed} and {not_bare} switches failed");
    Ok(vec![Figure {
        name: "switch_uncontended",
        unit: "ns",
        value,
        baseline: ("bare_loads_and_stores", baseline),
    }])
}
