//! The form in which firmware is handed to a board: a header that says for what it is, and the bytes to load.
//!
//! ```text
//!   0x00  magic "SLIM" · version · header bytes · board
//!   0x10  entry · load address
//!   0x20  payload bytes · bytes in memory, zeros behind the payload included
//!   0x30  layout hash of a2a3, of a5
//!   0x40  build
//!   0x50  CRC-32 of the payload · of the header up to here
//!   0x58  payload
//! ```
//!
//! Both CRCs together cover every bit but their own, so that no image with a flipped bit starts. A [`BadImage`] crosses to the
//! host as a code and two numbers ([`BadImage::to_words`]): its words are not part of what runs on the board.

use core::fmt;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::layout::{ArchId, extension};
use crate::mem::DevAddr;

/// Bytes before the payload.
pub const IMAGE_HEADER_BYTES: usize = size_of::<Header>();

const MAGIC: u32 = u32::from_le_bytes(*b"SLIM");
const VERSION: u32 = 1;
/// The header up to its own CRC.
const CHECKED_BYTES: usize = IMAGE_HEADER_BYTES - 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: u32,
    version: u32,
    header_bytes: u32,
    board: u32,
    entry: u64,
    load: u64,
    payload_bytes: u64,
    memory_bytes: u64,
    layouts: [u64; 2],
    build: [u8; 16],
    payload_crc: u32,
    header_crc: u32,
}

/// A kind of board.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BoardId(pub u32);

impl BoardId {
    /// QEMU's `virt`, AArch64.
    pub const VIRT: Self = Self(1);
    /// `mps2-an385`, one Cortex-M3.
    pub const AN385: Self = Self(2);
    /// `mps2-an521`, two Cortex-M33.
    pub const AN521: Self = Self(3);
}

/// What an image says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageHeader {
    /// The board that it is built for.
    pub board: BoardId,
    /// Where execution begins.
    pub entry: DevAddr,
    /// Where the payload goes.
    pub load: DevAddr,
    /// Bytes of the payload.
    pub payload_bytes: u64,
    /// Bytes that it takes from `load` on, with what begins as zeros and with stacks.
    pub memory_bytes: u64,
    /// [`layout_hash`](extension::layout_hash) per architecture.
    pub layouts: [u64; 2],
    /// Tells one build from another.
    pub build: [u8; 16],
    /// CRC-32 of the payload.
    pub payload_crc: u32,
}

/// Why an image does not start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadImage {
    /// It is not as long as it says, or shorter than a header.
    Length {
        /// Bytes that it says it has.
        need: u64,
        /// Bytes there are.
        got: u64,
    },
    /// It begins with something else.
    Magic {
        /// What it begins with.
        got: u32,
    },
    /// A form that this side does not know.
    Version {
        /// Which.
        got: u32,
    },
    /// The header is damaged.
    HeaderCrc {
        /// What it says.
        said: u32,
        /// What its bytes come to.
        computed: u32,
    },
    /// It is for another board.
    Board {
        /// For which.
        got: u32,
        /// Which this is.
        need: u32,
    },
    /// It was built with another wire layout.
    Layout {
        /// Of which architecture: the index in [`ImageHeader::layouts`].
        arch: u32,
        /// The hash that it was built with.
        got: u64,
    },
    /// It does not fit the memory that the board has for it.
    Room {
        /// Where it would end.
        end: u64,
        /// Where that memory ends.
        most: u64,
    },
    /// It would begin before the memory that the board has for it.
    Load {
        /// Where it would begin.
        got: u64,
        /// Where that memory begins.
        least: u64,
    },
    /// Execution would begin outside the payload.
    Entry {
        /// Where.
        got: u64,
    },
    /// The payload is damaged.
    PayloadCrc {
        /// What the header says.
        said: u32,
        /// What the bytes come to.
        computed: u32,
    },
}

