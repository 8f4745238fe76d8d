//! What one subgraph of a container says: variables, queues and engines, joined by number and checked.
//!
//! ```text
//! Program ─┬─ vars[var_id]      name, kind, size              what tensors are bound to
//!          ├─ queues            sorted by name, numbered      where descriptors go
//!          └─ engines[PE..SP]   instructions ── RunBlock ──┐  what runs, in order
//!                               blocks[] ◄─────────────────┘  which bytes move
//! ```
//!
//! Programs are made by the reader; the rules it has checked are stated at each field. Whoever changes one breaks them at
//! worst: a load looks at those again that it relies on.

use std::fmt;
use std::str::FromStr;

use sluice_core::exec::{INSTRUCTION_BYTES, RunBlock};
use sluice_core::fmap::VarId;
use sluice_core::mmio::{Engine, QueueId, SemaphoreId};

use super::bytes::Bytes;
use super::error::Bare;
use super::pattern::DmaCopy;

/// Bytes of a pointer, and of a row of a table of them.
pub(crate) const POINTER_BYTES: u64 = 8;

/// Where a virtual temporary lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// The program's own scratchpad.
    Local,
    /// A scratchpad shared by the programs of a virtual core.
    Shared,
    /// A shared scratchpad of which each core holds a part.
    Sharded,
    /// The main buffer.
    Main,
}

/// What a variable is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VarKind {
    /// On-chip state buffer; has no address in device memory.
    StateBuffer,
    /// A constant; the content is as long as the variable.
    File {
        /// The bytes, without any array header.
        content: Bytes,
    },
    /// Scratch memory of its own.
    Temporary,
    /// Scratch memory inside a shared range; `offset_bytes + size_bytes` fits 64 bits.
    Virtual {
        /// Where in the range.
        offset_bytes: u64,
        /// Which range.
        backing: Backing,
    },
    /// Bound by the caller, read by the program.
    Input,
    /// Bound by the caller, written by the program.
    Output,
    /// An 8-byte cell that holds the address of another variable.
    Pointer {
        /// Whose address; an existing variable.
        target: VarId,
    },
    /// A list of existing variables.
    List {
        /// The variables, in order.
        ids: Vec<VarId>,
    },
    /// A table of 8-byte rows, each the address of an existing variable.
    PointerTable {
        /// One per row, in order.
        rows: Vec<VarId>,
    },
}

impl VarKind {
    /// Whether the caller binds it.
    pub fn is_io(&self) -> bool {
        matches!(self, Self::Input | Self::Output)
    }

    /// What it is, if a program may not write it.
    pub(super) fn read_only(&self) -> Option<ReadOnly> {
        match self {
            Self::Input => Some(ReadOnly::Input),
            Self::File { .. } => Some(ReadOnly::Constant),
            Self::Pointer { .. } | Self::PointerTable { .. } => Some(ReadOnly::Addresses),
            Self::StateBuffer | Self::Temporary | Self::Virtual { .. } | Self::Output | Self::List { .. } => {
                None
            }
        }
    }
}

/// A variable that programs only read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadOnly {
    Input,
    Constant,
    /// What executions are given by the host.
    Addresses,
}

impl fmt::Display for ReadOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "an input: programs only read it",
            Self::Constant => "a constant: programs only read it",
            Self::Addresses => "of addresses: programs only read it",
        })
    }
}

/// A variable of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Var {
    /// 1 to 255 bytes, no control characters, unique in the program.
    pub name: String,
    /// Equal to the variable's place in [`Program::vars`], at most 19 bits because descriptor templates carry so
    /// many.
    pub id: VarId,
    /// What it is.
    pub kind: VarKind,
    /// Its length; 0 for a state buffer that states none, 8 per row for a pointer table.
    pub size_bytes: u64,
    /// A power of two; 1 where the container states none.
    pub alignment_bytes: u64,
    /// Element type, at most 15 bytes.
    pub dtype: Option<String>,
    /// Extent per dimension, outermost first, at most eight; the product fits 64 bits.
    pub shape: Vec<u64>,
}

/// What a DMA queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// Model inputs.
    In,
    /// Model outputs.
    Out,
    /// Spills, constants and other data.
    Data,
    /// Activation tables.
    ActLoad,
    /// Embedding updates.
    EmbeddingUpdate,
    /// Descriptors made by the device itself: no ring is built for it.
    Dynamic,
}

/// A DMA queue of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Unique in the program.
    pub name: String,
    /// What it is for.
    pub kind: QueueKind,
    /// The engine whose blocks it runs.
    pub owner: Engine,
    /// Completion semaphores, 1 to 16.
    pub semaphores: Vec<SemaphoreId>,
    /// The queue of the device that has its ring: counted in name order over the queues that have one, below
    /// [`QueueId::PROLOGUE`]; `None` for [`QueueKind::Dynamic`].
    pub ring: Option<QueueId>,
}

/// What the elements of a block do at their destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaOp {
    /// Overwrite.
    Copy,
    /// Multiply and add.
    Fma,
    /// Add.
    Add,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
    /// Transpose.
    Transpose,
}

