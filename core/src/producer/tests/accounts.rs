//! Counters: what they add up to, where they wrap, what a flush leaves behind.

use super::*;
use crate::layout::extension::LaneActivity;
use crate::layout::{Instance, PoolOffsets};
use crate::producer::{DropCause, PoolSetup, PoolState};

#[test]
fn counters_of_the_queue_wrap_at_their_width() {
    let memory = mapped();
    let queue = tiny::pool(0);
    let start = u32::MAX - 4;
    memory.poke(tiny::at(queue.free_head), start);
    memory.poke(tiny::at(queue.free_tail), start);
    let mut bench: MappedBench = Bench::sized(memory, 4, 4);
    for number in 0..12 {
        bench.host.push(0, tiny::buffer(number));
        let switch = bench.lane.begin_switch();
        assert_eq!(bench.lane.drive(&mut bench.pool, switch, &mut bench.env), SwitchEnd::Switched);
        assert_eq!(bench.pool.state().buffer, tiny::buffer(number));
        bench.fill();
        bench.host.drain_all(0);
    }
    assert_eq!(bench.host.word(queue.free_head), start.wrapping_add(12));
    assert_eq!(bench.env.clock_reads.get(), 0);
}

#[test]
fn a_queue_across_the_wrap_holds_as_many_as_it_has_slots() {
    let memory = mapped();
    let queue = tiny::pool(0);
    for word in [queue.free_head, queue.free_tail] {
        memory.poke(tiny::at(word), u32::MAX - 1);
    }
    let mut bench: MappedBench = Bench::sized(memory, 4, 4);
    (0..4).for_each(|number| bench.host.push(0, tiny::buffer(number)));
    let mut claimed = Vec::new();
    for _ in 0..4 {
        let mut switch = bench.lane.begin_claim();
        assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
        claimed.push(bench.pool.state().buffer);
    }
    assert_eq!(claimed, [0, 1, 2, 3].map(tiny::buffer));
    let mut switch = bench.lane.begin_claim();
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
}

#[test]
fn the_sequence_wraps_with_its_word() {
    let mut bench = bench().with_full_buffer(true);
    let state = bench.pool.state();
    bench.pool.restore(PoolState { sequence: u32::MAX, ..state }).expect("the buffer is mapped");
    bench.host.push(0, tiny::buffer(1));
    let switch = bench.lane.begin_switch();
    assert_eq!(bench.lane.drive(&mut bench.pool, switch, &mut bench.env), SwitchEnd::Switched);
    assert_eq!(bench.host.drain(0).map(|entry| entry.sequence), Some(u32::MAX));
    assert_eq!(bench.host.word(tiny::pool(0).current_seq), 0);
}

#[test]
fn totals_beyond_a_word_go_on_in_the_high_words() {
    let mut bench = bench();
    bench.host.detach();
    let almost = u64::from(u32::MAX);
    let dropped = [almost - 2, 0, 1, 0, 1];
    bench
        .pool
        .restore(PoolState { attempts_elsewhere: almost, dropped, ..bench.pool.state() })
        .expect("no buffer");
    assert!(bench.append(0).is_err());
    let pool = tiny::pool(0);
    assert_eq!(bench.host.word(pool.total_records.expect("a word")), 0);
    let shown = |index| bench.host.memory.peek(tiny::pool_status(0, index));
    assert_eq!(shown(1), 1);
    assert_eq!([4, 5, 8, 12].map(shown), [u32::MAX - 1, 0, 1, 1]);
    let words = [pool.dropped_records, pool.mismatch_records.expect("a word")];
    assert_eq!(words.map(|word| bench.host.word(word)), [u32::MAX, 1]);
    assert_eq!(bench.pool.state().dropped_total(), bench.pool.state().total());
    bench.pool.drop_records(2, DropCause::HostGone);
    assert_eq!(words.map(|word| bench.host.word(word)), [1, 1]);
    assert_eq!([4, 5].map(|index| bench.host.memory.peek(tiny::pool_status(0, index))), [0, 1]);
}

