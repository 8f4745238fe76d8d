//! One execution in the hands of its owner: staged, running, ended.
//!
//! ```text
//!   Unit::stage ──► Staged ──kickoff──► Running ──wait──► Outcome
//!                     └ drop: retired      └ drop: goes on, nobody waits
//! ```
//!
//! Each state is a type of its own, so an execution can't be waited for before it is kicked off, or kicked off twice.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sluice_core::exec::{NrtStatus, Ticket};
use sluice_core::mmio::{Engine, TpbId};

use super::harvest::Pending;
use super::line::OutcomeCell;
use super::outcome::{ExecFault, Outcome};
use super::phases::Phase;
use super::shared::{DoneMark, LONGEST_SLEEP, Shared};
use super::stage::DeviceError;
use super::stream::{EngineState, Received};
use crate::device::Device;

/// An execution in the exec rings that is not kicked off. Dropping it takes it out again.
#[must_use = "dropping a staged execution retires it"]
pub struct Staged<D: Device> {
    ticket: Ticket,
    timeout: Duration,
    outcome: OutcomeCell,
    /// `None` once it is kicked off.
    unit: Option<Arc<Shared<D>>>,
}

/// An execution that is kicked off. It goes on when this is dropped; whoever harvests next retires its ticket.
pub struct Running<D: Device> {
    ticket: Ticket,
    timeout: Duration,
    outcome: OutcomeCell,
    /// The device's progress before it was kicked off.
    seen: u32,
    /// Where the device counts it, if it started then.
    mark: Option<DoneMark>,
    unit: Arc<Shared<D>>,
}

/// An execution that was not started on all its TPBs. Where it was started, or may have been, it runs to its end, and nobody
/// waits for it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("execution {ticket}, TPB {tpb}: {fault}")]
pub struct KickoffError {
    /// The execution.
    pub ticket: Ticket,
    /// The first TPB that could not be started.
    pub tpb: TpbId,
    /// Why.
    pub fault: ExecFault,
}

impl KickoffError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        self.fault.status()
    }
}

/// An execution that did not end well, or not in time.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WaitError {
    /// It ended, with a status other than success.
    #[error("{0}")]
    Execution(Box<Outcome>),
    /// It did not end within its model's timeout. The device is told to cut it short; its ticket is retired by whoever harvests
    /// next.
    #[error("{0}")]
    Timeout(Box<Timeout>),
    /// The device does not run any more.
    #[error("execution {ticket} not done, the device stopped: {fate}")]
    Stopped {
        /// The execution.
        ticket: Ticket,
        /// What became of the device.
        fate: String,
    },
    /// The device can't be followed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl WaitError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Execution(outcome) => outcome.status(),
            Self::Timeout(timeout) if timeout.overflow => NrtStatus::EXEC_SW_NQ_OVERFLOW,
            Self::Timeout(_) => NrtStatus::TIMEOUT,
            Self::Stopped { .. } => NrtStatus::FAILURE,
            Self::Device(error) => error.status(),
        }
    }
}

/// What an execution was waiting for when its time was over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeout {
    /// The execution.
    pub ticket: Ticket,
    /// The limit that has passed.
    pub after: Duration,
    /// An earlier execution that has not ended.
    pub behind: Option<Ticket>,
    /// Whether its doorbells were rung.
    pub started: bool,
    /// The first engine that has not completed: where it is, what it had said, and its last record.
    pub engine: Option<(TpbId, Engine, EngineState, Option<Received>)>,
    /// A notification queue has run over.
    pub overflow: bool,
    /// The device was told to cut short what this waited for, and has not done so yet.
    pub stuck: bool,
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "execution {} not done after {} us timeout", self.ticket, self.after.as_micros())?;
        if let Some((tpb, engine, state, last)) = &self.engine {
            write!(f, ": TPB {tpb}, engine {engine} in {state}, last notification ")?;
            match last {
                Some(last) => write!(f, "{last}")?,
                None => f.write_str("none")?,
            }
        }
        if !self.started {
            f.write_str("; not started")?;
        }
        if let Some(behind) = self.behind {
            write!(f, "; waits behind execution {behind}")?;
        }
        if self.stuck {
            f.write_str(
                "; the device was told to cut it short; if later executions time out too, reset the device",
            )?;
        }
        if self.overflow {
            f.write_str("; a notification queue ran over")?;
        }
        Ok(())
    }
}

impl<D: Device> fmt::Debug for Staged<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl<D: Device> fmt::Debug for Running<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl<D: Device> Staged<D> {
    pub(super) fn new(ticket: Ticket, timeout: Duration, outcome: OutcomeCell, unit: Arc<Shared<D>>) -> Self {
        Self { ticket, timeout, outcome, unit: Some(unit) }
    }

    /// Its place in the order of the unit's executions.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Rings the doorbells, or, while an earlier execution is staged and not kicked off, leaves that to its kickoff.
    ///
    /// # Errors
    /// A device that can't be reached, or a TPB that has stopped.
    pub fn kickoff(mut self) -> Result<Running<D>, KickoffError> {
        let kicked_off = self.unit.as_deref().map(|unit| self.kick_off(unit)).transpose()?;
        // From here on a drop has nothing to take out.
        let (Some((seen, mark)), Some(unit)) = (kicked_off, self.unit.take()) else {
            unreachable!("kicked off twice")
        };
        let (ticket, outcome) = (self.ticket, Arc::clone(&self.outcome));
        let running = Running { ticket, timeout: self.timeout, outcome, seen, mark, unit };
        match running.not_started() {
            Some(error) => Err(error),
            None => Ok(running),
        }
    }

