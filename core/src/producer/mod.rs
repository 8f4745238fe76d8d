//! The buffer-switch engine: how a lane's records reach the host without loss.
//!
//! ```text
//!            append                    publish                       host
//!  record ─────────► current buffer ───────────► ready ring ─────► drain ─► collect
//!                          ▲    full: switch     (per lane)                    │
//!                          │ claim                                             │
//!                          └──────────── free queue ◄──────── refill ◄─────────┘
//!                                        (per pool)
//! ```
//!
//! A **pool** is one stream of records of one kind, with a current buffer and a free queue. A **lane** owns some pools
//! and one ready ring. A switch is publish, then claim, each with its gate in front:
//!
//! * *publish*: stand at the push gate while it is shut; slot free → entry, tail, then `current` = 0; else raise and look
//!   again. Nothing waits after the tail store, so a buffer is either not published, and still this lane's, or published,
//!   and never touched again.
//! * *claim*: stand at the pop gate while it is shut; buffer there → `current`, sequence, then head + 1; else raise and look
//!   again.
//!
//! In both a buffer is visible in its new place before it leaves the old one, so a host that attaches to a running device
//! finds every buffer by reading in the direction in which buffers move.
//!
//! One deadline covers a whole switch and is taken at the first fruitless look. When it passes, the records of the buffer
//! (or the one record that found none) are counted as lost to `host_gone`, and the lane latches: from then on it takes what
//! is free but never waits, until any word that only a living host changes has changed. The heartbeat counts from the beginning
//! of the wait, the other words from its end.
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | ready ring entry | lane → drain | relaxed, before the tail | buffer, pool, sequence |
//! | ready ring tail | lane → drain | release → acquire | the entry, the records, the count |
//! | ready ring head | drain → lane | release → acquire | the slot may be written again |
//! | free queue slot | refill → lane | relaxed, before the tail | an empty buffer |
//! | free queue tail | refill → lane | release → acquire | the slot, and that the host is done with the buffer |
//! | free queue head | lane → refill | release → acquire | the slot may be written again; `current` and sequence |
//! | current pointer, sequence | lane → attaching host | release → acquire | the buffer a lane fills |
//! | buffer count | lane → collector | relaxed, before the tail | committed records |
//! | total, dropped | lane → host | relaxed | attempts and losses; read exactly once the lane has flushed |
//!
//! Every switch is a small state machine that is *polled*; the blocking form on a lane, the cooperative form on a small
//! core and the model checker all drive the same one.

mod arena;
pub mod args_dump;
mod attachment;
mod control;
mod core_pool;
pub mod dep_gen;
mod free_queue;
mod lane;
mod latch;
pub mod pmu;
mod pool;
mod pool_words;
mod ready_ring;
pub mod scope_stats;
#[cfg(test)]
mod still;
pub mod swimlane;
mod switch;
#[cfg(any(test, feature = "test-utils"))]
pub mod tiny;
mod wait_log;

pub use arena::{Arena, ArenaState};
pub use attachment::{AttachError, Attachment, answer, judge, reply};
pub use control::{Control, ControlWords, RecordWindow, Span};
pub use core_pool::{Admission, CorePool, CoreRecords, CoreState, Settlement, Turn};
pub use free_queue::{FreeLook, FreeQueue};
pub use lane::{AppendError, Lane, LaneState, LaneWords};
pub use latch::{HostSigns, Latch};
pub use pool::{Append, DropCause, DropCounts, Pool, PoolState, Slot, Stash};
use pool_words::PoolWords;
pub use pool_words::{CountWords, PoolSetup};
pub use ready_ring::{Beside, ReadyEntry, ReadyRing, RingLook};
pub use switch::{Patience, Progress, Switch, SwitchEnd};
pub use wait_log::WaitLog;

use zerocopy::{Immutable, IntoBytes};

use crate::layout::{BufferLayout, PoolKind};
use crate::mem::{Fault, Memory};

/// A subsystem as the engine sees it: constants only, so that a lane's code is one straight path per subsystem.
pub trait Subsystem {
    /// Bits in which free-running counters count. All of them on the wire; fewer where a checker wants few states.
    const COUNTER_MASK: u32 = u32::MAX;
    /// Protocol rules in force. Everything but [`Rules::ALL`] is broken on purpose, for tests that must notice.
    const RULES: Rules = Rules::ALL;
}

