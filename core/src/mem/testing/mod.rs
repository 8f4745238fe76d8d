//! Memory for tests: a block on the heap that behaves like a mapped device, and a double that logs what is stored and
//! refuses accesses when told to.
//!
//! Both hand out words to either side, so a test plays the side it does not test with [`Poke`].

mod block;
mod double;

pub use block::{Block, BlockMemory, block};
pub use double::{Double, Logged, Mishap};

use super::{DevAddr, Memory, Word};

/// Single words, for the side that a test plays itself.
pub trait Poke: Memory {
    /// Loads the word at `at`, acquiring what it publishes. Panics when there is none.
    fn peek(&self, at: DevAddr) -> u32 {
        self.word(at).expect("a word of this memory").load_acquire()
    }

    /// Stores the word at `at`, publishing what was stored before. Panics when there is none.
    fn poke(&self, at: DevAddr, value: u32) {
        self.word(at).expect("a word of this memory").store_release(value);
    }

    /// Loads the address at `at`. Panics when there is none.
    fn peek_address(&self, at: DevAddr) -> DevAddr {
        DevAddr::join(self.peek(at), self.peek(at.offset(4)))
    }

    /// Stores the address at `at`. Panics when there is none.
    fn poke_address(&self, at: DevAddr, address: DevAddr) {
        let (low, high) = address.split();
        self.poke(at.offset(4), high);
        self.poke(at, low);
    }
}

impl<M: Memory> Poke for M {}
