//! One copy and the pair of descriptors it is on the wire.
//!
//! ```text
//!        0         4          8                    16
//!   TX   len_ctrl  meta_ctrl  source address             FIRST | LAST always, DMB as asked
//!   RX   len_ctrl  0          destination address        INT_EN and SOW as asked
//! ```
//!
//! Little-endian, 16 bytes, both halves with the same length (wire contract). A length field of 0 means 65,536
//! bytes; to ask for 0 bytes is refused here, and only [`ChunkLen::like_driver`] accepts it the way the driver's
//! routine does.

use core::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::template::AddrWord;
use super::word::{LenCtrl, MetaCtrl, RingId, RingIds};
use crate::mmio::Half;

/// Bytes that one descriptor moves, 1..=65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkLen(u32);

impl ChunkLen {
    /// The most that one descriptor moves, 65,536 bytes.
    pub const MAX: Self = Self(0x1_0000);
    /// A register, an event, a queue's tail increment.
    pub const WORD: Self = Self(4);
    /// A device address.
    pub const ADDRESS: Self = Self(8);

    /// A length of `bytes`.
    ///
    /// # Errors
    /// 0 and more than 65,536 are refused.
    pub const fn new(bytes: u64) -> Result<Self, DescError> {
        match bytes {
            0 => Err(DescError::Empty),
            1..=0x1_0000 => Ok(Self(bytes as u32)),
            _ => Err(DescError::TooLong { bytes }),
        }
    }

    /// A length of `bytes` as the driver's own routine takes it: 0 becomes 65,536.
    ///
    /// For comparing with that routine only; a caller that means 0 bytes is wrong by 64 KiB here.
    ///
    /// # Errors
    /// More than 65,536 is refused.
    pub const fn like_driver(bytes: u64) -> Result<Self, DescError> {
        if bytes == 0 { Ok(Self::MAX) } else { Self::new(bytes) }
    }

    /// The length in bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }

    const fn from_field(field: u16) -> Self {
        if field == 0 { Self::MAX } else { Self(field as u32) }
    }

    const fn field(self) -> u16 {
        self.0 as u16
    }
}

/// What has to be finished before, or after, one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Barrier {
    /// Nothing.
    None,
    /// Data-memory barrier: all earlier descriptors finish first. Preferred on trn1 and inf2.
    Dmb,
    /// The writes land before those of later descriptors. Used by the driver's own host copies.
    WriteBarrier,
    /// Strong-ordered write, on trn2 and later.
    Sow,
}

/// Which barrier numbers a peer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierModes {
    /// 0..=2: drivers from before the strong-ordered write.
    UpToWriteBarrier,
    /// 0..=3.
    UpToSow,
}

impl Barrier {
    /// The barrier with this number: none 0, DMB 1, write barrier 2, SOW 3.
    ///
    /// # Errors
    /// A number that is not among `modes`.
    pub const fn from_mode(mode: i64, modes: BarrierModes) -> Result<Self, DescError> {
        match (mode, modes) {
            (0, _) => Ok(Self::None),
            (1, _) => Ok(Self::Dmb),
            (2, _) => Ok(Self::WriteBarrier),
            (3, BarrierModes::UpToSow) => Ok(Self::Sow),
            _ => Err(DescError::BadBarrier { mode }),
        }
    }
}

/// A copy that can't be put into descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum DescError {
    /// A length of 0, which on the wire would mean 65,536 bytes.
    Empty,
    /// More bytes than one descriptor moves.
    TooLong {
        /// Bytes asked for.
        bytes: u64,
    },
    /// No such barrier.
    BadBarrier {
        /// The number given.
        mode: i64,
    },
}

impl DescError {
    /// The driver's number for this error: −1 too long, −22 otherwise.
    pub const fn errno(self) -> i32 {
        match self {
            Self::TooLong { .. } => -1,
            Self::Empty | Self::BadBarrier { .. } => -22,
        }
    }
}

