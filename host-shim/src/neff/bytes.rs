//! Bytes of an unpacked archive, held once however often they are named.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A run of bytes that shares its memory with its clones and parts. Two are equal when they hold the same bytes.
#[derive(Clone, Default)]
pub struct Bytes {
    whole: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Bytes {
    /// The part of these bytes that is `range`.
    ///
    /// # Panics
    /// If it does not lie inside them.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        let start = self.range.start + range.start;
        Self { whole: Arc::clone(&self.whole), range: start..start + range.len() }
    }

    /// `part`, a slice of these very bytes, as a run of its own.
    ///
    /// # Panics
    /// If it is a slice of other bytes.
    pub(super) fn share(&self, part: &[u8]) -> Self {
        let start = part.as_ptr().addr().wrapping_sub(self.as_ptr().addr());
        self.part(start..start.saturating_add(part.len()))
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { whole: Arc::new(bytes), range }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole[self.range.clone()]
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_same_memory() {
        let whole = Bytes::from(vec![0, 1, 2, 3, 4]);
        let middle = whole.part(1..4);
        let last = middle.share(&middle[1..]);
        assert_eq!((&middle[..], &last[..]), (&[1, 2, 3][..], &[2, 3][..]));
        assert_eq!(last.as_ptr(), whole[2..].as_ptr());
        assert_eq!(last, Bytes::from(vec![2, 3]));
        assert_eq!(middle.part(3..3).len(), 0);
    }

    #[test]
    #[should_panic(expected = "of 2 bytes")]
    fn slices_of_other_bytes_are_none_of_ours() {
        let (whole, other) = (Bytes::from(vec![1; 2]), vec![1; 2]);
        let _ = whole.share(&other);
    }
}
