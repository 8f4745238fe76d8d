//! Harvest: notification records become the outcomes of executions.
//!
//! ```text
//!   executions_done ─► drain status queues ─► streams ─► times, disorder ─┐
//!                      drain error queue ─► faults ───────────────────────┴─► parts ended ─► outcome
//! ```
//!
//! The count of finished executions is read first: the device publishes it after all records of the executions it counts,
//! so what is not in the queues then was never written.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sluice_core::exec::{ErrorClass, Notification, ReceiveError, Ticket};
use sluice_core::mem::{CopyMemory, Fault};
use sluice_core::mmio::{Engine, TpbId};
use zerocopy::FromZeros;

use super::line::{Batch, Entry, Line, Part, State};
use super::outcome::{ExecFault, Outcome, TpbOutcome};
use super::stage::DeviceError;
use super::stream::{EngineState, Event, Received, Stream};
use super::tpb::{Halt, Tpb};
use crate::device::Device;

/// What an execution that has not ended waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pending {
    /// An earlier execution that has not ended.
    pub(super) behind: Option<Ticket>,
    /// It, or one before it, is staged and not kicked off.
    pub(super) started: bool,
    /// The first engine that has not completed.
    pub(super) engine: Option<(TpbId, Engine, EngineState, Option<Received>)>,
    /// A notification queue has run over.
    pub(super) overflow: bool,
    /// What it waits for, itself or an earlier execution, was given up and has not ended.
    pub(super) stuck: bool,
}

impl<D: Device> Line<D> {
    /// Reads every notification that is there and ends the executions that the device has finished.
    pub(super) fn harvest(&mut self, device: &D) -> Result<(), DeviceError> {
        self.change(|line| line.follow_all(device))?
    }

    fn follow_all(&mut self, device: &D) -> Result<(), DeviceError> {
        let mut reached = Ok(());
        for (place, tpb) in self.tpbs.iter_mut().enumerate() {
            // One that can't be reached keeps nobody from hearing of the others.
            reached = reached.and(harvest_tpb(tpb, device, place, &mut self.entries));
        }
        self.rearm_halted();
        for index in 0..self.entries.len() {
            self.settle(index);
        }
        self.pop_ended();
        reached?;
        self.give_up_overdue(device)
    }

    /// Has the device cut the oldest execution short once it has had its model's time. Those behind it can then run, whoever
    /// waits for what.
    fn give_up_overdue(&mut self, device: &D) -> Result<(), DeviceError> {
        let Some(entry) = self.entries.front_mut().filter(|entry| entry.state == State::Started) else {
            return Ok(());
        };
        let Some(job) = &entry.job else { return Ok(()) };
        let elapsed = entry.first_since.map_or(Duration::ZERO, |since| since.elapsed());
        entry.first_since.get_or_insert_with(Instant::now);
        if entry.given_up || elapsed < job.model.timeout() {
            return Ok(());
        }
        let parts = self.tpbs.iter_mut().skip(entry.first).zip(&entry.parts);
        for (tpb, part) in parts.filter(|(_, part)| part.is_running()) {
            if let Some(ordinal) = part.ordinal {
                tpb.give_up(device, ordinal)?;
            }
        }
        entry.given_up = true;
        Ok(())
    }

    /// Sets TPBs up anew on which something went wrong, once nothing runs there. What is queued there is lost.
    fn rearm_halted(&mut self) {
        for (place, tpb) in self.tpbs.iter_mut().enumerate() {
            let Some(halt) = tpb.halted.filter(|_| !tpb.is_in_doubt()) else { continue };
            let parts = || self.entries.iter().filter_map(|entry| entry.part(place));
            if parts().any(Part::is_running) {
                continue;
            }
            for part in self.entries.iter_mut().filter_map(|entry| entry.part_mut(place)) {
                if !part.ended {
                    part.lost.get_or_insert(halt);
                }
            }
            tpb.rearm();
            if tpb.halted.is_none() {
                tracing::warn!(tpb = tpb.id().get(), %halt, "a TPB was set up anew");
                self.rearms += 1;
                // What it has loaded is not known any more.
                self.posted = None;
            }
        }
    }

