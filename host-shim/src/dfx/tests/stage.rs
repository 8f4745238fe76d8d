//! A device without threads: the test plays every lane of every subsystem, through the words that a firmware would use.

use std::collections::BTreeMap;
use std::io;
use std::mem::offset_of;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_core::exec::LaneBoot;
use sluice_core::gate::Gate;
use sluice_core::layout::extension::{
    Extension, LaneActivity, LaneStatus, PoolStatus, WAIT_RECORDS, WaitLog, WaitRecord,
};
use sluice_core::layout::{
    self, ArchId, Instance, Lane, PoolKind, PoolOffsets, Region, Shape, SubsystemId, args_dump,
};
use sluice_core::mem::testing::{BlockMemory, Poke, block};
use sluice_core::mem::{Clock, CopyMemory, DevAddr, Fault, Memory};
use sluice_core::mmio::{RegisterMap, TpbId};
use sluice_core::producer::{Beside, WaitLog as WaitLogOfLane};

use zerocopy::IntoBytes;

use crate::device::heap::Heap;
use crate::device::{Device, DeviceMap, DeviceRange, Driver};
use crate::dfx::{BufferMeta, DfxConfig, Freeze, Sink, SubsystemConfig, Wait};
use crate::neff::Target;

const BASE: DevAddr = DevAddr(1 << 32);
const BOOT_BYTES: u64 = 4096;
const RAM_BYTES: u64 = 16 << 20;
/// Of each lane.
pub(super) const ARENA_BYTES: NonZeroU64 = NonZeroU64::new(1 << 14).expect("not 0");

/// Reads of bytes: from where, and how many.
type Reads = Vec<(DevAddr, usize)>;

/// Memory of which the next reads of bytes fail, as many as a test says.
#[derive(Clone)]
pub(super) struct Shaky {
    pub(super) block: BlockMemory,
    failures: Arc<AtomicU32>,
    /// What was read since a test began to look.
    pub(super) reads: Arc<Mutex<Option<Reads>>>,
}

impl Memory for Shaky {
    type Word = <BlockMemory as Memory>::Word;
    type Words = <BlockMemory as Memory>::Words;
    type Window = <BlockMemory as Memory>::Window;

    fn word(&self, at: DevAddr) -> Result<Self::Word, Fault> {
        self.block.word(at)
    }

    fn words(&self, at: DevAddr, count: u32) -> Result<Self::Words, Fault> {
        self.block.words(at, count)
    }

    fn window(&self, at: DevAddr, bytes: u32) -> Result<Self::Window, Fault> {
        self.block.window(at, bytes)
    }
}

impl CopyMemory for Shaky {
    fn copy(&self, from: DevAddr, to: DevAddr, bytes: u64) -> Result<(), Fault> {
        self.block.copy(from, to, bytes)
    }

    fn read_bytes(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        if let Some(reads) = &mut *self.reads.lock().expect("no panic") {
            reads.push((from, into.len()));
        }
        let one_less = |left: u32| left.checked_sub(1);
        match self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(_) => Err(Fault::Transport { at: from }),
            Err(_) => self.block.read_bytes(from, into),
        }
    }

    fn write_bytes(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.block.write_bytes(to, bytes)
    }
}

/// The device.
pub(super) struct Played {
    memory: Shaky,
    map: DeviceMap,
    cycles: AtomicU64,
    driver: Driver,
}

impl Played {
    pub(super) fn new(lanes: u32) -> Arc<Self> {
        let registers = RegisterMap::new(BASE.offset(BOOT_BYTES + RAM_BYTES), 1).expect("one TPB");
        let ram = DeviceRange { base: BASE.offset(BOOT_BYTES), bytes: RAM_BYTES };
        let block = block(BASE, BOOT_BYTES + RAM_BYTES);
        let memory = Shaky { block, failures: Arc::default(), reads: Arc::default() };
        let map = DeviceMap { ram, registers, boot: BASE, lanes };
        Arc::new(Self { memory, map, cycles: AtomicU64::new(0), driver: Driver::nobody() })
    }

    pub(super) fn heap(&self) -> Heap {
        Heap::new(self.map.ram.base, self.map.ram.bytes)
    }

    /// Its memory, which no failure reaches.
    pub(super) fn memory_block(&self) -> &BlockMemory {
        &self.memory.block
    }

