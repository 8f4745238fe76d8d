//! The frame of a capture: file header and segment heads, in bytes.

use core::fmt;
use core::hash::{BuildHasher, Hasher};
use core::mem::{offset_of, size_of};

use sluice_core::layout::ArchId;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of a capture. The first and the last bytes catch files that a text conversion has damaged.
pub const MAGIC: [u8; 8] = *b"\x89SLC\r\n\x1a\n";
/// A file of another major version cannot be read.
pub const VERSION_MAJOR: u16 = 1;
/// Counts additions that an older reader may skip: new segment kinds, new keys in JSON payloads.
pub const VERSION_MINOR: u16 = 3;
/// First bytes of every segment.
pub const SYNC: [u8; 4] = *b"SEG\xa5";
/// Segments start at multiples of this many bytes.
pub const ALIGN_BYTES: usize = 8;
/// Most bytes of a segment of items or records: more than the largest record buffer of the wire contract.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;
/// Most bytes of a JSON document: more than there is to say about a model with as many tensors as numbers for them.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 20;

/// Identifies one run; the same in every artefact. Fits a JSON number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunId(pub u64);

impl RunId {
    const BITS: u32 = 52;

    /// A number that no other run of this machine is likely to have.
    pub fn fresh() -> Self {
        let mut hasher = std::hash::RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        Self(hasher.finish() >> (u64::BITS - Self::BITS))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:013x}", self.0)
    }
}

/// What the start of a capture says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Whose capture this is.
    pub run: RunId,
    /// Architecture whose wire contract the records follow.
    pub arch: ArchId,
    /// Ticks per second of the device counter that stamped the records; not 0.
    pub clock_hz: u64,
    /// Wall time when the capture was created, nanoseconds since 1970.
    pub started_unix_ns: u64,
}

/// Why bytes are not the start of a capture this version can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The file is shorter than its header.
    #[error("not a capture: need {HEADER_BYTES} header bytes, got {got}")]
    Short {
        /// Bytes the file has.
        got: usize,
    },
    /// Another kind of file.
    #[error("not a capture: begins with {found:02x?}, want {MAGIC:02x?}")]
    Magic {
        /// What stands there instead.
        found: [u8; 8],
    },
    /// A file of the future, or of a distant past.
    #[error("capture version {major}.{minor}, this program reads {VERSION_MAJOR}.x")]
    Version {
        /// Version of the file.
        major: u16,
        /// Version of the file.
        minor: u16,
    },
    /// The header was damaged.
    #[error("capture header is damaged: checksum {stored:#010x}, its bytes give {computed:#010x}")]
    Checksum {
        /// Checksum in the file.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// The architecture number is not one of the wire contract's.
    #[error("capture of unknown architecture number {number}")]
    Arch {
        /// Number in the file.
        number: u32,
    },
    /// The device counter stands still.
    #[error("capture states a clock of 0 Hz")]
    Clock,
}

/// Bytes of the file header.
pub const HEADER_BYTES: usize = size_of::<RawHeader>();

/// The file header as it stands in the file.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    major: u16,
    minor: u16,
    header_bytes: u32,
    arch: u32,
    reserved: u32,
    run: u64,
    clock_hz: u64,
    started_unix_ns: u64,
    reserved_end: [u8; 12],
    checksum: u32,
}

const _: () = assert!(size_of::<RawHeader>() == 64 && offset_of!(RawHeader, checksum) == 60);
const _: () = assert!(cfg!(target_endian = "little"), "captures are little-endian");

const fn arch_number(arch: ArchId) -> u32 {
    match arch {
        ArchId::A2a3 => 1,
        ArchId::A5 => 2,
    }
}

