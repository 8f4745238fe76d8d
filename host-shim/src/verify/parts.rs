//! Parts of bound tensors that the items of a program touch, and what stands in them at the time.
//!
//! ```text
//!   copy  x[2..6] → t         part 0 of the item: x[2..6], read
//!   copy  t       → y[0..4]   part 1: y[0..4], written
//!   copy  y[0..4] → t         part 1 again: read as well
//! ```
//!
//! A part of an input holds what the caller left there. What a part of an output holds, before the item and after it, comes from
//! following the programs.

use std::collections::HashMap;

use sluice_core::fmap::VarId;
use sluice_core::mmio::Engine;

use super::follow::{Mover, Offsets};
use super::order::{Run, runs};
use super::origin::{Origin, Origins, Source, Tensor, Watch};
use crate::neff::{Pattern, Program, VarKind, Work};

/// Most bytes of outputs whose origins are kept, each of eight bytes.
const MAX_KEPT_BYTES: usize = 8 << 20;

/// A part of a bound tensor that an item touches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// Number of the tensor.
    pub(super) tensor: usize,
    pub(super) pattern: Pattern,
    pub(super) is_read: bool,
    pub(super) is_written: bool,
}

/// An item of a program: which program, and where in it. An opaque program is one item.
pub(super) type ItemKey = (usize, Engine, usize);

/// The parts that each item touches, in the order in which its copies name them.
pub(super) fn parts_of(programs: &[Program]) -> HashMap<ItemKey, Vec<Part>> {
    let tensors = Origins::tensors_of(programs);
    let mut all = HashMap::new();
    for (index, program) in programs.iter().enumerate() {
        let number = |var: VarId| {
            let var = program.var(var);
            let is_output = var.kind == VarKind::Output;
            let is_it = |tensor: &Tensor| tensor.name == var.name && tensor.is_output == is_output;
            var.kind.is_io().then(|| tensors.iter().position(is_it)).flatten()
        };
        for engine in Engine::ALL {
            if program.engines[engine.index()].work == Work::Opaque {
                all.insert((index, engine, 0), whole_tensors(program, number));
            }
            let blocks = &program.engines[engine.index()].blocks;
            for (at, run) in runs(program, engine).iter().enumerate() {
                let block = blocks.iter().find(|block| block.id == run.block);
                let copies = block.map_or(&[][..], |block| &block.copies);
                let ends = copies.iter().flat_map(|copy| {
                    [(copy.from(), copy.from_pattern(), false), (copy.to(), copy.to_pattern(), true)]
                });
                let mut parts: Vec<Part> = Vec::new();
                for (var, pattern, is_written) in ends {
                    let Some(tensor) = number(var) else { continue };
                    let known = parts.iter_mut().find(|p| p.tensor == tensor && p.pattern == *pattern);
                    match known {
                        Some(part) if is_written => part.is_written = true,
                        Some(part) => part.is_read = true,
                        None => {
                            let pattern = pattern.clone();
                            parts.push(Part { tensor, pattern, is_read: !is_written, is_written });
                        }
                    }
                }
                all.insert((index, engine, at), parts);
            }
        }
    }
    all
}

fn whole_tensors(program: &Program, number: impl Fn(VarId) -> Option<usize>) -> Vec<Part> {
    let part = |var: &crate::neff::Var| {
        let (tensor, is_written) = (number(var.id)?, var.kind == VarKind::Output);
        let pattern = Pattern::contiguous(0, var.size_bytes).ok()?;
        Some(Part { tensor, pattern, is_read: !is_written, is_written })
    };
    program.vars.iter().filter_map(part).collect()
}

/// Before an item runs, or after.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum When {
    Before,
    After,
}

/// What stands in the parts of outputs around each item.
pub(super) struct Held(HashMap<(ItemKey, usize, When), Vec<Origin>>);

impl Held {
    /// Follows `programs`. Nothing is known of programs that cannot be followed, or touch more than is kept.
    pub(super) fn of(programs: &[Program], parts: &HashMap<ItemKey, Vec<Part>>) -> Self {
        let outputs = Origins::tensors_of(programs);
        let is_kept = |part: &Part| outputs[part.tensor].is_output;
        let bytes = parts.values().flatten().filter(|part| is_kept(part));
        let bytes = bytes.fold(0u64, |sum, part| sum.saturating_add(part.pattern.len_bytes()));
        let mut held = HashMap::new();
        if bytes > MAX_KEPT_BYTES as u64 / 2 {
            return Self(held);
        }
        let mut look =
            |Mover { program, run: Run { engine, index } }: Mover, when, places: &[Vec<Origin>]| {
                let key = (program, engine, index);
                for (number, part) in parts.get(&key).into_iter().flatten().enumerate() {
                    if is_kept(part) {
                        let place = &places[part.tensor];
                        let bytes = Offsets::of(&part.pattern).map(|offset| place[offset as usize]);
                        held.insert((key, number, when), bytes.collect());
                    }
                }
            };
        let watch: Watch<'_> = &mut look;
        let followed = Origins::watched(programs, watch);
        Self(if followed.is_ok() { held } else { HashMap::new() })
    }

    /// What byte `at` of a part, in the order of its pattern, comes from; `None` where that is not known.
    pub(super) fn source(
        &self,
        key: ItemKey,
        number: usize,
        part: &Part,
        is_output: bool,
        when: When,
    ) -> impl Fn(usize) -> Option<Source> + '_ {
        let held = self.0.get(&(key, number, when));
        let own: Option<Vec<u64>> = (!is_output).then(|| Offsets::of(&part.pattern).collect());
        let tensor = part.tensor;
        move |at| match &own {
            Some(offsets) => Some(Source::Before { tensor, offset: *offsets.get(at)? as usize }),
            None => Some(held?.get(at)?.source()),
        }
    }
}
