//! What a container says, for people (`Display`) and for programs (`Serialize`).

use std::fmt::{self, Display};

use serde::Serialize;
use sluice_core::mmio::QueueId;

use super::error::Bare;
use super::header::Package;
use super::program::{
    Backing, CarveOut, DmaBlock, EngineProgram, Program, Queue, QueueKind, Target, Var, VarKind, Work,
    engine_key,
};
use super::{Header, Neff};

/// A container.
#[derive(Clone, Debug, Serialize)]
pub struct Summary<'a> {
    /// Name of the model.
    pub name: &'a str,
    /// `plain` or `gzip`.
    pub package: &'static str,
    /// Major and minor format version.
    pub format: [u64; 2],
    /// What the compiler says about itself.
    pub build: &'a str,
    /// Identity, in hexadecimal digits.
    pub uuid: String,
    /// Hash as stored, in hexadecimal digits.
    pub hash: String,
    /// Numbers of the feature bits that are set.
    pub feature_bits: Vec<u32>,
    /// Physical cores per virtual core.
    pub virtual_core_size: u32,
    /// Cores the model asks for.
    pub cores_requested: u32,
    /// Members of the archive.
    pub members: usize,
    /// Their length together, in bytes.
    pub unpacked_bytes: u64,
    /// One per physical core.
    pub subgraphs: Vec<SubgraphSummary<'a>>,
}

/// One subgraph.
#[derive(Clone, Debug, Serialize)]
pub struct SubgraphSummary<'a> {
    /// Its name.
    pub name: &'a str,
    /// Architecture.
    pub target: &'static str,
    /// All variables in var_id order.
    pub vars: Vec<VarSummary<'a>>,
    /// Queues in name order.
    pub queues: Vec<QueueSummary<'a>>,
    /// Engines that have instructions or blocks.
    pub engines: Vec<EngineSummary<'a>>,
    /// Event-accelerator carve-out: base partition, partitions, offset, size.
    pub carve_out: Option<[u64; 4]>,
    /// Activation function sets.
    pub activation_function_sets: &'a [String],
    /// Vector-engine tables.
    pub dve_tables: usize,
    /// Collective streams.
    pub collective_streams: u64,
    /// Whether there is an fp8 conversion configuration.
    pub fp8_conversion: bool,
}

/// One variable.
#[derive(Clone, Debug, Serialize)]
pub struct VarSummary<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its number.
    pub var_id: u32,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its length in bytes.
    pub size: u64,
    /// Its alignment in bytes.
    pub alignment: u64,
    /// Element type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<&'a str>,
    /// Extent per dimension.
    #[serde(skip_serializing_if = "<[u64]>::is_empty")]
    pub shape: &'a [u64],
    /// Variables it refers to, by name: target of a pointer, rows of a table.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refers_to: Vec<&'a str>,
    /// Offset in its range and name of the range, of a virtual temporary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing: Option<(u64, &'static str)>,
}

/// One queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueSummary<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it is for.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its engine.
    pub owner: &'static str,
    /// Queue of the device with its ring.
    pub ring: Option<u32>,
    /// Completion semaphores.
    pub semaphores: Vec<u32>,
}

/// One engine.
#[derive(Clone, Debug, Serialize)]
pub struct EngineSummary<'a> {
    /// Its name.
    pub engine: &'static str,
    /// Instructions of 64 bytes.
    pub instructions: usize,
    /// `idle`, `opaque` (cannot be interpreted) or `blocks`.
    pub work: &'static str,
    /// Static DMA lists.
    pub blocks: Vec<BlockSummary<'a>>,
}

/// One static DMA list.
#[derive(Clone, Debug, Serialize)]
pub struct BlockSummary<'a> {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: Option<&'a str>,
    /// Its queue.
    pub queue: &'a str,
    /// Copies in it.
    pub copies: usize,
    /// Descriptor pairs it becomes.
    pub pairs: u32,
    /// Bytes it moves.
    pub bytes: u64,
}

