//! A device whose firmware is the test itself: plain memory, and hands that store what a sequencer would.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use sluice_core::dma::{AddrWord, CopySpec, Pair, Position, QueueRegisters, RxDesc, TxDesc};
use sluice_core::exec::{
    Channel, DeviceMap, DeviceRange, ErrorClass, Notification, NotificationSender, SubType,
};
use sluice_core::mem::testing::Mishap;
use sluice_core::mem::{Clock, DevAddr, Fault, Line, Mapped, Memory, Own, Slab};
use sluice_core::mmio::{
    ControlWord, Engine, Half, QueueId, RegisterMap, SequencerControl, TpbId, TpbRegisters,
};
use zerocopy::FromZeros;

use super::faulty::{Faulty, Plain};
use super::{LoadOptions, ModelHandle, Tensor, TensorSet, Unit, UnitOptions};
use crate::device::heap::Heap;
use crate::device::{Device, Driver};
use crate::neff::{Neff, ReadOptions, Target, models, pack};

/// Plain memory that behaves as a device as far as the test makes it.
pub(super) struct MockDevice {
    memory: Faulty,
    map: DeviceMap,
    target: Target,
    cycles: AtomicU64,
    progress: (Mutex<u32>, Condvar),
    driver: Driver,
    /// Bytes that calls of the host have written.
    written_bytes: AtomicU64,
    /// Writes that still succeed.
    writes_left: AtomicU32,
    /// Writes before the one that fails, once.
    until_failure: AtomicU32,
    /// Writes before the one that panics, once.
    until_panic: AtomicU32,
    /// Looks at the clock, and at the progress, before the one that panics, once.
    until_look_panic: [AtomicU32; 2],
    /// What became of it, once it runs no more.
    fate: OnceLock<String>,
}

/// Where a device may panic that is only looked at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Look {
    Clock,
    Progress,
}

const BASE: DevAddr = DevAddr(0x1_0000_0000);
pub(super) const RAM_BYTES: u64 = 4 << 20;

impl MockDevice {
    /// A device that takes models of every architecture.
    pub(super) fn new(tpbs: u32) -> Arc<Self> {
        Self::of(Target::Any, tpbs)
    }

    pub(super) fn of(target: Target, tpbs: u32) -> Arc<Self> {
        let registers = RegisterMap::new(BASE, tpbs).unwrap();
        let bytes = registers.bytes() + RAM_BYTES;
        // A unit keeps its device alive for longer than any borrow of a test.
        let lines = vec![Line::ZERO; bytes as usize / 64].leak();
        let ram = DeviceRange { base: BASE.offset(registers.bytes()), bytes: RAM_BYTES };
        Arc::new(Self {
            memory: Faulty::over(Mapped::new(Slab::over(lines, BASE))),
            map: DeviceMap { ram, registers, boot: DevAddr::NULL, lanes: 1 },
            target,
            cycles: AtomicU64::new(0),
            progress: Default::default(),
            driver: Driver::nobody(),
            written_bytes: AtomicU64::new(0),
            writes_left: AtomicU32::new(u32::MAX),
            until_failure: AtomicU32::new(u32::MAX),
            until_panic: AtomicU32::new(u32::MAX),
            until_look_panic: [u32::MAX; 2].map(AtomicU32::new),
            fate: OnceLock::new(),
        })
    }

    pub(super) fn heap(&self) -> Heap {
        Heap::new(self.map.ram.base, self.map.ram.bytes)
    }

    /// Bytes that the host has written so far; control words it stores itself.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Lets `count` writes succeed, then fails all.
    pub(super) fn fail_after(&self, count: u32) {
        self.writes_left.store(count, Ordering::Relaxed);
    }

    /// Lets one write fail, the next.
    pub(super) fn fail_next(&self) {
        self.fail_one_after(0);
    }

    /// Lets `count` writes succeed, then one fail; `u32::MAX` for none.
    pub(super) fn fail_one_after(&self, count: u32) {
        self.until_failure.store(count, Ordering::Relaxed);
    }

