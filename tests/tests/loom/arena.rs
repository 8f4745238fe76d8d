//! A lane's payload arena: a payload is written over only once the host has said that it is safe, although the slot of its
//! buffer in the ready ring was given back before.

use std::mem::offset_of;

use loom::thread;
use sluice_core::layout::args_dump::BufferState;
use sluice_core::layout::{Instance, PoolKind, PoolOffsets};
use sluice_core::mem::{DevAddr, Memory, Window, Word};
use sluice_core::producer::{Arena, Hooks, PoolSetup, ReadyEntry, ReadyRing, RingLook, tiny};
use sluice_host::dfx::{Acknowledgement, RingDrain, RingState};

use crate::memory::{LoomMemory, Weakened};
use crate::stage::{Patience, READY_ENTRIES, buffer};
use crate::{POOL, RING, explore};

/// Where the words of the pool are that no other pool has.
const STATE: PoolOffsets = PoolOffsets { base: 0x4000, ..POOL };
const ARENA: DevAddr = DevAddr(0x9000);
/// Of the arena and of each payload: every payload is a lap.
const BYTES: u64 = 4;
const PAYLOADS: u32 = 3;
const COMPLETED: DevAddr = tiny::at(STATE.base + offset_of!(BufferState, completed_payload_count));

/// A lane goes round its arena, a host copies what it hands over and acknowledges it.
fn an_arena(weakened: Option<Weakened>) {
    explore(None, move || {
        let memory = LoomMemory::new(weakened);
        let given = |offset: usize, value| {
            memory.word(tiny::at(STATE.base + offset)).expect("a word").store_relaxed(value);
        };
        given(offset_of!(BufferState, arena_base), ARENA.0 as u32);
        given(offset_of!(BufferState, arena_size), BYTES as u32);
        let setup = PoolSetup { region: tiny::BASE, offsets: STATE, free_slots: 1, instance: Instance(0) };
        let mut arena = <Arena<LoomMemory> as Hooks<LoomMemory>>::attach(&memory, &setup).expect("an arena");
        let ring = ReadyRing::attach(&memory, tiny::BASE, RING, READY_ENTRIES).expect("a ring");
        let drain = RingDrain::attach(&memory, tiny::BASE, RING, READY_ENTRIES).expect("a ring");
        let acknowledgement = Acknowledgement::at(&memory, COMPLETED).expect("a word");
        let window = || memory.window(ARENA, BYTES as u32).expect("the arena");
        let (mut written, read) = (window(), window());
        let lane = thread::spawn(move || {
            let mut patience = Patience::default();
            for sequence in 0..PAYLOADS {
                if !arena.has_room(BYTES) {
                    while !arena.is_acknowledged() {
                        patience.wait();
                    }
                    arena.next_lap();
                }
                assert_eq!(arena.reserve(BYTES), (u64::from(sequence) * BYTES, ARENA));
                assert!(written.write(0, &sequence.to_le_bytes()));
                arena.note_payload();
                while ring.look() == RingLook::Full {
                    patience.wait();
                }
                let (instance, kind, beside) = (Instance(0), PoolKind::SOLE, arena.beside());
                arena.before_publish();
                ring.publish(&ReadyEntry { instance, kind, buffer: buffer(0, sequence), sequence, beside });
            }
        });
        let mut patience = Patience::default();
        for sequence in 0..PAYLOADS {
            let index = loop {
                match drain.look().expect("no fault") {
                    RingState::Entry { index, .. } => break index,
                    RingState::Empty => patience.wait(),
                    state @ RingState::Corrupt { .. } => panic!("nothing hostile runs here: {state:?}"),
                }
            };
            let entry = drain.read(index).expect("no fault");
            drain.give_back(index).expect("no fault");
            assert_eq!((entry.sequence, entry.beside.get()), (sequence, Some(1)));
            let mut bytes = [0; BYTES as usize];
            assert!(read.read(0, &mut bytes));
            assert_eq!(u32::from_le_bytes(bytes), sequence);
            acknowledgement.store(u64::from(sequence) + 1).expect("no fault");
        }
        lane.join().expect("the lane's own assertions");
    });
}

#[test]
fn payloads_cross_whole_and_in_order() {
    an_arena(None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_acknowledgement_stored_without_order_is_reported() {
    an_arena(Some(Weakened::Stores(COMPLETED)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_acknowledgement_loaded_without_order_is_reported() {
    an_arena(Some(Weakened::Loads(COMPLETED)));
}
