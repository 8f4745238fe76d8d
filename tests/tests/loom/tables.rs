//! A ready ring and a free queue, each alone, round their tables more than once.

use loom::thread;
use sluice_core::layout::{Instance, PoolKind};
use sluice_core::producer::{Beside, FreeLook, FreeQueue, PoolSetup, ReadyEntry, ReadyRing, RingLook, tiny};
use sluice_host::dfx::{FreeQueueFeed, Occupancy, RingDrain, RingState};

use crate::memory::{LoomMemory, Weakened};
use crate::stage::{Patience, READY_ENTRIES, buffer};
use crate::{POOL, RING, explore};

/// Slots of the queue: as few as there can be, so that every buffer takes the slot of the one before.
const SLOTS: u32 = 1;

fn entry(sequence: u32) -> ReadyEntry {
    ReadyEntry {
        instance: Instance(4),
        kind: PoolKind(2),
        buffer: buffer(0, sequence),
        sequence,
        beside: Beside::UNSAID,
    }
}

/// A lane publishes one entry more than the ring has slots, a host drains them.
fn a_ring(weakened: Option<Weakened>) {
    explore(None, move || {
        let memory = LoomMemory::new(weakened);
        let ring = ReadyRing::attach(&memory, tiny::BASE, RING, READY_ENTRIES).expect("a ring");
        let drain = RingDrain::attach(&memory, tiny::BASE, RING, READY_ENTRIES).expect("a ring");
        let lane = thread::spawn(move || {
            let mut patience = Patience::default();
            for sequence in 0..=READY_ENTRIES {
                while ring.look() == RingLook::Full {
                    patience.wait();
                }
                ring.publish(&entry(sequence));
            }
        });
        let mut patience = Patience::default();
        for sequence in 0..=READY_ENTRIES {
            let index = loop {
                match drain.look().expect("no fault") {
                    RingState::Entry { index, .. } => break index,
                    RingState::Empty => patience.wait(),
                    state @ RingState::Corrupt { .. } => panic!("nothing hostile runs here: {state:?}"),
                }
            };
            assert_eq!(drain.read(index), Ok(entry(sequence)));
            drain.give_back(index).expect("no fault");
        }
        lane.join().expect("the lane's own assertions");
    });
}

#[test]
fn entries_cross_whole_and_in_order() {
    a_ring(None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_ring_tail_stored_without_order_is_reported() {
    a_ring(Some(Weakened::Stores(tiny::at(RING.tail))));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_ring_tail_loaded_without_order_is_reported() {
    a_ring(Some(Weakened::Loads(tiny::at(RING.tail))));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_ring_head_stored_without_order_is_reported() {
    a_ring(Some(Weakened::Stores(tiny::at(RING.head))));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_ring_head_loaded_without_order_is_reported() {
    a_ring(Some(Weakened::Loads(tiny::at(RING.head))));
}

/// A keeper adds two buffers more than the queue has slots, a lane takes them.
fn a_queue(weakened: Option<Weakened>) {
    explore(None, move || {
        let memory = LoomMemory::new(weakened);
        let feed = FreeQueueFeed::attach(&memory, tiny::BASE, &POOL, SLOTS, u32::MAX).expect("a queue");
        let setup = PoolSetup { region: tiny::BASE, offsets: POOL, free_slots: SLOTS, instance: Instance(0) };
        let queue = FreeQueue::attach(&memory, &setup, u32::MAX).expect("a queue");
        let lane = thread::spawn(move || {
            let mut patience = Patience::default();
            for number in 0..SLOTS + 2 {
                let look = loop {
                    match queue.look() {
                        FreeLook::Empty => patience.wait(),
                        look => break look,
                    }
                };
                assert_eq!(look, FreeLook::Buffer { address: buffer(0, number), waiting: 1 });
                queue.advance();
            }
        });
        let mut patience = Patience::default();
        for number in 0..SLOTS + 2 {
            while feed.occupancy().expect("no fault") != Occupancy::Waiting(0) {
                patience.wait();
            }
            feed.push(feed.tail(), buffer(0, number)).expect("no fault");
        }
        lane.join().expect("the lane's own assertions");
    });
}

#[test]
fn addresses_cross_whole_and_in_order() {
    a_queue(None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_queue_tail_stored_without_order_is_reported() {
    a_queue(Some(Weakened::Stores(tiny::at(POOL.free_tail))));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_queue_tail_loaded_without_order_is_reported() {
    a_queue(Some(Weakened::Loads(tiny::at(POOL.free_tail))));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_queue_head_stored_without_order_is_reported() {
    a_queue(Some(Weakened::Stores(tiny::at(POOL.free_head))));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_queue_head_loaded_without_order_is_reported() {
    a_queue(Some(Weakened::Loads(tiny::at(POOL.free_head))));
}
