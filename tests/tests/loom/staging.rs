//! A core's staging ring: counts are read behind their token, and never torn, whatever the core does meanwhile.

use loom::thread;
use sluice_core::mem::DevAddr;
use sluice_core::mmio::{COUNTERS, CoreStaging, Counts, LaneStaging, RING_BYTES};

use crate::explore;
use crate::memory::{LoomMemory, Weakened};

const RING: DevAddr = DevAddr(0x1000);
/// The token's word in the slot of odd tokens.
const TOKEN: DevAddr = DevAddr(RING.0 + RING_BYTES as u64 / 2);
/// The last of the words that hold counts in that slot.
const LAST_COUNT: DevAddr = DevAddr(TOKEN.0 + RING_BYTES as u64 / 2 - 4);

fn counts(token: u32) -> Counts {
    Counts { total_cycles: u64::from(token) << 32 | u64::from(token), events: [token; COUNTERS] }
}

/// A core that goes on without waiting for its lane, which looks for the first item once.
fn a_core_that_runs_on(weakened: Option<Weakened>) {
    explore(Some(2), move || {
        let memory = LoomMemory::new(weakened);
        let core = CoreStaging::attach(&memory, RING).expect("a ring");
        let lane = LaneStaging::attach(&memory, RING).expect("a ring");
        let core =
            thread::spawn(move || [1, 3].into_iter().for_each(|token| core.show(token, &counts(token))));
        if let Some(found) = lane.read(1) {
            assert_eq!(found, counts(1), "counts of another item");
        }
        core.join().expect("nothing in it panics");
    });
}

#[test]
fn counters_of_a_core_are_read_behind_their_token() {
    a_core_that_runs_on(None);
}

#[test]
#[should_panic(expected = "counts of another item")]
fn a_token_stored_without_order_is_reported() {
    a_core_that_runs_on(Some(Weakened::Stores(TOKEN)));
}

#[test]
#[should_panic(expected = "counts of another item")]
fn a_token_loaded_without_order_is_reported() {
    a_core_that_runs_on(Some(Weakened::Loads(TOKEN)));
}

#[test]
#[should_panic(expected = "counts of another item")]
fn counts_stored_without_order_are_reported() {
    a_core_that_runs_on(Some(Weakened::Stores(LAST_COUNT)));
}

#[test]
#[should_panic(expected = "counts of another item")]
fn counts_loaded_without_order_are_reported() {
    a_core_that_runs_on(Some(Weakened::Loads(LAST_COUNT)));
}