impl fmt::Display for DescError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a descriptor can't move 0 bytes: a length field of 0 means 65536"),
            Self::TooLong { bytes } => write!(f, "{bytes} bytes exceed the 65536 of one descriptor"),
            Self::BadBarrier { mode } => write!(f, "barrier mode {mode} is unknown to this peer"),
        }
    }
}

impl core::error::Error for DescError {}

/// One copy of at most 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySpec {
    /// Where the bytes come from.
    pub source: AddrWord,
    /// Where they go.
    pub destination: AddrWord,
    /// How many.
    pub len: ChunkLen,
    /// Order against other descriptors.
    pub barrier: Barrier,
    /// Ask for a completion (`INT_EN` on RX).
    pub completion: bool,
}

/// What both halves have in common.
pub trait Descriptor: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy {
    /// The ring this half lies in.
    const HALF: Half;

    /// First control word.
    fn len_ctrl(&self) -> LenCtrl;
    /// Replaces the first control word.
    fn set_len_ctrl(&mut self, word: LenCtrl);
    /// The address word, symbolic in a template.
    fn address(&self) -> AddrWord;
    /// Replaces the address word; length and flags stay.
    fn set_address(&mut self, address: AddrWord);

    /// The bytes as they lie in ring memory, lowest address first.
    fn wire_bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    /// Bytes moved.
    fn chunk_len(&self) -> ChunkLen {
        ChunkLen::from_field(self.len_ctrl().len_field())
    }

    /// The lap this descriptor belongs to.
    fn ring_id(&self) -> RingId {
        self.len_ctrl().ring_id()
    }

    /// Stamps the lap in which the descriptor is placed.
    fn stamp(&mut self, id: RingId) {
        self.set_len_ctrl(self.len_ctrl().with_ring_id(id));
    }
}

/// Source half of a copy, as it lies in a TX ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TxDesc {
    len_ctrl: U32,
    meta_ctrl: U32,
    source: U64,
}

/// Destination half of a copy, as it lies in an RX ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RxDesc {
    len_ctrl: U32,
    second_buffer_low: U32,
    destination: U64,
}

const _: () = {
    assert!(size_of::<TxDesc>() == 16 && size_of::<RxDesc>() == 16);
    assert!(core::mem::offset_of!(TxDesc, meta_ctrl) == 4 && core::mem::offset_of!(TxDesc, source) == 8);
    assert!(core::mem::offset_of!(RxDesc, second_buffer_low) == 4);
    assert!(core::mem::offset_of!(RxDesc, destination) == 8);
};

impl TxDesc {
    /// A TX descriptor with these flags (their length and ring id bits are replaced).
    pub const fn new(source: AddrWord, len: ChunkLen, id: RingId, flags: LenCtrl, meta: MetaCtrl) -> Self {
        Self {
            len_ctrl: U32::new(flags.with_len_field(len.field()).with_ring_id(id).bits()),
            meta_ctrl: U32::new(meta.bits()),
            source: U64::new(source.0),
        }
    }

    /// Second control word.
    pub const fn meta_ctrl(&self) -> MetaCtrl {
        MetaCtrl::from_bits_retain(self.meta_ctrl.get())
    }
}

impl RxDesc {
    /// An RX descriptor with these flags (their length and ring id bits are replaced).
    pub const fn new(destination: AddrWord, len: ChunkLen, id: RingId, flags: LenCtrl) -> Self {
        Self {
            len_ctrl: U32::new(flags.with_len_field(len.field()).with_ring_id(id).bits()),
            second_buffer_low: U32::ZERO,
            destination: U64::new(destination.0),
        }
    }
}

impl Descriptor for TxDesc {
    const HALF: Half = Half::Tx;

    fn len_ctrl(&self) -> LenCtrl {
        LenCtrl::from_bits_retain(self.len_ctrl.get())
    }

