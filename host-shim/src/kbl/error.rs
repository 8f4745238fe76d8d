//! What can go wrong while a model is loaded.

use std::fmt::Display;

use sluice_core::dma::{RING_GAP, TemplateError};
use sluice_core::exec::NrtStatus;
use sluice_core::fmap::InsertError;
use sluice_core::mem::Fault;
use sluice_core::mmio::TpbId;

use super::batch::MAX_BATCH_PAIRS;
use super::collective::CollectiveError;
use super::registry::RegistryError;
use super::ring::BuildFault;
use super::template::TemplateFault;
use crate::device::heap::HeapError;
use crate::device::process::Forked;
use crate::neff::{CarveOut, DmaOp, ProgramFault, Target};

/// A model that can't be loaded. Nothing of it stays on the device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadError {
    /// More than a task table has numbers for.
    #[error(
        "Failed to describe tasks: {items} items of one engine, {deps} dependencies and {args} arguments of all"
    )]
    TaskTable {
        /// Items of one engine.
        items: usize,
        /// Dependencies of all items.
        deps: usize,
        /// Arguments of all items.
        args: usize,
    },
    /// Compiled for another architecture.
    #[error(
        "Attempting to load an incompatible model! `{program}` is for {target} and the device is {device}"
    )]
    Incompatible {
        /// The subgraph.
        program: String,
        /// What it was compiled for.
        target: Target,
        /// What the device is.
        device: Target,
    },
    /// A program that breaks a rule. None that was read does.
    #[error("`{program}`: {fault}")]
    Program {
        /// The subgraph.
        program: String,
        /// The rule.
        fault: ProgramFault,
    },
    /// An event-accelerator carve-out where the device has none.
    #[error(
        "Failed to verify Event Accel State Buffer carveout: {found:?}, want {:?}",
        CarveOut::EVENT_ACCELERATOR
    )]
    CarveOut {
        /// What the program states.
        found: CarveOut,
    },
    /// The model asks for more TPBs than the unit has.
    #[error(
        "model has {subgraphs} subgraphs and asks for {cores} cores of {tpbs_per_core} TPBs{}, the unit has {have} TPBs",
        from_there(*first_tpb)
    )]
    NotEnoughCores {
        /// Subgraphs, one per TPB.
        subgraphs: usize,
        /// Virtual cores that the container's header asks for.
        cores: u32,
        /// TPBs of each.
        tpbs_per_core: u32,
        /// Where the first subgraph is to run.
        first_tpb: TpbId,
        /// TPBs of the unit.
        have: usize,
    },
    /// No device memory.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// A variable whose range leaves 64 bits.
    #[error("variable `{name}` of {bytes} bytes, aligned to {align_bytes}, leaves the address space")]
    TooLarge {
        /// The variable.
        name: String,
        /// Its length.
        bytes: u64,
        /// Its alignment.
        align_bytes: u64,
    },
    /// No host memory for what the program wants bound.
    #[error("Failed to allocate fmap_t for {variables} variables")]
    Contract {
        /// Inputs, or outputs.
        variables: usize,
    },
    /// A name that contract tables can't hold.
    #[error(transparent)]
    Name(#[from] InsertError),
    /// An address of a variable that does not lie in device memory is needed.
    #[error("Variable {name} is not staged in HBM")]
    NotStaged {
        /// The variable.
        name: String,
    },
    /// A transfer that leaves a variable.
    #[error("{bytes} bytes at offset {offset_bytes} are not inside variable `{name}` of {size_bytes} bytes")]
    OutsideVariable {
        /// The variable.
        name: String,
        /// First byte.
        offset_bytes: u64,
        /// Bytes.
        bytes: u64,
        /// Length of the variable.
        size_bytes: u64,
    },
    /// An address that templates can't carry.
    #[error(transparent)]
    Address(#[from] TemplateError),
    /// A queue whose descriptors can't be built.
    #[error("queue `{queue}`: {fault}")]
    Queue {
        /// The queue.
        queue: String,
        /// Why.
        fault: TemplateFault,
    },
    /// A block that does more than copy.
    #[error("block {block} of queue `{queue}`: operation {op:?}, rings carry copies only")]
    Operation {
        /// The queue.
        queue: String,
        /// The block.
        block: u32,
        /// What it asks for.
        op: DmaOp,
    },
    /// A static ring that can't be written.
    #[error("Failed to build dma rings for io: {0}")]
    Ring(#[from] BuildFault),
    /// More exec-queue descriptors than a batch may have.
    #[error(
        "Cannot copy the descriptors in template to the ring: an execution takes {pairs} exec-queue descriptors, \
         at most {limit}{}",
        remedy(*pairs)
    )]
    BatchTooLarge {
        /// Pairs needed.
        pairs: u32,
        /// Most pairs of a batch on this unit.
        limit: u32,
    },
    /// Device memory could not be reached.
    #[error(transparent)]
    Device(#[from] Fault),
    /// The unit is closed.
    #[error("the unit is closed")]
    Closed,
    /// Every execution would be late.
    #[error("a timeout of 0: every execution would be late")]
    NoTime,
    /// The unit belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Collectives that do not take the model.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// No handle.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Where a model is to begin, unless that is where the unit does.
fn from_there(first_tpb: TpbId) -> String {
    match first_tpb {
        TpbId::FIRST => String::new(),
        _ => format!(" from TPB {first_tpb} on"),
    }
}

/// The first `most` of `all`, and how many more there are: an error keeps all, its text has an end.
pub(super) fn first_of<T: Display>(all: &[T], most: usize, separator: &str) -> String {
    let mut texts: Vec<_> = all.iter().take(most).map(T::to_string).collect();
    let more = all.len() - texts.len();
    if more > 0 {
        texts.push(format!("and {more} more"));
    }
    texts.join(separator)
}

/// Which exec ring has room for a batch of `pairs`, if one has.
fn remedy(pairs: u32) -> String {
    match pairs {
        0..=MAX_BATCH_PAIRS => {
            format!(", `exec_ring` has to be {}", (pairs + RING_GAP).next_power_of_two().max(32))
        }
        _ => String::new(),
    }
}

impl LoadError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Incompatible { .. }
            | Self::Program { .. }
            | Self::CarveOut { .. }
            | Self::TooLarge { .. }
            | Self::OutsideVariable { .. }
            | Self::Address(_)
            | Self::Operation { .. }
            | Self::Name(_)
            | Self::NoTime => NrtStatus::INVALID,
            Self::NotEnoughCores { .. } => NrtStatus::LOAD_NOT_ENOUGH_NC,
            Self::Heap(error) => error.status(),
            Self::Contract { .. } | Self::TaskTable { .. } => NrtStatus::RESOURCE,
            Self::Closed => NrtStatus::CLOSED,
            Self::NotStaged { .. } | Self::Device(_) | Self::Forked(_) | Self::BatchTooLarge { .. } => {
                NrtStatus::FAILURE
            }
            Self::Queue { fault, .. } => fault.status(),
            Self::Ring(fault) => fault.status(),
            Self::Collective(error) => error.status,
            Self::Registry(error) => error.status(),
        }
    }
}
