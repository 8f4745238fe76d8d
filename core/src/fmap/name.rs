//! Names: up to 255 bytes, padded to whole words, hashed and compared word by word.

use core::fmt;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

const WORD_BYTES: usize = 8;
const WORDS: usize = Name::MAX_BYTES.div_ceil(WORD_BYTES);

/// The name of a tensor or variable, with its hash.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Name {
    hash: u32,
    len: u8,
    /// Padded with zeros behind `len` bytes.
    words: [U64; WORDS],
}

impl Name {
    /// The longest name, in bytes (wire contract: 255 are copied).
    pub const MAX_BYTES: usize = 255;

    pub(super) const EMPTY: Self = Self { hash: 0, len: 0, words: [U64::ZERO; WORDS] };

    /// The name with these bytes, which need not be UTF-8.
    ///
    /// # Errors
    /// More than 255 bytes. Nothing is cut off: two long names must not become one.
    pub fn new(bytes: &[u8]) -> Result<Self, NameTooLong> {
        let len_bytes = bytes.len();
        let len = u8::try_from(len_bytes).map_err(|_| NameTooLong { len_bytes })?;
        let mut name = Self { hash: hash(bytes), len, words: [U64::ZERO; WORDS] };
        for (word, of_bytes) in name.words.iter_mut().zip(words(bytes)) {
            *word = U64::new(of_bytes);
        }
        Ok(name)
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.words.as_bytes()[..usize::from(self.len)]
    }

    pub(super) const fn hash(&self) -> u32 {
        self.hash
    }

    /// Whether this is the name with these bytes. All words are compared: the caller has compared hashes, so they
    /// differ hardly ever.
    #[inline]
    pub(super) fn is(&self, bytes: &[u8]) -> bool {
        if usize::from(self.len) != bytes.len() {
            return false;
        }
        let mut differing = 0;
        for (word, of_bytes) in self.words.iter().zip(words(bytes)) {
            differing |= word.get() ^ of_bytes;
        }
        differing == 0
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.as_bytes().utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{FFFD}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The words of a name, the last one padded with zeros.
#[inline]
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (whole, tail) = bytes.as_chunks::<WORD_BYTES>();
    let last = (!tail.is_empty()).then(|| padded(tail));
    whole.iter().map(|word| u64::from_le_bytes(*word)).chain(last)
}

/// Up to 7 bytes as a word. Reads overlap instead of copying byte by byte; what is read twice is the same twice.
#[inline]
fn padded(tail: &[u8]) -> u64 {
    let len = tail.len();
    if let (Some(first), Some(last)) = (tail.first_chunk::<4>(), tail.last_chunk::<4>()) {
        u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (8 * (len - 4))
    } else if len > 0 {
        [0, len / 2, len - 1].iter().fold(0, |word, &at| word | u64::from(tail[at]) << (8 * at))
    } else {
        0
    }
}

/// A multiply-and-fold hash over pairs of words.
#[inline]
pub(super) fn hash(bytes: &[u8]) -> u32 {
    // Digits of the golden ratio and of the square root of 2: odd, with no pattern.
    const SEED: u64 = 0x9E37_79B9_7F4A_7C15;
    const MIX: u64 = 0x6A09_E667_F3BC_C909;
    let fold = |state: u64, low: u64, high: u64| {
        let product = u128::from(state ^ low) * u128::from(MIX ^ high);
        product as u64 ^ (product >> 64) as u64
    };
    let mut state = SEED ^ bytes.len() as u64;
    let (pairs, tail) = bytes.as_chunks::<{ 2 * WORD_BYTES }>();
    for pair in pairs {
        let pair = u128::from_le_bytes(*pair);
        state = fold(state, pair as u64, (pair >> 64) as u64);
    }
    if !tail.is_empty() {
        let (low, high) = match tail.split_first_chunk::<WORD_BYTES>() {
            Some((low, rest)) => (u64::from_le_bytes(*low), padded(rest)),
            None => (padded(tail), 0),
        };
        state = fold(state, low, high);
    }
    (state ^ state >> 32) as u32
}

/// A name longer than a table can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NameTooLong {
    /// Its length in bytes.
    pub len_bytes: usize,
}

impl fmt::Display for NameTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name of {} bytes exceeds {}", self.len_bytes, Name::MAX_BYTES)
    }
}

impl core::error::Error for NameTooLong {}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_name_fits_and_one_more_byte_does_not() {
        assert_eq!(Name::new(&[b'x'; 255]).unwrap().as_bytes(), [b'x'; 255]);
        assert_eq!(Name::new(&[b'x'; 256]), Err(NameTooLong { len_bytes: 256 }));
    }

    #[test]
    fn padding_is_no_part_of_a_name() {
        let short = Name::new(b"ab").unwrap();
        let padded = Name::new(b"ab\0").unwrap();
        assert!(short != padded && !short.is(b"ab\0") && !padded.is(b"ab"));
        assert_ne!(short.hash(), padded.hash());
    }

    #[test]
    fn bytes_that_are_not_text_are_shown_as_such() {
        assert_eq!(Name::new(b"in\xFFput").unwrap().to_string(), "in\u{FFFD}put");
    }

    proptest! {
        #[test]
        fn words_are_the_padded_bytes(bytes in prop::collection::vec(any::<u8>(), 0..=255)) {
            let mut padded = bytes.clone();
            padded.resize(bytes.len().next_multiple_of(8), 0);
            let words: Vec<u8> = words(&bytes).flat_map(u64::to_le_bytes).collect();
            prop_assert_eq!(words, padded);
        }

        #[test]
        fn a_name_is_its_bytes_and_no_others(
            bytes in prop::collection::vec(any::<u8>(), 1..=255), at: prop::sample::Index, flip in 1u8..,
        ) {
            let name = Name::new(&bytes).unwrap();
            prop_assert_eq!(name.as_bytes(), &bytes[..]);
            prop_assert!(name.is(&bytes));
            let mut other = bytes.clone();
            other[at.index(bytes.len())] ^= flip;
            prop_assert!(!name.is(&other));
            prop_assert!(!name.is(&bytes[1..]));
        }
    }
}
