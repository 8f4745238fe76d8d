//! Where each byte of each output comes from.
//!
//! The programs are interpreted once, byte by byte, on *origins* instead of values: a byte of a tensor as it was before
//! the execution, a constant, or scratch memory that nothing has written. After an execution each byte of an output is
//! compared with the byte that its origin names.
//!
//! ```text
//!   a: a0 a1 a2 a3     copy [2 of step 2]    keep: a0 a2      copy      out: · a0 a2 ·      "·" = as before
//! ```
//!
//! Engines run side by side and wait for semaphores. Any order that the semaphores allow has to give the same bytes, so
//! one such order is enough.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use sluice_core::exec::SemaphoreWait;
use sluice_core::fmap::VarId;
use sluice_core::mmio::{Engine, SemaphoreId};

use crate::neff::pattern::MAX_DIMS;
use crate::neff::{Backing, Dim, DmaCopy, DmaOp, Pattern, Program, RunBlock, VarKind, Work};

/// Most bytes of variables that are followed; each costs eight bytes of host memory.
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

/// A byte's origin in 64 bits: what it is in the upper 16, offset or value in the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Origin(u64);

/// An [`Origin`], taken apart.
enum Source {
    /// A byte of a tensor, before the execution.
    Before {
        tensor: usize,
        offset: usize,
    },
    Constant(u8),
    Unwritten,
}

impl Origin {
    const SHIFT: u32 = 48;
    const CONSTANT: u64 = 0xfffe;
    const UNWRITTEN: Self = Self(0xffff << Self::SHIFT);

    /// Tensor numbers are below [`MAX_TENSORS`], and offsets below [`MAX_FOLLOWED_BYTES`].
    const fn before(tensor: usize, offset: u64) -> Self {
        Self((tensor as u64) << Self::SHIFT | offset)
    }

    const fn constant(value: u8) -> Self {
        Self(Self::CONSTANT << Self::SHIFT | value as u64)
    }

    const fn source(self) -> Source {
        match self.0 >> Self::SHIFT {
            0xffff => Source::Unwritten,
            Self::CONSTANT => Source::Constant(self.0 as u8),
            tensor => {
                Source::Before { tensor: tensor as usize, offset: (self.0 & 0xffff_ffff_ffff) as usize }
            }
        }
    }
}

/// Most tensors that are told apart.
const MAX_TENSORS: usize = 0xfffe;

/// A bound tensor: an input or output that any program names, once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// The name it is bound by.
    pub name: String,
    /// The most bytes that any program wants of it.
    pub size_bytes: u64,
    /// The greatest alignment that any program wants.
    pub align_bytes: u64,
    /// Whether any program writes it.
    pub is_output: bool,
}

/// A byte that is not what it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Where in the output.
    pub offset: usize,
    /// What should stand there.
    pub expected: u8,
    /// What stands there.
    pub found: u8,
}

/// The origins of all output bytes of a model.
#[derive(Clone, Debug)]
pub struct Origins {
    tensors: Vec<Tensor>,
    /// By tensor; empty for inputs.
    bytes: Vec<Vec<Origin>>,
}

impl Origins {
    /// The tensors of the programs, inputs and outputs, in the order in which programs name them.
    pub fn tensors_of(programs: &[Program]) -> Vec<Tensor> {
        let mut tensors: Vec<Tensor> = Vec::new();
        let mut known = HashMap::new();
        for var in programs.iter().flat_map(|program| &program.vars).filter(|var| var.kind.is_io()) {
            let is_output = var.kind == VarKind::Output;
            match known.entry((var.name.as_str(), is_output)) {
                Entry::Occupied(place) => {
                    let tensor: &mut Tensor = &mut tensors[*place.get()];
                    tensor.size_bytes = tensor.size_bytes.max(var.size_bytes);
                    tensor.align_bytes = tensor.align_bytes.max(var.alignment_bytes);
                }
                Entry::Vacant(place) => {
                    place.insert(tensors.len());
                    let (size_bytes, align_bytes) = (var.size_bytes, var.alignment_bytes);
                    tensors.push(Tensor { name: var.name.clone(), size_bytes, align_bytes, is_output });
                }
            }
        }
        tensors
    }