    /// Lets it start, and returns the device's progress before that and where its end is counted. When this fails or panics, a drop takes out what has not
    /// been kicked off by then.
    fn kick_off(&self, unit: &Shared<D>) -> Result<(u32, Option<DoneMark>), KickoffError> {
        let failed = |(tpb, fault)| KickoffError { ticket: self.ticket, tpb, fault };
        unit.check_process().map_err(|forked| failed((TpbId::FIRST, ExecFault::Forked(forked))))?;
        let span = unit.phases.start(&*unit.device, Phase::Kickoff);
        let seen = unit.device.progress();
        let kicked_off = unit.line().kick_off(&unit.device, self.ticket);
        span.end(Some(self.ticket.0));
        Ok((seen, kicked_off.map_err(failed)?))
    }
}

impl<D: Device> Drop for Staged<D> {
    fn drop(&mut self) {
        if let Some(unit) = self.unit.take().filter(|unit| unit.check_process().is_ok()) {
            unit.abandon(self.ticket);
        }
    }
}

impl<D: Device> Running<D> {
    /// Its place in the order of the unit's executions.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Blocks until it has ended, but not longer than its model's timeout after all earlier executions have ended, nor
    /// longer than that for these.
    ///
    /// # Errors
    /// A status other than success, the timeout, or a device that has stopped or can't be followed. To go on after that, use
    /// [`wait_for`](Self::wait_for).
    pub fn wait(self) -> Result<Outcome, WaitError> {
        self.unit.check_process().map_err(DeviceError::from)?;
        let span = self.unit.phases.start(&*self.unit.device, Phase::Wait);
        let result = self.wait_until_ended();
        span.end(Some(self.ticket.0));
        result?;
        // The line has let go of it by now, mostly.
        match Arc::try_unwrap(self.outcome).map(OnceLock::into_inner) {
            Ok(Some(outcome)) => judged(outcome),
            Ok(None) => unreachable!("ended without an outcome"),
            Err(shared) => judged(shared.wait().clone()),
        }
    }

    /// Blocks until it has ended, at most for `limit`; `None` if it has not by then. Its model's timeout has no part in this:
    /// whoever calls decides how long it is worth. It can be waited for again, also when the device could not be reached.
    ///
    /// # Errors
    /// A status other than success, or a device that can't be followed.
    pub fn wait_for(&self, limit: Duration) -> Result<Option<Outcome>, WaitError> {
        self.unit.check_process().map_err(DeviceError::from)?;
        let span = self.unit.phases.start(&*self.unit.device, Phase::Wait);
        let outcome = self.unit.attempt(&self.unit.patience, limit, || {
            let harvested = self.unit.line().harvest(&self.unit.device);
            match self.outcome.get() {
                Some(outcome) => Ok(Some(outcome.clone())),
                None => harvested.map(|()| None),
            }
        });
        let Some(outcome) = outcome? else { return Ok(None) };
        span.end(Some(self.ticket.0));
        judged(outcome).map(Some)
    }

    /// Where the device counts it, if it had started when it was kicked off.
    #[cfg(test)]
    pub(super) fn mark(&self) -> Option<DoneMark> {
        self.mark
    }

    /// Its outcome, if it has ended. Does not block.
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for).
    pub fn try_wait(&self) -> Result<Option<Outcome>, WaitError> {
        self.wait_for(Duration::ZERO)
    }

    /// There is an outcome when this returns.
    fn wait_until_ended(&self) -> Result<(), WaitError> {
        let device = &*self.unit.device;
        let mut looks = self.unit.patience.begin();
        let (mut seen, mut since, mut behind) = (self.seen, None, true);
        loop {
            // A harvest reads what the device is writing; until there is news two words are enough to look at. The device
            // counts an execution before it says that there is news.
            let is_counted = || self.mark.is_some_and(|mark| self.unit.has_counted(mark));
            while looks.another() && !is_counted() && device.progress() == seen {}
            // Before memory is looked at, so that progress made meanwhile ends the sleep below at once.
            seen = device.progress();
            let pending = {
                let mut line = self.unit.line();
                let harvested = line.harvest(device);
                if self.outcome.get().is_some() {
                    self.unit.patience.learn(looks);
                    return Ok(());
                }
                harvested?;
                if !looks.are_over() {
                    continue;
                }
                line.pending(self.ticket)?
            };
            if behind && pending.behind.is_none() {
                // From here on it is this execution's own time.
                (behind, since) = (false, None);
            }
            let left = self.timeout.saturating_sub(since.get_or_insert_with(Instant::now).elapsed());
            if left.is_zero() {
                return Err(WaitError::Timeout(Box::new(self.timed_out(pending))));
            }
            if device.wait_progress(seen, left.min(LONGEST_SLEEP)) == seen
                && let Some(fate) = device.fate()
            {
                return Err(WaitError::Stopped { ticket: self.ticket, fate });
            }
        }
    }

    fn timed_out(&self, pending: Pending) -> Timeout {
        let Pending { behind, started, engine, overflow, stuck } = pending;
        Timeout { ticket: self.ticket, after: self.timeout, behind, started, engine, overflow, stuck }
    }

    fn not_started(&self) -> Option<KickoffError> {
        let ticket = self.ticket;
        // One that has stopped keeps an execution from others too; the fault lies with the one that has.
        let mut not_started = self.outcome.get()?.tpbs.iter().filter(|tpb| tpb.ordinal.is_none());
        not_started.find_map(|tpb| Some(KickoffError { ticket, tpb: tpb.tpb, fault: *tpb.faults.first()? }))
    }
}

fn judged(outcome: Outcome) -> Result<Outcome, WaitError> {
    match outcome.status() {
        NrtStatus::SUCCESS => Ok(outcome),
        _ => Err(WaitError::Execution(Box::new(outcome))),
    }
}
