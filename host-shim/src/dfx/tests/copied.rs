//! A ready ring behind a transport whose device publishes in the middle of the host's reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_core::mem::CopyMemory;
use sluice_core::mem::testing::{BlockMemory, block};

use super::*;
use crate::device::copy::{CopiedMemory, Ranges};
use crate::dfx::RingState;

const NOTHING: u32 = u32::MAX;

/// A device that publishes a buffer, under the next number, when the host is about to read the tail.
struct Publishing {
    block: BlockMemory,
    next: AtomicU32,
}

impl Publishing {
    fn publish(&self, number: u32) {
        let ring = tiny::ring(0);
        let tail = number % READY_ENTRIES;
        let at = ring.entry(tail);
        self.block.poke_address(tiny::at(at + 8), tiny::buffer(number % BUFFERS));
        self.block.poke(tiny::at(at + 16), number);
        self.block.poke(tiny::at(ring.tail), (tail + 1) % READY_ENTRIES);
    }
}

impl Ranges for Publishing {
    fn read(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        if from == tiny::at(tiny::ring(0).tail) {
            let number = self.next.swap(NOTHING, Ordering::Relaxed);
            if number != NOTHING {
                self.publish(number);
            }
        }
        self.block.read_bytes(from, into)
    }

    fn write(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.block.write_bytes(to, bytes)
    }
}

#[test]
fn an_entry_of_an_earlier_lap_is_not_taken_for_the_one_that_is_published() {
    let device =
        Arc::new(Publishing { block: block(tiny::BASE, tiny::BYTES), next: AtomicU32::new(NOTHING) });
    let memory = CopiedMemory::new(Arc::clone(&device));
    let ring = RingDrain::attach(&memory, tiny::BASE, tiny::ring(0), READY_ENTRIES).expect("mapped");
    for number in 0..3 * READY_ENTRIES {
        device.next.store(number, Ordering::Relaxed);
        let looked = ring.look().expect("no fault");
        let RingState::Entry { index, waiting: 1 } = looked else { panic!("{looked:?}") };
        let entry = ring.read(index).expect("no fault");
        assert_eq!((entry.sequence, entry.buffer), (number, tiny::buffer(number % BUFFERS)));
        ring.give_back(index).expect("no fault");
        assert_eq!(ring.look().expect("no fault"), RingState::Empty, "once");
    }
}