    fn set_len_ctrl(&mut self, word: LenCtrl) {
        self.len_ctrl = U32::new(word.bits());
    }

    fn address(&self) -> AddrWord {
        AddrWord(self.source.get())
    }

    fn set_address(&mut self, address: AddrWord) {
        self.source = U64::new(address.0);
    }
}

impl Descriptor for RxDesc {
    const HALF: Half = Half::Rx;

    fn len_ctrl(&self) -> LenCtrl {
        LenCtrl::from_bits_retain(self.len_ctrl.get())
    }

    fn set_len_ctrl(&mut self, word: LenCtrl) {
        self.len_ctrl = U32::new(word.bits());
    }

    fn address(&self) -> AddrWord {
        AddrWord(self.destination.get())
    }

    fn set_address(&mut self, address: AddrWord) {
        self.destination = U64::new(address.0);
    }
}

/// The two descriptors of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Source half.
    pub tx: TxDesc,
    /// Destination half.
    pub rx: RxDesc,
}

impl Pair {
    /// The pair of one copy.
    pub const fn encode(copy: CopySpec, ids: RingIds) -> Self {
        let mut tx_flags = LenCtrl::FIRST.union(LenCtrl::LAST);
        let mut rx_flags = if copy.completion { LenCtrl::INT_EN } else { LenCtrl::empty() };
        let mut meta = MetaCtrl::PLAIN_COPY;
        match copy.barrier {
            Barrier::None => {}
            Barrier::Dmb => tx_flags = tx_flags.union(LenCtrl::DMB),
            Barrier::WriteBarrier => meta = meta.union(MetaCtrl::WRITE_BARRIER),
            Barrier::Sow => rx_flags = rx_flags.union(LenCtrl::SOW),
        }
        Self {
            tx: TxDesc::new(copy.source, copy.len, ids.tx, tx_flags, meta),
            rx: RxDesc::new(copy.destination, copy.len, ids.rx, rx_flags),
        }
    }

    /// A pair that copies the 4 bytes at `address` onto themselves: what fills a ring up to its padded count.
    pub const fn padding(address: AddrWord) -> Self {
        let copy = CopySpec {
            source: address,
            destination: address,
            len: ChunkLen::WORD,
            barrier: Barrier::None,
            completion: false,
        };
        Self::encode(copy, RingIds::UNPLACED)
    }

    /// The copy that this pair asks for.
    ///
    /// Of several barriers in one pair the one that holds back most is reported: DMB, then write barrier, then
    /// SOW.
    ///
    /// # Errors
    /// Anything but one whole plain copy with equal lengths.
    #[inline]
    pub fn decode(&self) -> Result<CopySpec, DecodeError> {
        let (tx_ctrl, rx_ctrl, meta) = (self.tx.len_ctrl(), self.rx.len_ctrl(), self.tx.meta_ctrl());
        for (half, ctrl) in [(Half::Tx, tx_ctrl), (Half::Rx, rx_ctrl)] {
            if ctrl.intersects(LenCtrl::META | LenCtrl::CONCAT) {
                return Err(DecodeError::NotData { half, len_ctrl: ctrl.bits() });
            }
        }
        if !tx_ctrl.contains(LenCtrl::FIRST | LenCtrl::LAST) {
            return Err(DecodeError::NotWhole { len_ctrl: tx_ctrl.bits() });
        }
        if meta.operation() != 0 || !meta.contains(MetaCtrl::COPY_SOURCE) {
            return Err(DecodeError::NotPlainCopy { meta_ctrl: meta.bits() });
        }
        let (tx_len, rx_len) = (self.tx.chunk_len(), self.rx.chunk_len());
        if tx_len != rx_len {
            return Err(DecodeError::LengthsDiffer { tx_bytes: tx_len.bytes(), rx_bytes: rx_len.bytes() });
        }
        let barrier = if tx_ctrl.contains(LenCtrl::DMB) {
            Barrier::Dmb
        } else if meta.contains(MetaCtrl::WRITE_BARRIER) {
            Barrier::WriteBarrier
        } else if rx_ctrl.contains(LenCtrl::SOW) {
            Barrier::Sow
        } else {
            Barrier::None
        };
        Ok(CopySpec {
            source: self.tx.address(),
            destination: self.rx.address(),
            len: tx_len,
            barrier,
            completion: rx_ctrl.contains(LenCtrl::INT_EN),
        })
    }
}

