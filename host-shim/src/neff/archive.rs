//! The payload of a container: an archive whose members stay in memory and are found by name.
//!
//! Nothing is ever written to disk. Every member is a regular file with a relative path of plain components;
//! whatever could mean something else to an unpacker — absolute paths, `..`, links, devices, extension headers, the
//! same name twice — makes the container invalid, even where no one asks for that member.
//!
//! The gzip stream of a version 2 package ends inside the payload; what follows is padding and has to be zero. Bytes
//! that are not zero there (a second stream, something hidden) make the container invalid. Bytes of the file after the
//! payload are not part of the container and are ignored.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};
use std::ops::{Bound, Range};

use flate2::bufread::GzDecoder;
use tar::EntryType;

use super::ReadOptions;
use super::bytes::Bytes;
use super::error::{Bare, NeffError, NeffFault, Place, Quoted};
use super::header::Package;

/// A size of all archives: headers and contents are multiples of it.
pub(super) const BLOCK_BYTES: u64 = 512;

/// The members of a payload.
#[derive(Debug)]
pub(super) struct Archive {
    bytes: Bytes,
    members: BTreeMap<String, Range<usize>>,
}

impl Archive {
    /// Unpacks `payload` into memory and lists it. A payload that is the archive itself is kept as `shared` gives it.
    pub(super) fn open(
        place: Place<'_>,
        package: Package,
        payload: &[u8],
        shared: impl FnOnce() -> Bytes,
        options: &ReadOptions,
    ) -> Result<Self, NeffError> {
        let bytes = match package {
            Package::Plain => shared(),
            Package::Gzip => unzip(place, payload, options.max_archive_bytes)?.into(),
        };
        if bytes.len() as u64 > options.max_archive_bytes {
            return Err(too_large(place, options.max_archive_bytes));
        }
        let members = list(place, &bytes, options.max_members)?;
        Ok(Self { bytes, members })
    }

    /// The content of a member.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.members.get(name).map(|range| &self.bytes[range.clone()])
    }

    /// The members whose names begin with `folder`, which ends with a slash or is empty, in name order.
    pub(super) fn under<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let from = self.members.range::<str, _>((Bound::Included(folder), Bound::Unbounded));
        let under = from.take_while(move |(name, _)| name.starts_with(folder));
        under.map(|(name, range)| (name.as_str(), &self.bytes[range.clone()]))
    }

    /// `content`, a slice of a member, without a copy.
    pub(super) fn share(&self, content: &[u8]) -> Bytes {
        self.bytes.share(content)
    }

    /// Names and lengths of all members, in name order.
    pub(super) fn members(&self) -> impl Iterator<Item = (&str, usize)> {
        self.members.iter().map(|(name, range)| (name.as_str(), range.len()))
    }
}

fn too_large(place: Place<'_>, limit: u64) -> NeffError {
    place.invalid(format_args!("the archive has more than {limit} bytes unpacked, the limit"))
}

fn unzip(place: Place<'_>, payload: &[u8], limit: u64) -> Result<Vec<u8>, NeffError> {
    let broken = |error: io::Error, read: usize| {
        place.invalid(format_args!("gzip stream, {read} of {} payload bytes read: {error}", payload.len()))
    };
    // Twice through: the first tells how much memory the second needs, whatever the stream claims.
    let mut stream = GzDecoder::new(payload);
    let len = io::copy(&mut (&mut stream).take(limit.saturating_add(1)), &mut io::sink())
        .map_err(|error| broken(error, payload.len() - stream.get_ref().len()))?;
    if len > limit {
        return Err(too_large(place, limit));
    }
    let rest = stream.into_inner();
    if let Some(at) = rest.iter().position(|&byte| byte != 0) {
        let offset = payload.len() - rest.len() + at;
        return Err(place.invalid(format_args!(
            "byte {:#04x} at payload offset {offset}, after the end of the gzip stream; only zero padding may follow",
            rest[at]
        )));
    }
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len as usize)
        .map_err(|_| place.fault(None, NeffFault::HostMemory { bytes: len }))?;
    GzDecoder::new(payload).read_to_end(&mut bytes).map_err(|error| broken(error, payload.len()))?;
    Ok(bytes)
}

