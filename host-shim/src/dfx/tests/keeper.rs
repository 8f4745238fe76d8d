//! The keeper: refilling, opening, releasing.

use super::*;
use crate::dfx::keeper::Kept;
use crate::dfx::ledger::PoolId;
use sluice_core::mem::testing::Logged;

type TestKeeper = Keeper<Double, CounterWord>;

const NONE_SHUT: Shut = Shut { ready: false, free: false };
const BOTH_SHUT: Shut = Shut { ready: true, free: true };

/// Runs one round with a subsystem that `agrees`; its events, and the buffers it moved.
fn round(bench: &Bench, keeper: &mut TestKeeper, agrees: bool) -> (Vec<Kept>, u32) {
    let mut events = Vec::new();
    let moved =
        keeper.round(&bench.returned, &mut Says(agrees), |kept| events.push(kept)).expect("no fault is due");
    (events, moved)
}

fn events(bench: &Bench, keeper: &mut TestKeeper) -> Vec<Kept> {
    round(bench, keeper, true).0
}

fn refilled(buffers: &[u32]) -> Vec<Kept> {
    buffers.iter().map(|&buffer| Kept::Refilled(BufferId(buffer))).collect()
}

/// Stores to the words of gates and epoch, as (what, value).
fn gate_stores(bench: &Bench) -> Vec<(&'static str, u32)> {
    let names = [
        (tiny::at(flag(Gate::Ready)), "push flag"),
        (tiny::at(flag(Gate::Free)), "pop flag"),
        (tiny::at(signal(Gate::Ready)), "push signal"),
        (tiny::at(signal(Gate::Free)), "pop signal"),
        (tiny::EXTENSION_GATES.release_epoch, "epoch"),
    ];
    let name = |store: Logged| {
        let (_, name) = names.iter().find(|(at, _)| *at == store.at())?;
        match store {
            Logged::Release { value, .. } => Some((*name, value)),
            _ => panic!("{name} stored without an order"),
        }
    };
    bench.memory.take_log().into_iter().filter_map(name).collect()
}

/// A bench whose device holds every buffer: two in each queue, one current.
fn all_given() -> Bench {
    let bench = Bench::new();
    let mut keeper = bench.keeper(GateScope::All, &[0, 1, 2, 3, 4, 5], NONE_SHUT);
    assert_eq!(events(&bench, &mut keeper), refilled(&[0, 1, 3, 4]));
    for pool in 0..POOLS {
        bench.claim(pool);
        bench.set_current(pool, Some(pool * BUFFERS));
    }
    assert_eq!(events(&bench, &mut keeper), refilled(&[2, 5]));
    assert!(bench.host_held().is_empty());
    bench.memory.take_log();
    bench
}

#[test]
fn every_queue_is_filled_to_its_slots_and_no_further() {
    let bench = Bench::new();
    let mut keeper = bench.keeper(GateScope::All, &[2, 0, 1, 5, 4, 3], NONE_SHUT);
    assert_eq!(round(&bench, &mut keeper, true), (refilled(&[2, 0, 5, 4]), 4));
    assert_eq!(round(&bench, &mut keeper, true), (vec![], 0));
    assert_eq!(bench.queue(0), [2, 0].map(tiny::buffer));
    assert_eq!(bench.queue(1), [5, 4].map(tiny::buffer));
    assert_eq!(bench.host_held(), [1, 3]);
    bench.claim(0);
    assert_eq!(round(&bench, &mut keeper, true), (refilled(&[1]), 1));
    assert_eq!(bench.queue(0), [0, 1].map(tiny::buffer));
}

#[test]
fn returned_buffers_go_to_their_own_pool_oldest_first() {
    let bench = Bench::new();
    let mut keeper = bench.keeper(GateScope::All, &[], NONE_SHUT);
    for buffer in [4, 1, 0] {
        bench.returned.push(BufferId(buffer));
    }
    let (events, moved) = round(&bench, &mut keeper, true);
    assert_eq!((events, moved), (refilled(&[1, 0, 4]), 6), "three came and three went");
    assert_eq!(bench.queue(1), [tiny::buffer(4)]);
}

#[test]
fn a_queue_is_filled_across_the_wrap_of_its_counters() {
    let bench = Bench::new();
    let queue = tiny::pool(0);
    for word in [queue.free_head, queue.free_tail] {
        bench.set_word(word, u32::MAX);
    }
    let mut keeper = bench.keeper(GateScope::All, &[0, 1, 2], NONE_SHUT);
    assert_eq!(events(&bench, &mut keeper), refilled(&[0, 1]));
    assert_eq!(bench.word(queue.free_tail), 1);
    assert_eq!(bench.queue(0), [0, 1].map(tiny::buffer));
}