/// A pair that is not one whole plain copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum DecodeError {
    /// A metadata or concatenated descriptor.
    NotData {
        /// The half it was found in.
        half: Half,
        /// Its first control word.
        len_ctrl: u32,
    },
    /// A TX descriptor that is not first and last of its packet at once.
    NotWhole {
        /// Its first control word.
        len_ctrl: u32,
    },
    /// An operation other than copying.
    NotPlainCopy {
        /// The second control word of TX.
        meta_ctrl: u32,
    },
    /// The halves disagree.
    LengthsDiffer {
        /// Bytes by TX.
        tx_bytes: u32,
        /// Bytes by RX.
        rx_bytes: u32,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotData { half, len_ctrl } => {
                write!(f, "{half} control word {len_ctrl:#010x} is metadata or concatenated")
            }
            Self::NotWhole { len_ctrl } => {
                write!(f, "tx control word {len_ctrl:#010x} lacks FIRST or LAST")
            }
            Self::NotPlainCopy { meta_ctrl } => {
                write!(f, "tx meta word {meta_ctrl:#010x} is not a plain copy")
            }
            Self::LengthsDiffer { tx_bytes, rx_bytes } => {
                write!(f, "tx moves {tx_bytes} bytes, rx {rx_bytes}")
            }
        }
    }
}

