//! What is read of an executable for a board: its entry, the sections that take memory there, and the bytes to load.

use anyhow::{Context, bail};
use object::elf::{
    FileHeader32, FileHeader64, PT_LOAD, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHT_NOBITS, SectionFlags,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, FileKind};

/// How a section is used on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Instructions.
    Text,
    /// What is only read.
    Constants,
    /// What is written and has a value from the start.
    Data,
    /// What is written and begins as zeros.
    Zeros,
}

/// A section that takes memory on the board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) use_: Use,
}

/// Bytes to load at an address, and how many it takes there with the zeros behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) at: u64,
    pub(crate) bytes: &'a [u8],
    pub(crate) memory_bytes: u64,
}

/// An executable.
#[derive(Debug)]
pub(crate) struct Elf<'a> {
    /// Where execution begins.
    pub(crate) entry: u64,
    /// The sections that take memory.
    pub(crate) sections: Vec<Section>,
    /// The bytes to load, by ascending address: that where a programmer puts them, not where they are used.
    pub(crate) segments: Vec<Segment<'a>>,
}

impl<'a> Elf<'a> {
    /// Reads `file`.
    pub(crate) fn read(file: &'a [u8]) -> anyhow::Result<Self> {
        match FileKind::parse(file).context("no executable")? {
            FileKind::Elf32 => Self::of::<FileHeader32<Endianness>>(file),
            FileKind::Elf64 => Self::of::<FileHeader64<Endianness>>(file),
            other => bail!("no ELF file, but {other:?}"),
        }
    }

    fn of<H: FileHeader<Endian = Endianness>>(file: &'a [u8]) -> anyhow::Result<Self> {
        let header = H::parse(file)?;
        let endian = header.endian()?;
        let table = header.sections(endian, file)?;
        let mut sections = Vec::new();
        for section in table.iter() {
            let flags = section.sh_flags(endian);
            let has = |flag: SectionFlags| flags.0 & flag.0 != 0;
            if !has(SHF_ALLOC) {
                continue;
            }
            let use_ = match section.sh_type(endian) {
                _ if has(SHF_EXECINSTR) => Use::Text,
                SHT_NOBITS => Use::Zeros,
                _ if has(SHF_WRITE) => Use::Data,
                _ => Use::Constants,
            };
            let name = String::from_utf8_lossy(table.section_name(endian, section)?).into_owned();
            sections.push(Section { name, bytes: section.sh_size(endian).into(), use_ });
        }
        let mut segments = Vec::new();
        for segment in header.program_headers(endian, file)? {
            let memory_bytes: u64 = segment.p_memsz(endian).into();
            if segment.p_type(endian) == PT_LOAD && memory_bytes > 0 {
                let at = segment.p_paddr(endian).into();
                let bytes = segment.data(endian, file).ok();
                let bytes = bytes.with_context(|| format!("the bytes for {at:#x} are not in the file"))?;
                segments.push(Segment { at, bytes, memory_bytes });
            }
        }
        segments.sort_by_key(|segment| segment.at);
        Ok(Self { entry: header.e_entry(endian).into(), sections, segments })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A wide executable with a segment and three sections: 8 bytes of instructions, 16 of zeros, a comment.
    pub(crate) fn sample() -> Vec<u8> {
        let mut file = vec![0; 0x200];
        let mut put = |at: usize, value: u64, bytes: usize| {
            file[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        };
        put(0, u64::from(u32::from_le_bytes(*b"\x7fELF")) | 0x0001_0102 << 32, 8);
        put(0x18, 0x4008_0004, 8);
        put(0x20, 0x40, 8);
        put(0x28, 0x100, 8);
        put(0x36, 0x38, 2);
        put(0x38, 1, 2);
        put(0x3A, 0x40, 2);
        put(0x3C, 3, 2);
        put(0x3E, 2, 2);
        // The segment.
        put(0x40, PT_LOAD.0.into(), 4);
        put(0x48, 0xF0, 8);
        put(0x40 + 0x18, 0x4008_0000, 8);
        put(0x40 + 0x20, 8, 8);
        put(0x40 + 0x28, 24, 8);
        put(0xF0, 0x0102_0304_0506_0708, 8);
        // The sections.
        for (index, (name, kind, flags, at, bytes)) in [
            (1, 1, SHF_ALLOC.0 | SHF_EXECINSTR.0, 0xF0, 8),
            (7, SHT_NOBITS.0.into(), SHF_ALLOC.0 | SHF_WRITE.0, 0, 16),
            (12, 3, 0, 0xE0, 16),
        ]
        .into_iter()
        .enumerate()
        {
            let header = 0x100 + index * 0x40;
            put(header, name, 4);
            put(header + 4, kind, 4);
            put(header + 8, flags, 8);
            put(header + 0x18, at, 8);
            put(header + 0x20, bytes, 8);
        }
        file[0xE0..0xF0].copy_from_slice(b"\0.text\0.bss\0..\0\0");
        file
    }

    #[test]
    fn sections_and_segments_are_read() {
        let file = sample();
        let elf = Elf::read(&file).unwrap();
        assert_eq!(elf.entry, 0x4008_0004);
        assert_eq!(
            elf.sections,
            [
                Section { name: ".text".into(), bytes: 8, use_: Use::Text },
                Section { name: ".bss".into(), bytes: 16, use_: Use::Zeros },
            ]
        );
        assert_eq!(
            elf.segments,
            [Segment { at: 0x4008_0000, bytes: &[8, 7, 6, 5, 4, 3, 2, 1], memory_bytes: 24 }]
        );
    }

    #[test]
    fn what_is_cut_off_or_none_is_refused() {
        let file = sample();
        for length in 0..0x190 {
            assert!(Elf::read(&file[..length]).is_err(), "{length} bytes");
        }
        assert!(Elf::read(b"\x7fELF\x03\x01").is_err());
        assert!(Elf::read(b"MZ").is_err());
    }
}
