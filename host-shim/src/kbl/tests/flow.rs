//! Staging, kickoff and wait on a device that behaves.

use sluice_core::exec::{ExecRequest, NrtStatus, Ticket};
use sluice_core::mmio::{ControlWord, Half};
use zerocopy::FromBytes;

use super::super::batch::PROLOGUE_PAIRS;
use super::super::mock::{Bench, MockDevice, model, read, tensors, value_of};
use super::*;
use crate::neff::testing::Container;
use crate::neff::{Neff, models};

#[test]
fn an_execution_ends_when_all_engines_of_all_tpbs_have() {
    let bench = Bench::new(&model("gather"));
    let staged = bench.unit.stage(&bench.built()).unwrap();
    let (first, second) = (bench.device.tpb(0), bench.device.tpb(1));
    assert!(first.posted() > 0 && second.posted() > 0);
    assert_eq!((first.doorbell(), second.doorbell()), (0, 0));
    let running = staged.kickoff().unwrap();
    assert_eq!((first.doorbell(), second.doorbell()), (1, 1));
    first.run(0);
    bench.unit.harvest().unwrap();
    assert_eq!(bench.unit.in_flight(), 1);
    second.run(0);
    let outcome = running.wait().unwrap();
    assert_eq!((outcome.ticket, outcome.tpbs.len(), bench.unit.in_flight()), (Ticket(0), 2, 0));
    // Five starts, then five ends, one cycle apart.
    assert!(outcome.tpbs.iter().all(|tpb| tpb.duration_cycles() == Some(9)));
    assert_eq!(bench.unit.tickets(), 1);
}

#[test]
fn a_waiter_is_woken_by_the_device() {
    let bench = Bench::new(&model("pointers"));
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| running.wait());
        bench.device.tpb(0).run(0);
        assert_eq!(waiter.join().unwrap().unwrap().ticket, Ticket(0));
    });
}

#[test]
fn doorbells_ring_in_ticket_order() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let [first, second, third] = [(); 3].map(|()| bench.unit.stage(&built).unwrap());
    let third = third.kickoff().unwrap();
    let second = second.kickoff().unwrap();
    assert_eq!(tpb.doorbell(), 0);
    let first = first.kickoff().unwrap();
    assert_eq!(tpb.doorbell(), 3);
    for ordinal in 0..3 {
        tpb.run(ordinal);
    }
    let tickets = [first, second, third].map(|running| running.wait().unwrap().ticket);
    assert_eq!(tickets, [Ticket(0), Ticket(1), Ticket(2)]);
}

#[test]
fn a_staged_execution_that_is_dropped_gives_its_slots_back() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    for _ in 0..100 {
        let [first, second] = [(); 2].map(|()| bench.unit.stage(&built).unwrap());
        drop(first);
        drop(second);
        assert_eq!((tpb.posted(), bench.unit.in_flight(), bench.unit.tickets()), (0, 0, 0));
    }
}

#[test]
fn a_dropped_execution_between_others_moves_nothing() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let [first, second, third] = [(); 3].map(|()| bench.unit.stage(&built).unwrap());
    let batch = tpb.posted() as usize / 3;
    let third = third.kickoff().unwrap();
    let first = first.kickoff().unwrap();
    assert_eq!(tpb.doorbell(), 1);
    drop(second);
    assert_eq!(tpb.doorbell(), 2);
    let copies = tpb.consume();
    let (real, padding) = (&copies[..batch], &copies[batch..2 * batch]);
    assert!(real.iter().all(|copy| copy.source != copy.destination));
    assert!(padding.iter().all(|copy| copy.source == copy.destination && copy.len.bytes() == 4));
    tpb.run(0);
    tpb.run(1);
    assert_eq!(first.wait().unwrap().tpbs[0].ordinal, Some(0));
    let outcome = third.wait().unwrap();
    assert_eq!((outcome.ticket, outcome.tpbs[0].ordinal), (Ticket(2), Some(1)));
}

