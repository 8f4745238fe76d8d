//! The copy engine: carries out one descriptor pair.
//!
//! ```text
//!   source            destination       what happens
//!   RAM               RAM               bytes are copied
//!   RAM               queue bank        base, length: stored, the queue is re-armed; tail increment: descriptors start
//!   RAM               event             stored
//!   RAM               semaphore         added
//!   RAM               request, tasks    stored
//!   RAM               stop word         not stored: a stop record
//!   anything else                       refused
//! ```
//!
//! Registers are written word by word. A pair is done before the next one begins, so the barriers of a descriptor only have
//! to make its writes visible to others before later ones. Whatever a descriptor asks for, the outcome is bytes where it
//! said or an [`ErrorClass`]; it never reaches memory that the device map does not give to descriptors.

use sluice_core::dma::{Barrier, Pair, QueueRegisters};
use sluice_core::exec::{DeviceMap, ErrorClass};
use sluice_core::mem::{DevAddr, DeviceMemory, store_barrier};
use sluice_core::mmio::{ControlWord, EventId, Half, QueueId, QueueRegister, Register, TpbId, TpbRegisters};

use zerocopy::IntoBytes;

use crate::queue::DmaQueue;

/// Both halves of a ring's address, and its length behind them.
const RING_BYTES: u32 = 12;

const REQUEST: u32 = TpbRegisters::REQUEST_OFFSET_BYTES;
/// The address of the task bindings lies behind the request.
const REQUEST_END: u32 = TpbRegisters::TASKS_OFFSET_BYTES + size_of::<DevAddr>() as u32;

/// What a pair did besides moving bytes: a word of bits, for it is handed on with every pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub(crate) struct Effects(u32);

impl Effects {
    const NONE: Self = Self(0);
    /// A semaphore was raised: lanes may have something to dispatch.
    const SEMAPHORE: Self = Self(1);
    /// Descriptors of a prologue queue were started: its sequencer has something to run.
    const PROLOGUE: Self = Self(2);

    /// The start event of `tpb` was set.
    const fn started(tpb: TpbId) -> Self {
        Self(1 << (8 + tpb.get()))
    }

    /// `tpb` is to stop.
    const fn stopped(tpb: TpbId) -> Self {
        Self(1 << (16 + tpb.get()))
    }

    const fn prologue_if(is_so: bool) -> Self {
        if is_so { Self::PROLOGUE } else { Self::NONE }
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn has(self, effect: Self) -> bool {
        self.0 & effect.0 != 0
    }

    /// Whether lanes may have something to dispatch.
    pub(crate) const fn raised_semaphore(self) -> bool {
        self.has(Self::SEMAPHORE)
    }

    /// Whether a prologue queue has something to run.
    pub(crate) const fn started_prologue(self) -> bool {
        self.has(Self::PROLOGUE)
    }

    /// Whether the start event of `tpb` was set.
    pub(crate) const fn has_started(self, tpb: TpbId) -> bool {
        self.has(Self::started(tpb))
    }

    /// Whether `tpb` is to stop.
    pub(crate) const fn has_stopped(self, tpb: TpbId) -> bool {
        self.has(Self::stopped(tpb))
    }
}

const _: () = assert!(TpbId::COUNT <= 8, "a TPB has a bit in each of two bytes");

/// What a pair came to, in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) struct Done(u64);

impl Done {
    const fn new(effects: Effects, bytes: u32) -> Self {
        Self((effects.0 as u64) << 32 | bytes as u64)
    }

    /// What it did besides moving bytes.
    pub(crate) const fn effects(self) -> Effects {
        Effects((self.0 >> 32) as u32)
    }

    /// Bytes moved.
    pub(crate) const fn bytes(self) -> u32 {
        self.0 as u32
    }
}

/// Carries out descriptor pairs on one device.
pub(crate) struct CopyEngine<'a, M: DeviceMemory> {
    memory: &'a M,
    map: &'a DeviceMap,
    /// A TPB whose queues, by number from 0, need not be attached for each write.
    at_hand: Option<(TpbId, &'a [DmaQueue<M>])>,
}

impl<'a, M: DeviceMemory> CopyEngine<'a, M> {
    /// An engine on `memory`, which is laid out as `map` says.
    pub(crate) fn new(memory: &'a M, map: &'a DeviceMap) -> Self {
        Self { memory, map, at_hand: None }
    }

    /// The same engine for someone who has the first `queues` of `tpb` attached.
    pub(crate) fn with_queues(self, tpb: TpbId, queues: &'a [DmaQueue<M>]) -> Self {
        Self { at_hand: Some((tpb, queues)), ..self }
    }

    /// Reads `into.len()` bytes that a queue or a program needs; only RAM can hold such.
    ///
    /// # Errors
    /// [`ErrorClass::OUT_OF_BOUNDS`] when any of them is outside.
    #[inline]
    pub(crate) fn fetch(&self, at: DevAddr, into: &mut [u8]) -> Result<(), ErrorClass> {
        self.in_ram(at, into.len() as u64)?;
        self.memory.read_bytes(at, into).map_err(|_| ErrorClass::OUT_OF_BOUNDS)
    }

    /// Says that what lies at `at` is to be copied soon.
    #[inline]
    pub(crate) fn prefetch(&self, at: DevAddr) {
        self.memory.prefetch(at);
    }

