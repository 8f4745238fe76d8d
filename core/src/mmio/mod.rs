//! Registers of a device: where they lie, and views of them.
//!
//! | module | idea |
//! |---|---|
//! | `map` | which address is which register, and back |
//! | `control` | counters between host and sequencer |
//! | `line` | a pin as a doorbell or attention line |
//! | `mailbox` | items between a lane and a compute-core agent |
//! | `counters` | what a core counts of them |
//! | `staging` | the same, on cores that leave it in memory |

mod control;
mod counters;
mod line;
mod mailbox;
mod map;
mod staging;

pub use control::{ControlWord, HostControl, OpaqueCycles, SequencerControl, TakenOver};
pub use counters::{AgentCounters, COUNTERS, CountOrder, Counts, LaneCounters};
pub use line::{AttentionLine, DoorbellLine};
pub use mailbox::{AgentMailbox, CoreRecording, ItemReport, ItemStatus, LaneMailbox, Offer};
pub use map::{
    Engine, EventId, Half, NotificationQueue, OutsideWindow, QueueBank, QueueId, QueueRegister, Register,
    RegisterMap, SemaphoreId, TpbId, TpbRegisters,
};
pub use staging::{CoreStaging, LaneStaging, RING_BYTES};
