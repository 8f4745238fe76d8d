//! One declaration per wire structure: the type, its proof and its description.
//!
//! [`wire_struct!`] turns a table of `offset => name: type` rows into
//!
//! 1. a `repr(C)` structure whose padding is explicit, so that every byte has a defined value and the zerocopy
//!    derives hold (no padding byte can leak, any byte pattern is a valid value);
//! 2. compile-time assertions of size, alignment and **every** offset against the literals of the table;
//! 3. a [`Describe`] impl, from which `cargo xtask layout` prints the contract and the layout hash is computed.
//!
//! A row ending in `; unnamed` is space the contract leaves without a name: it exists in Rust (zerocopy wants it)
//! but not in the description; `; unnamed_on_a2a3` is the same for one architecture. A row followed by
//! `= { "a.b" @ offset, size; … }` also lists members of a union.
//!
//! [`wire_structs_per_arch!`] takes the same table with two columns, `a2a3 | a5`, and instantiates it once per
//! architecture in the modules `a2a3` and `a5`; inside, `This` is the architecture. Items behind `also in a5` stand in
//! one of the modules only.

/// A named run of bytes inside a wire structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name on the wire; members of a union have a path (`phase_data.dispatch.pop_hit`).
    pub name: &'static str,
    /// Bytes from the start of the structure.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// What the wire contract says about one structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name on the wire.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Bytes.
    pub align: usize,
    /// One group per declared row, in declaration order: the field itself, then the union members it holds.
    /// Rows without a name on the wire give an empty group.
    pub groups: &'static [&'static [Field]],
}

/// A structure of the wire contract.
pub trait Describe {
    /// Taken from the type itself.
    const DESCRIPTION: Description;
}

/// Start value of [`Description::fold`]: the offset basis of 64-bit FNV-1a.
pub const HASH_SEED: u64 = 0xcbf2_9ce4_8422_2325;

impl Description {
    /// All fields that have a name on the wire.
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.groups.iter().copied().flatten()
    }

    /// Continues a 64-bit FNV-1a hash with this structure.
    ///
    /// Every name is hashed with a closing NUL, every number as a little-endian `u32`, and the structure ends with a
    /// byte that no name can start with, so that no two tables give the same byte stream.
    #[must_use]
    pub const fn fold(&self, hash: u64) -> u64 {
        let mut hash = fold_name(hash, self.name);
        hash = fold_number(fold_number(hash, self.size), self.align);
        let mut row = 0;
        while row < self.groups.len() {
            let group = self.groups[row];
            let mut member = 0;
            while member < group.len() {
                let field = &group[member];
                hash = fold_name(hash, field.name);
                hash = fold_number(fold_number(hash, field.offset), field.size);
                member += 1;
            }
            row += 1;
        }
        fold_byte(hash, 0xff)
    }
}

const fn fold_byte(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
}

const fn fold_name(mut hash: u64, name: &str) -> u64 {
    let bytes = name.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash = fold_byte(hash, bytes[i]);
        i += 1;
    }
    fold_byte(hash, 0)
}

const fn fold_number(mut hash: u64, number: usize) -> u64 {
    assert!(number <= u32::MAX as usize);
    let bytes = (number as u32).to_le_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash = fold_byte(hash, bytes[i]);
        i += 1;
    }
    hash
}

