//! Kickoffs that fail: requests that are not written, doorbells that were not rung or may have been, TPBs that have stopped.

use sluice_core::exec::{ErrorClass, ExecRequest, NrtStatus, Ticket};
use sluice_core::mem::testing::Mishap;
use sluice_core::mmio::ControlWord;
use zerocopy::FromBytes;

use super::super::batch::PROLOGUE_PAIRS;
use super::super::mock::{Bench, Look, model, value_of};
use super::*;

#[test]
fn a_kickoff_that_fails_after_the_first_tpb_says_so_and_every_ticket_ends() {
    let bench = Bench::new(&model("gather"));
    let (built, first, second) = (bench.built(), bench.device.tpb(0), bench.device.tpb(1));
    let [early, failed, late] = [(); 3].map(|()| bench.unit.stage(&built).unwrap());
    let early = early.kickoff().unwrap();
    second.fail(ControlWord::Doorbell, Mishap::Refused);
    let error = failed.kickoff().unwrap_err();
    assert_eq!((error.status(), error.ticket, error.tpb.get()), (NrtStatus::FAILURE, Ticket(1), 1));
    assert_eq!((first.doorbell(), second.doorbell(), bench.unit.in_flight()), (2, 1, 3));
    let late = late.kickoff().unwrap();
    // The second TPB runs over the pairs of the one that was not started there.
    (0..3).for_each(|ordinal| first.run(ordinal));
    (0..2).for_each(|ordinal| second.run(ordinal));
    let ordinals = |running: Running<_>| {
        let outcome = running.wait().unwrap();
        outcome.tpbs.iter().map(|tpb| tpb.ordinal.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!([ordinals(early), ordinals(late)], [[0, 0], [2, 1]]);
    assert_eq!((bench.unit.in_flight(), bench.unit.rearms()), (0, 0));
}

#[test]
fn one_that_an_earlier_kickoff_starts_says_so_when_it_is_waited_for() {
    let bench = Bench::new(&model("gather"));
    let (built, first, second) = (bench.built(), bench.device.tpb(0), bench.device.tpb(1));
    let [early, late] = [(); 2].map(|()| bench.unit.stage(&built).unwrap());
    let late = late.kickoff().unwrap();
    // The doorbells of the early one ring, then one of the late one does not.
    drop(early);
    assert_eq!((first.doorbell(), second.doorbell()), (1, 1));
    let [early, next] = [(); 2].map(|()| bench.unit.stage(&built).unwrap());
    let next = next.kickoff().unwrap();
    second.fail(ControlWord::Doorbell, Mishap::Refused);
    drop(early);
    (0..2).for_each(|ordinal| first.run(ordinal));
    second.run(0);
    late.wait().unwrap();
    let error = next.wait().unwrap_err();
    assert_eq!(error.status(), NrtStatus::FAILURE);
    assert!(error.to_string().contains("; TPB 1: Failed to post inference request, err: "), "{error}");
}

#[test]
fn a_doorbell_whose_answer_alone_was_lost_was_rung() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    for ordinal in 0..3 {
        tpb.fail(ControlWord::Doorbell, Mishap::AnswerLost);
        let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
        tpb.run(ordinal);
        assert_eq!(running.wait().unwrap().tpbs[0].ordinal, Some(ordinal));
    }
}

/// A doorbell after which the device can't be asked whether it was rung.
fn in_doubt(is_rung: bool) -> Bench {
    let bench = Bench::new(&model("gather"));
    let (built, second) = (bench.built(), bench.device.tpb(1));
    let [staged, queued] = [(); 2].map(|()| bench.unit.stage(&built).unwrap());
    second.fail(ControlWord::Doorbell, if is_rung { Mishap::AnswerLost } else { Mishap::Refused });
    second.fail(ControlWord::Doorbell, Mishap::Refused);
    let error = staged.kickoff().unwrap_err();
    assert_eq!((error.status(), error.tpb.get()), (NrtStatus::FAILURE, 1));
    // What it was told since is not known either.
    let error = queued.kickoff().unwrap_err();
    assert_eq!((error.status(), error.tpb.get()), (NrtStatus::EXEC_UNIT_UNRECOVERABLE, 1));
    assert!(
        error.to_string().contains("whether its last doorbell was rung is not known (transport"),
        "{error}"
    );
    second.fail(ControlWord::Doorbell, Mishap::Refused);
    assert_eq!(bench.unit.harvest().unwrap_err().status(), NrtStatus::FAILURE);
    assert_eq!((bench.unit.rearms(), bench.unit.in_flight()), (0, 2));
    bench
}

#[test]
fn an_execution_that_may_run_is_waited_for_before_its_tpb_is_set_up_anew() {
    let bench = in_doubt(true);
    let (built, first, second) = (bench.built(), bench.device.tpb(0), bench.device.tpb(1));
    let error = bench.unit.stage(&built).unwrap_err();
    assert_eq!(error.status(), NrtStatus::EXEC_UNIT_UNRECOVERABLE);
    assert!(error.to_string().ends_with("once the execution that runs there has ended"), "{error}");
    first.run(0);
    second.run(0);
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    assert_eq!((bench.unit.rearms(), bench.unit.in_flight()), (1, 1));
    first.run(1);
    second.run(1);
    running.wait().unwrap();
}

#[test]
fn an_execution_that_does_not_run_after_all_is_not_waited_for() {
    let bench = in_doubt(false);
    let (built, first, second) = (bench.built(), bench.device.tpb(0), bench.device.tpb(1));
    first.run(0);
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    assert_eq!((bench.unit.rearms(), bench.unit.in_flight()), (1, 1));
    first.run(1);
    second.run(0);
    running.wait().unwrap();
}

#[test]
fn a_kickoff_that_fails_makes_the_next_request_reload_everything() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let flags = |ordinal| {
        let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
        let copies = tpb.consume();
        let request = &copies[copies.len() - PROLOGUE_PAIRS];
        let request = ExecRequest::read_from_prefix(&value_of(&bench.device, request).1).unwrap().0;
        tpb.run(ordinal);
        running.wait().unwrap();
        request.flags().do_model_switch
    };
    assert_eq!([flags(0), flags(1)], [true, false]);
    let staged = bench.unit.stage(&built).unwrap();
    // The request can't be written, the padding can.
    bench.device.fail_next();
    assert_eq!(staged.kickoff().unwrap_err().status(), NrtStatus::FAILURE);
    assert_eq!([flags(2), flags(3)], [true, false]);
}

