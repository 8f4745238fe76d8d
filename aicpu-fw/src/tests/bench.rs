//! A device in a vector: memory, a platform with a hand-driven clock, one node with every service.

use std::cell::Cell;
use std::vec;
use std::vec::Vec;

use sluice_core::dma::RingSize;
use sluice_core::exec::vitals::StackUse;
use sluice_core::exec::{
    BOOT_BYTES, BootShape, DeviceMap, DeviceRange, Instruction, LaneIndex, Notification, RunBlock,
    SemaphoreWait, SubType,
};
use sluice_core::gate::Gate;
use sluice_core::layout::ArchId;
use sluice_core::mem::{Clock, DevAddr, Lent, Line, Mapped, Memory as _, Slab, Word};
use sluice_core::mmio::{QueueId, RegisterMap, SemaphoreId, TpbId};

use crate::test_host::TestHost;
use crate::{Activity, AgentDelays, Node, Place, Platform, Startup};

pub(super) type Memory<'a> = Mapped<Slab<Lent<'a>>>;

const RAM_BYTES: u64 = 16 << 20;
pub(super) const RAM: DeviceRange = DeviceRange { base: DevAddr(0x20_0000_0000), bytes: RAM_BYTES };
const REGISTERS: DevAddr = DevAddr(RAM.base.0 + RAM_BYTES);
const TPBS: u32 = 2;
pub(super) const BOOT: DevAddr = DevAddr(REGISTERS.0 + TPBS as u64 * 0x8_0000);

/// Something that the host does while the machine waits.
#[derive(Clone, Copy)]
struct HostStore {
    at_wait: u32,
    word: DevAddr,
    value: u32,
}

/// One processor. Every look at the clock costs a cycle; a wait takes as long as it may.
pub(super) struct Machine<'a> {
    memory: Memory<'a>,
    cycles: Cell<u64>,
    waits: Cell<u32>,
    host_store: Cell<Option<HostStore>>,
    pub(super) host_wakes: Cell<u32>,
    pub(super) parked: Cell<u32>,
}

impl Clock for Machine<'_> {
    fn now_cycles(&self) -> u64 {
        self.cycles.set(self.cycles.get() + 1);
        self.cycles.get()
    }

    fn frequency_hz(&self) -> u64 {
        1_000_000
    }
}

impl<'a> Platform for &Machine<'a> {
    type Memory = Memory<'a>;

    fn memory(&self) -> &Memory<'a> {
        &self.memory
    }

    fn place(&self) -> Place {
        Place { ram: RAM, registers: REGISTERS, boot: BOOT }
    }

    fn core_id(&self) -> u32 {
        0
    }

    fn processors(&self) -> u32 {
        1
    }

    fn wait(&self, bound_cycles: u64, _has_news: impl Fn() -> bool) {
        self.cycles.set(self.cycles.get() + bound_cycles);
        self.waits.set(self.waits.get() + 1);
        if let Some(HostStore { at_wait, word, value }) = self.host_store.get()
            && at_wait == self.waits.get()
        {
            self.memory.word(word).unwrap().store_release(value);
        }
    }

    fn wake(&self, processor: u32) {
        panic!("there is no processor {processor}");
    }

    fn wake_host(&self) {
        self.host_wakes.set(self.host_wakes.get() + 1);
    }

    fn note_parked(&self, _: LaneIndex, _: Gate) {
        self.parked.set(self.parked.get() + 1);
    }

    fn stack(&self) -> Option<StackUse> {
        None
    }
}

impl Machine<'_> {
    /// What the clock reads, without a look at it.
    pub(super) fn cycles(&self) -> u64 {
        self.cycles.get()
    }

    /// How often it has waited.
    pub(super) fn waits(&self) -> u32 {
        self.waits.get()
    }

    /// Has the host store `value` at `word` while the machine waits for the `at_wait`-th time.
    pub(super) fn store_at_wait(&self, at_wait: u32, word: DevAddr, value: u32) {
        self.host_store.set(Some(HostStore { at_wait, word, value }));
    }
}

/// A device with its memory.
pub(super) struct Bench<'a> {
    pub(super) machine: &'a Machine<'a>,
    pub(super) memory: Memory<'a>,
    pub(super) map: DeviceMap,
    pub(super) node: Node<&'a Machine<'a>, 2, 2, 10>,
}