fn list(
    place: Place<'_>,
    bytes: &[u8],
    max_members: usize,
) -> Result<BTreeMap<String, Range<usize>>, NeffError> {
    // The text repeats bytes of the entry.
    let broken = |error: io::Error| place.invalid(format_args!("archive: {}", Bare(&error.to_string())));
    let mut members = BTreeMap::new();
    let mut archive = tar::Archive::new(Cursor::new(bytes));
    for (number, entry) in archive.entries().map_err(broken)?.raw(true).enumerate() {
        let entry = entry.map_err(broken)?;
        if number >= max_members {
            return Err(place.invalid(format_args!("more than {max_members} members in the archive")));
        }
        let path = entry.path_bytes();
        let name = std::str::from_utf8(&path).map_err(|error| {
            let lossy = String::from_utf8_lossy(&path);
            place.invalid(format_args!(
                "member {} has a name that is not UTF-8 at byte {}",
                Quoted(&lossy),
                error.valid_up_to()
            ))
        })?;
        let at = place.member(name);
        let kind = entry.header().entry_type();
        let is_directory = kind == EntryType::Directory;
        if !is_directory && !matches!(kind, EntryType::Regular | EntryType::Continuous) {
            return Err(at.invalid(format_args!("is {}, only plain files belong here", kind_name(kind))));
        }
        let path = plain_path(if is_directory { name.trim_end_matches('/') } else { name })
            .map_err(|rule| at.invalid(format_args!("member name {}: {rule}", Quoted(name))))?;
        if is_directory {
            continue;
        }
        let (start, len) = (entry.raw_file_position(), entry.size());
        // The content of a whole archive is followed by padding up to a block.
        let padded = len.checked_next_multiple_of(BLOCK_BYTES).and_then(|len| start.checked_add(len));
        if padded.is_none_or(|end| end > bytes.len() as u64) {
            return Err(at.invalid(format_args!(
                "{len} bytes at archive offset {start}, the archive ends at {}",
                bytes.len()
            )));
        }
        let range = start as usize..(start + len) as usize;
        if members.insert(path.to_owned(), range).is_some() {
            return Err(at.invalid("appears twice in the archive"));
        }
    }
    Ok(members)
}

fn kind_name(kind: EntryType) -> String {
    match kind {
        EntryType::Link => "a hard link".into(),
        EntryType::Symlink => "a symbolic link".into(),
        EntryType::Char | EntryType::Block => "a device".into(),
        EntryType::Fifo => "a pipe".into(),
        EntryType::GNUSparse => "a sparse file".into(),
        other => format!("an entry of type {:?}", char::from(other.as_byte())),
    }
}

