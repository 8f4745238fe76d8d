//! A device that misbehaves.

use sluice_core::exec::{ErrorClass, NrtStatus, SubType, Ticket};
use sluice_core::mem::testing::Mishap;
use sluice_core::mmio::{ControlWord, Engine, QueueId};

use super::super::mock::{Bench, MockTpb, model, tensors};
use super::*;

/// Runs one execution whose notifications `play` sends, and returns how it ended.
fn ended(bench: &Bench, play: impl FnOnce(&MockTpb)) -> WaitError {
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    let tpb = bench.device.tpb(0);
    tpb.consume();
    play(&tpb);
    running.wait().unwrap_err()
}

#[test]
fn device_errors_become_statuses() {
    let bench = Bench::new(&model("pointers"));
    let queue = QueueId::new(1).unwrap();
    let classes = [
        (ErrorClass::OUT_OF_BOUNDS, NrtStatus::EXEC_OOB),
        (ErrorClass::DMA_ABORT, NrtStatus::EXEC_HW_ERR_DMA_ABORT),
        (ErrorClass::PHASE_MISMATCH, NrtStatus::EXEC_HW_ERR_DMA_ABORT),
        (ErrorClass(77), NrtStatus::EXEC_COMPLETED_WITH_ERR),
    ];
    for (ordinal, (class, status)) in classes.into_iter().enumerate() {
        let ordinal = ordinal as u32;
        // A failed execution is cut short: its engines owe no end.
        let error = ended(&bench, |tpb| {
            tpb.notify_all(ordinal, SubType::START);
            tpb.report(Engine::Pool, queue, class);
            tpb.finish(ordinal);
        });
        assert_eq!(error.status(), status);
        assert!(error.to_string().contains("on queue 1 of engine 2"), "{error}");
    }
    // The unit is none the worse for it.
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    bench.device.tpb(0).run(4);
    running.wait().unwrap();
}

#[test]
fn an_error_belongs_to_the_execution_that_ran_at_its_time() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let [first, second] = [(); 2].map(|()| bench.unit.stage(&built).unwrap().kickoff().unwrap());
    tpb.run(0);
    tpb.notify_all(1, SubType::START);
    tpb.report(Engine::Sp, QueueId::new(0).unwrap(), ErrorClass::OUT_OF_BOUNDS);
    tpb.finish(1);
    first.wait().unwrap();
    assert_eq!(second.wait().unwrap_err().status(), NrtStatus::EXEC_OOB);
}

#[test]
fn records_out_of_order_spoil_their_execution_only() {
    let bench = Bench::new(&model("pointers"));
    let error = ended(&bench, |tpb| {
        tpb.notify(Engine::Act, 0, SubType::END);
        tpb.run(0);
    });
    assert_eq!(error.status(), NrtStatus::EXEC_COMPLETED_WITH_ERR);
    assert!(error.to_string().contains("engine ACT in START_PENDING sent sub-type 3, id 0"), "{error}");
    let error = ended(&bench, |tpb| {
        tpb.notify_all(1, SubType::START);
        tpb.finish(1);
    });
    assert_eq!(error.status(), NrtStatus::EXEC_COMPLETED_WITH_ERR);
    assert!(error.to_string().contains("engine SP still in END_PENDING when the execution ended"), "{error}");
    let error = ended(&bench, |tpb| {
        tpb.chatter(Engine::Act, 33);
        tpb.finish(2);
    });
    assert_eq!(error.status(), NrtStatus::EXEC_SW_NQ_OVERFLOW);
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    bench.device.tpb(0).run(3);
    running.wait().unwrap();
}