/// Runs `test` on a device of a2a3 with two TPBs and `lanes` lanes whose agents take `delays` longer.
pub(super) fn with_bench(lanes: u32, delays: AgentDelays, test: impl FnOnce(&mut Bench<'_>)) {
    with_bench_of(ArchId::A2a3, lanes, delays, test);
}

/// The same on a device of `arch`.
pub(super) fn with_bench_of(
    arch: ArchId,
    lanes: u32,
    delays: AgentDelays,
    test: impl FnOnce(&mut Bench<'_>),
) {
    let mut lines = vec![Line::ZERO; ((BOOT.0 - RAM.base.0 + BOOT_BYTES) / 64) as usize];
    let memory = Mapped::new(Slab::over(&mut lines, RAM.base));
    BootShape { arch, tpbs: TPBS, lanes }.write(&memory, BOOT).unwrap();
    let machine = Machine {
        memory: memory.clone(),
        cycles: Cell::new(0),
        waits: Cell::new(0),
        host_store: Cell::new(None),
        host_wakes: Cell::new(0),
        parked: Cell::new(0),
    };
    let node = Node::start(&machine, &Startup::new(), delays).unwrap();
    let map =
        DeviceMap { ram: RAM, registers: RegisterMap::new(REGISTERS, TPBS).unwrap(), boot: BOOT, lanes };
    test(&mut Bench { machine: &machine, memory, map, node });
}

impl<'a> Bench<'a> {
    /// Starts the firmware anew on the same memory: what it knows of earlier executions it knows from there.
    pub(super) fn restart(&mut self) {
        self.node = Node::start(self.machine, &Startup::new(), NO_DELAY).unwrap();
    }

    /// A host on `tpb` with exec rings of 64 descriptors.
    pub(super) fn host(&self, tpb: u32) -> TestHost<Memory<'a>> {
        let size = RingSize::new(64).unwrap();
        self.host_with(tpb, (size, size))
    }

    /// A host on `tpb`; each TPB has a quarter of RAM, the rest is the test's.
    pub(super) fn host_with(&self, tpb: u32, exec: (RingSize, RingSize)) -> TestHost<Memory<'a>> {
        let bytes = RAM.bytes / 4;
        let arena = DeviceRange { base: RAM.base.offset(u64::from(tpb) * bytes), bytes };
        TestHost::bring_up(&self.memory, &self.map, TpbId::new(tpb).unwrap(), arena, exec)
    }

    /// Polls until nothing is left to do, and returns what was waited for last.
    pub(super) fn settle(&mut self) {
        loop {
            match self.node.poll() {
                Activity::Busy => {}
                Activity::Idle => return,
                Activity::Until(at) => self.machine.cycles.set(at),
            }
        }
    }
}

/// `len` bytes that no other seed gives.
pub(super) fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// The base of an engine without a program.
pub(super) const NONE: DevAddr = DevAddr::NULL;
/// Agents that take no time of their own.
pub(super) const NO_DELAY: AgentDelays = AgentDelays { seed: 0, max_cycles: 0 };

pub(super) fn queue(number: u32) -> QueueId {
    QueueId::new(number).unwrap()
}

pub(super) fn semaphore(number: u32) -> SemaphoreId {
    SemaphoreId::new(number).unwrap()
}

/// A block of `pairs` pairs on queue `on`, with `(semaphore, at least)` waits.
pub(super) fn block(on: u32, pairs: u32, waits: &[(u32, u32)], signal: Option<u32>) -> Instruction {
    let waits =
        waits.iter().map(|&(id, at_least)| SemaphoreWait { semaphore: semaphore(id), at_least }).collect();
    Instruction::RunBlock(RunBlock {
        queue: queue(on),
        block: 0,
        pairs,
        waits,
        signal: signal.map(semaphore),
        kernel: 0,
    })
}

/// What records say, without their times.
pub(super) fn marks(records: &[Notification]) -> Vec<(SubType, u16)> {
    records.iter().map(|record| (record.sub_type(), record.custom_id())).collect()
}

/// Everything that was kicked off has ended, and nothing failed.
pub(super) fn assert_done(host: &mut TestHost<Memory<'_>>) {
    assert_eq!(host.errors(), []);
    assert_eq!(host.control().executions_done.observe(), host.kicked());
}
