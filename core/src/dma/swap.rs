//! The swap list: small copies, run when an execution starts, that put this execution's addresses where the
//! program looks for them.
//!
//! ```text
//!   swap                writes                                                         bytes
//!   scalar pointer      tensor address → pointer cell                                  8
//!   pointer-table row   tensor address → row                                           8
//!   queue base          ring base low, high, ring length → registers of a queue bank   3 × 4
//!   event               value → event register the sequencer waits on                  4
//! ```
//!
//! A descriptor copies, it can't carry a constant: the values lie in a blob of device memory, 8 bytes apart, and
//! write number k copies from blob offset 8·k. [`SwapEncoder`] fills blob and descriptors side by side in slices
//! that the caller provides. Ring ids are stamped when the pairs are placed in a queue.

use core::fmt;
use core::iter::FusedIterator;

use zerocopy::little_endian::U64;

use super::desc::{Barrier, ChunkLen, CopySpec, Pair, RxDesc, TxDesc};
use super::ring::RingSize;
use super::word::RingIds;
use crate::mem::DevAddr;
use crate::mmio::{QueueBank, QueueRegister};

/// One thing that an execution overwrites before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// A scalar pointer variable.
    Pointer {
        /// Its cell.
        cell: DevAddr,
        /// The tensor it is to point at.
        target: DevAddr,
    },
    /// A row of a pointer table.
    Row {
        /// The row's cell.
        row: DevAddr,
        /// The tensor it is to point at.
        target: DevAddr,
    },
    /// Ring of one half of a queue.
    QueueBase {
        /// The registers to write.
        bank: QueueBank,
        /// The ring's address.
        base: DevAddr,
        /// The ring's size.
        size: RingSize,
    },
    /// An event, the last of a list.
    Event {
        /// The event's register.
        register: DevAddr,
        /// What to store in it.
        value: u32,
    },
}

impl Swap {
    /// The writes it consists of, in order.
    pub const fn writes(self) -> SwapWrites {
        SwapWrites { swap: self, done: 0 }
    }

    /// How many writes, and so pairs, it consists of.
    pub const fn pairs(self) -> u32 {
        match self {
            Self::QueueBase { .. } => 3,
            Self::Pointer { .. } | Self::Row { .. } | Self::Event { .. } => 1,
        }
    }

    const fn write(self, index: u32) -> Immediate {
        match self {
            Self::Pointer { cell, target } | Self::Row { row: cell, target } => {
                Immediate { destination: cell, value: target.0, len: ChunkLen::ADDRESS }
            }
            Self::QueueBase { bank, base, size } => {
                let (low, high) = base.split();
                let (register, value) = match index {
                    0 => (QueueRegister::BaseLow, low),
                    1 => (QueueRegister::BaseHigh, high),
                    _ => (QueueRegister::Length, size.descriptors()),
                };
                Immediate { destination: bank.register(register), value: value as u64, len: ChunkLen::WORD }
            }
            Self::Event { register, value } => {
                Immediate { destination: register, value: value as u64, len: ChunkLen::WORD }
            }
        }
    }
}

/// A constant and where it is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// Where.
    pub destination: DevAddr,
    /// What; the low bytes count.
    pub value: u64,
    /// How many bytes, 4 or 8.
    pub len: ChunkLen,
}

/// The writes of a [`Swap`].
#[derive(Clone, Debug)]
pub struct SwapWrites {
    swap: Swap,
    done: u32,
}

impl Iterator for SwapWrites {
    type Item = Immediate;

    fn next(&mut self) -> Option<Immediate> {
        let index = self.done;
        if index == self.swap.pairs() {
            return None;
        }
        self.done += 1;
        Some(self.swap.write(index))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.swap.pairs() - self.done) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for SwapWrites {}
impl FusedIterator for SwapWrites {}

/// Writes swaps into a blob and two descriptor arrays.
#[derive(Debug)]
pub struct SwapEncoder<'a> {
    blob_base: DevAddr,
    blob: &'a mut [U64],
    tx: &'a mut [TxDesc],
    rx: &'a mut [RxDesc],
    used: usize,
    last: Option<CopySpec>,
}

impl<'a> SwapEncoder<'a> {
    /// Bytes of the blob that each pair takes.
    pub const BLOB_STRIDE_BYTES: u64 = 8;

    /// An empty list, with room for as many pairs as the shortest slice has elements. `blob` is going to lie at
    /// `blob_base` in device memory.
    pub const fn new(
        blob_base: DevAddr,
        blob: &'a mut [U64],
        tx: &'a mut [TxDesc],
        rx: &'a mut [RxDesc],
    ) -> Self {
        Self { blob_base, blob, tx, rx, used: 0, last: None }
    }

    /// Pairs there is room for.
    pub fn capacity(&self) -> usize {
        self.blob.len().min(self.tx.len()).min(self.rx.len())
    }

    /// Appends `swap` whole, or nothing.
    ///
    /// # Errors
    /// Not enough room.
    pub fn push(&mut self, swap: Swap) -> Result<(), SwapFull> {
        let (need, capacity) = (self.used + swap.pairs() as usize, self.capacity());
        if need > capacity {
            return Err(SwapFull { need, capacity });
        }
        for write in swap.writes() {
            let source = self.blob_base.offset(Self::BLOB_STRIDE_BYTES * self.used as u64);
            let copy = CopySpec {
                source: source.into(),
                destination: write.destination.into(),
                len: write.len,
                barrier: Barrier::None,
                completion: false,
            };
            self.blob[self.used] = U64::new(write.value);
            self.put(self.used, copy);
            self.used += 1;
            self.last = Some(copy);
        }
        Ok(())
    }