    /// Lets the next `count` reads of bytes fail.
    pub(super) fn fail_reads(&self, count: u32) {
        self.memory.failures.store(count, Ordering::Relaxed);
    }
}

impl Clock for Played {
    fn now_cycles(&self) -> u64 {
        self.cycles.fetch_add(1, Ordering::Relaxed)
    }

    fn frequency_hz(&self) -> u64 {
        1_000_000_000
    }
}

impl Device for Played {
    type Mem = Shaky;

    fn name(&self) -> &'static str {
        "played"
    }

    fn target(&self) -> Target {
        Target::Any
    }

    fn memory(&self) -> &Shaky {
        &self.memory
    }

    fn map(&self) -> DeviceMap {
        self.map
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn ring_doorbell(&self, _tpb: TpbId) {}

    fn wake_lanes(&self) {}

    fn progress(&self) -> u32 {
        0
    }

    fn wait_progress(&self, _seen: u32, timeout: Duration) -> u32 {
        std::thread::sleep(timeout.min(Duration::from_millis(1)));
        0
    }
}

/// What a sink was given, and how often it is to refuse.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) buffers: Mutex<Vec<(BufferMeta, Vec<u8>)>>,
    pub(super) freezes: Mutex<Vec<Freeze>>,
    pub(super) waits: Mutex<Vec<Wait>>,
    pub(super) refusals: AtomicU32,
}

impl Kept {
    /// Records by subsystem.
    pub(super) fn records(&self) -> BTreeMap<SubsystemId, u32> {
        let mut records = BTreeMap::new();
        for (meta, _) in &*self.buffers.lock().expect("no panic") {
            *records.entry(meta.subsystem).or_default() += meta.count;
        }
        records
    }
}

impl Sink for Kept {
    fn buffer(&self, meta: &BufferMeta, records: &[u8]) -> io::Result<()> {
        let one_less = |left: u32| left.checked_sub(1);
        if self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.buffers.lock().expect("no panic").push((*meta, records.to_vec()));
        Ok(())
    }

    fn freeze(&self, freeze: &Freeze) -> io::Result<()> {
        self.freezes.lock().expect("no panic").push(*freeze);
        Ok(())
    }

    fn waits(&self, waits: &[Wait]) -> io::Result<()> {
        self.waits.lock().expect("no panic").extend(waits);
        Ok(())
    }
}

/// Two lanes and three cores of `subsystems`, everything recorded, `buffers` per pool.
pub(super) fn config(subsystems: &[SubsystemId], buffers: u32) -> DfxConfig {
    let shape = Shape::new(ArchId::A2a3, 2, 3).expect("a shape of the architecture");
    let blank = DfxConfig { arena_bytes: ARENA_BYTES, ..DfxConfig::new(shape) };
    subsystems.iter().fold(blank, |config, &subsystem| {
        let suggested = SubsystemConfig::new(subsystem, shape);
        let buffers = crate::dfx::BufferCounts::uniform(buffers);
        config.with(subsystem, SubsystemConfig { buffers, ..suggested })
    })
}

/// The lanes of one subsystem.
pub(super) struct Hand {
    memory: BlockMemory,
    subsystem: SubsystemId,
    pub(super) region: Region,
    at: DevAddr,
    extension: Extension,
    extension_at: DevAddr,
}

impl Hand {
    /// Attaches to what the boot block names, as a firmware does.
    pub(super) fn attach(device: &Played, subsystem: SubsystemId, shape: Shape) -> Self {
        let boot = LaneBoot::attach(&device.memory.block, device.map.boot).expect("a boot block");
        let recorders = boot.recorders().expect("a boot block");
        let at = recorders.region(subsystem).expect("a subsystem that records");
        Self::over(device, subsystem, shape, at, recorders.extension)
    }

    pub(super) fn over(
        device: &Played,
        subsystem: SubsystemId,
        shape: Shape,
        at: DevAddr,
        extension_at: DevAddr,
    ) -> Self {
        let region = layout::region(subsystem, shape);
        let memory = device.memory.block.clone();
        Self { memory, subsystem, region, at, extension: Extension::new(shape), extension_at }
    }

    /// The first kind of pool of the subsystem.
    pub(super) fn kind(&self) -> PoolKind {
        self.region.arrays()[0].kind
    }