#[test]
fn a_full_ring_stages_nothing_on_any_tpb() {
    let bench = Bench::with(&model("gather"), UnitOptions { exec_ring: 64, ..small() }, 30);
    let (built, tpbs) = (bench.built(), [0, 1].map(|tpb| bench.device.tpb(tpb)));
    let running = [0; 3].map(|_| bench.unit.stage(&built).unwrap().kickoff().unwrap());
    let posted = tpbs.each_ref().map(|tpb| tpb.posted());
    // TPB 1 has room for one more, TPB 0 not.
    assert_eq!(posted, [3 * 15, 3 * 11]);
    let error = bench.unit.stage(&built).unwrap_err();
    assert_eq!(error.status(), NrtStatus::QUEUE_FULL);
    assert_eq!(
        error.to_string(),
        "Failed to add execution request: TPB 0: tx ring full: need 15 slots, 3 free"
    );
    assert_eq!(tpbs.each_ref().map(|tpb| tpb.posted()), posted);
    assert_eq!(bench.unit.tickets(), 3);
    for (ordinal, running) in (0..).zip(running) {
        for tpb in &tpbs {
            tpb.run(ordinal);
        }
        running.wait().unwrap();
    }
    drop(bench.unit.stage(&built).unwrap());
}

#[test]
fn a_deep_line_is_bounded_and_harvested_for_room() {
    let bench = Bench::with(&model("pointers"), UnitOptions { exec_ring: 1024, ..small() }, 30);
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let mut running: Vec<_> = (0..8).map(|_| bench.unit.stage(&built).unwrap().kickoff().unwrap()).collect();
    let error = bench.unit.stage(&built).unwrap_err();
    assert_eq!(
        (error.status(), error.to_string()),
        (NrtStatus::QUEUE_FULL, "8 executions in flight, at most 8".into())
    );
    tpb.run(0);
    running.push(bench.unit.stage(&built).unwrap().kickoff().unwrap());
    for ordinal in 1..9 {
        tpb.run(ordinal);
    }
    for (ticket, running) in running.into_iter().enumerate() {
        assert_eq!(running.wait().unwrap().ticket, Ticket(ticket as u64));
    }
}

#[test]
fn phases_and_tickets_hold_over_ten_thousand_executions_on_the_smallest_rings() {
    // Batches of 7 pairs lie across the end of a ring, two of 16 end at it, and one of 16 is all that a ring takes.
    for (exec_ring, exec_ring_rx, pointers) in [(32, Some(64), 0), (64, Some(32), 9), (32, None, 9)] {
        let options = UnitOptions { exec_ring, exec_ring_rx, depth: 2, ..small() };
        let bench = Bench::with(&read("bare", &bare(pointers)), options, 30);
        let (built, tpb) = (bench.built(), bench.device.tpb(0));
        let mut laps = [vec![1], vec![1]];
        for ordinal in 0..10_000 {
            let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
            // `consume` refuses a pair of the wrong lap.
            tpb.run(ordinal);
            assert_eq!(running.wait().unwrap().ticket, Ticket(u64::from(ordinal)));
            for (laps, half) in laps.iter_mut().zip([Half::Tx, Half::Rx]) {
                let lap = tpb.next_ring_id(half);
                if laps.last() != Some(&lap) {
                    laps.push(lap);
                }
            }
        }
        for (laps, descriptors) in laps.iter().zip([exec_ring, exec_ring_rx.unwrap_or(exec_ring)]) {
            assert!(laps.iter().eq([1, 2, 3, 0].iter().cycle().take(laps.len())));
            assert_eq!(laps.len() as u32 - 1, 10_000 * (7 + pointers as u32) / descriptors);
        }
    }
}

#[test]
fn counters_of_the_device_go_round() {
    let device = MockDevice::new(1);
    let (tpb, first) = (device.tpb(0), u32::MAX - 50);
    tpb.set(ControlWord::ExecHeadPairs, u32::MAX - 500);
    tpb.set(ControlWord::ExecutionsDone, first);
    let bench = Bench::on(device, &model("pointers"), UnitOptions { exec_ring: 64, ..small() }, 30);
    let built = bench.built();
    for execution in 0..100 {
        let ordinal = first.wrapping_add(execution);
        let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
        // One behind it is taken back, also where the counters go round.
        drop(bench.unit.stage(&built).unwrap());
        let mark = running.mark().unwrap();
        assert!(!bench.unit.shared.has_counted(mark));
        tpb.run(ordinal);
        assert!(bench.unit.shared.has_counted(mark));
        assert_eq!(running.wait().unwrap().tpbs[0].ordinal, Some(ordinal));
    }
    assert!(tpb.posted() < u32::MAX / 2 && tpb.doorbell() == 49, "both have gone round");
}

