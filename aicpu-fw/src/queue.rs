//! Running a DMA queue: its TX and RX rings side by side, from the head on.
//!
//! ```text
//!   registers ──begin──► run ──step──► descriptor of each ring, ring id as expected? ──► copy engine
//!       ▲                 │
//!       └──── store ──────┘            heads and laps
//! ```
//!
//! A descriptor whose ring id is not the one of its ring's present lap stops the queue where it stands. Descriptors are read
//! some at a time, so a pair must not change those right behind it, and none beyond those that were started.

use sluice_core::dma::{Descriptor, Pair, Position, QueueRegisters, Ring, RxDesc, TxDesc};
use sluice_core::exec::ErrorClass;
use sluice_core::mem::{DevAddr, DeviceMemory, Fault, Memory, Word};
use sluice_core::mmio::{Half, QueueId, TpbRegisters};
use zerocopy::{FromZeros, IntoBytes};

use crate::copy::{CopyEngine, Done};

/// One DMA queue.
pub(crate) struct DmaQueue<M: Memory> {
    tx: QueueRegisters<M::Word>,
    rx: QueueRegisters<M::Word>,
}

/// Descriptors of a ring that are read at once: two lines of them, whose ways into the cache overlap.
const AHEAD: usize = 8;

/// Where a run keeps the descriptors that it has read ahead. Nothing of one run is left to the next, only the room.
#[derive(Debug)]
pub(crate) struct Ahead {
    tx: [TxDesc; AHEAD],
    rx: [RxDesc; AHEAD],
}

impl Default for Ahead {
    fn default() -> Self {
        Self { tx: FromZeros::new_zeroed(), rx: FromZeros::new_zeroed() }
    }
}

/// A ring being run.
#[derive(Clone, Copy, Debug)]
struct HalfRun {
    ring: Ring,
    position: Position,
    /// Of those ahead, which comes next, and how many there are.
    next: usize,
    filled: usize,
}

/// A queue being run. What it did reaches the registers with [`DmaQueue::store`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct QueueRun {
    tx: HalfRun,
    rx: HalfRun,
    /// Pairs that may be run.
    left: u32,
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

    /// Begins to run `pairs` pairs from the heads on, whether or not they were started: the execution ring counts pairs of its
    /// own.
    ///
    /// # Errors
    /// [`ErrorClass::DMA_ABORT`] when a ring is not set up.
    pub(crate) fn begin(&self, pairs: u32) -> Result<QueueRun, ErrorClass> {
        Ok(QueueRun { tx: HalfRun::at_head(&self.tx)?, rx: HalfRun::at_head(&self.rx)?, left: pairs })
    }

    /// Moves the heads to where `run` got.
    pub(crate) fn store(&self, run: &QueueRun) {
        self.rx.advance(&run.rx.position);
        self.tx.advance(&run.tx.position);
    }
}

impl HalfRun {
    fn at_head<W: Word>(registers: &QueueRegisters<W>) -> Result<Self, ErrorClass> {
        let ring = registers.ring().ok_or(ErrorClass::DMA_ABORT)?;
        let position = registers.position(ring.size);
        Ok(Self { ring, position, next: 0, filled: 0 })
    }

    /// Sees to it that the next descriptor, of at most `left`, is among those ahead, and returns where; it has to belong to this
    /// lap.
    fn fetch<M: DeviceMemory, D: Descriptor>(
        &mut self,
        engine: &CopyEngine<'_, M>,
        ahead: &mut [D; AHEAD],
        left: u32,
    ) -> Result<usize, ErrorClass> {
        if self.next == self.filled {
            let index = self.position.slot().index;
            let count = (AHEAD as u32).min(left).min(self.ring.size.descriptors() - index) as usize;
            let at = self.ring.base.offset(u64::from(index) * size_of::<D>() as u64);
            engine.fetch(at, ahead[..count].as_mut_bytes())?;
            if D::HALF == Half::Tx {
                // Sources on their way together, instead of one by one as their turns come.
                ahead[..count].iter().for_each(|tx| engine.prefetch(DevAddr(tx.address().0)));
            }
            (self.next, self.filled) = (0, count);
        }
        let next = self.next % AHEAD;
        self.position.check(ahead[next].ring_id()).map_err(|_| ErrorClass::PHASE_MISMATCH)?;
        Ok(next)
    }

    fn advance(&mut self) {
        self.position.step();
        self.next += 1;
    }
}

impl QueueRun {
    /// Runs the next pair and returns what it did and how many bytes it moved; `None` behind the last one. `ahead` is to be
    /// the same in all steps of the run.
    ///
    /// # Errors
    /// [`ErrorClass::PHASE_MISMATCH`] for a descriptor of another lap, else as [`CopyEngine::run`]. The run stays at the
    /// pair.
    pub(crate) fn step<M: DeviceMemory>(
        &mut self,
        engine: &CopyEngine<'_, M>,
        ahead: &mut Ahead,
    ) -> Option<Result<Done, ErrorClass>> {
        let left = self.left.checked_sub(1)?;
        let done = self.run_next(engine, ahead);
        if done.is_ok() {
            self.left = left;
        }
        Some(done)
    }

    fn run_next<M: DeviceMemory>(
        &mut self,
        engine: &CopyEngine<'_, M>,
        ahead: &mut Ahead,
    ) -> Result<Done, ErrorClass> {
        let tx = self.tx.fetch(engine, &mut ahead.tx, self.left)?;
        let rx = self.rx.fetch(engine, &mut ahead.rx, self.left)?;
        let pair = Pair { tx: ahead.tx[tx], rx: ahead.rx[rx] };
        let done = engine.run(&pair)?;
        self.tx.advance();
        self.rx.advance();
        Ok(done)
    }
}