    /// Lets `count` writes succeed, then one panic; `u32::MAX` for none.
    pub(super) fn panic_once_after(&self, count: u32) {
        self.until_panic.store(count, Ordering::Relaxed);
    }

    /// Lets `count` looks succeed, then one panic; `u32::MAX` for none.
    pub(super) fn panic_once_after_looks(&self, at: Look, count: u32) {
        self.until_look_panic[at as usize].store(count, Ordering::Relaxed);
    }

    fn look(&self, at: Look) {
        let left = self.until_look_panic[at as usize].fetch_sub(1, Ordering::Relaxed);
        assert_ne!(left, 0, "told to panic");
    }

    /// The device runs no more.
    pub(super) fn stop(&self, fate: &str) {
        let _ = self.fate.set(fate.into());
    }

    /// Whether no control word can be reached.
    pub(super) fn cut(&self, is_cut: bool) {
        self.memory.cut(is_cut);
    }

    pub(super) fn tpb(self: &Arc<Self>, tpb: u32) -> MockTpb {
        let id = TpbId::new(tpb).unwrap();
        let registers = self.map.registers.tpb(id).unwrap();
        MockTpb { device: Arc::clone(self), registers }
    }

    fn note_progress(&self) {
        *self.progress.0.lock().unwrap() += 1;
        self.progress.1.notify_all();
    }
}

impl Clock for MockDevice {
    fn now_cycles(&self) -> u64 {
        self.look(Look::Clock);
        self.cycles.fetch_add(1, Ordering::Relaxed)
    }

    fn frequency_hz(&self) -> u64 {
        1_000_000_000
    }
}

impl Device for MockDevice {
    type Mem = Faulty;

    fn name(&self) -> &'static str {
        "mock"
    }

    fn target(&self) -> Target {
        self.target
    }

    fn memory(&self) -> &Faulty {
        &self.memory
    }

    fn map(&self) -> DeviceMap {
        self.map
    }

    fn write(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        assert_ne!(self.until_panic.fetch_sub(1, Ordering::Relaxed), 0, "told to panic");
        // Below zero is none again.
        if self.until_failure.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(Fault::Transport { at: to });
        }
        let left =
            self.writes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| Fault::Transport { at: to })?;
        self.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        sluice_core::mem::CopyMemory::write_bytes(&self.memory, to, bytes)
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn ring_doorbell(&self, _tpb: TpbId) {}

    fn wake_lanes(&self) {}

    fn fate(&self) -> Option<String> {
        self.fate.get().cloned()
    }

    fn progress(&self) -> u32 {
        self.look(Look::Progress);
        *self.progress.0.lock().unwrap()
    }

    fn wait_progress(&self, seen: u32, timeout: Duration) -> u32 {
        let progress = self.progress.0.lock().unwrap();
        *self.progress.1.wait_timeout_while(progress, timeout, |progress| *progress == seen).unwrap().0
    }
}

/// The hands of the firmware on one TPB.
pub(super) struct MockTpb {
    device: Arc<MockDevice>,
    registers: TpbRegisters,
}

impl MockTpb {
    pub(super) fn control(&self) -> SequencerControl<<Plain as Memory>::Word> {
        SequencerControl::attach(&self.device.memory.plain, self.registers).unwrap()
    }

    pub(super) fn doorbell(&self) -> u32 {
        self.control().doorbell.observe()
    }

    pub(super) fn posted(&self) -> u32 {
        self.control().exec_posted_pairs.observe()
    }

    /// Lets the host's next access to a word fail, behind those that are to fail already.
    pub(super) fn fail(&self, word: ControlWord, mishap: Mishap) {
        self.device.memory.fail(self.registers.control_word(word), mishap);
    }

