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

use super::{Beside, Hooks, Lane, Pool, PoolSetup, Records, Subsystem, Switch};
use crate::layout::args_dump::BufferState;
use crate::mem::{DevAddr, Fault, LongPeer, Memory, OwnCount};

/// What an arena remembers; plain data, so that a checker can store and compare it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ArenaState {
    /// Bytes ever reserved, gaps included.
    pub cursor: u64,
    /// End of the lap that may be written.
    pub granted: u64,
    /// Payloads in buffers that were published.
    pub published: u64,
    /// Payloads in the current buffer.
    pub in_current: u64,
}

/// The arena of a pool, as its lane sees it.
pub struct Arena<M: Memory> {
    base: DevAddr,
    size_bytes: u64,
    state: ArenaState,
    cursor_word: OwnCount<M::Word>,
    published_word: OwnCount<M::Word>,
    completed: LongPeer<M::Word>,
}

impl<M: Memory> Arena<M> {
    /// Bytes of the arena.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// What it remembers.
    pub fn state(&self) -> ArenaState {
        self.state
    }

    /// Puts it into `state`, for a checker that explores from many states.
    pub fn restore(&mut self, state: ArenaState) {
        self.state = state;
    }

    /// Whether `bytes` fit the lap that may be written.
    pub fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.state.granted - self.state.cursor
    }

    /// Goes on to the next lap. All that was published has to be acknowledged.
    pub fn next_lap(&mut self) {
        self.state.cursor = self.state.granted;
        self.state.granted += self.size_bytes;
        self.cursor_word.set(self.state.cursor);
    }

    /// Takes `bytes`, for which there is room: their free-running offset, and where they lie.
    pub fn reserve(&mut self, bytes: u64) -> (u64, DevAddr) {
        let offset = self.state.cursor;
        self.state.cursor += bytes;
        self.cursor_word.set(self.state.cursor);
        (offset, self.base.offset(offset.checked_rem(self.size_bytes).unwrap_or(0)))
    }

    /// The next record of the current buffer has a payload.
    pub fn note_payload(&mut self) {
        self.state.in_current += 1;
    }
}

impl<M: Memory, S: Subsystem> Lane<M, S> {
    /// Begins to publish what the pool holds, if it holds records, and to wait until the host is done with everything
    /// published.
    pub fn begin_emptying<K: Records>(&self, pool: &Pool<M, K, S>) -> Switch {
        Switch::empty_arena(self.limit_cycles(), pool.state().count > 0)
    }
}

impl<M: Memory, K: Records<Hooks<M> = Arena<M>>, S: Subsystem> Pool<M, K, S> {
    /// Goes on to the next lap of the arena if nothing of the present one is needed any more: what was published is
    /// acknowledged, and the current buffer is empty.
    pub fn try_next_lap(&mut self) -> bool {
        let is_acknowledged = !S::RULES.reuse_after_acknowledgement || self.hooks().is_acknowledged();
        if !is_acknowledged || self.state().count > 0 {
            return false;
        }
        self.hooks().next_lap();
        true
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
            state: ArenaState { granted: size_bytes, ..ArenaState::default() },
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
        self.state.published += core::mem::take(&mut self.state.in_current);
        self.published_word.set(self.state.published);
    }

    fn given_up(&mut self) {
        self.state.in_current = 0;
    }

    fn beside(&self) -> Beside {
        Beside::count(u32::try_from(self.state.in_current).unwrap_or(u32::MAX))
    }

    fn is_acknowledged(&self) -> bool {
        self.completed.try_observe().is_ok_and(|completed| completed.0 >= self.state.published)
    }
}
