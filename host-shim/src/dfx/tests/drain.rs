//! The drain: what it accepts, what it refuses, in which order, and how it settles what an attach left open.

use super::*;
use crate::dfx::drain::{Drained, Refusal};

fn poll(bench: &Bench, drain: &mut Drain<Double, CounterWord>) -> Drained {
    drain.poll(&bench.collect, &bench.returned).expect("no fault is due")
}

fn full(buffer: u32, sequence: u32) -> Full {
    Full { buffer: BufferId(buffer), sequence, beside: Beside::UNSAID }
}

#[test]
fn a_full_buffer_goes_to_the_collector_and_its_slot_back_to_the_lane() {
    let bench = Bench::new();
    bench.give([4]);
    bench.publish(0, 4, 9);
    let mut drain = bench.drain(&[]);
    assert_eq!(poll(&bench, &mut drain), Drained::Buffer(full(4, 9)));
    assert_eq!(bench.collect.items(), [full(4, 9)]);
    assert_eq!(bench.waiting_entries(0), 0);
    assert_eq!(bench.host_held(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(poll(&bench, &mut drain), Drained::Nothing);
}

#[test]
fn what_cannot_be_right_is_refused_and_costs_one_entry() {
    let right = entry(0, 3);
    let wrong = [
        (ReadyEntry { kind: NO_KIND, ..right }, Refusal::UnknownPool),
        (ReadyEntry { instance: Instance(POOLS), ..right }, Refusal::UnknownPool),
        (ReadyEntry { instance: Instance(u32::MAX), ..right }, Refusal::UnknownPool),
        (ReadyEntry { buffer: DevAddr::NULL, ..right }, Refusal::UnknownBuffer),
        (ReadyEntry { buffer: right.buffer.offset(4), ..right }, Refusal::UnknownBuffer),
        (
            ReadyEntry { buffer: DevAddr(right.buffer.0 & u64::from(u32::MAX)), ..right },
            Refusal::UnknownBuffer,
        ),
        (ReadyEntry { buffer: DevAddr(u64::MAX), ..right }, Refusal::UnknownBuffer),
        (ReadyEntry { instance: Instance(1), ..right }, Refusal::ForeignBuffer),
        (entry(1, 3), Refusal::NotDeviceHeld),
    ];
    for (entry, why) in wrong {
        let bench = Bench::new();
        bench.give([0]);
        bench.publish_entry(1, &entry);
        bench.publish_entry(1, &right);
        let mut drain = bench.drain(&[]);
        assert_eq!(poll(&bench, &mut drain), Drained::Nothing);
        assert_eq!(poll(&bench, &mut drain), Drained::Refused { ring: 1, entry, why });
        assert_eq!(bench.waiting_entries(1), 1);
        assert_eq!(bench.collect.items(), []);
        assert_eq!(bench.host_held(), [1, 2, 3, 4, 5], "{why:?}: the ledger stays as it was");
        assert_eq!(poll(&bench, &mut drain), Drained::Nothing);
        assert_eq!(poll(&bench, &mut drain), Drained::Buffer(full(0, 3)));
    }
}

#[test]
fn a_double_publication_is_refused_in_any_ring_and_counted_once() {
    for second_ring in [0, 1] {
        let bench = Bench::new();
        bench.give([2]);
        bench.publish(0, 2, 5);
        bench.publish(second_ring, 2, 6);
        let mut drain = bench.drain(&[]);
        let drained: Vec<_> = (0..6).map(|_| poll(&bench, &mut drain)).collect();
        let refused = Drained::Refused { ring: second_ring, entry: entry(2, 6), why: Refusal::NotDeviceHeld };
        assert_eq!(drained.iter().filter(|&&drained| drained == Drained::Buffer(full(2, 5))).count(), 1);
        assert_eq!(drained.iter().filter(|&&drained| drained == refused).count(), 1);
        assert_eq!(drained.iter().filter(|&&drained| drained == Drained::Nothing).count(), 4);
        assert_eq!(bench.collect.items(), [full(2, 5)]);
    }
}

#[test]
fn a_ring_with_an_index_outside_it_is_left_alone() {
    for (head, tail) in [(0, READY_ENTRIES), (0, u32::MAX), (READY_ENTRIES, 0), (u32::MAX, 1)] {
        let bench = Bench::new();
        bench.give([0]);
        bench.publish(0, 0, 0);
        let ring = tiny::ring(0);
        bench.set_word(ring.head, head);
        bench.set_word(ring.tail, tail);
        let mut drain = bench.drain(&[]);
        bench.memory.take_log();
        for _ in 0..2 {
            assert_eq!(poll(&bench, &mut drain), Drained::CorruptRing { ring: 0, head, tail });
            assert_eq!(poll(&bench, &mut drain), Drained::Nothing);
        }
        assert_eq!(bench.memory.take_log(), []);
        assert_eq!(bench.scan(|views| views.rings[0].waiting().expect("no fault").count()), 0);
        bench.set_word(ring.head, 0);
        bench.set_word(ring.tail, 1);
        assert_eq!(poll(&bench, &mut drain), Drained::Buffer(full(0, 0)));
    }
}

#[test]
fn rings_are_served_in_turn_and_entries_in_order() {
    let bench = Bench::new();
    bench.give(0..6);
    for sequence in 0..3 {
        bench.publish(0, sequence, sequence);
    }
    bench.publish(1, 3, 0);
    let mut drain = bench.drain(&[]);
    assert_eq!(drain.rings(), 2);
    assert_eq!(poll(&bench, &mut drain), Drained::Buffer(full(0, 0)));
    assert_eq!(poll(&bench, &mut drain), Drained::Buffer(full(3, 0)), "a busy ring does not hold another");
    assert_eq!(poll(&bench, &mut drain), Drained::Buffer(full(1, 1)));
    assert_eq!(poll(&bench, &mut drain), Drained::Nothing);
    assert_eq!(poll(&bench, &mut drain), Drained::Buffer(full(2, 2)));
}

#[test]
fn a_ring_goes_round() {
    let bench = Bench::new();
    let mut drain = bench.drain(&[]);
    for sequence in 0..3 * READY_ENTRIES {
        bench.give([sequence % 3]);
        bench.publish(0, sequence % 3, sequence);
        assert_eq!(poll(&bench, &mut drain), Drained::Buffer(full(sequence % 3, sequence)));
        assert_eq!(poll(&bench, &mut drain), Drained::Nothing);
    }
}

#[test]
fn an_open_buffer_that_its_lane_fills_stays_open() {
    let bench = Bench::new();
    bench.give([0]);
    bench.set_current(0, Some(0));
    let mut drain = bench.drain(&[0]);
    for _ in 0..4 {
        assert_eq!(poll(&bench, &mut drain), Drained::Nothing);
    }
    assert_eq!(drain.state().unsettled, [BufferId(0)]);
    assert_eq!(bench.host_held(), [1, 2, 3, 4, 5]);
}

#[test]
fn an_open_buffer_that_is_published_is_settled_by_its_entry() {
    let bench = Bench::new();
    bench.give([0]);
    let mut drain = bench.drain(&[0]);
    bench.publish(1, 0, 7);
    assert_eq!(poll(&bench, &mut drain), Drained::Nothing, "the first ring is empty, the second holds it");
    assert_eq!(drain.state().unsettled, [BufferId(0)]);
    assert_eq!(poll(&bench, &mut drain), Drained::Buffer(full(0, 7)));
    assert_eq!(drain.state().unsettled, []);
    assert_eq!(bench.returned.items(), []);
}

#[test]
fn an_open_buffer_that_nobody_names_is_recovered_once() {
    let bench = Bench::new();
    bench.give([0]);
    bench.set_current(0, Some(0));
    let mut drain = bench.drain(&[0]);
    assert_eq!(poll(&bench, &mut drain), Drained::Nothing);
    bench.set_current(0, None);
    assert_eq!(poll(&bench, &mut drain), Drained::Recovered(BufferId(0)));
    assert_eq!(bench.returned.items(), [BufferId(0)]);
    assert_eq!(bench.host_held().len(), 6);
    assert_eq!(poll(&bench, &mut drain), Drained::Nothing);
    bench.publish(0, 0, 1);
    let _: Drained = poll(&bench, &mut drain);
    assert_eq!(bench.collect.items(), [], "it is the host's now");
}

#[test]
fn a_stash_of_a_dead_hosts_time_is_settled_like_a_current_buffer() {
    let bench = Bench::new();
    bench.give([0, 1]);
    bench.set_current(0, Some(1));
    bench.set_stash(0, Some(0));
    let mut drain = bench.drain(&[0, 1]);
    for _ in 0..4 {
        assert_eq!(poll(&bench, &mut drain), Drained::Nothing, "the lane holds both");
    }
    bench.set_stash(0, None);
    assert_eq!(poll(&bench, &mut drain), Drained::Recovered(BufferId(0)));
    assert_eq!(drain.state().unsettled, [BufferId(1)]);
}

#[test]
fn a_buffer_whose_lane_fills_another_is_recovered() {
    let bench = Bench::new();
    bench.give([0, 1]);
    bench.set_current(0, Some(1));
    assert_eq!(poll(&bench, &mut bench.drain(&[0])), Drained::Recovered(BufferId(0)));
}

#[test]
fn an_open_buffer_does_not_hold_up_another() {
    let bench = Bench::new();
    bench.give([0, 3]);
    bench.set_current(0, Some(0));
    let mut drain = bench.drain(&[0, 3]);
    assert_eq!(poll(&bench, &mut drain), Drained::Nothing);
    assert_eq!(poll(&bench, &mut drain), Drained::Recovered(BufferId(3)));
    assert_eq!(drain.state().unsettled, [BufferId(0)]);
}

#[test]
fn traffic_in_one_ring_does_not_keep_a_buffer_open() {
    for busy in [0, 1] {
        let bench = Bench::new();
        bench.give([0]);
        let mut drain = bench.drain(&[0]);
        let mut recovered = 0;
        for sequence in 0..4 {
            bench.give([3]);
            bench.publish(busy, 3, sequence);
            for _ in 0..2 {
                recovered += u32::from(poll(&bench, &mut drain) == Drained::Recovered(BufferId(0)));
            }
        }
        assert_eq!(recovered, 1);
        assert_eq!(bench.collect.items().len(), 4);
    }
}
