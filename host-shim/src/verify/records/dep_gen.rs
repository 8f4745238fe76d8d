//! Dependency records: one per item of each execution of each TPB.
//!
//! An item waits for the one before it on its engine, and for every item without whose signal a semaphore can't come as far
//! as a wait of it asks: without that signal, and with it those behind it on the same engine, all others together are too few.

use std::collections::HashMap;

use sluice_core::exec::tasks::TaskId;
use sluice_core::exec::{CoreIndex, SemaphoreWait};
use sluice_core::layout::dep_gen::{MAX_TENSORS, NO_KERNEL};
use sluice_core::mmio::{Engine, TpbId};

use super::{Expectation, ExpectedRecords, Extent, Once, RecordCheck};
use crate::capture::Pool;
use crate::capture::chains::{Submitted, chains};
use crate::neff::{Program, RunBlock, Work};
use crate::verify::order::runs;
use crate::verify::parts::parts_of;

/// What has been met of each item.
pub(super) struct Ledger {
    /// By core and place in its program.
    items: HashMap<(u32, u32), Expected>,
    executions: u64,
    met: Once,
    slots: u64,
}

/// What one item has to say.
struct Expected {
    number: u64,
    /// As identities in execution 0.
    deps: Vec<TaskId>,
    kernel: i32,
    tensors: usize,
}

impl Ledger {
    pub(super) fn of(run: &ExpectedRecords, extent: &Extent) -> Self {
        let (mut items, mut slots) = (HashMap::new(), 0);
        let parts = parts_of(&run.programs);
        for (place, program) in run.programs.iter().enumerate() {
            let Ok(tpb) = TpbId::new(place as u32) else { continue };
            for engine in Engine::ALL {
                let core = CoreIndex::of(tpb, engine).get() as u32;
                for (index, expected) in expected_items(program, tpb, engine).into_iter().enumerate() {
                    slots += 1 + expected.deps.len().saturating_sub(64).div_ceil(582) as u64;
                    let number = items.len() as u64;
                    let tensors = parts.get(&(place, engine, index)).map_or(0, Vec::len).min(MAX_TENSORS);
                    items.insert((core, index as u32 + 1), Expected { number, tensors, ..expected });
                }
            }
        }
        let is_due = |execution, _| extent.has(execution);
        let met = Once::of_executions(run.executions, items.len() as u64, is_due);
        Self { items, executions: run.executions, met, slots: slots * extent.of(run.executions) }
    }

    fn meet_task(&mut self, pool: Pool, task: &Submitted, check: &mut RecordCheck) {
        let (id, execution) = (task.task, u64::from(task.task.execution()));
        let Some(expected) = self.items.get(&(id.core(), id.ordinal())) else {
            return check.find(|| format!("{pool}: {id}: the core has no such item"));
        };
        let number = execution * self.items.len() as u64 + expected.number;
        if execution >= self.executions || !self.met.meet(number) {
            check.find(|| format!("{pool}: {id} is not expected, or here again"));
        }
        let mut deps = task.deps.clone();
        deps.sort_unstable();
        if !deps.iter().copied().eq(expected.deps.iter().map(|dep| TaskId(dep.0 | execution))) {
            let (found, wanted) = (task.deps.len(), expected.deps.len());
            check.find(|| format!("{pool}: {id} waits for {found} tasks, want {wanted}, or for others"));
        }
        if task.tensors.len() != expected.tensors {
            let (found, wanted) = (task.tensors.len(), expected.tensors);
            check.find(|| format!("{pool}: {id} has {found} tensors, want {wanted}"));
        }
        let kernels = task.kernels.iter().filter(|&&kernel| kernel != NO_KERNEL);
        if !kernels.eq([expected.kernel].iter().filter(|&&kernel| kernel != NO_KERNEL)) || task.blocks != 1 {
            let (kernels, kernel) = (task.kernels, expected.kernel);
            check.find(|| format!("{pool}: {id} runs kernels {kernels:?}, want {kernel} in one block"));
        }
    }
}

impl Expectation for Ledger {
    fn count(&self) -> u64 {
        self.slots
    }

    fn meet(&mut self, pool: Pool, records: &[u8], check: &mut RecordCheck) {
        for task in chains(records) {
            match task {
                Ok(task) => self.meet_task(pool, &task, check),
                Err(broken) => check.find(|| format!("{pool}: {broken}")),
            }
        }
    }

    fn close(&self, check: &mut RecordCheck) {
        let (missing, expected) = (self.met.missing(), self.met.count);
        if missing > 0 {
            check.find(|| format!("dependencies: {missing} of {expected} tasks are not there"));
        }
    }
}

fn expected_items(program: &Program, tpb: TpbId, engine: Engine) -> Vec<Expected> {
    let own = &program.engines[engine.index()];
    match &own.work {
        Work::Idle => Vec::new(),
        Work::Opaque => {
            vec![Expected { number: 0, deps: Vec::new(), kernel: NO_KERNEL, tensors: 0 }]
        }
        Work::Blocks(blocks) => {
            let of = |(index, run): (usize, &RunBlock)| {
                let mut deps: Vec<TaskId> = Vec::new();
                let id = |engine, index: usize| TaskId::new(CoreIndex::of(tpb, engine), index as u32 + 1, 0);
                deps.extend(index.checked_sub(1).map(|before| id(engine, before)));
                for wait in &run.waits {
                    let needed = needed(program, engine, index, wait);
                    deps.extend(needed.into_iter().map(|(engine, index)| id(engine, index)));
                }
                deps.sort_unstable();
                deps.dedup();
                Expected {
                    number: 0,
                    deps,
                    kernel: i32::try_from(run.kernel).unwrap_or(NO_KERNEL),
                    tensors: 0,
                }
            };
            blocks.iter().enumerate().map(of).collect()
        }
    }
}