/// Declares one wire structure; see the module text.
macro_rules! wire_struct {
    (
        $(#[$meta:meta])*
        pub struct $name:ident = $wire:literal [size $size:literal, align $align:literal] {
            $(
                $(#[$field_meta:meta])*
                $offset:literal => $field:ident : $ty:ty $(; $unnamed:ident)? $(= $members:tt)?
            ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        #[repr(C, align($align))]
        pub struct $name {
            $(
                $(#[$field_meta])*
                $(#[doc = concat!("Padding, ", stringify!($unnamed), " by the contract; zero.")])?
                pub $field: $ty,
            )+
        }

        const _: () = {
            assert!(size_of::<$name>() == $size, concat!("size of ", $wire));
            assert!(align_of::<$name>() == $align, concat!("alignment of ", $wire));
            $(
                assert!(
                    core::mem::offset_of!($name, $field) == $offset,
                    concat!("offset of ", $wire, "::", stringify!($field))
                );
            )+
        };

        impl $crate::layout::Describe for $name {
            const DESCRIPTION: $crate::layout::Description = $crate::layout::Description {
                name: $wire,
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                groups: &[$($crate::layout::describe::wire_field!(
                    $name, $field, $ty $(; $unnamed)? $(= $members)?
                )),+],
            };
        }
    };
}

/// The description of one row of [`wire_struct!`].
macro_rules! wire_field {
    ($name:ident, $field:ident, $ty:ty; unnamed) => {
        &[]
    };
    ($name:ident, $field:ident, $ty:ty; unnamed_on_a2a3) => {
        match <This as $crate::layout::Arch>::ID {
            $crate::layout::ArchId::A2a3 => &[],
            $crate::layout::ArchId::A5 => $crate::layout::describe::wire_field!($name, $field, $ty),
        }
    };
    ($name:ident, $field:ident, $ty:ty $(= { $($path:literal @ $offset:literal, $size:literal);+ $(;)? })?) => {
        &[
            $crate::layout::Field {
                name: stringify!($field),
                offset: core::mem::offset_of!($name, $field),
                size: size_of::<$ty>(),
            },
            $($(
                {
                    let start = core::mem::offset_of!($name, $field);
                    assert!($offset >= start && $offset + $size <= start + size_of::<$ty>());
                    $crate::layout::Field { name: $path, offset: $offset, size: $size }
                },
            )+)?
        ]
    };
}

/// Declares wire structures that depend on the architecture; see the module text.
macro_rules! wire_structs_per_arch {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident = $wire:literal [size $size2:literal | $size5:literal, align $align:literal] {
            $(
                $(#[$field_meta:meta])*
                $offset2:literal | $offset5:literal => $field:ident : $ty:ty $(; $unnamed:ident)?
            ),+ $(,)?
        }
    )+
    $(also in a2a3 { $($only2:item)+ })?
    $(also in a5 { $($only5:item)+ })?
    ) => {
        /// Forms that hold for [`A2a3`](crate::layout::A2a3).
        pub mod a2a3 {
            #[allow(unused_imports)]
            use super::*;
            type This = $crate::layout::A2a3;
            $(
                $crate::layout::describe::wire_struct! {
                    $(#[$meta])*
                    pub struct $name = $wire [size $size2, align $align] {
                        $($(#[$field_meta])* $offset2 => $field: $ty $(; $unnamed)?,)+
                    }
                }
            )+
            $($($only2)+)?
        }

        /// Forms that hold for [`A5`](crate::layout::A5).
        pub mod a5 {
            #[allow(unused_imports)]
            use super::*;
            type This = $crate::layout::A5;
            $(
                $crate::layout::describe::wire_struct! {
                    $(#[$meta])*
                    pub struct $name = $wire [size $size5, align $align] {
                        $($(#[$field_meta])* $offset5 => $field: $ty $(; $unnamed)?,)+
                    }
                }
            )+
            $($($only5)+)?
        }
    };
}

/// Declares the offsets of those header words that only one subsystem has, for both architectures.
macro_rules! header_words {
    ($header:ident { $($field:ident),+ $(,)? }) => {
        /// Offsets of the header words that only this subsystem has, from the region's base.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct HeaderWords {
            $(
                #[doc = concat!("[`a2a3::", stringify!($header), "::", stringify!($field), "`]")]
                pub $field: usize,
            )+
        }

        /// Where the header words that only this subsystem has stand.
        #[must_use]
        pub const fn header_words(arch: ArchId) -> HeaderWords {
            match arch {
                ArchId::A2a3 => HeaderWords { $($field: core::mem::offset_of!(a2a3::$header, $field)),+ },
                ArchId::A5 => HeaderWords { $($field: core::mem::offset_of!(a5::$header, $field)),+ },
            }
        }
    };
}

/// Declares an enumeration of the wire as a newtype over its integer: every value the other side may write is
/// representable, the known ones have a name.
macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $int:ident {
            $($(#[$value_meta:meta])* $value:ident = $number:literal, $text:literal;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$value_meta])* pub const $value: Self = Self($number);)+

            /// Every value the contract names, in ascending order.
            pub const KNOWN: &'static [Self] = &[$(Self::$value),+];

            /// The name of a known value; `None` for anything else the other side may have written.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)+
                    _ => None,
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "unknown({})", self.0),
                }
            }
        }
    };
}

pub(crate) use {header_words, wire_enum, wire_field, wire_struct, wire_structs_per_arch};