    /// Gives an execution that has ended on all its TPBs, or is lost there, its outcome.
    pub(super) fn settle(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        let ended = entry.state == State::Started && entry.parts.iter().all(Part::is_over);
        if !ended || entry.outcome.get().is_some() {
            return;
        }
        let tpbs = self.tpbs.iter().skip(entry.first).zip(&mut entry.parts).map(|(tpb, part)| TpbOutcome {
            tpb: tpb.id(),
            ordinal: part.ordinal,
            engines: part.engines,
            faults: std::mem::take(&mut part.faults),
            omitted_faults: part.omitted_faults,
        });
        let ticket = Ticket(self.tickets.head().0.wrapping_add(index as u64));
        // Checked above: this is the only one that sets it.
        let _ = entry.outcome.set(Outcome { ticket, tpbs: tpbs.collect() });
    }

    /// Lets go of the oldest executions, as far as they were retired, or have ended and the device is through with them. The pairs of a retired one are consumed
    /// together with those of the next that starts; until then they may still be taken back.
    pub(super) fn pop_ended(&mut self) {
        while let Some(entry) = self.entries.front() {
            let over = match entry.state {
                State::Retired => self.entries.iter().any(|later| later.state == State::Started),
                _ => entry.outcome.get().is_some() && entry.parts.iter().all(|part| part.ended),
            };
            if !over || self.tickets.retire(self.tickets.head()).is_err() {
                return;
            }
            self.entries.pop_front();
        }
    }

    /// What an execution that has not ended waits for.
    pub(super) fn pending(&mut self, ticket: Ticket) -> Result<Pending, DeviceError> {
        let first = self.tickets.head();
        let behind = self.index(ticket).filter(|&index| index > 0).map(|_| first);
        let stuck = self.entries.front().is_some_and(|first| first.given_up);
        let mut pending = Pending { behind, started: false, engine: None, overflow: false, stuck };
        let Some(entry) = self.index(ticket).map(|index| &self.entries[index]) else { return Ok(pending) };
        pending.started = entry.state == State::Started;
        for (tpb, part) in self.tpbs.iter_mut().skip(entry.first).zip(&entry.parts) {
            if let Some(ordinal) = part.ordinal {
                pending.overflow |= tpb.has_lost(ordinal)?;
            }
            for engine in Engine::ALL {
                let stream = &tpb.streams[engine.index()];
                let state =
                    part.ordinal.map_or(EngineState::StartPending, |ordinal| stream.state_of(ordinal));
                if state != EngineState::Complete && pending.engine.is_none() {
                    pending.engine = Some((tpb.id(), engine, state, stream.last()));
                }
            }
        }
        Ok(pending)
    }
}

/// Reads what the TPB at `place` says.
fn harvest_tpb<D: Device>(
    tpb: &mut Tpb<D::Mem>,
    device: &D,
    place: usize,
    entries: &mut VecDeque<Entry>,
) -> Result<(), Fault> {
    if tpb.is_in_doubt() {
        resolve(tpb, device, place, entries)?;
    }
    // Before the records: those of all executions counted here have been published.
    let done = tpb.observe_done()?;
    drain_status(tpb, place, entries)?;
    drain_errors(tpb, place, entries)?;
    end_finished(tpb, done, place, entries)?;
    if let Some(halt) = tpb.halted.filter(|_| tpb.has_lost_count()) {
        lose(halt, place, entries);
    }
    Ok(())
}

/// Tells the executions that run on the TPB at `place` that they are lost. The device may still be at work on them.
fn lose(halt: Halt, place: usize, entries: &mut VecDeque<Entry>) {
    let parts = entries.iter_mut().filter_map(|entry| entry.part_mut(place));
    for part in parts.filter(|part| part.is_running() && part.lost.is_none()) {
        part.lost = Some(halt);
        part.fail(ExecFault::Halted(halt));
    }
}

/// Finds out whether the execution runs on the TPB at `place` of which that was not known.
fn resolve<D: Device>(
    tpb: &mut Tpb<D::Mem>,
    device: &D,
    place: usize,
    entries: &mut VecDeque<Entry>,
) -> Result<(), Fault> {
    let ordinal = tpb.resolve(device)?;
    let started = entries.iter_mut().filter(|entry| entry.state == State::Started);
    let mut parts = started.filter_map(|entry| entry.part_mut(place));
    if let Some(part) = parts.find(|part| part.ordinal.is_none() && !part.ended) {
        part.ordinal = ordinal;
        part.ended = ordinal.is_none();
    }
    Ok(())
}

