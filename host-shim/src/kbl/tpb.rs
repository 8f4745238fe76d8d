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
    Channel, ErrorClass, NOTIFICATION_BYTES, NotificationReceiver, NrtStatus, ReceiveError, Ticket,
};
use sluice_core::mem::{CopyMemory, DevAddr, Fault};
use sluice_core::mmio::{Engine, Half, HostControl, QueueId, TakenOver, TpbId, TpbRegisters};

use super::batch::SLOT_BYTES;
use super::stream::Stream;
use crate::device::Device;
use crate::device::heap::{DeviceBlock, Heap, HeapError, UsageTag};

/// Sizes of what a TPB is given at bring-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct TpbSizes {
    /// TX half, then RX half.
    pub(super) exec_rings: [RingSize; 2],
    /// Executions in flight.
    pub(super) depth: u32,
    /// Records of each status queue, a power of two.
    pub(super) status_records: u32,
    /// Records of the error queue, a power of two.
    pub(super) error_records: u32,
}

/// A counter of the device that says what can't be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it reports {what} {value}, between {at_least} and {at_most} are possible")]
pub struct ImpossibleCount {
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

/// What went wrong with a TPB: nothing runs there until it is set up anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Halt {
    /// The sequencer has stopped.
    #[error("its sequencer stopped at a bad pair of the exec ring ({class}); what was queued there is lost")]
    Sequencer {
        /// What it found.
        class: ErrorClass,
    },
    /// Its counters can't be followed.
    #[error(
        "{0}; what is in flight there is lost, and if this goes on, reset the device and open the unit again"
    )]
    Count(ImpossibleCount),
    /// The device may run an execution of which the host said that it was not started.
    #[error("whether its last doorbell was rung is not known ({fault}); what was queued there is lost")]
    Doorbell {
        /// Why.
        fault: Fault,
    },
    /// The device would run an execution that was given up.
    #[error(
        "a batch that was given up can't be taken out of the exec ring ({fault}); what was queued there is lost"
    )]
    StaleBatch {
        /// Why it can't be overwritten.
        fault: Fault,
    },
}

impl Halt {
    /// The status that it gives executions.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Count(_) => NrtStatus::HW_ERROR,
            Self::Sequencer { .. } | Self::Doorbell { .. } | Self::StaleBatch { .. } => {
                NrtStatus::EXEC_UNIT_UNRECOVERABLE
            }
        }
    }
}

/// What keeps a TPB on which something went wrong from being set up anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Blocked {
    /// An execution still runs there.
    #[error("it is set up anew once the execution that runs there has ended")]
    Running,
    /// It can't be reached.
    #[error("it can't be set up anew ({0}); that is tried again at each call, or open the unit again")]
    Fault(Fault),
}

