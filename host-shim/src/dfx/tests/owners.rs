//! Who has each buffer, whatever happens in which order and whatever the transport does.

use std::collections::HashSet;

use proptest::prelude::*;
use sluice_core::mem::testing::{Logged, Mishap};

use super::*;
use crate::dfx::keeper::Step;

/// Something that happens. Pool and lane of the same number belong together.
#[derive(Clone, Copy, Debug)]
enum Act {
    Claim(u32),
    Publish(u32),
    Drain,
    Collect,
    Keep,
    /// One of the next accesses fails.
    Fail(u32, Mishap),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (0..POOLS).prop_map(Act::Claim),
        2 => (0..POOLS).prop_map(Act::Publish),
        3 => Just(Act::Drain),
        2 => Just(Act::Collect),
        9 => Just(Act::Keep),
        2 => (0..6u32, prop_oneof![Just(Mishap::Refused), Just(Mishap::AnswerLost)])
            .prop_map(|(later, mishap)| Act::Fail(later, mishap)),
    ]
}

/// Lanes, drain, collector and keeper, one act at a time.
struct Course {
    bench: Bench,
    drain: Drain<Double, CounterWord>,
    keeper: Keeper<Double, CounterWord>,
    /// By pool, what its lane fills.
    filling: [Option<BufferId>; POOLS as usize],
    sequences: [u32; POOLS as usize],
}

impl Course {
    fn new() -> Self {
        let bench = Bench::new();
        let keeper = bench.keeper(GateScope::All, &[0, 1, 2, 3, 4, 5], Shut::default());
        Self { drain: bench.drain(&[]), keeper, bench, filling: [None; 2], sequences: [0; 2] }
    }

    fn act(&mut self, act: Act) {
        let bench = &self.bench;
        match act {
            Act::Claim(pool) => {
                let filling = &mut self.filling[pool as usize];
                if filling.is_none() && !bench.queue(pool).is_empty() {
                    *filling = bench.directory.find(bench.claim(pool));
                    assert!(filling.is_some(), "what lies in a queue is a buffer");
                }
            }
            Act::Publish(pool) => {
                let sequence = &mut self.sequences[pool as usize];
                if bench.waiting_entries(pool) < READY_ENTRIES - 1
                    && let Some(buffer) = self.filling[pool as usize].take()
                {
                    bench.publish(pool, buffer.0, *sequence);
                    *sequence += 1;
                }
            }
            Act::Drain => _ = self.drain.poll(&bench.collect, &bench.returned),
            Act::Collect => {
                if let Some(full) = bench.collect.pop() {
                    bench.returned.push(full.buffer);
                }
            }
            Act::Keep => _ = self.keeper.poll(&bench.returned, &mut Says(true)),
            Act::Fail(later, mishap) => bench.memory.fail_later(later, mishap),
        }
    }

    /// Every place of a buffer. One whose push may have failed is left out of the list it was pushed from.
    fn places(&self) -> Vec<BufferId> {
        let bench = &self.bench;
        let mut addresses: Vec<_> = (0..POOLS).flat_map(|pool| bench.queue(pool)).collect();
        for lane in 0..LANES {
            let ring = tiny::ring(lane);
            let head = bench.word(ring.head);
            let entry = |i| ring.entry((head + i) % READY_ENTRIES);
            let entries = (0..bench.waiting_entries(lane)).map(entry);
            addresses.extend(entries.map(|entry| bench.memory.peek_address(tiny::at(entry + 8))));
        }
        let state = self.keeper.state();
        let spare = (0..POOLS).flat_map(|pool| {
            let is_pushed = state.pushing.is_some() && state.step == Step::Refill(pool);
            state.spare[pool as usize].iter().copied().skip(usize::from(is_pushed))
        });
        let find = |address| bench.directory.find(address).expect("a buffer");
        let of_device = addresses.into_iter().map(find);
        let under_way = bench.collect.items().into_iter().map(|full| full.buffer);
        of_device
            .chain(self.filling.into_iter().flatten())
            .chain(under_way)
            .chain(bench.returned.items())
            .chain(spare)
            .collect()
    }
}

/// Fewer than this many acts of a course; each is followed by a look at every buffer, which takes an interpreter long.
const ACTS: usize = if cfg!(miri) { 24 } else { 400 };

proptest! {
    #[test]
    fn no_buffer_is_given_to_two_queues(acts in prop::collection::vec(act(), 0..ACTS)) {
        let mut course = Course::new();
        for act in acts {
            course.act(act);
            let places = course.places();
            let different: HashSet<_> = places.iter().collect();
            prop_assert_eq!(different.len(), places.len(), "{:?} after {:?}", places, act);
            for pool in 0..POOLS {
                for address in course.bench.queue(pool) {
                    let buffer = course.bench.directory.find(address).expect("a buffer");
                    prop_assert_eq!(course.bench.directory.pool_of(buffer).0, pool);
                }
            }
        }
    }

    #[test]
    fn a_tail_never_goes_back(acts in prop::collection::vec(act(), 0..ACTS)) {
        let mut course = Course::new();
        acts.into_iter().for_each(|act| course.act(act));
        let mut tails = [0; POOLS as usize];
        for store in course.bench.memory.take_log() {
            for (pool, tail) in (0..POOLS).zip(&mut tails) {
                if let Logged::Release { at, value } = store
                    && at == tiny::at(tiny::pool(pool).free_tail)
                {
                    // Said twice when it is not known whether the first was heard.
                    prop_assert!(value == *tail || value == *tail + 1, "{} after {}", value, tail);
                    *tail = value;
                }
            }
        }
    }
}