    /// Ends the list with `barrier` on its last pair. Returns the number of pairs, which is also the number of
    /// blob elements used.
    pub fn finish(mut self, barrier: Barrier) -> usize {
        if let Some(last) = self.last {
            self.put(self.used - 1, CopySpec { barrier, ..last });
        }
        self.used
    }

    fn put(&mut self, index: usize, copy: CopySpec) {
        let Pair { tx, rx } = Pair::encode(copy, RingIds::UNPLACED);
        self.tx[index] = tx;
        self.rx[index] = rx;
    }
}

/// A swap list that needs more room than was provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SwapFull {
    /// Pairs needed so far.
    pub need: usize,
    /// Pairs there is room for.
    pub capacity: usize,
}

impl fmt::Display for SwapFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "swap list needs {} pairs, room for {}", self.need, self.capacity)
    }
}

impl core::error::Error for SwapFull {}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    const BLOB: DevAddr = DevAddr(0x5_0000);

    fn encode(swaps: &[Swap], room: usize, barrier: Barrier) -> Result<(Vec<U64>, Vec<Pair>), SwapFull> {
        let mut blob = std::vec![U64::ZERO; room];
        let (mut tx, mut rx) = (std::vec![TxDesc::new_zeroed(); room], std::vec![RxDesc::new_zeroed(); room]);
        let mut encoder = SwapEncoder::new(BLOB, &mut blob, &mut tx, &mut rx);
        for &swap in swaps {
            encoder.push(swap)?;
        }
        let used = encoder.finish(barrier);
        let pairs = tx.into_iter().zip(rx).take(used).map(|(tx, rx)| Pair { tx, rx });
        Ok((blob, pairs.collect()))
    }

    /// What a device does with the pairs: destination and bytes of each copy out of the blob.
    fn run(blob: &[U64], pairs: &[Pair]) -> Vec<(u64, Vec<u8>)> {
        pairs
            .iter()
            .map(|pair| {
                let copy = pair.decode().unwrap();
                let from = (copy.source.0 - BLOB.0) as usize;
                let bytes = &blob.as_bytes()[from..from + copy.len.bytes() as usize];
                (copy.destination.0, bytes.to_vec())
            })
            .collect()
    }

    #[test]
    fn each_kind_writes_what_the_table_says() {
        let bank = QueueBank(DevAddr(0x9_1000));
        let swaps = [
            Swap::Pointer { cell: DevAddr(0x100), target: DevAddr(0x1_0000_2000) },
            Swap::Row { row: DevAddr(0x108), target: DevAddr(0x3000) },
            Swap::QueueBase { bank, base: DevAddr(0x7_0000_0100), size: RingSize::new(64).unwrap() },
            Swap::Event { register: DevAddr(0x4_0000), value: 1 },
        ];
        let (blob, pairs) = encode(&swaps, 6, Barrier::Dmb).unwrap();
        let written = run(&blob, &pairs);
        assert_eq!(
            written,
            [
                (0x100, std::vec![0, 0x20, 0, 0, 1, 0, 0, 0]),
                (0x108, std::vec![0, 0x30, 0, 0, 0, 0, 0, 0]),
                (0x9_1028, std::vec![0, 1, 0, 0]),
                (0x9_102C, std::vec![7, 0, 0, 0]),
                (0x9_1030, std::vec![64, 0, 0, 0]),
                (0x4_0000, std::vec![1, 0, 0, 0]),
            ]
        );
    }

    #[test]
    fn a_list_without_swaps_is_empty() {
        assert_eq!(encode(&[], 0, Barrier::Dmb).unwrap().1, []);
    }

    fn any_swap() -> impl Strategy<Value = Swap> {
        let address = || (0u64..1 << 40).prop_map(DevAddr);
        prop_oneof![
            (address(), address()).prop_map(|(cell, target)| Swap::Pointer { cell, target }),
            (address(), address()).prop_map(|(row, target)| Swap::Row { row, target }),
            (address(), address(), 2u32..100).prop_map(|(bank, base, n)| Swap::QueueBase {
                bank: QueueBank(bank),
                base,
                size: RingSize::new(n * 16).unwrap(),
            }),
            (address(), any::<u32>()).prop_map(|(register, value)| Swap::Event { register, value }),
        ]
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
        fn only_the_last_pair_carries_the_barrier(swaps in prop::collection::vec(any_swap(), 1..20)) {
            let pairs: u32 = swaps.iter().map(|swap| swap.pairs()).sum();
            let (_, encoded) = encode(&swaps, pairs as usize, Barrier::WriteBarrier).unwrap();
            let barriers: Vec<_> = encoded.iter().map(|pair| pair.decode().unwrap().barrier).collect();
            let (last, rest) = barriers.split_last().unwrap();
            prop_assert_eq!(*last, Barrier::WriteBarrier);
            prop_assert!(rest.iter().all(|&barrier| barrier == Barrier::None));
        }

        #[test]
        #[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
        fn a_swap_that_does_not_fit_leaves_the_list_as_it_was(
            swaps in prop::collection::vec(any_swap(), 1..20), short in 1u32..4,
        ) {
            let pairs: u32 = swaps.iter().map(|swap| swap.pairs()).sum();
            let room = pairs.saturating_sub(short) as usize;
            let full = encode(&swaps, room, Barrier::Dmb).unwrap_err();
            prop_assert_eq!(full.capacity, room);
            let fitting: Vec<_> = swaps
                .iter()
                .scan(0, |sum, swap| {
                    *sum += swap.pairs() as usize;
                    (*sum <= room).then_some(*swap)
                })
                .collect();
            let before: usize = fitting.iter().map(|swap| swap.pairs() as usize).sum();
            prop_assert_eq!(full.need, before + swaps[fitting.len()].pairs() as usize);
        }
    }
}
