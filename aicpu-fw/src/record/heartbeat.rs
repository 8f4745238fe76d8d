//! The device's sign of life in the extension block: counts rounds of lane 0, awake or at a gate.

use core::mem::offset_of;

use sluice_core::layout::extension::{ANSWER, Answer};
use sluice_core::mem::{DevAddr, Memory, Own};

/// A sign of life, or none.
pub(super) struct Heartbeat<M: Memory> {
    word: Option<Own<M::Word>>,
    count: u32,
}

impl<M: Memory> Heartbeat<M> {
    /// No sign: another lane, or nobody to see it.
    pub(super) fn silent() -> Self {
        Self { word: None, count: 0 }
    }

    /// The sign in the extension block at `at`; silent when there is no block.
    pub(super) fn at(memory: &M, at: DevAddr) -> Self {
        if at.is_null() {
            return Self::silent();
        }
        let word = memory.word(at.offset((ANSWER + offset_of!(Answer, heartbeat_device)) as u64));
        let word = word.map(Own::new).ok();
        let count = word.as_ref().map_or(0, Own::get);
        Self { word, count }
    }

    /// One more round.
    #[inline]
    pub(super) fn beat(&mut self) {
        if let Some(word) = &self.word {
            self.count = self.count.wrapping_add(1);
            word.publish(self.count);
        }
    }
}
