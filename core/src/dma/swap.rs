//! The swap list: small copies, run when an execution starts, that put this execution's addresses where the
//! program looks for them.
//!
//! ```text
//!   swap                writes                                                         bytes
//!   scalar pointer      tensor address → pointer cell                                  8
//!   pointer-table row   tensor address → row                                           8
//!   queue base          ring base low, high, ring length → registers of a queue bank   12
//!   event               value → event register the sequencer waits on                  4
//! ```
//!
//! Each is one descriptor pair: the three registers of a queue base stand side by side. A descriptor copies, it can't carry
//! a constant: the values lie in a blob of device memory, 16 bytes apart, and pair number k copies from blob offset 16·k.
//! [`SwapEncoder`] fills blob and descriptors side by side in slices that the caller provides. Ring ids are stamped when
//! the pairs are placed in a queue.

use core::fmt;

use zerocopy::little_endian::U32;

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

/// The bytes of a swap in the blob, as words.
pub type SwapValue = [U32; 4];

impl Swap {
    /// Where it writes.
    pub const fn destination(self) -> DevAddr {
        match self {
            Self::Pointer { cell: at, .. } | Self::Row { row: at, .. } | Self::Event { register: at, .. } => {
                at
            }
            Self::QueueBase { bank, .. } => bank.register(QueueRegister::BaseLow),
        }
    }

    /// How many bytes it writes.
    pub const fn len(self) -> ChunkLen {
        match self {
            Self::Pointer { .. } | Self::Row { .. } => ChunkLen::ADDRESS,
            Self::QueueBase { .. } => QUEUE_BASE,
            Self::Event { .. } => ChunkLen::WORD,
        }
    }

    /// What it writes, as far as it is long.
    pub fn value(self) -> SwapValue {
        let (address, third) = match self {
            Self::Pointer { target, .. } | Self::Row { target, .. } => (target, 0),
            Self::QueueBase { base, size, .. } => (base, size.descriptors()),
            Self::Event { value, .. } => (DevAddr(value as u64), 0),
        };
        let (low, high) = address.split();
        [low, high, third, 0].map(U32::new)
    }
}

/// Base low, base high and length of a queue bank.
const QUEUE_BASE: ChunkLen = match ChunkLen::new(12) {
    Ok(len) => len,
    Err(_) => panic!("three registers are 1 to 65,536 bytes"),
};

const _: () = {
    let bank = QueueBank(DevAddr(0));
    let [low, high, length] = [QueueRegister::BaseLow, QueueRegister::BaseHigh, QueueRegister::Length];
    assert!(bank.register(low).0 + 4 == bank.register(high).0);
    assert!(bank.register(high).0 + 4 == bank.register(length).0);
};

/// Writes swaps into a blob and two descriptor arrays.
#[derive(Debug)]
pub struct SwapEncoder<'a> {
    blob_base: DevAddr,
    blob: &'a mut [SwapValue],
    tx: &'a mut [TxDesc],
    rx: &'a mut [RxDesc],
    used: usize,
    last: Option<CopySpec>,
}

impl<'a> SwapEncoder<'a> {
    /// Bytes of the blob that each pair takes.
    pub const BLOB_STRIDE_BYTES: u64 = size_of::<SwapValue>() as u64;

    /// An empty list, with room for as many pairs as the shortest slice has elements. `blob` is going to lie at
    /// `blob_base` in device memory.
    pub const fn new(
        blob_base: DevAddr,
        blob: &'a mut [SwapValue],
        tx: &'a mut [TxDesc],
        rx: &'a mut [RxDesc],
    ) -> Self {
        Self { blob_base, blob, tx, rx, used: 0, last: None }
    }

    /// Pairs there is room for.
    pub fn capacity(&self) -> usize {
        self.blob.len().min(self.tx.len()).min(self.rx.len())
    }

    /// Appends `swap`.
    ///
    /// # Errors
    /// No room.
    pub fn push(&mut self, swap: Swap) -> Result<(), SwapFull> {
        let capacity = self.capacity();
        if self.used == capacity {
            return Err(SwapFull { capacity });
        }
        let source = self.blob_base.offset(Self::BLOB_STRIDE_BYTES * self.used as u64);
        let copy = CopySpec {
            source: source.into(),
            destination: swap.destination().into(),
            len: swap.len(),
            barrier: Barrier::None,
            completion: false,
        };
        self.blob[self.used] = swap.value();
        self.put(self.used, copy);
        self.used += 1;
        self.last = Some(copy);
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

/// A swap list with more swaps than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SwapFull {
    /// Swaps there is room for.
    pub capacity: usize,
}

impl fmt::Display for SwapFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a swap list of more than the {} pairs there is room for", self.capacity)
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

    fn encode(
        swaps: &[Swap],
        room: usize,
        barrier: Barrier,
    ) -> Result<(Vec<SwapValue>, Vec<Pair>), SwapFull> {
        let mut blob = std::vec![SwapValue::default(); room];
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
    fn run(blob: &[SwapValue], pairs: &[Pair]) -> Vec<(u64, Vec<u8>)> {
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
        let (blob, pairs) = encode(&swaps, 4, Barrier::Dmb).unwrap();
        let written = run(&blob, &pairs);
        assert_eq!(
            written,
            [
                (0x100, std::vec![0, 0x20, 0, 0, 1, 0, 0, 0]),
                (0x108, std::vec![0, 0x30, 0, 0, 0, 0, 0, 0]),
                (0x9_1028, std::vec![0, 1, 0, 0, 7, 0, 0, 0, 64, 0, 0, 0]),
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
            let (_, encoded) = encode(&swaps, swaps.len(), Barrier::WriteBarrier).unwrap();
            prop_assert_eq!(encoded.len(), swaps.len());
            let barriers: Vec<_> = encoded.iter().map(|pair| pair.decode().unwrap().barrier).collect();
            let (last, rest) = barriers.split_last().unwrap();
            prop_assert_eq!(*last, Barrier::WriteBarrier);
            prop_assert!(rest.iter().all(|&barrier| barrier == Barrier::None));
        }
    }

    #[test]
    fn a_list_takes_no_more_than_it_has_room_for() {
        let event = Swap::Event { register: DevAddr(0x4_0000), value: 1 };
        assert_eq!(encode(&[event; 3], 2, Barrier::Dmb), Err(SwapFull { capacity: 2 }));
        assert_eq!(encode(&[event; 3], 3, Barrier::Dmb).unwrap().1.len(), 3);
    }
}