#[test]
fn a_wait_can_be_given_up_and_taken_up_again() {
    let bench = Bench::new(&model("pointers"));
    let (tpb, running) = (bench.device.tpb(0), bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap());
    assert_eq!(running.try_wait(), Ok(None));
    assert_eq!(running.wait_for(std::time::Duration::from_millis(1)), Ok(None));
    bench.device.cut(true);
    assert_eq!(running.wait_for(SOON).unwrap_err().status(), NrtStatus::FAILURE);
    bench.device.cut(false);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| running.wait_for(SOON).unwrap().unwrap().ticket);
        tpb.run(0);
        assert_eq!(waiter.join().unwrap(), Ticket(0));
    });
    // The outcome stays, whether or not the device does.
    bench.device.cut(true);
    assert_eq!(running.try_wait().unwrap().unwrap().ticket, Ticket(0));
    assert_eq!(running.wait().unwrap().ticket, Ticket(0));
    bench.device.cut(false);
}

#[test]
fn staging_waits_for_room_as_long_as_it_is_told_to() {
    let bench = Bench::with(&model("pointers"), UnitOptions { depth: 1, ..small() }, 30);
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let running = bench.unit.stage_within(&built, AT_ONCE).unwrap().kickoff().unwrap();
    let error = bench.unit.stage_within(&built, AT_ONCE).unwrap_err();
    let text = "no room within 0 ms: 1 executions in flight, at most 1";
    assert_eq!((error.status(), error.to_string()), (NrtStatus::TIMEOUT, text.into()));
    std::thread::scope(|scope| {
        let stager = scope.spawn(|| bench.unit.stage_within(&built, SOON).unwrap().ticket());
        tpb.run(0);
        assert_eq!(stager.join().unwrap(), Ticket(1));
    });
    running.wait().unwrap();
    bench.unit.close(AT_ONCE).unwrap();
    assert_eq!(bench.unit.stage_within(&built, SOON).unwrap_err().status(), NrtStatus::CLOSED);
}

/// A model without queues and with `pointers` pointer cells.
pub(super) fn bare(pointers: usize) -> String {
    let cells: String = (0..pointers)
        .map(|cell| format!("  {{ name = \"p{cell}\", type = \"pointer\", to = \"y\" }},\n"))
        .collect();
    let tensor = "{ name = \"y\", type = \"output\", size = 64 }";
    format!("[model]\nname = \"bare\"\ntarget = \"sunda\"\n[[tpb]]\nvar = [\n  {tensor},\n{cells}]\n")
}

#[test]
fn batches_fit_the_smallest_ring_to_the_last_slot() {
    // The prologue and its queue's bases take 7 pairs; a ring of 32 has room for 16.
    for pointers in 0..=9 {
        let options = UnitOptions { exec_ring: 32, ..small() };
        let bench = Bench::with(&read("bare", &bare(pointers)), options, 30);
        let (built, tpb) = (bench.built(), bench.device.tpb(0));
        for ordinal in 0..100 {
            let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
            assert_eq!(tpb.posted(), (ordinal + 1) * (7 + pointers as u32));
            // A second one fits only behind the smallest of all.
            let second = bench.unit.stage(&built);
            assert_eq!(second.is_ok(), pointers <= 1);
            drop(second);
            tpb.run(ordinal);
            running.wait().unwrap();
        }
    }
    let device = MockDevice::new(1);
    let heap = device.heap();
    let unit = Unit::open(device, heap, UnitOptions { exec_ring: 32, ..small() }).unwrap();
    let error = unit.load(&read("bare", &bare(10)), &LoadOptions::default()).unwrap_err();
    assert_eq!(error, LoadError::BatchTooLarge { pairs: 17, limit: 16 });
}

