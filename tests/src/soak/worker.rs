//! One thread of a soak.
//!
//! ```text
//!   burst    change tensors, build, stage some executions; then, in any order, kick each off or drop it
//!   collect  wait for a binding's executions, or drop their waiters; compare every byte
//!   models   load what is not loaded, remove what is
//! ```
//!
//! Between staging and kickoff a thread waits for nothing: what others wait for may lie behind what it has staged.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use sluice_core::exec::NrtStatus;
use sluice_host::device::sim::SimDevice;
use sluice_host::kbl::{
    BuildError, Built, LoadOptions, ModelHandle, RegistryError, Running, StageError, Staged, UnloadError,
    WaitError,
};

use super::binding::Binding;
use super::random::Dice;
use super::recipes::{GATHER, Recipe, Rule, TRIPLE};
use super::totals::Totals;
use super::{Soak, lock};

/// Bindings of a thread, each with executions of its own in flight.
const BINDINGS: usize = 3;

/// Executions in flight of one binding, and what they leave behind.
struct Job {
    recipe: usize,
    outputs: Vec<Vec<u8>>,
    runs: Vec<Running<SimDevice>>,
}

pub(super) struct Worker<'a> {
    soak: &'a Soak,
    dice: Dice,
    bindings: Vec<(Binding, Option<Job>)>,
    totals: Totals,
}

impl<'a> Worker<'a> {
    pub(super) fn new(soak: &'a Soak, seed: u64) -> anyhow::Result<Self> {
        let mut worker = Self { soak, dice: Dice(seed), bindings: Vec::new(), totals: Totals::default() };
        for _ in 0..BINDINGS {
            let binding = worker.new_binding()?;
            worker.bindings.push((binding, None));
        }
        Ok(worker)
    }

    /// Works until the soak is over, then ends what is in flight.
    pub(super) fn run(mut self) -> anyhow::Result<Totals> {
        while !self.soak.is_over() {
            self.step()?;
        }
        for place in 0..BINDINGS {
            self.collect(place, false)?;
        }
        Ok(self.totals)
    }

    fn step(&mut self) -> anyhow::Result<()> {
        match self.dice.roll(20) {
            0..9 => self.burst(),
            9..16 => {
                let (place, may_drop) = (self.dice.roll(BINDINGS as u64) as usize, self.dice.roll(8) == 0);
                self.collect(place, may_drop)
            }
            16 => {
                self.soak.common.shift(&mut self.dice);
                Ok(())
            }
            _ => self.move_model(),
        }
    }

    fn new_binding(&mut self) -> anyhow::Result<Binding> {
        let shape = if self.dice.roll(10) == 0 { &GATHER } else { &TRIPLE };
        Binding::new(shape, &self.soak.heap, &self.soak.device, &mut self.dice)
    }

    fn burst(&mut self) -> anyhow::Result<()> {
        let mut staged = Vec::new();
        for place in 0..BINDINGS {
            if self.bindings[place].1.is_none() && self.dice.roll(3) > 0 {
                self.prepare(place, &mut staged)?;
            }
        }
        while !staged.is_empty() {
            let (place, next): (usize, Staged<SimDevice>) =
                staged.swap_remove(self.dice.roll(staged.len() as u64) as usize);
            let ticket = next.ticket();
            if self.dice.roll(6) == 0 {
                self.totals.staged_dropped.push(ticket);
                continue;
            }
            let running = next.kickoff()?;
            self.totals.kicked_off.push(ticket);
            if let Some(job) = &mut self.bindings[place].1 {
                job.runs.push(running);
            }
        }
        for (binding, job) in &mut self.bindings {
            if job.take_if(|job| job.runs.is_empty()).is_some() {
                let bytes = binding.check(&self.soak.device, &[]).context("after no execution")?;
                self.totals.bytes_compared += bytes;
            }
        }
        Ok(())
    }