    /// Carries out `pair`. Its ring ids are not looked at: they belong to the queue.
    ///
    /// # Errors
    /// [`ErrorClass::OUT_OF_BOUNDS`] for an address outside RAM and registers, [`ErrorClass::DMA_ABORT`] for a pair that is
    /// not a plain copy or writes what descriptors may not. Registers before the offending word are written then.
    pub(crate) fn run(&self, pair: &Pair) -> Result<Done, ErrorClass> {
        let copy = pair.decode().map_err(|_| ErrorClass::DMA_ABORT)?;
        let (from, to, bytes) = (DevAddr(copy.source.0), DevAddr(copy.destination.0), copy.len.bytes());
        self.in_ram(from, bytes.into())?;
        let effects = if self.map.registers.touches(to, bytes.into()) {
            self.write_registers(from, to, bytes)?
        } else {
            self.in_ram(to, bytes.into())?;
            self.memory.copy(from, to, bytes.into()).map_err(|_| ErrorClass::OUT_OF_BOUNDS)?;
            Effects::NONE
        };
        if copy.barrier != Barrier::None {
            store_barrier();
        }
        Ok(Done::new(effects, bytes))
    }

    fn in_ram(&self, at: DevAddr, bytes: u64) -> Result<(), ErrorClass> {
        if self.map.ram.contains(at, bytes) { Ok(()) } else { Err(ErrorClass::OUT_OF_BOUNDS) }
    }

    fn write_registers(&self, from: DevAddr, to: DevAddr, bytes: u32) -> Result<Effects, ErrorClass> {
        if !bytes.is_multiple_of(4) || !to.0.is_multiple_of(4) {
            return Err(ErrorClass::DMA_ABORT);
        }
        let mut register = self.map.registers.locate(to).ok_or(ErrorClass::OUT_OF_BOUNDS)?;
        match register {
            // Bytes that its TPB's sequencer alone reads, once the start event is set.
            (_, Register::Control(offset @ REQUEST..REQUEST_END)) if bytes <= REQUEST_END - offset => {
                self.memory.copy(from, to, bytes.into()).map_err(|_| ErrorClass::OUT_OF_BOUNDS)?;
                return Ok(Effects::NONE);
            }
            // What most pairs write: a ring as a whole.
            (tpb, Register::Queue(half, queue, QueueRegister::BaseLow))
                if bytes == RING_BYTES && queue != QueueId::EXEC =>
            {
                let mut ring = [0u32; 3];
                let read = self.memory.read_bytes(from, ring.as_mut_bytes());
                read.map_err(|_| ErrorClass::OUT_OF_BOUNDS)?;
                let ring = ring.map(u32::from_le);
                self.with_queue(tpb, half, queue, |registers| registers.write_ring(ring))?;
                return Ok(Effects::prologue_if(queue == QueueId::PROLOGUE));
            }
            _ => {}
        }
        let mut effects = Effects::NONE;
        for offset in (0..u64::from(bytes)).step_by(4) {
            let at = to.offset(offset);
            if offset > 0 {
                register = self.map.registers.locate(at).ok_or(ErrorClass::OUT_OF_BOUNDS)?;
            }
            let mut value = [0; 4];
            self.memory.read_bytes(from.offset(offset), &mut value).map_err(|_| ErrorClass::OUT_OF_BOUNDS)?;
            effects = effects.and(self.write_register(at, register, u32::from_le_bytes(value))?);
        }
        Ok(effects)
    }

    fn write_register(
        &self,
        at: DevAddr,
        (tpb, register): (TpbId, Register),
        value: u32,
    ) -> Result<Effects, ErrorClass> {
        const STOP: u32 = ControlWord::Stop.offset_bytes() as u32;
        let outside = |_| ErrorClass::OUT_OF_BOUNDS;
        Ok(match register {
            // The execution queue is the host's alone.
            Register::Queue(_, QueueId::EXEC, _) | Register::Other => return Err(ErrorClass::DMA_ABORT),
            Register::Queue(half, queue, register) => {
                if !self.with_queue(tpb, half, queue, |registers| registers.write(register, value))? {
                    return Err(ErrorClass::DMA_ABORT);
                }
                Effects::prologue_if(queue == QueueId::PROLOGUE)
            }
            Register::Event(event) => {
                self.memory.publish(at, value).map_err(outside)?;
                if event == EventId::START { Effects::started(tpb) } else { Effects::NONE }
            }
            Register::Semaphore(_) => {
                self.memory.accumulate(at, value).map_err(outside)?;
                Effects::SEMAPHORE
            }
            Register::Control(REQUEST..REQUEST_END) => {
                self.memory.publish(at, value).map_err(outside)?;
                Effects::NONE
            }
            // The word is the host's; whoever runs the pair knows what to do.
            Register::Control(STOP) => Effects::stopped(tpb),
            Register::Control(_) => return Err(ErrorClass::DMA_ABORT),
        })
    }

    /// Does something with the registers of one half of a queue.
    fn with_queue<R>(
        &self,
        tpb: TpbId,
        half: Half,
        queue: QueueId,
        run: impl FnOnce(&QueueRegisters<M::Word>) -> R,
    ) -> Result<R, ErrorClass> {
        let at_hand = self.at_hand.filter(|(own, _)| *own == tpb);
        if let Some(queue) = at_hand.and_then(|(_, queues)| queues.get(queue.get() as usize)) {
            return Ok(run(queue.half(half)));
        }
        let bank =
            self.map.registers.tpb(tpb).map_err(|_| ErrorClass::OUT_OF_BOUNDS)?.queue_bank(half, queue);
        let registers = QueueRegisters::attach(self.memory, bank).map_err(|_| ErrorClass::OUT_OF_BOUNDS)?;
        Ok(run(&registers))
    }
}