/// Records that one sweep takes from a queue: those of two executions.
const SWEEP: usize = 4;

/// Follows what the engines of the TPB at `place` say.
fn drain_status<M: CopyMemory>(
    tpb: &mut Tpb<M>,
    place: usize,
    entries: &mut VecDeque<Entry>,
) -> Result<(), Fault> {
    // A queue holds no more records of executions that are done, whatever the device adds meanwhile.
    for _ in 0..tpb.sizes().status_records {
        // All queues are read before the first record is looked at, so that the waits for their memory overlap.
        let mut swept = [[Notification::new_zeroed(); SWEEP]; Engine::COUNT];
        let mut counts = [0; Engine::COUNT];
        for ((queue, records), count) in tpb.status.iter_mut().zip(&mut swept).zip(&mut counts) {
            *count = received(queue.receive(records))?;
        }
        for ((engine, records), count) in Engine::ALL.into_iter().zip(&swept).zip(counts) {
            for record in &records[..count] {
                follow(tpb, engine, record, place, entries)?;
            }
        }
        if counts.iter().all(|&count| count < SWEEP) {
            break;
        }
    }
    Ok(())
}

/// Follows one record of an engine of the TPB at `place`.
fn follow<M: CopyMemory>(
    tpb: &mut Tpb<M>,
    engine: Engine,
    record: &Notification,
    place: usize,
    entries: &mut VecDeque<Entry>,
) -> Result<(), Fault> {
    let kicked = tpb.kicked();
    let stream = &mut tpb.streams[engine.index()];
    let before = *stream;
    let accepted = stream.accept(record, kicked);
    if let Some(ordinal) = accepted.disordered
        && let Some(part) = part_of(entries, place, ordinal)
    {
        part.fail(ExecFault::Disorder {
            engine,
            state: before.state_of(ordinal),
            got: Received::from(record),
            overflow: tpb.has_lost(ordinal)?,
        });
    }
    if let Some((ordinal, event)) = accepted.event
        && let Some(part) = part_of(entries, place, ordinal)
    {
        let times = &mut part.engines[engine.index()];
        match event {
            Event::Start => times.start_cycles = Some(record.time_cycles()),
            Event::End => times.end_cycles = Some(record.time_cycles()),
        }
    }
    Ok(())
}

/// Gives the errors of the TPB at `place` to the executions that ran at their times.
fn drain_errors<M: CopyMemory>(
    tpb: &mut Tpb<M>,
    place: usize,
    entries: &mut VecDeque<Entry>,
) -> Result<(), Fault> {
    for _ in 0..tpb.sizes().error_records {
        let mut record = [Notification::new_zeroed()];
        if received(tpb.errors.receive(&mut record))? == 0 {
            break;
        }
        let [record] = record;
        let fault = ExecFault::Device {
            class: record.error_class(),
            engine: record.tag(),
            queue: record.custom_id(),
            time_cycles: record.time_cycles(),
        };
        // All engines of an execution may have ended just before the device gave it up, and the next one begun.
        let is_given_up =
            record.error_class() == ErrorClass::GIVEN_UP && part_of(entries, place, tpb.given_up()).is_some();
        let part = match is_given_up {
            true => part_of(entries, place, tpb.given_up()),
            false => running_at(entries, place, record.time_cycles()),
        };
        match part {
            Some(part) => part.fail(fault),
            None => stray(tpb, &fault),
        }
        if record.is_stop() {
            halt(tpb, record.error_class(), place, entries);
        }
    }
    Ok(())
}

/// Tells of an error of no execution: of the first, the second, the fourth, and so on.
fn stray<M: CopyMemory>(tpb: &mut Tpb<M>, fault: &ExecFault) {
    tpb.strays += 1;
    if tpb.strays.is_power_of_two() {
        tracing::warn!(tpb = tpb.id().get(), so_far = tpb.strays, %fault, "an error of no execution");
    }
}

