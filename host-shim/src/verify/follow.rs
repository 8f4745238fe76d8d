//! The copies of all programs, one after the other, as they go from byte to byte.
//!
//! ```text
//!   programs ── runs in an order that the semaphores allow ──► Transfer, Transfer, …
//!                                                              by whom, from place and offset, to place and offset
//! ```
//!
//! A *place* is memory that is apart from all other: a bound tensor, a constant, a range of scratch memory.

use std::collections::HashMap;

use sluice_core::fmap::VarId;
use sluice_core::mmio::Engine;

use super::order::{Run, runs, schedule};
use super::origin::{MAX_TENSORS, Tensor};
use crate::neff::pattern::MAX_DIMS;
use crate::neff::{Backing, Dim, DmaBlock, DmaCopy, DmaOp, Pattern, Program, VarKind, Work};

/// Most bytes of variables that are followed; each costs sixteen bytes of host memory.
pub const MAX_FOLLOWED_BYTES: u64 = 16 << 20;

/// Most bytes that the copies of one execution may move for it to be followed.
pub const MAX_COPIED_BYTES: u64 = 1 << 28;

/// Why the outputs of a model cannot be worked out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unverifiable {
    /// An engine's instructions are not ours.
    #[error("{program}: the program of engine {engine} cannot be interpreted")]
    Opaque {
        /// The subgraph.
        program: String,
        /// The engine.
        engine: Engine,
    },
    /// More bytes than are followed.
    #[error("variables of {bytes} bytes, at most {MAX_FOLLOWED_BYTES} are followed")]
    TooLarge {
        /// Bytes of all variables.
        bytes: u64,
    },
    /// More copying than is followed.
    #[error("copies of more than {MAX_COPIED_BYTES} bytes per execution")]
    TooLong,
    /// A block that does not copy.
    #[error("{program}: block {block} of engine {engine} does more than copy")]
    NotCopy {
        /// The subgraph.
        program: String,
        /// The engine.
        engine: Engine,
        /// The block.
        block: u32,
    },
    /// A block that touches a variable whose bytes are no data of the model.
    #[error("{program}: block {block} of engine {engine} touches `{variable}`, which holds no data")]
    NoData {
        /// The subgraph.
        program: String,
        /// The engine.
        engine: Engine,
        /// The block.
        block: u32,
        /// The variable.
        variable: String,
    },
    /// A block that copies bytes onto themselves, in an order that is not defined.
    #[error("{program}: block {block} of engine {engine} copies `{variable}` onto itself")]
    Overlap {
        /// The subgraph.
        program: String,
        /// The engine.
        engine: Engine,
        /// The block.
        block: u32,
        /// The variable.
        variable: String,
    },
    /// Output bytes that come from memory nothing has written.
    #[error("`{output}`: {bytes} bytes come from scratch memory that the program does not write")]
    Undefined {
        /// The output.
        output: String,
        /// How many.
        bytes: usize,
    },
}

/// What a place holds before an execution.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    /// What the caller left in the tensor of that number.
    Tensor(usize),
    Constant(&'a [u8]),
    Unwritten,
}

/// Memory that is apart from all other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) content: Content<'a>,
    pub(super) bytes: usize,
}

/// Who moves bytes: a run of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mover {
    pub(super) program: usize,
    pub(super) run: Run,
}

/// A place, and where in it a variable begins.
type At = (usize, u64);

/// Where each variable of a program lies; `None` when it holds no data.
type Vars = Vec<Option<At>>;

/// A copy as it goes from place to place.
#[derive(Debug)]
pub(super) struct Transfer<'a> {
    pub(super) by: Mover,
    copy: &'a DmaCopy,
    from: At,
    to: At,
}

impl Transfer<'_> {
    pub(super) fn source(&self) -> usize {
        self.from.0
    }

    pub(super) fn destination(&self) -> usize {
        self.to.0
    }

    /// Each byte: where in its place it comes from, and where it goes.
    pub(super) fn bytes(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let offsets =
            |(_, base): At, pattern| Offsets::of(pattern).map(move |offset| (base + offset) as usize);
        offsets(self.from, self.copy.from_pattern()).zip(offsets(self.to, self.copy.to_pattern()))
    }
}

/// Everything that one execution of all programs moves.
#[derive(Debug)]
pub(super) struct Followed<'a> {
    /// Tensors first, then what programs have for themselves.
    pub(super) places: Vec<Place<'a>>,
    pub(super) transfers: Vec<Transfer<'a>>,
}

impl<'a> Followed<'a> {
    pub(super) fn new(programs: &'a [Program], tensors: &[Tensor]) -> Result<Self, Unverifiable> {
        let (places, vars) = place_all(programs, tensors)?;
        let (mut transfers, mut copied_bytes) = (Vec::new(), 0u64);
        for (index, (program, vars)) in programs.iter().zip(&vars).enumerate() {
            let opaque = program.engines.iter().find(|engine| engine.work == Work::Opaque);
            if let Some(engine) = opaque {
                return Err(Unverifiable::Opaque { program: program.name.clone(), engine: engine.engine });
            }
            for run in schedule(program) {
                let Some(block) = block_of(program, run) else { continue };
                for copy in &block.copies {
                    copied_bytes = copied_bytes.saturating_add(copy.from_pattern().len_bytes());
                    if copied_bytes > MAX_COPIED_BYTES {
                        return Err(Unverifiable::TooLong);
                    }
                    let (from, to) = ends(program, run.engine, block, copy, vars)?;
                    transfers.push(Transfer { by: Mover { program: index, run }, copy, from, to });
                }
            }
        }
        Ok(Self { places, transfers })
    }
}

