//! The line: executions of a unit from staging to their end, in ticket order.
//!
//! ```text
//!   stage ──► Staged ──kickoff──► Ready ──all before it kicked off or gone──► Started ──harvested──► outcome
//!               └──────dropped──► Retired: its pairs copy padding, or are taken back
//! ```
//!
//! Whoever holds the line's lock harvests for everyone: records belong to the execution whose ordinal they carry, and
//! outcomes lie ready for their waiters. Executions whose waiters are gone end like any other.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use sluice_core::dma::{AddrWord, Pair, PairSlots};
use sluice_core::exec::{NrtStatus, Ticket, TicketQueue};
use sluice_core::mmio::{Engine, Half};

use super::batch;
use super::build::BuildData;
use super::kickoff::Posted;
use super::model::Model;
use super::outcome::{EngineTimes, ExecFault, Outcome};
use super::registry::{Held, ModelHandle};
use super::set::Snapshot;
use super::shared::DoneMark;
use super::stage::{DeviceError, withdraw_proxy};
use super::tpb::{Halt, Mark, Tpb};
use crate::device::Device;
use crate::device::claim::Claim;

/// Most executions in flight on one unit.
pub(super) const MAX_DEPTH: usize = 1024;

/// Most faults of an execution on one TPB that are kept.
const MOST_FAULTS: usize = 16;

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
    pub(super) slots: PairSlots,
    /// Where its pairs end in the exec ring.
    pub(super) after: Mark,
    /// Its place among the executions of the TPB, once it is started there.
    pub(super) ordinal: Option<u32>,
    pub(super) engines: [EngineTimes; Engine::COUNT],
    pub(super) faults: Vec<ExecFault>,
    pub(super) omitted_faults: u64,
    /// The device is not, or will not be, at work on it any more.
    pub(super) ended: bool,
    /// It went with its TPB, which was set up anew, or is to be.
    pub(super) lost: Option<Halt>,
    /// It was kicked off, and its TPB told to start nothing more.
    refused: bool,
}

impl Part {
    pub(super) fn new(batch: Batch, slots: PairSlots, after: Mark) -> Self {
        Self {
            batch,
            slots,
            after,
            ordinal: None,
            engines: Default::default(),
            faults: Vec::new(),
            omitted_faults: 0,
            ended: false,
            lost: None,
            refused: false,
        }
    }

    /// Takes note of what went wrong. Most of a flood is only counted, but what decides the status is kept.
    pub(super) fn fail(&mut self, fault: ExecFault) {
        if self.faults.len() < MOST_FAULTS {
            return self.faults.push(fault);
        }
        self.omitted_faults += 1;
        let class = |fault: &ExecFault| fault.status().class();
        if self.faults.iter().all(|kept| class(kept) < class(&fault))
            && let Some(last) = self.faults.last_mut()
        {
            *last = fault;
        }
    }

    /// Whether the device may be at work on it.
    pub(super) fn is_running(&self) -> bool {
        self.ordinal.is_some() && !self.ended
    }

    /// Whether nothing more is to be heard of it.
    pub(super) fn is_over(&self) -> bool {
        self.ended || self.lost.is_some() || self.refused
    }

    /// Whether it is in the exec ring, to be started.
    fn is_queued(&self) -> bool {
        self.ordinal.is_none() && !self.is_over()
    }
}

/// An execution that has not ended.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    /// Place of the first TPB that it runs on, among those of the unit.
    pub(super) first: usize,
    /// One per program, on the TPBs from there on.
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
    pub(super) fn new(state: State, parts: Vec<Part>, job: Option<Job>) -> Self {
        let first = job.as_ref().map_or(0, |job| job.model.first_place());
        Self { state, first, parts, outcome: OutcomeCell::default(), first_since: None, given_up: false, job }
    }

    /// Where the device counts it, once it is started.
    pub(super) fn done_mark(&self) -> Option<DoneMark> {
        let ordinal = self.parts.last()?.ordinal?;
        Some(DoneMark { place: self.first + self.parts.len() - 1, count: ordinal.wrapping_add(1) })
    }

    /// Its part on the TPB at `place`, if it runs there.
    pub(super) fn part(&self, place: usize) -> Option<&Part> {
        self.parts.get(place.wrapping_sub(self.first))
    }

    /// The same, to change it.
    pub(super) fn part_mut(&mut self, place: usize) -> Option<&mut Part> {
        self.parts.get_mut(place.wrapping_sub(self.first))
    }
}

