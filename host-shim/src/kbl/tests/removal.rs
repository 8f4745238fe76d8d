//! Removal of models and the end of units.

use std::sync::Arc;

use sluice_core::exec::{NrtStatus, Ticket};

use super::super::mock::{Bench, MockDevice, model, tensors};
use super::*;

#[test]
fn a_model_in_use_stays_and_one_that_is_gone_is_unknown() {
    let bench = Bench::new(&model("pointers"));
    let built = bench.built();
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    let error = bench.unit.unload(bench.model, AT_ONCE).unwrap_err();
    assert!(error.to_string().ends_with("references held by execution 1"), "{error}");
    drop(running);
    bench.device.tpb(0).run(0);
    bench.unit.unload(bench.model, AT_ONCE).unwrap();
    let unknown = NrtStatus::INVALID_HANDLE;
    assert_eq!(bench.unit.stage(&built).unwrap_err().status(), unknown);
    let again = bench.unit.build(bench.model, &bench.inputs, &bench.outputs);
    assert_eq!(again.unwrap_err().status(), unknown);
    assert_eq!(bench.unit.unload(bench.model, AT_ONCE).unwrap_err().status(), unknown);
}

#[test]
fn removal_waits_for_an_execution_to_end() {
    let bench = Bench::new(&model("pointers"));
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| bench.unit.unload(bench.model, SOON));
        bench.device.tpb(0).run(0);
        removal.join().unwrap().unwrap();
    });
    running.wait().unwrap();
}

#[test]
fn a_closed_unit_stages_nothing_and_has_stopped_the_device() {
    let bench = Bench::new(&model("pointers"));
    let built = bench.built();
    bench.unit.close(AT_ONCE).unwrap();
    assert_eq!(bench.unit.stage(&built).unwrap_err().status(), NrtStatus::CLOSED);
    assert_eq!(bench.device.tpb(0).control().stop.observe(), 1);
}

#[test]
fn memory_of_an_execution_that_never_ends_is_not_used_again() {
    let Bench { device, heap, unit, model, inputs, outputs } = Bench::new(&model("pointers"));
    let built = unit.build(model, &inputs, &outputs).unwrap();
    drop(unit.stage(&built).unwrap().kickoff().unwrap());
    let running = heap.usage();
    assert!(matches!(unit.close(AT_ONCE), Err(UnloadError::InFlight { in_flight: 1, .. })));
    drop((unit, built, inputs, outputs));
    assert_eq!(heap.usage(), running);
    assert_eq!(device.tpb(0).control().stop.observe(), 1);
}

#[test]
fn a_device_is_taken_over_where_its_counters_stand() {
    let neff = model("pointers");
    let Bench { device, heap, unit, .. } = Bench::new(&neff);
    let (handle, tpb) = (unit.load(&neff, &LoadOptions::default()).unwrap(), device.tpb(0));
    let run = |unit: &Unit<MockDevice>, handle, ordinal| {
        let (inputs, outputs) = tensors(unit, handle);
        let built = unit.build(handle, &inputs, &outputs).unwrap();
        let running = unit.stage(&built).unwrap().kickoff().unwrap();
        tpb.run(ordinal);
        running.wait().unwrap()
    };
    run(&unit, handle, 0);
    drop(unit);
    let unit = Unit::open(Arc::clone(&device), heap, small()).unwrap();
    let handle = unit.load(&neff, &LoadOptions::default()).unwrap();
    let outcome = run(&unit, handle, 1);
    assert_eq!((outcome.ticket, outcome.tpbs[0].ordinal), (Ticket(0), Some(1)));
}