    /// Stores a word that the device owns.
    pub(super) fn set(&self, word: ControlWord, value: u32) {
        let word = self.device.memory.plain.word(self.registers.control_word(word)).unwrap();
        Own::new(word).publish(value);
        self.device.note_progress();
    }

    /// Takes every pair that is posted off the exec ring, checks its phase, and returns the copies it asks for.
    pub(super) fn consume(&self) -> Vec<CopySpec> {
        let mut control = self.control();
        let (mut consumed, posted) = (control.exec_head_pairs.get(), control.exec_posted_pairs.observe());
        let mut copies = Vec::new();
        while consumed != posted {
            let mut pair = Pair { tx: TxDesc::new_zeroed(), rx: RxDesc::new_zeroed() };
            self.next(Half::Tx, &mut pair.tx);
            self.next(Half::Rx, &mut pair.rx);
            copies.push(pair.decode().unwrap());
            consumed = consumed.wrapping_add(1);
        }
        control.exec_head_pairs.publish(consumed);
        copies
    }

    fn next<T: sluice_core::dma::Descriptor>(&self, half: Half, descriptor: &mut T) {
        let bank = self.registers.queue_bank(half, QueueId::EXEC);
        let registers = QueueRegisters::attach(&self.device.memory.plain, bank).unwrap();
        let ring = registers.ring().unwrap();
        let mut position: Position = registers.position(ring.size);
        let at = ring.base.offset(16 * u64::from(position.slot().index));
        self.device.read(at, zerocopy::IntoBytes::as_mut_bytes(descriptor)).unwrap();
        position.accept(descriptor.ring_id()).unwrap();
        registers.advance(&position);
    }

    /// The ring id of the descriptor that comes next in one half of the exec ring.
    pub(super) fn next_ring_id(&self, half: Half) -> u8 {
        let bank = self.registers.queue_bank(half, QueueId::EXEC);
        let registers = QueueRegisters::attach(&self.device.memory, bank).unwrap();
        registers.position(registers.ring().unwrap().size).slot().ring_id.get()
    }

    pub(super) fn notify(&self, engine: Engine, ordinal: u32, sub_type: SubType) {
        let mut sender =
            NotificationSender::attach(&self.device.memory.plain, self.registers, Channel::Status(engine))
                .unwrap();
        sender.send(&Notification::status(engine, ordinal, sub_type, self.device.now_cycles()));
        self.device.note_progress();
    }

    pub(super) fn report(&self, engine: Engine, queue: QueueId, class: ErrorClass) {
        self.send_error(&Notification::error(engine, queue, class, self.device.now_cycles()));
    }

    /// Stops at a bad pair of the exec ring.
    pub(super) fn stop_at_bad_pair(&self, class: ErrorClass) {
        self.send_error(&Notification::stopped(QueueId::EXEC, class, self.device.now_cycles()));
    }

    fn send_error(&self, error: &Notification) {
        let mut sender =
            NotificationSender::attach(&self.device.memory.plain, self.registers, Channel::Errors).unwrap();
        sender.send(error);
        self.device.note_progress();
    }

    /// Says so much about nothing that the last of it finds its queue full.
    pub(super) fn chatter(&self, engine: Engine, records: u32) {
        (0..records).for_each(|_| self.notify(engine, 0, SubType(6)));
    }

    pub(super) fn notify_all(&self, ordinal: u32, sub_type: SubType) {
        for engine in Engine::ALL {
            self.notify(engine, ordinal, sub_type);
        }
    }

    /// Whether `copy` is a stop record of this TPB.
    pub(super) fn is_stop(&self, copy: &CopySpec) -> bool {
        copy.destination == self.registers.control_word(ControlWord::Stop).into()
    }

    /// Says that executions up to `ordinal` are finished.
    pub(super) fn finish(&self, ordinal: u32) {
        self.set(ControlWord::ExecutionsDone, ordinal.wrapping_add(1));
    }

