//! The line: executions of a unit from staging to their end, in ticket order.
//!
//! ```text
//!   stage ──► Staged ──kickoff──► Ready ──all before it kicked off or gone──► Started ──harvested──► outcome
//!               └──────dropped──► Retired: its pairs copy padding, or are taken back
//! ```
//!
//! Staging has two phases over all TPBs: slots are reserved on copies of the cursors, then pairs are written and committed;
//! a failure in between leaves no trace. The device consumes exec rings in order and counts doorbells, so doorbells are rung
//! in ticket order too: an execution that is kicked off waits, Ready, for earlier ones that are staged. A request record is
//! written when its execution starts, for only then it is known which model ran before.
//!
//! Whoever holds the line's lock harvests for everyone: records belong to the execution whose ordinal they carry, and
//! outcomes lie ready for their waiters. Executions whose waiters are gone end like any other.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use sluice_core::dma::{AddrWord, Pair, PairCursor, PairSlots, RingError};
use sluice_core::exec::{ExecRequest, NrtStatus, QueueFull, RequestFlags, Ticket, TicketQueue};
use sluice_core::mem::Fault;
use sluice_core::mmio::{Engine, Half, TpbId};

use super::batch::{self, PROLOGUE_PAIRS, Prologue};
use super::build::{BuildData, Built};
use super::collective::CollectiveError;
use super::model::Model;
use super::outcome::{EngineTimes, ExecFault, Outcome};
use super::registry::{Held, ModelHandle, RegistryError};
use super::set::Snapshot;
use super::tpb::{Blocked, Halt, ImpossibleCount, Mark, Tpb};
use super::unit::Forked;
use crate::device::Device;
use crate::neff::Tables;

/// Most executions in flight on one unit.
pub(super) const MAX_DEPTH: usize = 1024;

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
            Self::Ring { error: RingError::Full { .. }, .. } | Self::Depth { .. } => NrtStatus::QUEUE_FULL,
            Self::Ring { .. } => NrtStatus::FAILURE,
            Self::Collective(error) => error.status,
            Self::Closed => NrtStatus::CLOSED,
            Self::Halted { .. } => NrtStatus::EXEC_UNIT_UNRECOVERABLE,
            Self::Device(error) => error.status(),
        }
    }
}

/// A device that can't be reached, or whose counters can't be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// Its memory can't be reached.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A counter says what can't be.
    #[error(transparent)]
    Count(#[from] ImpossibleCount),
    /// It belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl DeviceError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Fault(_) | Self::Forked(_) => NrtStatus::FAILURE,
            Self::Count(_) => NrtStatus::HW_ERROR,
        }
    }
}

/// Queues the proxy tasks of an execution, if its model has any, and returns what its increment word is to hold.
fn enqueue_proxy(model: &Model, ticket: Ticket) -> Result<u32, StageError> {
    let increment = model.collective.as_ref().map(|collective| collective.context.enqueue_proxy(ticket));
    Ok(increment.transpose()?.unwrap_or(0))
}

/// Takes back the proxy tasks of an execution that will not run.
fn withdraw_proxy(model: &Model, ticket: Ticket) {
    if let Some(collective) = &model.collective {
        collective.context.withdraw_proxy(ticket);
    }
}

/// Where an execution's outcome lies once it has ended.
pub(super) type OutcomeCell = Arc<OnceLock<Outcome>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Staged,
    Ready,
    Started,
    /// Nothing of it will run, and nobody has to be told.
    Retired,
}

/// What the pairs of a part are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Batch {
    /// Swaps and prologue of an execution, of which each engine notifies start and end.
    Execution,
    /// The stop record, of which nobody notifies anything.
    Stop,
}

/// An execution, or a stop, on one TPB.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) batch: Batch,
    pairs: u32,
    slots: PairSlots,
    /// Where the exec ring stood before it.
    before: Mark,
    /// Its place among the executions of the TPB, once it is started there.
    pub(super) ordinal: Option<u32>,
    pub(super) engines: [EngineTimes; Engine::COUNT],
    pub(super) faults: Vec<ExecFault>,
    pub(super) ended: bool,
    /// Its pairs are not in the exec ring any more: the TPB was set up anew.
    pub(super) lost: Option<Halt>,
}

impl Part {
    fn new(batch: Batch, pairs: u32, slots: PairSlots, before: Mark) -> Self {
        Self {
            batch,
            pairs,
            slots,
            before,
            ordinal: None,
            engines: Default::default(),
            faults: Vec::new(),
            ended: false,
            lost: None,
        }
    }

    /// Whether the device may be at work on it.
    pub(super) fn is_running(&self) -> bool {
        self.ordinal.is_some() && !self.ended
    }

