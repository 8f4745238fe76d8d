//! One TPB as the host drives it: its exec ring, request slots, doorbell and notification queues.
//!
//! ```text
//!   host                                                   sequencer
//!   reserve slots ─► write pairs ─► exec_posted_pairs ───► may consume up to here
//!                    write request slot ─► doorbell ─────► consumes until the start event, runs
//!   slots free again ◄──────────────────── exec_head_pairs ◄─┘
//!   records ◄───────────────────────────── nq_tail, executions_done
//! ```
//!
//! Words and their orders stand with [`sluice_core::mmio::HostControl`].

use sluice_core::dma::{PairCursor, PairSlots, QueueRegisters, RING_ALIGN_BYTES, Ring, RingError, RingSize};
use sluice_core::exec::{
    Channel, ErrorClass, NOTIFICATION_BYTES, NotificationReceiver, ReceiveError, Ticket,
};
use sluice_core::mem::{CopyMemory, DevAddr, Fault};
use sluice_core::mmio::{Engine, Half, HostControl, NQ_OVERFLOW, QueueId, TpbId, TpbRegisters};

use super::batch::SLOT_BYTES;
use super::stream::Stream;
use crate::device::Device;
use crate::device::heap::{DeviceBlock, Heap, HeapError, UsageTag};

/// Sizes of what a TPB is given at bring-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct TpbSizes {
    pub(super) exec_ring: RingSize,
    /// Executions in flight.
    pub(super) depth: u32,
    /// Records of each notification queue, a power of two.
    pub(super) nq_records: u32,
}

/// A counter of the device that says what can't be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("TPB {tpb} reports {what} {value}, between {at_least} and {at_most} are possible")]
pub struct ImpossibleCount {
    /// Which TPB.
    pub tpb: TpbId,
    /// Which counter.
    pub what: &'static str,
    /// What it says.
    pub value: u32,
    /// Its last good value.
    pub at_least: u32,
    /// The most that was asked of the device.
    pub at_most: u32,
}

/// A TPB that can't be set up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BringUpError {
    /// No device memory.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// Device memory could not be reached.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// An exec ring of a size that no ring has.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Notification queues of a size that no queue has.
    #[error(transparent)]
    Notification(#[from] ReceiveError),
}

/// Why nothing runs on a TPB any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Halt {
    /// The sequencer has stopped.
    #[error("its sequencer stopped at a bad pair of the exec ring ({class}); open the unit again")]
    Sequencer {
        /// What it found.
        class: ErrorClass,
    },
    /// The device would run an execution that was given up.
    #[error("a batch that was given up can't be taken out of the exec ring ({fault}); open the unit again")]
    StaleBatch {
        /// Why it can't be overwritten.
        fault: Fault,
    },
}

/// A TPB, driven by one owner at a time.
pub(super) struct Tpb<M: CopyMemory> {
    id: TpbId,
    registers: TpbRegisters,
    control: HostControl<M::Word>,
    exec: [DeviceBlock; 2],
    slots: DeviceBlock,
    _queues: DeviceBlock,
    nq_records: u32,
    depth: u32,
    cursor: PairCursor,
    posted: u32,
    /// Pairs up to the end of the last execution that was kicked off: the most that the device may consume.
    consumable: u32,
    consumed: u32,
    kicked: u32,
    done: u32,
    /// Why nothing runs here any more, if so.
    pub(super) halted: Option<Halt>,
    pub(super) status: [NotificationReceiver<M>; Engine::COUNT],
    pub(super) errors: NotificationReceiver<M>,
    pub(super) streams: [Stream; Engine::COUNT],
}

impl<M: CopyMemory> Tpb<M> {
    /// Sets a TPB up. It has to be idle: nothing staged, nothing running.
    pub(super) fn bring_up<D: Device<Mem = M>>(
        device: &D,
        heap: &Heap,
        id: TpbId,
        registers: TpbRegisters,
        sizes: TpbSizes,
    ) -> Result<Self, BringUpError> {
        let memory = device.memory();
        let ring = || heap.alloc(sizes.exec_ring.bytes(), RING_ALIGN_BYTES, UsageTag::DmaRing);
        let exec = [ring()?, ring()?];
        for (half, block) in [Half::Tx, Half::Rx].into_iter().zip(&exec) {
            let bank = registers.queue_bank(half, QueueId::EXEC);
            let ring = Ring { base: block.at(), size: sizes.exec_ring };
            QueueRegisters::attach(memory, bank)?.set_up(ring);
        }
        // One slot more than executions: its first word holds the 1 that prologues copy.
        let slots_bytes = (u64::from(sizes.depth) + 1) * SLOT_BYTES;
        let slots = heap.alloc(slots_bytes, SLOT_BYTES, UsageTag::Generic)?;
        device.write(slots.at(), &1u32.to_le_bytes())?;
        let control = HostControl::attach(memory, registers)?;
        // The device's counters run on from an earlier owner's.
        let consumed = control.exec_head_pairs.try_observe()?;
        let done = control.executions_done.try_observe()?;
        control.exec_posted_pairs.try_publish(consumed)?;
        control.doorbell.try_publish(done)?;
        control.stop.try_publish(0)?;
        let queue_bytes = sizes.nq_records.saturating_mul(NOTIFICATION_BYTES);
        let channels = Engine::ALL.len() as u64 + 1;
        let queues_bytes = u64::from(queue_bytes) * channels;
        let queues = heap.alloc(queues_bytes, Heap::GRANULE_BYTES, UsageTag::Notification)?;
        let receiver = |place: usize, channel| {
            let base = queues.at().offset(u64::from(queue_bytes) * place as u64);
            NotificationReceiver::bring_up(memory, registers, channel, base, queue_bytes)
        };
        let [pe, act, pool, dve, sp] =
            Engine::ALL.map(|engine| receiver(engine.index(), Channel::Status(engine)));
        let errors = receiver(Engine::ALL.len(), Channel::Errors)?;
        let descriptors = sizes.exec_ring.descriptors();
        Ok(Self {
            id,
            registers,
            control,
            exec,
            slots,
            depth: sizes.depth,
            cursor: PairCursor::new(descriptors, descriptors)?,
            posted: consumed,
            consumable: consumed,
            consumed,
            kicked: done,
            done,
            halted: None,
            status: [pe?, act?, pool?, dve?, sp?],
            errors,
            _queues: queues,
            nq_records: sizes.nq_records,
            streams: [Stream::starting_at(done); Engine::COUNT],
        })
    }

