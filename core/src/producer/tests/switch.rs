//! A switch at both gates: what is published, when it parks, when it leaves, when it raises.

use super::*;

#[test]
fn a_switch_publishes_the_old_buffer_and_claims_the_next_with_the_next_sequence() {
    let mut bench = bench().with_full_buffer(true);
    bench.host.push(0, tiny::buffer(1));
    let mut switch = bench.lane.begin_switch();
    assert_eq!(switch.gate(), Gate::Ready);
    assert_eq!(bench.poll(&mut switch), Progress::Moved);
    assert_eq!(switch.gate(), Gate::Free);
    assert!(!bench.pool.has_buffer());
    assert_eq!(bench.host.current(0), DevAddr::NULL);
    assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));

    let entry = bench.host.drain(0).expect("published");
    assert_eq!(entry.buffer, tiny::buffer(0));
    assert_eq!((entry.instance.0, entry.kind.0, entry.sequence), (0, 3, 0));
    assert_eq!(bench.host.records(entry.buffer), [[0, !0, 7, 0], [1, !1, 7, 1], [2, !2, 7, 2]]);
    assert_eq!(bench.host.drain(0), None);
    assert_eq!(bench.host.current(0), tiny::buffer(1));
    assert_eq!(bench.host.word(tiny::pool(0).current_seq), 1);
    assert_eq!(bench.host.waiting(0), 0);
    assert_eq!(bench.host.records(tiny::buffer(1)), [[0; 4]; 0]);
    assert_eq!(GATES.map(|gate| bench.host.is_contended(gate)), [false; 2]);
}

#[test]
fn one_buffer_is_enough() {
    let mut bench = bench();
    bench.claim(tiny::buffer(0));
    let host = bench.host.clone();
    let mut env = Surroundings::new(move |_| {
        if let Some(entry) = host.drain(0) {
            host.push(0, entry.buffer);
        }
    });
    for first in 0..30 * RECORDS {
        bench.lane.append(&mut bench.pool, &[first; 4], &mut env).expect("served");
    }
    assert_eq!(bench.pool.state().published, 30);
    assert_eq!(bench.pool.state().sequence, 30);
    assert_eq!(bench.pool.state().dropped_total(), 0);
}

#[test]
fn a_shut_push_gate_parks_a_lane_although_a_slot_is_free() {
    let mut bench = bench().with_full_buffer(true);
    bench.host.set_shut(Gate::Ready, true);
    let mut switch = bench.lane.begin_switch();
    for _ in 0..3 {
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready));
        assert_eq!(bench.host.published(0), 0, "nothing is published behind a shut gate");
        assert!(bench.pool.has_buffer());
    }
    assert!(!bench.host.is_contended(Gate::Ready), "a lane that does not look asks for nothing");
    assert_eq!(bench.lane.state().parks, 1);
    bench.host.set_shut(Gate::Ready, false);
    assert_eq!(bench.poll(&mut switch), Progress::Moved);
    assert_eq!(bench.host.published(0), 1);
}

#[test]
fn a_shut_pop_gate_parks_a_lane_although_a_buffer_waits() {
    let mut bench = bench();
    bench.host.push(0, tiny::buffer(0));
    bench.host.set_shut(Gate::Free, true);
    let mut switch = bench.lane.begin_claim();
    for _ in 0..3 {
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
        assert_eq!(bench.host.waiting(0), 1);
    }
    bench.host.set_shut(Gate::Free, false);
    assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
}

#[test]
fn each_half_minds_only_its_own_gate() {
    let mut bench = bench().with_full_buffer(true);
    bench.host.push(0, tiny::buffer(1));
    bench.host.set_shut(Gate::Free, true);
    let mut switch = bench.lane.begin_switch();
    assert_eq!(bench.poll(&mut switch), Progress::Moved);
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
    bench.host.set_shut(Gate::Free, false);
    bench.host.set_shut(Gate::Ready, true);
    assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
}

#[test]
fn a_signal_alone_parks_nobody() {
    let mut bench = bench().with_full_buffer(true);
    bench.host.push(0, tiny::buffer(1));
    GATES.iter().for_each(|&gate| bench.host.set_word(signal(gate), 1));
    let mut switch = bench.lane.begin_switch();
    assert_eq!(bench.poll(&mut switch), Progress::Moved);
    assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
    assert_eq!(bench.lane.state().parks, 0);
}

#[test]
fn a_full_ring_raises_on_every_look_and_publishes_once_there_is_room() {
    let mut bench = bench().with_full_buffer(false);
    let mut switch = bench.lane.begin_switch();
    for _ in 0..3 {
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready));
        assert!(bench.host.is_contended(Gate::Ready));
        assert!(!bench.host.is_contended(Gate::Free));
        bench.host.clear(Gate::Ready);
    }
    assert_eq!(bench.pool.state().buffer, tiny::buffer(0), "what is not published stays the lane's");
    assert_eq!(bench.host.current(0), tiny::buffer(0));
    bench.host.drain(0).expect("the peer before it");
    assert_eq!(bench.poll(&mut switch), Progress::Moved);
    assert!(!bench.host.is_contended(Gate::Ready));
    assert_eq!(bench.lane.state().waits_rq, 1);
    assert_eq!(bench.lane.state().ready_high_water, 1);
}

