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
//! Engines run side by side and wait for semaphores. One order that these allow is followed; a byte that would be another in
//! another order is not followed any further.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::follow::{Content, Followed, Mover, Unverifiable, block_of};
use super::order::{Order, schedule};
use super::parts::When;
use super::race::Races;
use crate::neff::{Program, VarKind};

/// A byte's origin in 64 bits: what it is in the upper 16, offset or value in the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin(u64);

/// An [`Origin`], taken apart.
pub(super) enum Source {
    /// A byte of a tensor, before the execution.
    Before {
        tensor: usize,
        offset: usize,
    },
    Constant(u8),
    /// Whoever comes last in the race of that number.
    Contested(usize),
    Unwritten,
}

impl Origin {
    const SHIFT: u32 = 48;
    const CONSTANT: u64 = 0xfffe;
    const CONTESTED: u64 = 0xfffd;
    const VALUE: u64 = (1 << Self::SHIFT) - 1;
    const UNWRITTEN: Self = Self(0xffff << Self::SHIFT);

    /// Tensor numbers are below [`MAX_TENSORS`], and offsets below [`MAX_FOLLOWED_BYTES`].
    const fn before(tensor: usize, offset: u64) -> Self {
        Self((tensor as u64) << Self::SHIFT | offset)
    }

    const fn constant(value: u8) -> Self {
        Self(Self::CONSTANT << Self::SHIFT | value as u64)
    }

    const fn contested(race: usize) -> Self {
        Self(Self::CONTESTED << Self::SHIFT | race as u64)
    }

    fn race(self) -> Option<usize> {
        match self.source() {
            Source::Contested(race) => Some(race),
            Source::Before { .. } | Source::Constant(_) | Source::Unwritten => None,
        }
    }

    pub(super) const fn source(self) -> Source {
        match self.0 >> Self::SHIFT {
            0xffff => Source::Unwritten,
            Self::CONSTANT => Source::Constant(self.0 as u8),
            Self::CONTESTED => Source::Contested((self.0 & Self::VALUE) as usize),
            tensor => Source::Before { tensor: tensor as usize, offset: (self.0 & Self::VALUE) as usize },
        }
    }
}

/// Most tensors that are told apart.
pub(super) const MAX_TENSORS: usize = Origin::CONTESTED as usize;

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

/// Bytes of an output that are now this and now that.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{output}`: {bytes} bytes are not verifiable: two blocks touch them unordered, {} and {}", blocks[0], blocks[1])]
pub struct Unordered {
    /// The output.
    pub output: String,
    /// How many.
    pub bytes: usize,
    /// The first two blocks of which that is true, by subgraph, engine and number.
    pub blocks: [String; 2],
}

/// The origins of all output bytes of a model.
#[derive(Clone, Debug)]
pub struct Origins {
    tensors: Vec<Tensor>,
    /// By tensor; empty for inputs.
    bytes: Vec<Vec<Origin>>,
    unordered: Vec<Unordered>,
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
        Self::watched(programs, &mut |_, _, _| ())
    }

    /// The same, and tells `watch` what all places hold before and after each run, tensors first.
    pub(super) fn watched(programs: &[Program], watch: Watch<'_>) -> Result<Self, Unverifiable> {
        let tensors = Self::tensors_of(programs);
        let followed = Followed::new(programs, &tensors)?;
        let orders: Vec<_> = programs.iter().map(|program| Order::of(program, &schedule(program))).collect();
        let races = Races::of(&followed, &orders);
        let mut bytes = origins(&followed, &races, watch);
        let mut unordered = Vec::new();
        for (tensor, bytes) in tensors.iter().zip(&mut bytes) {
            if !tensor.is_output {
                *bytes = Vec::new();
            }
            let undefined = bytes.iter().filter(|&&origin| origin == Origin::UNWRITTEN).count();
            if undefined > 0 {
                return Err(Unverifiable::Undefined { output: tensor.name.clone(), bytes: undefined });
            }
            let mut contested = bytes.iter().filter_map(|origin| origin.race()).peekable();
            if let Some(&race) = contested.peek() {
                let blocks = races.pair(race).map(|mover| name_of(programs, mover));
                unordered.push(Unordered { output: tensor.name.clone(), bytes: contested.count(), blocks });
            }
        }
        Ok(Self { tensors, bytes, unordered })
    }

    /// The bytes of outputs that are not compared.
    pub fn unordered(&self) -> &[Unordered] {
        &self.unordered
    }

    /// How many bytes of output `tensor` are compared.
    pub fn comparable_bytes(&self, tensor: usize) -> usize {
        self.bytes[tensor].iter().filter(|origin| origin.race().is_none()).count()
    }

    /// The bound tensors; contents are given in this order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The first byte of output `tensor` that is not what it should be.
    ///
    /// `before` holds what each tensor held before the execution, and `found` what the output holds after it.
    pub fn first_difference(&self, tensor: usize, before: &[Vec<u8>], found: &[u8]) -> Option<Difference> {
        self.bytes[tensor].iter().zip(found).enumerate().find_map(|(offset, (origin, &found))| {
            let expected = match origin.source() {
                Source::Before { tensor, offset } => before[tensor][offset],
                Source::Constant(value) => value,
                Source::Contested(_) => return None,
                Source::Unwritten => unreachable!("outputs with such bytes are refused"),
            };
            (expected != found).then_some(Difference { offset, expected, found })
        })
    }
}