    fn start<D: Device>(&mut self, tpb: &mut Tpb<D::Mem>, device: &D) -> Result<(), ExecFault> {
        let ordinal = tpb.kick(device, &self.before, self.pairs);
        self.ordinal = Some(ordinal.map_err(|fault| ExecFault::NotStarted { fault })?);
        Ok(())
    }
}

/// An execution that has not ended.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    /// One per program, on the first TPBs of the unit.
    pub(super) parts: Vec<Part>,
    pub(super) outcome: OutcomeCell,
    /// When it was first seen with nothing before it that has not ended.
    pub(super) first_since: Option<Instant>,
    /// The device was told to cut it short.
    pub(super) given_up: bool,
    /// What it runs; `None` for a stop.
    pub(super) job: Option<Job>,
}

impl Entry {
    fn new(state: State, reserved: Vec<(PairCursor, Part)>, job: Option<Job>) -> Self {
        Self {
            state,
            parts: reserved.into_iter().map(|(_, part)| part).collect(),
            outcome: OutcomeCell::default(),
            first_since: None,
            given_up: false,
            job,
        }
    }
}

/// What an execution runs, and what the device uses until its end.
#[derive(Debug)]
pub(super) struct Job {
    handle: ModelHandle,
    pub(super) model: Held<Model>,
    /// What its DMA increment word is to hold.
    increment: u32,
    _build: Arc<BuildData>,
    _pins: [Arc<Snapshot>; 2],
}

/// The last request that was handed to the device.
#[derive(Debug)]
pub(super) struct Posted {
    model: ModelHandle,
    tables: Vec<Tables>,
    flags: RequestFlags,
}

/// Executions of a unit, and the TPBs they run on.
pub(super) struct Line<D: Device> {
    pub(super) tpbs: Vec<Tpb<D::Mem>>,
    depth: usize,
    pub(super) tickets: TicketQueue<MAX_DEPTH>,
    /// One per outstanding ticket, oldest first.
    pub(super) entries: VecDeque<Entry>,
    pub(super) posted: Option<Posted>,
    closed: bool,
    stopping: bool,
}