/// A static list of copies that one instruction starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmaBlock {
    /// Unique in its engine.
    pub id: u32,
    /// Readable name, where the container has one.
    pub name: Option<String>,
    /// Place of its queue in [`Program::queues`]; that queue belongs to the engine and has a ring.
    pub queue: usize,
    /// What it does.
    pub op: DmaOp,
    /// At least one; every pattern ends inside its variable, and none writes what programs only read.
    pub copies: Vec<DmaCopy>,
    /// Descriptor pairs that the block becomes: one per 64 KiB or part of each contiguous transfer.
    pub pairs: u32,
}

/// The name of an engine in containers and specs.
pub(super) const fn engine_key(engine: Engine) -> &'static str {
    match engine {
        Engine::Pe => "pe",
        Engine::Act => "act",
        Engine::Pool => "pool",
        Engine::Dve => "dve",
        Engine::Sp => "sp",
    }
}

/// What an engine does in one execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// It has no instructions.
    Idle,
    /// Its instructions are not ours and cannot be interpreted.
    Opaque,
    /// It runs all its blocks, on each queue in the order of [`EngineProgram::blocks`].
    Blocks(Vec<RunBlock>),
}

/// One engine's part of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineProgram {
    /// Which engine.
    pub engine: Engine,
    /// Whole instructions of 64 bytes; empty when the program does not use the engine.
    pub instructions: Bytes,
    /// What they say.
    pub work: Work,
    /// Static DMA lists, in container order.
    pub blocks: Vec<DmaBlock>,
}

impl EngineProgram {
    /// How many instructions there are.
    pub fn instruction_count(&self) -> usize {
        self.instructions.len() / INSTRUCTION_BYTES
    }
}

/// The architecture a program was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// First generation (trn1, inf2).
    Sunda,
    /// Second generation (trn2).
    Cayman,
    /// Third generation (trn3).
    Mariana,
    /// Runs anywhere.
    Any,
}

impl Target {
    const ALL: [Self; 4] = [Self::Sunda, Self::Cayman, Self::Mariana, Self::Any];

    /// The name, as containers spell it; `*` for [`Any`](Self::Any).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sunda => "sunda",
            Self::Cayman => "cayman",
            Self::Mariana => "mariana",
            Self::Any => "*",
        }
    }

    /// The second name that containers know it by.
    const fn version(self) -> Option<&'static str> {
        match self {
            Self::Sunda => Some("v2"),
            Self::Cayman => Some("v3"),
            Self::Mariana => Some("v4"),
            Self::Any => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no architecture.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{}` is no architecture, those are sunda, cayman, mariana and * for any", Bare(.name))]
pub struct UnknownTarget {
    /// The text.
    pub name: String,
}

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(text: &str) -> Result<Self, UnknownTarget> {
        let named = |target: &Self| target.name() == text || target.version() == Some(text);
        Self::ALL.into_iter().find(named).ok_or_else(|| UnknownTarget { name: text.into() })
    }
}

/// A piece of the state buffer that the program leaves to the event accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarveOut {
    /// First partition.
    pub base_partition: u64,
    /// Number of partitions.
    pub partitions: u64,
    /// Offset in each partition.
    pub offset_bytes: u64,
    /// Length in each partition.
    pub size_bytes: u64,
}

impl CarveOut {
    /// The only carve-out that second-generation devices accept (KBL facts, load sequence).
    pub const EVENT_ACCELERATOR: Self =
        Self { base_partition: 0, partitions: 128, offset_bytes: 0x3_7FF8, size_bytes: 8 };
}

/// Tables and streams a program brings along; present in the container, not interpreted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Activation function sets by name.
    pub activation_function_sets: Vec<String>,
    /// Number of vector-engine tables.
    pub dve_tables: usize,
    /// Number of collective streams.
    pub collective_streams: u64,
    /// Whether an fp8 conversion configuration is there.
    pub fp8_conversion: bool,
    /// SHA-256 over all that the tables hold, as far as the container tells it: programs with equal digests have equal tables.
    pub digest: [u8; 32],
}

/// The program of one physical core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Name of the subgraph, such as `sg00`.
    pub name: String,
    /// What it was compiled for.
    pub target: Target,
    /// Indexed by var_id; at least one is an output.
    pub vars: Vec<Var>,
    /// Sorted by name.
    pub queues: Vec<Queue>,
    /// PE, ACT, POOL, DVE, SP.
    pub engines: [EngineProgram; Engine::COUNT],
    /// Event-accelerator carve-out, where stated.
    pub carve_out: Option<CarveOut>,
    /// What else is there.
    pub tables: Tables,
}

impl Program {
    /// The variable of that number; numbers inside a program always have one.
    pub fn var(&self, id: VarId) -> &Var {
        &self.vars[id.0 as usize]
    }

    /// The variable of that name.
    pub fn var_named(&self, name: &str) -> Option<&Var> {
        self.vars.iter().find(|var| var.name == name)
    }

    /// Inputs in var_id order.
    pub fn inputs(&self) -> impl Iterator<Item = &Var> {
        self.vars.iter().filter(|var| var.kind == VarKind::Input)
    }

    /// Outputs in var_id order.
    pub fn outputs(&self) -> impl Iterator<Item = &Var> {
        self.vars.iter().filter(|var| var.kind == VarKind::Output)
    }
}
