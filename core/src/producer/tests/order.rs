//! The order in which a switch stores, as the memory saw it: a buffer is visible in its new place before it leaves the
//! old one, and no store that a reader relies on is left without an order.

use super::*;
use crate::mem::testing::{Double, Logged};

fn double() -> Double {
    Double::new(tiny::BASE, tiny::BYTES)
}

/// What a store was made to, in the words of the protocol.
fn name(store: &Logged) -> &'static str {
    let (ring, pool) = (tiny::ring(0), tiny::pool(0));
    let offset = (store.at().0 - tiny::BASE.0) as usize;
    match offset {
        _ if offset == ring.tail => "tail",
        _ if (ring.ring..ring.ring + 64).contains(&offset) => "entry",
        _ if offset == pool.current_ptr + 4 => "current, high",
        _ if offset == pool.current_ptr => "current",
        _ if offset == pool.current_seq => "sequence",
        _ if offset == pool.free_head => "head",
        _ if store.at() == tiny::buffer(1).offset(48) => "count",
        _ => "other",
    }
}

fn stores(memory: &Double) -> Vec<Logged> {
    memory.take_log().into_iter().filter(|store| name(store) != "other").collect()
}

fn names(stores: &[Logged]) -> Vec<&'static str> {
    let mut names: Vec<_> = stores.iter().map(name).collect();
    names.dedup();
    names
}

fn is_released(stores: &[Logged], wanted: &str) -> bool {
    let mut of_that_name = stores.iter().filter(|store| name(store) == wanted);
    of_that_name.all(|store| matches!(store, Logged::Release { .. }))
}

#[test]
fn publication_stores_entry_then_tail_then_current() {
    let mut bench = Bench::<_, Tiny>::on(double()).with_full_buffer(true);
    let mut switch = bench.lane.begin_switch();
    bench.host.memory.take_log();
    assert_eq!(bench.poll(&mut switch), Progress::Moved);
    let stores = stores(&bench.host.memory);
    assert_eq!(names(&stores), ["entry", "tail", "current, high", "current"]);
    assert!(is_released(&stores, "tail"));
    // Whoever finds the address gone, or half gone, must find the entry.
    assert!(is_released(&stores, "current, high"));
    assert!(is_released(&stores, "current"));
}

#[test]
fn a_claim_stores_count_then_current_then_sequence_then_head() {
    let mut bench = Bench::<_, Tiny>::on(double());
    bench.host.push(0, tiny::buffer(1));
    let mut switch = bench.lane.begin_claim();
    bench.host.memory.take_log();
    assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
    let stores = stores(&bench.host.memory);
    assert_eq!(names(&stores), ["count", "current, high", "current", "sequence", "head"]);
    assert!(is_released(&stores, "current"));
    // A core that waits for the next buffer polls the sequence.
    assert!(is_released(&stores, "sequence"));
    assert!(is_released(&stores, "head"));
}

#[test]
fn a_signal_that_stands_is_not_stored_again_and_only_ever_one() {
    let mut bench = Bench::<_, Tiny>::on(double());
    let mut switch = bench.lane.begin_claim();
    bench.host.memory.take_log();
    let mut raised = Vec::new();
    for look in 0..4 {
        if look == 2 {
            bench.host.clear(Gate::Free);
            bench.host.memory.take_log();
        }
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
        raised.extend(bench.host.memory.take_log().into_iter().filter_map(|store| match store {
            Logged::Release { at, value } if at == tiny::at(signal(Gate::Free)) => Some((look, value)),
            _ => None,
        }));
    }
    assert_eq!(raised, [(0, 1), (2, 1)]);
}

#[test]
fn an_append_stores_the_record_before_the_count() {
    let mut bench = Bench::<_, Tiny>::on(double());
    bench.claim(tiny::buffer(1));
    bench.host.memory.take_log();
    bench.append(5).expect("room for it");
    let payload: Vec<_> = bench
        .host
        .memory
        .take_log()
        .into_iter()
        .filter(|store| matches!(store, Logged::Payload { .. }))
        .map(|store| store.at())
        .collect();
    assert_eq!(payload, [tiny::buffer(1), tiny::buffer(1).offset(48)]);
}
