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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use sluice_core::dma::RingSize;
use sluice_core::exec::NrtStatus;
use sluice_core::mem::Clock;
use sluice_core::mmio::{OutsideWindow, TpbId, TpbRegisters};

use super::batch::MAX_BATCH_PAIRS;
use super::build::{self, Bound, BuildError, Built, PatchedSlot};
use super::collective::{self, CollectiveError, Collectives, LoopBack};
use super::error::LoadError;
use super::execution::Staged;
use super::line::{Line, MAX_DEPTH};
use super::model::{LoadOptions, Model};
use super::phases::{Phase, PhaseLog};
use super::registry::{HandleCounter, Held, Holder, ModelHandle, Registry, RegistryError};
use super::set::TensorSet;
use super::stage::{DeviceError, StageError};
use super::tpb::{BringUpError, Tpb, TpbSizes};
use crate::device::Device;
use crate::device::claim::{Claim, Driven};
use crate::device::heap::Heap;
use crate::device::process::{Forked, Process};
use crate::neff::Neff;
use crate::patience::Patience;
use crate::sync::{Mutex, MutexGuard};

/// How a unit is set up.
#[derive(Clone, Copy, Debug)]
pub struct UnitOptions {
    /// Descriptors of each half of the exec rings: a power of two, at least 32. Sixteen stay empty, and an execution's pairs
    /// have to fit beside them; [`plan`](super::plan) says how many a model has.
    pub exec_ring: u32,
    /// Descriptors of the RX half, if it is to have others than the TX half.
    pub exec_ring_rx: Option<u32>,
    /// Executions that may be staged or running at once, 1..=1024.
    pub depth: u32,
    /// How long an engine takes whose program the device can't interpret.
    pub opaque_engine_time: Duration,
    /// Host phases kept until they are taken: any number, with room for [`PhaseLog::ROOM`] from the start; 0 for none, which
    /// saves the looks at the clock as well.
    pub phase_log: usize,
}

impl Default for UnitOptions {
    fn default() -> Self {
        Self {
            exec_ring: 4096,
            exec_ring_rx: None,
            depth: 64,
            opaque_engine_time: Duration::from_micros(20),
            phase_log: PhaseLog::ROOM,
        }
    }
}

/// A unit that can't be set up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// A TPB that can't be set up.
    #[error("TPB {tpb}: {error}")]
    BringUp {
        /// Which TPB.
        tpb: TpbId,
        /// Why.
        error: BringUpError,
    },
    /// More TPBs than a device has.
    #[error(transparent)]
    Window(#[from] OutsideWindow),
    /// An exec ring of a size that none has.
    #[error("exec ring of {descriptors} descriptors, want a power of two from 32 to 8388608")]
    ExecRing {
        /// Size asked for.
        descriptors: u32,
    },
    /// TPBs that are not to be had.
    #[error(transparent)]
    Driven(#[from] Driven),
    /// Memory that is not the device's.
    #[error("the heap is memory of another device")]
    OtherHeap,
    /// A depth out of range.
    #[error("{depth} executions in flight, want 1 to {MAX_DEPTH}")]
    Depth {
        /// Depth asked for.
        depth: u32,
    },
}

impl OpenError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::BringUp { error: BringUpError::Heap(_), .. } => NrtStatus::RESOURCE,
            Self::BringUp { .. } | Self::Driven(_) => NrtStatus::FAILURE,
            Self::Window(_) | Self::ExecRing { .. } | Self::OtherHeap | Self::Depth { .. } => {
                NrtStatus::INVALID
            }
        }
    }
}

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

/// What the handles of a unit have in common.
pub(super) struct Shared<D: Device> {
    process: Process,
    pub(super) device: Arc<D>,
    heap: Heap,
    at: Vec<(TpbId, TpbRegisters)>,
    options: UnitOptions,
    batch_limit: u32,
    collectives: Arc<dyn Collectives>,
    models: Registry<Model>,
    /// No model is loaded and nothing is built from now on.
    closed: AtomicBool,
    line: Mutex<Line<D>>,
    pub(super) phases: PhaseLog,
    /// Of those who wait for an execution.
    pub(super) patience: Patience,
    /// Of those who wait for room, or for the end of everything.
    room: Patience,
}

/// A sleeping waiter looks at memory this often even if the device announces nothing.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(100);

impl<D: Device> Shared<D> {
    /// Makes sure that this is the process that opened the unit. Comes before every lock.
    pub(super) fn check_process(&self) -> Result<(), Forked> {
        self.process.check()
    }

    pub(super) fn line(&self) -> MutexGuard<'_, Line<D>> {
        collective::not_locked();
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line, but not in a fork.
    fn own_line(&self) -> Option<MutexGuard<'_, Line<D>>> {
        self.check_process().is_ok().then(|| self.line())
    }

    /// Harvests until `is_over`, or until `limit` has passed; returns whether it is.
    fn drain(
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
    fn close(&self, limit: Duration) -> Result<bool, DeviceError> {
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
        let over = self.close(LIMIT);
        if !matches!(over, Ok(true)) {
            tracing::warn!(
                ?over,
                "a unit ends while its device may be running; its memory is not used again"
            );
            self.line().abandon();
        }
    }
}