    /// Runs execution `ordinal` as a sequencer would, without moving any byte.
    pub(super) fn run(&self, ordinal: u32) {
        self.consume();
        self.notify_all(ordinal, SubType::START);
        self.notify_all(ordinal, SubType::END);
        self.finish(ordinal);
    }
}

thread_local!(static THREADS_ARE_OUT: Cell<bool> = const { Cell::new(false) });

/// Whether loads by the present thread are refused threads of their own.
pub(super) fn threads_are_out() -> bool {
    THREADS_ARE_OUT.get()
}

/// Refuses loads by the present thread threads of their own, or lets them have some.
pub(super) fn refuse_threads(refuse: bool) {
    THREADS_ARE_OUT.set(refuse);
}

/// A built-in model, packed and read back.
pub(super) fn model(name: &str) -> Neff {
    read(name, models::builtin(name).unwrap())
}

/// The model that `text` describes.
pub(super) fn read(name: &str, text: &str) -> Neff {
    Neff::parse(name, &pack(name, text).unwrap(), &ReadOptions::default()).unwrap()
}

/// A unit on a mock device with one model and tensors for it.
pub(super) struct Bench {
    pub(super) device: Arc<MockDevice>,
    pub(super) heap: Heap,
    pub(super) unit: Unit<MockDevice>,
    pub(super) model: ModelHandle,
    pub(super) inputs: TensorSet,
    pub(super) outputs: TensorSet,
}

impl Bench {
    pub(super) fn new(neff: &Neff) -> Self {
        Self::with(neff, UnitOptions { depth: 8, exec_ring: 256, ..UnitOptions::default() }, 30)
    }

    pub(super) fn with(neff: &Neff, options: UnitOptions, timeout_seconds: u32) -> Self {
        Self::on(MockDevice::new(neff.programs.len() as u32), neff, options, timeout_seconds)
    }

    /// A unit on a device that nothing runs on.
    pub(super) fn on(
        device: Arc<MockDevice>,
        neff: &Neff,
        options: UnitOptions,
        timeout_seconds: u32,
    ) -> Self {
        let heap = device.heap();
        let unit = Unit::open(Arc::clone(&device), heap.clone(), options).unwrap();
        let options =
            LoadOptions { timeout: Duration::from_secs(timeout_seconds.into()), ..LoadOptions::default() };
        let model = unit.load_with_any_timeout(neff, &options).unwrap();
        let (inputs, outputs) = tensors(&unit, model);
        Self { device, heap, unit, model, inputs, outputs }
    }

    pub(super) fn built(&self) -> super::Built {
        self.unit.build(self.model, &self.inputs, &self.outputs).unwrap()
    }
}

/// Sets with a tensor for every name that the model wants.
pub(super) fn tensors<D: Device>(unit: &Unit<D>, model: ModelHandle) -> (TensorSet, TensorSet) {
    let (mut inputs, mut outputs) = (TensorSet::with_capacity(16), TensorSet::with_capacity(16));
    for wanted in unit.model(model).unwrap().wants() {
        let set = match wanted.direction {
            sluice_core::fmap::Direction::Input => &mut inputs,
            sluice_core::fmap::Direction::Output => &mut outputs,
        };
        let larger = set.get(&wanted.name).is_none_or(|tensor| tensor.size_bytes() < wanted.size_bytes);
        if larger {
            set.add(
                &wanted.name,
                Tensor::allocate_aligned(unit.heap(), wanted.size_bytes, wanted.align_bytes).unwrap(),
            )
            .unwrap();
        }
    }
    (inputs, outputs)
}

/// What a copy of a batch moves: where to, and the bytes that lie at its source.
pub(super) fn value_of(device: &MockDevice, copy: &CopySpec) -> (DevAddr, Vec<u8>) {
    let (AddrWord(source), AddrWord(destination)) = (copy.source, copy.destination);
    let mut bytes = vec![0; copy.len.bytes() as usize];
    device.read(DevAddr(source), &mut bytes).unwrap();
    (DevAddr(destination), bytes)
}
