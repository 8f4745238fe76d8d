//! The text form of a model: what [`pack`](super::pack::pack) turns into a container.
//!
//! It is TOML and speaks the language of the container, except that variables are named instead of numbered, that
//! content stands in place, and that waits and signals stand at the block instead of in instructions:
//!
//! ```toml
//! [model]
//! name = "rows"                 # also the name in the container
//! target = "cayman"
//!
//! [[tpb]]                       # one per physical core
//! var = [
//!   { name = "x",    type = "input",  size = 4096, dtype = "uint8", shape = [64, 64] },
//!   { name = "y",    type = "output", size = 2048 },
//!   { name = "keep", type = "virtual", offset = 0, size = 2048 },   # scratch
//!   { name = "ones", type = "file",   size = 64, repeat = "01" },   # constant, bytes repeated to the size
//!   { name = "px",   type = "pointer", to = "x" },                  # cell with the address of x
//!   { name = "all",  type = "dge-table", rows = ["x", "y"] },       # table of addresses
//! ]
//! queue = [
//!   { name = "q_in",  type = "in",  owner = "pool", semaphore = 10 },
//!   { name = "q_out", type = "out", owner = "sp",   semaphore = 11 },
//! ]
//!
//! [[tpb.block]]                 # runs on the owner of its queue, in the order of this file
//! queue = "q_in"
//! name = "odd_rows"
//! signal = 0
//! copy = [{ from = "x", from_off = 64, from_sizes = [32, 64], from_steps = [128, 1], to = "keep" }]
//!
//! [[tpb.block]]
//! queue = "q_out"
//! name = "store"
//! wait = [{ semaphore = 0, at_least = 1 }]
//! copy = [{ from = "keep", to = "y", bytes = 2048 }]
//! ```
//!
//! Sizes and steps are in bytes, outermost first. A side of a copy without sizes is contiguous and as long as the
//! other side or as `bytes`.

use serde::Deserialize;
use sluice_core::exec::SemaphoreWait;
use sluice_core::mmio::{OutsideWindow, SemaphoreId};

use super::error::{NeffError, Place};
use super::program::ReadOnly;

/// A model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    pub(super) model: ModelSpec,
    pub(super) tpb: Vec<TpbSpec>,
}

/// What holds for the whole model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelSpec {
    pub(super) name: String,
    pub(super) target: String,
    /// Physical cores per virtual core; as many as there are where absent.
    pub(super) virtual_core_size: Option<u32>,
}

/// The program of one physical core.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TpbSpec {
    pub(super) var: Vec<VarSpec>,
    #[serde(default)]
    pub(super) queue: Vec<QueueSpec>,
    #[serde(default)]
    pub(super) block: Vec<BlockSpec>,
}

/// A variable; its number is its place in the list.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum VarSpec {
    Input(TensorSpec),
    Output(TensorSpec),
    Temporary(TensorSpec),
    Virtual {
        name: String,
        size: u64,
        offset: u64,
        backing: Option<String>,
    },
    File {
        name: String,
        size: u64,
        /// Hexadecimal digits, repeated to the size.
        repeat: String,
    },
    StateBuffer {
        name: String,
    },
    Pointer {
        name: String,
        to: String,
    },
    DgeTable {
        name: String,
        rows: Vec<String>,
    },
}

/// Memory with a form.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TensorSpec {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) alignment: Option<u64>,
    pub(super) dtype: Option<String>,
    pub(super) shape: Option<Vec<u64>>,
}

impl VarSpec {
    /// What it is, if a program may not write it.
    pub(super) fn read_only(&self) -> Option<ReadOnly> {
        match self {
            Self::Input(_) => Some(ReadOnly::Input),
            Self::File { .. } => Some(ReadOnly::Constant),
            Self::Pointer { .. } | Self::DgeTable { .. } => Some(ReadOnly::Addresses),
            Self::Output(_) | Self::Temporary(_) | Self::Virtual { .. } | Self::StateBuffer { .. } => None,
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Input(tensor) | Self::Output(tensor) | Self::Temporary(tensor) => &tensor.name,
            Self::Virtual { name, .. }
            | Self::File { name, .. }
            | Self::StateBuffer { name }
            | Self::Pointer { name, .. }
            | Self::DgeTable { name, .. } => name,
        }
    }
}

/// A queue.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueSpec {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) owner: String,
    pub(super) semaphore: Semaphore,
}

/// A list of copies that is started as one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockSpec {
    pub(super) queue: String,
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) wait: Vec<WaitSpec>,
    pub(super) signal: Option<Semaphore>,
    /// Number that profiling shows; the block's place in the program where absent.
    pub(super) kernel: Option<u32>,
    pub(super) copy: Vec<CopySpec>,
}

/// Number of a semaphore.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "u32")]
pub(super) struct Semaphore(pub(super) SemaphoreId);

impl TryFrom<u32> for Semaphore {
    type Error = OutsideWindow;

    fn try_from(number: u32) -> Result<Self, OutsideWindow> {
        SemaphoreId::new(number).map(Self)
    }
}

/// A semaphore that has to be reached first.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitSpec {
    pub(super) semaphore: Semaphore,
    pub(super) at_least: u32,
}

impl WaitSpec {
    pub(super) fn wait(&self) -> SemaphoreWait {
        SemaphoreWait { semaphore: self.semaphore.0, at_least: self.at_least }
    }
}

/// One copy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CopySpec {
    pub(super) from: String,
    #[serde(default)]
    pub(super) from_off: u64,
    pub(super) from_sizes: Option<Vec<u64>>,
    pub(super) from_steps: Option<Vec<u64>>,
    pub(super) to: String,
    #[serde(default)]
    pub(super) to_off: u64,
    pub(super) to_sizes: Option<Vec<u64>>,
    pub(super) to_steps: Option<Vec<u64>>,
    pub(super) bytes: Option<u64>,
}

impl Spec {
    /// Reads the text; an error names the line.
    pub(super) fn parse(place: Place<'_>, text: &str) -> Result<Self, NeffError> {
        toml::from_str(text).map_err(|error| {
            let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
            match error.span() {
                Some(span) => {
                    let before = &text.as_bytes()[..span.start.min(text.len())];
                    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
                    place.invalid_key(format!("line {line}"), message)
                }
                None => place.invalid(message),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::neff::pack;

    #[test]
    fn the_example_above_is_a_model() {
        let text: String = include_str!("spec.rs")
            .lines()
            .skip_while(|line| *line != "//! ```toml")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| line.trim_start_matches("//!").to_owned() + "\n")
            .collect();
        assert!(text.contains("odd_rows"));
        assert!(pack("example", &text).is_ok(), "{:?}", pack("example", &text));
    }
}