#[test]
fn a_pool_without_a_total_on_the_wire_has_one_beside_it_and_losses_that_stop_at_the_most() {
    let memory = mapped();
    let offsets = PoolOffsets { total_records: None, ..tiny::pool(0) };
    let counts = tiny::count_words(&memory, 0).expect("mapped");
    let setup = PoolSetup { region: tiny::BASE, offsets, free_slots: 2, instance: Instance(0) };
    let mut pool: Pool<_, Record, Tiny> = Pool::attach(&memory, &setup, Some(counts)).expect("mapped");
    let shown = |index| memory.peek(tiny::pool_status(0, index));
    (0..3).for_each(|_| pool.count_attempt());
    assert_eq!([0, 1].map(shown), [3, 0]);
    pool.restore(PoolState { attempts_elsewhere: u64::from(u32::MAX), ..pool.state() }).expect("no buffer");
    pool.count_attempt();
    assert_eq!([0, 1].map(shown), [0, 1]);
    for lost in [u32::MAX, 1] {
        pool.drop_records(lost, DropCause::HostGone);
        assert_eq!(memory.peek(tiny::at(offsets.dropped_records)), u32::MAX);
    }
    assert_eq!([4, 5].map(shown), [0, 1]);
}

#[test]
fn causes_are_told_apart_and_add_up() {
    let mut bench = bench();
    for (index, cause) in DropCause::ALL.into_iter().enumerate() {
        bench.pool.drop_records(index as u32 + 1, cause);
    }
    let pool = tiny::pool(0);
    assert_eq!(bench.host.word(pool.dropped_records), 10, "what did not match is counted apart");
    assert_eq!(bench.host.word(pool.mismatch_records.expect("a word")), 5);
    let shown = [4, 6, 8, 10, 12].map(|word| bench.host.memory.peek(tiny::pool_status(0, word)));
    assert_eq!(shown, [1, 2, 3, 4, 5]);
}

#[test]
fn low_water_is_the_fewest_that_waited() {
    let mut bench: MappedBench = Bench::sized(mapped(), 4, 4);
    assert_eq!(bench.host.memory.peek(tiny::pool_status(0, 2)), 4, "never fewer than full so far");
    (0..4).for_each(|number| bench.host.push(0, tiny::buffer(number)));
    for waiting in [4, 3, 2] {
        let mut switch = bench.lane.begin_claim();
        assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
        assert_eq!(bench.host.memory.peek(tiny::pool_status(0, 2)), waiting);
    }
    bench.host.push(0, tiny::buffer(9));
    bench.host.push(0, tiny::buffer(10));
    let mut switch = bench.lane.begin_claim();
    assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
    assert_eq!(bench.pool.state().free_low_water, 2);
}

