//! The 1,024-byte header in front of every container.
//!
//! ```text
//! 0x000 package version u64   0x0A8 format mark u32      0x1DC cores requested u32
//! 0x008 header size u64       0x0AC hash [32]            0x1E0 cores per node u8[64]
//! 0x010 data size u64         0x0CC uuid [16]            0x220 feature bits u64
//! 0x018 major, minor u64      0x0DC name [256]           0x228 virtual core size u32
//! 0x028 build [128]
//! ```
//!
//! All little-endian, unused bytes zero (NEFF container facts). There is no magic number.

use super::error::{NeffError, NeffFault, Place, Quoted};

/// Length of the header, and what its own size field has to say.
pub const HEADER_BYTES: usize = 1024;

/// Feature bits that a reader of this version may meet in a container of major version 2.
pub const SUPPORTED_FEATURES: u64 = !0x7FFF_FFFF_F800_0000;

const MAX_MAJOR: u64 = 2;

const DATA_SIZE: usize = 0x10;
const MAJOR: usize = 0x18;
const MINOR: usize = 0x20;
const BUILD: (usize, usize) = (0x28, 128);
const FORMAT_MARK: usize = 0xA8;
const HASH: usize = 0xAC;
const UUID: usize = 0xCC;
const NAME: (usize, usize) = (0xDC, 256);
const CORES_REQUESTED: usize = 0x1DC;
const CORES_PER_NODE: usize = 0x1E0;
const FEATURES: usize = 0x220;
const VIRTUAL_CORE_SIZE: usize = 0x228;

/// How the payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    /// Version 1: a plain archive, hashed with SHA-256.
    Plain,
    /// Version 2: a gzip stream and zero padding, hashed with MD5.
    Gzip,
}

/// A header whose fields have been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// How the payload is stored.
    pub package: Package,
    /// Length of the payload as stored, padding included.
    pub data_bytes: u64,
    /// Major format version, at most 2.
    pub major: u64,
    /// Minor format version.
    pub minor: u64,
    /// What the compiler says about itself; may be empty.
    pub build: String,
    /// Hash of the payload; version 2 uses the first 16 bytes.
    pub hash: [u8; 32],
    /// Identity of the model.
    pub uuid: [u8; 16],
    /// Name of the model, at most 255 bytes.
    pub name: String,
    /// Cores the model asks for.
    pub cores_requested: u32,
    /// The same per node.
    pub cores_per_node: [u8; 64],
    /// Optional features in use.
    pub features: u64,
    /// Physical cores per virtual core, 1 or 2.
    pub virtual_core_size: u32,
}

impl Header {
    /// Reads the header at the start of `file` and checks it against the length of the whole file.
    pub(super) fn parse(place: Place<'_>, file: &[u8]) -> Result<Self, NeffError> {
        let raw: &[u8; HEADER_BYTES] = file.first_chunk().ok_or_else(|| {
            place.invalid(format_args!("{} bytes, a container has at least {HEADER_BYTES}", file.len()))
        })?;
        let package = match u64_at(raw, 0) {
            1 => Package::Plain,
            2 => Package::Gzip,
            other => {
                return Err(place.fault(Some("package_version".into()), NeffFault::PackageVersion(other)));
            }
        };
        let header_bytes = u64_at(raw, 8);
        if header_bytes != HEADER_BYTES as u64 {
            return Err(place.invalid_key("header_size", format_args!("{header_bytes}, want {HEADER_BYTES}")));
        }
        let data_bytes = u64_at(raw, DATA_SIZE);
        let stored_bytes = (file.len() - HEADER_BYTES) as u64;
        if data_bytes > stored_bytes {
            return Err(place.invalid_key(
                "data_size",
                format_args!("{data_bytes} bytes, the file holds {stored_bytes} after its header"),
            ));
        }
        let (major, minor) = (u64_at(raw, MAJOR), u64_at(raw, MINOR));
        if major > MAX_MAJOR {
            return Err(place.fault(Some("major".into()), NeffFault::FormatVersion { major, minor }));
        }
        let features = u64_at(raw, FEATURES);
        let unknown = features & !SUPPORTED_FEATURES;
        if major == MAX_MAJOR && unknown != 0 {
            let supported = SUPPORTED_FEATURES;
            return Err(place.fault(Some("features".into()), NeffFault::Features { unknown, supported }));
        }
        let virtual_core_size = match (u32_at(raw, VIRTUAL_CORE_SIZE), major) {
            // Formats before 2 had no such field.
            (0, 0 | 1) => 1,
            (size @ (1 | 2), _) => size,
            (size, _) => {
                return Err(place.invalid_key("virtual_core_size", format_args!("{size}, want 1 or 2")));
            }
        };
        Ok(Self {
            package,
            data_bytes,
            major,
            minor,
            build: string_at(place, raw, "build", BUILD)?,
            hash: bytes_at(raw, HASH),
            uuid: bytes_at(raw, UUID),
            name: string_at(place, raw, "name", NAME)?,
            cores_requested: u32_at(raw, CORES_REQUESTED),
            cores_per_node: bytes_at(raw, CORES_PER_NODE),
            features,
            virtual_core_size,
        })
    }

