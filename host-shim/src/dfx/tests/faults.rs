//! A transport that fails once, at every access in turn, in both ways: the course of events stays the same.

use std::fmt::Debug;

use super::*;
use crate::dfx::attach::Attach;
use crate::dfx::drain::{Drained, Refusal};
use crate::dfx::keeper::Kept;
use sluice_core::mem::testing::Mishap;

/// Runs `course` undisturbed, then with each of its fallible accesses failing.
fn with_each_fault<T: PartialEq + Debug>(course: impl Fn(&Bench) -> T) {
    let bench = Bench::new();
    let undisturbed = course(&bench);
    let accesses = bench.memory.fallible_accesses();
    assert!(accesses > 0);
    for mishap in [Mishap::Refused, Mishap::AnswerLost] {
        for later in 0..accesses {
            let bench = Bench::new();
            bench.memory.fail_later(later, mishap);
            assert_eq!(course(&bench), undisturbed, "access {later}: {mishap:?}");
            let was_repeated = bench.memory.fallible_accesses() > accesses;
            assert!(was_repeated || mishap == Mishap::AnswerLost, "access {later} was made again");
        }
    }
}

/// Makes steps until one says that it was the last.
fn until(mut step: impl FnMut() -> bool) {
    assert!((0..1000).any(|_| step()), "no end in sight");
}

