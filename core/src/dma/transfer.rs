//! A transfer of any size, cut into copies of at most 64 KiB.
//!
//! ```text
//!   bytes   65,536 │ 65,536 │ … │ rest        one pair each, in order
//!   barrier none   │ none   │   │ as asked    likewise the completion request
//! ```

use core::fmt;
use core::iter::FusedIterator;

use super::desc::{Barrier, ChunkLen, CopySpec};
use super::template::{AddrWord, TemplateError};

/// Most descriptors in one half of a template.
pub const MAX_VRING_DESCRIPTORS: u32 = 16_777_200;

const CHUNK_BYTES: u64 = ChunkLen::MAX.bytes() as u64;

/// A copy of any length that was checked as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    source: AddrWord,
    destination: AddrWord,
    bytes: u64,
    barrier: Barrier,
    completion: bool,
}

impl Transfer {
    /// A transfer of `bytes` from `source` to `destination`; barrier and completion request apply to its last
    /// copy only.
    ///
    /// # Errors
    /// No bytes, more than a template's limit of descriptors, or a range that leaves its address space.
    pub fn new(
        source: AddrWord,
        destination: AddrWord,
        bytes: u64,
        barrier: Barrier,
        completion: bool,
    ) -> Result<Self, TransferError> {
        if bytes == 0 {
            return Err(TransferError::Empty);
        }
        let descriptors = bytes.div_ceil(CHUNK_BYTES);
        if descriptors > u64::from(MAX_VRING_DESCRIPTORS) {
            return Err(TransferError::TooManyDescriptors { descriptors });
        }
        for start in [source, destination] {
            start.check_range(bytes)?;
        }
        Ok(Self { source, destination, bytes, barrier, completion })
    }

    /// Pairs that the transfer takes.
    pub const fn descriptors(&self) -> u32 {
        self.bytes.div_ceil(CHUNK_BYTES) as u32
    }

    /// The copies, in order.
    pub const fn chunks(&self) -> Chunks {
        Chunks { transfer: *self, done_bytes: 0 }
    }
}

/// The copies of a [`Transfer`].
#[derive(Clone, Debug)]
pub struct Chunks {
    transfer: Transfer,
    done_bytes: u64,
}

impl Iterator for Chunks {
    type Item = CopySpec;

    fn next(&mut self) -> Option<CopySpec> {
        let Transfer { source, destination, bytes, barrier, completion } = self.transfer;
        let left_bytes = bytes - self.done_bytes;
        let len = ChunkLen::new(left_bytes.min(CHUNK_BYTES)).ok()?;
        let last = left_bytes <= CHUNK_BYTES;
        // `Transfer::new` checked the whole range: the sums stay inside the address, or the offset field.
        let copy = CopySpec {
            source: AddrWord(source.0 + self.done_bytes),
            destination: AddrWord(destination.0 + self.done_bytes),
            len,
            barrier: if last { barrier } else { Barrier::None },
            completion: completion && last,
        };
        self.done_bytes += u64::from(len.bytes());
        Some(copy)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.transfer.bytes - self.done_bytes).div_ceil(CHUNK_BYTES) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Chunks {}
impl FusedIterator for Chunks {}

/// A transfer that can't be cut into copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum TransferError {
    /// No bytes to move.
    Empty,
    /// More descriptors than a template holds.
    TooManyDescriptors {
        /// Descriptors needed.
        descriptors: u64,
    },
    /// A range that leaves its variable's reach or the address space.
    Address(TemplateError),
}

impl From<TemplateError> for TransferError {
    fn from(error: TemplateError) -> Self {
        Self::Address(error)
    }
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a transfer of 0 bytes"),
            Self::TooManyDescriptors { descriptors } => {
                write!(
                    f,
                    "a transfer of {descriptors} descriptors exceeds the limit of {MAX_VRING_DESCRIPTORS}"
                )
            }
            Self::Address(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for TransferError {}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::super::template::TemplateAddr;
    use super::*;
    use crate::fmap::VarId;
    use crate::mem::DevAddr;

    fn transfer(source: AddrWord, bytes: u64) -> Result<Transfer, TransferError> {
        Transfer::new(source, AddrWord(0x8000), bytes, Barrier::Sow, true)
    }

    #[test]
    fn edges_of_the_length_are_kept() {
        assert_eq!(transfer(AddrWord(0), 0), Err(TransferError::Empty));
        let lengths =
            |bytes| transfer(AddrWord(0), bytes).unwrap().chunks().map(|c| c.len.bytes()).collect::<Vec<_>>();
        assert_eq!(lengths(1), [1]);
        assert_eq!(lengths(65_536), [65_536]);
        assert_eq!(lengths(65_537), [65_536, 1]);
        let most = u64::from(MAX_VRING_DESCRIPTORS) << 16;
        assert_eq!(transfer(AddrWord(0), most).unwrap().descriptors(), MAX_VRING_DESCRIPTORS);
        assert_eq!(
            transfer(AddrWord(0), most + 1),
            Err(TransferError::TooManyDescriptors { descriptors: u64::from(MAX_VRING_DESCRIPTORS) + 1 })
        );
    }

    #[test]
    fn ranges_that_leave_their_space_are_refused() {
        let end = TemplateAddr::new(VarId(2), (1 << 36) - 8).unwrap();
        assert!(transfer(end.into(), 8).is_ok());
        let offset_bytes = (1 << 36) + 1;
        assert_eq!(
            transfer(end.into(), 9),
            Err(TransferError::Address(TemplateError::OffsetTooLarge { var: VarId(2), offset_bytes }))
        );
        let base = DevAddr((1 << 61) - 8);
        assert!(transfer(base.into(), 8).is_ok());
        assert_eq!(
            transfer(base.into(), 9),
            Err(TransferError::Address(TemplateError::AddressOverflow { base, bytes: 9 }))
        );
    }

    proptest! {
        #[test]
        fn chunks_cover_the_range_once_in_order(bytes in 1u64..1 << 22, start in 0u64..1 << 40) {
            let transfer = transfer(AddrWord(start), bytes).unwrap();
            let chunks: Vec<_> = transfer.chunks().collect();
            prop_assert_eq!(chunks.len(), transfer.chunks().len());
            prop_assert_eq!(chunks.len(), transfer.descriptors() as usize);
            let mut at = 0;
            for (i, chunk) in chunks.iter().enumerate() {
                let last = i + 1 == chunks.len();
                prop_assert_eq!((chunk.source.0, chunk.destination.0), (start + at, 0x8000 + at));
                prop_assert_eq!(chunk.barrier, if last { Barrier::Sow } else { Barrier::None });
                prop_assert_eq!(chunk.completion, last);
                at += u64::from(chunk.len.bytes());
            }
            prop_assert_eq!(at, bytes);
        }
    }
}