/// A kind of pool: its records and how a buffer holds them.
pub trait Records {
    /// One record, exactly as it lies in the buffer.
    type Record: IntoBytes + Immutable;
    /// The buffer.
    const LAYOUT: BufferLayout;
    /// The kind that ready entries carry.
    const KIND: PoolKind;
    /// Whether compute cores write the records, by the pointer and the sequence that the pool shows.
    const BY_CORE: bool = false;
    /// What a pool of this kind does beyond the common; `()` when it does nothing.
    type Hooks<M: Memory>: Hooks<M>;
}

/// What a kind of pool adds to the engine.
pub trait Hooks<M: Memory>: Sized {
    /// Finds the words that only pools of this kind have.
    ///
    /// # Errors
    /// [`Fault`] when they lie outside device memory.
    fn attach(memory: &M, setup: &PoolSetup) -> Result<Self, Fault>;
    /// A buffer was claimed and is about to become the current one. Nobody but this lane reaches it yet.
    fn claimed(&mut self, buffer: &mut M::Window);
    /// The current buffer is published next: the last wait is over, and nothing has told the host yet. Called once per
    /// buffer that is published.
    fn before_publish(&mut self);
    /// The records of the current buffer were given up; it is filled afresh.
    fn given_up(&mut self);
    /// What the records of the current buffer have beside them.
    fn beside(&self) -> Beside {
        Beside::UNSAID
    }
    /// Whether the host is done with everything beside the records that was published.
    fn is_acknowledged(&self) -> bool {
        true
    }
}

impl<M: Memory> Hooks<M> for () {
    fn attach(_: &M, _: &PoolSetup) -> Result<Self, Fault> {
        Ok(())
    }

    fn claimed(&mut self, _: &mut M::Window) {}

    fn before_publish(&mut self) {}

    fn given_up(&mut self) {}
}

/// Protocol rules that a test may leave out one by one, to see that something notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// While a gate is shut every lane that reaches it parks, whatever its queue holds.
    pub common_mode: bool,
    /// The push gate lies before publication; nothing waits after the tail store.
    pub gate_before_publication: bool,
    /// A signal is raised on every fruitless look, not once per wait.
    pub raise_by_level: bool,
    /// A parked lane leaves when the release epoch moved, even if the gate is shut again.
    pub release_epoch: bool,
    /// A pool's limit is what the host can still give, not a number of slots.
    pub attainable_limit: bool,
    /// A freeze ends only after every ready ring was seen empty.
    pub drained_before_release: bool,
    /// One deadline covers both halves of a switch.
    pub one_deadline: bool,
    /// A lane that has waited out its deadline waits no more until the host stirs.
    pub latch: bool,
    /// A gate is shut before its signal is taken.
    pub shut_before_consume: bool,
    /// What a failed write would have said counts as unsaid.
    pub retry_writes: bool,
    /// A host that leaves opens the gates.
    pub open_at_stop: bool,
    /// A buffer is visible in its new place before it leaves the old one.
    pub ownership_order: bool,
    /// A lane that waits for an acknowledgement leaves when it has come, whatever flags say.
    pub leave_on_acknowledgement: bool,
    /// The place of a payload is used again only once the payload is acknowledged.
    pub reuse_after_acknowledgement: bool,
    /// A buffer that a core fills is published only when its last record was seen, or that of a later item.
    pub record_evidence: bool,
    /// So it is at the end of recording too.
    pub evidence_at_flush: bool,
    /// A full buffer that a core fills is published even if no other waits to take its place.
    pub publish_before_claim: bool,
    /// An attaching host places every buffer before it uses one.
    pub complete_scan: bool,
}

impl Rules {
    /// The protocol.
    pub const ALL: Self = Self {
        common_mode: true,
        drained_before_release: true,
        one_deadline: true,
        latch: true,
        shut_before_consume: true,
        retry_writes: true,
        open_at_stop: true,
        gate_before_publication: true,
        raise_by_level: true,
        release_epoch: true,
        attainable_limit: true,
        ownership_order: true,
        leave_on_acknowledgement: true,
        reuse_after_acknowledgement: true,
        record_evidence: true,
        evidence_at_flush: true,
        publish_before_claim: true,
        complete_scan: true,
    };
}

#[cfg(test)]
mod tests;
