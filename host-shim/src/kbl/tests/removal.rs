//! Removal of models and the end of units.

use std::sync::Arc;

use sluice_core::exec::{NrtStatus, SubType, Ticket};

use super::super::mock::{Bench, MockDevice, model, read, tensors};
use super::flow::bare;
use super::*;

#[test]
fn a_model_in_use_stays_and_one_that_is_gone_is_unknown() {
    let bench = Bench::new(&model("pointers"));
    let built = bench.built();
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    let error = bench.unit.unload(bench.model, AT_ONCE).unwrap_err();
    assert!(error.to_string().ends_with("references held by execution 1 (tickets 0)"), "{error}");
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
fn removal_waits_for_executions_to_end_and_lets_none_begin() {
    let bench = Bench::new(&model("pointers"));
    let (built, other) = (bench.built(), TensorSet::with_capacity(16));
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| bench.unit.unload(bench.model, SOON));
        let refused = loop {
            match bench.unit.stage(&built) {
                Ok(staged) => drop(staged),
                Err(error) => break error,
            }
        };
        let text = format!("model {} is being removed", bench.model);
        assert_eq!((refused.status(), refused.to_string()), (NrtStatus::INVALID, text.clone()));
        let refused = bench.unit.build(bench.model, &other, &other).unwrap_err();
        assert_eq!((refused.status(), refused.to_string()), (NrtStatus::INVALID, text));
        assert!(!removal.is_finished());
        bench.device.tpb(0).run(0);
        removal.join().unwrap().unwrap();
    });
    running.wait().unwrap();
}

#[test]
fn a_stop_goes_behind_what_is_queued_and_a_closed_unit_stages_nothing() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    std::thread::scope(|scope| {
        let close = scope.spawn(|| bench.unit.close(SOON));
        // The execution's batch first: the record is the second that is kicked off.
        while tpb.doorbell() < 2 {
            std::thread::yield_now();
        }
        assert!(!close.is_finished());
        let copies = tpb.consume();
        let (stop, execution) = copies.split_last().unwrap();
        assert!(tpb.is_stop(stop) && !execution.iter().any(|copy| tpb.is_stop(copy)));
        tpb.run(0);
        tpb.finish(1);
        close.join().unwrap().unwrap();
    });
    running.wait().unwrap();
    assert_eq!(bench.unit.stage(&built).unwrap_err().status(), NrtStatus::CLOSED);
    assert_eq!((bench.unit.tickets(), tpb.control().stop.observe()), (1, 1));
    bench.unit.close(AT_ONCE).unwrap();
}

#[test]
fn an_idle_device_is_told_to_stop_at_once() {
    let bench = Bench::new(&model("pointers"));
    let tpb = bench.device.tpb(0);
    bench.unit.close(AT_ONCE).unwrap();
    assert_eq!((tpb.control().stop.observe(), tpb.doorbell(), tpb.posted()), (1, 0, 0));
}

#[test]
fn a_stop_finds_room_once_the_exec_ring_has_some() {
    let neff = read("bare", &bare(9));
    let bench = Bench::with(&neff, UnitOptions { exec_ring: 32, ..small() }, 30);
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    assert_eq!(tpb.posted(), 16, "the batch fills the ring");
    assert!(matches!(bench.unit.close(AT_ONCE), Err(UnloadError::InFlight { in_flight: 1, .. })));
    assert_eq!(tpb.posted(), 16);
    tpb.consume();
    let error = bench.unit.close(AT_ONCE).unwrap_err();
    assert_eq!((error.status(), tpb.posted(), tpb.doorbell()), (NrtStatus::TIMEOUT, 17, 2));
    tpb.run(0);
    running.wait().unwrap();
    let error = bench.unit.close(AT_ONCE).unwrap_err();
    assert_eq!(error.to_string(), "the device has not stopped after 0 ms");
    tpb.finish(1);
    bench.unit.close(AT_ONCE).unwrap();
}