#[test]
fn a_kickoff_of_what_a_stopped_tpb_has_lost_says_so() {
    let bench = Bench::new(&model("gather"));
    let (built, first, second) = (bench.built(), bench.device.tpb(0), bench.device.tpb(1));
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    first.run(0);
    let staged = bench.unit.stage(&built).unwrap();
    second.stop_at_bad_pair(ErrorClass::PHASE_MISMATCH);
    assert!(running.wait().is_err());
    let error = staged.kickoff().unwrap_err();
    assert_eq!((error.status(), error.tpb.get()), (NrtStatus::EXEC_UNIT_UNRECOVERABLE, 1));
    // The healthy one runs over the pairs that were given up; both go on together.
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    first.run(1);
    second.run(0);
    let ordinals: Vec<_> = running.wait().unwrap().tpbs.iter().map(|tpb| tpb.ordinal).collect();
    assert_eq!(ordinals, [Some(1), Some(0)]);
}

#[test]
fn kickoffs_that_fail_leave_their_room_in_the_ring() {
    // There is no room for what fails, unless it is given back.
    let bench = Bench::with(&model("pointers"), UnitOptions { exec_ring: 64, ..small() }, 30);
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    for ordinal in 0..20 {
        for _ in 0..3 {
            let staged = bench.unit.stage(&built).unwrap();
            bench.device.fail_next();
            assert_eq!(staged.kickoff().unwrap_err().status(), NrtStatus::FAILURE);
            assert_eq!(bench.unit.in_flight(), 0);
        }
        let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
        tpb.run(ordinal);
        running.wait().unwrap();
    }
}