#[test]
fn a_queue_whose_counter_is_nonsense_gets_nothing_and_holds_nobody() {
    let queue = tiny::pool(0);
    for head in [1, u32::MAX - 2, 0x8000_0000] {
        let bench = Bench::new();
        bench.set_word(queue.free_head, head);
        let mut keeper = bench.keeper(GateScope::All, &[0, 3], NONE_SHUT);
        let corrupt = Kept::CorruptHead { pool: PoolId(0), head };
        assert_eq!(events(&bench, &mut keeper), [corrupt, Kept::Refilled(BufferId(3))]);
        assert_eq!(bench.word(queue.free_tail), 0);
        assert!(bench.host_held().contains(&0));
        bench.raise(Gate::Free);
        bench.give([1, 2, 4, 5]);
        assert_eq!(events(&bench, &mut keeper), [corrupt, Kept::Opened(Gate::Free), Kept::Released]);
        bench.set_word(queue.free_head, 0);
        assert_eq!(events(&bench, &mut keeper), refilled(&[0]));
    }
}

#[test]
fn a_signal_shuts_its_gate_and_is_taken_after_that() {
    for (gate, stores) in [
        (Gate::Ready, [("push flag", 1), ("push signal", 0)]),
        (Gate::Free, [("pop flag", 1), ("pop signal", 0)]),
    ] {
        let bench = all_given();
        bench.raise(gate);
        let mut keeper = bench.keeper(GateScope::All, &[], NONE_SHUT);
        bench.memory.take_log();
        assert_eq!(round(&bench, &mut keeper, false).0, [Kept::Opened(gate)]);
        assert_eq!(gate_stores(&bench), stores);
        assert_eq!(GATES.map(|other| bench.flag(other)), GATES.map(|other| u32::from(other == gate)));
    }
}

#[test]
fn any_value_but_zero_is_a_signal() {
    let bench = all_given();
    bench.set_word(signal(Gate::Ready), 0xffff_0000);
    let mut keeper = bench.keeper(GateScope::All, &[], NONE_SHUT);
    assert_eq!(events(&bench, &mut keeper), [Kept::Opened(Gate::Ready), Kept::Released]);
}

#[test]
fn no_signal_opens_nothing() {
    let bench = all_given();
    let mut keeper = bench.keeper(GateScope::All, &[], NONE_SHUT);
    bench.memory.take_log();
    assert_eq!(round(&bench, &mut keeper, true), (vec![], 0));
    assert_eq!(bench.memory.take_log(), []);
}

#[test]
fn a_release_takes_the_signals_then_moves_the_epoch_then_opens() {
    let bench = all_given();
    GATES.iter().for_each(|&gate| bench.raise(gate));
    let mut keeper = bench.keeper(GateScope::All, &[], NONE_SHUT);
    assert_eq!(round(&bench, &mut keeper, false).0, GATES.map(Kept::Opened));
    // A peer that was on its way when the gate shut.
    bench.raise(Gate::Free);
    bench.memory.take_log();
    assert_eq!(events(&bench, &mut keeper), [Kept::Released]);
    let order = [("push signal", 0), ("pop signal", 0), ("epoch", 1), ("push flag", 0), ("pop flag", 0)];
    assert_eq!(gate_stores(&bench), order);
    assert_eq!(round(&bench, &mut keeper, true), (vec![], 0));
}

#[test]
fn a_release_opens_only_what_it_shut() {
    let bench = all_given();
    bench.raise(Gate::Free);
    let mut keeper = bench.keeper(GateScope::All, &[], NONE_SHUT);
    bench.memory.take_log();
    assert_eq!(events(&bench, &mut keeper), [Kept::Opened(Gate::Free), Kept::Released]);
    assert!(gate_stores(&bench).iter().all(|&(word, _)| word != "push flag"));
}

#[test]
fn a_freeze_ends_only_when_rings_pools_and_subsystem_all_allow_it() {
    let bench = all_given();
    let mut keeper = bench.keeper(GateScope::All, &[], BOTH_SHUT);
    let mut still_shut = |bench: &Bench, agrees, why| {
        assert_eq!(round(bench, &mut keeper, agrees).0, [], "{why}");
        assert_eq!(bench.epoch(), 0, "{why}");
    };
    for lane in 0..LANES {
        bench.publish(lane, 0, 0);
        still_shut(&bench, true, "a ring is not drained");
        bench.set_word(tiny::ring(lane).head, 1);
    }
    for pool in 0..POOLS {
        // The collector holds what the drain took, and the queue has room for it.
        bench.claim(pool);
        assert!(bench.taken_side().take(BufferId(pool * BUFFERS)));
        still_shut(&bench, true, "a pool could still be given a buffer");
        bench.give([pool * BUFFERS]);
    }
    still_shut(&bench, false, "the subsystem has work left");
    assert_eq!(events(&bench, &mut keeper), [Kept::Released]);
    assert_eq!(GATES.map(|gate| bench.flag(gate)), [0, 0]);
}