impl Neff {
    /// A description of everything in the container that is read.
    pub fn summary(&self) -> Summary<'_> {
        let Header { name, package, major, minor, build, uuid, hash, features, .. } = &self.header;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Summary {
            name,
            package: match package {
                Package::Plain => "plain",
                Package::Gzip => "gzip",
            },
            format: [*major, *minor],
            build,
            uuid: hex(uuid),
            hash: hex(hash),
            feature_bits: (0..u64::BITS).filter(|bit| features >> bit & 1 == 1).collect(),
            virtual_core_size: self.header.virtual_core_size,
            cores_requested: self.header.cores_requested,
            members: self.members.len(),
            unpacked_bytes: self.members.iter().map(|member| member.len_bytes as u64).sum(),
            subgraphs: self.programs.iter().map(SubgraphSummary::of).collect(),
        }
    }
}

impl<'a> SubgraphSummary<'a> {
    fn of(program: &'a Program) -> Self {
        Self {
            name: &program.name,
            target: match program.target {
                Target::Sunda => "sunda",
                Target::Cayman => "cayman",
                Target::Mariana => "mariana",
                Target::Any => "any",
            },
            vars: program.vars.iter().map(|var| VarSummary::of(program, var)).collect(),
            queues: program.queues.iter().map(QueueSummary::of).collect(),
            engines: program
                .engines
                .iter()
                .filter(|engine| engine.work != Work::Idle || !engine.blocks.is_empty())
                .map(|engine| EngineSummary::of(program, engine))
                .collect(),
            carve_out: program.carve_out.map(
                |CarveOut { base_partition, partitions, offset_bytes, size_bytes }| {
                    [base_partition, partitions, offset_bytes, size_bytes]
                },
            ),
            activation_function_sets: &program.tables.activation_function_sets,
            dve_tables: program.tables.dve_tables,
            collective_streams: program.tables.collective_streams,
            fp8_conversion: program.tables.fp8_conversion,
        }
    }
}

impl<'a> VarSummary<'a> {
    fn of(program: &'a Program, var: &'a Var) -> Self {
        let referred = match &var.kind {
            VarKind::Pointer { target } => std::slice::from_ref(target),
            VarKind::List { ids } => ids,
            VarKind::PointerTable { rows } => rows,
            _ => &[],
        };
        let backing = match var.kind {
            VarKind::Virtual { offset_bytes, backing } => Some((
                offset_bytes,
                match backing {
                    Backing::Local => "local",
                    Backing::Shared => "shared",
                    Backing::Sharded => "sharded",
                    Backing::Main => "main",
                },
            )),
            _ => None,
        };
        Self {
            name: &var.name,
            var_id: var.id.0,
            kind: match var.kind {
                VarKind::StateBuffer => "state-buffer",
                VarKind::File { .. } => "file",
                VarKind::Temporary => "temporary",
                VarKind::Virtual { .. } => "virtual",
                VarKind::Input => "input",
                VarKind::Output => "output",
                VarKind::Pointer { .. } => "pointer",
                VarKind::List { .. } => "list",
                VarKind::PointerTable { .. } => "dge-table",
            },
            size: var.size_bytes,
            alignment: var.alignment_bytes,
            dtype: var.dtype.as_deref(),
            shape: &var.shape,
            refers_to: referred.iter().map(|&id| program.var(id).name.as_str()).collect(),
            backing,
        }
    }
}

impl<'a> QueueSummary<'a> {
    fn of(queue: &'a Queue) -> Self {
        Self {
            name: &queue.name,
            kind: match queue.kind {
                QueueKind::In => "in",
                QueueKind::Out => "out",
                QueueKind::Data => "data",
                QueueKind::ActLoad => "act_load",
                QueueKind::EmbeddingUpdate => "embedding_update",
                QueueKind::Dynamic => "dynamic",
            },
            owner: engine_key(queue.owner),
            ring: queue.ring.map(QueueId::get),
            semaphores: queue.semaphores.iter().map(|semaphore| semaphore.get()).collect(),
        }
    }
}

