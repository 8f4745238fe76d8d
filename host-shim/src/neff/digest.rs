//! The hash in the header.
//!
//! | package | digest of the payload as stored, padding included | the other bytes of the field |
//! |---|---|---|
//! | plain | SHA-256 | |
//! | gzip | MD5, each of its four 32-bit words with its bytes reversed | ignored; zero in new files |
//!
//! The reversed words are what a real container of the current compiler has; a known older one has the digest in its
//! usual order, so both are accepted. Nothing is checked unless asked for.

use md5::Md5;
use sha2::{Digest as _, Sha256};

use super::header::Package;

/// The hash field for `payload`.
pub(super) fn field(package: Package, payload: &[u8]) -> [u8; 32] {
    match package {
        Package::Plain => Sha256::digest(payload).into(),
        Package::Gzip => {
            let mut field = [0; 32];
            field[..16].copy_from_slice(&reverse_words(Md5::digest(payload).into()));
            field
        }
    }
}

/// Whether `field` is a hash of `payload`.
pub(super) fn matches(package: Package, payload: &[u8], field: &[u8; 32]) -> bool {
    match package {
        Package::Plain => self::field(package, payload) == *field,
        Package::Gzip => {
            let digest: [u8; 16] = Md5::digest(payload).into();
            field[..16] == digest || field[..16] == reverse_words(digest)
        }
    }
}

fn reverse_words(mut digest: [u8; 16]) -> [u8; 16] {
    digest.chunks_exact_mut(4).for_each(<[u8]>::reverse);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_are_the_standard_ones() {
        assert_eq!(
            hex(&field(Package::Plain, b"abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        // The digest itself is 90015098 3cd24fb0 d6963f7d 28e17f72.
        assert_eq!(
            hex(&field(Package::Gzip, b"abc")),
            "98500190b04fd23c7d3f96d6727fe12800000000000000000000000000000000"
        );
    }

    #[test]
    fn both_orders_of_a_word_match_whatever_follows() {
        let mut stored = field(Package::Gzip, b"abc");
        stored[16..].fill(b'0');
        assert!(matches(Package::Gzip, b"abc", &stored));
        let usual: [u8; 16] = Md5::digest(b"abc").into();
        stored[..16].copy_from_slice(&usual);
        assert!(matches(Package::Gzip, b"abc", &stored));
        stored[3] ^= 1;
        assert!(!matches(Package::Gzip, b"abc", &stored));
        assert!(!matches(Package::Gzip, b"abd", &field(Package::Gzip, b"abc")));
        assert!(!matches(Package::Plain, b"abd", &field(Package::Plain, b"abc")));
    }
}
