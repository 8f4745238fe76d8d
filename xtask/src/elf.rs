//! What is read of an executable for a board: its entry, the sections that take memory there, and the bytes to load.
//!
//! Both classes, little-endian, as linkers write them for the targets of this project.

use anyhow::{Context, bail, ensure};

const MAGIC: &[u8] = b"\x7fELF";
const LITTLE_ENDIAN: u8 = 1;
/// A program header that is loaded.
const LOAD: u64 = 1;
/// A section without bytes in the file.
const NO_BITS: u64 = 8;
const WRITE: u64 = 1;
const ALLOC: u64 = 2;
const EXECUTE: u64 = 4;

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
pub(crate) struct Elf<'a> {
    file: &'a [u8],
    is_wide: bool,
}

/// Where a field of a header lies: in narrow files, in wide ones.
type Places = [usize; 2];

impl<'a> Elf<'a> {
    /// Takes `file` as an executable.
    pub(crate) fn new(file: &'a [u8]) -> anyhow::Result<Self> {
        ensure!(file.starts_with(MAGIC), "no ELF file: it begins with {:02x?}", &file[..file.len().min(4)]);
        let [class, order] = [4, 5].map(|at| file.get(at).copied().unwrap_or_default());
        if order != LITTLE_ENDIAN || !(1..=2).contains(&class) {
            bail!("an ELF file of class {class} and byte order {order}");
        }
        Ok(Self { file, is_wide: class == 2 })
    }

    /// Where execution begins.
    pub(crate) fn entry(&self) -> anyhow::Result<u64> {
        self.address(0, [0x18, 0x18])
    }

    /// The sections that take memory.
    pub(crate) fn sections(&self) -> anyhow::Result<Vec<Section>> {
        let headers = self.table([0x20, 0x28], [0x2E, 0x3A])?;
        let names = *headers.get(self.number(0, [0x32, 0x3E], 2)? as usize).context("no section names")?;
        let names_at = self.address(names, [0x10, 0x18])?;
        let mut sections = Vec::new();
        for header in headers {
            let flags = self.address(header, [8, 8])?;
            if flags & ALLOC == 0 {
                continue;
            }
            let has_no_bits = self.number(header, [4, 4], 4)? == NO_BITS;
            let use_ = match flags & (WRITE | EXECUTE) {
                WRITE if has_no_bits => Use::Zeros,
                WRITE => Use::Data,
                0 if has_no_bits => Use::Zeros,
                0 => Use::Constants,
                _ => Use::Text,
            };
            let name = self.text(names_at + self.number(header, [0, 0], 4)?)?;
            sections.push(Section { name, bytes: self.address(header, [0x14, 0x20])?, use_ });
        }
        Ok(sections)
    }

    /// The bytes to load, by ascending address.
    pub(crate) fn segments(&self) -> anyhow::Result<Vec<Segment<'a>>> {
        let mut segments = Vec::new();
        for header in self.table([0x1C, 0x20], [0x2A, 0x36])? {
            let memory_bytes = self.address(header, [0x14, 0x28])?;
            if self.number(header, [0, 0], 4)? == LOAD && memory_bytes > 0 {
                let bytes = self.range(self.address(header, [4, 8])?, self.address(header, [0x10, 0x20])?)?;
                segments.push(Segment { at: self.address(header, [0xC, 0x18])?, bytes, memory_bytes });
            }
        }
        segments.sort_by_key(|segment| segment.at);
        Ok(segments)
    }

    /// Places of the headers of a table, of which the file's header says at `table` where it begins, and at `sizes` how long
    /// one is and how many there are.
    fn table(&self, table: Places, sizes: Places) -> anyhow::Result<Vec<u64>> {
        let first = self.address(0, table)?;
        let bytes = self.number(0, sizes, 2)?;
        let count = self.number(0, sizes.map(|at| at + 2), 2)?;
        Ok((0..count).map(|index| first + index * bytes).collect())
    }

    /// An address or a size of the header at `header`.
    fn address(&self, header: u64, places: Places) -> anyhow::Result<u64> {
        self.number(header, places, if self.is_wide { 8 } else { 4 })
    }

    fn number(&self, header: u64, places: Places, bytes: u64) -> anyhow::Result<u64> {
        let at = header + places[usize::from(self.is_wide)] as u64;
        let digits = self.range(at, bytes)?;
        Ok(digits.iter().rev().fold(0, |number, &digit| number << 8 | u64::from(digit)))
    }

    fn text(&self, at: u64) -> anyhow::Result<String> {
        let from = self.file.get(at as usize..).unwrap_or_default();
        let end = from.iter().position(|&byte| byte == 0).with_context(|| format!("no text at {at}"))?;
        Ok(String::from_utf8_lossy(&from[..end]).into_owned())
    }

    fn range(&self, at: u64, bytes: u64) -> anyhow::Result<&'a [u8]> {
        let end = at.checked_add(bytes).and_then(|end| usize::try_from(end).ok());
        end.and_then(|end| self.file.get(at as usize..end))
            .with_context(|| format!("need bytes {at} to {} of a file of {}", at + bytes, self.file.len()))
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
        put(0x40, LOAD, 4);
        put(0x48, 0xF0, 8);
        put(0x40 + 0x18, 0x4008_0000, 8);
        put(0x40 + 0x20, 8, 8);
        put(0x40 + 0x28, 24, 8);
        put(0xF0, 0x0102_0304_0506_0708, 8);
        // The sections.
        for (index, (name, kind, flags, at, bytes)) in
            [(1, 1, ALLOC | EXECUTE, 0xF0, 8), (7, NO_BITS, ALLOC | WRITE, 0, 16), (12, 3, 0, 0xE0, 16)]
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
        let elf = Elf::new(&file).unwrap();
        assert_eq!(elf.entry().unwrap(), 0x4008_0004);
        assert_eq!(
            elf.sections().unwrap(),
            [
                Section { name: ".text".into(), bytes: 8, use_: Use::Text },
                Section { name: ".bss".into(), bytes: 16, use_: Use::Zeros },
            ]
        );
        assert_eq!(
            elf.segments().unwrap(),
            [Segment { at: 0x4008_0000, bytes: &[8, 7, 6, 5, 4, 3, 2, 1], memory_bytes: 24 }]
        );
    }

    #[test]
    fn what_is_cut_off_or_none_is_refused() {
        let file = sample();
        for length in 0..0x190 {
            let read = Elf::new(&file[..length]).and_then(|elf| Ok((elf.sections()?, elf.segments()?)));
            assert!(read.is_err(), "{length} bytes");
        }
        assert!(Elf::new(b"\x7fELF\x03\x01").is_err());
        assert!(Elf::new(b"MZ").is_err());
    }
}