impl FileHeader {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut raw = RawHeader {
            magic: MAGIC,
            major: VERSION_MAJOR,
            minor: VERSION_MINOR,
            header_bytes: HEADER_BYTES as u32,
            arch: arch_number(self.arch),
            reserved: 0,
            run: self.run.0,
            clock_hz: self.clock_hz,
            started_unix_ns: self.started_unix_ns,
            reserved_end: [0; 12],
            checksum: 0,
        };
        raw.checksum = crc32fast::hash(&raw.as_bytes()[..offset_of!(RawHeader, checksum)]);
        zerocopy::transmute!(raw)
    }

    /// Reads a header from the first bytes of a file.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let Ok((raw, _)) = RawHeader::read_from_prefix(bytes) else {
            return Err(match bytes.get(..MAGIC.len()).and_then(|found| <[u8; 8]>::try_from(found).ok()) {
                Some(found) if found != MAGIC => HeaderError::Magic { found },
                _ => HeaderError::Short { got: bytes.len() },
            });
        };
        if raw.magic != MAGIC {
            return Err(HeaderError::Magic { found: raw.magic });
        }
        if raw.major != VERSION_MAJOR {
            return Err(HeaderError::Version { major: raw.major, minor: raw.minor });
        }
        let computed = crc32fast::hash(&raw.as_bytes()[..offset_of!(RawHeader, checksum)]);
        if raw.checksum != computed {
            return Err(HeaderError::Checksum { stored: raw.checksum, computed });
        }
        let Some(arch) = ArchId::ALL.into_iter().find(|&arch| arch_number(arch) == raw.arch) else {
            return Err(HeaderError::Arch { number: raw.arch });
        };
        if raw.clock_hz == 0 {
            return Err(HeaderError::Clock);
        }
        Ok(Self { run: RunId(raw.run), arch, clock_hz: raw.clock_hz, started_unix_ns: raw.started_unix_ns })
    }
}

/// What a segment holds. Values this version does not know are passed over and counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Kind(pub u32);

impl Kind {
    /// JSON [`Manifest`](super::Manifest): device, options, model, work items.
    pub const MANIFEST: Self = Self(1);
    /// [`BufferHeader`](super::BufferHeader), then records as on the wire.
    pub const BUFFER: Self = Self(2);
    /// [`FreezeEvent`](super::FreezeEvent)s of minor version 0, which end before the buffers.
    pub const FREEZES_0: Self = Self(3);
    /// [`ClockPair`](super::ClockPair)s.
    pub const CLOCK_PAIRS: Self = Self(4);
    /// [`HostPhase`](super::HostPhase)s.
    pub const HOST_PHASES: Self = Self(5);
    /// [`LossNote`](super::LossNote)s.
    pub const LOSSES: Self = Self(6);
    /// JSON [`Summary`](super::Summary); the last segment of a capture that was finished.
    pub const END: Self = Self(7);
    /// [`FreezeEvent`](super::FreezeEvent)s.
    pub const FREEZES: Self = Self(8);
    /// [`DevicePhaseNote`](super::DevicePhaseNote)s.
    pub const DEVICE_PHASES: Self = Self(9);
    /// [`PayloadHeader`](super::PayloadHeader), then bytes of one payload. All segments of a payload stand before the buffer
    /// with its record.
    pub const PAYLOAD: Self = Self(10);
    /// [`WaitNote`](super::WaitNote)s.
    pub const WAITS: Self = Self(11);

    /// [`TransitNote`](super::TransitNote)s.
    pub const TRANSITS: Self = Self(12);
    /// [`ControlNote`](super::ControlNote)s. What is told stands before all that is recorded by it.
    pub const CONTROLS: Self = Self(13);

    /// Most bytes of a payload of this kind.
    pub const fn max_payload_bytes(self) -> usize {
        match self {
            Self::MANIFEST | Self::END => MAX_DOCUMENT_BYTES,
            _ => MAX_PAYLOAD_BYTES,
        }
    }

    /// `None` for a kind of a later version.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::MANIFEST => "manifest",
            Self::BUFFER => "buffer",
            Self::FREEZES | Self::FREEZES_0 => "freezes",
            Self::CLOCK_PAIRS => "clock pairs",
            Self::HOST_PHASES => "host phases",
            Self::DEVICE_PHASES => "device phases",
            Self::WAITS => "waits",
            Self::TRANSITS => "transits",
            Self::CONTROLS => "controls",
            Self::LOSSES => "losses",
            Self::END => "end",
            Self::PAYLOAD => "payload",
            _ => return None,
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "kind {}", self.0),
        }
    }
}

