//! What the threads of a soak did.

use std::collections::HashSet;
use std::fmt;
use std::ops::AddAssign;

use anyhow::ensure;
use sluice_core::exec::Ticket;

/// Counts of one thread, or of all.
#[derive(Default, Debug)]
pub struct Totals {
    /// Executions that ended well in front of their waiters.
    pub executions: u64,
    /// Bytes of tensors compared.
    pub bytes_compared: u64,
    /// Models loaded.
    pub loads: u64,
    /// Models removed.
    pub unloads: u64,
    /// Removals that gave up because the model was in use.
    pub busy: u64,
    /// Calls for a model that had been removed meanwhile.
    pub refused: u64,
    /// Changes of what is bound.
    pub rebinds: u64,
    /// Builds that were found.
    pub hits: u64,
    /// Builds that were made.
    pub misses: u64,
    /// Executions that found no room.
    pub queue_full: u64,
    /// Waiters that were dropped.
    pub waiters_dropped: u64,
    /// Waits that ended by their model's time.
    pub timeouts: u64,
    /// Executions that ended because the device cut them short.
    pub cut_short: u64,
    pub(super) kicked_off: Vec<Ticket>,
    pub(super) staged_dropped: Vec<Ticket>,
}

impl Totals {
    /// Checks that `tickets` tickets were all given to somebody, and none twice.
    pub(super) fn check_tickets(&self, tickets: u64) -> anyhow::Result<()> {
        let run: HashSet<Ticket> = self.kicked_off.iter().copied().collect();
        ensure!(run.len() == self.kicked_off.len(), "a ticket was kicked off twice");
        // One that is dropped with none behind it is given again.
        let dropped: HashSet<Ticket> = self.staged_dropped.iter().copied().collect();
        let lost = (0..tickets).map(Ticket).find(|ticket| !run.contains(ticket) && !dropped.contains(ticket));
        ensure!(lost.is_none(), "ticket {lost:?} of {tickets} was given to nobody");
        let beyond = run.iter().find(|ticket| ticket.0 >= tickets);
        ensure!(beyond.is_none(), "ticket {beyond:?} was kicked off, {tickets} were given");
        Ok(())
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, mut other: Self) {
        self.executions += other.executions;
        self.bytes_compared += other.bytes_compared;
        self.loads += other.loads;
        self.unloads += other.unloads;
        self.busy += other.busy;
        self.refused += other.refused;
        self.rebinds += other.rebinds;
        self.hits += other.hits;
        self.misses += other.misses;
        self.queue_full += other.queue_full;
        self.waiters_dropped += other.waiters_dropped;
        self.timeouts += other.timeouts;
        self.cut_short += other.cut_short;
        self.kicked_off.append(&mut other.kicked_off);
        self.staged_dropped.append(&mut other.staged_dropped);
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kicked_off = self.kicked_off.len();
        writeln!(f, "executions kicked off {kicked_off}, compared {}", self.executions)?;
        writeln!(f, "staged and dropped {}, QUEUE_FULL {}", self.staged_dropped.len(), self.queue_full)?;
        let Self { waiters_dropped, timeouts, cut_short, .. } = self;
        writeln!(f, "waiters dropped {waiters_dropped}, timeouts {timeouts}, ended cut short {cut_short}")?;
        writeln!(f, "re-binds {}, hits {}, misses {}", self.rebinds, self.hits, self.misses)?;
        let Self { loads, unloads, busy, refused, .. } = self;
        writeln!(f, "loads {loads}, removals {unloads}, in use {busy}, gone {refused}")?;
        write!(f, "{} bytes compared, none wrong", self.bytes_compared)
    }
}