#[test]
fn a_full_queue_is_a_limit_although_the_host_holds_more() {
    let bench = Bench::new();
    bench.give([3, 4, 5]);
    let mut keeper = bench.keeper(GateScope::All, &[0, 1, 2], BOTH_SHUT);
    assert_eq!(events(&bench, &mut keeper), [refilled(&[0, 1]), vec![Kept::Released]].concat());
    assert_eq!(bench.host_held(), [2]);
}

#[test]
fn a_host_without_a_buffer_is_a_limit_although_the_queue_is_empty() {
    let bench = Bench::new();
    bench.give(0..6);
    let mut keeper = bench.keeper(GateScope::All, &[], BOTH_SHUT);
    assert_eq!(events(&bench, &mut keeper), [Kept::Released]);
}

#[test]
fn a_ring_whose_index_is_nonsense_does_not_hold_the_others() {
    for index in [tiny::ring(1).tail, tiny::ring(1).head] {
        let bench = all_given();
        bench.set_word(index, READY_ENTRIES);
        let mut keeper = bench.keeper(GateScope::All, &[], BOTH_SHUT);
        assert_eq!(events(&bench, &mut keeper), [Kept::Released]);
    }
}

#[test]
fn a_lane_that_starves_again_opens_the_next_freeze() {
    let bench = all_given();
    let mut keeper = bench.keeper(GateScope::All, &[], NONE_SHUT);
    for epoch in 1..4 {
        bench.raise(Gate::Ready);
        assert_eq!(events(&bench, &mut keeper), [Kept::Opened(Gate::Ready), Kept::Released]);
        assert_eq!(bench.epoch(), epoch);
    }
}

#[test]
fn lane_scope_serves_without_ever_touching_a_flag() {
    let bench = Bench::new();
    let mut keeper = bench.keeper(GateScope::Lane, &[0, 1, 2, 3], NONE_SHUT);
    for signals in [&GATES[..], &GATES[..1], &GATES[1..], &[]] {
        signals.iter().for_each(|&gate| bench.raise(gate));
        bench.memory.take_log();
        let served: Vec<_> = signals.iter().map(|&gate| Kept::Served(gate)).collect();
        let (mut events, _) = round(&bench, &mut keeper, true);
        events.retain(|kept| !matches!(kept, Kept::Refilled(_)));
        assert_eq!(events, served);
        let taken: Vec<_> = signals
            .iter()
            .map(|gate| (if *gate == Gate::Ready { "push signal" } else { "pop signal" }, 0))
            .collect();
        assert_eq!(gate_stores(&bench), taken);
    }
    assert_eq!(bench.queue(0).len(), 2);
}

#[test]
fn lane_scope_refills_before_it_takes_the_signal() {
    let bench = Bench::new();
    bench.raise(Gate::Free);
    let mut keeper = bench.keeper(GateScope::Lane, &[0], NONE_SHUT);
    assert_eq!(events(&bench, &mut keeper), [Kept::Refilled(BufferId(0)), Kept::Served(Gate::Free)]);
}

#[test]
fn lane_scope_ends_a_freeze_that_an_earlier_keeper_left() {
    let bench = all_given();
    GATES.iter().for_each(|&gate| bench.set_word(flag(gate), 1));
    let mut keeper = bench.keeper(GateScope::Lane, &[], BOTH_SHUT);
    assert_eq!(events(&bench, &mut keeper), [Kept::Released]);
    assert_eq!(GATES.map(|gate| bench.flag(gate)), [0, 0]);
}

#[test]
fn a_device_without_an_extension_block_is_released_by_its_flags_alone() {
    let bench = all_given();
    bench.raise(Gate::Free);
    let gates = GateControl::attach(&bench.memory, tiny::BASE, tiny::GATES, None).expect("mapped");
    let views = KeeperViews { queues: bench.queues(), rings: bench.watches(), gates };
    let directory = Arc::clone(&bench.directory);
    let mut keeper = Keeper::new(
        directory,
        views,
        bench.given_side(),
        GateScope::All,
        Rules::ALL,
        std::iter::empty(),
        NONE_SHUT,
    );
    assert_eq!(events(&bench, &mut keeper), [Kept::Opened(Gate::Free), Kept::Released]);
    assert_eq!(bench.epoch(), 0);
}
