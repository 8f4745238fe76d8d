//! What the handles of a unit have in common, and how it ends.
//!
//! ```text
//!   close ──► no staging ──► stop record behind what is queued ──► drained ──► TPBs let go of
//!                                                     └─ not in time: told to stop at once
//! ```
//!
//! The last handle that is dropped closes as well. What the device may still use then is not used again.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use sluice_core::exec::Ticket;
use sluice_core::mem::{Memory, Peer};
use sluice_core::mmio::{TpbId, TpbRegisters};

use super::collective::{self, Collectives};
use super::line::Line;
use super::model::Model;
use super::open::UnitOptions;
use super::phases::PhaseLog;
use super::registry::Registry;
use super::stage::DeviceError;
use crate::device::Device;
use crate::device::heap::Heap;
use crate::device::process::{Forked, Process};
use crate::patience::Patience;
use crate::sync::{Mutex, MutexGuard};

/// What the handles of a unit have in common.
pub(super) struct Shared<D: Device> {
    pub(super) process: Process,
    pub(super) device: Arc<D>,
    pub(super) heap: Heap,
    pub(super) at: Vec<(TpbId, TpbRegisters)>,
    /// Counts of finished executions, one per TPB, for whoever waits without the line.
    pub(super) done: Vec<Peer<<D::Mem as Memory>::Word>>,
    pub(super) options: UnitOptions,
    pub(super) batch_limit: u32,
    pub(super) collectives: Arc<dyn Collectives>,
    pub(super) models: Registry<Model>,
    /// No model is loaded and nothing is built from now on.
    pub(super) closed: AtomicBool,
    pub(super) line: Mutex<Line<D>>,
    pub(super) abandoned: Abandoned,
    pub(super) phases: PhaseLog,
    /// Of those who wait for an execution.
    pub(super) patience: Patience,
    /// Of those who wait for room, or for the end of everything.
    pub(super) room: Patience,
}

/// Staged executions whose owners are gone, until whoever locks the line next takes them out of it.
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    /// So that a look costs nothing as long as there are none.
    any: AtomicBool,
    tickets: std::sync::Mutex<Vec<Ticket>>,
}

impl Abandoned {
    fn push(&self, ticket: Ticket) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.push(ticket);
        self.any.store(true, Ordering::Relaxed);
    }

    fn pop(&self) -> Option<Ticket> {
        // One that another thread leaves meanwhile is left to a later look.
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = tickets.pop();
        self.any.store(!tickets.is_empty(), Ordering::Relaxed);
        ticket
    }
}

/// A sleeping waiter looks at memory this often even if the device announces nothing.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Where the device counts an execution once it has finished it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DoneMark {
    /// Place of its last TPB.
    pub(super) place: usize,
    /// That TPB's count then.
    pub(super) count: u32,
}

impl<D: Device> Shared<D> {
    /// Whether the device has counted the execution of `mark`. A harvest says how it ended.
    pub(super) fn has_counted(&self, mark: DoneMark) -> bool {
        let done = self.done.get(mark.place).and_then(|done| done.try_observe().ok());
        // Executions in flight are few, so half the range tells before from after.
        done.is_some_and(|done| done.wrapping_sub(mark.count) as i32 >= 0)
    }

    /// Makes sure that this is the process that opened the unit. Comes before every lock.
    pub(super) fn check_process(&self) -> Result<(), Forked> {
        self.process.check()
    }

    pub(super) fn line(&self) -> MutexGuard<'_, Line<D>> {
        collective::not_locked();
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(ticket) = self.abandoned.pop() {
            line.retire(&self.device, ticket);
        }
        line
    }

    /// Has a staged execution taken out of the line, whose owner is gone: at once, or, in a hook that is called while the
    /// line is locked, once it no longer is. Does not panic while the thread unwinds.
    pub(super) fn abandon(&self, ticket: Ticket) {
        self.abandoned.push(ticket);
        if collective::is_locked() {
            return;
        }
        let take_out = || drop(self.line());
        if !std::thread::panicking() {
            return take_out();
        }
        // A panic beside the one that is under way would end the process.
        if std::panic::catch_unwind(AssertUnwindSafe(take_out)).is_err() {
            tracing::error!(%ticket, "a hook panicked while a panic dropped a staged execution");
        }
    }

    /// The line, but not in a fork.
    pub(super) fn own_line(&self) -> Option<MutexGuard<'_, Line<D>>> {
        self.check_process().is_ok().then(|| self.line())
    }

    /// Harvests until `is_over`, or until `limit` has passed; returns whether it is.
    pub(super) fn drain(
        &self,
        limit: Duration,
        mut is_over: impl FnMut(&mut Line<D>) -> Result<bool, DeviceError>,
    ) -> Result<bool, DeviceError> {
        let over = self.attempt(&self.room, limit, || {
            let mut line = self.line();
            let harvested = line.harvest(&self.device);
            // What is over is so whether or not the device can be reached.
            if is_over(&mut line)? { Ok(Some(())) } else { harvested.map(|()| None) }
        });
        Ok(over?.is_some())
    }

    /// Repeats `attempt` as long as it has no result, whenever there may be news of the device, for at most `limit`.
    pub(super) fn attempt<T, E>(
        &self,
        patience: &Patience,
        limit: Duration,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        let (started, mut looks) = (Instant::now(), patience.begin());
        loop {
            // Before memory is looked at, so that progress made meanwhile ends the sleep below at once.
            let seen = self.device.progress();
            let result = attempt()?;
            let left = limit.saturating_sub(started.elapsed());
            if result.is_some() || left.is_zero() {
                patience.learn(looks);
                return Ok(result);
            }
            while looks.another() && self.device.progress() == seen {}
            if looks.are_over() {
                self.device.wait_progress(seen, left.min(LONGEST_SLEEP));
            }
        }
    }

    /// Ends the line. A stop record goes behind what is in flight; an idle device, and one that has not come to the record
    /// within `limit`, is told to start nothing more at once. Returns whether nothing is in line any more; the TPBs are let go
    /// of then.
    pub(super) fn close(&self, limit: Duration) -> Result<bool, DeviceError> {
        self.check_process()?;
        self.closed.store(true, Ordering::Relaxed);
        self.line().close();
        let over = self.drain(limit, |line| {
            if !line.is_empty() {
                line.queue_stop(&self.device)?;
            }
            Ok(line.is_empty())
        });
        let mut line = self.line();
        line.stop(&self.device)?;
        if matches!(over, Ok(true)) {
            line.end();
        }
        over
    }
}

impl<D: Device> Drop for Shared<D> {
    fn drop(&mut self) {
        /// How long the device gets for executions that nobody waits for any more.
        const LIMIT: Duration = Duration::from_secs(1);
        if self.check_process().is_err() {
            // Everything behind it is the other process's to end.
            std::mem::forget(Arc::clone(&self.device));
            self.models.forget();
            if let Ok(line) = self.line.get_mut() {
                line.forget();
            }
            return;
        }
        let over = collective::of_no_other(|| self.close(LIMIT));
        if !matches!(over, Ok(true)) {
            tracing::warn!(
                ?over,
                "a unit ends while its device may be running; its memory is not used again"
            );
            self.line.get_mut().unwrap_or_else(PoisonError::into_inner).abandon();
        }
    }
}