/// What an execution runs, and what the device uses until its end.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) handle: ModelHandle,
    pub(super) model: Held<Model>,
    /// What its DMA increment word is to hold.
    pub(super) increment: u32,
    pub(super) _build: Arc<BuildData>,
    pub(super) _pins: [Arc<Snapshot>; 2],
}

/// Executions of a unit, and the TPBs they run on.
pub(super) struct Line<D: Device> {
    pub(super) tpbs: Vec<Tpb<D::Mem>>,
    pub(super) depth: usize,
    pub(super) tickets: TicketQueue<MAX_DEPTH>,
    /// One per outstanding ticket, oldest first.
    pub(super) entries: VecDeque<Entry>,
    pub(super) posted: Option<Posted>,
    pub(super) closed: bool,
    pub(super) stopping: bool,
    /// No TPB starts anything any more.
    pub(super) stopped: bool,
    /// How often a TPB was set up anew.
    pub(super) rearms: u64,
    /// Gone with the TPBs once the unit has ended.
    claim: Option<Claim<D>>,
    /// A change is under way; or, at the beginning of another, one was and did not come to its end.
    half_done: bool,
}

/// A panic in the middle of a change. What the device was told is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a panic, of the device's functions or a hook, left the unit half-way through a change: what it runs can't be \
     followed any more; drop the unit and open it again on a device that was reset"
)]
pub struct HalfDone;

impl HalfDone {
    /// The status that the C interface reports for it.
    pub fn status(self) -> NrtStatus {
        NrtStatus::EXEC_UNIT_UNRECOVERABLE
    }
}

impl<D: Device> Line<D> {
    /// An empty line for at most `depth` executions, no more than [`MAX_DEPTH`].
    pub(super) fn new(claim: Claim<D>, tpbs: Vec<Tpb<D::Mem>>, depth: usize) -> Self {
        Self {
            tpbs,
            depth: depth.min(MAX_DEPTH),
            tickets: TicketQueue::new(),
            entries: VecDeque::new(),
            posted: None,
            closed: false,
            stopping: false,
            stopped: false,
            rearms: 0,
            claim: Some(claim),
            half_done: false,
        }
    }

    /// Makes a change that, when it panics in the middle, lets no other begin.
    pub(super) fn change<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> Result<R, HalfDone> {
        self.check_whole()?;
        self.half_done = true;
        let result = change(self);
        self.half_done = false;
        Ok(result)
    }

    /// Makes sure that no change was left half done.
    pub(super) fn check_whole(&self) -> Result<(), HalfDone> {
        if self.half_done { Err(HalfDone) } else { Ok(()) }
    }

    /// Calls a hook in the middle of a change, with nothing half done.
    pub(super) fn call(&mut self, hook: impl FnOnce(&Self)) {
        self.half_done = false;
        hook(self);
        self.half_done = true;
    }

    /// Takes an execution out of the line, unless it was kicked off.
    pub(super) fn retire(&mut self, device: &D, ticket: Ticket) {
        let retired = self.change(|line| {
            let index = line.index(ticket)?;
            let entry = &mut line.entries[index];
            if entry.state != State::Staged {
                return None;
            }
            entry.state = State::Retired;
            let job = entry.job.take();
            line.withdraw(device, index, 0);
            line.take_back();
            line.start_ready(device);
            job
        });
        // Last, for the hook is the runtime's.
        if let Ok(Some(job)) = retired {
            withdraw_proxy(&job.model, ticket);
        }
    }

    /// Frees the tickets of executions that were retired and have none behind them.
    fn take_back(&mut self) {
        while self.entries.back().is_some_and(|entry| entry.state == State::Retired) {
            let ticket = Ticket(self.tickets.tail().0.wrapping_sub(1));
            if self.tickets.revoke(ticket).is_err() {
                return;
            }
            self.entries.pop_back();
        }
    }

    /// Takes the pairs of an entry, which will not start on its TPBs from number `first` on, out of their exec rings. With others
    /// behind them they are overwritten by pairs that move nothing.
    pub(super) fn withdraw(&mut self, device: &D, index: usize, first: usize) {
        let begin = self.entries[index].first;
        for number in first..self.entries[index].parts.len() {
            let (place, part) = (begin + number, &mut self.entries[index].parts[number]);
            part.ended = true;
            if part.lost.is_some() {
                continue;
            }
            let mut behind = self.entries.range(index + 1..).filter_map(|entry| entry.part(place));
            if behind.any(Part::is_queued) {
                self.pad(device, index, number);
            } else {
                self.trim(place);
            }
        }
    }

