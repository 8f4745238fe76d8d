//! A lane's payload arena: bytes beside the records, reused only once the host has said that they are safe.
//!
//! ```text
//!   cursor, free-running        ┌─ granted: one lap at a time
//!   0 ──────────► size ──────────────────► 2 · size            a payload lies within one lap
//!   │ p0 │ p1 │ p2  │gap│ p3 │ p4 │
//!                       ▲ behind it no byte of the lap before is needed: completed ≥ published
//! ```
//!
//! A payload that does not fit the lap makes the lane publish what it has and wait until every payload that was published is
//! acknowledged; then the next lap is its own. The acknowledgement alone ends the wait, no flag does. It waits inside the same
//! deadline as the publication before it.
//!
//! The count of published payloads moves between the last wait of a publication and its tail store, so a buffer that is
//! never published owes nothing. The ready entry of a buffer says how many payloads it has, so that the host can acknowledge
//! those of a buffer that it cannot read.

use core::mem::offset_of;

use super::{Beside, Hooks, PoolSetup};
use crate::layout::args_dump::BufferState;
use crate::mem::{DevAddr, Fault, LongPeer, Memory, OwnCount};

/// The arena of a pool, as its lane sees it.
pub struct Arena<M: Memory> {
    base: DevAddr,
    size_bytes: u64,
    /// Bytes ever reserved, gaps included.
    cursor: u64,
    /// End of the lap that may be written.
    granted: u64,
    /// Payloads in buffers that were published.
    published: u64,
    /// Payloads in the current buffer.
    in_current: u64,
    cursor_word: OwnCount<M::Word>,
    published_word: OwnCount<M::Word>,
    completed: LongPeer<M::Word>,
}

impl<M: Memory> Arena<M> {
    /// Bytes of the arena.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether `bytes` fit the lap that may be written.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.granted - self.cursor
    }

    /// Goes on to the next lap. All that was published has to be acknowledged.
    pub(super) fn next_lap(&mut self) {
        self.cursor = self.granted;
        self.granted += self.size_bytes;
        self.cursor_word.set(self.cursor);
    }

    /// Takes `bytes`, for which there is room: their free-running offset, and where they lie.
    pub(super) fn reserve(&mut self, bytes: u64) -> (u64, DevAddr) {
        let offset = self.cursor;
        self.cursor += bytes;
        self.cursor_word.set(self.cursor);
        (offset, self.base.offset(offset.checked_rem(self.size_bytes).unwrap_or(0)))
    }

    /// The next record of the current buffer has a payload.
    pub(super) fn note_payload(&mut self) {
        self.in_current += 1;
    }
}

impl<M: Memory> Hooks<M> for Arena<M> {
    fn attach(memory: &M, setup: &PoolSetup) -> Result<Self, Fault> {
        let at = |offset: usize| setup.region.offset((setup.offsets.base + offset) as u64);
        let given = |offset: usize| LongPeer::at(memory, at(offset))?.try_observe();
        let size_bytes = given(offset_of!(BufferState, arena_size))?.0;
        let arena = Self {
            base: given(offset_of!(BufferState, arena_base))?,
            size_bytes,
            cursor: 0,
            granted: size_bytes,
            published: 0,
            in_current: 0,
            cursor_word: OwnCount::at(memory, at(offset_of!(BufferState, arena_write_offset)))?,
            published_word: OwnCount::at(memory, at(offset_of!(BufferState, published_payload_count)))?,
            completed: LongPeer::at(memory, at(offset_of!(BufferState, completed_payload_count)))?,
        };
        arena.cursor_word.set(0);
        arena.published_word.set(0);
        Ok(arena)
    }

    fn claimed(&mut self, _: &mut M::Window) {}

    fn before_publish(&mut self) {
        self.published += core::mem::take(&mut self.in_current);
        self.published_word.set(self.published);
    }

    fn given_up(&mut self) {
        self.in_current = 0;
    }

    fn beside(&self) -> Beside {
        Beside::count(u32::try_from(self.in_current).unwrap_or(u32::MAX))
    }

    fn is_acknowledged(&self) -> bool {
        self.completed.try_observe().is_ok_and(|completed| completed.0 >= self.published)
    }
}
