//! A lane whose host is gone: it gives up once, waits no more, and notices any sign of life.

use super::*;
use crate::layout::extension::LaneActivity;
use crate::producer::{AppendError, DropCause};

const LOST: Result<(), AppendError> = Err(AppendError { cause: DropCause::HostGone });

/// Lets the deadline pass at `switch`, which must be waiting.
fn expire(bench: &mut MappedBench, switch: &mut Switch) -> Progress {
    assert!(matches!(bench.poll(switch), Progress::Waiting(_)));
    bench.env.now_cycles.set(bench.env.now_cycles.get() + LIMIT_CYCLES);
    bench.poll_twice(switch)
}

/// A bench whose lane has given the host up at a full ring.
fn latched() -> MappedBench {
    let mut bench = bench().with_full_buffer(false);
    let mut switch = bench.lane.begin_switch();
    assert_eq!(expire(&mut bench, &mut switch), Progress::Done(SwitchEnd::Kept { dropped: RECORDS }));
    assert!(bench.lane.state().latch.is_set());
    bench.fill();
    bench
}

#[test]
fn an_expired_publication_keeps_the_buffer_and_counts_its_records_once() {
    let mut bench = bench().with_full_buffer(false);
    let mut switch = bench.lane.begin_switch();
    assert_eq!(expire(&mut bench, &mut switch), Progress::Done(SwitchEnd::Kept { dropped: RECORDS }));
    let state = bench.pool.state();
    assert_eq!((state.buffer, state.count, state.sequence), (tiny::buffer(0), 0, 1));
    assert_eq!(state.dropped[DropCause::HostGone.index()], u64::from(RECORDS));
    assert_eq!(bench.host.word(tiny::pool(0).dropped_records), RECORDS);
    assert_eq!(bench.host.records(tiny::buffer(0)), [[0; 4]; 0]);
    assert_eq!(bench.host.published(0), 1, "only the peer before it");
    assert_eq!(bench.host.memory.peek(tiny::lane_status(0, 0)), LaneActivity::HOST_GONE.0);
    bench.assert_conserved(u64::from(RECORDS));
}

#[test]
fn an_append_whose_buffer_was_lost_says_so() {
    let mut bench = bench().with_full_buffer(false);
    bench.host.detach();
    let mut switch = bench.lane.begin_switch();
    assert!(matches!(bench.poll_twice(&mut switch), Progress::Done(SwitchEnd::Kept { .. })));
    for first in 1..RECORDS {
        assert_eq!(bench.append(first), Ok(()));
    }
    assert_eq!(bench.append(RECORDS), LOST, "the buffer went, and this record with it");
    assert_eq!(bench.pool.state().dropped_total(), u64::from(2 * RECORDS));
}

#[test]
fn a_latched_switch_never_waits_but_still_raises() {
    let mut bench = latched();
    let reads = bench.env.clock_reads.get();
    for _ in 0..3 {
        bench.host.clear(Gate::Ready);
        let mut switch = bench.lane.begin_switch();
        assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Kept { dropped: RECORDS }));
        assert!(bench.host.is_contended(Gate::Ready));
        bench.fill();
    }
    assert_eq!(bench.env.clock_reads.get(), reads);
    assert_eq!(bench.lane.state().expiries, 1);
}

#[test]
fn a_latched_lane_without_a_buffer_loses_one_record_per_append() {
    let mut bench = bench();
    bench.host.detach();
    for first in 0..4 {
        assert_eq!(bench.append(first), LOST);
    }
    assert_eq!(bench.pool.state().dropped_total(), 4);
    bench.host.push(0, tiny::buffer(0));
    assert_eq!(bench.append(4), Ok(()));
    bench.assert_conserved(0);
}

#[test]
fn a_latched_switch_passes_shut_gates_only_while_the_host_is_silent() {
    let mut bench = bench().with_full_buffer(true);
    bench.host.push(0, tiny::buffer(1));
    GATES.iter().for_each(|&gate| bench.host.set_shut(gate, true));
    let mut switch = bench.lane.begin_switch();
    assert_eq!(expire(&mut bench, &mut switch), Progress::Moved);
    assert_eq!(bench.poll(&mut switch), Progress::Moved);
    assert_eq!(bench.host.published(0), 1);
    assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
    assert!(bench.lane.state().latch.is_set());
    bench.fill();
    bench.host.drain_all(0);
    let mut switch = bench.lane.begin_switch();
    assert_eq!(bench.poll(&mut switch), Progress::Moved, "somebody drains");
    assert!(!bench.lane.state().latch.is_set());
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready), "gates count again");
}

#[test]
fn a_lane_that_gives_up_at_a_shut_gate_looks_once_before_it_loses_anything() {
    let mut bench = bench().with_full_buffer(true);
    bench.host.set_shut(Gate::Ready, true);
    let mut switch = bench.lane.begin_switch();
    assert_eq!(expire(&mut bench, &mut switch), Progress::Moved);
    assert!(bench.lane.state().latch.is_set());
    assert_eq!(bench.poll(&mut switch), Progress::Moved);
    assert_eq!(bench.host.drain(0).map(|entry| entry.buffer), Some(tiny::buffer(0)));
    assert_eq!(bench.pool.state().dropped_total(), 0);
}

/// What a host that is back changes.
type Sign = fn(&Host<BlockMemory>);