/// An execution that runs when its TPB reports two done, of one.
fn miscounted() -> (Bench, MockTpb) {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let [running, queued] = [(); 2].map(|()| bench.unit.stage(&built).unwrap());
    let running = running.kickoff().unwrap();
    tpb.notify_all(0, SubType::START);
    tpb.set(ControlWord::ExecutionsDone, 2);
    let error = running.wait().unwrap_err();
    let text = "execution 0 ended with status 6; TPB 0: it reports executions_done 2, between 0 and 1 are possible; \
                what is in flight there is lost, and if this goes on, reset the device and open the unit again";
    assert_eq!((error.status(), error.to_string()), (NrtStatus::HW_ERROR, text.into()));
    assert_eq!(queued.kickoff().unwrap_err().status(), NrtStatus::HW_ERROR);
    // The device may still write what it was given.
    assert_eq!((bench.unit.in_flight(), bench.unit.rearms()), (2, 0));
    let error = bench.unit.stage(&built).unwrap_err();
    assert_eq!(error.status(), NrtStatus::HW_ERROR);
    assert!(error.to_string().ends_with("once the execution that runs there has ended"), "{error}");
    (bench, tpb)
}

#[test]
fn a_count_that_can_not_be_ends_what_is_in_flight_and_its_tpb_goes_on_where_that_stands() {
    let (bench, tpb) = miscounted();
    tpb.notify_all(0, SubType::END);
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    assert_eq!((bench.unit.rearms(), bench.unit.in_flight()), (1, 1));
    tpb.run(2);
    assert_eq!(running.wait().unwrap().tpbs[0].ordinal, Some(2));
}

#[test]
fn a_count_that_comes_right_again_is_believed() {
    let (bench, tpb) = miscounted();
    tpb.finish(0);
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    assert_eq!((bench.unit.rearms(), bench.unit.in_flight()), (1, 1));
    tpb.run(1);
    assert_eq!(running.wait().unwrap().tpbs[0].ordinal, Some(1));
}

#[test]
fn a_tpb_that_can_not_be_followed_leaves_the_others_alone() {
    let bench = Bench::new(&model("gather"));
    let (first, second) = (bench.device.tpb(0), bench.device.tpb(1));
    let both = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    let small = bench.unit.load(&model("pointers"), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&bench.unit, small);
    let built = bench.unit.build(small, &inputs, &outputs).unwrap();
    let one = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    second.set(ControlWord::ExecutionsDone, 9);
    (0..2).for_each(|ordinal| first.run(ordinal));
    one.wait().unwrap();
    assert_eq!(both.wait().unwrap_err().status(), NrtStatus::HW_ERROR);
    let next = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    first.run(2);
    next.wait().unwrap();
}

#[test]
fn a_tpb_that_can_not_be_reached_leaves_the_others_alone() {
    let bench = Bench::new(&model("gather"));
    let (first, second) = (bench.device.tpb(0), bench.device.tpb(1));
    let small = bench.unit.load(&model("pointers"), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&bench.unit, small);
    let built = bench.unit.build(small, &inputs, &outputs).unwrap();
    let [early, late] = [(); 2].map(|()| bench.unit.stage(&built).unwrap().kickoff().unwrap());
    (0..2).for_each(|ordinal| first.run(ordinal));
    // Whichever is looked at first.
    second.fail(ControlWord::ExecutionsDone, Mishap::Refused);
    early.wait().unwrap();
    late.wait().unwrap();
}

#[test]
fn a_count_of_pairs_that_can_not_be_is_no_end_either() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    let posted = tpb.posted();
    tpb.set(ControlWord::ExecHeadPairs, posted + 1);
    let text = format!("it reports exec_head_pairs {}, between 0 and {posted} are possible", posted + 1);
    let error = bench.unit.stage(&built).unwrap_err();
    assert_eq!(error.status(), NrtStatus::HW_ERROR);
    assert!(error.to_string().contains(&text), "{error}");
    tpb.set(ControlWord::ExecHeadPairs, 0);
    tpb.run(0);
    assert_eq!(running.wait().unwrap_err().status(), NrtStatus::HW_ERROR);
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    tpb.run(1);
    running.wait().unwrap();
}

#[test]
fn a_queue_that_can_not_be_read_is_missed_at_the_end() {
    let bench = Bench::new(&model("pointers"));
    let tpb = bench.device.tpb(0);
    drop(bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap());
    tpb.set(ControlWord::NqTail(Engine::Pe), 1_000_000);
    for engine in &Engine::ALL[1..] {
        tpb.notify(*engine, 0, SubType::START);
        tpb.notify(*engine, 0, SubType::END);
    }
    tpb.finish(0);
    bench.unit.harvest().unwrap();
    assert_eq!(bench.unit.in_flight(), 0);
}