#[test]
fn a_write_that_fails_while_staging_stages_nothing() {
    let bench = Bench::new(&model("gather"));
    let (built, tpbs) = (bench.built(), [0, 1].map(|tpb| bench.device.tpb(tpb)));
    let mut failures = 0;
    let staged = loop {
        bench.device.fail_after(failures);
        match bench.unit.stage(&built) {
            Ok(staged) => break staged,
            Err(error) => assert_eq!(error.status(), NrtStatus::FAILURE),
        }
        assert_eq!(tpbs.each_ref().map(|tpb| tpb.posted()), [0, 0]);
        assert_eq!((bench.unit.in_flight(), bench.unit.tickets()), (0, 0));
        failures += 1;
    };
    assert_eq!(failures, 4, "one write per half and TPB");
    bench.device.fail_after(u32::MAX);
    bench.device.fail_next();
    let error = staged.kickoff().unwrap_err();
    assert_eq!(error.status(), NrtStatus::FAILURE);
    assert!(error.to_string().contains("Unable to copy execution request"), "{error}");
    assert_eq!((tpbs[0].doorbell(), bench.unit.in_flight()), (0, 0));

    // What the failed one left in the rings moves nothing; the next one runs.
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    for tpb in &tpbs {
        tpb.run(0);
    }
    assert_eq!(running.wait().unwrap().ticket, Ticket(1));
}

/// Model switch, new configuration and table reload of five requests: twice a model, twice `other`, and the first again.
fn switches(first: &Neff, other: &Neff) -> Vec<(bool, bool, bool)> {
    let bench = Bench::new(first);
    let other = bench.unit.load(other, &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&bench.unit, other);
    let other = bench.unit.build(other, &inputs, &outputs).unwrap();
    let built = bench.built();
    let tpb = bench.device.tpb(0);
    let mut flags = Vec::new();
    for (ordinal, built) in [&built, &built, &other, &other, &built].into_iter().enumerate() {
        let running = bench.unit.stage(built).unwrap().kickoff().unwrap();
        let copies = tpb.consume();
        let request = &copies[copies.len() - PROLOGUE_PAIRS];
        let request = ExecRequest::read_from_prefix(&value_of(&bench.device, request).1).unwrap().0.flags();
        flags.push((request.do_model_switch, request.reload_seq_config, request.load_act_dve_tables));
        tpb.run(ordinal as u32);
        running.wait().unwrap();
    }
    flags
}

#[test]
fn requests_say_when_the_model_switches_and_when_its_tables_do() {
    // What a table holds tells it from another, its name does not.
    let with_table = |byte: u8| {
        let pointers = Container::packed(models::builtin("pointers").unwrap());
        pointers.member("sg00/default_act_table.bin", [byte; 64]).parse().unwrap()
    };
    let (first, same) = ((true, true, true), (false, true, false));
    let (switch, reload) = ((true, true, false), (true, true, true));
    assert_eq!(switches(&with_table(1), &with_table(1)), [first, same, switch, same, switch]);
    assert_eq!(switches(&with_table(1), &with_table(2)), [first, same, reload, same, reload]);
    assert_eq!(switches(&model("pointers"), &with_table(1)), [first, same, reload, same, reload]);
}

#[test]
fn a_retired_execution_does_not_count_as_the_model_before() {
    let bench = Bench::new(&model("pointers"));
    let other = bench.unit.load(&model("pointers"), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&bench.unit, other);
    let other = bench.unit.build(other, &inputs, &outputs).unwrap();
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let first = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    let dropped = bench.unit.stage(&other).unwrap();
    let last = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    drop(dropped);
    let copies = tpb.consume();
    let request = &copies[copies.len() - PROLOGUE_PAIRS];
    let request = ExecRequest::read_from_prefix(&value_of(&bench.device, request).1).unwrap().0;
    assert!(!request.flags().do_model_switch);
    tpb.run(0);
    tpb.run(1);
    first.wait().unwrap();
    last.wait().unwrap();
}

#[test]
fn host_phases_tell_the_life_of_an_execution() {
    let bench = Bench::new(&model("pointers"));
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    bench.device.tpb(0).run(0);
    running.wait().unwrap();
    let (spans, omitted) = bench.unit.phases().take();
    let phases: Vec<_> = spans.iter().map(|span| (span.phase, span.ticket)).collect();
    let of = Some(0);
    use Phase::*;
    assert_eq!(phases, [(Load, None), (Build, None), (Stage, of), (Kickoff, of), (Wait, of)]);
    assert_eq!(omitted, 0);
    assert!(spans.iter().all(|span| span.start_ns <= span.end_ns));
}