/// Ends every execution that was started on the TPB at `place`: its sequencer has stopped in the exec ring.
fn halt<M: CopyMemory>(tpb: &mut Tpb<M>, class: ErrorClass, place: usize, entries: &mut VecDeque<Entry>) {
    let halt = Halt::Sequencer { class };
    tpb.halted = Some(halt);
    for part in entries.iter_mut().filter_map(|entry| entry.part_mut(place)) {
        if part.is_running() {
            part.ended = true;
            part.lost = Some(halt);
            if part.faults.is_empty() {
                part.fail(ExecFault::Halted(halt));
            }
        }
    }
}

/// Ends the executions that the TPB at `place` has finished. An engine that has not said so by now never will.
fn end_finished<M: CopyMemory>(
    tpb: &mut Tpb<M>,
    done: u32,
    place: usize,
    entries: &mut VecDeque<Entry>,
) -> Result<(), Fault> {
    for part in entries.iter_mut().filter_map(|entry| entry.part_mut(place)) {
        let Some(ordinal) = part.ordinal.filter(|_| !part.ended) else { continue };
        // Executions in flight are few, so half the range tells before from after.
        let is_counted = done.wrapping_sub(ordinal) as i32 > 0;
        let has_ended = |stream: &Stream| stream.state_of(ordinal) == EngineState::Complete;
        let is_over = is_counted || tpb.has_lost_count() && tpb.streams.iter().all(has_ended);
        if !is_over {
            continue;
        }
        part.ended = true;
        if part.batch == Batch::Stop {
            for stream in &mut tpb.streams {
                stream.skip_past(ordinal);
            }
            continue;
        }
        let began = part.engines.iter().any(|times| times.start_cycles.is_some());
        if !began && tpb.control().stop.get() != 0 {
            for stream in &mut tpb.streams {
                stream.skip_past(ordinal);
            }
            part.fail(ExecFault::Closed);
            continue;
        }
        let failed = part.faults.iter().any(|fault| matches!(fault, ExecFault::Device { .. }));
        if failed {
            // What was lost with it is not to be laid at a later one's door.
            let _ = tpb.has_lost(ordinal)?;
        }
        for engine in Engine::ALL {
            let stream = &mut tpb.streams[engine.index()];
            let state = stream.state_of(ordinal);
            let times = &part.engines[engine.index()];
            if times.start_cycles.is_some() && times.end_cycles.is_some() {
                continue;
            }
            stream.skip_past(ordinal);
            // An execution that failed is cut short; its engines owe no end.
            if !failed {
                let overflow = tpb.has_lost(ordinal)?;
                part.fail(ExecFault::Missing { engine, state, overflow });
            }
        }
    }
    Ok(())
}

/// A corrupt counter ends the harvest of its queue; what is missing is found when the execution ends.
fn received(result: Result<usize, ReceiveError>) -> Result<usize, Fault> {
    match result {
        Ok(count) => Ok(count),
        Err(ReceiveError::Fault(fault)) => Err(fault),
        Err(error) => {
            tracing::debug!(%error, "notification queue not read");
            Ok(0)
        }
    }
}

/// The execution with this ordinal on the TPB at `place`.
fn part_of(entries: &mut VecDeque<Entry>, place: usize, ordinal: u32) -> Option<&mut Part> {
    let is_it = |part: &Part| part.ordinal == Some(ordinal) && !part.ended;
    // Mostly the oldest.
    let index = entries.iter().position(|entry| entry.part(place).is_some_and(is_it))?;
    entries[index].part_mut(place)
}

/// The execution that ran on the TPB at `place` at that time: the first that has not ended by then.
fn running_at(entries: &mut VecDeque<Entry>, place: usize, time_cycles: u64) -> Option<&mut Part> {
    let mut parts = entries.iter_mut().filter_map(|entry| entry.part_mut(place));
    parts.find(|part| {
        let ends = part.engines.iter().map(|times| times.end_cycles);
        let all_before = |end: Option<u64>| end.is_some_and(|end| end < time_cycles);
        part.ordinal.is_some() && !part.ended && !ends.clone().all(all_before)
    })
}
