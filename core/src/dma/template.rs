//! Addresses of a template: symbolic until the tensors of an execution are known.
//!
//! ```text
//!   63 62  61        60:55  54:36                      35:0
//!   0      1         0      variable, at most 524,287  byte offset in it, below 64 GiB
//!   0      0         └─────────── device address ─────────────┘
//! ```
//!
//! Resolving replaces the whole word by the variable's address plus the offset; length and flags of the
//! descriptor stay (wire contract).

use core::fmt;

use crate::fmap::VarId;
use crate::mem::DevAddr;

/// The address word of a descriptor, whichever kind it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddrWord(pub u64);

impl From<DevAddr> for AddrWord {
    fn from(address: DevAddr) -> Self {
        Self(address.0)
    }
}

impl From<TemplateAddr> for AddrWord {
    fn from(address: TemplateAddr) -> Self {
        Self(address.0)
    }
}

impl fmt::Display for AddrWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// What an address word of a template stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// A final device address.
    Device(DevAddr),
    /// A place in a variable that is bound later.
    Symbolic(TemplateAddr),
}

impl AddrWord {
    /// Reads a word of a template.
    ///
    /// # Errors
    /// Bits set that carry no meaning.
    pub const fn locate(self) -> Result<Location, TemplateError> {
        if self.0 < TemplateAddr::SYMBOLIC {
            Ok(Location::Device(DevAddr(self.0)))
        } else if self.0 & !TemplateAddr::MEANINGFUL != 0 {
            Err(TemplateError::UnknownBits { word: self.0 })
        } else {
            Ok(Location::Symbolic(TemplateAddr(self.0)))
        }
    }

    /// Checks that `bytes` bytes from here stay in the variable's reach, or in what device addresses can say.
    pub(super) const fn check_range(self, bytes: u64) -> Result<(), TemplateError> {
        match self.locate() {
            Ok(Location::Symbolic(at)) if bytes > TemplateAddr::SPAN_BYTES - at.offset_bytes() => {
                Err(TemplateError::OffsetTooLarge { var: at.var(), offset_bytes: at.offset_bytes() + bytes })
            }
            Ok(Location::Device(base)) if bytes > TemplateAddr::SYMBOLIC - base.0 => {
                Err(TemplateError::AddressOverflow { base, bytes })
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A byte inside a variable whose address is not yet known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TemplateAddr(u64);

impl TemplateAddr {
    /// The largest variable number that fits, 2^19 − 1.
    pub const MAX_VAR: VarId = VarId((1 << 19) - 1);
    /// Bytes of a variable that can be addressed, 64 GiB.
    pub const SPAN_BYTES: u64 = 1 << Self::VAR_SHIFT;

    const VAR_SHIFT: u32 = 36;
    const SYMBOLIC: u64 = 1 << 61;
    const MEANINGFUL: u64 = Self::SYMBOLIC | ((1 << 55) - 1);

    /// The byte at `offset_bytes` of `var`.
    ///
    /// # Errors
    /// A variable number above 19 bits, or an offset of 64 GiB or more.
    pub const fn new(var: VarId, offset_bytes: u64) -> Result<Self, TemplateError> {
        if var.0 > Self::MAX_VAR.0 {
            Err(TemplateError::VarTooLarge { var })
        } else if offset_bytes >= Self::SPAN_BYTES {
            Err(TemplateError::OffsetTooLarge { var, offset_bytes })
        } else {
            Ok(Self(Self::SYMBOLIC | (var.0 as u64) << Self::VAR_SHIFT | offset_bytes))
        }
    }

    /// The variable.
    pub const fn var(self) -> VarId {
        VarId((self.0 >> Self::VAR_SHIFT) as u32 & Self::MAX_VAR.0)
    }

    /// The byte offset in it.
    pub const fn offset_bytes(self) -> u64 {
        self.0 & (Self::SPAN_BYTES - 1)
    }

    /// What makes device addresses of its variable's symbolic words, once the variable has a place: of all words whose
    /// accesses end no later than one of `bytes` bytes here.
    ///
    /// # Errors
    /// Bytes that lie past the end of the variable, or of the address space.
    pub const fn shift(self, place: Placement, bytes: u64) -> Result<Shift, TemplateError> {
        let (var, end_bytes) = (self.var(), self.offset_bytes().saturating_add(bytes));
        if end_bytes > place.size_bytes {
            return Err(TemplateError::OutOfBounds { var, end_bytes, size_bytes: place.size_bytes });
        }
        match place.base.checked_add(end_bytes) {
            Some(end) if end.0 <= Self::SYMBOLIC => {
                let first_word = self.0 - self.offset_bytes();
                Ok(Shift(place.base.0.wrapping_sub(first_word)))
            }
            _ => Err(TemplateError::AddressOverflow { base: place.base, bytes: end_bytes }),
        }
    }
}

/// The distance, modulo 2^64, from the symbolic words of one variable to the device addresses they stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift(u64);

impl Shift {
    /// Of words that are device addresses already.
    pub const NONE: Self = Self(0);

    /// The device address that `word` stands for, a symbolic word of the variable that this is the shift of.
    pub const fn of(self, word: AddrWord) -> AddrWord {
        AddrWord(word.0.wrapping_add(self.0))
    }
}

/// Where a variable lies in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Address of its first byte.
    pub base: DevAddr,
    /// Its length in bytes.
    pub size_bytes: u64,
}

/// A symbolic address that can't be made or resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum TemplateError {
    /// A variable number that does not fit 19 bits.
    VarTooLarge {
        /// The variable.
        var: VarId,
    },
    /// An offset that does not fit 36 bits.
    OffsetTooLarge {
        /// The variable.
        var: VarId,
        /// The offset in bytes.
        offset_bytes: u64,
    },
    /// An address word with bits set outside its fields.
    UnknownBits {
        /// The whole word.
        word: u64,
    },
    /// Bytes past the end of the variable.
    OutOfBounds {
        /// The variable.
        var: VarId,
        /// Where the access ends, in bytes from the variable's start.
        end_bytes: u64,
        /// Length of the variable.
        size_bytes: u64,
    },
    /// A range of device addresses that runs into the symbolic bit.
    AddressOverflow {
        /// Start of the range.
        base: DevAddr,
        /// Bytes from there.
        bytes: u64,
    },
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VarTooLarge { var } => {
                write!(f, "variable {var} exceeds the largest of a template, {}", TemplateAddr::MAX_VAR)
            }
            Self::OffsetTooLarge { var, offset_bytes } => {
                write!(f, "offset {offset_bytes} in variable {var} exceeds 36 bits")
            }
            Self::UnknownBits { word } => write!(f, "address word {word:#018x} has unknown bits set"),
            Self::OutOfBounds { var, end_bytes, size_bytes } => {
                write!(f, "access ends at byte {end_bytes} of variable {var}, which has {size_bytes}")
            }
            Self::AddressOverflow { base, bytes } => {
                write!(f, "{bytes} bytes from {base} leave the 61 bits of device addresses")
            }
        }
    }
}

