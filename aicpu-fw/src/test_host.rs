//! A host by hand: just enough to put programs, rings and executions in front of firmware, for tests here and downstream.
//!
//! Everything is placed one after the other in an arena and never freed. A call that device memory refuses panics.

use core::iter;
use std::vec::Vec;

use sluice_core::dma::{
    Barrier, ChunkLen, CopySpec, Pair, PairCursor, QueueRegisters, Ring, RingIds, RingSize, Swap,
};
use sluice_core::exec::{
    Channel, DeviceMap, DeviceRange, ExecRequest, INCREMENT_OFFSET_BYTES, Instruction, InstructionBytes,
    Notification, NotificationReceiver, RequestFlags,
};
use sluice_core::mem::{CopyMemory, DevAddr};
use sluice_core::mmio::{
    Engine, EventId, Half, HostControl, QueueId, QueueRegister, TakenOver, TpbId, TpbRegisters,
};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of each notification queue.
const NQ_BYTES: u32 = 4096;

/// A copy of `bytes` bytes (1..=65,536) without a barrier.
pub fn copy(from: DevAddr, to: DevAddr, bytes: u64) -> CopySpec {
    let len = ChunkLen::new(bytes).expect("1 to 65,536 bytes");
    CopySpec { source: from.into(), destination: to.into(), len, barrier: Barrier::None, completion: false }
}

/// The host's side of one TPB.
pub struct TestHost<M: CopyMemory> {
    memory: M,
    registers: TpbRegisters,
    control: HostControl<M::Word>,
    exec: [Ring; 2],
    cursor: PairCursor,
    posted: u32,
    consumed: u32,
    kicked: u32,
    next: DevAddr,
    end: DevAddr,
    one: DevAddr,
    status: [NotificationReceiver<M>; Engine::COUNT],
    errors: NotificationReceiver<M>,
}

impl<M: CopyMemory> TestHost<M> {
    /// Sets `tpb` up with exec rings of these sizes; everything it needs is placed in `arena`.
    pub fn bring_up(
        memory: &M,
        map: &DeviceMap,
        tpb: TpbId,
        arena: DeviceRange,
        exec: (RingSize, RingSize),
    ) -> Self {
        let registers = map.registers.tpb(tpb).expect("a TPB of the device");
        let mut next = arena.base;
        let mut take = |bytes: u64| {
            let at = next;
            next = next.offset(bytes.next_multiple_of(256));
            at
        };
        let exec = [
            Ring { base: take(exec.0.bytes()), size: exec.0 },
            Ring { base: take(exec.1.bytes()), size: exec.1 },
        ];
        for (half, ring) in [Half::Tx, Half::Rx].into_iter().zip(exec) {
            let bank = registers.queue_bank(half, QueueId::EXEC);
            QueueRegisters::attach(memory, bank).expect("registers").set_up(ring);
        }
        let mut receiver = |channel| {
            let at = take(NQ_BYTES.into());
            NotificationReceiver::bring_up(memory, registers, channel, at, NQ_BYTES).expect("a queue")
        };
        let status = Engine::ALL.map(|engine| receiver(Channel::Status(engine)));
        let errors = receiver(Channel::Errors);
        let cursor =
            PairCursor::new(exec[0].size.descriptors(), exec[1].size.descriptors()).expect("ring sizes");
        let control = HostControl::attach(memory, registers).expect("control page");
        let TakenOver { consumed, done } = control.take_over().expect("control page");
        let mut host = Self {
            memory: memory.clone(),
            registers,
            control,
            exec,
            cursor,
            posted: consumed,
            consumed,
            kicked: done,
            next,
            end: arena.base.offset(arena.bytes),
            one: DevAddr::NULL,
            status,
            errors,
        };
        host.one = host.place(&1u32.to_le_bytes());
        host
    }

    /// The TPB's registers.
    pub fn registers(&self) -> TpbRegisters {
        self.registers
    }

    /// The control page.
    pub fn control(&self) -> &HostControl<M::Word> {
        &self.control
    }

    /// Zeroed device memory at a multiple of 256.
    pub fn alloc(&mut self, bytes: u64) -> DevAddr {
        let at = self.next;
        self.next = self.next.offset(bytes.next_multiple_of(256));
        assert!(self.next <= self.end, "arena of the test is too small");
        at
    }

    /// `bytes` somewhere in device memory.
    pub fn place(&mut self, bytes: &[u8]) -> DevAddr {
        let at = self.alloc(bytes.len() as u64);
        self.write(at, bytes);
        at
    }

    /// Writes device memory.
    pub fn write(&self, to: DevAddr, bytes: &[u8]) {
        self.memory.write_bytes(to, bytes).expect("device memory");
    }

    /// Reads device memory.
    pub fn read(&self, from: DevAddr, bytes: usize) -> Vec<u8> {
        let mut into = std::vec![0; bytes];
        self.memory.read_bytes(from, &mut into).expect("device memory");
        into
    }

