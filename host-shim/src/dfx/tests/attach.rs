//! The scan of an attaching host: where it sees a buffer, and that none slips through it.

use super::*;
use crate::dfx::attach::{Attach, Found};
use sluice_core::producer::tiny::{Surroundings, Tiny};
use sluice_core::producer::{Append, Lane, Pool, Progress, Switch};

fn scan(bench: &Bench) -> Found {
    let mut attach = Attach::new(Arc::clone(&bench.directory), Rules::ALL);
    bench.scan(|views| attach.run(views).expect("no fault is due"))
}

fn numbers(buffers: &[BufferId]) -> Vec<u32> {
    buffers.iter().map(|buffer| buffer.0).collect()
}

#[test]
fn on_untouched_memory_everything_is_the_hosts() {
    let found = scan(&Bench::new());
    assert_eq!(numbers(&found.host), [0, 1, 2, 3, 4, 5]);
    assert_eq!((found.device, found.unsettled, found.shut), (vec![], vec![], Shut::default()));
}

#[test]
fn a_buffer_is_seen_in_each_place() {
    let bench = Bench::new();
    let mut keeper = bench.keeper(GateScope::All, &[0, 3], Shut::default());
    keeper.round(&bench.returned, &mut Says(true), |_| ()).expect("no fault is due");
    bench.set_current(0, Some(1));
    bench.set_stash(0, Some(2));
    bench.publish(1, 5, 0);
    let found = scan(&bench);
    assert_eq!(numbers(&found.device), [0, 1, 2, 3, 5]);
    assert_eq!(numbers(&found.host), [4]);
    assert_eq!(numbers(&found.unsettled), [1, 2], "only what a lane holds may be a dead host's");
}

#[test]
fn a_current_buffer_that_also_stands_elsewhere_is_settled() {
    let bench = Bench::new();
    bench.set_current(0, Some(1));
    bench.publish(0, 1, 0);
    bench.set_current(1, Some(3));
    let mut keeper = bench.keeper(GateScope::All, &[3], Shut::default());
    keeper.round(&bench.returned, &mut Says(true), |_| ()).expect("no fault is due");
    let found = scan(&bench);
    assert_eq!((numbers(&found.device), found.unsettled), (vec![1, 3], vec![]));
}

#[test]
fn entries_and_slots_already_taken_are_not_seen() {
    let bench = Bench::new();
    let mut keeper = bench.keeper(GateScope::All, &[0, 1], Shut::default());
    keeper.round(&bench.returned, &mut Says(true), |_| ()).expect("no fault is due");
    bench.claim(0);
    bench.publish(0, 4, 0);
    bench.set_word(tiny::ring(0).head, 1);
    assert_eq!(numbers(&scan(&bench).device), [1]);
}

#[test]
fn gates_that_were_left_shut_are_found() {
    for (ready, free) in [(false, true), (true, false), (true, true)] {
        let bench = Bench::new();
        bench.set_word(flag(Gate::Ready), u32::from(ready));
        bench.set_word(flag(Gate::Free), u32::from(free) * 7);
        assert_eq!(scan(&bench).shut, Shut { ready, free });
    }
}

#[test]
fn what_is_no_buffer_is_ignored() {
    let bench = Bench::new();
    let garbage = [tiny::buffer(0).offset(4), DevAddr(1), DevAddr(u64::MAX), tiny::buffer(60)];
    let queue = tiny::pool(0);
    for (slot, address) in garbage.into_iter().enumerate().take(FREE_SLOTS as usize) {
        bench.memory.poke_address(tiny::at(queue.free_slot(slot as u32, FREE_SLOTS)), address);
    }
    bench.set_word(queue.free_tail, FREE_SLOTS);
    bench.memory.poke_address(tiny::at(queue.current_ptr), garbage[2]);
    bench.publish_entry(0, &ReadyEntry { buffer: garbage[3], ..entry(0, 0) });
    assert_eq!(scan(&bench).device, []);
}

#[test]
fn places_with_nonsense_counters_show_nothing() {
    let bench = Bench::new();
    bench.memory.poke_address(tiny::at(tiny::pool(0).free_ptrs), tiny::buffer(0));
    bench.set_word(tiny::pool(0).free_tail, FREE_SLOTS + 1);
    bench.publish(0, 1, 0);
    bench.set_word(tiny::ring(0).tail, u32::MAX);
    bench.publish(1, 2, 0);
    bench.set_word(tiny::ring(1).head, READY_ENTRIES);
    assert_eq!(scan(&bench).device, []);
}

/// A lane and its pool, moved on access by access beside the scan.
struct Mover {
    lane: Lane<Double, Tiny>,
    pool: Pool<Double, Record, Tiny>,
    switch: Switch,
    env: Surroundings<fn(u32)>,
}

impl Mover {
    /// A lane that fills buffer 0 while buffer 1 waits for it.
    fn new(bench: &Bench) -> Self {
        let lane = tiny::attach_lane(&bench.memory, 0, READY_ENTRIES, u64::MAX).expect("mapped");
        let pool = tiny::attach_pool(&bench.memory, 0, FREE_SLOTS).expect("mapped");
        let switch = lane.begin_switch();
        let mut mover = Self { lane, pool, switch, env: Surroundings::new(|_| ()) };
        let mut keeper = bench.keeper(GateScope::All, &[0, 1], Shut::default());
        keeper.round(&bench.returned, &mut Says(true), |_| ()).expect("no fault is due");
        mover.step();
        mover.step();
        for _ in 0..tiny::RECORDS {
            let _: Append = mover.pool.try_append(&[0; 4]);
        }
        mover.switch = mover.lane.begin_switch();
        mover
    }

    fn step(&mut self) {
        let _: Progress = self.lane.poll_switch(&mut self.pool, &mut self.switch, &self.env);
    }

    /// The same two moves by way of the stash.
    fn step_rotating(&mut self) {
        if self.pool.stashed().is_none() && self.lane.try_rotate(&mut self.pool) {
            self.switch = self.lane.begin_stash_publication();
        } else {
            self.step();
        }
    }
}

#[test]
fn a_buffer_that_moves_during_the_scan_is_seen() {
    moved_during_the_scan(Mover::step);
}

#[test]
fn a_buffer_that_rotates_during_the_scan_is_seen() {
    moved_during_the_scan(Mover::step_rotating);
}

fn moved_during_the_scan(step: fn(&mut Mover)) {
    // Two moves, publication of buffer 0 and claim of buffer 1, each before any of the scan's looks.
    const LOOKS: usize = 20;
    // An interpreter need not see every pair.
    let stride = if cfg!(miri) { 9 } else { 1 };
    for first in (0..LOOKS).step_by(stride) {
        for second in (first..LOOKS).step_by(stride) {
            let bench = Bench::new();
            let mut mover = Mover::new(&bench);
            let mut attach = Attach::new(Arc::clone(&bench.directory), Rules::ALL);
            let mut look = 0;
            let found = bench.scan(|views| {
                loop {
                    let moves = usize::from(look == first) + usize::from(look == second);
                    (0..moves).for_each(|_| step(&mut mover));
                    look += 1;
                    if let Some(found) = attach.poll(views).expect("no fault is due") {
                        break found;
                    }
                }
            });
            assert!(look < LOOKS, "the scan ends before the last look");
            assert_eq!(numbers(&found.device), [0, 1], "moves before looks {first} and {second}");
            assert!(found.unsettled.len() <= 2);
        }
    }
}