    /// Follows one execution of all programs.
    pub fn of(programs: &[Program]) -> Result<Self, Unverifiable> {
        let tensors = Self::tensors_of(programs);
        let mut memory = Followed::new(programs, &tensors)?;
        for (index, program) in programs.iter().enumerate() {
            memory.run(index, program)?;
        }
        let mut bytes = memory.places;
        bytes.truncate(tensors.len());
        for (tensor, bytes) in tensors.iter().zip(&mut bytes) {
            if !tensor.is_output {
                *bytes = Vec::new();
            }
            let undefined = bytes.iter().filter(|&&origin| origin == Origin::UNWRITTEN).count();
            if undefined > 0 {
                return Err(Unverifiable::Undefined { output: tensor.name.clone(), bytes: undefined });
            }
        }
        Ok(Self { tensors, bytes })
    }

    /// The bound tensors; contents are given in this order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The first byte of output `tensor` that is not what it should be.
    ///
    /// `before` holds what each tensor held before the execution, and `found` what the output holds after it.
    pub fn first_difference(&self, tensor: usize, before: &[Vec<u8>], found: &[u8]) -> Option<Difference> {
        let expected = self.bytes[tensor].iter().map(|origin| match origin.source() {
            Source::Before { tensor, offset } => before[tensor][offset],
            Source::Constant(value) => value,
            Source::Unwritten => unreachable!("outputs with such bytes are refused"),
        });
        expected
            .zip(found)
            .enumerate()
            .find(|(_, (expected, found))| expected != *found)
            .map(|(offset, (expected, &found))| Difference { offset, expected, found })
    }
}

/// The memory of all programs, as origins.
struct Followed {
    /// Tensors first, then what programs have for themselves.
    places: Vec<Vec<Origin>>,
    /// By program and variable: the place and where in it the variable begins; `None` when it holds no data.
    vars: Vec<Vec<Option<(usize, u64)>>>,
    copied_bytes: u64,
}

impl Followed {
    fn new(programs: &[Program], tensors: &[Tensor]) -> Result<Self, Unverifiable> {
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
        let before =
            |tensor: usize, bytes: u64| (0..bytes).map(move |at| Origin::before(tensor, at)).collect();
        let mut memory = Self {
            places: tensors.iter().enumerate().map(|(i, tensor)| before(i, tensor.size_bytes)).collect(),
            vars: Vec::new(),
            copied_bytes: 0,
        };
        let mut scratch: Vec<((Option<usize>, Backing), usize)> = Vec::new();
        for (index, program) in programs.iter().enumerate() {
            let vars = program.vars.iter().map(|var| match &var.kind {
                VarKind::Input | VarKind::Output => {
                    let name = (var.name.as_str(), var.kind == VarKind::Output);
                    by_name.get(&name).map(|&place| (place, 0))
                }
                VarKind::File { content } => {
                    Some((memory.place(content.iter().map(|&byte| Origin::constant(byte)).collect()), 0))
                }
                VarKind::Temporary => {
                    Some((memory.place(vec![Origin::UNWRITTEN; var.size_bytes as usize]), 0))
                }
                &VarKind::Virtual { offset_bytes, backing } => {
                    // Local scratch is each program's own; the other ranges are seen by all.
                    let range = ((backing == Backing::Local).then_some(index), backing);
                    let known = scratch.iter().find(|(known, _)| *known == range).map(|&(_, place)| place);
                    let place = known.unwrap_or_else(|| {
                        scratch.push((range, memory.place(Vec::new())));
                        memory.places.len() - 1
                    });
                    let end = (offset_bytes + var.size_bytes) as usize;
                    let bytes = &mut memory.places[place];
                    bytes.resize(bytes.len().max(end), Origin::UNWRITTEN);
                    Some((place, offset_bytes))
                }
                VarKind::StateBuffer
                | VarKind::Pointer { .. }
                | VarKind::List { .. }
                | VarKind::PointerTable { .. } => None,
            });
            let vars = vars.collect();
            memory.vars.push(vars);
        }
        Ok(memory)
    }

    fn place(&mut self, bytes: Vec<Origin>) -> usize {
        self.places.push(bytes);
        self.places.len() - 1
    }