/// The path without a leading `./`, or the rule that it breaks.
pub(super) fn plain_path(path: &str) -> Result<&str, &'static str> {
    let path = path.strip_prefix("./").unwrap_or(path);
    if path.len() > 255 {
        return Err("longer than 255 bytes");
    }
    if path.starts_with('/') {
        return Err("an absolute path");
    }
    if path.contains(|c: char| c.is_control() || c == '\\') {
        return Err("control character or backslash");
    }
    match path.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        Some("..") => Err("a path that leaves its folder"),
        Some(_) => Err("an empty path component"),
        None => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write as _;

    /// One entry with every field free, so that hostile ones can be made.
    fn entry(name: &[u8], kind: u8, size: u64, content: &[u8]) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(EntryType::new(kind));
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn file(name: &str, content: &[u8]) -> Vec<u8> {
        entry(name.as_bytes(), b'0', content.len() as u64, content)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn open_with(
        package: Package,
        payload: &[u8],
        options: ReadOptions,
    ) -> Result<Vec<(String, Vec<u8>)>, String> {
        let archive = Archive::open(Place::file("f"), package, payload, || payload.to_vec().into(), &options)
            .map_err(|e| e.to_string())?;
        Ok(archive.members().map(|(name, _)| (name.into(), archive.get(name).unwrap().into())).collect())
    }

    fn open(package: Package, payload: &[u8]) -> Result<Vec<(String, Vec<u8>)>, String> {
        open_with(package, payload, ReadOptions::default())
    }

    fn refused(entries: &[Vec<u8>]) -> String {
        open(Package::Plain, &entries.concat()).unwrap_err()
    }

    #[test]
    fn both_packages_give_the_same_members() {
        let tar = [file("sg00/a.bin", b"abc"), file("./neff.json", &[7; 513]), vec![0; 1024]].concat();
        let want = vec![("neff.json".to_string(), vec![7; 513]), ("sg00/a.bin".to_string(), b"abc".to_vec())];
        assert_eq!(open(Package::Plain, &tar).as_ref(), Ok(&want));
        assert_eq!(open(Package::Gzip, &gzip(&tar)).as_ref(), Ok(&want));
    }

    #[test]
    fn zero_padding_after_the_stream_is_ignored_and_anything_else_refused() {
        let mut payload = gzip(&file("a", b"abc"));
        let end = payload.len();
        payload.resize(end + 100, 0);
        assert!(open(Package::Gzip, &payload).is_ok());
        payload[end + 40] = 0x1F;
        let offset = end + 40;
        assert_eq!(
            open(Package::Gzip, &payload).unwrap_err(),
            format!(
                "f: byte 0x1f at payload offset {offset}, after the end of the gzip stream; only zero padding may follow"
            )
        );
        let two = [gzip(&file("a", b"")), gzip(&file("b", b""))].concat();
        assert!(open(Package::Gzip, &two).unwrap_err().contains("only zero padding may follow"));
    }

    #[test]
    fn a_gzip_bomb_ends_at_the_limit() {
        let bomb = gzip(&vec![0; 8 << 20]);
        let options = ReadOptions { max_archive_bytes: 1 << 20, ..ReadOptions::default() };
        assert_eq!(
            open_with(Package::Gzip, &bomb, options).unwrap_err(),
            "f: the archive has more than 1048576 bytes unpacked, the limit"
        );
    }

    #[test]
    fn damaged_streams_are_refused() {
        let whole = gzip(&file("a", &[1; 4000]));
        for cut in [0, 5, 20, whole.len() - 1] {
            assert!(open(Package::Gzip, &whole[..cut]).unwrap_err().starts_with("f: gzip stream, "));
        }
        let mut flipped = whole.clone();
        let crc = whole.len() - 8;
        flipped[crc] ^= 1;
        assert!(open(Package::Gzip, &flipped).unwrap_err().starts_with("f: gzip stream, "));
    }

    #[test]
    fn an_entry_that_breaks_the_archive_stays_on_one_line() {
        let mut broken = file("a\nb", b"");
        broken[148..156].copy_from_slice(b"\xff\nok\x1b[2J");
        let text = refused(&[broken]);
        assert!(text.starts_with("f: archive: ") && !text.contains(char::is_control), "{text:?}");
    }

    #[test]
    fn paths_that_escape_are_refused() {
        for (name, rule) in [
            ("../a", "leaves its folder"),
            ("sg00/../../a", "leaves its folder"),
            ("..", "leaves its folder"),
            ("/etc/passwd", "an absolute path"),
            (".//etc/passwd", "an absolute path"),
            ("a//b", "an empty path component"),
            ("a/./b", "an empty path component"),
            ("a/", "an empty path component"),
            ("", "an empty path component"),
            ("..\\a", "backslash"),
            ("a\nb", "control character"),
        ] {
            let error = refused(&[file(name, b"x")]);
            assert!(error.contains(rule) && !error.contains('\n'), "{name:?}: {error}");
        }
    }

    #[test]
    fn everything_but_plain_files_is_refused() {
        for (kind, name) in [
            (b'1', "is a hard link"),
            (b'2', "is a symbolic link"),
            (b'3', "is a device"),
            (b'4', "is a device"),
            (b'6', "is a pipe"),
            (b'S', "is a sparse file"),
            (b'L', "is an entry of type 'L'"),
            (b'x', "is an entry of type 'x'"),
            (b'g', "is an entry of type 'g'"),
        ] {
            let error = refused(&[entry(b"sg00/a", kind, 0, b"")]);
            assert!(error.starts_with("f: sg00/a: ") && error.contains(name), "{error}");
        }
        assert_eq!(open(Package::Plain, &entry(b"sg00/", b'5', 0, b"")), Ok(vec![]));
        assert!(refused(&[entry(b"../sg00/", b'5', 0, b"")]).contains("leaves its folder"));
    }

    #[test]
    fn duplicate_members_are_refused() {
        assert_eq!(refused(&[file("a", b"1"), file("a", b"2")]), "f: a: appears twice in the archive");
        assert_eq!(refused(&[file("a", b"1"), file("./a", b"2")]), "f: ./a: appears twice in the archive");
    }

    #[test]
    fn sizes_beyond_the_archive_are_refused() {
        for size in [513, 1 << 32, u64::MAX - 600, u64::MAX] {
            let error = refused(&[entry(b"a", b'0', size, &[1; 512])]);
            assert!(error.contains("f: ") && !error.contains('\n'), "{error}");
        }
        let cut = &file("a", &[1; 600])[..512 + 700];
        assert_eq!(
            open(Package::Plain, cut).unwrap_err(),
            "f: a: 600 bytes at archive offset 512, the archive ends at 1212"
        );
    }

    #[test]
    fn names_have_to_be_utf8() {
        let error = refused(&[entry(b"a\xffb", b'0', 0, b"")]);
        assert_eq!(error, "f: member `a\u{fffd}b` has a name that is not UTF-8 at byte 1");
    }

    #[test]
    fn the_number_of_members_is_bounded() {
        let many: Vec<_> = (0..11).map(|i| file(&format!("m{i}"), b"")).collect();
        let options = ReadOptions { max_members: 10, ..ReadOptions::default() };
        assert_eq!(
            open_with(Package::Plain, &many.concat(), options).unwrap_err(),
            "f: more than 10 members in the archive"
        );
    }
}