impl fmt::Display for BadImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length { need, got } => write!(f, "the image has {need} bytes, of which {got} are there"),
            Self::Magic { got } => write!(f, "no image: it begins with {got:#010x}"),
            Self::Version { got } => write!(f, "an image of version {got}, and {VERSION} is known"),
            Self::HeaderCrc { said, computed } => {
                write!(f, "the header is damaged: its CRC-32 is {computed:#010x}, it says {said:#010x}")
            }
            Self::Board { got, need } => write!(f, "an image for board {got}, and this is board {need}"),
            Self::Layout { arch, got } => {
                let name = if arch == 0 { "a2a3" } else { "a5" };
                write!(f, "an image with another wire layout of {name}, of hash {got:#018x}")
            }
            Self::Room { end, most } => {
                write!(f, "the image ends at {end:#x}, and the board's memory for it at {most:#x}")
            }
            Self::Load { got, least } => {
                write!(f, "the image begins at {got:#x}, and the board's memory for it at {least:#x}")
            }
            Self::Entry { got } => write!(f, "execution would begin outside the image, at {got:#x}"),
            Self::PayloadCrc { said, computed } => {
                write!(
                    f,
                    "the image is damaged: its CRC-32 is {computed:#010x}, the header says {said:#010x}"
                )
            }
        }
    }
}

impl core::error::Error for BadImage {}

impl BadImage {
    /// A code, never 0, and two numbers.
    pub const fn to_words(self) -> (u32, [u64; 2]) {
        match self {
            Self::Length { need, got } => (1, [need, got]),
            Self::Magic { got } => (2, [got as u64, 0]),
            Self::Version { got } => (3, [got as u64, 0]),
            Self::HeaderCrc { said, computed } => (4, [said as u64, computed as u64]),
            Self::Board { got, need } => (5, [got as u64, need as u64]),
            Self::Layout { arch, got } => (6, [arch as u64, got]),
            Self::Room { end, most } => (7, [end, most]),
            Self::Load { got, least } => (8, [got, least]),
            Self::Entry { got } => (9, [got, 0]),
            Self::PayloadCrc { said, computed } => (10, [said as u64, computed as u64]),
        }
    }

    /// What [`to_words`](BadImage::to_words) made; `None` for a code that it never makes.
    pub const fn from_words(code: u32, [first, second]: [u64; 2]) -> Option<Self> {
        Some(match code {
            1 => Self::Length { need: first, got: second },
            2 => Self::Magic { got: first as u32 },
            3 => Self::Version { got: first as u32 },
            4 => Self::HeaderCrc { said: first as u32, computed: second as u32 },
            5 => Self::Board { got: first as u32, need: second as u32 },
            6 => Self::Layout { arch: first as u32, got: second },
            7 => Self::Room { end: first, most: second },
            8 => Self::Load { got: first, least: second },
            9 => Self::Entry { got: first },
            10 => Self::PayloadCrc { said: first as u32, computed: second as u32 },
            _ => return None,
        })
    }
}

/// The memory that a board has for an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageRoom {
    /// The board.
    pub board: BoardId,
    /// Where the memory begins.
    pub begin: DevAddr,
    /// Where it ends.
    pub end: DevAddr,
}

/// On [`BoardId::VIRT`] images lie behind the device tree and before the stacks.
pub const VIRT_ROOM: ImageRoom =
    ImageRoom { board: BoardId::VIRT, begin: DevAddr(0x4008_0000), end: DevAddr(0x40E0_0000) };

/// Where the boot stub of [`BoardId::VIRT`] lies, and begins.
pub const VIRT_STUB: DevAddr = DevAddr(0x41F0_0000);

impl ImageHeader {
    /// The layout hashes of this build.
    pub const LAYOUTS: [u64; 2] = [extension::layout_hash(ArchId::A2a3), extension::layout_hash(ArchId::A5)];

    /// The bytes before the payload.
    pub fn encode(&self) -> [u8; IMAGE_HEADER_BYTES] {
        let &Self { board, entry, load, payload_bytes, memory_bytes, layouts, build, payload_crc } = self;
        let mut header = Header {
            magic: MAGIC,
            version: VERSION,
            header_bytes: IMAGE_HEADER_BYTES as u32,
            board: board.0,
            entry: entry.0,
            load: load.0,
            payload_bytes,
            memory_bytes,
            layouts,
            build,
            payload_crc,
            header_crc: 0,
        };
        header.header_crc = crc32(&header.as_bytes()[..CHECKED_BYTES]);
        let mut bytes = [0; IMAGE_HEADER_BYTES];
        bytes.copy_from_slice(header.as_bytes());
        bytes
    }