#[test]
fn executions_that_a_close_leaves_behind_are_told_so_at_once() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let [running, queued, staged, ready] = [(); 4].map(|()| bench.unit.stage(&built).unwrap());
    let [running, queued, ready] = [running, queued, ready].map(|staged| staged.kickoff().unwrap());
    tpb.notify_all(0, SubType::START);
    assert!(matches!(bench.unit.close(AT_ONCE), Err(UnloadError::InFlight { in_flight: 4, .. })));
    for behind in [queued, ready] {
        let error = behind.wait().unwrap_err();
        assert_eq!(error.status(), NrtStatus::CLOSED);
        assert!(error.to_string().ends_with("; TPB 0: the unit was closed before it began"), "{error}");
    }
    assert_eq!((staged.kickoff().unwrap_err().status(), running.try_wait()), (NrtStatus::CLOSED, Ok(None)));
    tpb.notify_all(0, SubType::END);
    tpb.finish(0);
    running.wait().unwrap();
    assert!(bench.unit.in_flight() > 0, "the device may have begun the next");
    tpb.run(1);
    tpb.finish(2);
    bench.unit.close(AT_ONCE).unwrap();
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
    let error = Unit::open(device, heap, small()).unwrap_err();
    assert!(error.to_string().contains("may still run what an earlier unit started"), "{error}");
}

#[test]
fn a_device_has_one_unit_at_a_time() {
    let neff = model("pointers");
    let Bench { device, heap, unit, model, inputs, outputs } = Bench::new(&neff);
    let open = || Unit::open(Arc::clone(&device), heap.clone(), small());
    let error = open().unwrap_err();
    assert_eq!(error.to_string(), "the device's TPBs are in use by another unit");
    assert_eq!(error.status(), NrtStatus::FAILURE);
    unit.close(AT_ONCE).unwrap();
    let closed = unit.load(&neff, &LoadOptions::default()).unwrap_err();
    assert_eq!((closed.status(), closed.to_string().as_str()), (NrtStatus::CLOSED, "the unit is closed"));
    let closed = unit.build(model, &inputs, &outputs).map(drop).unwrap_err();
    assert_eq!((closed.status(), closed.to_string().as_str()), (NrtStatus::CLOSED, "the unit is closed"));
    assert_eq!(unit.models().unwrap(), [model]);
    // What is left of the first unit leaves the device to the second.
    let second = open().unwrap();
    let handle = second.load(&neff, &LoadOptions::default()).unwrap();
    let built = second.build(handle, &inputs, &outputs).unwrap();
    let (tpb, running) = (device.tpb(0), second.stage(&built).unwrap().kickoff().unwrap());
    tpb.run(0);
    unit.harvest().unwrap();
    unit.close(AT_ONCE).unwrap();
    drop(unit);
    assert_eq!((tpb.control().stop.observe(), open().unwrap_err().status()), (0, NrtStatus::FAILURE));
    running.wait().unwrap();
    drop(second);
    open().unwrap();
}

#[test]
fn memory_is_one_devices_once_a_unit_has_it() {
    let Bench { device, heap, unit, model, inputs, .. } = Bench::new(&model("pointers"));
    let other = MockDevice::new(1);
    let error = Unit::open(Arc::clone(&other), heap, small()).unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.status()),
        ("the heap is memory of another device", NrtStatus::INVALID)
    );
    let (name, mut bytes) = (unit.model(model).unwrap().wants().next().unwrap().name, [0; 8]);
    let tensor = inputs.get(&name).unwrap();
    tensor.write(&*device, 0, &[1; 8]).unwrap();
    for refused in [tensor.read(&*other, 0, &mut bytes), tensor.write(&*other, 0, &[2; 8])] {
        assert_eq!(refused.unwrap_err().status(), NrtStatus::INVALID);
    }
    tensor.read(&*device, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 8]);
    Unit::open(Arc::clone(&other), other.heap(), small()).unwrap();
}

#[test]
fn a_unit_that_loses_its_device_with_nothing_running_can_be_opened_again() {
    let Bench { device, heap, unit, model, inputs, outputs } = Bench::new(&model("pointers"));
    let staged = unit.stage(&unit.build(model, &inputs, &outputs).unwrap()).unwrap();
    device.cut(true);
    assert!(matches!(unit.close(AT_ONCE), Err(UnloadError::Device(_))));
    drop((unit, staged));
    device.cut(false);
    Unit::open(device, heap, small()).unwrap();
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

#[test]
fn an_idle_model_is_removed_whether_or_not_the_device_can_be_reached() {
    let bench = Bench::new(&model("pointers"));
    let idle = bench.unit.load(&model("pointers"), &LoadOptions::default()).unwrap();
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    bench.device.cut(true);
    bench.unit.unload(idle, AT_ONCE).unwrap();
    assert_eq!(bench.unit.unload(bench.model, SOON).unwrap_err().status(), NrtStatus::FAILURE);
    bench.device.cut(false);
    bench.device.tpb(0).run(0);
    running.wait().unwrap();
    bench.unit.unload(bench.model, AT_ONCE).unwrap();
}