/// The block that a run runs.
pub(super) fn block_of(program: &Program, run: Run) -> Option<&DmaBlock> {
    let id = runs(program, run.engine)[run.index].block;
    program.engines[run.engine.index()].blocks.iter().find(|block| block.id == id)
}

/// Where a copy goes from and to.
fn ends(
    program: &Program,
    engine: Engine,
    block: &DmaBlock,
    copy: &DmaCopy,
    vars: &[Option<At>],
) -> Result<(At, At), Unverifiable> {
    let (name, block_id) = (|| program.name.clone(), block.id);
    let variable = |var| program.var(var).name.clone();
    if block.op != DmaOp::Copy {
        return Err(Unverifiable::NotCopy { program: name(), engine, block: block_id });
    }
    let at = |var: VarId| {
        vars[var.0 as usize].ok_or_else(|| Unverifiable::NoData {
            program: name(),
            engine,
            block: block_id,
            variable: variable(var),
        })
    };
    let (from, to) = (at(copy.from())?, at(copy.to())?);
    let (from_pattern, to_pattern) = (copy.from_pattern(), copy.to_pattern());
    let apart = from.1 + from_pattern.end_bytes() <= to.1 + to_pattern.offset_bytes()
        || to.1 + to_pattern.end_bytes() <= from.1 + from_pattern.offset_bytes();
    if from.0 == to.0 && !apart {
        let variable = variable(copy.to());
        return Err(Unverifiable::Overlap { program: name(), engine, block: block_id, variable });
    }
    Ok((from, to))
}

/// All places, and the variables of each program.
fn place_all<'a>(
    programs: &'a [Program],
    tensors: &[Tensor],
) -> Result<(Vec<Place<'a>>, Vec<Vars>), Unverifiable> {
    let bytes = programs
        .iter()
        .flat_map(|program| &program.vars)
        .map(|var| match var.kind {
            VarKind::Virtual { offset_bytes, .. } => offset_bytes.saturating_add(var.size_bytes),
            _ => var.size_bytes,
        })
        .fold(0, u64::saturating_add);
    if bytes > MAX_FOLLOWED_BYTES || tensors.len() > MAX_TENSORS {
        return Err(Unverifiable::TooLarge { bytes });
    }
    let names = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.is_output));
    let by_name: HashMap<_, _> = names.zip(0..).collect();
    let of_tensor = |(number, tensor): (usize, &Tensor)| Place {
        content: Content::Tensor(number),
        bytes: tensor.size_bytes as usize,
    };
    let mut places: Vec<Place<'a>> = tensors.iter().enumerate().map(of_tensor).collect();
    let mut add = |content, bytes: u64| {
        places.push(Place { content, bytes: bytes as usize });
        places.len() - 1
    };
    let mut scratch: HashMap<Option<usize>, usize> = HashMap::new();
    let mut ends: HashMap<usize, u64> = HashMap::new();
    let mut all = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        let vars = program.vars.iter().map(|var| match &var.kind {
            VarKind::Input | VarKind::Output => {
                let name = (var.name.as_str(), var.kind == VarKind::Output);
                by_name.get(&name).map(|&place| (place, 0))
            }
            VarKind::File { content } => Some((add(Content::Constant(content), var.size_bytes), 0)),
            VarKind::Temporary => Some((add(Content::Unwritten, var.size_bytes), 0)),
            &VarKind::Virtual { offset_bytes, backing } => {
                // One range is the program's own, the other is seen by all.
                let range = matches!(backing, Backing::Local | Backing::Main).then_some(index);
                let place = *scratch.entry(range).or_insert_with(|| add(Content::Unwritten, 0));
                let end = ends.entry(place).or_default();
                *end = (*end).max(offset_bytes + var.size_bytes);
                Some((place, offset_bytes))
            }
            VarKind::StateBuffer
            | VarKind::Pointer { .. }
            | VarKind::List { .. }
            | VarKind::PointerTable { .. } => None,
        });
        let vars = vars.collect();
        all.push(vars);
    }
    for (place, end) in ends {
        places[place].bytes = end as usize;
    }
    Ok((places, all))
}

/// The offsets of a pattern, one by one: a counter per dimension, the innermost runs fastest.
pub(super) struct Offsets<'a> {
    dims: &'a [Dim],
    counters: [u64; MAX_DIMS],
    next: Option<u64>,
}

impl<'a> Offsets<'a> {
    pub(super) fn of(pattern: &'a Pattern) -> Self {
        Self { dims: pattern.dims(), counters: [0; MAX_DIMS], next: Some(pattern.offset_bytes()) }
    }
}

impl Iterator for Offsets<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let offset = self.next?;
        let mut following = offset;
        self.next = None;
        for (dim, counter) in self.dims.iter().zip(&mut self.counters).rev() {
            *counter += 1;
            if *counter < dim.size {
                self.next = Some(following + dim.step_bytes);
                break;
            }
            following -= (dim.size - 1) * dim.step_bytes;
            *counter = 0;
        }
        Some(offset)
    }
}
