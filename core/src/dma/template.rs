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

use super::desc::{ChunkLen, Descriptor};
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

    /// The device address of `len` bytes here, once the variable has a place.
    ///
    /// # Errors
    /// Bytes that lie past the end of the variable, or of the address space.
    pub const fn resolve(self, place: Placement, len: ChunkLen) -> Result<DevAddr, TemplateError> {
        let (var, end_bytes) = (self.var(), self.offset_bytes() + len.bytes() as u64);
        if end_bytes > place.size_bytes {
            return Err(TemplateError::OutOfBounds { var, end_bytes, size_bytes: place.size_bytes });
        }
        match place.base.checked_add(end_bytes) {
            Some(end) if end.0 <= Self::SYMBOLIC => Ok(place.base.offset(self.offset_bytes())),
            _ => Err(TemplateError::AddressOverflow { base: place.base, bytes: end_bytes }),
        }
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

/// Replaces the address of `desc`, if it is symbolic, by the place of its variable.
///
/// # Errors
/// What `place` returns for a variable that has no place, and every [`TemplateError`].
pub fn resolve_desc<D: Descriptor, E: From<TemplateError>>(
    desc: &mut D,
    place: impl FnOnce(VarId) -> Result<Placement, E>,
) -> Result<(), E> {
    if let Location::Symbolic(address) = desc.address().locate()? {
        let resolved = address.resolve(place(address.var())?, desc.chunk_len())?;
        desc.set_address(resolved.into());
    }
    Ok(())
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

    use super::super::desc::{Barrier, CopySpec, Pair};
    use super::super::word::RingIds;
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
    fn a_resolved_access_stays_inside_its_variable() {
        let place = Placement { base: DevAddr(0x4000), size_bytes: 100 };
        let at = |offset| TemplateAddr::new(VarId(9), offset).unwrap();
        assert_eq!(at(96).resolve(place, ChunkLen::WORD), Ok(DevAddr(0x4060)));
        assert_eq!(
            at(97).resolve(place, ChunkLen::WORD),
            Err(TemplateError::OutOfBounds { var: VarId(9), end_bytes: 101, size_bytes: 100 })
        );
        let high = Placement { base: DevAddr((1 << 61) - 3), size_bytes: 100 };
        assert!(matches!(at(0).resolve(high, ChunkLen::WORD), Err(TemplateError::AddressOverflow { .. })));
    }

    proptest! {
        #[test]
        fn a_symbolic_word_reads_back(var in 0u32..1 << 19, offset in 0u64..1 << 36) {
            let address = TemplateAddr::new(VarId(var), offset).unwrap();
            prop_assert_eq!(AddrWord::from(address).locate(), Ok(Location::Symbolic(address)));
            prop_assert_eq!((address.var(), address.offset_bytes()), (VarId(var), offset));
        }

        #[test]
        fn resolving_touches_the_symbolic_half_alone(offset in 0u64..1 << 20, bytes in 1u64..=65_536) {
            let spec = CopySpec {
                source: TemplateAddr::new(VarId(5), offset).unwrap().into(),
                destination: AddrWord(0x9000),
                len: ChunkLen::new(bytes).unwrap(),
                barrier: Barrier::Dmb,
                completion: true,
            };
            let mut pair = Pair::encode(spec, RingIds::UNPLACED);
            let place = |var: VarId| {
                assert_eq!(var, VarId(5));
                Ok::<_, TemplateError>(Placement { base: DevAddr(0x1_0000_0000), size_bytes: 1 << 21 })
            };
            resolve_desc(&mut pair.tx, place).unwrap();
            resolve_desc(&mut pair.rx, |_| Err(TemplateError::UnknownBits { word: 0 })).unwrap();
            let resolved = CopySpec { source: AddrWord(0x1_0000_0000 + offset), ..spec };
            prop_assert_eq!(pair, Pair::encode(resolved, RingIds::UNPLACED));
        }
    }
}
