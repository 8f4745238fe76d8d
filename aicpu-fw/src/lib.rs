//! Device firmware as a library, generic over one [`Platform`].
//!
//! ```text
//!   execution ring ─► sequencer ─► board ─► engine service ─► mailbox ─► agent ─► DMA queue ─► copy engine
//!   (host)            one per TPB           in its lane's loop           one per core
//!                          │                     │
//!                          └── notifications, records ──► host
//! ```
//!
//! | module | idea |
//! |---|---|
//! | `platform` | what the firmware needs of the machine, and how services call each other |
//! | `node` | the services of one processor, polled in turn |
//! | `sequencer` | takes executions from the execution ring and sees them through |
//! | `board` | words between the sequencer and the lanes |
//! | `lane`, `engine` | a lane's loop over its engines, and one engine's program |
//! | `agent` | the core behind a mailbox: runs what it is handed |
//! | `counting` | what a core's counters say of that |
//! | `queue`, `copy` | a DMA queue, and one descriptor pair |
//! | `record` | what a lane records of all this |
//! | `workload` | records without work, to load the recording |
//!
//! Services are polled and do a bounded amount of work per poll, so the same code runs on a thread per service, on spare
//! cores, and cooperatively on one core. Only recording blocks, for a bounded time. Nothing allocates. Whatever stands in a
//! ring or a program, the outcome is bytes where it said or an error record.
#![no_std]

#[cfg(any(test, feature = "test-host"))]
extern crate std;

mod agent;
mod board;
mod copy;
mod counting;
mod engine;
mod lane;
mod node;
mod platform;
mod queue;
mod record;
mod sequencer;
#[cfg(any(test, feature = "test-host"))]
pub mod test_host;
#[cfg(test)]
mod tests;
mod workload;

pub use agent::AgentDelays;
pub use node::{Node, StartError, Startup};
pub use platform::{Activity, Place, Platform};
