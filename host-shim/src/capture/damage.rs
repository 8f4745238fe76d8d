//! What is wrong with pieces of a capture: where, how long, and why they could not be delivered.

use core::fmt;

use super::format::Kind;

/// A piece of the file that could not be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where it begins, bytes from the start of the file.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// What is wrong with it.
    pub cause: DamageCause,
}

/// What is wrong with a piece of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DamageCause {
    /// No segment begins here, or its head is damaged.
    NoSegment,
    /// The file ends inside a segment: its writer died, or the file was cut.
    Torn {
        /// Bytes of the segment that are not there.
        missing: u64,
    },
    /// A sound head states more than a segment can hold.
    TooLong {
        /// Bytes it states.
        stated: u32,
        /// Most bytes of its kind.
        limit: usize,
    },
    /// The payload is not what was written.
    Checksum {
        /// Number of the segment.
        sequence: u64,
        /// What it holds.
        kind: Kind,
    },
    /// Segments are missing before this one, or one stands here twice.
    Sequence {
        /// Number that should stand here.
        expected: u64,
        /// Number that stands here.
        found: u64,
    },
    /// The payload was written like this, and it makes no sense.
    Malformed {
        /// Number of the segment.
        sequence: u64,
        /// What it should hold.
        kind: Kind,
        /// What is wrong.
        reason: String,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: ", self.offset)?;
        match &self.cause {
            DamageCause::NoSegment => write!(f, "no sound segment head, {} bytes passed over", self.bytes),
            DamageCause::Torn { missing } => {
                write!(f, "file ends inside a segment: {} bytes are there, {missing} are missing", self.bytes)
            }
            DamageCause::TooLong { stated, limit } => {
                write!(f, "segment states {stated} bytes, at most {limit}")
            }
            DamageCause::Checksum { sequence, kind } => {
                write!(f, "segment {sequence} ({kind}): checksum is wrong, {} bytes passed over", self.bytes)
            }
            DamageCause::Sequence { expected, found } => {
                write!(f, "segment {found} where {expected} should stand")
            }
            DamageCause::Malformed { sequence, kind, reason } => {
                write!(f, "segment {sequence} ({kind}): {reason}")
            }
        }
    }
}
