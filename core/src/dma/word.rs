//! The two control words of a descriptor.
//!
//! ```text
//! len_ctrl   31      30   29   28      27    26     25:24    23    22:16  15:0
//!            CONCAT  DMB  SOW  INT_EN  LAST  FIRST  ring id  META  0      length in bytes, 0 = 65,536
//!
//! meta_ctrl  28    26             25:23   22:20  19..14          13:6         5:3       1      0
//! (TX only)  mask  WRITE_BARRIER  sub-op  op     CRC, copy bits  endian swap  CRC slot  first  last
//! ```
//!
//! Both keep the bits they do not name, so a word read from a ring is written back unchanged.

use bitflags::bitflags;

/// A ring's lap number, two bits: 1, 2, 3, 0, 1 … (wire contract: a ring starts at 1, not at 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RingId(u8);

impl RingId {
    /// The id of a ring that was just set up.
    pub const FIRST: Self = Self(1);
    /// What descriptors carry that are not yet placed in a ring.
    pub const UNPLACED: Self = Self(0);

    /// The id with this value; `None` above 3, where it would run into the FIRST flag.
    pub const fn new(value: u8) -> Option<Self> {
        if value < 4 { Some(Self(value)) } else { None }
    }

    /// The value, 0..=3.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The id of the lap after this one.
    pub const fn next(self) -> Self {
        Self((self.0 + 1) % 4)
    }

    /// The id of the lap before this one.
    pub const fn previous(self) -> Self {
        Self((self.0 + 3) % 4)
    }
}

/// The ring ids that the two halves of one pair carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingIds {
    /// Id in the TX descriptor.
    pub tx: RingId,
    /// Id in the RX descriptor.
    pub rx: RingId,
}

impl RingIds {
    /// Both halves not yet placed in a ring.
    pub const UNPLACED: Self = Self { tx: RingId::UNPLACED, rx: RingId::UNPLACED };
}

bitflags! {
    /// First word of a descriptor: length, ring id and flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct LenCtrl: u32 {
        /// The descriptor is metadata, not data.
        const META = 1 << 23;
        /// First descriptor of a packet.
        const FIRST = 1 << 26;
        /// Last descriptor of a packet.
        const LAST = 1 << 27;
        /// Completion request.
        const INT_EN = 1 << 28;
        /// Strong-ordered write (RX).
        const SOW = 1 << 29;
        /// Data-memory barrier: all earlier descriptors finish first (TX).
        const DMB = 1 << 30;
        /// Concatenate with the next descriptor.
        const CONCAT = 1 << 31;
        const _ = !0;
    }
}

impl LenCtrl {
    const LEN_MASK: u32 = 0xFFFF;
    const RING_ID_SHIFT: u32 = 24;
    const RING_ID_MASK: u32 = 3 << Self::RING_ID_SHIFT;

    /// The length field as it stands: 0 means 65,536 bytes.
    pub const fn len_field(self) -> u16 {
        (self.bits() & Self::LEN_MASK) as u16
    }

    /// The same word with another length field.
    pub const fn with_len_field(self, len: u16) -> Self {
        Self::from_bits_retain(self.bits() & !Self::LEN_MASK | len as u32)
    }

    /// The ring id.
    pub const fn ring_id(self) -> RingId {
        RingId(((self.bits() & Self::RING_ID_MASK) >> Self::RING_ID_SHIFT) as u8)
    }

    /// The same word with another ring id.
    pub const fn with_ring_id(self, id: RingId) -> Self {
        Self::from_bits_retain(self.bits() & !Self::RING_ID_MASK | (id.0 as u32) << Self::RING_ID_SHIFT)
    }
}

bitflags! {
    /// Second word of a TX descriptor: what the engine does with the data on its way.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MetaCtrl: u32 {
        /// Last block of a data stream.
        const LAST_BLOCK = 1 << 0;
        /// First block of a data stream.
        const FIRST_BLOCK = 1 << 1;
        /// Compare the CRC.
        const VALIDATE_CRC = 1 << 14;
        /// Start the CRC from the stored initial value.
        const USE_STORED_INITIAL = 1 << 15;
        /// Send the CRC.
        const SEND_CRC = 1 << 16;
        /// Store the CRC.
        const STORE_CRC = 1 << 17;
        /// Store the CRC of the source.
        const STORE_SOURCE_CRC = 1 << 18;
        /// Copy the source data.
        const COPY_SOURCE = 1 << 19;
        /// Writes of this descriptor land before any of a later one.
        const WRITE_BARRIER = 1 << 26;
        /// Suppress the notification (trn3).
        const NOTIFICATION_MASK = 1 << 28;
        const _ = !0;
    }
}

impl MetaCtrl {
    const OPERATION_SHIFT: u32 = 20;

    /// The word of a plain copy, 0x0108_0003 (wire contract).
    pub const PLAIN_COPY: Self = Self::from_bits_retain(
        Self::LAST_BLOCK.bits() | Self::FIRST_BLOCK.bits() | Self::COPY_SOURCE.bits() | 2 << 23,
    );

    /// The operation field, 0..=7; 0 is a plain copy.
    pub const fn operation(self) -> u8 {
        (self.bits() >> Self::OPERATION_SHIFT & 7) as u8
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ring_ids_run_1_2_3_0_and_back() {
        let mut id = RingId::FIRST;
        let mut seen = std::vec::Vec::new();
        for _ in 0..5 {
            seen.push(id.get());
            assert_eq!(id.next().previous(), id);
            id = id.next();
        }
        assert_eq!(seen, [1, 2, 3, 0, 1]);
        assert_eq!(RingId::new(4), None);
    }

    #[test]
    fn plain_copy_is_the_word_of_the_contract() {
        assert_eq!(MetaCtrl::PLAIN_COPY.bits(), 0x0108_0003);
        assert_eq!(MetaCtrl::PLAIN_COPY.operation(), 0);
        assert_eq!(MetaCtrl::from_bits_retain(5 << 20).operation(), 5);
    }

    proptest! {
        #[test]
        fn fields_change_nothing_beside_themselves(word: u32, len: u16, id in 0u8..4) {
            let id = RingId::new(id).unwrap();
            let changed = LenCtrl::from_bits_retain(word).with_len_field(len).with_ring_id(id);
            prop_assert_eq!(changed.len_field(), len);
            prop_assert_eq!(changed.ring_id(), id);
            prop_assert_eq!(changed.bits() & 0xFCFF_0000, word & 0xFCFF_0000);
        }
    }
}
