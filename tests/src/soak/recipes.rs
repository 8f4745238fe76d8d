//! The models of a soak, and what each of them writes.
//!
//! Three of them have the same name and the same names of tensors, so that only handles keep them apart. Two have no time to
//! speak of: executions of one of these may end in time all the same, those of the other wait for what never comes.

use std::time::Duration;

use sluice_core::mmio::Engine;
use sluice_host::neff::{Neff, ReadOptions, models, pack};

use super::expected;

/// Names and least sizes of the tensors that models of one shape want.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Where a tensor may begin, to take any of the roles.
    pub(super) align_bytes: u64,
    pub(super) inputs: &'static [(&'static str, usize)],
    pub(super) outputs: &'static [(&'static str, usize)],
}

impl Shape {
    /// Names of both directions and whether they are outputs, inputs first.
    pub(super) fn names(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let side = |names: &'static [(&'static str, usize)], is_output| {
            names.iter().map(move |&(name, _)| (name, is_output))
        };
        side(self.inputs, false).chain(side(self.outputs, true))
    }

    /// What a tensor needs to take any of the roles.
    pub(super) fn largest_bytes(&self) -> usize {
        self.inputs.iter().chain(self.outputs).map(|&(_, bytes)| bytes).max().unwrap_or(0)
    }
}

/// Two inputs, one output.
pub(super) const TRIPLE: Shape =
    Shape { align_bytes: 1, inputs: &[("x", 8192), ("y", 4096)], outputs: &[("z", 12_288)] };

/// The built-in model on two TPBs.
pub(super) const GATHER: Shape = Shape {
    align_bytes: 64,
    inputs: &[("a", 131_072), ("b", 131_072)],
    outputs: &[("own0", 233_472), ("own1", 81_921), ("mix", 32_768)],
};

/// What an execution writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    Gather,
    Pointers,
    /// `y`, then `x`.
    Behind,
    /// Nothing: it waits for ever.
    Stuck,
}

/// A model that threads load.
pub(super) struct Recipe {
    pub(super) rule: Rule,
    pub(super) neff: Neff,
    pub(super) timeout: Duration,
}

impl Recipe {
    pub(super) fn shape(&self) -> &'static Shape {
        if self.rule == Rule::Gather { &GATHER } else { &TRIPLE }
    }

    /// Whether its executions may be cut short.
    pub(super) fn is_hasty(&self) -> bool {
        self.timeout == HASTE
    }

    /// What its outputs hold after an execution with these inputs, by the host's own computation.
    pub(super) fn outputs(&self, inputs: &[&[u8]]) -> Vec<Vec<u8>> {
        let wanted = self.shape().inputs.iter().zip(inputs).map(|(&(_, bytes), input)| &input[..bytes]);
        match (self.rule, &wanted.collect::<Vec<_>>()[..]) {
            (Rule::Gather, &[a, b]) => expected::gather(a, b).into(),
            (Rule::Pointers, &[x, y]) => vec![expected::pointers(x, y)],
            (Rule::Behind, &[x, y]) => vec![[y, x].concat()],
            _ => Vec::new(),
        }
    }
}

const BEHIND: &str = r#"
[model]
name = "pointers"
target = "cayman"

[[tpb]]
var = [
  { name = "x", type = "input", size = 8192 },
  { name = "y", type = "input", size = 4096 },
  { name = "z", type = "output", size = 12288 },
]
queue = [{ name = "q", type = "in", owner = "dve", semaphore = 1 }]

[[tpb.block]]
queue = "q"
copy = [
  { from = "y", to = "z", bytes = 4096 },
  { from = "x", to = "z", to_off = 4096, bytes = 8192 },
]
"#;

/// Longer than any wait of a soak on a machine that is not hung.
const PATIENCE: Duration = Duration::from_secs(120);

/// Over as soon as anybody looks twice.
const HASTE: Duration = Duration::from_nanos(1);

/// Every model of a soak.
pub(super) fn all() -> anyhow::Result<Vec<Recipe>> {
    let builtin = |name| parse(models::builtin(name).unwrap_or_default());
    let mut stuck = parse(BEHIND)?;
    // A container that waits for what never comes is not read, so the wait is put in afterwards: one, for semaphore 7 to
    // reach 1.
    let instructions = &mut stuck.programs[0].engines[Engine::Dve.index()].instructions;
    let mut program = instructions.to_vec();
    program[12] = 1;
    program[16..24].copy_from_slice(&[7, 0, 0, 0, 1, 0, 0, 0]);
    *instructions = program.into();
    let recipe = |rule, neff, timeout| Recipe { rule, neff, timeout };
    Ok(vec![
        recipe(Rule::Pointers, builtin("pointers")?, PATIENCE),
        recipe(Rule::Behind, parse(BEHIND)?, PATIENCE),
        recipe(Rule::Pointers, builtin("pointers")?, PATIENCE),
        recipe(Rule::Gather, builtin("gather")?, PATIENCE),
        recipe(Rule::Pointers, builtin("pointers")?, HASTE),
        recipe(Rule::Stuck, stuck, HASTE),
    ])
}

fn parse(text: &str) -> anyhow::Result<Neff> {
    Ok(Neff::parse("soak", &pack("soak", text)?, &ReadOptions::default())?)
}
