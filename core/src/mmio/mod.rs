//! Registers of a device: where they lie, and views of them.

mod map;

pub use map::{
    Engine, EventId, Half, NotificationQueue, OutsideWindow, QueueBank, QueueId, QueueRegister, Register,
    RegisterMap, SemaphoreId, TpbId, TpbRegisters,
};
