//! The compiled-model container (NEFF): reading, writing and describing it.
//!
//! ```text
//! ┌────────┬───────────────────────────────────────────────┬─────────┐
//! │ header │ archive, plain or gzip                        │ zero    │
//! │ 1 KiB  │  neff.json ► kelf-0.json ► sgNN/def.json      │ padding │
//! │        │    sgNN/{PE,…}.json .bin     constants, rest  │         │
//! └────────┴───────────────────────────────────────────────┴─────────┘
//!      │           │
//!      ▼           ▼
//!   Header     one Program per subgraph: variables, queues, engines
//! ```
//!
//! A container is foreign data. Everything it says is checked while it is read, in bounded memory, and a [`Program`]
//! that exists keeps the promises of its documentation. Nothing is written to disk.

mod archive;
mod bytes;
mod check;
mod constant;
mod digest;
mod error;
mod graph;
mod header;
pub mod inspect;
mod json;
pub mod models;
mod pack;
pub mod pattern;
pub mod program;
mod read;
pub mod spec;
#[cfg(test)]
pub(crate) mod testing;
mod write;

use std::cell::Cell;
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;

use archive::Archive;
pub use bytes::Bytes;
pub use check::ProgramFault;
pub(crate) use error::Bare;
use error::Place;
pub use error::{NeffError, NeffFault};
pub use header::{HEADER_BYTES, Header, Package, SUPPORTED_FEATURES};
use json::JsonBudget;
pub use pack::{pack, pack_as};
pub use pattern::{Dim, DmaCopy, Pattern, PatternError, Transfer};
pub(crate) use program::POINTER_BYTES;
pub use program::{
    Backing, CarveOut, DmaBlock, DmaOp, EngineProgram, Program, Queue, QueueKind, Tables, Target,
    UnknownTarget, Var, VarKind, Work,
};
/// An instruction that runs a [`DmaBlock`]; what [`Work::Blocks`] is made of.
pub use sluice_core::exec::RunBlock;

/// How much a container may ask for, and what is checked beyond its structure.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Largest file.
    pub max_file_bytes: u64,
    /// Largest archive, unpacked; also the most bytes of constants and instructions, and of tables.
    pub max_archive_bytes: u64,
    /// Most members of the archive.
    pub max_members: usize,
    /// Largest JSON member.
    pub max_json_bytes: u64,
    /// Deepest nesting of JSON.
    pub max_json_depth: usize,
    /// Most JSON values in all members that are read.
    pub max_json_values: usize,
    /// Most descriptor pairs that the static lists may become.
    pub max_pairs: u64,
    /// Compare the hash in the header with the payload; runtimes do so only when asked to.
    pub verify_hash: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            max_file_bytes: 1 << 30,
            max_archive_bytes: 1 << 30,
            max_members: 1 << 16,
            max_json_bytes: 128 << 20,
            max_json_depth: 32,
            max_json_values: 8 << 20,
            max_pairs: 1 << 20,
            verify_hash: false,
        }
    }
}

/// A limit on the sum of many things.
#[derive(Clone, Debug)]
struct Allowance {
    limit: u64,
    left: Cell<u64>,
}

impl Allowance {
    fn new(limit: u64) -> Self {
        Self { limit, left: Cell::new(limit) }
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn left(&self) -> u64 {
        self.left.get()
    }

    /// Uses `amount` up, or says what the limit is.
    fn take(&self, amount: u64) -> Result<(), u64> {
        self.left.set(self.left.get().checked_sub(amount).ok_or(self.limit)?);
        Ok(())
    }
}

/// What one container may still use. Members can be named any number of times, so what is made of them is bounded in
/// total and not by member.
#[derive(Clone, Debug)]
struct Budget {
    json: JsonBudget,
    content_bytes: Allowance,
    table_bytes: Allowance,
    pairs: Allowance,
}

impl Budget {
    fn of(options: &ReadOptions) -> Self {
        Self {
            json: JsonBudget::new(options.max_json_bytes, options.max_json_depth, options.max_json_values),
            content_bytes: Allowance::new(options.max_archive_bytes),
            table_bytes: Allowance::new(options.max_archive_bytes),
            pairs: Allowance::new(options.max_pairs),
        }
    }
}

/// A member of the archive, by name and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Path in the archive.
    pub name: String,
    /// Length unpacked.
    pub len_bytes: usize,
}

/// A compiled model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neff {
    /// The header, with uuid, name, virtual core size and feature bits.
    pub header: Header,
    /// One per subgraph, in the order of the kernel; at least one.
    pub programs: Vec<Program>,
    /// Everything in the archive, used or not, in name order.
    pub members: Vec<Member>,
}

impl Neff {
    /// Reads a container from a file. Blocks on the file system only.
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, NeffError> {
        let name = path.display().to_string();
        let place = Place::file(&name);
        let io = |error: std::io::Error| place.fault(None, NeffFault::Io(error.to_string()));
        // Looked at before it is opened: opening a pipe would wait for a writer.
        let metadata = std::fs::metadata(path).map_err(io)?;
        if !metadata.is_file() {
            return Err(place.fault(None, NeffFault::Io("not a regular file".into())));
        }
        let limit = options.max_file_bytes;
        let too_large = |len: u64| place.invalid(format_args!("{len} bytes, the limit is {limit}"));
        if metadata.len() > limit {
            return Err(too_large(metadata.len()));
        }
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(metadata.len() as usize)
            .map_err(|_| place.fault(None, NeffFault::HostMemory { bytes: metadata.len() }))?;
        // One more than it says it has: it may be growing.
        File::open(path)
            .and_then(|file| file.take(limit.saturating_add(1)).read_to_end(&mut bytes))
            .map_err(io)?;
        if bytes.len() as u64 > limit {
            return Err(too_large(bytes.len() as u64));
        }
        let file = Bytes::from(bytes);
        Self::read(&name, &file, |range| file.part(range), options)
    }