impl<'a> EngineSummary<'a> {
    fn of(program: &'a Program, engine: &'a EngineProgram) -> Self {
        let block = |block: &'a DmaBlock| BlockSummary {
            id: block.id,
            name: block.name.as_deref(),
            queue: &program.queues[block.queue].name,
            copies: block.copies.len(),
            pairs: block.pairs,
            bytes: block.copies.iter().map(|copy| copy.from_pattern().len_bytes()).sum(),
        };
        Self {
            engine: engine_key(engine.engine),
            instructions: engine.instruction_count(),
            work: match engine.work {
                Work::Idle => "idle",
                Work::Opaque => "opaque",
                Work::Blocks(_) => "blocks",
            },
            blocks: engine.blocks.iter().map(block).collect(),
        }
    }
}

/// "1 thing", "2 things".
struct Count(usize, &'static str);

impl Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, what) = self;
        write!(f, "{count} {what}{}", if *count == 1 { "" } else { "s" })
    }
}

impl Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor] = self.format;
        writeln!(
            f,
            "{}: {} container, format {major}.{minor}, {}, virtual core size {}",
            Bare(self.name),
            self.package,
            Count(self.subgraphs.len(), "subgraph"),
            self.virtual_core_size
        )?;
        write!(f, "  uuid {}", self.uuid)?;
        if !self.feature_bits.is_empty() {
            write!(f, ", feature bits {:?}", self.feature_bits)?;
        }
        writeln!(f)?;
        writeln!(f, "  {}, {} bytes unpacked", Count(self.members, "member"), self.unpacked_bytes)?;
        if !self.build.is_empty() {
            writeln!(f, "  built by {}", Bare(self.build))?;
        }
        self.subgraphs.iter().try_for_each(|subgraph| write!(f, "\n{subgraph}"))
    }
}

impl Display for SubgraphSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} for {}", Bare(self.name), self.target)?;
        for var in &self.vars {
            writeln!(f, "  {var}")?;
        }
        for queue in &self.queues {
            write!(f, "  queue {}: {}, owner {}", Bare(queue.name), queue.kind, queue.owner)?;
            if let Some(ring) = queue.ring {
                write!(f, ", ring {ring}")?;
            }
            writeln!(f, ", semaphores {:?}", queue.semaphores)?;
        }
        for engine in &self.engines {
            let note = if engine.work == "opaque" { ", not interpreted" } else { "" };
            writeln!(f, "  engine {}: {}{note}", engine.engine, Count(engine.instructions, "instruction"))?;
            for block in &engine.blocks {
                writeln!(
                    f,
                    "    block {} {} on {}: {} bytes in {}",
                    block.id,
                    Bare(block.name.unwrap_or("")),
                    Bare(block.queue),
                    block.bytes,
                    Count(block.pairs as usize, "descriptor pair")
                )?;
            }
        }
        if let Some([base, partitions, offset, size]) = self.carve_out {
            writeln!(
                f,
                "  event accelerator: {size} bytes at {offset} in {partitions} partitions from {base}"
            )?;
        }
        for set in self.activation_function_sets {
            writeln!(f, "  activation functions {}", Bare(set))?;
        }
        if self.dve_tables > 0 {
            writeln!(f, "  {}", Count(self.dve_tables, "vector-engine table"))?;
        }
        Ok(())
    }
}

impl Display for VarSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:12} {} (var {})", self.kind, Bare(self.name), self.var_id)?;
        if self.size > 0 {
            write!(f, ", {} bytes", self.size)?;
        }
        if self.alignment > 1 {
            write!(f, " aligned to {}", self.alignment)?;
        }
        if let Some(dtype) = self.dtype {
            write!(f, ", {}{:?}", Bare(dtype), self.shape)?;
        }
        if let Some((offset, range)) = self.backing {
            write!(f, ", at {offset} of the {range} range")?;
        }
        let mut separator = " → ";
        for name in &self.refers_to {
            write!(f, "{separator}{}", Bare(name))?;
            separator = ", ";
        }
        Ok(())
    }
}
