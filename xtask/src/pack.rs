//! Executables made into images that a boot stub loads: what lies at which address, flat, behind a header that says for what
//! board and wire layout.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use sluice_core::exec::image::{BoardId, ImageHeader, crc32};
use sluice_core::mem::DevAddr;

use crate::elf::{Elf, Segment};

/// More than any board of the project has between its first and its last byte.
const MOST_BYTES: u64 = 64 << 20;

/// Makes the executable at `path` an image for `board`, beside it.
pub(crate) fn pack_file(path: &Path, board: BoardId) -> anyhow::Result<PathBuf> {
    let file = std::fs::read(path).with_context(|| path.display().to_string())?;
    let image = pack(&Elf::read(&file)?, board).with_context(|| path.display().to_string())?;
    let packed = path.with_extension("slim");
    std::fs::write(&packed, image).with_context(|| packed.display().to_string())?;
    Ok(packed)
}

/// The image of `elf` for `board`.
fn pack(elf: &Elf<'_>, board: BoardId) -> anyhow::Result<Vec<u8>> {
    let (load, payload) = flat(&elf.segments)?;
    let end = elf.segments.iter().map(|segment| segment.at + segment.memory_bytes).max().unwrap_or(load);
    let header = ImageHeader {
        board,
        entry: DevAddr(elf.entry),
        load: DevAddr(load),
        payload_bytes: payload.len() as u64,
        memory_bytes: end - load,
        layouts: ImageHeader::LAYOUTS,
        build: build_id(&payload),
        payload_crc: crc32(&payload),
    };
    Ok([&header.encode()[..], &payload].concat())
}

/// The bytes of `segments` from the first to the last, with zeros between them, and where they begin.
pub(crate) fn flat(segments: &[Segment<'_>]) -> anyhow::Result<(u64, Vec<u8>)> {
    let load = segments.first().context("nothing to load")?.at;
    let mut bytes = Vec::new();
    for segment in segments.iter().filter(|segment| !segment.bytes.is_empty()) {
        let gap = (segment.at - load).checked_sub(bytes.len() as u64);
        let gap = gap.with_context(|| format!("two segments have bytes at {:#x}", segment.at))?;
        ensure!(gap <= MOST_BYTES, "{gap} bytes between two segments, the last of them at {:#x}", segment.at);
        bytes.resize(bytes.len() + gap as usize, 0);
        bytes.extend_from_slice(segment.bytes);
    }
    Ok((load, bytes))
}

/// What tells `payload` from another: two FNV-1a sums of it.
fn build_id(payload: &[u8]) -> [u8; 16] {
    const PRIME: u64 = 0x100_0000_01B3;
    let sum = |seed: u64| {
        payload.iter().fold(seed, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(PRIME)).to_le_bytes()
    };
    let mut id = [0; 16];
    id[..8].copy_from_slice(&sum(0xCBF2_9CE4_8422_2325));
    id[8..].copy_from_slice(&sum(0x6C62_272E_07BB_0142));
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::tests::sample;
    use sluice_core::exec::image::{VIRT_ROOM, read_image};

    #[test]
    fn an_executable_becomes_an_image_that_its_board_takes() {
        let file = sample();
        let image = pack(&Elf::read(&file).unwrap(), BoardId::VIRT).unwrap();
        let (header, payload) = read_image(&image, &VIRT_ROOM).unwrap();
        assert_eq!(payload, [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!((header.entry.0, header.load.0, header.memory_bytes), (0x4008_0004, 0x4008_0000, 24));
    }

    #[test]
    fn gaps_are_filled_and_overlaps_refused() {
        let segment = |at, bytes| Segment { at, bytes, memory_bytes: 4 };
        let two = [segment(0x100, &[1, 2]), segment(0x104, &[3])];
        assert_eq!(flat(&two).unwrap(), (0x100, vec![1, 2, 0, 0, 3]));
        let overlap = flat(&[segment(0x100, &[1, 2]), segment(0x101, &[3])]).unwrap_err();
        assert_eq!(overlap.to_string(), "two segments have bytes at 0x101");
        assert!(flat(&[segment(0, &[1]), segment(1 << 40, &[3])]).is_err());
        assert!(flat(&[]).is_err());
    }

    #[test]
    fn a_bit_makes_another_build() {
        assert_ne!(build_id(&[1, 2, 3]), build_id(&[1, 2, 2]));
    }
}
