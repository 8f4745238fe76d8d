//! A device in a vector: memory, a platform with a hand-driven clock, one node with every service.

use std::cell::Cell;
use std::vec;
use std::vec::Vec;

use sluice_core::dma::RingSize;
use sluice_core::exec::{BOOT_BYTES, BootShape, DeviceMap, DeviceRange, LaneIndex};
use sluice_core::gate::Gate;
use sluice_core::layout::ArchId;
use sluice_core::mem::{Clock, DevAddr, Lent, Line, Mapped, Slab};
use sluice_core::mmio::{RegisterMap, TpbId};

use crate::test_host::TestHost;
use crate::{Activity, AgentDelays, Node, Place, Platform, Startup};

pub(super) type Memory<'a> = Mapped<Slab<Lent<'a>>>;

const RAM_BYTES: u64 = 16 << 20;
pub(super) const RAM: DeviceRange = DeviceRange { base: DevAddr(0x20_0000_0000), bytes: RAM_BYTES };
const REGISTERS: DevAddr = DevAddr(RAM.base.0 + RAM_BYTES);
const TPBS: u32 = 2;
const BOOT: DevAddr = DevAddr(REGISTERS.0 + TPBS as u64 * 0x8_0000);

/// One processor. Every look at the clock costs a cycle; a wait takes as long as it may.
pub(super) struct Machine<'a> {
    memory: Memory<'a>,
    cycles: Cell<u64>,
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

    fn wait(&self, bound_cycles: u64) {
        self.cycles.set(self.cycles.get() + bound_cycles);
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
}

/// A device with its memory.
pub(super) struct Bench<'a> {
    pub(super) machine: &'a Machine<'a>,
    pub(super) memory: Memory<'a>,
    pub(super) map: DeviceMap,
    pub(super) node: Node<&'a Machine<'a>, 2, 2, 10>,
}

/// Runs `test` on a device with two TPBs and `lanes` lanes whose agents take `delays` longer.
pub(super) fn with_bench(lanes: u32, delays: AgentDelays, test: impl FnOnce(&mut Bench<'_>)) {
    let mut lines = vec![Line::ZERO; ((BOOT.0 - RAM.base.0 + BOOT_BYTES) / 64) as usize];
    let memory = Mapped::new(Slab::over(&mut lines, RAM.base));
    BootShape { arch: ArchId::A2a3, tpbs: TPBS, lanes }.write(&memory, BOOT).unwrap();
    let machine = Machine {
        memory: memory.clone(),
        cycles: Cell::new(0),
        host_wakes: Cell::new(0),
        parked: Cell::new(0),
    };
    let node = Node::start(&machine, &Startup::new(), delays).unwrap();
    let map =
        DeviceMap { ram: RAM, registers: RegisterMap::new(REGISTERS, TPBS).unwrap(), boot: BOOT, lanes };
    test(&mut Bench { machine: &machine, memory, map, node });
}

impl<'a> Bench<'a> {
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