    pub(super) fn id(&self) -> TpbId {
        self.id
    }

    pub(super) fn registers(&self) -> TpbRegisters {
        self.registers
    }

    /// The control page.
    pub(super) fn control(&self) -> &HostControl<M::Word> {
        &self.control
    }

    /// Most records that a notification queue holds.
    pub(super) fn nq_records(&self) -> u32 {
        self.nq_records
    }

    /// Where one half of the exec ring lies.
    pub(super) fn exec(&self, half: Half) -> DevAddr {
        match half {
            Half::Tx => self.exec[0].at(),
            Half::Rx => self.exec[1].at(),
        }
    }

    /// A word that holds 1.
    pub(super) fn one(&self) -> DevAddr {
        self.slots.at()
    }

    /// The request slot of the execution with this ticket.
    pub(super) fn slot(&self, ticket: Ticket) -> DevAddr {
        self.slots.at().offset(SLOT_BYTES * (1 + ticket.0 % u64::from(self.depth)))
    }

    /// Takes note of the pairs that the sequencer has consumed.
    pub(super) fn refresh(&mut self) -> Result<Result<(), ImpossibleCount>, Fault> {
        let head = self.control.exec_head_pairs.try_observe()?;
        let count = head.wrapping_sub(self.consumed);
        if count > self.consumable.wrapping_sub(self.consumed) || self.cursor.complete(count).is_err() {
            return Ok(Err(ImpossibleCount {
                tpb: self.id,
                what: "exec_head_pairs",
                value: head,
                at_least: self.consumed,
                at_most: self.consumable,
            }));
        }
        self.consumed = head;
        Ok(Ok(()))
    }

    /// Slots for `pairs` pairs, and the cursor behind them. Nothing changes until the cursor is committed.
    pub(super) fn reserve(&self, pairs: u32) -> Result<(PairCursor, PairSlots), RingError> {
        let mut cursor = self.cursor;
        let slots = cursor.reserve(pairs)?;
        Ok((cursor, slots))
    }

    /// The cursor, and how many pairs were consumed when it stood there.
    pub(super) fn mark(&self) -> Mark {
        Mark { cursor: self.cursor, posted: self.posted, consumed: self.consumed }
    }

    /// Publishes `pairs` pairs that were written to reserved slots.
    pub(super) fn commit(&mut self, cursor: PairCursor, pairs: u32) -> Result<(), Fault> {
        let posted = self.posted.wrapping_add(pairs);
        self.control.exec_posted_pairs.try_publish(posted)?;
        (self.posted, self.cursor) = (posted, cursor);
        Ok(())
    }

    /// Takes back everything that was committed since `mark`. None of it may have been kicked off.
    pub(super) fn roll_back(&mut self, mark: &Mark) {
        self.posted = mark.posted;
        self.cursor = mark.cursor;
        // What was consumed since was kicked off, so it lies before the mark and was outstanding there.
        let _ = self.cursor.complete(self.consumed.wrapping_sub(mark.consumed));
        // A transport that fails here leaves a count too high; nothing before the next commit, which sets it right,
        // makes the device look beyond what was kicked off.
        let _ = self.control.exec_posted_pairs.try_publish(self.posted);
    }

    /// Starts the execution whose pairs begin at `from` and returns its ordinal.
    pub(super) fn kick<D: Device>(&mut self, device: &D, from: &Mark, pairs: u32) -> Result<u32, Fault> {
        let ordinal = self.kicked;
        self.control.doorbell.try_publish(ordinal.wrapping_add(1))?;
        self.kicked = ordinal.wrapping_add(1);
        self.consumable = from.posted.wrapping_add(pairs);
        device.ring_doorbell(self.id);
        Ok(ordinal)
    }

    /// Executions kicked off so far.
    pub(super) fn kicked(&self) -> u32 {
        self.kicked
    }

    /// Executions that the device has finished.
    pub(super) fn observe_done(&mut self) -> Result<Result<u32, ImpossibleCount>, Fault> {
        let done = self.control.executions_done.try_observe()?;
        if done.wrapping_sub(self.done) > self.kicked.wrapping_sub(self.done) {
            return Ok(Err(ImpossibleCount {
                tpb: self.id,
                what: "executions_done",
                value: done,
                at_least: self.done,
                at_most: self.kicked,
            }));
        }
        self.done = done;
        Ok(Ok(done))
    }

    /// Whether a notification was lost because its queue was full, at any time since the device started.
    pub(super) fn overflowed(&self) -> Result<bool, Fault> {
        Ok(self.control.interrupt_status.try_observe()? & NQ_OVERFLOW != 0)
    }
}

/// A place in an exec ring to go back to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    cursor: PairCursor,
    posted: u32,
    consumed: u32,
}
