//! Constants inside a container: plain bytes, or an array file of the numeric Python library.
//!
//! ```text
//! 93 'N' 'U' 'M' 'P' 'Y' | major minor | header length: u16 (major 1) or u32 | header text | data
//! ```

const MAGIC: &[u8] = b"\x93NUMPY";

/// Array files align their data to this.
const DATA_ALIGNMENT: usize = 64;

/// The data of a constant: what follows the array header where there is one, else everything.
pub(super) fn data(bytes: &[u8]) -> Result<&[u8], String> {
    let Some(rest) = bytes.strip_prefix(MAGIC) else { return Ok(bytes) };
    let truncated = || format!("array file ends inside its header, at byte {}", bytes.len());
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(truncated)?;
    let (header_bytes, rest) = match version[0] {
        1 => {
            let (len, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
            (usize::from(u16::from_le_bytes(*len)), rest)
        }
        2 | 3 => {
            let (len, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
            (u32::from_le_bytes(*len) as usize, rest)
        }
        other => return Err(format!("array file of version {other}, supported are 1 to 3")),
    };
    rest.get(header_bytes..).ok_or_else(truncated)
}

/// An array file with `data` as a list of bytes.
pub(super) fn array_file(data: &[u8]) -> Vec<u8> {
    let mut text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}", data.len());
    let prefix_bytes = MAGIC.len() + 4;
    let padded = (prefix_bytes + text.len() + 1).next_multiple_of(DATA_ALIGNMENT) - prefix_bytes;
    text.push_str(&" ".repeat(padded - text.len() - 1));
    text.push('\n');
    let mut file = MAGIC.to_vec();
    file.extend([1, 0]);
    // The text is two lines of a terminal at most, whatever the length of the data.
    file.extend((text.len() as u16).to_le_bytes());
    file.extend(text.into_bytes());
    file.extend(data);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_file_gives_its_data_back() {
        for len in [0, 1, 63, 64, 100_000] {
            let bytes = vec![7; len];
            let file = array_file(&bytes);
            assert_eq!((file.len() - len) % 64, 0);
            assert_eq!(data(&file), Ok(&bytes[..]));
        }
    }

    #[test]
    fn known_header_is_skipped() {
        let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        file.resize(10 + 0x76, b' ');
        file.extend([1, 2, 3]);
        assert_eq!(data(&file), Ok(&[1, 2, 3][..]));
        let mut wide = b"\x93NUMPY\x02\x00\x04\x00\x00\x00 ab\n".to_vec();
        wide.extend([9]);
        assert_eq!(data(&wide), Ok(&[9][..]));
    }

    #[test]
    fn other_files_are_plain_bytes() {
        assert_eq!(data(&[]), Ok(&[][..]));
        assert_eq!(data(b"\x93NUMP"), Ok(&b"\x93NUMP"[..]));
    }

    #[test]
    fn headers_cut_short_are_refused() {
        let file = array_file(&[]);
        for len in 6..file.len() {
            assert_eq!(data(&file[..len]), Err(format!("array file ends inside its header, at byte {len}")));
        }
        assert_eq!(data(b"\x93NUMPY\x09\x00"), Err("array file of version 9, supported are 1 to 3".into()));
    }
}
