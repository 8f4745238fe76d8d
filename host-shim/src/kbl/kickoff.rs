//! Kickoff: doorbells are rung in ticket order.
//!
//! The device consumes exec rings in order and counts doorbells, so an execution that is kicked off waits, Ready, for
//! earlier ones that are staged. Its request record is written when it starts.

use sluice_core::exec::{ExecRequest, RequestFlags, Ticket};

use super::batch;
use super::line::{Job, Line, Part, State};
use super::outcome::ExecFault;
use super::registry::ModelHandle;
use super::stage::withdraw_proxy;
use super::tpb::Tpb;
use crate::device::Device;
use crate::neff::Tables;

/// The last request that was handed to the device.
#[derive(Debug)]
pub(super) struct Posted {
    model: ModelHandle,
    tables: Vec<Tables>,
    flags: RequestFlags,
}

impl Part {
    fn start<D: Device>(&mut self, tpb: &mut Tpb<D::Mem>, device: &D) -> Result<(), ExecFault> {
        let ordinal = tpb.kick(device, &self.after);
        self.ordinal = Some(ordinal.map_err(|fault| ExecFault::NotStarted { fault })?);
        Ok(())
    }
}

impl<D: Device> Line<D> {
    /// Lets a staged execution start as soon as those before it have.
    pub(super) fn kick_off(&mut self, device: &D, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            entry.state = State::Ready;
        }
        self.start_ready(device);
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
        self.withdraw(device, index, first);
        self.settle(index);
        // The proxy tasks go with the first TPB. Last, for the hook is the runtime's.
        if let Some(job) = self.entries[index].job.as_ref().filter(|_| first == 0) {
            let ticket = Ticket(self.tickets.head().0.wrapping_add(index as u64));
            withdraw_proxy(&job.model, ticket);
        }
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
}