#[test]
fn a_timeout_names_engine_and_ticket_and_the_late_end_is_harvested() {
    let bench = Bench::with(&model("pointers"), small(), 0);
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let [first, second] = [(); 2].map(|()| bench.unit.stage(&built).unwrap().kickoff().unwrap());
    for engine in [Engine::Pe, Engine::Act] {
        tpb.notify(engine, 0, SubType::START);
    }
    tpb.notify(Engine::Pe, 0, SubType::END);
    let error = second.wait().unwrap_err();
    assert_eq!(error.status(), NrtStatus::TIMEOUT);
    assert!(error.to_string().contains("waits behind execution 0"), "{error}");
    let error = first.wait().unwrap_err();
    let WaitError::Timeout(timeout) = &error else { panic!("{error}") };
    let (place, engine, state, last) = timeout.engine.unwrap();
    assert_eq!((place.get(), engine, state), (0, Engine::Act, EngineState::EndPending));
    assert_eq!((last.unwrap().sub_type, timeout.behind), (SubType::START, None));
    assert!(error.to_string().starts_with("execution 0 not done after 0 us timeout"), "{error}");

    // Both end after all, unwatched; the next execution is not confused.
    for engine in [Engine::Act, Engine::Pool, Engine::Dve, Engine::Sp] {
        if engine != Engine::Act {
            tpb.notify(engine, 0, SubType::START);
        }
        tpb.notify(engine, 0, SubType::END);
    }
    tpb.finish(0);
    tpb.run(1);
    let third = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    tpb.run(2);
    assert_eq!(third.wait().unwrap().ticket, Ticket(2));
    assert_eq!(bench.unit.in_flight(), 0);
}

#[test]
fn an_overdue_execution_is_given_up_whoever_looks() {
    let bench = Bench::with(&model("pointers"), small(), 0);
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let given_up = || tpb.control().given_up.observe();
    for ordinal in 0..2 {
        assert_eq!(given_up(), ordinal);
        // Nobody waits for it.
        drop(bench.unit.stage(&built).unwrap().kickoff().unwrap());
        bench.unit.harvest().unwrap();
        assert_eq!(given_up(), ordinal + 1);
        tpb.consume();
        tpb.notify_all(ordinal, SubType::START);
        tpb.report(Engine::Sp, QueueId::EXEC, ErrorClass::GIVEN_UP);
        tpb.finish(ordinal);
        bench.unit.harvest().unwrap();
        assert_eq!((bench.unit.in_flight(), bench.unit.rearms()), (0, 0));
    }
    let late = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    tpb.consume();
    tpb.notify_all(2, SubType::START);
    tpb.report(Engine::Dve, QueueId::EXEC, ErrorClass::GIVEN_UP);
    tpb.finish(2);
    let error = late.wait().unwrap_err();
    assert_eq!(error.status(), NrtStatus::TIMEOUT);
    assert!(error.to_string().contains("given up by the host of engine 3 at cycle"), "{error}");
}

#[test]
fn an_execution_that_ends_while_it_is_given_up_leaves_the_next_alone() {
    let bench = Bench::with(&model("pointers"), small(), 0);
    let patient = bench.unit.load(&model("pointers"), &LoadOptions::default()).unwrap();
    let tpb = bench.device.tpb(0);
    let hasty = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    let next = bench.unit.build(patient, &bench.inputs, &bench.outputs).unwrap();
    let next = bench.unit.stage(&next).unwrap().kickoff().unwrap();
    bench.unit.harvest().unwrap();
    assert_eq!(tpb.control().given_up.observe(), 1);
    tpb.consume();
    tpb.notify_all(0, SubType::START);
    tpb.notify_all(0, SubType::END);
    tpb.report(Engine::Act, QueueId::EXEC, ErrorClass::GIVEN_UP);
    tpb.finish(0);
    tpb.run(1);
    assert_eq!(hasty.wait().unwrap_err().status(), NrtStatus::TIMEOUT);
    next.wait().unwrap();
}