impl core::error::Error for TemplateError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_lie_where_the_contract_puts_them() {
        let address = TemplateAddr::new(VarId(0x7_FFFF), 0xF_FFFF_FFFF).unwrap();
        assert_eq!(AddrWord::from(address).0, 0x207F_FFFF_FFFF_FFFF);
        assert_eq!(AddrWord::from(TemplateAddr::new(VarId(1), 2).unwrap()).0, 1 << 61 | 1 << 36 | 2);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let var = VarId(524_288);
        assert_eq!(TemplateAddr::new(var, 0), Err(TemplateError::VarTooLarge { var }));
        let offset_bytes = 1 << 36;
        assert_eq!(
            TemplateAddr::new(VarId(3), offset_bytes),
            Err(TemplateError::OffsetTooLarge { var: VarId(3), offset_bytes })
        );
        for bit in [55, 60, 62, 63] {
            let word = 1 << 61 | 1 << bit;
            assert_eq!(AddrWord(word).locate(), Err(TemplateError::UnknownBits { word }));
        }
        assert_eq!(AddrWord(1 << 62).locate(), Err(TemplateError::UnknownBits { word: 1 << 62 }));
    }

    #[test]
    fn the_furthest_access_has_to_stay_inside_its_variable() {
        let place = Placement { base: DevAddr(0x4000), size_bytes: 100 };
        let at = |offset| TemplateAddr::new(VarId(9), offset).unwrap();
        assert!(at(96).shift(place, 4).is_ok());
        assert_eq!(
            at(97).shift(place, 4),
            Err(TemplateError::OutOfBounds { var: VarId(9), end_bytes: 101, size_bytes: 100 })
        );
        let high = Placement { base: DevAddr((1 << 61) - 3), size_bytes: 100 };
        assert!(matches!(at(0).shift(high, 4), Err(TemplateError::AddressOverflow { .. })));
    }

    proptest! {
        #[test]
        fn a_symbolic_word_reads_back(var in 0u32..1 << 19, offset in 0u64..1 << 36) {
            let address = TemplateAddr::new(VarId(var), offset).unwrap();
            prop_assert_eq!(AddrWord::from(address).locate(), Ok(Location::Symbolic(address)));
            prop_assert_eq!((address.var(), address.offset_bytes()), (VarId(var), offset));
        }

        #[test]
        fn a_shift_makes_addresses_of_all_words_of_its_variable(
            offset in 0u64..1 << 20, further in 0u64..1 << 20, var in 0u32..1 << 19, base in 0u64..1 << 60,
        ) {
            let word = |offset_bytes| TemplateAddr::new(VarId(var), offset_bytes).unwrap();
            let place = Placement { base: DevAddr(base), size_bytes: 1 << 21 };
            let shift = word(offset + further).shift(place, 64).unwrap();
            prop_assert_eq!(shift.of(word(offset).into()), AddrWord(base + offset));
            prop_assert_eq!(Shift::NONE.of(AddrWord(base)), AddrWord(base));
        }
    }
}
