//! The host's half of lossless profiling.
//!
//! Three roles serve one subsystem. Each is a state machine that is polled and never blocks; a thread may run one of them
//! or all, of one subsystem or of five, and the model checker runs them in every order.
//!
//! ```text
//!   ready rings ──► drain ──► collect pipe ──► collector ──► return pipe ──► keeper ──► free queues
//!                     │                           │ capture                    │
//!                     └ taken[buffer] + 1         └ after the data is safe     ├ given[buffer] + 1
//!                                                                              └ freeze flags, epoch, signals
//! ```
//!
//! | role | module | owns |
//! |---|---|---|
//! | drain | [`drain`] | ring heads, `taken` counters |
//! | collector | the session's, behind [`Pipe`]s | nothing shared |
//! | keeper | [`keeper`] | free-queue tails, `given` counters, freeze flags, release epoch |
//!
//! A buffer is the device's exactly while `given = taken + 1`, so the ledger needs no lock and no word with two writers:
//! see [`ledger`]. A host that attaches to a running device first finds out who owns what: see [`attach`].

pub mod account;
mod again;
mod arena;
pub mod attach;
mod collector;
pub mod config;
mod control;
pub mod drain;
mod freeze;
mod header;
pub mod keeper;
pub mod ledger;
mod pipe;
pub mod plan;
pub mod release;
mod server;
mod service;
pub mod session;
pub mod sink;
mod tables;
mod views;
mod waits;
mod worker;

pub use account::{Account, Accounts, FreezeStats, Lost, PoolAccount};
pub use arena::Acknowledgement;
pub use config::{BufferCounts, DfxConfig, RECORDED, SubsystemConfig};
pub use pipe::WaitPipe;
pub use plan::PlanError;
pub use session::{Session, SessionError};
pub use sink::{BufferMeta, Change, Discard, Freeze, LanePhase, PayloadMeta, Sink, Wait};
pub use waits::Waits;

pub use views::{FreeQueueFeed, GateControl, HeldWords, Occupancy, RingDrain, RingState, RingWatch};

use sluice_core::producer::Beside;

use ledger::BufferId;

/// An order-preserving hand-over between two roles. Never full: it has room for every buffer there is.
pub trait Pipe<T> {
    /// Puts `item` in.
    fn push(&self, item: T);
    /// Takes the oldest item, if there is one.
    fn pop(&self) -> Option<T>;
}

/// A full buffer on its way to the collector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Full {
    /// The buffer, now the host's.
    pub buffer: BufferId,
    /// Its sequence number in the pool.
    pub sequence: u32,
    /// What its records have beside them, as its lane says.
    pub beside: Beside,
}

#[cfg(test)]
mod tests;
