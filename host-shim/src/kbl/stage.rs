//! Staging: an execution, or the stop record, goes into the exec rings of all its TPBs, or of none.
//!
//! Slots are reserved on copies of the cursors, then pairs are written and committed; a failure in between leaves no trace.
//! The request record is not written yet: only when its execution starts it is known which model ran before.

use std::ops::Range;
use std::sync::Arc;

use sluice_core::dma::RingError;
use sluice_core::exec::{NrtStatus, QueueFull, Ticket};
use sluice_core::mem::Fault;
use sluice_core::mmio::{Half, TpbId};

use super::batch::{self, PROLOGUE_PAIRS, Prologue};
use super::build::Built;
use super::collective::{self, CollectiveError};
use super::line::{Batch, Entry, HalfDone, Job, Line, OutcomeCell, Part, State};
use super::model::Model;
use super::registry::{Held, RegistryError};
use super::tpb::{Blocked, Halt};
use crate::device::Device;
use crate::device::process::Forked;

/// An execution that can't be staged. Nothing of it is.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StageError {
    /// The model is gone.
    #[error(transparent)]
    Model(#[from] RegistryError),
    /// An exec ring has no room now, or never has.
    #[error("Failed to add execution request: TPB {tpb}: {error}")]
    Ring {
        /// Which TPB.
        tpb: TpbId,
        /// What is short.
        error: RingError,
    },
    /// As many executions are in flight as the unit allows.
    #[error("{in_flight} executions in flight, at most {depth}")]
    Depth {
        /// Executions staged and not ended.
        in_flight: usize,
        /// Most of them.
        depth: usize,
    },
    /// There was no room for as long as the caller would wait.
    #[error("no room within {waited_ms} ms: {full}")]
    NoRoom {
        /// How long it waited.
        waited_ms: u64,
        /// What was full at the end.
        full: Box<StageError>,
    },
    /// Collectives that do not take the execution.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The unit is closed.
    #[error("the unit is closed")]
    Closed,
    /// A TPB runs nothing until it is set up anew.
    #[error("TPB {tpb}: {halt}; {blocked}")]
    Halted {
        /// Which TPB.
        tpb: TpbId,
        /// What went wrong.
        halt: Halt,
        /// Why it is not set up anew yet.
        blocked: Blocked,
    },
    /// The device can't be followed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl StageError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Model(error) => error.status(),
            _ if self.is_full() => NrtStatus::QUEUE_FULL,
            Self::Ring { .. } | Self::Depth { .. } => NrtStatus::FAILURE,
            Self::NoRoom { .. } => NrtStatus::TIMEOUT,
            Self::Collective(error) => error.status,
            Self::Closed => NrtStatus::CLOSED,
            Self::Halted { halt, .. } => halt.status(),
            Self::Device(error) => error.status(),
        }
    }

    /// Whether there will be room once something has ended.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Ring { error: RingError::Full { .. }, .. } | Self::Depth { .. })
    }
}

/// A device that can't be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// Its memory can't be reached.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// It belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// It is not known what it was told.
    #[error(transparent)]
    HalfDone(#[from] HalfDone),
}

impl DeviceError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Fault(_) | Self::Forked(_) => NrtStatus::FAILURE,
            Self::HalfDone(half_done) => half_done.status(),
        }
    }
}

/// Queues the proxy tasks of an execution, if its model has any, and returns what its increment word is to hold.
fn enqueue_proxy(model: &Model, ticket: Ticket) -> Result<u32, StageError> {
    let enqueue = |held: &collective::Held| collective::locked(|| held.context.enqueue_proxy(ticket));
    let increment = model.collective.as_ref().map(enqueue);
    Ok(increment.transpose()?.unwrap_or(0))
}

/// Takes back the proxy tasks of an execution that will not run.
pub(super) fn withdraw_proxy(model: &Model, ticket: Ticket) {
    if let Some(collective) = &model.collective {
        collective::locked(|| collective.context.withdraw_proxy(ticket));
    }
}

impl<D: Device> Line<D> {
    /// Stages `built` on every TPB of its model, or on none.
    pub(super) fn stage(
        &mut self,
        device: &D,
        model: Held<Model>,
        built: &Built,
    ) -> Result<(Ticket, OutcomeCell), StageError> {
        if self.closed {
            return Err(StageError::Closed);
        }
        self.check_whole().map_err(DeviceError::from)?;
        if self.entries.len() >= self.depth {
            self.harvest(device)?;
        }
        let depth = self.depth;
        let full = |in_flight| StageError::Depth { in_flight, depth };
        if self.entries.len() >= self.depth {
            return Err(full(self.entries.len()));
        }
        let first = model.first_place();
        let mut reserved = self.reserve(built, first);
        if let Err(StageError::Ring { error: RingError::Full { .. }, .. } | StageError::Halted { .. }) =
            reserved
        {
            // Nobody else may be left to see to it that what is in the way ends, or that a TPB is set up anew.
            self.harvest(device)?;
            reserved = self.reserve(built, first);
        }
        let reserved = reserved?;
        let ticket = self.tickets.tail();
        // Before anything changes, for the hook is the runtime's and may panic.
        let increment = enqueue_proxy(&model, ticket)?;
        let job = Job {
            handle: built.model,
            model,
            increment,
            _build: Arc::clone(&built.data),
            _pins: built.pins.clone(),
        };
        let entry = Entry::new(State::Staged, reserved, Some(job));
        let outcome = Arc::clone(&entry.outcome);
        let mut entry = Some(entry);
        // The rings come last: whatever counts a reference behind these writes would wait for them.
        let committed = self.change(|line| {
            line.tickets.issue().map_err(|QueueFull { capacity }| full(capacity))?;
            line.entries.extend(entry.take());
            line.commit(device, ticket, built).map_err(|fault| {
                entry = line.entries.pop_back();
                line.undo(ticket, first..first + built.data.tpbs.len());
                DeviceError::from(fault).into()
            })
        });
        if let Err(error) = committed.unwrap_or_else(|half_done| Err(DeviceError::from(half_done).into())) {
            if let Some(job) = entry.and_then(|entry| entry.job) {
                withdraw_proxy(&job.model, ticket);
            }
            return Err(error);
        }
        Ok((ticket, outcome))
    }

