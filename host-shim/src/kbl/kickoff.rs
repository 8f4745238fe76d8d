//! Kickoff: doorbells are rung in ticket order.
//!
//! The device consumes exec rings in order and counts doorbells, so an execution that is kicked off waits, Ready, for
//! earlier ones that are staged. Its request record is written when it starts.

use sluice_core::exec::{ExecRequest, RequestFlags, Ticket};
use sluice_core::mmio::TpbId;

use super::batch;
use super::line::{Job, Line, Part, State};
use super::outcome::ExecFault;
use super::registry::ModelHandle;
use super::shared::DoneMark;
use super::stage::withdraw_proxy;
use super::tpb::{NotRung, Tpb};
use crate::device::Device;
use crate::neff::Tables;

/// The last request that was handed to the device.
#[derive(Debug)]
pub(super) struct Posted {
    model: ModelHandle,
    /// Place of its first TPB.
    first: usize,
    /// One per TPB.
    tables: Vec<Tables>,
    flags: RequestFlags,
}

impl Posted {
    /// Whether it went to all of `count` TPBs from the one at place `first` on. What others ran last is not known.
    fn reached(&self, first: usize, count: usize) -> bool {
        self.first <= first && first + count <= self.first + self.tables.len()
    }
}

impl Part {
    fn start<D: Device>(&mut self, tpb: &mut Tpb<D::Mem>, device: &D) -> Result<(), NotRung> {
        self.ordinal = Some(tpb.kick(device, &self.after)?);
        Ok(())
    }
}

impl<D: Device> Line<D> {
    /// Lets a staged execution start as soon as those before it have. Returns where the device counts it, if it has started.
    ///
    /// # Errors
    /// The first TPB on which it was not started and why, if it runs on others.
    pub(super) fn kick_off(
        &mut self,
        device: &D,
        ticket: Ticket,
    ) -> Result<Option<DoneMark>, (TpbId, ExecFault)> {
        let kicked_off = self.change(|line| {
            if let Some(entry) = line.entry(ticket) {
                entry.state = State::Ready;
            }
            line.start_ready(device);
        });
        kicked_off.map_err(|half_done| (TpbId::FIRST, ExecFault::HalfDone(half_done)))?;
        let Some(index) = self.index(ticket) else { return Ok(None) };
        let entry = &self.entries[index];
        let parts = self.tpbs.iter().skip(entry.first).zip(&entry.parts);
        for (tpb, part) in parts.filter(|(_, part)| part.ordinal.is_none()) {
            if let Some(fault) = part.faults.first() {
                return Err((tpb.id(), *fault));
            }
        }
        Ok(entry.done_mark())
    }

    /// Starts every execution that is Ready and has nothing before it that is still Staged.
    pub(super) fn start_ready(&mut self, device: &D) {
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
    pub(super) fn start(&mut self, device: &D, index: usize) {
        let ticket = Ticket(self.tickets.head().0.wrapping_add(index as u64));
        let entry = &mut self.entries[index];
        entry.state = State::Started;
        // A stop record is not refused.
        let closed = (self.stopped && entry.job.is_some()).then_some(ExecFault::Closed);
        let mut refused = false;
        for (tpb, part) in self.tpbs.iter().skip(entry.first).zip(&mut entry.parts) {
            let fault = closed.or(part.lost.or(tpb.halted).map(ExecFault::Halted));
            part.faults.extend(fault);
            refused |= fault.is_some();
        }
        if refused {
            return self.give_up(device, index, 0);
        }
        if let Err(fault) = self.write_requests(device, ticket, index) {
            return self.not_started(device, index, 0, fault);
        }
        let entry = &mut self.entries[index];
        let parts = self.tpbs.iter_mut().skip(entry.first).zip(&mut entry.parts);
        for (number, (tpb, part)) in parts.enumerate() {
            if let Err(NotRung { fault, is_certain }) = part.start(tpb, device) {
                let fault = ExecFault::NotStarted { fault };
                if is_certain {
                    return self.not_started(device, index, number, fault);
                }
                // On this one it may run; the next harvest that reaches the device finds out.
                part.fail(fault);
                return self.not_started(device, index, number + 1, fault);
            }
        }
    }

    /// Ends an execution on its TPBs from number `first` on, where it was not started because of `fault`.
    fn not_started(&mut self, device: &D, index: usize, first: usize, fault: ExecFault) {
        // Which model a TPB ran last is not known any more: the next request reloads everything.
        self.posted = None;
        for part in &mut self.entries[index].parts[first..] {
            part.fail(fault);
        }
        self.give_up(device, index, first);
    }

    /// Ends an execution on its TPBs from number `first` on, where it was not started.
    fn give_up(&mut self, device: &D, index: usize, first: usize) {
        self.withdraw(device, index, first);
        self.settle(index);
        // The proxy tasks go with the first TPB. Last, for the hook is the runtime's.
        if first == 0 {
            self.call(|line| {
                let ticket = Ticket(line.tickets.head().0.wrapping_add(index as u64));
                if let Some(job) = &line.entries[index].job {
                    withdraw_proxy(&job.model, ticket);
                }
            });
        }
    }

    fn write_requests(&mut self, device: &D, ticket: Ticket, index: usize) -> Result<(), ExecFault> {
        let Some(Job { handle, model, increment, .. }) = &self.entries[index].job else { return Ok(()) };
        let (first, images) = (model.first_place(), model.images());
        let tables = || images.iter().map(|(_, image)| image.tables().clone()).collect::<Vec<_>>();
        let flags = match self.posted.as_ref().filter(|posted| posted.reached(first, images.len())) {
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
        for (tpb, (_, image)) in self.tpbs.iter().skip(first).zip(images) {
            let request = ExecRequest::new(image.entries(), flags);
            let written = device.write(tpb.slot(ticket), &batch::slot_bytes(&request, *increment, ticket.0));
            written.map_err(|fault| ExecFault::NoRequest { fault })?;
        }
        match &mut self.posted {
            Some(posted) if posted.model == *handle => posted.flags = flags,
            posted => *posted = Some(Posted { model: *handle, first, tables: tables(), flags }),
        }
        Ok(())
    }
}