#[test]
fn a_program_that_fails_outside_any_queue_stops_no_sequencer() {
    let bench = Bench::new(&model("pointers"));
    let error = ended(&bench, |tpb| {
        tpb.notify_all(0, SubType::START);
        tpb.report(Engine::Act, QueueId::EXEC, ErrorClass::BAD_INSTRUCTION);
        tpb.finish(0);
    });
    assert_eq!((error.status(), bench.unit.rearms()), (NrtStatus::EXEC_COMPLETED_WITH_ERR, 0));
    assert!(error.to_string().contains("TPB 0: bad instruction of engine 1 at cycle"), "{error}");
    assert_eq!(bench.device.tpb(0).doorbell(), 1);
}

#[test]
fn a_staged_execution_in_the_way_is_named() {
    let bench = Bench::with(&model("pointers"), small(), 0);
    let built = bench.built();
    let staged = bench.unit.stage(&built).unwrap();
    let second = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    let error = second.wait().unwrap_err().to_string();
    assert!(error.ends_with("; not started; waits behind execution 0"), "{error}");
    drop(staged);
    assert_eq!(bench.device.tpb(0).doorbell(), 1);
}

#[test]
fn pairs_that_were_not_kicked_off_can_not_have_been_consumed() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let staged = bench.unit.stage(&built).unwrap();
    let posted = tpb.posted();
    tpb.set(ControlWord::ExecHeadPairs, posted);
    // Nothing runs there, so the TPB is set up anew at once.
    let next = bench.unit.stage(&built).unwrap();
    assert_eq!((bench.unit.rearms(), tpb.posted()), (1, 2 * posted));
    let error = staged.kickoff().unwrap_err();
    let text = format!("it reports exec_head_pairs {posted}, between 0 and 0 are possible");
    assert_eq!(error.status(), NrtStatus::HW_ERROR);
    assert!(error.to_string().contains(&text), "{error}");
    let running = next.kickoff().unwrap();
    tpb.run(0);
    running.wait().unwrap();
}

#[test]
fn a_full_ring_is_harvested_for_room_when_nobody_waits_any_more() {
    let bench = Bench::with(&model("pointers"), UnitOptions { exec_ring: 64, ..small() }, 0);
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let mut queued = 0;
    let error = loop {
        match bench.unit.stage(&built) {
            Ok(staged) => drop(staged.kickoff().unwrap()),
            Err(error) => break error,
        }
        queued += 1;
    };
    assert!(matches!(error, StageError::Ring { .. }), "{error}");
    assert_eq!((error.status(), tpb.control().given_up.observe()), (NrtStatus::QUEUE_FULL, 1));
    tpb.consume();
    tpb.report(Engine::Sp, QueueId::EXEC, ErrorClass::GIVEN_UP);
    tpb.finish(0);
    let next = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    (1..=queued).for_each(|ordinal| tpb.run(ordinal));
    next.wait().unwrap();
}

#[test]
fn notifications_that_were_lost_are_told_of_the_executions_in_flight_only() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let kick_off = || bench.unit.stage(&built).unwrap().kickoff().unwrap();
    let status =
        |running: Running<_>| running.wait().map_or_else(|error| error.status(), |_| NrtStatus::SUCCESS);
    for round in 0..3 {
        let (first, lost) = (tpb.doorbell(), [(); 2].map(|()| kick_off()));
        // The queue has room for four records of each of eight executions.
        tpb.chatter(Engine::Pe, 33);
        (0..2).for_each(|place| tpb.run(first + place));
        assert_eq!(lost.map(status), [NrtStatus::EXEC_SW_NQ_OVERFLOW; 2]);
        let [missing, fine] = [(); 2].map(|()| kick_off());
        tpb.consume();
        tpb.finish(first + 2);
        tpb.run(first + 3);
        assert_eq!([missing, fine].map(status), [NrtStatus::EXEC_COMPLETED_WITH_ERR, NrtStatus::SUCCESS]);
        if round == 1 {
            tpb.chatter(Engine::Dve, 33);
            tpb.stop_at_bad_pair(ErrorClass::DMA_ABORT);
            bench.unit.harvest().unwrap();
        }
    }
    assert_eq!(bench.unit.rearms(), 1);
}