#[test]
fn a_failed_kickoff_behind_which_others_are_dropped_leaves_its_room_too() {
    let bench = Bench::with(&model("pointers"), UnitOptions { exec_ring: 128, ..small() }, 30);
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    for ordinal in 0..20 {
        let [first, second] = [(); 2].map(|()| bench.unit.stage(&built).unwrap());
        let posted = tpb.posted();
        bench.device.fail_next();
        assert!(first.kickoff().is_err());
        assert_eq!(tpb.posted(), posted, "overwritten where they are");
        drop(second);
        let [running, behind] = [(); 2].map(|()| bench.unit.stage(&built).unwrap());
        let running = running.kickoff().unwrap();
        drop(behind);
        tpb.run(ordinal);
        running.wait().unwrap();
    }
}

#[test]
fn a_peer_that_has_stopped_leaves_room_on_those_that_have_not() {
    let bench = Bench::with(&model("gather"), UnitOptions { exec_ring: 64, ..small() }, 30);
    let (built, first, second) = (bench.built(), bench.device.tpb(0), bench.device.tpb(1));
    for _ in 0..20 {
        let staged = bench.unit.stage(&built).unwrap();
        second.stop_at_bad_pair(ErrorClass::PHASE_MISMATCH);
        bench.unit.harvest().unwrap();
        assert_eq!(staged.kickoff().unwrap_err().tpb.get(), 1);
        assert_eq!((bench.unit.in_flight(), first.posted()), (0, 0));
    }
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    first.run(0);
    second.run(0);
    running.wait().unwrap();
}

/// Whether `call` panics.
fn panics(call: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
}

#[test]
fn a_kickoff_that_panics_before_it_starts_anything_leaves_nothing_staged() {
    for at in [Look::Clock, Look::Progress] {
        let bench = Bench::new(&model("gather"));
        let built = bench.built();
        let [staged, behind] = [(); 2].map(|()| bench.unit.stage(&built).unwrap());
        let behind = behind.kickoff().unwrap();
        bench.device.panic_once_after_looks(at, 0);
        assert!(panics(|| drop(staged.kickoff())), "{at:?}");
        // The one behind it waits for nothing.
        (0..2).for_each(|tpb| bench.device.tpb(tpb).run(0));
        behind.wait().unwrap();
        assert_eq!(bench.unit.in_flight(), 0, "{at:?}");
        let staged = bench.unit.stage(&built).unwrap();
        bench.device.panic_once_after_looks(at, 0);
        assert!(panics(|| drop(staged.kickoff())), "{at:?}");
        assert_eq!((bench.unit.in_flight(), bench.device.tpb(1).doorbell()), (0, 1), "{at:?}");
        let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
        (0..2).for_each(|tpb| bench.device.tpb(tpb).run(1));
        running.wait().unwrap();
        bench.unit.unload(bench.model, AT_ONCE).unwrap();
    }
}

#[test]
fn a_kickoff_that_panics_after_the_start_lets_the_execution_go_on() {
    let bench = Bench::new(&model("gather"));
    let (built, tpbs) = (bench.built(), [0, 1].map(|tpb| bench.device.tpb(tpb)));
    let [first, behind] = [(); 2].map(|()| bench.unit.stage(&built).unwrap());
    // Of the look at the begin and that at the end the second. One of the two is kicked off only, the other starts both.
    for staged in [behind, first] {
        bench.device.panic_once_after_looks(Look::Clock, 1);
        assert!(panics(|| drop(staged.kickoff())));
        assert_eq!(bench.unit.in_flight(), 2);
    }
    assert_eq!([tpbs[0].doorbell(), tpbs[1].doorbell()], [2, 2]);
    assert!(bench.unit.unload(bench.model, AT_ONCE).is_err());
    for tpb in &tpbs {
        (0..2).for_each(|ordinal| tpb.run(ordinal));
    }
    bench.unit.unload(bench.model, AT_ONCE).unwrap();
}

#[test]
fn a_stage_that_panics_leaves_nothing_staged() {
    for looks in 0..2 {
        let bench = Bench::new(&model("gather"));
        let built = bench.built();
        bench.device.panic_once_after_looks(Look::Clock, looks);
        assert!(panics(|| drop(bench.unit.stage(&built))));
        assert_eq!((bench.unit.in_flight(), bench.unit.tickets(), bench.device.tpb(0).posted()), (0, 0, 0));
        bench.unit.unload(bench.model, AT_ONCE).unwrap();
    }
}