    /// Runs a program in an order that its semaphores allow. That every block gets its turn is a promise of the container's
    /// reader.
    fn run(&mut self, index: usize, program: &Program) -> Result<(), Unverifiable> {
        let mut semaphores = [0u32; SemaphoreId::COUNT as usize];
        let mut next = [0; Engine::COUNT];
        loop {
            let mut moved = false;
            for (engine, next) in program.engines.iter().zip(&mut next) {
                let runs = match &engine.work {
                    Work::Idle => continue,
                    Work::Opaque => {
                        let program = program.name.clone();
                        return Err(Unverifiable::Opaque { program, engine: engine.engine });
                    }
                    Work::Blocks(runs) => runs,
                };
                while let Some(run) = runs.get(*next) {
                    let reached =
                        |wait: &SemaphoreWait| semaphores[wait.semaphore.get() as usize] >= wait.at_least;
                    if !run.waits.iter().all(reached) {
                        break;
                    }
                    self.run_block(index, program, engine.engine, run)?;
                    if let Some(signal) = run.signal {
                        semaphores[signal.get() as usize] += 1;
                    }
                    *next += 1;
                    moved = true;
                }
            }
            if !moved {
                return Ok(());
            }
        }
    }

    fn run_block(
        &mut self,
        index: usize,
        program: &Program,
        engine: Engine,
        run: &RunBlock,
    ) -> Result<(), Unverifiable> {
        let blocks = &program.engines[engine.index()].blocks;
        let Some(block) = blocks.iter().find(|block| block.id == run.block) else { return Ok(()) };
        if block.op != DmaOp::Copy {
            return Err(Unverifiable::NotCopy { program: program.name.clone(), engine, block: block.id });
        }
        let name_of = |var| program.var(var).name.clone();
        for copy in &block.copies {
            let program = || program.name.clone();
            self.copy(index, copy).map_err(|refused| match refused {
                Refused::NoData(var) => Unverifiable::NoData {
                    program: program(),
                    engine,
                    block: block.id,
                    variable: name_of(var),
                },
                Refused::Overlap(var) => Unverifiable::Overlap {
                    program: program(),
                    engine,
                    block: block.id,
                    variable: name_of(var),
                },
                Refused::Long => Unverifiable::TooLong,
            })?;
        }
        Ok(())
    }

    fn copy(&mut self, index: usize, copy: &DmaCopy) -> Result<(), Refused> {
        let place = |var: VarId| self.vars[index][var.0 as usize].ok_or(Refused::NoData(var));
        let ((from, from_base), (to, to_base)) = (place(copy.from())?, place(copy.to())?);
        let (from_pattern, to_pattern) = (copy.from_pattern(), copy.to_pattern());
        let apart = from_base + from_pattern.end_bytes() <= to_base + to_pattern.offset_bytes()
            || to_base + to_pattern.end_bytes() <= from_base + from_pattern.offset_bytes();
        if from == to && !apart {
            return Err(Refused::Overlap(copy.to()));
        }
        self.copied_bytes = self.copied_bytes.saturating_add(from_pattern.len_bytes());
        if self.copied_bytes > MAX_COPIED_BYTES {
            return Err(Refused::Long);
        }
        for (from_offset, to_offset) in Offsets::of(from_pattern).zip(Offsets::of(to_pattern)) {
            let origin = self.places[from][(from_base + from_offset) as usize];
            self.places[to][(to_base + to_offset) as usize] = origin;
        }
        Ok(())
    }
}

/// Why a copy is not followed.
enum Refused {
    NoData(VarId),
    Overlap(VarId),
    Long,
}

/// The offsets of a pattern, one by one: a counter per dimension, the innermost runs fastest.
struct Offsets<'a> {
    dims: &'a [Dim],
    counters: [u64; MAX_DIMS],
    next: Option<u64>,
}