    /// Reads a container from memory; `name` is what errors call it.
    pub fn parse(name: &str, bytes: &[u8], options: &ReadOptions) -> Result<Self, NeffError> {
        Self::read(name, bytes, |range| bytes[range].to_vec().into(), options)
    }

    /// Reads a container from memory; `shared` gives a part of it to keep.
    fn read(
        name: &str,
        bytes: &[u8],
        shared: impl FnOnce(Range<usize>) -> Bytes,
        options: &ReadOptions,
    ) -> Result<Self, NeffError> {
        let place = Place::file(name);
        let header = Header::parse(place, bytes)?;
        let range = HEADER_BYTES..HEADER_BYTES + header.data_bytes as usize;
        let payload = &bytes[range.clone()];
        if options.verify_hash && !digest::matches(header.package, payload, &header.hash) {
            let hex = |bytes: [u8; 32]| bytes.map(|byte| format!("{byte:02x}")).concat();
            let computed = digest::field(header.package, payload);
            return Err(place.invalid_key(
                "hash",
                format_args!("{}, the payload has {}", hex(header.hash), hex(computed)),
            ));
        }
        let archive = Archive::open(place, header.package, payload, || shared(range), options)?;
        let budget = Budget::of(options);
        let graph = graph::read(place, &archive, &budget.json)?;
        let programs = graph
            .subgraphs
            .iter()
            .map(|subgraph| read::read_program(place, &archive, subgraph, &graph, &budget))
            .collect::<Result<_, _>>()?;
        let members =
            archive.members().map(|(name, len_bytes)| Member { name: name.into(), len_bytes }).collect();
        Ok(Self { header, programs, members })
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::exec::NrtStatus;

    use super::testing::SMALL;
    use super::*;

    fn with_hash(bytes: &[u8]) -> Result<Neff, NeffError> {
        Neff::parse("f", bytes, &ReadOptions { verify_hash: true, ..ReadOptions::default() })
    }

    #[test]
    fn the_hash_is_checked_when_asked_for() {
        for package in [Package::Plain, Package::Gzip] {
            let mut bytes = pack_as("f", SMALL, package).unwrap();
            assert!(with_hash(&bytes).is_ok());
            bytes[0xAC] ^= 1;
            let error = with_hash(&bytes).unwrap_err();
            assert_eq!((error.key(), error.status()), (Some("hash"), NrtStatus::INVALID));
            assert!(Neff::parse("f", &bytes, &ReadOptions::default()).is_ok());
        }
    }

    #[test]
    fn an_unpacked_archive_is_held_once() {
        const CONSTANT_BYTES: u64 = 8 << 20;
        let text = format!(
            r#"model = {{ name = "m", target = "cayman" }}
               tpb = [{{ var = [
                   {{ name = "k", type = "file", size = {CONSTANT_BYTES}, repeat = "07" }},
                   {{ name = "y", type = "output", size = 8 }},
               ] }}]"#
        );
        let file = pack("m", &text).unwrap();
        let mut neff = None;
        let info =
            allocation_counter::measure(|| neff = Neff::parse("m", &file, &ReadOptions::default()).ok());
        assert!(info.bytes_max < CONSTANT_BYTES * 3 / 2, "{} bytes at once", info.bytes_max);
        let VarKind::File { content } = &neff.unwrap().programs[0].vars[0].kind else { panic!("a constant") };
        assert!(content.len() as u64 == CONSTANT_BYTES && content.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn bytes_after_the_payload_are_not_part_of_the_container() {
        let mut bytes = pack("f", SMALL).unwrap();
        let before = Neff::parse("f", &bytes, &ReadOptions::default()).unwrap();
        bytes.extend([0xAA; 3000]);
        assert_eq!(with_hash(&bytes), Ok(before));
    }

    #[test]
    fn files_that_cannot_be_read_say_so() {
        let folder = std::env::temp_dir().join(format!("sluice-neff-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("small.neff");
        let bytes = pack("f", SMALL).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let open = |path: &Path, max_file_bytes| {
            Neff::open(path, &ReadOptions { max_file_bytes, ..ReadOptions::default() })
        };
        let len = bytes.len() as u64;
        assert!(open(&path, len).is_ok());
        let too_large = open(&path, len - 1).unwrap_err();
        let text = format!("{}: {len} bytes, the limit is {}", path.display(), len - 1);
        assert_eq!((too_large.to_string(), too_large.status()), (text, NrtStatus::INVALID));
        let missing = open(&folder.join("none.neff"), len).unwrap_err();
        assert_eq!(missing.status(), NrtStatus::FAILURE);
        assert!(missing.to_string().contains("none.neff: "), "{missing}");
        let folder_itself = open(&folder, len).unwrap_err();
        assert_eq!(folder_itself.to_string(), format!("{}: not a regular file", folder.display()));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
