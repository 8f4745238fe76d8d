//! Damaged containers: whatever bits are flipped or missing, the reader answers with a model that keeps its promises
//! or with one line of text.

use std::io::Read as _;
use std::sync::OnceLock;

use proptest::prelude::*;
use sluice_core::exec::NrtStatus;
use sluice_host::neff::{HEADER_BYTES, Neff, Package, ReadOptions, VarKind, Work, models, pack_as};

use crate::real_model;

/// The same container unpacked, so that damage gets past the check sums of the compression.
fn unpacked(gzip: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    flate2::bufread::GzDecoder::new(&gzip[HEADER_BYTES..]).read_to_end(&mut archive).unwrap();
    let mut plain = gzip[..HEADER_BYTES].to_vec();
    plain[0] = 1;
    plain[0x10..0x18].copy_from_slice(&(archive.len() as u64).to_le_bytes());
    plain.extend(archive);
    plain
}

fn containers() -> &'static [Vec<u8>] {
    static CONTAINERS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    CONTAINERS.get_or_init(|| {
        let mut all = Vec::new();
        for name in models::NAMES {
            for package in [Package::Gzip, Package::Plain] {
                all.push(pack_as(name, models::builtin(name).unwrap(), package).unwrap());
            }
        }
        if let Some(path) = real_model::path() {
            let gzip = std::fs::read(path).unwrap();
            all.push(unpacked(&gzip));
            all.push(gzip);
        }
        all
    })
}

/// Where the members with JSON are, so that damage can aim at them.
fn text_ranges(container: &[u8]) -> Vec<std::ops::Range<usize>> {
    let block = |at: usize| container.get(at..at + 512);
    let mut ranges = Vec::new();
    let mut at = HEADER_BYTES;
    while let Some(header) = block(at).filter(|header| header[257..262] == *b"ustar") {
        let digits = std::str::from_utf8(&header[124..135]).unwrap();
        let size = usize::from_str_radix(digits.trim(), 8).unwrap();
        let name = header[..100].split(|&byte| byte == 0).next().unwrap();
        if name.ends_with(b".json") && size > 0 {
            ranges.push(at + 512..at + 512 + size);
        }
        at += 512 + size.next_multiple_of(512);
    }
    ranges
}

/// The reader's answer has to be one of the two it promises.
fn judge(bytes: &[u8]) -> Result<(), TestCaseError> {
    let neff = match Neff::parse("damaged", bytes, &ReadOptions::default()) {
        Ok(neff) => neff,
        Err(error) => {
            let text = error.to_string();
            prop_assert!(text.starts_with("damaged: ") && !text.contains('\n'), "{}", text);
            prop_assert!(text.len() < 1000, "{} bytes of text", text.len());
            let status = error.status();
            prop_assert!(
                matches!(status, NrtStatus::INVALID | NrtStatus::UNSUPPORTED_NEFF_VERSION),
                "{text}"
            );
            return Ok(());
        }
    };
    prop_assert!(!neff.summary().to_string().is_empty());
    for program in &neff.programs {
        prop_assert!(program.outputs().next().is_some());
        for (place, var) in program.vars.iter().enumerate() {
            prop_assert_eq!(var.id.0 as usize, place);
            prop_assert!(var.alignment_bytes.is_power_of_two());
            match &var.kind {
                VarKind::File { content } => prop_assert_eq!(content.len() as u64, var.size_bytes),
                VarKind::Pointer { target } => prop_assert!((target.0 as usize) < program.vars.len()),
                VarKind::PointerTable { rows } => {
                    prop_assert!(rows.iter().all(|row| (row.0 as usize) < program.vars.len()));
                }
                _ => {}
            }
        }
        for engine in &program.engines {
            for block in &engine.blocks {
                prop_assert_eq!(program.queues[block.queue].owner, engine.engine);
                let transfers = || block.copies.iter().flat_map(|copy| copy.transfers());
                prop_assert_eq!(
                    transfers().map(|t| t.len_bytes.div_ceil(65_536)).sum::<u64>(),
                    u64::from(block.pairs)
                );
                for t in transfers().filter(|_| matches!(engine.work, Work::Blocks(_))) {
                    prop_assert!(t.from_offset_bytes + t.len_bytes <= program.var(t.from).size_bytes);
                    prop_assert!(t.to_offset_bytes + t.len_bytes <= program.var(t.to).size_bytes);
                }
            }
        }
    }
    Ok(())
}

fn container() -> impl Strategy<Value = Vec<u8>> {
    (0..containers().len()).prop_map(|index| containers()[index].clone())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn flipped_bits_are_survived(
        mut bytes in container(), flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u32), 1..6),
    ) {
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
        }
        judge(&bytes)?;
    }

    #[test]
    fn a_damaged_header_is_survived(
        mut bytes in container(), at in 0..0x230usize, value: [u8; 8], len in 1..=8usize,
    ) {
        bytes[at..at + len].copy_from_slice(&value[..len]);
        judge(&bytes)?;
    }

    #[test]
    fn missing_ends_are_survived(mut bytes in container(), len in any::<prop::sample::Index>(), patched: bool) {
        bytes.truncate(len.index(bytes.len()));
        if patched && bytes.len() >= HEADER_BYTES {
            let stored = (bytes.len() - HEADER_BYTES) as u64;
            bytes[0x10..0x18].copy_from_slice(&stored.to_le_bytes());
        }
        judge(&bytes)?;
    }

    #[test]
    fn damaged_text_is_survived(
        mut bytes in container(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..24usize), 1..4),
    ) {
        // One of these takes the place of a byte, or of a digit where the byte is one.
        const BYTES: &[u8; 24] = b"0123456789-.eE\"[]{}:,\\\x00\xff";
        let ranges = text_ranges(&bytes);
        for (range, at, byte) in edits.iter().filter(|_| !ranges.is_empty()) {
            let range = range.get(&ranges);
            let digits: Vec<_> = range.clone().filter(|&at| bytes[at].is_ascii_digit()).collect();
            let at = if *byte < 14 && !digits.is_empty() { *at.get(&digits) } else { range.start + at.index(range.len()) };
            bytes[at] = BYTES[*byte];
        }
        judge(&bytes)?;
    }
}