    /// Slots for `built` on every TPB of its model, of which the first is at place `first`. Nothing changes.
    fn reserve(&mut self, built: &Built, first: usize) -> Result<Vec<Part>, StageError> {
        let mut reserved = Vec::with_capacity(built.data.tpbs.len());
        for (tpb, build) in self.tpbs.iter_mut().skip(first).zip(&built.data.tpbs) {
            if tpb.halted.is_none() {
                tpb.refresh().map_err(DeviceError::from)?;
            }
            if let Some(halt) = tpb.halted {
                let blocked = tpb.unreachable.map_or(Blocked::Running, Blocked::Fault);
                return Err(StageError::Halted { tpb: tpb.id(), halt, blocked });
            }
            let reservation = tpb.reserve((build.swaps().len() + PROLOGUE_PAIRS) as u32);
            let (after, slots) = reservation.map_err(|error| StageError::Ring { tpb: tpb.id(), error })?;
            reserved.push(Part::new(Batch::Execution, slots, after));
        }
        Ok(reserved)
    }

    /// Takes back what was partly committed on the TPBs at `places` under `ticket`, which is the last one.
    fn undo(&mut self, ticket: Ticket, places: Range<usize>) {
        places.for_each(|place| self.trim(place));
        let _ = self.tickets.revoke(ticket);
    }

    /// Writes the pairs of the last entry, which has `ticket`, and publishes them.
    fn commit(&mut self, device: &D, ticket: Ticket, built: &Built) -> Result<(), Fault> {
        let Some(Entry { first, parts, job: Some(job), .. }) = self.entries.back() else { return Ok(()) };
        let builds = job.model.images().iter().zip(&built.data.tpbs);
        for ((tpb, part), ((_, image), build)) in self.tpbs.iter().skip(*first).zip(parts).zip(builds) {
            let prologue = Prologue {
                registers: tpb.registers(),
                slot: tpb.slot(ticket),
                one: tpb.one(),
                sequence: image.sequence_source(),
            }
            .pairs();
            let pairs = build.swaps().chain(prologue);
            batch::place_all(device, [tpb.exec(Half::Tx), tpb.exec(Half::Rx)], &part.slots, pairs)?;
        }
        for (tpb, part) in self.tpbs.iter_mut().skip(*first).zip(parts) {
            tpb.commit(&part.after)?;
        }
        Ok(())
    }

    /// Queues a stop record on every TPB, behind all executions, once there is room for it.
    ///
    /// # Errors
    /// A device that can't be reached; nothing is queued then.
    pub(super) fn queue_stop(&mut self, device: &D) -> Result<(), DeviceError> {
        self.change(|line| line.put_stop(device))?
    }

    fn put_stop(&mut self, device: &D) -> Result<(), DeviceError> {
        if self.stopping || self.tpbs.iter().any(|tpb| tpb.halted.is_some()) {
            return Ok(());
        }
        let mut reserved = Vec::with_capacity(self.tpbs.len());
        for tpb in &mut self.tpbs {
            tpb.refresh()?;
            if tpb.halted.is_some() {
                return Ok(());
            }
            let Ok((after, slots)) = tpb.reserve(1) else { return Ok(()) };
            reserved.push(Part::new(Batch::Stop, slots, after));
        }
        let Ok(ticket) = self.tickets.issue() else { return Ok(()) };
        let mut written = Ok(());
        for (tpb, part) in self.tpbs.iter_mut().zip(&reserved) {
            let record = batch::stop_record(tpb.one(), tpb.registers());
            let rings = [tpb.exec(Half::Tx), tpb.exec(Half::Rx)];
            written = written
                .and_then(|()| batch::place_all(device, rings, &part.slots, std::iter::once(record)))
                .and_then(|()| tpb.commit(&part.after));
        }
        if let Err(fault) = written {
            self.undo(ticket, 0..reserved.len());
            return Err(fault.into());
        }
        self.entries.push_back(Entry::new(State::Ready, reserved, None));
        self.stopping = true;
        self.start_ready(device);
        Ok(())
    }
}