    /// Frees the slots behind the last pairs on the TPB at `place` that are to be run. The device has consumed nothing of
    /// them: it stops behind the last execution that was kicked off.
    pub(super) fn trim(&mut self, place: usize) {
        let mut parts = self.entries.iter().rev().filter_map(|entry| entry.part(place));
        let last = parts.find(|part| part.is_queued());
        self.tpbs[place].roll_back(last.map(|part| &part.after));
    }

    /// Overwrites the pairs of an entry on one of its TPBs by pairs that move nothing.
    fn pad(&mut self, device: &D, index: usize, number: usize) {
        let entry = &self.entries[index];
        let (tpb, part) = (&mut self.tpbs[entry.first + number], &entry.parts[number]);
        let padding = Pair::padding(AddrWord::from(tpb.one()));
        let rings = [tpb.exec(Half::Tx), tpb.exec(Half::Rx)];
        if let Err(fault) = batch::place_all(device, rings, &part.slots, std::iter::repeat(padding)) {
            tpb.halted.get_or_insert(Halt::StaleBatch { fault });
        }
    }

    /// Stages no execution from now on.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Tells the device to start no further execution, at once, and those behind the ones that run that they never will.
    pub(super) fn stop(&mut self, device: &D) -> Result<(), DeviceError> {
        for tpb in &self.tpbs {
            tpb.control().stop.try_publish(1)?;
        }
        Ok(self.change(|line| line.refuse_queued(device))?)
    }

    /// Tells executions behind the ones that run that they never will.
    fn refuse_queued(&mut self, device: &D) {
        self.stopped = true;
        for place in 0..self.tpbs.len() {
            let jobs = self.entries.iter_mut().filter(|entry| entry.job.is_some());
            let parts = jobs.filter_map(|entry| entry.part_mut(place));
            // The first may be about to begin. Should the next have begun meanwhile, it keeps its memory until it has ended.
            for part in parts.filter(|part| part.is_running()).skip(1) {
                if !part.is_over() && part.engines.iter().all(|times| times.start_cycles.is_none()) {
                    part.refused = true;
                    part.fail(ExecFault::Closed);
                }
            }
        }
        for index in 0..self.entries.len() {
            if self.entries[index].state == State::Ready && self.entries[index].job.is_some() {
                self.start(device, index);
            }
            self.settle(index);
        }
        self.pop_ended();
    }

    /// Lets go of the TPBs, which another unit may drive then. Nothing may be in line, or ever come.
    pub(super) fn end(&mut self) {
        self.tpbs = Vec::new();
        self.claim = None;
    }

    /// Gives up executions that have not ended, with all memory that the device may still use for them. No other unit can
    /// drive the TPBs as long as these may be at work.
    pub(super) fn abandon(&mut self) {
        let mut parts = self.entries.iter().flat_map(|entry| &entry.parts);
        let at_work = parts.any(Part::is_running) || self.tpbs.iter().any(Tpb::is_in_doubt);
        if !at_work && !self.half_done {
            self.claim = None;
        }
        self.forget();
    }

    /// Leaves everything to whoever else has it: the device, or the process that this one is a fork of.
    pub(super) fn forget(&mut self) {
        if let Some(claim) = self.claim.take() {
            claim.leave_running();
        }
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
    pub(super) fn in_flight_of(&self, model: ModelHandle) -> impl Iterator<Item = Ticket> {
        let entries = self.entries.iter().enumerate();
        let of_model =
            entries.filter(move |(_, entry)| entry.job.as_ref().is_some_and(|job| job.handle == model));
        of_model.map(|(index, _)| Ticket(self.tickets.head().0.wrapping_add(index as u64)))
    }

    /// Tickets issued so far to executions.
    pub(super) fn tickets(&self) -> u64 {
        self.tickets.tail().0 - u64::from(self.stopping)
    }

    pub(super) fn index(&self, ticket: Ticket) -> Option<usize> {
        let index = usize::try_from(ticket.0.wrapping_sub(self.tickets.head().0)).ok()?;
        (index < self.entries.len()).then_some(index)
    }

    pub(super) fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        self.index(ticket).map(|index| &mut self.entries[index])
    }
}