    /// Reads the header of an image that is `image_bytes` bytes long.
    ///
    /// # Errors
    /// [`BadImage`] when it is none, is damaged, or has another length.
    pub fn decode(bytes: &[u8; IMAGE_HEADER_BYTES], image_bytes: u64) -> Result<Self, BadImage> {
        let mut header = Header::new_zeroed();
        header.as_mut_bytes().copy_from_slice(bytes);
        if header.magic != MAGIC {
            return Err(BadImage::Magic { got: header.magic });
        }
        if header.version != VERSION {
            return Err(BadImage::Version { got: header.version });
        }
        let computed = crc32(&bytes[..CHECKED_BYTES]);
        if computed != header.header_crc {
            return Err(BadImage::HeaderCrc { said: header.header_crc, computed });
        }
        if header.header_bytes as usize != IMAGE_HEADER_BYTES {
            let (need, got) = (header.header_bytes.into(), IMAGE_HEADER_BYTES as u64);
            return Err(BadImage::Length { need, got });
        }
        let need = header.payload_bytes.saturating_add(IMAGE_HEADER_BYTES as u64);
        if need != image_bytes {
            return Err(BadImage::Length { need, got: image_bytes });
        }
        let Header { board, entry, load, payload_bytes, memory_bytes, layouts, build, payload_crc, .. } =
            header;
        Ok(Self {
            board: BoardId(board),
            entry: DevAddr(entry),
            load: DevAddr(load),
            payload_bytes,
            memory_bytes,
            layouts,
            build,
            payload_crc,
        })
    }

    /// Whether it may be loaded into `room` and started there, next to a peer of this build.
    ///
    /// # Errors
    /// [`BadImage`] when it is for another board, has another layout, or does not fit.
    pub fn check_fit(&self, room: &ImageRoom) -> Result<(), BadImage> {
        if self.board != room.board {
            return Err(BadImage::Board { got: self.board.0, need: room.board.0 });
        }
        for (arch, (got, own)) in self.layouts.into_iter().zip(Self::LAYOUTS).enumerate() {
            if got != own {
                return Err(BadImage::Layout { arch: arch as u32, got });
            }
        }
        if self.load < room.begin {
            return Err(BadImage::Load { got: self.load.0, least: room.begin.0 });
        }
        let end = self.load.0.saturating_add(self.memory_bytes.max(self.payload_bytes));
        if end > room.end.0 {
            return Err(BadImage::Room { end, most: room.end.0 });
        }
        let is_inside = self.entry >= self.load && self.entry.0 - self.load.0 < self.payload_bytes;
        if is_inside { Ok(()) } else { Err(BadImage::Entry { got: self.entry.0 }) }
    }

    /// Whether `payload` is what the image was made with.
    ///
    /// # Errors
    /// [`BadImage::PayloadCrc`] when it is not.
    pub fn check_payload(&self, payload: &[u8]) -> Result<(), BadImage> {
        let computed = crc32(payload);
        if computed == self.payload_crc {
            Ok(())
        } else {
            Err(BadImage::PayloadCrc { said: self.payload_crc, computed })
        }
    }
}

/// The image in `bytes`, which `room` takes: its header and its payload.
///
/// # Errors
/// [`BadImage`] for every other.
pub fn read_image<'a>(bytes: &'a [u8], room: &ImageRoom) -> Result<(ImageHeader, &'a [u8]), BadImage> {
    let Some((header, payload)) = bytes.split_first_chunk() else {
        return Err(BadImage::Length { need: IMAGE_HEADER_BYTES as u64, got: bytes.len() as u64 });
    };
    let header = ImageHeader::decode(header, bytes.len() as u64)?;
    header.check_fit(room)?;
    header.check_payload(payload)?;
    Ok((header, payload))
}

