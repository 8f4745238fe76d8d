//! A process that forks while it has executions in flight.

use std::sync::Arc;

use sluice_core::exec::{NrtStatus, Ticket};

use super::super::mock::{Bench, model};
use super::*;
use crate::device::process::in_fork;

#[test]
fn a_fork_is_refused_everything_and_its_parents_executions_go_on() {
    let neff = model("pointers");
    let bench = Bench::new(&neff);
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    let staged = bench.unit.stage(&built).unwrap();
    let mut hands = Some((running, staged));
    // The lock is held as another thread of the parent may hold it.
    let is_good = bench.unit.with_line_locked(|| {
        in_fork(|| {
            let (running, staged) = hands.take().unwrap();
            let failure = |status: NrtStatus| status == NrtStatus::FAILURE;
            let load = bench.unit.load(&neff, &LoadOptions::default()).unwrap_err();
            let stage = bench.unit.stage(&built).unwrap_err();
            let stage_text = stage.to_string();
            let build = bench.unit.build(bench.model, &bench.inputs, &bench.outputs).map(drop).unwrap_err();
            failure(load.status())
                && failure(stage.status())
                && stage_text.contains("forked from it")
                && failure(build.status())
                && failure(running.wait().unwrap_err().status())
                && failure(staged.kickoff().map(drop).unwrap_err().status())
                && failure(bench.unit.model(bench.model).unwrap_err().status())
                && failure(bench.unit.bound(&built).unwrap_err().status())
                && failure(bench.unit.patched_slots(&built).unwrap_err().status())
                && failure(bench.unit.harvest().unwrap_err().status())
                && (bench.unit.tickets(), bench.unit.in_flight(), bench.unit.rearms()) == (0, 0, 0)
                && failure(bench.unit.unload(bench.model, SOON).unwrap_err().status())
                && failure(bench.unit.close(SOON).unwrap_err().status())
        })
    });
    assert!(is_good);
    // The parent kicks off, waits and goes on.
    let (first, staged) = hands.unwrap();
    let second = staged.kickoff().unwrap();
    (0..2).for_each(|ordinal| tpb.run(ordinal));
    assert_eq!([first, second].map(|running| running.wait().unwrap().ticket), [0, 1].map(Ticket));
}

#[test]
fn handles_that_are_dropped_in_a_fork_are_the_parents_still() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let mut staged = Some(bench.unit.stage(&built).unwrap());
    let mut unit = Some(bench.unit.clone());
    assert!(in_fork(|| {
        drop(staged.take());
        drop(unit.take());
        true
    }));
    let running = staged.unwrap().kickoff().unwrap();
    tpb.run(0);
    running.wait().unwrap();
}

#[test]
fn the_last_handles_may_be_dropped_in_a_fork_while_the_parent_uses_the_heap() {
    let bench = Bench::new(&model("pointers"));
    let (device, heap, handle) = (Arc::clone(&bench.device), bench.heap.clone(), bench.model);
    let built = bench.built();
    drop(bench.unit.stage(&built).unwrap().kickoff().unwrap());
    let mut all = Some((bench, built));
    let usage = heap.usage();
    assert!(heap.locked(|| {
        in_fork(|| {
            let Some((Bench { device, heap, unit, model, inputs, outputs }, built)) = all.take() else {
                return false;
            };
            let held = unit.model(model);
            drop((unit, built, inputs, outputs, device));
            Tensor::allocate(&heap, 64).is_err() && held.is_err()
        })
    }));
    assert_eq!(heap.usage(), usage);
    let (bench, _) = all.as_ref().unwrap();
    device.tpb(0).run(0);
    bench.unit.unload(handle, AT_ONCE).unwrap();
    assert_eq!(device.tpb(0).control().stop.observe(), 0);
}