/// All TPBs of a device, driven as one. Cheap to clone; clones are the same unit.
pub struct Unit<D: Device> {
    shared: Arc<Shared<D>>,
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
    /// Sets up every TPB of `device` with memory from `heap`, which the caller vouches to be the device's. The TPBs have to
    /// be idle.
    ///
    /// # Errors
    /// Sizes out of range, no memory, a device that can't be reached, or one that another unit drives. A unit drives its
    /// device until it is closed, or its last handle is dropped.
    pub fn open(device: Arc<D>, heap: Heap, options: UnitOptions) -> Result<Self, OpenError> {
        Self::open_with(device, heap, Arc::new(LoopBack::default()), options)
    }

    /// As [`open`](Self::open), with collectives of the runtime's own; those of `open` are a [`LoopBack`].
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(
        device: Arc<D>,
        heap: Heap,
        collectives: Arc<dyn Collectives>,
        options: UnitOptions,
    ) -> Result<Self, OpenError> {
        Self::open_numbered(device, heap, collectives, options, HandleCounter::global())
    }

    /// As [`open_with`](Self::open_with), with numbers of models from `handles`.
    pub(super) fn open_numbered(
        device: Arc<D>,
        heap: Heap,
        collectives: Arc<dyn Collectives>,
        options: UnitOptions,
        handles: &'static HandleCounter,
    ) -> Result<Self, OpenError> {
        let ring_size = |descriptors: u32| match RingSize::new(descriptors) {
            Ok(size) if descriptors.is_power_of_two() => Ok(size),
            _ => Err(OpenError::ExecRing { descriptors }),
        };
        let tx = ring_size(options.exec_ring)?;
        let exec_rings = [tx, options.exec_ring_rx.map_or(Ok(tx), ring_size)?];
        let usable = exec_rings.map(RingSize::usable).into_iter().fold(MAX_BATCH_PAIRS, u32::min);
        let depth = options.depth as usize;
        if depth == 0 || depth > MAX_DEPTH {
            return Err(OpenError::Depth { depth: options.depth });
        }
        // Two records per engine and execution; room for as many again that a device may add. Errors are one per engine, that
        // it was given up, and that the sequencer has stopped.
        let [status_records, error_records] =
            [4, 8].map(|records: u32| (records * options.depth).next_power_of_two());
        let sizes = TpbSizes { exec_rings, depth: options.depth, status_records, error_records };
        let claim = Claim::of(&device)?;
        if !heap.give_to(device.driver().device()) {
            return Err(OpenError::OtherHeap);
        }
        let registers = device.map().registers;
        let (mut at, mut tpbs) = (Vec::new(), Vec::new());
        for tpb in 0..registers.tpbs() {
            let tpb = TpbId::new(tpb)?;
            at.push((tpb, registers.tpb(tpb)?));
        }
        let phases = PhaseLog::new(options.phase_log, device.frequency_hz());
        let opaque_cycles = cycles(&*device, options.opaque_engine_time);
        for &(id, registers) in &at {
            let tpb = Tpb::bring_up(&*device, &heap, id, registers, sizes);
            let tpb = tpb.map_err(|error| OpenError::BringUp { tpb: id, error })?;
            tpb.control().set_opaque_engine_cycles(opaque_cycles);
            tpbs.push(tpb);
        }
        Ok(Self {
            shared: Arc::new(Shared {
                process: Process::this(),
                device,
                heap,
                at,
                options,
                batch_limit: usable,
                collectives,
                models: Registry::new(handles),
                closed: AtomicBool::new(false),
                line: Mutex::new(Line::new(claim, tpbs, depth)),
                phases,
                patience: Patience::new(),
                room: Patience::new(),
            }),
        })
    }

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

    /// Loads a model onto the first TPBs, one per subgraph.
    ///
    /// # Errors
    /// See [`LoadError`]; nothing stays on the device then.
    pub fn load(&self, neff: &Neff, options: &LoadOptions) -> Result<ModelHandle, LoadError> {
        match options.timeout_seconds {
            0 => Err(LoadError::NoTime),
            _ => self.load_with_any_timeout(neff, options),
        }
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
        span.end(Some(ticket.0));
        Ok(Staged::new(ticket, timeout, outcome, Arc::clone(&self.shared)))
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

/// A time in cycles of the device's counter.
fn cycles<C: Clock>(clock: &C, time: Duration) -> u64 {
    let cycles = time.as_nanos() * u128::from(clock.frequency_hz()) / 1_000_000_000;
    u64::try_from(cycles).unwrap_or(u64::MAX)
}
