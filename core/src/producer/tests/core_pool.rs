//! A core that writes its own records, its lane, and the host, in turn.

use core::mem::take;

use super::*;
use crate::producer::tiny::OwnRecord;
use crate::producer::{CorePool, DropCause, Settlement, Turn};

/// Time a core has for an item and its record.
const CORE_CYCLES: u64 = 1000;

/// The core as the wire contract has it: it goes by the pool's words alone.
#[derive(Default)]
struct Core {
    known: Option<u32>,
    buffer: DevAddr,
    taken: u32,
    /// Slot and token of the item that it runs, or has run and not recorded.
    item: Option<(DevAddr, u32)>,
}

impl Core {
    fn take_up(&mut self, host: &Host<BlockMemory>, token: u32) {
        let sequence = host.word(tiny::pool(0).current_seq);
        if self.known != Some(sequence) {
            (self.known, self.buffer, self.taken) = (Some(sequence), host.current(0), 0);
        }
        assert!(self.taken < RECORDS && !self.buffer.is_null(), "the lane counted a slot");
        self.item = Some((self.buffer.offset(u64::from(self.taken) * 16), token));
        self.taken += 1;
    }

    fn record(&mut self, host: &Host<BlockMemory>) {
        let (slot, token) = take(&mut self.item).expect("an item");
        for (offset, value) in [(0, 7), (4, 0), (8, !token), (12, token)] {
            host.memory.poke(slot.offset(offset), value);
        }
    }
}

struct Pair {
    host: Host<BlockMemory>,
    lane: Lane<BlockMemory, Tiny>,
    pool: CorePool<BlockMemory, OwnRecord, Tiny>,
    core: Core,
    env: Surroundings<fn(u32)>,
    next_token: u32,
}

impl Pair {
    fn new(ready_entries: u32) -> Self {
        let memory = mapped();
        let pool = tiny::attach_pool(&memory, 0, 2).expect("mapped");
        Self {
            lane: tiny::attach_lane(&memory, 0, ready_entries, LIMIT_CYCLES).expect("mapped"),
            pool: CorePool::new(&memory, pool, CORE_CYCLES),
            host: Host { memory, ready_entries, free_slots: 2 },
            core: Core::default(),
            env: Surroundings::new(|_| ()),
            next_token: 1,
        }
    }

    /// Until when the next item is withheld, if it is.
    fn admit(&mut self) -> Option<u64> {
        self.pool.admit(&mut self.lane, &mut self.env)
    }

    /// Hands the next item to the core, which runs it and reports it finished. Returns whether it is to record it.
    fn run(&mut self) -> bool {
        assert_eq!(self.admit(), None);
        let has_slot = self.pool.reserve(&mut self.lane);
        if has_slot {
            self.core.take_up(&self.host, self.next_token);
            self.pool.dispatched(self.next_token);
        }
        self.next_token += 1;
        self.pool.finished(&mut self.lane, &mut self.env);
        has_slot
    }

    fn run_and_record(&mut self) {
        assert!(self.run());
        self.core.record(&self.host);
    }

    fn settle(&mut self) -> Settlement {
        self.pool.settle(&mut self.lane, &self.env)
    }

    fn flush(&mut self) {
        assert_eq!(self.settle(), Settlement::Settled);
        self.pool.flush(&mut self.lane, &mut self.env);
    }

    /// Tokens of the records that are published.
    fn delivered(&self) -> Vec<u32> {
        let entries = self.host.drain_all(0);
        entries.iter().flat_map(|entry| self.host.records(entry.buffer)).map(|record| record[3]).collect()
    }

    fn dropped(&self, cause: DropCause) -> u64 {
        self.pool.pool().state().dropped[cause.index()]
    }
}

#[test]
fn no_record_of_an_earlier_buffer_is_delivered() {
    let mut pair = Pair::new(4);
    // What another run left: a record under the very token that comes first, and two more.
    for slot in 0..RECORDS {
        for (offset, value) in [(0, 7), (12, slot + 1)] {
            pair.host.memory.poke(tiny::buffer(0).offset(u64::from(slot * 16 + offset)), value);
        }
    }
    pair.host.push(0, tiny::buffer(0));
    assert!(pair.run());
    assert!(matches!(pair.settle(), Settlement::Owed { .. }), "a record that is none yet");
    pair.core.record(&pair.host);
    pair.flush();
    let entry = pair.host.drain(0).expect("published");
    assert_eq!(pair.host.records(entry.buffer), [[7, 0, !1, 1]], "counted, and nothing else");
}

