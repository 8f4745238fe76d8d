//! An execution unit: the TPBs of a device that are driven as one, and everything that runs on them.
//!
//! ```text
//!   Unit ─┬─ registry   models by handle
//!         ├─ line       executions in ticket order, exec rings, notification queues      one lock
//!         └─ phases     what the host did and when
//! ```
//!
//! Building needs no lock of the unit; staging, kickoff and harvest are short and take the line's.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_core::exec::NrtStatus;

use super::build::{self, Bound, BuildError, Built, PatchedSlot};
use super::collective::CollectiveError;
use super::error::LoadError;
use super::execution::Staged;
use super::model::{LoadOptions, Model};
use super::phases::{Phase, PhaseLog};
use super::registry::{Held, Holder, ModelHandle, RegistryError};
use super::set::TensorSet;
use super::shared::Shared;
use super::stage::{DeviceError, StageError};
use crate::device::Device;
use crate::device::heap::Heap;
use crate::neff::Neff;

/// A model that was not removed, or a unit that was not closed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnloadError {
    /// No such model, or still in use.
    #[error(transparent)]
    Model(#[from] RegistryError),
    /// The model is removed, and left collectives in disorder.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Executions that have not ended.
    #[error("{in_flight} executions not ended after {waited_ms} ms")]
    InFlight {
        /// How many.
        in_flight: usize,
        /// How long the close waited.
        waited_ms: u64,
    },
    /// Nothing is in flight, but the device has not come to the stop record.
    #[error("the device has not stopped after {waited_ms} ms")]
    NotStopped {
        /// How long the close waited.
        waited_ms: u64,
    },
    /// The device can't be followed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl UnloadError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Model(error) => error.status(),
            Self::Collective(error) => error.status,
            Self::InFlight { .. } | Self::NotStopped { .. } => NrtStatus::TIMEOUT,
            Self::Device(error) => error.status(),
        }
    }
}

/// All TPBs of a device, driven as one. Cheap to clone; clones are the same unit.
pub struct Unit<D: Device> {
    pub(super) shared: Arc<Shared<D>>,
}