/// A TPB, driven by one owner at a time.
pub(super) struct Tpb<M: CopyMemory> {
    id: TpbId,
    registers: TpbRegisters,
    control: HostControl<M::Word>,
    sizes: TpbSizes,
    exec_banks: [QueueRegisters<M::Word>; 2],
    exec: [DeviceBlock; 2],
    /// The cursor of an empty exec ring.
    empty: PairCursor,
    slots: DeviceBlock,
    _queues: DeviceBlock,
    cursor: PairCursor,
    posted: u32,
    /// Behind the last execution that was kicked off: as far as the device may consume.
    end: Mark,
    consumed: u32,
    kicked: u32,
    /// Behind the next execution, if it is not known whether its doorbell was rung.
    in_doubt: Option<Mark>,
    done: u32,
    /// What the device was told to give up: the count of an execution.
    given_up: u32,
    /// Notifications that were lost, when that was last looked at.
    lost: u32,
    /// Executions before this one were kicked off when the last loss was seen.
    lossy_until: Option<u32>,
    /// What went wrong, until the TPB is set up anew.
    pub(super) halted: Option<Halt>,
    /// Why it could not be set up anew, when that was tried last.
    pub(super) unreachable: Option<Fault>,
    /// Errors of no execution so far.
    pub(super) strays: u64,
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
        let [tx, rx] = sizes.exec_rings;
        let ring = |size: RingSize| heap.alloc(size.bytes(), RING_ALIGN_BYTES, UsageTag::DmaRing);
        let exec = [ring(tx)?, ring(rx)?];
        let bank = |half| QueueRegisters::attach(memory, registers.queue_bank(half, QueueId::EXEC));
        let exec_banks = [bank(Half::Tx)?, bank(Half::Rx)?];
        // One slot more than executions: its first word holds the 1 that prologues copy.
        let slots_bytes = (u64::from(sizes.depth) + 1) * SLOT_BYTES;
        let slots = heap.alloc(slots_bytes, SLOT_BYTES, UsageTag::Generic)?;
        device.write(slots.at(), &1u32.to_le_bytes())?;
        let control = HostControl::attach(memory, registers)?;
        let status_bytes = sizes.status_records.saturating_mul(NOTIFICATION_BYTES);
        let error_bytes = sizes.error_records.saturating_mul(NOTIFICATION_BYTES);
        let errors_at = u64::from(status_bytes) * Engine::COUNT as u64;
        let queues_bytes = errors_at + u64::from(error_bytes);
        let queues = heap.alloc(queues_bytes, Heap::GRANULE_BYTES, UsageTag::Notification)?;
        let receiver = |offset, channel, bytes| {
            NotificationReceiver::bring_up(memory, registers, channel, queues.at().offset(offset), bytes)
        };
        let [pe, act, pool, dve, sp] = Engine::ALL.map(|engine| {
            let offset = u64::from(status_bytes) * engine.index() as u64;
            receiver(offset, Channel::Status(engine), status_bytes)
        });
        let errors = receiver(errors_at, Channel::Errors, error_bytes)?;
        let empty = PairCursor::new(tx.descriptors(), rx.descriptors())?;
        let mut tpb = Self {
            id,
            registers,
            control,
            exec_banks,
            exec,
            slots,
            empty,
            cursor: empty,
            posted: 0,
            end: Mark { cursor: empty, posted: 0, consumed: 0 },
            consumed: 0,
            kicked: 0,
            in_doubt: None,
            done: 0,
            given_up: 0,
            halted: None,
            unreachable: None,
            strays: 0,
            status: [pe?, act?, pool?, dve?, sp?],
            errors,
            _queues: queues,
            sizes,
            lost: 0,
            lossy_until: None,
            streams: [Stream::starting_at(0); Engine::COUNT],
        };
        tpb.set_up()?;
        Ok(tpb)
    }

    /// Sets the TPB up anew, after which nothing is wrong with it. Nothing of what was queued is run; nothing may be running.
    /// If the device can't be reached, everything stays as it is.
    pub(super) fn rearm(&mut self) {
        self.unreachable = self.set_up().err();
        if self.unreachable.is_none() {
            self.halted = None;
        }
    }

    /// Empties the exec ring and counts on from where the device stands.
    fn set_up(&mut self) -> Result<(), Fault> {
        for ((bank, block), size) in self.exec_banks.iter().zip(&self.exec).zip(self.sizes.exec_rings) {
            bank.set_up(Ring { base: block.at(), size });
        }
        let TakenOver { consumed, done } = self.control.take_over()?;
        self.cursor = self.empty;
        (self.posted, self.consumed) = (consumed, consumed);
        self.end = Mark { cursor: self.empty, posted: consumed, consumed };
        (self.kicked, self.done, self.given_up) = (done, done, done);
        (self.lost, self.lossy_until) = (self.observe_lost()?, None);
        self.streams = [Stream::starting_at(done); Engine::COUNT];
        Ok(())
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

    /// How large its parts are.
    pub(super) fn sizes(&self) -> TpbSizes {
        self.sizes
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
        self.slots.at().offset(SLOT_BYTES * (1 + ticket.0 % u64::from(self.sizes.depth)))
    }

    /// Takes note of the pairs that the sequencer has consumed. A count that can't be halts the TPB.
    pub(super) fn refresh(&mut self) -> Result<(), Fault> {
        let head = self.control.exec_head_pairs.try_observe()?;
        let count = head.wrapping_sub(self.consumed);
        if count > self.end.posted.wrapping_sub(self.consumed) || self.cursor.complete(count).is_err() {
            self.lose_count("exec_head_pairs", head, self.consumed, self.end.posted);
        } else {
            self.consumed = head;
        }
        Ok(())
    }

    /// Slots for `pairs` pairs, and the place behind them. Nothing changes until that is committed.
    pub(super) fn reserve(&self, pairs: u32) -> Result<(Mark, PairSlots), RingError> {
        let mut cursor = self.cursor;
        let slots = cursor.reserve(pairs)?;
        let after = Mark { cursor, posted: self.posted.wrapping_add(pairs), consumed: self.consumed };
        Ok((after, slots))
    }

    /// Publishes the pairs up to `after`, which were written to reserved slots.
    pub(super) fn commit(&mut self, after: &Mark) -> Result<(), Fault> {
        self.control.exec_posted_pairs.try_publish(after.posted)?;
        (self.posted, self.cursor) = (after.posted, after.cursor);
        Ok(())
    }

    /// Takes back everything behind `mark`, or, without one, behind what was kicked off. None of it may have been.
    pub(super) fn roll_back(&mut self, mark: Option<&Mark>) {
        let mark = mark.unwrap_or(&self.end);
        self.posted = mark.posted;
        self.cursor = mark.cursor;
        // What was consumed since was kicked off, so it lies before the mark and was outstanding there.
        let _ = self.cursor.complete(self.consumed.wrapping_sub(mark.consumed));
        // A transport that fails here leaves a count too high; nothing before the next commit, which sets it right,
        // makes the device look beyond what was kicked off.
        let _ = self.control.exec_posted_pairs.try_publish(self.posted);
    }

    /// Starts the execution whose pairs end at `after` and returns its ordinal.
    pub(super) fn kick<D: Device>(&mut self, device: &D, after: &Mark) -> Result<u32, NotRung> {
        let ordinal = self.kicked;
        let count = ordinal.wrapping_add(1);
        if self.given_up == count {
            // Counters have gone once round since that one was given up.
            let cleared = self.control.given_up.try_publish(ordinal);
            cleared.map_err(|fault| NotRung { fault, is_certain: true })?;
            self.given_up = ordinal;
        }
        if let Err(fault) = self.control.doorbell.try_publish(count) {
            // The device may have it all the same.
            let found = self.control.doorbell.recover();
            if found.is_err() {
                self.halted.get_or_insert(Halt::Doorbell { fault });
                self.in_doubt = Some(*after);
            }
            if found != Ok(count) {
                return Err(NotRung { fault, is_certain: found.is_ok() });
            }
        }
        self.rung(device, after);
        Ok(ordinal)
    }

    fn rung<D: Device>(&mut self, device: &D, after: &Mark) {
        self.kicked = self.kicked.wrapping_add(1);
        self.end = *after;
        device.ring_doorbell(self.id);
    }

    /// Whether it is not known whether the last doorbell was rung.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt.is_some()
    }

    /// Looks whether the doorbell in doubt was rung, and returns the ordinal of its execution if it was.
    pub(super) fn resolve<D: Device>(&mut self, device: &D) -> Result<Option<u32>, Fault> {
        let (Some(after), ordinal) = (self.in_doubt, self.kicked) else { return Ok(None) };
        let is_rung = self.control.doorbell.recover()? == ordinal.wrapping_add(1);
        self.in_doubt = None;
        Ok(is_rung.then(|| {
            self.rung(device, &after);
            ordinal
        }))
    }

    /// Has the device cut execution `ordinal` short, which runs.
    pub(super) fn give_up<D: Device<Mem = M>>(&mut self, device: &D, ordinal: u32) -> Result<(), Fault> {
        // Remembered even if the transport fails: the device may have it all the same.
        self.given_up = ordinal.wrapping_add(1);
        self.control.given_up.try_publish(self.given_up)?;
        device.ring_doorbell(self.id);
        Ok(())
    }

    /// The last execution that was given up. None of those kicked off since has its number.
    pub(super) fn given_up(&self) -> u32 {
        self.given_up.wrapping_sub(1)
    }

    /// Executions kicked off so far.
    pub(super) fn kicked(&self) -> u32 {
        self.kicked
    }

    /// Executions that the device has finished. A count that can't be halts the TPB, and the last good one stands.
    pub(super) fn observe_done(&mut self) -> Result<u32, Fault> {
        let done = self.control.executions_done.try_observe()?;
        if done.wrapping_sub(self.done) > self.kicked.wrapping_sub(self.done) {
            self.lose_count("executions_done", done, self.done, self.kicked);
        } else {
            self.done = done;
        }
        Ok(self.done)
    }

    fn lose_count(&mut self, what: &'static str, value: u32, at_least: u32, at_most: u32) {
        // A sequencer that has stopped runs nothing that would have to be followed.
        if !matches!(self.halted, Some(Halt::Sequencer { .. })) {
            let count = ImpossibleCount { what, value, at_least, at_most };
            self.halted = Some(Halt::Count(count));
        }
    }

    /// Whether the count of executions says nothing any more.
    pub(super) fn has_lost_count(&self) -> bool {
        matches!(self.halted, Some(Halt::Count(_)))
    }

    /// Whether notifications were lost, because their queues were full, while execution `ordinal` was in flight, which has
    /// not ended. Asked for every execution with which something is wrong: a loss that nothing misses is laid to the next.
    pub(super) fn has_lost(&mut self, ordinal: u32) -> Result<bool, Fault> {
        let lost = self.observe_lost()?;
        if lost != self.lost {
            (self.lost, self.lossy_until) = (lost, Some(self.kicked));
        }
        let was_kicked = |until: u32| (1..=self.sizes.depth + 1).contains(&until.wrapping_sub(ordinal));
        Ok(self.lossy_until.is_some_and(was_kicked))
    }

    /// Notifications lost so far.
    fn observe_lost(&self) -> Result<u32, Fault> {
        let queues = self.status.iter().chain([&self.errors]);
        queues.map(NotificationReceiver::lost).try_fold(0, |sum: u32, lost| Ok(sum.wrapping_add(lost?)))
    }
}

