//! TPBs that stop, and are set up anew.

use sluice_core::exec::{ErrorClass, NrtStatus, SubType, Ticket};
use sluice_core::mmio::{Engine, QueueId};

use super::super::mock::{Bench, model, tensors};
use super::*;

#[test]
fn a_sequencer_that_stops_ends_everything_on_its_tpb_and_is_set_up_anew() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let [first, second] = [(); 2].map(|()| bench.unit.stage(&built).unwrap().kickoff().unwrap());
    let third = bench.unit.stage(&built).unwrap();
    let fourth = bench.unit.stage(&built).unwrap();
    tpb.stop_at_bad_pair(ErrorClass::PHASE_MISMATCH);
    assert_eq!(first.wait().unwrap_err().status(), NrtStatus::EXEC_HW_ERR_DMA_ABORT);
    assert_eq!((bench.unit.rearms(), tpb.doorbell(), tpb.posted()), (1, 0, 0));
    let error = second.wait().unwrap_err();
    assert_eq!(error.status(), NrtStatus::EXEC_UNIT_UNRECOVERABLE);
    assert!(error.to_string().contains("stopped at a bad pair of the exec ring (phase mismatch)"), "{error}");
    // What was staged went with the ring; what is staged now runs.
    let fifth = bench.unit.stage(&built).unwrap();
    let pairs = tpb.posted();
    drop(fourth);
    assert_eq!(third.kickoff().unwrap_err().status(), NrtStatus::EXEC_UNIT_UNRECOVERABLE);
    assert_eq!((tpb.posted(), tpb.doorbell()), (pairs, 0));
    let fifth = fifth.kickoff().unwrap();
    tpb.run(0);
    let outcome = fifth.wait().unwrap();
    assert_eq!((outcome.ticket, outcome.tpbs[0].ordinal), (Ticket(4), Some(0)));
    assert_eq!(bench.unit.in_flight(), 0);
}

#[test]
fn staged_executions_that_went_with_the_ring_give_nothing_back() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    let staged = bench.unit.stage(&built).unwrap();
    tpb.stop_at_bad_pair(ErrorClass::PHASE_MISMATCH);
    assert!(running.wait().is_err());
    drop(staged);
    assert_eq!((bench.unit.in_flight(), bench.unit.tickets(), tpb.posted()), (0, 1, 0));
    for ordinal in 0..40 {
        let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
        tpb.run(ordinal);
        running.wait().unwrap();
    }
}

#[test]
fn a_batch_that_can_not_be_taken_out_of_the_ring_is_never_run() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let first = bench.unit.stage(&built).unwrap();
    let second = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    bench.device.fail_after(0);
    drop(first);
    bench.device.fail_after(u32::MAX);
    let error = second.wait().unwrap_err();
    assert_eq!((error.status(), tpb.doorbell()), (NrtStatus::EXEC_UNIT_UNRECOVERABLE, 0));
    assert!(error.to_string().contains("can't be taken out of the exec ring (transport failed"), "{error}");
    let third = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    assert_eq!((bench.unit.rearms(), tpb.posted()), (1, tpb.consume().len() as u32));
    tpb.run(0);
    third.wait().unwrap();
}

#[test]
fn a_tpb_is_not_set_up_anew_while_an_execution_runs_there() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    tpb.consume();
    tpb.notify_all(0, SubType::START);
    let given_up = bench.unit.stage(&built).unwrap();
    let behind = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    bench.device.fail_after(0);
    drop(given_up);
    bench.device.fail_after(u32::MAX);
    let error = bench.unit.stage(&built).unwrap_err();
    assert_eq!(error.status(), NrtStatus::EXEC_UNIT_UNRECOVERABLE);
    assert!(error.to_string().ends_with("once the execution that runs there has ended"), "{error}");
    tpb.notify_all(0, SubType::END);
    tpb.finish(0);
    running.wait().unwrap();
    assert_eq!(behind.wait().unwrap_err().status(), NrtStatus::EXEC_UNIT_UNRECOVERABLE);
    let next = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    tpb.run(1);
    assert_eq!(next.wait().unwrap().tpbs[0].ordinal, Some(1));
}

#[test]
fn a_tpb_that_has_stopped_does_not_end_executions_of_models_without_it() {
    let bench = Bench::new(&model("gather"));
    let (first, second) = (bench.device.tpb(0), bench.device.tpb(1));
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    second.stop_at_bad_pair(ErrorClass::PHASE_MISMATCH);
    first.run(0);
    assert!(running.wait().is_err());

    let small = bench.unit.load(&model("pointers"), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&bench.unit, small);
    let built = bench.unit.build(small, &inputs, &outputs).unwrap();
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    assert_eq!(first.doorbell(), 2);
    first.run(1);
    assert_eq!(running.wait().unwrap().tpbs[0].ordinal, Some(1));
}

#[test]
fn a_stop_is_seen_behind_all_the_errors_that_a_full_line_can_have() {
    let bench = Bench::with(&model("pointers"), UnitOptions { exec_ring: 1024, ..small() }, 30);
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    for _ in 0..small().depth {
        drop(bench.unit.stage(&built).unwrap().kickoff().unwrap());
        tpb.report(Engine::Sp, QueueId::EXEC, ErrorClass::GIVEN_UP);
        for engine in Engine::ALL {
            tpb.report(engine, QueueId::EXEC, ErrorClass::DMA_ABORT);
        }
    }
    tpb.stop_at_bad_pair(ErrorClass::PHASE_MISMATCH);
    bench.unit.harvest().unwrap();
    assert_eq!((bench.unit.rearms(), bench.unit.in_flight()), (1, 0));
}