#[test]
fn attaching_clears_the_accounts_and_keeps_the_queue() {
    let mut bench = bench().with_full_buffer(true);
    bench.pool.drop_records(5, DropCause::Corrupt);
    bench.host.push(0, tiny::buffer(1));
    let memory = bench.host.memory.clone();
    let mut again: MappedBench = Bench::on(memory);
    let pool = tiny::pool(0);
    assert_eq!(again.host.current(0), DevAddr::NULL);
    for word in [pool.current_seq, pool.dropped_records, pool.total_records.expect("a word")] {
        assert_eq!(again.host.word(word), 0);
    }
    let mut switch = again.lane.begin_claim();
    assert_eq!(again.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
    assert_eq!(again.pool.state().buffer, tiny::buffer(1));
}

#[test]
fn a_flush_publishes_what_is_there_and_leaves_an_empty_buffer_in_place() {
    let mut bench = bench();
    bench.claim(tiny::buffer(0));
    assert_eq!(bench.lane.flush(&mut bench.pool, &mut bench.env), SwitchEnd::Switched);
    assert_eq!(bench.host.published(0), 0);
    assert_eq!(bench.host.current(0), tiny::buffer(0));
    bench.append(1).expect("room for it");
    assert_eq!(bench.lane.flush(&mut bench.pool, &mut bench.env), SwitchEnd::Switched);
    let entry = bench.host.drain(0).expect("published");
    assert_eq!(bench.host.records(entry.buffer), [[1, !1, 7, 1]]);
    assert_eq!(bench.host.current(0), DevAddr::NULL);
    assert!(!bench.pool.has_buffer());
    assert!(!bench.host.is_contended(Gate::Free), "nothing is claimed after the last record");
}

#[test]
fn a_flush_waits_at_the_push_gate_and_gives_up_like_a_switch() {
    let mut bench = bench().with_full_buffer(false);
    bench.host.set_shut(Gate::Ready, true);
    assert_eq!(bench.lane.flush(&mut bench.pool, &mut bench.env), SwitchEnd::Kept { dropped: RECORDS });
    assert_eq!(bench.env.now_cycles.get(), LIMIT_CYCLES);
    bench.assert_conserved(u64::from(RECORDS));
}

#[test]
fn what_a_lane_shows_is_what_it_counts() {
    let mut bench = bench();
    bench.host.set_shut(Gate::Free, true);
    bench.env.now_cycles.set(0x7_0000_0009);
    let mut switch = bench.lane.begin_claim();
    for _ in 0..4 {
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
        bench.host.bump_epoch();
    }
    let shown = |index| bench.host.memory.peek(tiny::lane_status(0, index));
    let state = bench.lane.state();
    assert_eq!([1, 2].map(shown), [9, 7]);
    assert_eq!([3, 4, 5, 6].map(shown), [state.waits_rq, state.waits_fq, state.parks, state.expiries]);
    assert_eq!([state.waits_rq, state.waits_fq, state.parks, state.expiries], [0, 1, 2, 0]);
}

/// The waits that lane 0 has logged, as its host reads them.
fn logged(bench: &MappedBench) -> Vec<[u32; 8]> {
    let memory = &bench.host.memory;
    let records = tiny::log_taken(0).offset(64);
    let word = |record: u32, index: u32| {
        memory.peek(records.offset(u64::from((record % tiny::LOG_RECORDS) * 32 + index * 4)))
    };
    let taken = memory.peek(tiny::log_taken(0));
    let logged = memory.peek(tiny::lane_status(0, 14));
    (taken..logged).map(|record| core::array::from_fn(|index| word(record, index as u32))).collect()
}

#[test]
fn every_wait_is_measured_from_its_first_look_to_its_end() {
    let mut bench = bench().with_full_buffer(false);
    let mut switch = bench.lane.begin_switch();
    bench.env.now_cycles.set(0x7_0000_0009);
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready));
    bench.env.now_cycles.set(0x7_0000_000d);
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready));
    assert_eq!(logged(&bench).len(), 0, "a wait is logged when it is over");
    bench.host.drain(0).expect("the peer before it");
    bench.env.now_cycles.set(0x7_0000_0010);
    assert_eq!(bench.poll(&mut switch), Progress::Moved);
    assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
    bench.host.detach();
    bench.env.now_cycles.set(0x7_0000_0012);
    assert_eq!(bench.poll_twice(&mut switch), Progress::Done(SwitchEnd::Unbacked));
    let [ready, free, running, gone] =
        [LaneActivity::READY_GATE, LaneActivity::FREE_GATE, LaneActivity::RUNNING, LaneActivity::HOST_GONE];
    let waits = [[9, 7, 0x10, 7, ready.0, running.0, 3, 0], [0x10, 7, 0x12, 7, free.0, gone.0, 3, 0]];
    assert_eq!(logged(&bench), waits);
    assert_eq!(bench.lane.state().waited_cycles, [7, 2]);
    let shown = |index| bench.host.memory.peek(tiny::lane_status(0, index));
    assert_eq!([10, 11, 12, 13].map(shown), [7, 0, 2, 0]);
}

#[test]
fn a_wait_that_finds_the_log_full_is_counted_and_goes_unlogged() {
    let mut bench = bench();
    let wait_once = |bench: &mut MappedBench, buffer| {
        let mut switch = bench.lane.begin_claim();
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
        bench.host.push(0, tiny::buffer(buffer));
        assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
    };
    (0..6).for_each(|buffer| wait_once(&mut bench, buffer));
    assert_eq!(bench.lane.state().waits_fq, 6);
    assert_eq!(logged(&bench).len(), 4);
    bench.host.memory.poke(tiny::log_taken(0), 1);
    bench.env.now_cycles.set(77);
    (6..8).for_each(|buffer| wait_once(&mut bench, buffer));
    assert_eq!(logged(&bench).len(), 4);
    assert_eq!(logged(&bench).last().map(|wait| wait[0]), Some(77));
    bench.host.memory.poke(tiny::log_taken(0), 9);
    wait_once(&mut bench, 8);
    assert_eq!(bench.host.memory.peek(tiny::lane_status(0, 14)), 5, "a counter that cannot be frees no slot");
}