/// A doorbell that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotRung {
    pub(super) fault: Fault,
    /// The device does not have it. Otherwise it may.
    pub(super) is_certain: bool,
}

/// A place in an exec ring to go back to, and how many pairs were consumed when it was handed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    cursor: PairCursor,
    posted: u32,
    consumed: u32,
}

#[cfg(test)]
mod tests {
    use super::super::faulty::Faulty;
    use super::super::mock::MockDevice;
    use super::*;

    #[test]
    fn no_execution_is_taken_for_one_that_was_given_up_a_round_before() {
        let device = MockDevice::new(1);
        let size = RingSize::MIN;
        let sizes = TpbSizes { exec_rings: [size; 2], depth: 1, status_records: 4, error_records: 8 };
        let registers = device.map().registers.tpb(TpbId::FIRST).unwrap();
        let mut tpb: Tpb<Faulty> =
            Tpb::bring_up(&*device, &device.heap(), TpbId::FIRST, registers, sizes).unwrap();
        let end = tpb.end;
        // After a set-up the word holds the count of the last execution that was done before.
        for count in [0, 7, 7] {
            assert_eq!(tpb.control.given_up.get(), count);
            // As after nearly 2^32 executions.
            tpb.kicked = count.wrapping_sub(1);
            let ordinal = tpb.kick(&*device, &end).unwrap();
            assert_eq!(tpb.control.doorbell.get(), count);
            assert_ne!(tpb.control.given_up.get(), count);
            // Again a round later, for one that is given up.
            tpb.give_up(&*device, 6).unwrap();
            assert_eq!((ordinal.wrapping_add(1), tpb.control.given_up.get()), (count, 7));
        }
    }
}
