//! One buffer switch as data: how far it is, at which gate it stands, how long it has waited.
//!
//! ```text
//!            room in the ring                          a buffer in the queue
//!  Publish ───────────────────► Claim ─────────────────────────────────────► Switched
//!     │                           │
//!     │ deadline                  │ deadline
//!     ▼                           ▼
//!    Kept                      Unbacked        (after one last look, if it stood at a shut gate)
//! ```
//!
//! A stashed buffer is published by a switch of its own, of one stage. A switch that empties an arena waits for the
//! acknowledgement of what was published between the two halves, in the same deadline.

use crate::gate::{Gate, Parked};
use crate::mem::Deadline;

/// Which half of a switch is under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Stage {
    /// The current buffer is to be published.
    Publish,
    /// Published, standing at the gate behind publication: the order that [`Rules`](super::Rules) forbids, kept so that a
    /// test can show why.
    BehindPublication,
    /// The host is to acknowledge what was published beside the records.
    Acknowledge,
    /// A buffer is to be claimed.
    Claim,
    /// The stashed buffer is to be published, and that is all.
    Stash,
}

/// How the wait of a switch stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Patience {
    /// The deadline, if it has begun, has not been seen to pass.
    Waiting,
    /// It has passed: the latch is to be set.
    Ended,
    /// The latch is set, and gates are passed for one look each: behind them there may be room for what would be lost.
    LastLook,
}

/// A buffer switch under way; plain data, so that a checker can store and compare it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use = "a switch does nothing unless polled to its end"]
pub struct Switch {
    pub(super) stage: Stage,
    pub(super) parked: Option<Parked>,
    pub(super) raised: bool,
    /// Whether what was published is to be acknowledged before a buffer is claimed.
    pub(super) empties_arena: bool,
    /// When the wait at this gate began, if it has.
    pub(super) since_cycles: Option<u64>,
    pub(super) deadline: Deadline,
    pub(super) patience: Patience,
    /// Host heartbeat when the wait began.
    pub(super) heartbeat: u32,
}

impl Switch {
    /// A whole switch: publish the current buffer, if there is one, and claim the next.
    pub const fn publish_then_claim(limit_cycles: u64) -> Self {
        Self::at(Stage::Publish, limit_cycles)
    }

    /// Only the second half, for a pool without a buffer.
    pub const fn claim_only(limit_cycles: u64) -> Self {
        Self::at(Stage::Claim, limit_cycles)
    }

    /// Only the publication of the stashed buffer.
    pub const fn publish_stash(limit_cycles: u64) -> Self {
        Self::at(Stage::Stash, limit_cycles)
    }

    /// A switch that waits until the host is done with everything published: of the current buffer too, if that `has_records`.
    pub(super) const fn empty_arena(limit_cycles: u64, has_records: bool) -> Self {
        let stage = if has_records { Stage::Publish } else { Stage::Acknowledge };
        Self { empties_arena: true, ..Self::at(stage, limit_cycles) }
    }

    const fn at(stage: Stage, limit_cycles: u64) -> Self {
        Self {
            stage,
            parked: None,
            raised: false,
            empties_arena: false,
            since_cycles: None,
            deadline: Deadline::after(limit_cycles),
            patience: Patience::Waiting,
            heartbeat: 0,
        }
    }

    /// The gate at which this switch would wait now.
    pub const fn gate(&self) -> Gate {
        match self.stage {
            Stage::Publish | Stage::BehindPublication | Stage::Stash => Gate::Ready,
            Stage::Acknowledge | Stage::Claim => Gate::Free,
        }
    }

    /// The release epoch at which it parked, if it stands at a shut gate.
    pub const fn parked(&self) -> Option<Parked> {
        self.parked
    }

    /// Puts another epoch in place of the one it parked at, for a checker that stores epochs by rank.
    pub fn set_parked(&mut self, parked: Option<Parked>) {
        self.parked = parked;
    }

    /// The same switch as one that has waited since cycle 0, so that a checker need not tell apart when waits began.
    pub fn waiting_since_zero(mut self) -> Self {
        self.since_cycles = Some(0);
        self.deadline = self.deadline.started_at(0);
        self
    }

    /// How its wait stands.
    pub const fn patience(&self) -> Patience {
        self.patience
    }

    /// Host heartbeat when the wait began.
    pub const fn heartbeat(&self) -> u32 {
        self.heartbeat
    }

    /// The same switch as one whose wait began at another heartbeat, for a checker that knows when it decides nothing.
    pub fn waiting_since_heartbeat(mut self, heartbeat: u32) -> Self {
        self.heartbeat = heartbeat;
        self
    }

    /// What follows once there is no buffer to publish any more.
    pub(super) fn go_behind_publication(&mut self) {
        self.next_stage(if self.empties_arena { Stage::Acknowledge } else { Stage::Claim });
    }

    pub(super) fn next_stage(&mut self, stage: Stage) {
        self.stage = stage;
        self.parked = None;
        self.raised = false;
        self.since_cycles = None;
    }
}

/// What one poll of a switch did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Progress {
    /// Nothing could be done at this gate; relax and poll again.
    Waiting(Gate),
    /// A step was made; poll again at once.
    Moved,
    /// The switch is over.
    Done(SwitchEnd),
}

/// How a switch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum SwitchEnd {
    /// The pool has a fresh buffer, or no stash any more.
    Switched,
    /// The buffer could not be published: its records are counted as lost and it is filled again, or stays in the stash.
    Kept {
        /// Records lost.
        dropped: u32,
    },
    /// No buffer could be claimed: the pool has none, the next append tries again.
    Unbacked,
    /// What was published beside the records was not acknowledged: it must not be written over.
    Unacknowledged,
}