/// The runs without whose signals the wait of run `index` of `engine` never ends.
fn needed(program: &Program, engine: Engine, index: usize, wait: &SemaphoreWait) -> Vec<(Engine, usize)> {
    // In the order of engines and programs; what stands behind the wait can't come before it.
    let signals: Vec<(Engine, usize)> = Engine::ALL
        .into_iter()
        .flat_map(|of| runs(program, of).iter().enumerate().map(move |(at, run)| (of, at, run)))
        .filter(|(_, _, run)| run.signal == Some(wait.semaphore))
        .map(|(of, at, _)| (of, at))
        .filter(|&(of, at)| of != engine || at < index)
        .collect();
    let can_do_without = |&(of, at): &(Engine, usize)| {
        let others = signals.iter().filter(|&&(other, place)| other != of || place < at);
        others.count() >= wait.at_least as usize
    };
    signals.iter().copied().filter(|signal| !can_do_without(signal)).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::mem::offset_of;

    use sluice_core::layout::dep_gen::Record;
    use sluice_core::layout::{ArchId, PoolKind, SubsystemId};

    use super::*;
    use crate::capture::chains::tests::slots;
    use crate::capture::{BufferHeader, FileHeader, Reader, RunId, Subsystem, Writer};
    use crate::neff::{Neff, ReadOptions, models, pack};
    use crate::verify::order::{Order, Run, schedule};

    fn gather() -> Vec<Program> {
        let bytes = pack("gather", models::builtin("gather").unwrap()).unwrap();
        Neff::parse("gather", &bytes, &ReadOptions::default()).unwrap().programs
    }

    fn expected() -> ExpectedRecords {
        let subsystems = vec![Extent::full(SubsystemId::DepGen)];
        ExpectedRecords { subsystems, tpbs: 2, executions: 2, programs: gather(), ..Default::default() }
    }

    /// Everything that two executions have to record.
    fn right() -> Vec<(TaskId, Vec<TaskId>, usize)> {
        let ledger = Ledger::of(&expected(), &Extent::full(SubsystemId::DepGen));
        let mut tasks = Vec::new();
        for execution in 0..2 {
            for (&(core, ordinal), item) in &ledger.items {
                let core = CoreIndex::all(2).nth(core as usize).unwrap();
                let deps = item.deps.iter().map(|dep| TaskId(dep.0 | execution)).collect();
                tasks.push((TaskId::new(core, ordinal, execution as u32), deps, item.tensors));
            }
        }
        tasks.sort();
        tasks
    }

    fn check(tasks: &[(TaskId, Vec<TaskId>, usize)]) -> RecordCheck {
        let header = FileHeader { run: RunId(1), arch: ArchId::A5, clock_hz: 1, started_unix_ns: 0 };
        let writer = Writer::start(Vec::new(), &header).unwrap();
        let ledger = Ledger::of(&expected(), &Extent::full(SubsystemId::DepGen));
        let pool = Pool { subsystem: Subsystem::DEP_GEN, kind: PoolKind::SOLE, instance: 0 };
        for (seq, (task, deps, tensors)) in (0..).zip(tasks) {
            let deps: Vec<u64> = deps.iter().map(|dep| dep.0).collect();
            let mut bytes = slots(task.0, &deps, &vec![0; *tensors]);
            let kernel = ledger.items.get(&(task.core(), task.ordinal())).map_or(0, |item| item.kernel);
            bytes[offset_of!(Record, kernel_id)..][..4].copy_from_slice(&kernel.to_le_bytes());
            let header = BufferHeader::new(pool, seq, (bytes.len() / 4672) as u32, 4672);
            writer.append_buffer(&header, &bytes).unwrap();
        }
        let mut reader = Reader::new(Cursor::new(writer.into_storage())).unwrap();
        expected().check(&mut reader).unwrap()
    }

    #[test]
    fn the_right_set_is_right() {
        let check = check(&right());
        assert_eq!(check, RecordCheck { expected: 20, found: 20, ..RecordCheck::default() });
    }

    /// Changes one of the tasks.
    type Change = fn(&mut Vec<(TaskId, Vec<TaskId>, usize)>, usize);

    #[test]
    fn every_task_left_out_doubled_or_changed_is_noticed() {
        for which in 0..right().len() {
            let changes: [Change; 5] = [
                |tasks, at| drop(tasks.remove(at)),
                |tasks, at| tasks.push(tasks[at].clone()),
                |tasks, at| tasks[at].1.push(TaskId(1)),
                |tasks, at| tasks[at].0.0 += 2,
                |tasks, at| tasks[at].2 += 1,
            ];
            for (number, change) in changes.into_iter().enumerate() {
                let mut tasks = right();
                change(&mut tasks, which);
                assert!(!check(&tasks).is_right(), "task {which}, change {number}");
            }
            let mut tasks = right();
            if tasks[which].1.pop().is_some() {
                assert!(!check(&tasks).is_right(), "task {which} waits for one fewer");
            }
        }
    }

    #[test]
    fn what_is_waited_for_is_over_before_in_every_order() {
        for program in gather() {
            let order = Order::of(&program, &schedule(&program));
            for engine in Engine::ALL {
                for (index, run) in runs(&program, engine).iter().enumerate() {
                    for wait in &run.waits {
                        let needed = needed(&program, engine, index, wait);
                        assert!(!needed.is_empty());
                        for (of, at) in needed {
                            let (first, then) = (Run { engine: of, index: at }, Run { engine, index });
                            assert!(order.is_before(first, then));
                        }
                    }
                }
            }
        }
    }
}