    /// Changes the tensors of a binding, builds, and stages a few executions.
    fn prepare(&mut self, place: usize, staged: &mut Vec<(usize, Staged<SimDevice>)>) -> anyhow::Result<()> {
        let Soak { unit, heap, device, .. } = self.soak;
        let (binding, job) = &mut self.bindings[place];
        self.totals.rebinds += u64::from(binding.change(heap, device, &mut self.dice)?);
        let fitting =
            self.soak.recipes.iter().enumerate().filter(|(_, recipe)| recipe.shape() == binding.shape);
        let fitting = fitting.map(|(index, _)| index).collect::<Vec<_>>();
        let index = fitting[self.dice.roll(fitting.len() as u64) as usize];
        let Some(model) = *lock(&self.soak.loaded[index]) else { return Ok(()) };
        let inputs = if binding.is_common { &self.soak.common.set } else { &binding.inputs };
        let built = match unit.build(model, inputs, &binding.outputs) {
            Ok(built) => built,
            Err(BuildError::Model(RegistryError::Unknown(_) | RegistryError::Removing(_))) => {
                self.totals.refused += 1;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        *if built.was_hit() { &mut self.totals.hits } else { &mut self.totals.misses } += 1;
        let Some(outputs) = outputs(self.soak, &self.soak.recipes[index], binding, &built)? else {
            self.totals.refused += 1;
            return Ok(());
        };
        *job = Some(Job { recipe: index, outputs, runs: Vec::new() });
        for _ in 0..=self.dice.roll(3) {
            match unit.stage(&built) {
                Ok(execution) => staged.push((place, execution)),
                Err(StageError::Model(RegistryError::Unknown(_) | RegistryError::Removing(_))) => {
                    self.totals.refused += 1;
                }
                Err(error) if error.status() == NrtStatus::QUEUE_FULL => self.totals.queue_full += 1,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for the executions of a binding and compares every byte. Where one was not waited for, or was cut short, the
    /// binding is given up, and its memory goes to others as soon as the device is done with it.
    fn collect(&mut self, place: usize, may_drop: bool) -> anyhow::Result<()> {
        let (binding, job) = &mut self.bindings[place];
        let Some(job) = job.take() else { return Ok(()) };
        let recipe = &self.soak.recipes[job.recipe];
        let mut is_whole = true;
        for running in job.runs {
            if may_drop && self.dice.roll(2) == 0 {
                drop(running);
                self.totals.waiters_dropped += 1;
                is_whole = false;
                continue;
            }
            match running.wait() {
                Ok(outcome) => {
                    ensure!(
                        recipe.rule != Rule::Stuck,
                        "execution {} ended without a reason",
                        outcome.ticket
                    );
                    self.totals.executions += 1;
                    self.soak.count_execution();
                    continue;
                }
                Err(WaitError::Timeout(_)) if recipe.is_hasty() => self.totals.timeouts += 1,
                Err(WaitError::Execution(_)) if recipe.is_hasty() => self.totals.cut_short += 1,
                Err(error) => return Err(error.into()),
            }
            is_whole = false;
        }
        if is_whole {
            let bytes = binding.check(&self.soak.device, &job.outputs);
            self.totals.bytes_compared += bytes.with_context(|| format!("after {:?}", recipe.rule))?;
        } else {
            self.bindings[place].0 = self.new_binding()?;
        }
        Ok(())
    }

    /// Loads a model that is not loaded, or removes one that is.
    fn move_model(&mut self) -> anyhow::Result<()> {
        let index = self.dice.roll(self.soak.recipes.len() as u64) as usize;
        let loaded = *lock(&self.soak.loaded[index]);
        match loaded {
            None => self.load(index),
            Some(model) if self.dice.roll(3) == 0 => self.unload(index, model),
            Some(_) => Ok(()),
        }
    }

    fn load(&mut self, index: usize) -> anyhow::Result<()> {
        let Recipe { neff, timeout, .. } = &self.soak.recipes[index];
        // Small caches, so that rings and builds are evicted while others use them.
        let options =
            LoadOptions { timeout: *timeout, ring_cache: 2, build_cache: 2, ..LoadOptions::default() };
        let model = self.soak.unit.load(neff, &options)?;
        self.totals.loads += 1;
        let mut slot = lock(&self.soak.loaded[index]);
        if slot.is_none() {
            *slot = Some(model);
            return Ok(());
        }
        drop(slot);
        // Another thread was faster; nobody knows this one.
        self.soak.unit.unload(model, Duration::ZERO)?;
        self.totals.unloads += 1;
        Ok(())
    }

    fn unload(&mut self, index: usize, model: ModelHandle) -> anyhow::Result<()> {
        let limit = [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(20)];
        let limit = limit[self.dice.roll(3) as usize];
        match self.soak.unit.unload(model, limit) {
            Ok(()) => {
                self.totals.unloads += 1;
                lock(&self.soak.loaded[index]).take_if(|loaded| *loaded == model);
            }
            Err(UnloadError::Model(RegistryError::Busy { .. })) => self.totals.busy += 1,
            Err(UnloadError::Model(RegistryError::Unknown(_) | RegistryError::Removing(_))) => {
                self.totals.refused += 1
            }
            Err(error) => bail!(error),
        }
        Ok(())
    }
}

/// What executions of `built` leave in the outputs; `None` once the model is gone.
fn outputs(
    soak: &Soak,
    recipe: &Recipe,
    binding: &Binding,
    built: &Built,
) -> anyhow::Result<Option<Vec<Vec<u8>>>> {
    if !binding.is_common {
        return Ok(Some(recipe.outputs(&binding.input_contents())));
    }
    // Which storage it was built with only the build knows: others move these tensors.
    let Ok(bound) = soak.unit.bound(built) else { return Ok(None) };
    let content = |&(name, _): &(&str, usize)| {
        let bound = bound.iter().find(|bound| bound.wanted.name == name);
        bound.and_then(|bound| soak.common.content(bound.at)).context("a common input elsewhere")
    };
    let inputs = binding.shape.inputs.iter().map(content).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Some(recipe.outputs(&inputs)))
}
