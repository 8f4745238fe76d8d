//! Setting up a unit: sizes are checked, the device is claimed, every TPB is brought up.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sluice_core::dma::RingSize;
use sluice_core::exec::NrtStatus;
use sluice_core::mem::{Clock, Memory, Peer};
use sluice_core::mmio::{ControlWord, OutsideWindow, TpbId};

use super::batch::MAX_BATCH_PAIRS;
use super::collective::{Collectives, LoopBack};
use super::line::{Line, MAX_DEPTH};
use super::phases::PhaseLog;
use super::registry::{HandleCounter, Registry};
use super::shared::{Abandoned, Shared};
use super::tpb::{BringUpError, Tpb, TpbSizes};
use super::unit::Unit;
use crate::device::Device;
use crate::device::claim::{Claim, Driven};
use crate::device::heap::Heap;
use crate::device::process::Process;
use crate::patience::Patience;
use crate::sync::Mutex;

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
        let (mut at, mut tpbs, mut done) = (Vec::new(), Vec::new(), Vec::new());
        for tpb in 0..registers.tpbs() {
            let tpb = TpbId::new(tpb)?;
            at.push((tpb, registers.tpb(tpb)?));
        }
        let phases = PhaseLog::new(options.phase_log, device.frequency_hz());
        let opaque_cycles = cycles(&*device, options.opaque_engine_time);
        for &(id, registers) in &at {
            let refused = |error| OpenError::BringUp { tpb: id, error };
            let tpb = Tpb::bring_up(&*device, &heap, id, registers, sizes).map_err(refused)?;
            tpb.control().set_opaque_engine_cycles(opaque_cycles);
            let counted = device.memory().word(registers.control_word(ControlWord::ExecutionsDone));
            done.push(Peer::new(counted.map_err(|fault| refused(fault.into()))?));
            tpbs.push(tpb);
        }
        Ok(Self {
            shared: Arc::new(Shared {
                process: Process::this(),
                device,
                heap,
                at,
                done,
                options,
                batch_limit: usable,
                collectives,
                models: Registry::new(handles),
                closed: AtomicBool::new(false),
                line: Mutex::new(Line::new(claim, tpbs, depth)),
                abandoned: Abandoned::default(),
                phases,
                patience: Patience::new(),
                room: Patience::new(),
            }),
        })
    }
}

/// A time in cycles of the device's counter.
fn cycles<C: Clock>(clock: &C, time: Duration) -> u64 {
    let cycles = time.as_nanos() * u128::from(clock.frequency_hz()) / 1_000_000_000;
    u64::try_from(cycles).unwrap_or(u64::MAX)
}
