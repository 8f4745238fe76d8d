//! What host and firmware say to each other about one execution.
//!
//! | module | idea |
//! |---|---|
//! | `instruction` | programs of an engine |
//! | `notification` | records that say what an engine did |
//! | `place` | where something runs: core, lane |
//! | `request` | what the sequencer is asked to run |

mod instruction;
mod notification;
mod place;
mod request;

pub use instruction::{
    BadInstruction, INSTRUCTION_BYTES, Instruction, InstructionBytes, MAX_WAITS, RunBlock, SemaphoreWait,
};
pub use notification::{ErrorClass, NOTIFICATION_BYTES, Notification, SubType};
pub use place::{CoreIndex, LaneIndex};
pub use request::{ExecRequest, INCREMENT_OFFSET_BYTES, REQUEST_BYTES, RequestFlags};