impl<'a> Offsets<'a> {
    fn of(pattern: &'a Pattern) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neff::{Neff, ReadOptions, models, pack};

    fn programs(spec: &str) -> Vec<Program> {
        let bytes = pack("spec", spec).unwrap();
        Neff::parse("spec", &bytes, &ReadOptions::default()).unwrap().programs
    }

    /// A program with input `x` and output `z` of eight bytes each, and what `rest` adds.
    fn small(vars: &str, blocks: &str) -> Vec<Program> {
        programs(&format!(
            r#"
            [model]
            name = "small"
            target = "cayman"
            [[tpb]]
            var = [
              {{ name = "x", type = "input", size = 8 }},
              {{ name = "z", type = "output", size = 8 }},
              {vars}
            ]
            queue = [
              {{ name = "q_in", type = "in", owner = "pool", semaphore = 10 }},
              {{ name = "q_out", type = "out", owner = "sp", semaphore = 11 }},
            ]
            {blocks}
            "#
        ))
    }

    const X: &[u8] = b"abcdefgh";
    const Z: &[u8] = b"01234567";

    /// What `z` should hold afterwards, found by asking for each byte.
    fn expected(programs: &[Program]) -> String {
        let origins = Origins::of(programs).unwrap();
        let before = [X.to_vec(), Z.to_vec()];
        let mut found = vec![0xff; 8];
        while let Some(difference) = origins.first_difference(1, &before, &found) {
            assert_eq!((difference.found, found[difference.offset]), (0xff, 0xff));
            found[difference.offset] = difference.expected;
        }
        String::from_utf8(found).unwrap()
    }

    fn block(queue: &str, extra: &str, copy: &str) -> String {
        format!("[[tpb.block]]\nqueue = \"{queue}\"\n{extra}\ncopy = [{copy}]\n")
    }

    #[test]
    fn strides_are_followed_on_both_sides() {
        let columns = block(
            "q_in",
            "",
            r#"{ from = "x", from_sizes = [2, 2], from_steps = [4, 1],
                 to = "z", to_off = 1, to_sizes = [4], to_steps = [2] }"#,
        );
        assert_eq!(expected(&small("", &columns)), "0a2b4e6f");
    }

    #[test]
    fn constants_and_scratch_are_followed_through_semaphores() {
        let vars = r#"
            { name = "one", type = "file", size = 1, repeat = "21" },
            { name = "low", type = "virtual", offset = 0, size = 4 },
            { name = "high", type = "virtual", offset = 2, size = 4 },
        "#;
        // The storing engine comes first in engine order on neither side: only the semaphore orders the two.
        let blocks = [
            block(
                "q_out",
                "wait = [{ semaphore = 0, at_least = 2 }]",
                r#"{ from = "low", to = "z", bytes = 4 }"#,
            ),
            block("q_in", "signal = 0", r#"{ from = "x", to = "low", bytes = 4 }"#),
            block(
                "q_in",
                "signal = 0",
                r#"{ from = "one", from_sizes = [4], from_steps = [0], to = "high" }"#,
            ),
        ];
        assert_eq!(expected(&small(vars, &blocks.concat())), "ab!!4567");
    }

    #[test]
    fn what_cannot_be_worked_out_is_named() {
        let refused = |vars: &str, blocks: &str| Origins::of(&small(vars, blocks)).unwrap_err().to_string();
        let temporary = r#"{ name = "t", type = "temporary", size = 8 },"#;
        assert_eq!(
            refused(temporary, &block("q_in", "", r#"{ from = "t", to = "z", bytes = 3 }"#)),
            "`z`: 3 bytes come from scratch memory that the program does not write"
        );
        let cell = r#"{ name = "cell", type = "pointer", to = "x" },"#;
        assert!(
            refused(cell, &block("q_in", "", r#"{ from = "cell", to = "z", bytes = 8 }"#))
                .contains("touches `cell`, which holds no data")
        );
        assert!(
            refused("", &block("q_in", "", r#"{ from = "z", to = "z", to_off = 2, bytes = 4 }"#))
                .contains("copies `z` onto itself")
        );
        let huge = r#"{ name = "h", type = "temporary", size = 4294967296 },"#;
        assert_eq!(
            refused(huge, &block("q_in", "", r#"{ from = "x", to = "z", bytes = 8 }"#)),
            "variables of 4294967312 bytes, at most 16777216 are followed"
        );
    }

    #[test]
    fn every_built_in_model_can_be_worked_out() {
        for name in models::NAMES {
            let programs = programs(models::builtin(name).unwrap());
            let origins = Origins::of(&programs).unwrap();
            assert!(origins.tensors().iter().any(|tensor| tensor.is_output), "{name}");
        }
    }

    #[test]
    fn programs_that_share_an_output_share_its_bytes() {
        let origins = Origins::of(&programs(models::builtin("gather").unwrap())).unwrap();
        let names: Vec<_> = origins.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "own0", "mix", "own1"]);
        let mix = &origins.bytes[3];
        let from = |offset: usize| match mix[offset].source() {
            Source::Before { tensor, offset } => (names[tensor], offset),
            _ => panic!(),
        };
        // Row 0 by the first program, out of `a`; row 1 by the second, out of `b`.
        assert_eq!((from(0), from(256)), (("a", 128), ("b", 32768)));
    }
}