/// Bytes of a segment head.
pub const HEAD_BYTES: usize = size_of::<SegmentHead>();

/// The head of a segment as it stands in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentHead {
    sync: [u8; 4],
    /// What the payload is.
    pub kind: Kind,
    /// Place in the file, counted from 0 without gaps.
    pub sequence: u64,
    /// Bytes of the payload, padding to [`ALIGN_BYTES`] not included.
    pub payload_bytes: u32,
    /// CRC32 of the payload.
    pub payload_checksum: u32,
    reserved: u32,
    head_checksum: u32,
}

const _: () = assert!(size_of::<SegmentHead>() == 32 && offset_of!(SegmentHead, head_checksum) == 28);

impl SegmentHead {
    /// The head of a payload; `payload_bytes` is at most [`Kind::max_payload_bytes`].
    pub fn new(kind: Kind, sequence: u64, payload_bytes: u32, payload_checksum: u32) -> Self {
        let mut head = Self {
            sync: SYNC,
            kind,
            sequence,
            payload_bytes,
            payload_checksum,
            reserved: 0,
            head_checksum: 0,
        };
        head.head_checksum = head.computed_checksum();
        head
    }

    fn computed_checksum(&self) -> u32 {
        crc32fast::hash(&self.as_bytes()[..offset_of!(Self, head_checksum)])
    }

    /// Whether the bytes are a head: right sync word and right checksum.
    pub fn is_sound(&self) -> bool {
        self.sync == SYNC && self.head_checksum == self.computed_checksum()
    }

    /// Zero bytes between the payload and the next segment.
    pub fn padding_bytes(&self) -> usize {
        (self.payload_bytes as usize).next_multiple_of(ALIGN_BYTES) - self.payload_bytes as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: FileHeader = FileHeader {
        run: RunId(0x0012_3456_789a_bcde),
        arch: ArchId::A5,
        clock_hz: 1_000_000_000,
        started_unix_ns: 1_700_000_000_000_000_000,
    };

    #[test]
    fn header_keeps_its_bytes() {
        let bytes = HEADER.encode();
        assert_eq!(FileHeader::decode(&bytes), Ok(HEADER));
        assert_eq!(&bytes[..20], b"\x89SLC\r\n\x1a\n\x01\0\x03\0\x40\0\0\0\x02\0\0\0");
        assert_eq!(&bytes[24..32], &0x0012_3456_789a_bcde_u64.to_le_bytes());
    }

    #[test]
    fn every_damaged_header_is_refused() {
        let bytes = HEADER.encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::decode(&damaged).is_err(), "bit {bit}");
        }
        for got in 0..HEADER_BYTES {
            assert_eq!(FileHeader::decode(&bytes[..got]), Err(HeaderError::Short { got }));
        }
    }

    #[test]
    fn refusals_say_what_was_found() {
        let text = |bytes: &[u8]| FileHeader::decode(bytes).unwrap_err().to_string();
        assert_eq!(text(b""), "not a capture: need 64 header bytes, got 0");
        assert!(text(&[b'x'; 64]).starts_with("not a capture: begins with [78, 78"));
        let mut future = HEADER.encode();
        future[8] = 7;
        assert_eq!(text(&future), "capture version 7.3, this program reads 1.x");
        assert_eq!(text(&FileHeader { clock_hz: 0, ..HEADER }.encode()), "capture states a clock of 0 Hz");
    }

    #[test]
    fn a_damaged_head_is_not_sound() {
        let head = SegmentHead::new(Kind::BUFFER, 3, 61, 0xdead_beef);
        assert!(head.is_sound());
        assert_eq!(head.padding_bytes(), 3);
        let bytes: [u8; HEAD_BYTES] = zerocopy::transmute!(head);
        for bit in 0..HEAD_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!SegmentHead::read_from_bytes(&damaged).unwrap().is_sound(), "bit {bit}");
        }
    }

    #[test]
    fn run_ids_fit_a_json_number() {
        let ids: std::collections::HashSet<u64> = (0..64).map(|_| RunId::fresh().0).collect();
        assert_eq!(ids.len(), 64);
        assert!(ids.iter().all(|&id| id < 1 << 53));
    }
}
