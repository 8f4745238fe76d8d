//! Joining tensors to a model: a build for tensors as before, and one whose rings are all new.

use std::collections::VecDeque;
use std::fmt::Write;

use anyhow::Context;
use sluice_core::fmap::Direction;
use sluice_host::kbl::{self, Built, LoadOptions, Tensor};

use crate::chained::{Bound, Chained, Key, Program, Wanted};
use crate::cores::{Cores, pin};
use crate::machine::Machine;
use crate::windows::{Effort, best_ns};
use crate::{Figure, names};

/// Tensors of a model in one direction. Both of its programs have all of them.
const TENSORS: usize = 16;

const TENSOR_BYTES: usize = 4096;

/// Every tensor is bound to a copy in a queue and to a row of a pointer table.
fn model() -> String {
    let name = |number| String::from_utf8_lossy(&names::name(number)).into_owned();
    let (mut vars, mut rows, mut copies) = (String::new(), String::new(), [String::new(), String::new()]);
    for tensor in 0..2 * TENSORS {
        let name = name(tensor);
        let (kind, copy) = if tensor < TENSORS {
            ("input", format!("from = '{name}', to = 'scratch'"))
        } else {
            ("output", format!("from = 'scratch', to = '{name}'"))
        };
        let _ = writeln!(vars, "{{ name = '{name}', type = '{kind}', size = {TENSOR_BYTES} }},");
        let _ = write!(rows, "'{name}', ");
        let _ = writeln!(copies[tensor / TENSORS], "{{ {copy}, bytes = {TENSOR_BYTES} }},");
    }
    let [loads, stores] = copies;
    let program = format!(
        "[[tpb]]
         var = [
           {vars}
           {{ name = 'scratch', type = 'virtual', offset = 0, size = {TENSOR_BYTES} }},
           {{ name = 'table', type = 'dge-table', rows = [{rows}] }},
         ]
         queue = [
           {{ name = 'q_in', type = 'in', owner = 'pool', semaphore = 10 }},
           {{ name = 'q_out', type = 'out', owner = 'sp', semaphore = 11 }},
         ]
         [[tpb.block]]
         queue = 'q_in'
         copy = [{loads}]
         [[tpb.block]]
         queue = 'q_out'
         copy = [{stores}]
        "
    );
    format!("[model]\nname = 'bind'\ntarget = 'cayman'\n{program}{program}")
}

/// Nanoseconds per build with unchanged sets, beside the join that it saves.
pub(crate) fn hit(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    pin(cores.one()?)?;
    let machine = Machine::start(2)?;
    let model = machine.load("bind", &model(), &LoadOptions::default())?;
    let [inputs, outputs] = [Direction::Input, Direction::Output].map(|side| machine.tensors(model, side));
    let (inputs, outputs) = (inputs?, outputs?);

    let sets = [&inputs, &outputs];
    let mut chained = [Chained::new(), Chained::new()];
    let mut contracts = [Vec::new(), Vec::new()];
    for kbl::Wanted { tpb, name, direction, size_bytes, var, .. } in machine.unit.model(model)?.wants() {
        let side = usize::from(direction == Direction::Output);
        let key = || Box::<[u8]>::from(name.as_bytes());
        if tpb.get() == 0 {
            let tensor = sets[side].get(&name).context("a tensor for every name")?;
            chained[side]
                .insert(Key::Name(key()), Bound { at: tensor.at(), size_bytes: tensor.size_bytes() });
        }
        contracts[tpb.get() as usize].push(Wanted { number: var.0.into(), name: key(), side, size_bytes });
    }
    let programs = contracts.map(Program::new);
    let mut addresses = Vec::with_capacity(4 * TENSORS);
    let mut join = || {
        addresses.clear();
        programs.iter().all(|program| program.join(&chained, &mut addresses).is_some())
            && addresses.len() == 4 * TENSORS
    };

    let build = || machine.unit.build(model, &inputs, &outputs);
    build()?;
    let (mut unjoined, mut missed) = (0, 0);
    let (baseline, value) = best_ns(
        effort,
        |rounds| unjoined += (0..rounds).filter(|_| !join()).count(),
        |rounds| missed += (0..rounds).filter(|_| !build().is_ok_and(|built| built.was_hit())).count(),
    );
    anyhow::ensure!(unjoined == 0 && missed == 0, "{unjoined} joins failed, {missed} builds were no hits");
    Ok(vec![Figure { name: "bind_hit", unit: "ns", value, baseline: ("chained_fnv1a_join", baseline) }])
}

