//! Notification records: how a device says that an engine started, ended or failed.
//!
//! ```text
//!   0    1    2         3          4          6         8
//!   0    0    hint<<4   tag & 31   custom id  sub-type  time in cycles
//! ```
//!
//! 16 bytes, little-endian (KBL facts, wait). In a status queue the tag is the engine and the custom id the low half of
//! the execution's ordinal. In the error queue the sub-type is an [`ErrorClass`], the custom id the DMA queue, 15 for what
//! belongs to none, and the hint is 1 when the sequencer has stopped.

use core::fmt;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::mmio::{Engine, QueueId};

/// Bytes of a record.
pub const NOTIFICATION_BYTES: u32 = 16;

/// What a status record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubType(pub u16);

impl SubType {
    /// The engine's program begins.
    pub const START: Self = Self(2);
    /// The engine's program has ended.
    pub const END: Self = Self(3);
}

/// Why a program or a queue stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ErrorClass(pub u16);

impl ErrorClass {
    /// A copy touched memory that the device does not have.
    pub const OUT_OF_BOUNDS: Self = Self(1);
    /// A descriptor cannot be carried out.
    pub const DMA_ABORT: Self = Self(2);
    /// A descriptor belongs to another lap of its ring.
    pub const PHASE_MISMATCH: Self = Self(3);
    /// An instruction cannot be carried out.
    pub const BAD_INSTRUCTION: Self = Self(4);
    /// The host has given the execution up.
    pub const GIVEN_UP: Self = Self(5);
    /// A result is NaN or infinite.
    pub const NUMERIC: Self = Self(6);
    /// A collective failed.
    pub const COLLECTIVE: Self = Self(7);
    /// Device memory has an uncorrectable error.
    pub const MEMORY: Self = Self(8);
    /// A core has an uncorrectable error.
    pub const CORE: Self = Self(9);
    /// Device memory has an uncorrectable error that can be repaired.
    pub const REPAIRABLE_MEMORY: Self = Self(10);
    /// The network proxy failed.
    pub const NETWORK_PROXY: Self = Self(11);

    /// What it means, in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OUT_OF_BOUNDS => "out of bounds",
            Self::DMA_ABORT => "DMA abort",
            Self::PHASE_MISMATCH => "phase mismatch",
            Self::BAD_INSTRUCTION => "bad instruction",
            Self::GIVEN_UP => "given up by the host",
            Self::NUMERIC => "NaN or infinity",
            Self::COLLECTIVE => "failed collective",
            Self::MEMORY => "uncorrectable memory error",
            Self::CORE => "uncorrectable core error",
            Self::REPAIRABLE_MEMORY => "uncorrectable but repairable memory error",
            Self::NETWORK_PROXY => "failed network proxy",
            _ => "unknown error",
        }
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Notification {
    zero: [u8; 2],
    hint: u8,
    tag: u8,
    custom_id: U16,
    sub_type: U16,
    time_cycles: U64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Notification>() == NOTIFICATION_BYTES as usize);
    assert!(offset_of!(Notification, hint) == 2 && offset_of!(Notification, tag) == 3);
    assert!(offset_of!(Notification, custom_id) == 4 && offset_of!(Notification, sub_type) == 6);
    assert!(offset_of!(Notification, time_cycles) == 8);
};

impl Notification {
    const TAG_MASK: u8 = 0x1F;
    /// Hint of an error after which the sequencer runs nothing until it is set up anew.
    const STOPPED: u8 = 1;

    const fn new(engine: Engine, custom_id: u16, sub_type: u16, time_cycles: u64) -> Self {
        Self {
            zero: [0; 2],
            hint: 0,
            tag: engine as u8,
            custom_id: U16::new(custom_id),
            sub_type: U16::new(sub_type),
            time_cycles: U64::new(time_cycles),
        }
    }

    /// A record of `engine`'s status queue for execution `ordinal`.
    pub const fn status(engine: Engine, ordinal: u32, sub_type: SubType, time_cycles: u64) -> Self {
        Self::new(engine, ordinal as u16, sub_type.0, time_cycles)
    }

    /// A record of the error queue: `engine` failed on DMA queue `queue`.
    pub const fn error(engine: Engine, queue: QueueId, class: ErrorClass, time_cycles: u64) -> Self {
        Self::new(engine, queue.get() as u16, class.0, time_cycles)
    }

    /// A record of the error queue: the sequencer has stopped at a pair of `queue`.
    pub const fn stopped(queue: QueueId, class: ErrorClass, time_cycles: u64) -> Self {
        Self { hint: Self::STOPPED << 4, ..Self::error(Engine::Sp, queue, class, time_cycles) }
    }

    /// Whether this error is one after which the sequencer runs nothing.
    pub const fn is_stop(&self) -> bool {
        self.hint() == Self::STOPPED
    }

    /// The hint, 0..=15.
    pub const fn hint(&self) -> u8 {
        self.hint >> 4
    }

    /// The tag, 0..=31: the number of an engine.
    pub const fn tag(&self) -> u8 {
        self.tag & Self::TAG_MASK
    }

    /// The custom id.
    pub const fn custom_id(&self) -> u16 {
        self.custom_id.get()
    }

    /// The sub-type of a status record.
    pub const fn sub_type(&self) -> SubType {
        SubType(self.sub_type.get())
    }

    /// The class of an error record.
    pub const fn error_class(&self) -> ErrorClass {
        ErrorClass(self.sub_type.get())
    }

    /// When, in cycles of the device.
    pub const fn time_cycles(&self) -> u64 {
        self.time_cycles.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_where_the_contract_says() {
        let end = Notification::status(Engine::Sp, 0x0003_0201, SubType::END, 0x1122_3344_5566_7788);
        let expected = [0, 0, 0, 4, 1, 2, 3, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];
        assert_eq!(end.as_bytes(), expected);
        let mut bytes = expected;
        (bytes[2], bytes[3]) = (0x1F, 0xE4);
        let read = Notification::read_from_bytes(&bytes).unwrap();
        assert_eq!((read.hint(), read.tag()), (1, 4));
        assert_eq!((read.custom_id(), read.sub_type()), (0x0201, SubType::END));
        assert_eq!(read.time_cycles(), end.time_cycles());
    }

    #[test]
    fn errors_name_their_queue() {
        let error = Notification::error(Engine::Act, QueueId::EXEC, ErrorClass::PHASE_MISMATCH, 0);
        assert_eq!((error.tag(), error.custom_id()), (1, 15));
        assert_eq!(error.error_class().name(), "phase mismatch");
        assert_eq!(ErrorClass(77).name(), "unknown error");
        assert!(!error.is_stop());
        let stopped = Notification::stopped(QueueId::EXEC, ErrorClass::PHASE_MISMATCH, 0);
        assert_eq!((stopped.is_stop(), stopped.hint(), stopped.custom_id()), (true, 1, 15));
    }
}
