//! The hash in the header.
//!
//! A plain package has SHA-256, a compressed one MD5 and 16 bytes of zero, both over the payload as stored. That is
//! what our writer does and what one known container does; two others have a hash of something unknown, which is why
//! nothing is checked unless asked for.

use md5::Md5;
use sha2::{Digest as _, Sha256};

use super::header::Package;

/// The hash field for `payload`.
pub(super) fn of(package: Package, payload: &[u8]) -> [u8; 32] {
    match package {
        Package::Plain => Sha256::digest(payload).into(),
        Package::Gzip => {
            let mut field = [0; 32];
            field[..16].copy_from_slice(&Md5::digest(payload));
            field
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_the_standard_ones() {
        let hex = |bytes: [u8; 32]| bytes.map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(
            hex(of(Package::Plain, b"abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hex(of(Package::Gzip, b"abc")),
            "900150983cd24fb0d6963f7d28e17f7200000000000000000000000000000000"
        );
    }
}
