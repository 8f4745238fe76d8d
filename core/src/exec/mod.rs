//! What host and firmware say to each other about one execution.
//!
//! | module | idea |
//! |---|---|
//! | `boot` | what the host hands to the firmware once, and profiling switched on and off |
//! | `channel` | notification queues, both sides |
//! | `image` | the form in which firmware is handed to a board |
//! | `instruction` | programs of an engine |
//! | `link` | bells and clock between a host and a device of its own |
//! | `loader` | how a host hands an image to a board, and gets the board back |
//! | `notification` | records that say what an engine did |
//! | `place` | where something runs and where a device keeps its parts |
//! | `request` | what the sequencer is asked to run |
//! | `status` | codes of the C interface, and their merging |
//! | `tasks` | what the items of a program are, for recorders that tell of more than time |
//! | `ticket` | the order in which executions are waited for |
//! | `vitals` | what a device is doing, for anyone who looks |
//! | `workload` | records that are made up, to load the recording |

mod boot;
mod channel;
pub mod image;
mod instruction;
pub mod link;
pub mod loader;
mod notification;
mod place;
mod request;
mod status;
pub mod tasks;
mod ticket;
pub mod vitals;
mod workload;

pub use boot::{BOOT_BYTES, BootError, BootShape, HostBoot, LaneBoot, Recorders, SideTables, status_block};
pub use channel::{Channel, NotificationReceiver, NotificationSender, NotificationWatch, ReceiveError, Sent};
pub use instruction::{
    BadInstruction, INSTRUCTION_BYTES, Instruction, InstructionBytes, MAX_WAITS, RunBlock, SemaphoreWait,
};
pub use notification::{ErrorClass, NOTIFICATION_BYTES, Notification, SubType};
pub use place::{CoreIndex, DeviceMap, DeviceRange, LaneIndex};
pub use request::{ExecRequest, INCREMENT_OFFSET_BYTES, REQUEST_BYTES, RequestFlags};
pub use status::NrtStatus;
pub use ticket::{NotOutstanding, QueueFull, Ticket, TicketQueue};
pub use workload::{Workload, WorkloadKinds};