    fn word(&self, offset: usize) -> u32 {
        self.memory.peek(self.at.offset(offset as u64))
    }

    fn set_word(&self, offset: usize, value: u32) {
        self.memory.poke(self.at.offset(offset as u64), value);
    }

    fn pool(&self, instance: u32) -> PoolOffsets {
        self.region.pool(self.kind(), Instance(instance)).expect("a pool of the run")
    }

    /// Buffers in the free queue of pool `instance`.
    pub(super) fn queued(&self, instance: u32) -> u32 {
        let pool = self.pool(instance);
        self.word(pool.free_tail).wrapping_sub(self.word(pool.free_head))
    }

    /// Moves the pop counter of pool `instance` by `by`, which no lane has a reason for.
    pub(super) fn disturb_head(&self, instance: u32, by: i32) {
        let pool = self.pool(instance);
        self.set_word(pool.free_head, self.word(pool.free_head).wrapping_add_signed(by));
    }

    /// Takes the oldest buffer out of the free queue of pool `instance`.
    pub(super) fn claim(&self, instance: u32) -> Option<DevAddr> {
        let pool = self.pool(instance);
        let head = self.word(pool.free_head);
        (self.queued(instance) > 0).then(|| {
            let slot = self.at.offset(pool.free_slot(head, self.region.free_slots()) as u64);
            let buffer = self.memory.peek_address(slot);
            self.set_word(pool.free_head, head.wrapping_add(1));
            buffer
        })
    }

    /// Publishes `buffer` of pool `instance` in the ring of `lane`, with `count` records that were made, as it says.
    pub(super) fn publish(&self, lane: u32, instance: u32, buffer: DevAddr, sequence: u32, count: u32) {
        self.publish_with(lane, instance, buffer, sequence, count, Beside::UNSAID);
    }

    /// Publishes a buffer whose entry says what is beside its records.
    pub(super) fn publish_with(
        &self,
        lane: u32,
        instance: u32,
        buffer: DevAddr,
        sequence: u32,
        count: u32,
        beside: Beside,
    ) {
        let kind = self.kind();
        let layout = self.region.array(kind).expect("a kind of the region").buffer;
        self.memory.poke(buffer.offset(layout.count as u64), count);
        let pool = self.pool(instance);
        let total = match pool.total_records {
            Some(total) => self.at.offset(total as u64),
            None => self.pool_status(instance, offset_of!(PoolStatus, total_records_lo)),
        };
        self.memory.poke(total, self.memory.peek(total) + count.min(layout.capacity));
        let ring = self.region.lane(Lane(lane)).expect("a lane of the run");
        let tail = self.word(ring.tail);
        let entry = ring.entry(tail);
        self.set_word(entry, instance);
        self.set_word(entry + 4, kind.0);
        self.memory.poke_address(self.at.offset(entry as u64 + 8), buffer);
        self.set_word(entry + 16, sequence);
        self.set_word(entry + 20, beside.get().map_or(0, |things| things + 1));
        self.set_word(ring.tail, (tail + 1) % self.region.ready_entries());
    }

    /// Claims, fills and publishes a buffer of pool `instance` with these records.
    pub(super) fn fill_with(&self, lane: u32, instance: u32, sequence: u32, records: &[args_dump::Record]) {
        let buffer = self.claim(instance).expect("a buffer in the queue");
        self.memory.write_bytes(buffer, records.as_bytes()).expect("mapped memory");
        self.publish(lane, instance, buffer, sequence, records.len() as u32);
    }

    /// Address of a word of pool `instance`.
    pub(super) fn pool_word(&self, instance: u32, offset: usize) -> DevAddr {
        self.at.offset((self.pool(instance).base + offset) as u64)
    }

    /// Claims, fills and publishes a buffer of pool `instance`.
    pub(super) fn fill(&self, lane: u32, instance: u32, sequence: u32, count: u32) {
        let buffer = self.claim(instance).expect("a buffer in the queue");
        self.publish(lane, instance, buffer, sequence, count);
    }

    pub(super) fn raise(&self, gate: Gate) {
        let gates = self.region.gates();
        let signal = if gate == Gate::Ready { gates.rq_contended } else { gates.fq_contended };
        self.set_word(signal, 1);
    }

