//! Bounded waits at a gate, for callers that wait for nothing else at the same time. The buffer switch does not use
//! them: it looks at its queue in the same loop.

use super::{Gate, Gates};
use crate::mem::{Clock, Deadline, Memory, Relax};

/// What a waiting lane needs from its surroundings.
pub trait WaitEnv: Clock + Relax {
    /// Called after every fruitless look, so that a no-progress watchdog does not take a parked lane for a dead one.
    fn note_parked(&mut self, gate: Gate);
}

/// The deadline passed, or the host detached, before the gate opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Expired {
    /// The gate that stayed shut.
    pub gate: Gate,
}

impl core::fmt::Display for Expired {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "gate {} not released before the deadline", self.gate.name())
    }
}

impl core::error::Error for Expired {}

impl<M: Memory> Gates<M> {
    /// Stands at the push gate while it is shut. Blocks up to `deadline`.
    ///
    /// # Errors
    /// [`Expired`] when the deadline passed or the host detached.
    pub fn push_freeze_barrier(
        &self,
        deadline: &mut Deadline,
        env: &mut impl WaitEnv,
    ) -> Result<(), Expired> {
        self.freeze_barrier(Gate::Ready, deadline, env)
    }

    /// Stands at the pop gate while it is shut. Blocks up to `deadline`.
    ///
    /// # Errors
    /// [`Expired`] when the deadline passed or the host detached.
    pub fn pop_freeze_barrier(&self, deadline: &mut Deadline, env: &mut impl WaitEnv) -> Result<(), Expired> {
        self.freeze_barrier(Gate::Free, deadline, env)
    }

    fn freeze_barrier(
        &self,
        gate: Gate,
        deadline: &mut Deadline,
        env: &mut impl WaitEnv,
    ) -> Result<(), Expired> {
        match self.arrive(gate) {
            None => Ok(()),
            Some(parked) => self.wait(gate, deadline, env, |gates| gates.may_leave(gate, parked)),
        }
    }

    /// Waits until the host has taken a signal raised at `gate` *and* any freeze that followed has ended, or until a release
    /// happened. Blocks up to `deadline`. The host shuts the gate before it takes the signal, so the two never read
    /// "taken" and "open" in between.
    ///
    /// # Errors
    /// [`Expired`] when the deadline passed or the host detached.
    pub fn wait_for_release(
        &self,
        gate: Gate,
        deadline: &mut Deadline,
        env: &mut impl WaitEnv,
    ) -> Result<(), Expired> {
        let entered = self.epoch();
        self.wait(gate, deadline, env, |gates| {
            (!gates.is_contended(gate) && !gates.is_shut(gate)) || gates.epoch() != entered
        })
    }

    fn wait(
        &self,
        gate: Gate,
        deadline: &mut Deadline,
        env: &mut impl WaitEnv,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), Expired> {
        let mut round = 0;
        while !done(self) {
            if self.is_detached() || deadline.expired(&*env) {
                return Err(Expired { gate });
            }
            env.note_parked(gate);
            env.relax(round);
            round = round.saturating_add(1);
        }
        Ok(())
    }
}