    /// A program of these instructions, ended by HALT.
    pub fn program(&mut self, instructions: &[Instruction]) -> DevAddr {
        let all = instructions.iter().chain(iter::once(&Instruction::Halt));
        let bytes: Vec<u8> = all.flat_map(|one| InstructionBytes::encode(one).as_bytes().to_vec()).collect();
        self.place(&bytes)
    }

    /// Rings that hold these copies from their start on, and the swaps that make them `queue`'s.
    pub fn rings(&mut self, queue: QueueId, copies: &[CopySpec]) -> [Swap; 2] {
        let size = RingSize::linear(copies.len() as u32).expect("a ring");
        let mut slots = PairCursor::new(size.descriptors(), size.descriptors()).expect("a ring");
        let pairs: Vec<Pair> = copies.iter().map(|copy| Pair::encode(*copy, next_ids(&mut slots))).collect();
        let tx: Vec<u8> = pairs.iter().flat_map(|pair| pair.tx.as_bytes().to_vec()).collect();
        let rx: Vec<u8> = pairs.iter().flat_map(|pair| pair.rx.as_bytes().to_vec()).collect();
        [(Half::Tx, tx), (Half::Rx, rx)].map(|(half, descriptors)| {
            let base = self.alloc(size.bytes());
            self.write(base, &descriptors);
            Swap::QueueBase { bank: self.registers.queue_bank(half, queue), base, size }
        })
    }

    /// The copies that carry out `swaps`.
    pub fn swap_copies(&mut self, swaps: &[Swap]) -> Vec<CopySpec> {
        let mut of = |swap: &Swap| {
            let from = self.place(swap.value().as_bytes());
            copy(from, swap.destination(), swap.len().bytes().into())
        };
        swaps.iter().map(&mut of).collect()
    }

    /// Puts `copies` into the exec ring.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn post(&mut self, copies: &[CopySpec]) {
        let head = self.control.exec_head_pairs.observe();
        self.cursor.complete(head.wrapping_sub(self.consumed)).expect("a counter of the device");
        self.consumed = head;
        for spec in copies {
            let (tx, rx) = self.cursor.reserve(1).expect("room in the exec ring").next().expect("one slot");
            let pair = Pair::encode(*spec, RingIds { tx: tx.ring_id, rx: rx.ring_id });
            self.write(self.exec[0].base.offset(u64::from(tx.index) * 16), pair.tx.as_bytes());
            self.write(self.exec[1].base.offset(u64::from(rx.index) * 16), pair.rx.as_bytes());
        }
        self.posted = self.posted.wrapping_add(copies.len() as u32);
        self.control.exec_posted_pairs.publish(self.posted);
    }

    /// The copies that end a batch: the request, the prologue queue's tails if `prologue`, the event.
    pub fn trigger(&mut self, bases: [DevAddr; Engine::COUNT], prologue: bool) -> Vec<CopySpec> {
        let request = self.place(ExecRequest::new(bases, RequestFlags::default()).as_bytes());
        let target = self.registers.request();
        let mut copies = Vec::from([copy(request, target, INCREMENT_OFFSET_BYTES)]);
        for half in [Half::Rx, Half::Tx].into_iter().filter(|_| prologue) {
            let bank = self.registers.queue_bank(half, QueueId::PROLOGUE);
            copies.push(copy(self.one, bank.register(QueueRegister::TailIncrement), 4));
        }
        let event = copy(self.one, self.registers.event(EventId::START), 4);
        copies.push(CopySpec { barrier: Barrier::Dmb, ..event });
        copies
    }

    /// Kicks off one more execution. On a device that sleeps, ring its doorbell afterwards.
    pub fn kick(&mut self) {
        self.kicked = self.kicked.wrapping_add(1);
        self.control.doorbell.publish(self.kicked);
    }

    /// Executions kicked off.
    pub fn kicked(&self) -> u32 {
        self.kicked
    }

    /// Everything that `engine` has said since the last call.
    pub fn statuses(&mut self, engine: Engine) -> Vec<Notification> {
        drain(&mut self.status[engine.index()])
    }

    /// Every error reported since the last call.
    pub fn errors(&mut self) -> Vec<Notification> {
        drain(&mut self.errors)
    }
}

fn next_ids(cursor: &mut PairCursor) -> RingIds {
    let ids = cursor.ring_ids();
    let _ = cursor.reserve(1).expect("room in the ring");
    ids
}

fn drain<M: CopyMemory>(queue: &mut NotificationReceiver<M>) -> Vec<Notification> {
    let (mut all, mut record) = (Vec::new(), [Notification::new_zeroed()]);
    while queue.receive(&mut record).expect("a notification queue") > 0 {
        all.extend(record);
    }
    all
}