#[test]
fn core_records_that_found_no_slot_are_counted() {
    let mut pair = Pair::new(4);
    for _ in 0..5 {
        assert!(!pair.run(), "the core is told to record nothing");
    }
    assert_eq!(pair.env.now_cycles.get(), LIMIT_CYCLES, "one deadline for all");
    pair.host.push(0, tiny::buffer(0));
    pair.run_and_record();
    pair.flush();
    assert_eq!(pair.delivered(), [6]);
    let state = pair.pool.pool().state();
    assert_eq!((state.total(), state.dropped_total(), pair.dropped(DropCause::HostGone)), (6, 5, 5));
}

#[test]
fn one_core_buffer_is_enough() {
    let mut pair = Pair::new(2);
    pair.host.push(0, tiny::buffer(0));
    let mut delivered = Vec::new();
    for token in 1..=RECORDS * 20 {
        assert!(pair.run());
        let until_cycles = pair.env.now_cycles.get() + CORE_CYCLES;
        if token % RECORDS == 0 {
            // The host is at hand, but the record is not there: nothing moves, and nobody waits at a gate.
            for _ in 0..2 {
                assert_eq!(pair.admit(), Some(until_cycles), "token {token}");
            }
            assert_eq!((pair.host.published(0), pair.lane.state().waits_fq), (0, token / RECORDS - 1));
        }
        pair.core.record(&pair.host);
        if token % RECORDS == 0 {
            let mut turn = Turn::Begin;
            while !pair.host.is_contended(Gate::Free) {
                let _ = pair.pool.poll_admission(&mut pair.lane, &mut turn, &pair.env);
            }
            pair.host.clear(Gate::Free);
            delivered.append(&mut pair.delivered());
            pair.host.push(0, tiny::buffer(0));
        }
    }
    pair.flush();
    assert!(delivered.into_iter().eq(1..=RECORDS * 20));
    assert_eq!(pair.pool.pool().state().dropped_total(), 0);
}

#[test]
fn with_a_second_buffer_the_next_item_waits_for_no_record() {
    let mut pair = Pair::new(4);
    pair.host.push(0, tiny::buffer(0));
    pair.host.push(0, tiny::buffer(1));
    for _ in 1..RECORDS {
        pair.run_and_record();
    }
    assert!(pair.run());
    let owed = take(&mut pair.core.item);
    assert_eq!(pair.admit(), None);
    assert_eq!(pair.host.memory.peek_address(tiny::pool_status(0, 14)), tiny::buffer(0), "in the stash");
    assert_eq!(pair.host.current(0), tiny::buffer(1));
    pair.core.item = owed;
    pair.core.record(&pair.host);
    assert_eq!(pair.host.published(0), 0, "the lane has no sign of the record");
    pair.run_and_record();
    assert_eq!(pair.delivered(), [1, 2, 3], "the item after it has finished");
    pair.flush();
    assert_eq!(pair.delivered(), [4]);
    assert_eq!(pair.env.clock_reads.get(), 0);
}

#[test]
fn a_stash_that_could_not_go_goes_before_the_next_rotation() {
    let mut pair = Pair::new(4);
    pair.host.push(0, tiny::buffer(0));
    pair.host.push(0, tiny::buffer(1));
    // The ring is full: the lane gives the stash up, and its records with it.
    pair.host.set_word(tiny::ring(0).tail, 3);
    for _ in 0..RECORDS * 2 {
        pair.run_and_record();
    }
    assert_eq!(pair.dropped(DropCause::HostGone), u64::from(RECORDS));
    pair.host.set_word(tiny::ring(0).head, 3);
    pair.host.push(0, tiny::buffer(2));
    pair.run_and_record();
    let entries = pair.host.drain_all(0);
    let buffers: Vec<_> = entries.iter().map(|entry| entry.buffer).collect();
    assert_eq!(buffers, [tiny::buffer(0), tiny::buffer(1)]);
    let counts = buffers.iter().map(|&buffer| pair.host.records(buffer).len());
    assert!(counts.eq([0, RECORDS as usize]), "lost records are not delivered after all");
}

