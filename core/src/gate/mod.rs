//! The device's side of the two gates: raise a signal, stand at a barrier, wait for a release.
//!
//! ```text
//!  lane                                             host (freeze machine)
//!  queue full / empty, gate open:
//!    contended ── 1 ─────────────────────────────►  sees 1: flag ◄─ 1, then contended ◄─ 0
//!  reaches the gate, flag reads 1:
//!    reads epoch, parks                              drains, refills …
//!                                                    all queues served: contended ◄─ 0, epoch + 1, flags ◄─ 0
//!    flag reads 0, or epoch moved: looks again  ◄──
//! ```
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `rq_freeze_active`, `fq_freeze_active` | host → lanes | release → acquire | the gate is shut; 0: everything the host served before |
//! | `rq_contended`, `fq_contended` | lanes store 1, host stores 0 | release → acquire | a lane starves at this gate |
//! | release epoch (extension) | host → lanes | release → acquire | a release happened, even if the gate was shut again since |
//! | host detached (extension) | host → lanes | release → acquire | nobody serves any more: fail at once |
//! | host heartbeat (extension) | host → lanes | release → acquire | the host lives |
//!
//! Raising never parks; only a shut gate does, and it parks *every* lane that reaches it. Signals are raised by level, on
//! every look. The epoch keeps a lane that only polls the flag from being starved by peers that shut the gate again
//! between two of its looks; a peer without an extension block has no epoch, and there the deadline alone bounds the wait.

mod barrier;

pub use barrier::{Expired, WaitEnv};

use crate::layout::GateOffsets;
use crate::mem::{DevAddr, Fault, Memory, Peer, Raise};

/// The two places where a lane may have to wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Gate {
    /// Before a full buffer is published: the ready ring is full, or frozen.
    Ready,
    /// Before an empty buffer is claimed: the free queue is empty, or frozen.
    Free,
}

impl Gate {
    /// Name in reports: `rq` or `fq`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "rq",
            Self::Free => "fq",
        }
    }
}

/// Where the extension block keeps the words that gates need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtensionGateAddrs {
    /// Release epoch of the subsystem.
    pub release_epoch: DevAddr,
    /// Host detached word of the subsystem.
    pub host_detached: DevAddr,
    /// Host heartbeat.
    pub host_heartbeat: DevAddr,
}

#[derive(Clone, Debug)]
struct GateWords<W> {
    freeze: Peer<W>,
    contended: Raise<W>,
}

#[derive(Clone, Debug)]
struct ExtensionWords<W> {
    epoch: Peer<W>,
    detached: Peer<W>,
    heartbeat: Peer<W>,
}

/// A lane's standing at a shut gate: the release epoch it read when it arrived.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Parked {
    /// Epoch at arrival.
    pub epoch: u32,
}

/// What those words read that only a living host changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GateSigns {
    /// Host heartbeat.
    pub heartbeat: u32,
    /// Both freeze flags.
    pub flags: [u32; 2],
    /// Release epoch.
    pub epoch: u32,
}

/// The gates of one subsystem, as its lanes see them.
pub struct Gates<M: Memory> {
    ready: GateWords<M::Word>,
    free: GateWords<M::Word>,
    extension: Option<ExtensionWords<M::Word>>,
}

impl<M: Memory> Gates<M> {
    /// The gates of the region at `region`; `extension` is `None` when the peer has no extension block.
    ///
    /// # Errors
    /// [`Fault`] when a word lies outside device memory.
    pub fn attach(
        memory: &M,
        region: DevAddr,
        offsets: GateOffsets,
        extension: Option<ExtensionGateAddrs>,
    ) -> Result<Self, Fault> {
        let word = |offset: usize| memory.word(region.offset(offset as u64));
        Ok(Self {
            ready: GateWords {
                freeze: Peer::new(word(offsets.rq_freeze_active)?),
                contended: Raise::new(word(offsets.rq_contended)?),
            },
            free: GateWords {
                freeze: Peer::new(word(offsets.fq_freeze_active)?),
                contended: Raise::new(word(offsets.fq_contended)?),
            },
            extension: match extension {
                None => None,
                Some(at) => Some(ExtensionWords {
                    epoch: Peer::new(memory.word(at.release_epoch)?),
                    detached: Peer::new(memory.word(at.host_detached)?),
                    heartbeat: Peer::new(memory.word(at.host_heartbeat)?),
                }),
            },
        })
    }

    fn words(&self, gate: Gate) -> &GateWords<M::Word> {
        match gate {
            Gate::Ready => &self.ready,
            Gate::Free => &self.free,
        }
    }

    /// Whether the gate is shut; any non-zero flag counts.
    pub fn is_shut(&self, gate: Gate) -> bool {
        self.words(gate).freeze.observe() != 0
    }

    /// The release epoch; constant 0 with a peer that has none.
    pub fn epoch(&self) -> u32 {
        self.extension.as_ref().map_or(0, |words| words.epoch.observe())
    }

    /// Whether the host said that it serves no more.
    pub fn is_detached(&self) -> bool {
        self.extension.as_ref().is_some_and(|words| words.detached.observe() != 0)
    }

    /// Parks if the gate is shut.
    pub fn arrive(&self, gate: Gate) -> Option<Parked> {
        self.is_shut(gate).then(|| Parked { epoch: self.epoch() })
    }

    /// Whether a parked lane may go: the gate is open, or a release happened since it arrived.
    pub fn may_leave(&self, gate: Gate, parked: Parked) -> bool {
        !self.is_shut(gate) || self.epoch() != parked.epoch
    }

    /// As [`may_leave`](Gates::may_leave) for a peer whose epoch must not be trusted; only the flag counts.
    pub(crate) fn is_open(&self, gate: Gate) -> bool {
        !self.is_shut(gate)
    }

    /// Asks the host for service at `gate`.
    pub fn mark_contended(&self, gate: Gate) {
        self.words(gate).contended.raise();
    }

    /// Says that a ready ring is full.
    pub fn mark_rq_contended(&self) {
        self.mark_contended(Gate::Ready);
    }

    /// Says that a free queue is empty or an arena needs recycling.
    pub fn mark_fq_contended(&self) {
        self.mark_contended(Gate::Free);
    }

    /// Whether a signal raised at `gate` still stands.
    pub fn is_contended(&self, gate: Gate) -> bool {
        self.words(gate).contended.is_raised()
    }

    /// The host's heartbeat; constant 0 with a peer that has none.
    pub fn heartbeat(&self) -> u32 {
        self.extension.as_ref().map_or(0, |words| words.heartbeat.observe())
    }

    /// What the host's words read now, with a `heartbeat` read earlier: a host that has begun to beat since is noticed.
    pub fn signs(&self, heartbeat: u32) -> GateSigns {
        let flags = [self.ready.freeze.observe(), self.free.freeze.observe()];
        GateSigns { heartbeat, flags, epoch: self.epoch() }
    }

    /// Whether the host has touched a gate since `then`. Reads no further than to the first word that has changed.
    pub fn moved_since(&self, then: &GateSigns) -> bool {
        self.ready.freeze.observe() != then.flags[0]
            || self.free.freeze.observe() != then.flags[1]
            || self.epoch() != then.epoch
    }
}

#[cfg(test)]
mod tests;