/// Descriptors of one half of a ring: the most that a container has unless its reader allows more.
const DESCRIPTORS: usize = 1 << 20;

/// Models that are built one after another. Their rings are more than caches hold: 288 MiB.
const MODELS: usize = 9;

/// Bytes that each descriptor moves.
const ROW_BYTES: usize = 64;

/// Rows that lie evenly apart.
const TILE_ROWS: usize = 32;

/// Every second row of every second tile of one tensor goes to another; no two rows touch, so each is a descriptor of its
/// own.
fn scattered() -> String {
    let bytes = DESCRIPTORS * ROW_BYTES;
    format!(
        "[model]
         name = 'scattered'
         target = 'cayman'
         [[tpb]]
         var = [
           {{ name = 'x', type = 'input', size = {source} }},
           {{ name = 'y', type = 'output', size = {bytes} }},
         ]
         queue = [{{ name = 'q_in', type = 'in', owner = 'pool', semaphore = 10 }}]
         [[tpb.block]]
         queue = 'q_in'
         copy = [{{
           from = 'x',
           from_sizes = [{tiles}, {TILE_ROWS}, {ROW_BYTES}],
           from_steps = [{tile_step}, {row_step}, 1],
           to = 'y',
         }}]
        ",
        source = 4 * bytes,
        tiles = DESCRIPTORS / TILE_ROWS,
        row_step = 2 * ROW_BYTES,
        tile_step = 4 * TILE_ROWS * ROW_BYTES,
    )
}

/// Nanoseconds per descriptor of builds whose rings are all new, beside a copy of their bytes.
pub(crate) fn miss(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    pin(cores.one()?)?;
    let machine = Machine::start(1)?;
    let forgetful = LoadOptions { ring_cache: 0, build_cache: 0, ..LoadOptions::default() };
    let text = scattered();
    let models = (0..MODELS).map(|_| machine.load("scattered", &text, &forgetful));
    let models = models.collect::<anyhow::Result<Vec<_>>>()?;
    let (inputs, outputs) =
        (machine.tensors(models[0], Direction::Input)?, machine.tensors(models[0], Direction::Output)?);
    // A round takes the next model; what it built last time gives its memory back then.
    let mut builds = models.iter().map(|&model| (model, None::<Built>)).collect::<VecDeque<_>>();
    let mut build = || {
        builds.rotate_left(1);
        let (model, built) = &mut builds[0];
        *built = machine.unit.build(*model, &inputs, &outputs).ok();
        built.as_ref().is_some_and(|built| !built.was_hit())
    };

    let half_bytes = 16 * DESCRIPTORS;
    let half = || Ok((vec![1; half_bytes], Tensor::allocate(machine.unit.heap(), half_bytes as u64)?));
    let mut halves = (0..2 * MODELS).map(|_| half()).collect::<anyhow::Result<VecDeque<_>>>()?;
    let mut copy = || {
        halves.rotate_left(2);
        let copied =
            halves.iter().take(2).map(|(bytes, half)| half.write(&**machine.unit.device(), 0, bytes));
        copied.filter(Result::is_ok).count() == 2
    };

    let (mut uncopied, mut not_built) = (0, 0);
    let (baseline, value) = best_ns(
        effort,
        |rounds| uncopied += (0..rounds).filter(|_| !copy()).count(),
        |rounds| not_built += (0..rounds).filter(|_| !build()).count(),
    );
    anyhow::ensure!(uncopied == 0 && not_built == 0, "{uncopied} copies and {not_built} builds failed");
    let [value, baseline] = [value, baseline].map(|round_ns| round_ns / (2 * DESCRIPTORS) as f64);
    Ok(vec![Figure { name: "bind_miss", unit: "ns", value, baseline: ("memcpy", baseline) }])
}