    pub(super) fn is_shut(&self, gate: Gate) -> bool {
        let gates = self.region.gates();
        self.word(if gate == Gate::Ready { gates.rq_freeze_active } else { gates.fq_freeze_active }) != 0
    }

    fn pool_status(&self, instance: u32, offset: usize) -> DevAddr {
        let number = self.region.pool_number(self.kind(), Instance(instance)).expect("a pool of the run");
        let status = self.extension.pool(self.subsystem, number).expect("a pool of the run");
        self.extension_at.offset((status + offset) as u64)
    }

    pub(super) fn line(&self, lane: u32, offset: usize) -> DevAddr {
        let line = self.extension.lane(self.subsystem, Lane(lane)).expect("a lane of the run");
        self.extension_at.offset((line + offset) as u64)
    }

    /// A word of the extension block.
    pub(super) fn extension_word(&self, offset: usize) -> u32 {
        self.memory.peek(self.extension_at.offset(offset as u64))
    }

    /// Says what `lane` does, and since when.
    pub(super) fn show(&self, lane: u32, state: LaneActivity, since_cycles: u64) {
        let since = self.line(lane, offset_of!(LaneStatus, parked_since_cycles));
        self.memory.poke_address(since, DevAddr(since_cycles));
        self.memory.poke(self.line(lane, offset_of!(LaneStatus, state)), state.0);
    }

    /// Counts a wait and logs it, if there is room.
    pub(super) fn log(&self, wait: &Wait) -> bool {
        let (waits, waited) = match wait.gate {
            Gate::Ready => (offset_of!(LaneStatus, waits_rq), offset_of!(LaneStatus, waited_rq_cycles)),
            Gate::Free => (offset_of!(LaneStatus, waits_fq), offset_of!(LaneStatus, waited_fq_cycles)),
        };
        let (waits, waited) = (self.line(wait.lane.0, waits), self.line(wait.lane.0, waited));
        self.memory.poke(waits, self.memory.peek(waits) + 1);
        let sum =
            self.memory.peek_address(waited).0.wrapping_add(wait.end_cycles.wrapping_sub(wait.begin_cycles));
        self.memory.poke_address(waited, DevAddr(sum));
        let log = self.extension.wait_log(self.subsystem, wait.lane).expect("a lane of the run");
        let log = self.extension_at.offset(log as u64);
        let logged = self.line(wait.lane.0, offset_of!(LaneStatus, waits_logged));
        let at = |offset: usize| log.offset(offset as u64);
        let lane = WaitLogOfLane::attach(
            &self.memory,
            at(offset_of!(WaitLog, records)),
            WAIT_RECORDS as u32,
            at(offset_of!(WaitLog, taken)),
            logged,
        );
        let before = self.memory.peek(logged);
        lane.expect("memory of the run").push(&WaitRecord {
            begin_cycles: wait.begin_cycles,
            end_cycles: wait.end_cycles,
            gate: match wait.gate {
                Gate::Ready => LaneActivity::READY_GATE,
                Gate::Free => LaneActivity::FREE_GATE,
            },
            next: if wait.gave_up { LaneActivity::HOST_GONE } else { LaneActivity::RUNNING },
            kind: wait.kind,
            instance: wait.instance.0,
        });
        self.memory.peek(logged) != before
    }

    /// Moves the count of waits that `lane` has logged by `by`, which no lane has a reason for.
    pub(super) fn disturb_log(&self, lane: u32, by: u32) {
        let logged = self.line(lane, offset_of!(LaneStatus, waits_logged));
        self.memory.poke(logged, self.memory.peek(logged).wrapping_add(by));
    }

    /// Says that every lane has published everything.
    pub(super) fn flush(&self) {
        for lane in 0..self.region.shape().lanes() {
            self.show(lane, LaneActivity::FLUSHED, 0);
            self.memory.poke(self.line(lane, offset_of!(LaneStatus, flushed)), 1);
        }
    }

    /// Signs of life of the host.
    pub(super) fn heartbeat(&self) -> u32 {
        self.memory.peek(self.extension_at.offset(layout::extension::HEARTBEAT as u64))
    }

    /// Whether the host said that it serves no more.
    pub(super) fn is_host_detached(&self) -> bool {
        let service = layout::extension::service(self.subsystem);
        let word = offset_of!(layout::extension::Service, host_detached);
        self.memory.peek(self.extension_at.offset((service + word) as u64)) == 1
    }
}