/// Told of what all places hold, before and after each run that moves bytes.
pub(super) type Watch<'a> = &'a mut dyn FnMut(Mover, When, &[Vec<Origin>]);

/// The origins of all bytes after an execution.
fn origins(followed: &Followed<'_>, races: &Races, watch: Watch<'_>) -> Vec<Vec<Origin>> {
    let before = followed.places.iter().map(|place| match place.content {
        Content::Tensor(tensor) => (0..place.bytes as u64).map(|at| Origin::before(tensor, at)).collect(),
        Content::Constant(bytes) => bytes.iter().map(|&byte| Origin::constant(byte)).collect(),
        Content::Unwritten => vec![Origin::UNWRITTEN; place.bytes],
    });
    let mut places: Vec<Vec<Origin>> = before.collect();
    for (place, bytes) in places.iter_mut().enumerate() {
        for (offset, byte) in bytes.iter_mut().enumerate() {
            *byte = races.at(place, offset).map_or(*byte, Origin::contested);
        }
    }
    // All transfers of a run come one after the other.
    for run in followed.transfers.chunk_by(|first, then| first.by == then.by) {
        watch(run[0].by, When::Before, &places);
        for transfer in run {
            let (from_place, to_place) = (transfer.source(), transfer.destination());
            for (from, to) in transfer.bytes() {
                if races.at(to_place, to).is_none() {
                    places[to_place][to] = places[from_place][from];
                }
            }
        }
        watch(run[0].by, When::After, &places);
    }
    places
}

fn name_of(programs: &[Program], mover: Mover) -> String {
    let program = &programs[mover.program];
    let block = block_of(program, mover.run).map_or(0, |block| block.id);
    format!("block {block} of engine {} of {}", mover.run.engine, program.name)
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
    fn bytes_that_blocks_touch_unordered_are_told_from_the_others() {
        let unordered = |blocks: &[String]| {
            let programs = small(r#"{ name = "t", type = "temporary", size = 8 },"#, &blocks.concat());
            let origins = Origins::of(&programs).unwrap();
            let text = origins.unordered().iter().map(ToString::to_string).collect::<String>();
            (origins.comparable_bytes(1), text)
        };
        let text = |bytes: usize, blocks: &str| {
            format!("`z`: {bytes} bytes are not verifiable: two blocks touch them unordered, {blocks}")
        };
        let head = r#"{ from = "x", to = "z", bytes = 5 }"#;
        let tail = r#"{ from = "x", to = "z", to_off = 3, bytes = 5 }"#;
        let first = "block 0 of engine POOL of sg00 and block 1 of engine SP of sg00";
        assert_eq!(unordered(&[block("q_in", "", head), block("q_out", "", tail)]), (6, text(2, first)));
        let wait = "wait = [{ semaphore = 0, at_least = 1 }]";
        let ordered = [block("q_in", "signal = 0", head), block("q_out", wait, tail)];
        assert_eq!(unordered(&ordered), (8, String::new()));
        // What is read is overwritten meanwhile.
        let blocks = [
            block("q_in", "signal = 0", r#"{ from = "x", to = "t", bytes = 4 }"#),
            block("q_out", wait, r#"{ from = "t", to = "z", bytes = 4 }"#),
            block("q_in", "", r#"{ from = "x", to = "t", bytes = 3 }"#),
        ];
        let first = "block 2 of engine POOL of sg00 and block 1 of engine SP of sg00";
        assert_eq!(unordered(&blocks), (5, text(3, first)));
        let [fill, store, again] = blocks;
        let done = "signal = 1\nwait = [{ semaphore = 0, at_least = 1 }]";
        let after = again.replace("\n\ncopy", "\nwait = [{ semaphore = 1, at_least = 1 }]\ncopy");
        assert_ne!(after, again);
        assert_eq!(unordered(&[fill, store.replace(wait, done), after]), (8, String::new()));
    }

    #[test]
    fn nothing_orders_blocks_of_different_programs() {
        let tpb = r#"
            [[tpb]]
            var = [{ name = "x", type = "input", size = 8 }, { name = "z", type = "output", size = 8 }]
            queue = [{ name = "q", type = "in", owner = "pool", semaphore = 10 }]
            [[tpb.block]]
            queue = "q"
            copy = [{ from = "x", to = "z", to_off = OFFSET, bytes = 5 }]
        "#;
        let both = ["0", "3"].map(|offset| tpb.replace("OFFSET", offset)).concat();
        let origins =
            Origins::of(&programs(&format!("[model]\nname = \"two\"\ntarget = \"cayman\"\n{both}"))).unwrap();
        assert_eq!((origins.comparable_bytes(1), origins.unordered()[0].bytes), (6, 2));
        let before = [X.to_vec(), Z.to_vec()];
        assert_eq!(origins.first_difference(1, &before, b"abc??bcd").map(|found| found.offset), Some(5));
    }

    #[test]
    fn every_built_in_model_can_be_worked_out() {
        for name in models::NAMES {
            let programs = programs(models::builtin(name).unwrap());
            let origins = Origins::of(&programs).unwrap();
            assert!(origins.tensors().iter().any(|tensor| tensor.is_output), "{name}");
            assert_eq!(origins.unordered(), [], "{name}");
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