#[test]
fn each_sign_of_life_clears_the_latch_before_the_switch_may_fail() {
    let signs: [(&str, Sign); 6] = [
        // The ring stays full: its head goes once round.
        ("ring head", |host| host.set_word(tiny::ring(0).head, 1)),
        ("queue tail", |host| host.push(0, tiny::buffer(1))),
        ("push flag", |host| host.set_shut(Gate::Ready, true)),
        ("pop flag", |host| host.set_shut(Gate::Free, true)),
        ("release epoch", |host| host.bump_epoch()),
        ("heartbeat", |host| host.bump(tiny::EXTENSION_GATES.host_heartbeat)),
    ];
    for (name, sign) in signs {
        let mut bench = latched();
        sign(&bench.host);
        if name == "ring head" {
            bench.host.set_word(tiny::ring(0).tail, 0);
        }
        bench.env.now_cycles.set(10 * LIMIT_CYCLES);
        let mut switch = bench.lane.begin_switch();
        assert_eq!(bench.poll(&mut switch), Progress::Moved, "{name}");
        assert!(!bench.lane.state().latch.is_set(), "{name}");
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready), "{name}");
        assert_eq!(bench.pool.state().count, RECORDS, "{name}");
        bench.env.now_cycles.set(11 * LIMIT_CYCLES - 1);
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready), "{name}: a whole new wait");
    }
}

#[test]
fn a_peer_pools_queue_is_no_sign_of_life() {
    let mut bench = latched();
    let memory = bench.host.memory.clone();
    let mut other = tiny::attach_pool::<_, Record, Tiny>(&memory, 1, 2).expect("mapped");
    assert_ne!(bench.host.word(tiny::pool(0).free_tail), bench.host.word(tiny::pool(1).free_tail));
    let mut switch = bench.lane.begin_claim();
    let ended = bench.lane.poll_switch(&mut other, &mut switch, &bench.env);
    assert_eq!(ended, Progress::Done(SwitchEnd::Unbacked), "it would wait a whole deadline once more");
    assert!(bench.lane.state().latch.is_set());
}

#[test]
fn a_detached_host_is_not_waited_for() {
    let mut bench = bench().with_full_buffer(false);
    bench.host.detach();
    let mut switch = bench.lane.begin_switch();
    assert_eq!(bench.poll_twice(&mut switch), Progress::Done(SwitchEnd::Kept { dropped: RECORDS }));
    let mut other = self::bench();
    other.host.detach();
    let mut switch = other.lane.begin_claim();
    assert_eq!(other.poll_twice(&mut switch), Progress::Done(SwitchEnd::Unbacked));
    assert_eq!(other.lane.state().expiries, 1);
}

#[test]
fn detaching_ends_a_wait_that_has_begun() {
    let mut bench = bench();
    bench.host.set_shut(Gate::Free, true);
    let mut switch = bench.lane.begin_claim();
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
    bench.host.detach();
    let end = bench.lane.drive(&mut bench.pool, switch, &mut bench.env);
    assert_eq!(end, SwitchEnd::Unbacked);
    assert_eq!(bench.env.parked, [0; 2]);
}

#[test]
fn a_flush_after_the_host_came_back_publishes() {
    let mut bench = latched();
    bench.host.bump(tiny::EXTENSION_GATES.host_heartbeat);
    let host = bench.host.clone();
    let mut env = Surroundings::new(move |_| {
        host.drain(0);
    });
    assert_eq!(bench.lane.flush(&mut bench.pool, &mut env), SwitchEnd::Switched);
    assert_eq!(bench.pool.state().count, 0);
    assert_eq!(bench.host.drain(0).map(|entry| entry.buffer), Some(tiny::buffer(0)));
    bench.assert_conserved(u64::from(2 * RECORDS));
}

#[test]
fn a_host_that_began_to_beat_during_the_wait_is_trusted_by_the_next_switch() {
    let mut bench = bench().with_full_buffer(false);
    let mut switch = bench.lane.begin_switch();
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready));
    bench.host.bump(tiny::EXTENSION_GATES.host_heartbeat);
    bench.env.now_cycles.set(LIMIT_CYCLES);
    assert_eq!(bench.poll_twice(&mut switch), Progress::Done(SwitchEnd::Kept { dropped: RECORDS }));
    assert!(bench.lane.state().latch.is_set());
    bench.fill();
    let mut switch = bench.lane.begin_switch();
    assert_eq!(bench.poll(&mut switch), Progress::Moved);
    assert!(!bench.lane.state().latch.is_set());
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready));
}

#[test]
fn a_last_look_fails_unless_somebody_served_since_the_deadline() {
    let services: [(Sign, bool); 3] = [
        (|host| host.bump(tiny::EXTENSION_GATES.host_heartbeat), false),
        (|host| host.bump_epoch(), true),
        (|host| host.set_shut(Gate::Ready, true), true),
    ];
    for (service, trusts) in services {
        let mut bench = bench();
        bench.host.set_shut(Gate::Free, true);
        let mut switch = bench.lane.begin_claim();
        assert_eq!(expire(&mut bench, &mut switch), Progress::Moved);
        assert_eq!(switch.patience(), Patience::LastLook);
        service(&bench.host);
        let end = bench.poll(&mut switch);
        let expected = if trusts { Progress::Moved } else { Progress::Done(SwitchEnd::Unbacked) };
        assert_eq!(end, expected, "a beat alone makes no wait longer, or none would be bounded");
        assert_eq!(bench.lane.state().latch.is_set(), !trusts);
    }
}