#[test]
fn an_empty_queue_raises_on_every_look() {
    let mut bench = bench();
    let mut switch = bench.lane.begin_claim();
    for _ in 0..3 {
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
        assert!(bench.host.is_contended(Gate::Free));
        assert!(!bench.host.is_contended(Gate::Ready));
        bench.host.clear(Gate::Free);
    }
    bench.host.push(0, tiny::buffer(0));
    assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
    assert_eq!(bench.lane.state().waits_fq, 1);
}

#[test]
fn a_release_lets_a_parked_lane_look_exactly_once() {
    for (mut bench, gate) in [(bench().with_full_buffer(false), Gate::Ready), (bench(), Gate::Free)] {
        let mut switch =
            if gate == Gate::Ready { bench.lane.begin_switch() } else { bench.lane.begin_claim() };
        bench.host.set_shut(gate, true);
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(gate));
        let parked = switch.parked().expect("parked");
        bench.host.bump_epoch();
        assert!(!bench.host.is_contended(gate));
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(gate));
        assert!(bench.host.is_contended(gate), "it looked, found nothing and raised");
        assert_eq!(switch.parked(), None);
        bench.host.clear(gate);
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(gate));
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(gate));
        assert!(!bench.host.is_contended(gate), "parked again: it does not look");
        assert_ne!(switch.parked(), Some(parked));
        assert_eq!(bench.lane.state().parks, 2);
    }
}

#[test]
fn a_release_serves_a_parked_lane_although_the_gate_was_shut_again() {
    let mut bench = bench();
    bench.host.set_shut(Gate::Free, true);
    let mut switch = bench.lane.begin_claim();
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
    bench.host.push(0, tiny::buffer(0));
    bench.host.bump_epoch();
    assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
}

#[test]
fn a_switch_of_a_pool_without_a_buffer_only_claims() {
    let mut bench = bench();
    bench.host.push(0, tiny::buffer(0));
    let switch = bench.lane.begin_switch();
    assert_eq!(bench.lane.drive(&mut bench.pool, switch, &mut bench.env), SwitchEnd::Switched);
    assert_eq!(bench.host.published(0), 0);
    assert_eq!(bench.pool.state().sequence, 0);
}

#[test]
fn appending_to_a_full_buffer_that_nobody_switched_publishes_it_first() {
    let mut bench = bench().with_full_buffer(true);
    bench.host.push(0, tiny::buffer(1));
    bench.append(9).expect("room for it");
    assert_eq!(bench.host.drain(0).map(|entry| entry.buffer), Some(tiny::buffer(0)));
    assert_eq!(bench.host.records(tiny::buffer(1)), [[9, !9, 7, 9]]);
}

#[test]
fn an_uncontended_switch_reads_no_clock() {
    let mut bench = bench().with_full_buffer(true);
    bench.host.push(0, tiny::buffer(1));
    let switch = bench.lane.begin_switch();
    assert_eq!(bench.lane.drive(&mut bench.pool, switch, &mut bench.env), SwitchEnd::Switched);
    assert_eq!(bench.env.clock_reads.get(), 0);
    assert_eq!(bench.env.parked, [0; 2]);
}

#[test]
fn one_deadline_covers_both_halves() {
    let mut bench = bench().with_full_buffer(false);
    let mut switch = bench.lane.begin_switch();
    bench.env.now_cycles.set(1000);
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready));
    bench.env.now_cycles.set(1000 + LIMIT_CYCLES - 1);
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready));
    bench.host.drain(0).expect("the peer before it");
    assert_eq!(bench.poll(&mut switch), Progress::Moved);
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
    bench.env.now_cycles.set(1000 + LIMIT_CYCLES);
    assert_eq!(bench.poll_twice(&mut switch), Progress::Done(SwitchEnd::Unbacked));
    assert_eq!(bench.lane.state().expiries, 1);
}

#[test]
fn every_fruitless_look_is_noted_at_its_gate() {
    let mut bench = bench().with_full_buffer(false);
    let switch = bench.lane.begin_switch();
    let host = bench.host.clone();
    let mut env = Surroundings::new(move |round| {
        // The number of the look starts again with the second half.
        if host.published(0) == 1 && round == 3 && host.current(0) == tiny::buffer(0) {
            host.drain(0).expect("the peer before it");
        } else if host.current(0).is_null() && round == 1 {
            host.push(0, tiny::buffer(1));
        }
    });
    assert_eq!(bench.lane.drive(&mut bench.pool, switch, &mut env), SwitchEnd::Switched);
    assert_eq!(env.parked, [4, 2]);
}