#[test]
fn an_address_that_is_no_buffer_is_stepped_over_at_a_rotation() {
    let mut pair = Pair::new(4);
    pair.host.push(0, tiny::buffer(0));
    for _ in 1..RECORDS {
        pair.run_and_record();
    }
    assert!(pair.run());
    pair.host.push(0, DevAddr::NULL);
    pair.host.push(0, tiny::buffer(1));
    assert!(pair.admit().is_some(), "nothing is given up for it");
    assert_eq!(pair.host.waiting(0), 1, "its slot is free again");
    assert_eq!((pair.host.current(0), pair.admit()), (tiny::buffer(0), None));
    assert_eq!(pair.host.current(0), tiny::buffer(1));
}

#[test]
fn a_core_that_leaves_no_record_in_time_costs_that_record_alone() {
    let mut pair = Pair::new(4);
    pair.host.push(0, tiny::buffer(0));
    for _ in 1..RECORDS {
        pair.run_and_record();
    }
    assert!(pair.run());
    assert_eq!(pair.admit(), Some(CORE_CYCLES));
    pair.env.now_cycles.set(CORE_CYCLES - 1);
    assert_eq!(pair.admit(), Some(CORE_CYCLES));
    pair.env.now_cycles.set(CORE_CYCLES);
    assert_eq!(pair.admit(), None);
    // Too late, and no longer the core's to write: the count leaves it out.
    pair.core.record(&pair.host);
    assert_eq!(pair.delivered(), [1, 2]);
    pair.host.push(0, tiny::buffer(0));
    pair.run_and_record();
    pair.flush();
    assert_eq!(pair.delivered(), [4]);
    assert_eq!((pair.dropped(DropCause::CoreBusy), pair.pool.pool().state().dropped_total()), (1, 1));
}

#[test]
fn a_record_that_is_given_up_is_counted_and_never_delivered() {
    let mut pair = Pair::new(4);
    pair.host.push(0, tiny::buffer(0));
    pair.run_and_record();
    assert!(pair.run());
    assert_eq!(pair.settle(), Settlement::Owed { until_cycles: CORE_CYCLES });
    pair.env.now_cycles.set(CORE_CYCLES);
    pair.flush();
    pair.core.record(&pair.host);
    assert_eq!(pair.delivered(), [1]);
    assert_eq!((pair.dropped(DropCause::CoreBusy), pair.pool.pool().state().total()), (1, 2));
    assert!(pair.pool.state().is_owed, "the memory is not to be used for anything else");
}

#[test]
fn a_core_begins_again_with_the_first_slot_when_its_buffer_was_given_up() {
    let mut pair = Pair::new(2);
    pair.host.push(0, tiny::buffer(0));
    pair.host.set_word(tiny::ring(0).tail, 1);
    for _ in 0..RECORDS * 2 {
        pair.run_and_record();
    }
    assert_eq!(pair.dropped(DropCause::HostGone), u64::from(RECORDS));
    pair.host.set_word(tiny::ring(0).head, 1);
    pair.flush();
    let entry = pair.host.drain(0).expect("published");
    assert_eq!((entry.buffer, entry.sequence), (tiny::buffer(0), 1), "a lost buffer leaves a gap");
    assert!(pair.host.records(entry.buffer).iter().map(|record| record[3]).eq(RECORDS + 1..=RECORDS * 2));
}

#[test]
fn an_item_that_runs_is_waited_for_at_the_end() {
    let mut pair = Pair::new(2);
    pair.host.push(0, tiny::buffer(0));
    assert_eq!(pair.settle(), Settlement::Settled, "nothing was handed to the core yet");
    assert_eq!(pair.admit(), None);
    assert!(pair.pool.reserve(&mut pair.lane));
    pair.core.take_up(&pair.host, 1);
    pair.pool.dispatched(1);
    // A record that is there by chance before the lane has seen its item finish.
    pair.core.record(&pair.host);
    assert_eq!(pair.settle(), Settlement::Owed { until_cycles: CORE_CYCLES });
    pair.pool.finished(&mut pair.lane, &mut pair.env);
    pair.flush();
    assert_eq!(pair.delivered(), [1]);
}
