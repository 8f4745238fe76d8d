//! The host-gone latch: what a lane remembers of a host that it has given up.
//!
//! ```text
//!            deadline passes at a gate                  any sign reads otherwise
//!  trusting ───────────────────────────► latched ──────────────────────────────────► trusting, with a fresh deadline
//!                                        loses at once what would have to wait
//! ```

use crate::gate::GateSigns;
use crate::layout::{Instance, PoolKind};

/// What the host's words read when a lane gave it up; any change means that it is back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostSigns {
    /// The subsystem's words.
    pub gates: GateSigns,
    /// Consumer index of the lane's ready ring.
    pub ring_head: u32,
    /// The pool whose free queue the lane waited for. Counters of other pools' queues say nothing about this one's.
    pub pool: (PoolKind, Instance),
    /// Push counter of that queue.
    pub queue_tail: u32,
}

/// The latch: set when a wait expired, with what the host's words read then.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Latch(Option<HostSigns>);

impl Latch {
    /// A latch with these signs.
    pub const fn with(signs: Option<HostSigns>) -> Self {
        Self(signs)
    }

    /// Whether the lane has given the host up.
    pub const fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// What the host's words read when it was set.
    pub const fn signs(&self) -> Option<HostSigns> {
        self.0
    }
}
