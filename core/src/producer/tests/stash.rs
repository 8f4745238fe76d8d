//! A full buffer that makes room before it is published: where it is seen, when it goes, what becomes of it.

use super::*;
use crate::mem::testing::Double;

/// Address and sequence in the stash's words.
fn stash<M: Memory>(bench: &Bench<M>) -> (DevAddr, u32) {
    let memory = &bench.host.memory;
    (memory.peek_address(tiny::pool_status(0, 14)), memory.peek(tiny::pool_status(0, 16)))
}

fn publish(bench: &mut MappedBench) -> SwitchEnd {
    let switch = bench.lane.begin_stash_publication();
    bench.lane.drive(&mut bench.pool, switch, &mut bench.env)
}

#[test]
fn a_rotation_needs_an_open_gate_a_buffer_and_an_empty_stash() {
    let mut bench = bench().with_full_buffer(true);
    let before = bench.pool.state();
    assert!(!bench.lane.try_rotate(&mut bench.pool), "no buffer waits");
    bench.host.push(0, tiny::buffer(1));
    bench.host.set_shut(Gate::Free, true);
    assert!(!bench.lane.try_rotate(&mut bench.pool));
    assert_eq!(bench.pool.state(), before);
    assert!(!bench.host.is_contended(Gate::Free), "a rotation that need not happen asks for nothing");
    bench.host.set_shut(Gate::Free, false);
    assert!(bench.lane.try_rotate(&mut bench.pool));
    assert_eq!(stash(&bench), (tiny::buffer(0), 0));
    assert_eq!((bench.pool.state().buffer, bench.pool.state().sequence), (tiny::buffer(1), 1));
    assert_eq!(bench.host.published(0), 0);
    bench.fill();
    bench.host.push(0, tiny::buffer(2));
    assert!(!bench.lane.try_rotate(&mut bench.pool), "one at a time");
    assert_eq!(publish(&mut bench), SwitchEnd::Switched);
    assert_eq!(stash(&bench).0, DevAddr::NULL);
    assert!(bench.lane.try_rotate(&mut bench.pool));
    let entry = bench.host.drain(0).expect("published");
    assert_eq!((entry.buffer, entry.sequence), (tiny::buffer(0), 0));
    assert_eq!(bench.host.records(entry.buffer).len(), RECORDS as usize);
    assert_eq!(stash(&bench), (tiny::buffer(1), 1));
    assert_eq!(bench.pool.state().published, 1);
    assert_eq!(bench.env.clock_reads.get(), 0);
}

#[test]
fn a_buffer_is_seen_in_the_stash_before_current_moves_and_in_the_ring_before_it_leaves_the_stash() {
    let mut bench = Bench::<_, Tiny>::on(Double::new(tiny::BASE, tiny::BYTES)).with_full_buffer(true);
    bench.host.push(0, tiny::buffer(1));
    bench.host.memory.take_log();
    assert!(bench.lane.try_rotate(&mut bench.pool));
    let pool = tiny::pool(0);
    let [stash_low, stash_sequence] = [14, 16].map(|index| tiny::pool_status(0, index));
    let [current, sequence, head] = [pool.current_ptr, pool.current_seq, pool.free_head].map(tiny::at);
    let stores = bench.host.memory.take_log();
    let place = |at| stores.iter().position(|store| store.at() == at).expect("stored");
    let order = [stash_sequence, stash_low, current, sequence, head].map(place);
    assert!(order.is_sorted(), "{order:?}");
    let switch = bench.lane.begin_stash_publication();
    assert_eq!(bench.lane.drive(&mut bench.pool, switch, &mut bench.env), SwitchEnd::Switched);
    let stores = bench.host.memory.take_log();
    let place = |at| stores.iter().position(|store| store.at() == at).expect("stored");
    assert!(place(tiny::at(tiny::ring(0).tail)) < place(stash_low));
}

#[test]
fn a_stash_is_published_once_although_the_gate_timed_out() {
    let mut bench = bench().with_full_buffer(false);
    bench.host.push(0, tiny::buffer(2));
    assert!(bench.lane.try_rotate(&mut bench.pool));
    assert_eq!(publish(&mut bench), SwitchEnd::Kept { dropped: RECORDS });
    assert_eq!(stash(&bench).0, tiny::buffer(0), "what is not published stays the lane's");
    assert_eq!(bench.host.drain_all(0).len(), 1, "the peer before it");
    assert_eq!(publish(&mut bench), SwitchEnd::Switched);
    let entries = bench.host.drain_all(0);
    assert_eq!(entries.iter().map(|entry| entry.buffer).collect::<Vec<_>>(), [tiny::buffer(0)]);
    assert_eq!(bench.host.records(tiny::buffer(0)), [[0; 4]; 0], "its records are counted as lost");
    bench.assert_conserved(u64::from(RECORDS));
    assert_eq!(publish(&mut bench), SwitchEnd::Switched);
    assert_eq!(bench.host.published(0), 0);
}