    /// The header as stored. Strings are cut to their fields.
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut raw = [0; HEADER_BYTES];
        let package: u64 = match self.package {
            Package::Plain => 1,
            Package::Gzip => 2,
        };
        put(&mut raw, 0, &package.to_le_bytes());
        put(&mut raw, 8, &(HEADER_BYTES as u64).to_le_bytes());
        put(&mut raw, DATA_SIZE, &self.data_bytes.to_le_bytes());
        put(&mut raw, MAJOR, &self.major.to_le_bytes());
        put(&mut raw, MINOR, &self.minor.to_le_bytes());
        put_string(&mut raw, BUILD, &self.build);
        put(&mut raw, FORMAT_MARK, &1u32.to_le_bytes());
        put(&mut raw, HASH, &self.hash);
        put(&mut raw, UUID, &self.uuid);
        put_string(&mut raw, NAME, &self.name);
        put(&mut raw, CORES_REQUESTED, &self.cores_requested.to_le_bytes());
        put(&mut raw, CORES_PER_NODE, &self.cores_per_node);
        put(&mut raw, FEATURES, &self.features.to_le_bytes());
        put(&mut raw, VIRTUAL_CORE_SIZE, &self.virtual_core_size.to_le_bytes());
        raw
    }
}

fn bytes_at<const N: usize>(raw: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| raw[at + i])
}

fn u64_at(raw: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(raw, at))
}

fn u32_at(raw: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(raw, at))
}

fn string_at(
    place: Place<'_>,
    raw: &[u8; HEADER_BYTES],
    key: &str,
    (at, len): (usize, usize),
) -> Result<String, NeffError> {
    let field = &raw[at..at + len];
    let Some(end) = field.iter().position(|&byte| byte == 0) else {
        return Err(place.invalid_key(key, format_args!("{len} bytes without an end, at most {}", len - 1)));
    };
    match std::str::from_utf8(&field[..end]) {
        Ok(text) => Ok(text.into()),
        Err(error) => Err(place.invalid_key(
            key,
            format_args!(
                "{} is not UTF-8 at byte {}",
                Quoted(&String::from_utf8_lossy(&field[..end])),
                error.valid_up_to()
            ),
        )),
    }
}