impl<D: Device> Clone for Unit<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<D: Device> fmt::Debug for Unit<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unit").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl<D: Device> Unit<D> {
    /// The device.
    pub fn device(&self) -> &Arc<D> {
        &self.shared.device
    }

    /// The device's memory.
    pub fn heap(&self) -> &Heap {
        &self.shared.heap
    }

    /// What the host did so far.
    pub fn phases(&self) -> &PhaseLog {
        &self.shared.phases
    }

    /// Loads a model, each subgraph onto a TPB of its own.
    ///
    /// # Errors
    /// See [`LoadError`]; nothing stays on the device then.
    pub fn load(&self, neff: &Neff, options: &LoadOptions) -> Result<ModelHandle, LoadError> {
        if options.timeout.is_zero() {
            return Err(LoadError::NoTime);
        }
        self.load_with_any_timeout(neff, options)
    }

    /// The same for executions that may be late at once.
    pub(super) fn load_with_any_timeout(
        &self,
        neff: &Neff,
        options: &LoadOptions,
    ) -> Result<ModelHandle, LoadError> {
        let Shared { device, heap, at, phases, collectives, .. } = &*self.shared;
        let span = phases.start(&**device, Phase::Load);
        self.shared.check_process()?;
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(LoadError::Closed);
        }
        let model = Model::load(neff, at, &**device, heap, &**collectives, options)?;
        let pairs = model.batch_pairs();
        if pairs > self.shared.batch_limit {
            return Err(LoadError::BatchTooLarge { pairs, limit: self.shared.batch_limit });
        }
        let handle = self.shared.models.add(model)?;
        span.end(None);
        Ok(handle)
    }

    /// The models that are loaded, oldest handle first.
    ///
    /// # Errors
    /// A unit of the process that this one is a fork of.
    pub fn models(&self) -> Result<Vec<ModelHandle>, RegistryError> {
        self.shared.models.handles()
    }

    /// A look at a loaded model. It stays loaded while the result lives.
    ///
    /// # Errors
    /// No such model.
    pub fn model(&self, handle: ModelHandle) -> Result<Held<Model>, RegistryError> {
        self.shared.models.acquire(handle, Holder::Query)
    }

    /// Joins a model with the caller's tensors. Costs a look at two keys if both sets are as at an earlier build.
    ///
    /// # Errors
    /// No such model, tensors that are missing or too small, or no memory; nothing stays on the device then.
    pub fn build(
        &self,
        model: ModelHandle,
        inputs: &TensorSet,
        outputs: &TensorSet,
    ) -> Result<Built, BuildError> {
        let Shared { device, heap, phases, models, .. } = &*self.shared;
        self.shared.check_process()?;
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(BuildError::Closed);
        }
        let span = phases.start(&**device, Phase::Build);
        let built = Built::new(models, model, (inputs, outputs), &**device, heap)?;
        span.end(None);
        Ok(built)
    }

    /// What is bound to each name: inputs, then outputs.
    ///
    /// # Errors
    /// The model is gone.
    pub fn bound(&self, built: &Built) -> Result<Vec<Bound>, RegistryError> {
        let model = self.shared.models.acquire(built.model, Holder::Query)?;
        Ok(build::bound(&model, &built.data))
    }

    /// Every pointer cell, pointer-table row and queue base register that executions of `built` write, with its value: what
    /// a check of the device's memory compares with.
    ///
    /// # Errors
    /// The model is gone.
    pub fn patched_slots(&self, built: &Built) -> Result<Vec<PatchedSlot>, BuildError> {
        let model = self.shared.models.acquire(built.model, Holder::Query)?;
        build::patched_slots(&model, &built.data).map_err(BuildError::Swaps)
    }

    /// Puts an execution into the exec rings of all its TPBs, or of none.
    ///
    /// # Errors
    /// No room now (status QUEUE_FULL), the model is gone, or a device that can't be reached. Nothing is staged then.
    pub fn stage(&self, built: &Built) -> Result<Staged<D>, StageError> {
        let Shared { device, phases, models, .. } = &*self.shared;
        self.shared.check_process().map_err(DeviceError::from)?;
        let span = phases.start(&**device, Phase::Stage);
        let model = models.acquire(built.model, Holder::Execution)?;
        let timeout = model.timeout();
        if let Some(collective) = &model.collective {
            // Nothing is made ready for an execution that is refused anyway.
            if self.shared.line().closed {
                return Err(StageError::Closed);
            }
            collective.prepare()?;
        }
        let (ticket, outcome) = self.shared.line().stage(device, model, built)?;
        // Owned before anything can panic.
        let staged = Staged::new(ticket, timeout, outcome, Arc::clone(&self.shared));
        span.end(Some(ticket.0));
        Ok(staged)
    }

    /// As [`stage`](Self::stage), but blocks while there is no room, at most for `limit`.
    ///
    /// # Errors
    /// As [`stage`](Self::stage), but for no room: that is a timeout, and says what was full.
    pub fn stage_within(&self, built: &Built, limit: Duration) -> Result<Staged<D>, StageError> {
        let staged = self.shared.attempt(&self.shared.room, limit, || match self.stage(built) {
            Err(error) if error.is_full() => Ok(None),
            staged => staged.map(Some),
        })?;
        let waited_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        match staged {
            Some(staged) => Ok(staged),
            None => self.stage(built).map_err(|error| match error.is_full() {
                true => StageError::NoRoom { waited_ms, full: Box::new(error) },
                false => error,
            }),
        }
    }

    /// Does something while it holds the line.
    #[cfg(test)]
    pub(super) fn with_line_locked<T>(&self, run: impl FnOnce() -> T) -> T {
        let _line = self.shared.line();
        run()
    }

    /// Tickets issued so far: one per execution that was staged. A fork has none.
    pub fn tickets(&self) -> u64 {
        self.shared.own_line().map_or(0, |line| line.tickets())
    }

    /// Executions staged or running. A fork has none.
    pub fn in_flight(&self) -> usize {
        self.shared.own_line().map_or(0, |line| line.in_flight())
    }

    /// Harvests executions that nobody waits for. Does not block.
    ///
    /// # Errors
    /// A device that can't be followed.
    pub fn harvest(&self) -> Result<(), DeviceError> {
        self.shared.check_process()?;
        self.shared.line().harvest(&self.shared.device)
    }

    /// Removes a model. Nobody can begin to use it any more, nor remove it as well; both are refused as
    /// [`RegistryError::Removing`]. Blocks until its executions have ended and nobody looks at it, at most for `limit`.
    ///
    /// # Errors
    /// No such model, or still in use after `limit`: it stays loaded then and can be used as before, and the error names the
    /// holders. When the check of the collectives fails, the model is gone all the same.
    pub fn unload(&self, model: ModelHandle, limit: Duration) -> Result<(), UnloadError> {
        self.shared.check_process().map_err(DeviceError::from)?;
        let removal = self.shared.models.removal(model)?;
        self.shared.drain(limit, |line| Ok(line.in_flight_of(model).next().is_none()))?;
        let model = removal.finish(limit, || self.shared.line().in_flight_of(model).collect())?;
        match &model.collective {
            Some(collective) => Ok(collective.context.semaphore_check()?),
            None => Ok(()),
        }
    }

    /// Ends the unit: no model is loaded, nothing is built and no execution staged from now on, and a stop record goes behind those in flight. Blocks until the
    /// device has come to it, at most for `limit`, and tells the device to start nothing more.
    ///
    /// # Errors
    /// Executions that have not ended in time, a device that has not stopped, or can't be followed.
    pub fn close(&self, limit: Duration) -> Result<(), UnloadError> {
        if self.shared.close(limit)? {
            return Ok(());
        }
        let waited_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Err(match self.in_flight() {
            0 => UnloadError::NotStopped { waited_ms },
            in_flight => UnloadError::InFlight { in_flight, waited_ms },
        })
    }

    /// How often a TPB was set up anew because its sequencer had stopped, or because what it was to run could not be taken
    /// back. Whatever was queued there then ended with status EXEC_UNIT_UNRECOVERABLE; later executions run.
    pub fn rearms(&self) -> u64 {
        self.shared.own_line().map_or(0, |line| line.rearms)
    }
}
