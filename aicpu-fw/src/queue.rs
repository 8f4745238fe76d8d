//! Running a DMA queue: its TX and RX rings side by side, from the head on.
//!
//! ```text
//!   registers ──begin──► run ──step──► descriptor of each ring, ring id as expected? ──► copy engine
//!       ▲                 │
//!       └──── store ──────┘            heads and laps
//! ```
//!
//! A descriptor whose ring id is not the one of its ring's present lap stops the queue where it stands.

use sluice_core::dma::{Descriptor, Pair, Position, QueueRegisters, Ring, RxDesc, TxDesc};
use sluice_core::exec::ErrorClass;
use sluice_core::mem::{DeviceMemory, Fault, Memory};
use sluice_core::mmio::{Half, QueueId, TpbRegisters};

use crate::copy::{CopyEngine, Effects};

/// One DMA queue.
pub(crate) struct DmaQueue<M: Memory> {
    tx: QueueRegisters<M::Word>,
    rx: QueueRegisters<M::Word>,
}

#[derive(Clone, Copy, Debug)]
struct HalfRun {
    ring: Ring,
    position: Position,
}

/// A queue being run. What it did reaches the registers with [`DmaQueue::store`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct QueueRun {
    tx: HalfRun,
    rx: HalfRun,
}

impl<M: DeviceMemory> DmaQueue<M> {
    /// Queue `queue` of `tpb`.
    ///
    /// # Errors
    /// [`Fault`] when its registers lie outside device memory.
    pub(crate) fn attach(memory: &M, tpb: TpbRegisters, queue: QueueId) -> Result<Self, Fault> {
        Ok(Self {
            tx: QueueRegisters::attach(memory, tpb.queue_bank(Half::Tx, queue))?,
            rx: QueueRegisters::attach(memory, tpb.queue_bank(Half::Rx, queue))?,
        })
    }

    /// The registers of one half.
    pub(crate) fn half(&self, half: Half) -> &QueueRegisters<M::Word> {
        match half {
            Half::Tx => &self.tx,
            Half::Rx => &self.rx,
        }
    }

    /// Goes back to the start of both rings.
    pub(crate) fn rearm(&self) {
        self.tx.rearm();
        self.rx.rearm();
    }

    /// Starts `pairs` more descriptors on each ring, RX first.
    ///
    /// # Errors
    /// [`ErrorClass::DMA_ABORT`] when either ring is not set up or has fewer descriptors.
    pub(crate) fn start(&self, pairs: u32) -> Result<(), ErrorClass> {
        if self.rx.increment_tail(pairs) && self.tx.increment_tail(pairs) {
            Ok(())
        } else {
            Err(ErrorClass::DMA_ABORT)
        }
    }

    /// Pairs that were started on both rings and not yet run; 0 when a ring is not set up.
    pub(crate) fn pending(&self) -> u32 {
        match (self.tx.ring(), self.rx.ring()) {
            (Some(tx), Some(rx)) => self.tx.pending(tx.size).min(self.rx.pending(rx.size)),
            _ => 0,
        }
    }

    /// Begins to run from the heads on.
    ///
    /// # Errors
    /// [`ErrorClass::DMA_ABORT`] when a ring is not set up.
    pub(crate) fn begin(&self) -> Result<QueueRun, ErrorClass> {
        let half = |registers: &QueueRegisters<M::Word>| {
            let ring = registers.ring().ok_or(ErrorClass::DMA_ABORT)?;
            Ok(HalfRun { ring, position: registers.position(ring.size) })
        };
        Ok(QueueRun { tx: half(&self.tx)?, rx: half(&self.rx)? })
    }

    /// Runs the next pair, whether or not it was started: the execution ring counts pairs of its own.
    ///
    /// # Errors
    /// As [`begin`](DmaQueue::begin) and [`QueueRun::step`]; the queue stays at the pair.
    pub(crate) fn run_next(&self, engine: &CopyEngine<'_, M>) -> Result<Effects, ErrorClass> {
        let mut run = self.begin()?;
        let (effects, _) = run.step(engine)?;
        self.store(&run);
        Ok(effects)
    }

    /// Moves the heads to where `run` got.
    pub(crate) fn store(&self, run: &QueueRun) {
        self.rx.advance(&run.rx.position);
        self.tx.advance(&run.tx.position);
    }
}

impl HalfRun {
    fn fetch<M: DeviceMemory, D: Descriptor>(&self, engine: &CopyEngine<'_, M>) -> Result<D, ErrorClass> {
        let mut descriptor = D::new_zeroed();
        let at = self.ring.base.offset(u64::from(self.position.slot().index) * size_of::<D>() as u64);
        engine.fetch(at, descriptor.as_mut_bytes())?;
        Ok(descriptor)
    }
}

impl QueueRun {
    /// Runs the next pair and returns what it did and how many bytes it moved.
    ///
    /// # Errors
    /// [`ErrorClass::PHASE_MISMATCH`] for a descriptor of another lap, else as [`CopyEngine::run`]. The run stays at the
    /// pair.
    pub(crate) fn step<M: DeviceMemory>(
        &mut self,
        engine: &CopyEngine<'_, M>,
    ) -> Result<(Effects, u32), ErrorClass> {
        let pair = Pair { tx: self.tx.fetch::<_, TxDesc>(engine)?, rx: self.rx.fetch::<_, RxDesc>(engine)? };
        let (mut tx, mut rx) = (self.tx.position, self.rx.position);
        tx.accept(pair.tx.ring_id()).map_err(|_| ErrorClass::PHASE_MISMATCH)?;
        rx.accept(pair.rx.ring_id()).map_err(|_| ErrorClass::PHASE_MISMATCH)?;
        let done = engine.run(&pair)?;
        (self.tx.position, self.rx.position) = (tx, rx);
        Ok(done)
    }
}