/// CRC-32 as Ethernet and zip have it, by half bytes: the table is small, and an image is read once.
pub fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 16] = {
        let mut table = [0; 16];
        let mut index = 0;
        while index < 16 {
            let (mut value, mut bit) = (index as u32, 0);
            while bit < 4 {
                value = if value & 1 == 1 { value >> 1 ^ 0xEDB8_8320 } else { value >> 1 };
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    };
    let step = |crc: u32, half: u32| crc >> 4 ^ TABLE[((crc ^ half) & 0xF) as usize];
    !bytes.iter().fold(!0, |crc, &byte| step(step(crc, u32::from(byte)), u32::from(byte) >> 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const ROOM: ImageRoom =
        ImageRoom { board: BoardId::VIRT, begin: DevAddr(0x4008_0000), end: DevAddr(0x4009_0000) };

    fn header(payload: &[u8]) -> ImageHeader {
        ImageHeader {
            board: BoardId::VIRT,
            entry: DevAddr(0x4008_0004),
            load: DevAddr(0x4008_0000),
            payload_bytes: payload.len() as u64,
            memory_bytes: 0x8000,
            layouts: ImageHeader::LAYOUTS,
            build: *b"one build of all",
            payload_crc: crc32(payload),
        }
    }

    fn image(header: &ImageHeader, payload: &[u8]) -> Vec<u8> {
        [&header.encode()[..], payload].concat()
    }

    fn refused(change: impl FnOnce(&mut ImageHeader)) -> BadImage {
        let payload = [7; 64];
        let mut header = header(&payload);
        change(&mut header);
        read_image(&image(&header, &payload), &ROOM).expect_err("refused")
    }

    #[test]
    fn the_checksum_is_the_one_that_everybody_has() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn an_image_that_fits_is_read_as_it_was_made() {
        let payload = [7; 64];
        let made = header(&payload);
        assert_eq!(read_image(&image(&made, &payload), &ROOM), Ok((made, &payload[..])));
    }

    #[test]
    fn an_image_for_something_else_is_refused_with_numbers() {
        assert_eq!(refused(|h| h.board = BoardId::AN385), BadImage::Board { got: 2, need: 1 });
        assert_eq!(refused(|h| h.layouts[1] = 5), BadImage::Layout { arch: 1, got: 5 });
        assert_eq!(
            refused(|h| h.load = DevAddr(0x4007_0000)),
            BadImage::Load { got: 0x4007_0000, least: 0x4008_0000 }
        );
        let room = |end| BadImage::Room { end, most: 0x4009_0000 };
        assert_eq!(refused(|h| h.memory_bytes = 0x1_0001), room(0x4009_0001));
        assert_eq!(refused(|h| h.memory_bytes = u64::MAX), room(u64::MAX));
        assert_eq!(refused(|h| h.load = DevAddr(0x4009_0000)), room(0x4009_8000));
        assert_eq!(refused(|h| h.entry = DevAddr(0x4008_0040)), BadImage::Entry { got: 0x4008_0040 });
        assert_eq!(refused(|h| h.entry = DevAddr(0x4007_FFFC)), BadImage::Entry { got: 0x4007_FFFC });
    }

    #[test]
    fn no_number_of_a_refusal_is_lost_on_its_way() {
        let all = [
            BadImage::Length { need: 1 << 40, got: 2 },
            BadImage::Magic { got: 3 },
            BadImage::Version { got: 4 },
            BadImage::HeaderCrc { said: 5, computed: 6 },
            BadImage::Board { got: 7, need: 8 },
            BadImage::Layout { arch: 1, got: 1 << 50 },
            BadImage::Room { end: 9, most: 10 },
            BadImage::Load { got: 11, least: 12 },
            BadImage::Entry { got: 13 },
            BadImage::PayloadCrc { said: 14, computed: 15 },
        ];
        for bad in all {
            let (code, numbers) = bad.to_words();
            assert_eq!(BadImage::from_words(code, numbers), Some(bad));
        }
        assert_eq!(BadImage::from_words(0, [0; 2]), None);
        assert_eq!(BadImage::from_words(11, [0; 2]), None);
    }

    proptest! {
        #[test]
        fn every_truncation_is_refused_by_its_length(payload in prop::collection::vec(any::<u8>(), 5..40)) {
            let whole = image(&header(&payload), &payload);
            for got in 0..whole.len() {
                let need = if got < IMAGE_HEADER_BYTES { IMAGE_HEADER_BYTES } else { whole.len() };
                prop_assert_eq!(
                    read_image(&whole[..got], &ROOM),
                    Err(BadImage::Length { need: need as u64, got: got as u64 })
                );
            }
        }

        #[test]
        fn every_flipped_bit_is_refused_by_what_covers_it(payload in prop::collection::vec(any::<u8>(), 5..40)) {
            let whole = image(&header(&payload), &payload);
            for bit in 0..whole.len() * 8 {
                let mut flipped = whole.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let bad = read_image(&flipped, &ROOM).expect_err("refused");
                let is_named = match bit / 8 {
                    0..4 => matches!(bad, BadImage::Magic { .. }),
                    4..8 => matches!(bad, BadImage::Version { .. }),
                    8..IMAGE_HEADER_BYTES => matches!(bad, BadImage::HeaderCrc { .. }),
                    _ => matches!(bad, BadImage::PayloadCrc { .. }),
                };
                prop_assert!(is_named, "bit {}: {}", bit, bad);
            }
        }
    }
}