#[test]
fn a_drain_loses_and_doubles_nothing() {
    with_each_fault(|bench| {
        let mut drain = bench.drain(&[]);
        bench.give(0..6);
        // The fourth names a buffer a second time. The lane refills slots as soon as it has them back.
        let mut entries = [0, 1, 2, 1, 3, 4, 5].into_iter().zip(0..).peekable();
        let mut seen = Vec::new();
        until(|| {
            while bench.waiting_entries(0) < READY_ENTRIES - 1
                && let Some((buffer, sequence)) = entries.next()
            {
                bench.publish(0, buffer, sequence);
            }
            match drain.poll(&bench.collect, &bench.returned) {
                Ok(Drained::Nothing) | Err(_) => {}
                Ok(drained) => seen.push(drained),
            }
            seen.len() == 7
        });
        let refused = Drained::Refused { ring: 0, entry: entry(1, 3), why: Refusal::NotDeviceHeld };
        assert_eq!(seen[3], refused);
        assert_eq!(bench.host_held(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(drain.state().judged, None);
        (seen, bench.collect.items(), bench.memory.snapshot())
    });
}

#[test]
fn a_buffer_is_the_hosts_before_its_slot_is_free() {
    with_each_fault(|bench| {
        let mut drain = bench.drain(&[]);
        bench.give([0]);
        bench.publish(0, 0, 0);
        until(|| {
            let _: Result<_, _> = drain.poll(&bench.collect, &bench.returned);
            let is_drained = bench.waiting_entries(0) == 0;
            let is_held = bench.host_held().contains(&0);
            assert!(is_held || !is_drained, "a keeper that finds the ring drained finds the buffer too");
            !bench.collect.items().is_empty()
        });
    });
}

#[test]
fn open_buffers_are_settled_all_the_same() {
    with_each_fault(|bench| {
        bench.give([0, 1, 3]);
        bench.set_current(0, Some(0));
        let mut drain = bench.drain(&[0, 1, 3]);
        bench.publish(1, 3, 2);
        until(|| {
            let _: Result<_, _> = drain.poll(&bench.collect, &bench.returned);
            drain.state().unsettled == [BufferId(0)]
        });
        (bench.collect.items(), bench.returned.items(), bench.host_held())
    });
}

#[test]
fn a_keeper_refills_opens_and_releases_all_the_same() {
    with_each_fault(|bench| {
        let mut keeper = bench.keeper(GateScope::All, &[0, 3], Shut::default());
        GATES.iter().for_each(|&gate| bench.raise(gate));
        for buffer in [1, 2, 4] {
            bench.returned.push(BufferId(buffer));
        }
        bench.give([5]);
        let mut events = Vec::new();
        let mut claimed = Vec::new();
        until(|| {
            match keeper.poll(&bench.returned, &mut Says(true)) {
                Ok(Kept::Step | Kept::RoundOver { .. }) | Err(_) => {}
                Ok(kept) => events.push(kept),
            }
            // The first lane takes what it sees at once.
            claimed.extend((!bench.queue(0).is_empty()).then(|| bench.claim(0)));
            events.last() == Some(&Kept::Released)
        });
        assert_eq!(claimed, [0, 1, 2].map(tiny::buffer));
        assert_eq!(bench.queue(1), [3, 4].map(tiny::buffer));
        assert_eq!(bench.host_held(), [0; 0]);
        assert_eq!(keeper.state().pushing, None);
        let words = GATES.map(|gate| (bench.flag(gate), bench.word(signal(gate))));
        assert_eq!(words, [(0, 0); 2]);
        // An epoch that moved twice is one release.
        assert!((1..=2).contains(&bench.epoch()));
        events
    });
}

#[test]
fn a_gate_is_taken_for_shut_only_once_its_flag_is_stored() {
    with_each_fault(|bench| {
        let mut keeper = bench.keeper(GateScope::All, &[], Shut::default());
        bench.give(0..6);
        bench.raise(Gate::Ready);
        until(|| {
            let is_opened = keeper.poll(&bench.returned, &mut Says(false)) == Ok(Kept::Opened(Gate::Ready));
            assert!(!keeper.state().shut.ready || bench.flag(Gate::Ready) == 1);
            assert_eq!(bench.word(signal(Gate::Ready)), 1, "not taken before the gate is shut");
            is_opened
        });
    });
}

#[test]
fn opening_for_good_forgets_no_buffer_under_way() {
    for mishap in [Mishap::Refused, Mishap::AnswerLost] {
        let bench = Bench::new();
        let mut keeper = bench.keeper(GateScope::All, &[3], Shut::default());
        // The second pool's queue: its counter is read, then two halves of a slot and its tail are stored.
        until(|| {
            bench.memory.fail_later(3, mishap);
            keeper.poll(&bench.returned, &mut Says(true)).is_err()
        });
        assert!(keeper.state().pushing.is_some());
        keeper.open_all().expect("no fault is due");
        bench.returned.push(BufferId(0));
        until(|| matches!(keeper.poll(&bench.returned, &mut Says(true)), Ok(Kept::Refilled(BufferId(0)))));
        assert_eq!((bench.queue(0), bench.queue(1)), (vec![tiny::buffer(0)], vec![tiny::buffer(3)]));
    }
}

#[test]
fn a_signal_is_served_all_the_same() {
    with_each_fault(|bench| {
        let mut keeper = bench.keeper(GateScope::Lane, &[0], Shut::default());
        bench.raise(Gate::Free);
        until(|| {
            let _: Result<_, _> = keeper.poll(&bench.returned, &mut Says(true));
            bench.word(signal(Gate::Free)) == 0
        });
        assert_eq!(bench.queue(0), [tiny::buffer(0)], "refilled before the signal was taken");
        assert_eq!(GATES.map(|gate| bench.flag(gate)), [0, 0]);
    });
}

#[test]
fn a_scan_finds_the_same() {
    with_each_fault(|bench| {
        bench.memory.poke_address(tiny::at(tiny::pool(0).free_ptrs), tiny::buffer(0));
        bench.set_word(tiny::pool(0).free_tail, 1);
        bench.set_word(flag(Gate::Free), 1);
        bench.set_current(0, Some(1));
        bench.publish(1, 5, 0);
        let mut attach = Attach::new(Arc::clone(&bench.directory), Rules::ALL);
        let mut found = None;
        bench.scan(|views| {
            until(|| {
                found = attach.poll(views).ok().flatten();
                found.is_some()
            });
        });
        found
    });
}