impl core::error::Error for DecodeError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDS_1_1: RingIds = RingIds { tx: RingId::FIRST, rx: RingId::FIRST };

    fn copy(len: u64, barrier: Barrier) -> CopySpec {
        CopySpec {
            source: AddrWord(0x1000),
            destination: AddrWord(0x2000),
            len: ChunkLen::new(len).unwrap(),
            barrier,
            completion: false,
        }
    }

    #[test]
    fn worked_pair_of_the_contract() {
        let pair =
            Pair::encode(CopySpec { completion: true, ..copy(65_536, Barrier::WriteBarrier) }, IDS_1_1);
        assert_eq!(pair.tx.as_bytes(), 0x0000_000d_0300_0805_0010_0000_0000_0000u128.to_be_bytes());
        assert_eq!(pair.rx.as_bytes(), 0x0000_0011_0000_0000_0020_0000_0000_0000u128.to_be_bytes());
    }

    #[test]
    fn each_barrier_sets_its_own_bit() {
        let plain = Pair::encode(copy(4, Barrier::None), IDS_1_1);
        let bits = |barrier| {
            let pair = Pair::encode(copy(4, barrier), IDS_1_1);
            (
                pair.tx.len_ctrl().bits() ^ plain.tx.len_ctrl().bits(),
                pair.tx.meta_ctrl().bits() ^ plain.tx.meta_ctrl().bits(),
                pair.rx.len_ctrl().bits() ^ plain.rx.len_ctrl().bits(),
            )
        };
        assert_eq!(bits(Barrier::Dmb), (1 << 30, 0, 0));
        assert_eq!(bits(Barrier::WriteBarrier), (0, 1 << 26, 0));
        assert_eq!(bits(Barrier::Sow), (0, 0, 1 << 29));
    }

    #[test]
    fn lengths_outside_the_range_are_refused() {
        assert_eq!(ChunkLen::new(0), Err(DescError::Empty));
        assert_eq!(ChunkLen::like_driver(0), Ok(ChunkLen::MAX));
        let too_long = ChunkLen::new(65_537).unwrap_err();
        assert_eq!((too_long, too_long.errno()), (DescError::TooLong { bytes: 65_537 }, -1));
        assert_eq!(DescError::Empty.errno(), -22);
    }

    #[test]
    fn barrier_numbers_depend_on_the_peer() {
        assert_eq!(Barrier::from_mode(3, BarrierModes::UpToSow), Ok(Barrier::Sow));
        for mode in [3, -1, 7] {
            let error = Barrier::from_mode(mode, BarrierModes::UpToWriteBarrier).unwrap_err();
            assert_eq!((error, error.errno()), (DescError::BadBarrier { mode }, -22));
        }
    }

    #[test]
    fn a_hostile_pair_is_named() {
        let good = Pair::encode(copy(4, Barrier::None), IDS_1_1);
        let with_tx = |word: LenCtrl| {
            let mut pair = good;
            pair.tx.set_len_ctrl(word);
            pair.decode()
        };
        let ctrl = good.tx.len_ctrl();
        assert!(matches!(with_tx(ctrl | LenCtrl::META), Err(DecodeError::NotData { half: Half::Tx, .. })));
        assert!(matches!(with_tx(ctrl - LenCtrl::LAST), Err(DecodeError::NotWhole { .. })));
        assert_eq!(
            with_tx(ctrl.with_len_field(0)),
            Err(DecodeError::LengthsDiffer { tx_bytes: 65_536, rx_bytes: 4 })
        );
        let mut concat = good;
        concat.rx.set_len_ctrl(good.rx.len_ctrl() | LenCtrl::CONCAT);
        assert!(matches!(concat.decode(), Err(DecodeError::NotData { half: Half::Rx, .. })));
        let meta = MetaCtrl::from_bits_retain(MetaCtrl::PLAIN_COPY.bits() | 1 << 20);
        let tx = TxDesc::new(AddrWord(0), ChunkLen::WORD, RingId::FIRST, ctrl, meta);
        assert!(matches!(Pair { tx, ..good }.decode(), Err(DecodeError::NotPlainCopy { .. })));
    }

    fn any_barrier() -> impl Strategy<Value = Barrier> {
        prop_oneof![Just(Barrier::None), Just(Barrier::Dmb), Just(Barrier::WriteBarrier), Just(Barrier::Sow)]
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
        fn decode_undoes_encode(
            source: u64, destination: u64, bytes in 1u64..=65_536, barrier in any_barrier(), completion: bool,
            tx in 0u8..4, rx in 0u8..4,
        ) {
            let ids = RingIds { tx: RingId::new(tx).unwrap(), rx: RingId::new(rx).unwrap() };
            let spec = CopySpec {
                source: AddrWord(source),
                destination: AddrWord(destination),
                len: ChunkLen::new(bytes).unwrap(),
                barrier,
                completion,
            };
            let pair = Pair::encode(spec, ids);
            prop_assert_eq!(pair.decode(), Ok(spec));
            prop_assert_eq!((pair.tx.ring_id(), pair.rx.ring_id()), (ids.tx, ids.rx));
        }

        #[test]
        #[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
        fn any_bytes_decode_or_are_refused_and_stamping_keeps_the_rest(bytes: [[u8; 16]; 2], id in 0u8..4) {
            let mut pair = Pair {
                tx: TxDesc::read_from_bytes(&bytes[0]).unwrap(),
                rx: RxDesc::read_from_bytes(&bytes[1]).unwrap(),
            };
            let before = pair.decode();
            pair.tx.stamp(RingId::new(id).unwrap());
            pair.rx.stamp(RingId::new(id).unwrap());
            prop_assert_eq!(before.is_ok(), pair.decode().is_ok());
            prop_assert_eq!(&pair.tx.as_bytes()[4..], &bytes[0][4..]);
            prop_assert_eq!(pair.rx.as_bytes()[3] & 0xFC, bytes[1][3] & 0xFC);
        }
    }
}