#[test]
fn a_timeout_behind_which_nothing_was_lost_is_one() {
    let bench = Bench::with(&model("pointers"), small(), 0);
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    for status in [NrtStatus::EXEC_SW_NQ_OVERFLOW, NrtStatus::TIMEOUT] {
        let (ordinal, running) = (tpb.doorbell(), bench.unit.stage(&built).unwrap().kickoff().unwrap());
        if status == NrtStatus::EXEC_SW_NQ_OVERFLOW {
            tpb.chatter(Engine::Pe, 33);
        }
        assert_eq!(running.wait().unwrap_err().status(), status);
        tpb.run(ordinal);
        bench.unit.harvest().unwrap();
    }
}

#[test]
fn a_flood_of_errors_is_counted_and_its_worst_decides() {
    let bench = Bench::new(&model("pointers"));
    let (queue, mut reported) = (QueueId::new(3).unwrap(), 0);
    let error = ended(&bench, |tpb| {
        tpb.notify_all(0, SubType::START);
        for class in
            std::iter::repeat_n(ErrorClass::NUMERIC, 40).chain([ErrorClass::MEMORY, ErrorClass::NUMERIC])
        {
            tpb.report(Engine::Act, queue, class);
            bench.unit.harvest().unwrap();
            reported += 1;
        }
        tpb.finish(0);
    });
    let WaitError::Execution(outcome) = &error else { panic!("{error}") };
    let tpb = &outcome.tpbs[0];
    assert_eq!((error.status(), tpb.faults.len()), (NrtStatus::EXEC_HW_ERR_HBM_UE, 16));
    assert_eq!(tpb.omitted_faults, reported - 16);
    assert!(error.to_string().ends_with("; TPB 0: and 26 more"), "{error}");
}

#[test]
fn a_device_whose_functions_panic_is_not_followed_any_further() {
    let panics =
        |call: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err();
    for writes in 0.. {
        let bench = Bench::new(&model("gather"));
        let built = bench.built();
        let before = bench.unit.stage(&built).unwrap().kickoff().unwrap();
        let staged = bench.unit.stage(&built).unwrap();
        bench.device.panic_once_after(writes);
        // Four writes of a stage, two of a kickoff, and four that overwrite what is dropped with others behind it.
        let mut staged = Some(staged);
        let mut behind = None;
        let panicked = panics(&mut || behind = Some(bench.unit.stage(&built).unwrap()))
            || panics(&mut || drop(staged.take()))
            || panics(&mut || drop(behind.take().unwrap().kickoff()));
        bench.device.panic_once_after(u32::MAX);
        if !panicked {
            assert_eq!(writes, 10);
            return;
        }
        let lost = NrtStatus::EXEC_UNIT_UNRECOVERABLE;
        let error = bench.unit.stage(&built).unwrap_err();
        assert_eq!(error.status(), lost);
        assert!(error.to_string().contains("left the unit half-way through a change"), "{error}");
        for tpb in [0, 1].map(|tpb| bench.device.tpb(tpb)) {
            tpb.finish(0);
        }
        assert_eq!(before.wait().unwrap_err().status(), lost);
        if let Some(staged) = staged.take() {
            assert_eq!(staged.kickoff().unwrap_err().status(), lost);
        }
        assert_eq!(bench.unit.close(AT_ONCE).unwrap_err().status(), lost);
        // The device may still use all of it.
        let Bench { device, heap, unit, inputs, outputs, .. } = bench;
        let used = heap.usage();
        drop((unit, built, behind, inputs, outputs));
        assert!(heap.usage().free_bytes < used.total_bytes);
        assert!(Unit::open(device, heap, small()).is_err());
    }
}