impl<D: Device> Line<D> {
    /// An empty line for at most `depth` executions, no more than [`MAX_DEPTH`].
    pub(super) fn new(tpbs: Vec<Tpb<D::Mem>>, depth: usize) -> Self {
        Self {
            tpbs,
            depth: depth.min(MAX_DEPTH),
            tickets: TicketQueue::new(),
            entries: VecDeque::new(),
            posted: None,
            closed: false,
            stopping: false,
        }
    }

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
        if self.entries.len() >= self.depth || self.tpbs.iter().any(|tpb| tpb.halted.is_some()) {
            self.harvest(device)?;
        }
        let full = |in_flight| StageError::Depth { in_flight, depth: self.depth };
        if self.entries.len() >= self.depth {
            return Err(full(self.entries.len()));
        }
        let mut reserved = Vec::with_capacity(built.data.tpbs.len());
        for (tpb, build) in self.tpbs.iter_mut().zip(&built.data.tpbs) {
            if let Some(halt) = tpb.halted {
                let blocked = tpb.unreachable.map_or(Blocked::Running, Blocked::Fault);
                return Err(StageError::Halted { tpb: tpb.id(), halt, blocked });
            }
            tpb.refresh().map_err(DeviceError::from)?.map_err(DeviceError::from)?;
            let pairs = (build.swaps().len() + PROLOGUE_PAIRS) as u32;
            let reservation = tpb.reserve(pairs);
            let (cursor, slots) = reservation.map_err(|error| StageError::Ring { tpb: tpb.id(), error })?;
            reserved.push((cursor, Part::new(Batch::Execution, pairs, slots, tpb.mark())));
        }
        let ticket = self.tickets.issue().map_err(|QueueFull { capacity }| full(capacity))?;
        let committed = enqueue_proxy(&model, ticket).and_then(|increment| {
            let committed = self.commit(device, ticket, &model, built, &reserved);
            committed.map(|()| increment).map_err(|fault| {
                withdraw_proxy(&model, ticket);
                DeviceError::from(fault).into()
            })
        });
        let increment = committed.inspect_err(|_| self.undo(ticket, &reserved))?;
        let job = Job {
            handle: built.model,
            model,
            increment,
            _build: Arc::clone(&built.data),
            _pins: built.pins.clone(),
        };
        let entry = Entry::new(State::Staged, reserved, Some(job));
        let outcome = Arc::clone(&entry.outcome);
        self.entries.push_back(entry);
        Ok((ticket, outcome))
    }

    /// Takes back what was reserved and partly committed under `ticket`, which is the last one.
    fn undo(&mut self, ticket: Ticket, reserved: &[(PairCursor, Part)]) {
        for (tpb, (_, part)) in self.tpbs.iter_mut().zip(reserved) {
            tpb.roll_back(&part.before);
        }
        let _ = self.tickets.revoke(ticket);
    }

    fn commit(
        &mut self,
        device: &D,
        ticket: Ticket,
        model: &Model,
        built: &Built,
        reserved: &[(PairCursor, Part)],
    ) -> Result<(), Fault> {
        let builds = model.images().iter().zip(&built.data.tpbs);
        for ((tpb, (_, part)), ((_, image), build)) in self.tpbs.iter().zip(reserved).zip(builds) {
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
        for (tpb, (cursor, part)) in self.tpbs.iter_mut().zip(reserved) {
            tpb.commit(*cursor, part.pairs)?;
        }
        Ok(())
    }

    /// Lets a staged execution start as soon as those before it have.
    pub(super) fn kick_off(&mut self, device: &D, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            entry.state = State::Ready;
        }
        self.start_ready(device);
    }

    /// Takes a staged execution out of the line.
    pub(super) fn retire(&mut self, device: &D, ticket: Ticket) {
        let Some(index) = self.index(ticket) else { return };
        let entry = &mut self.entries[index];
        entry.state = State::Retired;
        if let Some(job) = &entry.job {
            withdraw_proxy(&job.model, ticket);
        }
        if index + 1 < self.entries.len() {
            self.pad(device, index, 0);
        }
        self.take_back();
        self.start_ready(device);
    }

    /// Frees the slots and tickets of executions that were retired and have none behind them. The device has consumed
    /// nothing of them: it stops behind the last execution that was kicked off.
    fn take_back(&mut self) {
        while let Some(last) = self.entries.back().filter(|entry| entry.state == State::Retired) {
            for (tpb, part) in self.tpbs.iter_mut().zip(&last.parts).filter(|(_, part)| part.lost.is_none()) {
                tpb.roll_back(&part.before);
            }
            let ticket = Ticket(self.tickets.tail().0.wrapping_sub(1));
            if self.tickets.revoke(ticket).is_err() {
                return;
            }
            self.entries.pop_back();
        }
    }

    /// Overwrites the pairs of an entry, on its TPBs from `first` on, by pairs that move nothing.
    fn pad(&mut self, device: &D, index: usize, first: usize) {
        let parts = &self.entries[index].parts;
        let in_rings = self.tpbs.iter_mut().zip(parts).skip(first).filter(|(_, part)| part.lost.is_none());
        for (tpb, part) in in_rings {
            let padding = Pair::padding(AddrWord::from(tpb.one()));
            let padded = batch::place_all(
                device,
                [tpb.exec(Half::Tx), tpb.exec(Half::Rx)],
                &part.slots,
                std::iter::repeat(padding),
            );
            if let Err(fault) = padded {
                tpb.halted.get_or_insert(Halt::StaleBatch { fault });
            }
        }
    }

    /// Starts every execution that is Ready and has nothing before it that is still Staged.
    fn start_ready(&mut self, device: &D) {
        for index in 0..self.entries.len() {
            match self.entries[index].state {
                State::Started | State::Retired => {}
                State::Staged => break,
                State::Ready => self.start(device, index),
            }
        }
        self.pop_ended();
    }

    /// Starts an execution on all its TPBs, or on none of them if one of these runs nothing, or has lost it.
    fn start(&mut self, device: &D, index: usize) {
        let ticket = Ticket(self.tickets.head().0.wrapping_add(index as u64));
        self.entries[index].state = State::Started;
        let parts = &mut self.entries[index].parts;
        let mut halted = false;
        for (tpb, part) in self.tpbs.iter().zip(parts) {
            let halt = part.lost.or(tpb.halted);
            part.faults.extend(halt.map(ExecFault::Halted));
            halted |= halt.is_some();
        }
        if halted {
            return self.give_up(device, index, 0);
        }
        let mut started = 0;
        let mut failed = self.write_requests(device, ticket, index).err();
        let entry = &mut self.entries[index];
        for (tpb, part) in self.tpbs.iter_mut().zip(&mut entry.parts) {
            if failed.is_none() {
                failed = part.start(tpb, device).err();
            }
            if failed.is_some() {
                break;
            }
            started += 1;
        }
        if let Some(fault) = failed {
            // Which model a TPB ran last is not known any more: the next request reloads everything.
            self.posted = None;
            for part in &mut entry.parts[started..] {
                part.faults.push(fault);
            }
            self.give_up(device, index, started);
        }
    }

    /// Ends an execution on its TPBs from `first` on, where it was not started.
    fn give_up(&mut self, device: &D, index: usize, first: usize) {
        let ticket = Ticket(self.tickets.head().0.wrapping_add(index as u64));
        let entry = &mut self.entries[index];
        for part in &mut entry.parts[first..] {
            part.ended = true;
        }
        // The proxy tasks go with the first TPB.
        if let Some(job) = entry.job.as_ref().filter(|_| first == 0) {
            withdraw_proxy(&job.model, ticket);
        }
        self.pad(device, index, first);
        self.settle(index);
    }

    fn write_requests(&mut self, device: &D, ticket: Ticket, index: usize) -> Result<(), ExecFault> {
        let Some(Job { handle, model, increment, .. }) = &self.entries[index].job else { return Ok(()) };
        let images = model.images();
        let tables = || images.iter().map(|(_, image)| image.tables().clone()).collect::<Vec<_>>();
        let flags = match &self.posted {
            None => {
                RequestFlags { do_model_switch: true, reload_seq_config: true, load_act_dve_tables: true }
            }
            Some(posted) => {
                let do_model_switch = posted.model != *handle;
                let load_act_dve_tables = do_model_switch && posted.tables != tables();
                let same = (do_model_switch, load_act_dve_tables)
                    == (posted.flags.do_model_switch, posted.flags.load_act_dve_tables);
                RequestFlags { do_model_switch, reload_seq_config: !same, load_act_dve_tables }
            }
        };
        for (tpb, (_, image)) in self.tpbs.iter().zip(images) {
            let request = ExecRequest::new(image.entries(), flags);
            let written = device.write(tpb.slot(ticket), &batch::slot_bytes(&request, *increment, ticket.0));
            written.map_err(|fault| ExecFault::NoRequest { fault })?;
        }
        match &mut self.posted {
            Some(posted) if posted.model == *handle => posted.flags = flags,
            posted => *posted = Some(Posted { model: *handle, tables: tables(), flags }),
        }
        Ok(())
    }

    /// Stages no execution from now on.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Queues a stop record on every TPB, behind all executions, once there is room for it.
    ///
    /// # Errors
    /// A device that can't be reached; nothing is queued then.
    pub(super) fn queue_stop(&mut self, device: &D) -> Result<(), DeviceError> {
        if self.stopping || self.tpbs.iter().any(|tpb| tpb.halted.is_some()) {
            return Ok(());
        }
        let mut reserved = Vec::with_capacity(self.tpbs.len());
        for tpb in &mut self.tpbs {
            tpb.refresh()??;
            let Ok((cursor, slots)) = tpb.reserve(1) else { return Ok(()) };
            reserved.push((cursor, Part::new(Batch::Stop, 1, slots, tpb.mark())));
        }
        let Ok(ticket) = self.tickets.issue() else { return Ok(()) };
        let mut written = Ok(());
        for (tpb, (cursor, part)) in self.tpbs.iter_mut().zip(&reserved) {
            let record = batch::stop_record(tpb.one(), tpb.registers());
            let rings = [tpb.exec(Half::Tx), tpb.exec(Half::Rx)];
            written = written
                .and_then(|()| batch::place_all(device, rings, &part.slots, std::iter::once(record)))
                .and_then(|()| tpb.commit(*cursor, part.pairs));
        }
        if let Err(fault) = written {
            self.undo(ticket, &reserved);
            return Err(fault.into());
        }
        self.entries.push_back(Entry::new(State::Ready, reserved, None));
        self.stopping = true;
        self.start_ready(device);
        Ok(())
    }

    /// Tells the device to start no further execution, at once.
    pub(super) fn stop(&self) -> Result<(), DeviceError> {
        for tpb in &self.tpbs {
            tpb.control().stop.try_publish(1)?;
        }
        Ok(())
    }

    /// Gives up executions that have not ended, with all memory that the device may still use for them.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.entries));
        std::mem::forget(std::mem::take(&mut self.tpbs));
    }

    /// Whether nothing is in line, not even a stop.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Executions staged or running.
    pub(super) fn in_flight(&self) -> usize {
        self.entries.iter().filter(|entry| entry.job.is_some()).count()
    }

    /// Executions of that model that are staged or running.
    pub(super) fn in_flight_of(&self, model: ModelHandle) -> usize {
        let of_model = |entry: &&Entry| entry.job.as_ref().is_some_and(|job| job.handle == model);
        self.entries.iter().filter(of_model).count()
    }

    /// Tickets issued so far to executions.
    pub(super) fn tickets(&self) -> u64 {
        self.tickets.tail().0 - u64::from(self.stopping)
    }

    /// How often a TPB was set up anew.
    pub(super) fn rearms(&self) -> u64 {
        self.tpbs.iter().map(|tpb| tpb.rearms).sum()
    }

    pub(super) fn index(&self, ticket: Ticket) -> Option<usize> {
        let index = usize::try_from(ticket.0.wrapping_sub(self.tickets.head().0)).ok()?;
        (index < self.entries.len()).then_some(index)
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        self.index(ticket).map(|index| &mut self.entries[index])
    }
}
