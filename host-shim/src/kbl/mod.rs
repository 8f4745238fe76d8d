//! The compute-resource build (KBL): from a loaded model and two sets of tensors to executions on a device.
//!
//! ```text
//!   Neff ──Unit::load──► ModelHandle ─┐
//!   TensorSet (inputs)  ──────────────┼─Unit::build──► Built ─stage─► Staged ─kickoff─► Running ─wait─► Outcome
//!   TensorSet (outputs) ──────────────┘
//! ```
//!
//! Tensors are bound by name. A program names variables by number; its contract says which of them are inputs and outputs
//! and what they are called. A build looks each name up in the caller's set of that direction, writes descriptor rings for
//! the addresses found, and lists the pointers and queue bases that the device has to be given before it starts. The list
//! goes into the exec ring of each TPB with a request record; a doorbell starts it; notifications say how it ended.
//!
//! | module | idea |
//! |---|---|
//! | `tensor`, `set` | the caller's bytes, and names for them |
//! | `contract` | what a program wants bound, and the join |
//! | `place`, `template`, `ring`, `image`, `model` | a program in device memory: variables, descriptors, rings, one TPB, all TPBs |
//! | `tasks`, `choice` | what the device is told of items, for recorders |
//! | `plan`, `sink` | the same without a device, for whoever wants to know |
//! | `registry` | models by handle, counted references, removal |
//! | `build` | rings and swap list for one pair of sets; `lru` keeps both |
//! | `batch`, `tpb` | the pairs of one execution; one TPB's queues |
//! | `line`, `stage`, `kickoff` | executions in ticket order; into the exec rings; doorbells |
//! | `harvest`, `outcome` | notifications as hostile input, and what they add up to |
//! | `collective` | hooks for models that communicate |
//! | `execution` | the states of one execution |
//! | `unit`, `open`, `shared` | the entry to all of it, how it is set up, and how it ends |
//! | `work`, `phases` | what reports and traces want to know |
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use sluice_host::device::{Device, heap::Heap};
//! # use sluice_host::kbl::{LoadOptions, Tensor, TensorSet, Unit, UnitOptions};
//! # use sluice_host::neff::Neff;
//! # fn run<D: Device>(device: Arc<D>, neff: &Neff) -> Result<(), Box<dyn std::error::Error>> {
//! let ram = device.map().ram;
//! let heap = Heap::new(ram.base, ram.bytes);
//! let unit = Unit::open(device, heap.clone(), UnitOptions::default())?;
//! let model = unit.load(neff, &LoadOptions::default())?;
//!
//! let (mut inputs, mut outputs) = (TensorSet::new(), TensorSet::new());
//! let (x, y) = (Tensor::allocate(&heap, 4096)?, Tensor::allocate(&heap, 4096)?);
//! x.write(&**unit.device(), 0, &[1; 4096])?;
//! inputs.add("x", x)?;
//! outputs.add("y", y)?;
//!
//! let built = unit.build(model, &inputs, &outputs)?;
//! let outcome = unit.stage(&built)?.kickoff()?.wait()?;
//! println!("{} took {:?} cycles", outcome.ticket, outcome.tpbs[0].duration_cycles());
//! # Ok(())
//! # }
//! ```

mod batch;
mod build;
mod choice;
mod collective;
mod contract;
mod error;
mod execution;
#[cfg(test)]
mod faulty;
mod harvest;
mod image;
#[cfg(all(test, loom))]
mod interleavings;
mod kickoff;
mod line;
mod lru;
#[cfg(test)]
mod mock;
mod model;
mod open;
mod outcome;
mod phases;
mod place;
mod plan;
mod registry;
mod ring;
mod set;
mod shared;
mod sink;
mod stage;
mod stream;
mod tasks;
mod template;
mod tensor;
#[cfg(test)]
mod tests;
mod tpb;
mod unit;
mod work;

pub use sluice_core::exec::{NrtStatus, Ticket};
pub use sluice_core::fmap::{Direction, InsertError, VarId};
pub use sluice_core::mem::DevAddr;
pub use sluice_core::mmio::{Engine, TpbId};

pub use crate::device::process::Forked;
pub use build::{Bound, BuildError, Built, PatchedSlot};
pub use choice::ArgChoice;
pub use collective::{CollectiveError, CollectiveModel, Collectives, Context, LoopBack};
pub use contract::{Found, Offender};
pub use error::LoadError;
pub use execution::{KickoffError, Running, Staged, Timeout, WaitError};
pub use line::HalfDone;
pub use model::{BuildCounts, LoadOptions, Model, Wanted};
pub use open::{OpenError, UnitOptions};
pub use outcome::{EngineTimes, ExecFault, Outcome, TpbOutcome};
pub use phases::{Phase, PhaseLog, Span};
pub use plan::{ContractLine, Plan, PointerPlan, RingPlan, TagBytes, TpbPlan, plan};
pub use registry::{Held, Holder, Holders, ModelHandle, RegistryError};
pub use ring::BuildFault;
pub use set::{SetError, TensorSet};
pub use stage::{DeviceError, StageError};
pub use stream::{EngineState, Received};
pub use template::TemplateFault;
pub use tensor::{Tensor, TensorError};
pub use tpb::{Blocked, BringUpError, Halt, ImpossibleCount};
pub use unit::{Unit, UnloadError};
pub use work::{EngineReport, Executability, WorkItem};