fn put(raw: &mut [u8; HEADER_BYTES], at: usize, bytes: &[u8]) {
    raw[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_string(raw: &mut [u8; HEADER_BYTES], (at, len): (usize, usize), text: &str) {
    put(raw, at, &text.as_bytes()[..text.floor_char_boundary(len - 1)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            package: Package::Gzip,
            data_bytes: 7,
            major: 2,
            minor: 3,
            build: "builder 1".into(),
            hash: std::array::from_fn(|i| i as u8),
            uuid: std::array::from_fn(|i| 200 + i as u8),
            name: "n".repeat(255),
            cores_requested: 1,
            cores_per_node: std::array::from_fn(|i| i as u8),
            features: 0x20_9C00,
            virtual_core_size: 2,
        }
    }

    fn parse(raw: &[u8]) -> Result<Header, NeffError> {
        Header::parse(Place::file("f"), raw)
    }

    /// The encoded header with `edit` applied, and seven bytes of payload.
    fn parse_edited(at: usize, bytes: &[u8]) -> Result<Header, String> {
        let mut raw = header().encode().to_vec();
        raw[at..at + bytes.len()].copy_from_slice(bytes);
        raw.extend([0; 7]);
        parse(&raw).map_err(|e| e.to_string())
    }

    #[test]
    fn encodes_what_it_parses() {
        assert_eq!(parse_edited(0, &[]), Ok(header()));
        let plain = Header { package: Package::Plain, ..header() };
        let mut raw = plain.encode().to_vec();
        raw.extend([0; 7]);
        assert_eq!(parse(&raw), Ok(plain));
    }

    #[test]
    fn fields_stand_where_the_facts_say() {
        let raw = header().encode();
        let u32_at = |at: usize| u32::from_le_bytes(raw[at..at + 4].try_into().unwrap());
        assert_eq!([0, 8, 0x10, 0x18, 0x20, 0xA8].map(u32_at), [2, 1024, 7, 2, 3, 1]);
        assert_eq!([0x1DC, 0x220, 0x228].map(u32_at), [1, 0x20_9C00, 2]);
        assert_eq!((&raw[0x28..0x2D], raw[0xAD], raw[0xCC], raw[0x1E1]), (&b"build"[..], 1, 200, 1));
        assert_eq!((raw[0xDC], raw[0xDC + 254], raw[0xDC + 255]), (b'n', b'n', 0));
    }

    #[test]
    fn every_feature_bit_is_judged() {
        for bit in 0..64 {
            let parsed = parse_edited(0x220, &(1u64 << bit).to_le_bytes());
            if (27..63).contains(&bit) {
                assert_eq!(
                    parsed.unwrap_err(),
                    format!("f: features: feature bit {bit} set, supported mask 0x8000000007ffffff")
                );
            } else {
                assert_eq!(parsed.unwrap().features, 1 << bit);
            }
        }
        let mut old = Header { major: 1, features: 1 << 27, ..header() }.encode().to_vec();
        old.extend([0; 7]);
        assert!(parse(&old).is_ok(), "feature bits mean nothing before version 2");
    }

    #[test]
    fn wrong_fields_are_named_with_their_value() {
        let number = |at, value: u64| parse_edited(at, &value.to_le_bytes()).unwrap_err();
        assert_eq!(number(0, 3), "f: package_version: package version 3, supported are 1 and 2");
        assert_eq!(number(0, 0), "f: package_version: package version 0, supported are 1 and 2");
        assert_eq!(number(8, 2048), "f: header_size: 2048, want 1024");
        assert_eq!(number(0x10, 8), "f: data_size: 8 bytes, the file holds 7 after its header");
        assert_eq!(
            number(0x10, u64::MAX),
            "f: data_size: 18446744073709551615 bytes, the file holds 7 after its header"
        );
        assert_eq!(number(0x18, 3), "f: major: format 3.3, supported are major versions up to 2");
        assert_eq!(parse_edited(0x228, &[3]).unwrap_err(), "f: virtual_core_size: 3, want 1 or 2");
        assert_eq!(parse_edited(0x228, &[0]).unwrap_err(), "f: virtual_core_size: 0, want 1 or 2");
        assert_eq!(
            parse_edited(0xDC + 255, b"n").unwrap_err(),
            "f: name: 256 bytes without an end, at most 255"
        );
        assert_eq!(
            parse_edited(0x2A, &[0xFF, 0]).unwrap_err(),
            "f: build: `bu\u{fffd}` is not UTF-8 at byte 2"
        );
    }

    #[test]
    fn a_file_shorter_than_the_header_is_refused() {
        for len in [0, 1, 1023] {
            let error = parse(&header().encode()[..len]).unwrap_err().to_string();
            assert_eq!(error, format!("f: {len} bytes, a container has at least 1024"));
        }
    }
}
