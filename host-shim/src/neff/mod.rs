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
mod constant;
mod digest;
mod error;
mod graph;
mod header;
mod isa;
mod json;
pub mod models;
mod pack;
pub mod pattern;
pub mod program;
mod read;
mod spec;
mod write;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use archive::Archive;
pub use error::{NeffError, NeffFault};
use error::{Place, Quoted};
pub use header::{HEADER_BYTES, Header, Package, SUPPORTED_FEATURES};
pub use isa::{INSTRUCTION_BYTES, MAX_WAITS, RunBlock, Wait};
use json::JsonLimits;
pub use pack::{pack, pack_as};
pub use pattern::{Dim, DmaCopy, Pattern, PatternError, Transfer};
pub use program::{
    Backing, CarveOut, DmaBlock, DmaOp, EngineProgram, Program, Queue, QueueKind, Tables, Target, Var,
    VarKind, Work,
};

/// How much a container may ask for, and what is checked beyond its structure.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Largest file.
    pub max_file_bytes: u64,
    /// Largest archive, unpacked.
    pub max_archive_bytes: u64,
    /// Most members of the archive.
    pub max_members: usize,
    /// Largest JSON member.
    pub max_json_bytes: u64,
    /// Deepest nesting of JSON.
    pub max_json_depth: usize,
    /// Most values of one JSON member.
    pub max_json_values: usize,
    /// Most descriptor pairs that the static lists of one program may become.
    pub max_pairs: u64,
    /// Compare the hash in the header with the payload. Real files are known whose hash covers something else.
    pub verify_hash: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            max_file_bytes: 2 << 30,
            max_archive_bytes: 2 << 30,
            max_members: 1 << 16,
            max_json_bytes: 128 << 20,
            max_json_depth: 32,
            max_json_values: 4 << 20,
            max_pairs: 1 << 20,
            verify_hash: false,
        }
    }
}

impl ReadOptions {
    fn json_limits(&self) -> JsonLimits {
        JsonLimits { bytes: self.max_json_bytes, depth: self.max_json_depth, values: self.max_json_values }
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
        let mut bytes = Vec::new();
        let limit = options.max_file_bytes;
        File::open(path)
            .and_then(|file| file.take(limit.saturating_add(1)).read_to_end(&mut bytes))
            .map_err(io)?;
        if bytes.len() as u64 > limit {
            return Err(place.invalid(format_args!("more than {limit} bytes, the limit")));
        }
        Self::parse(&name, &bytes, options)
    }

    /// Reads a container from memory; `name` is what errors call it.
    pub fn parse(name: &str, bytes: &[u8], options: &ReadOptions) -> Result<Self, NeffError> {
        let place = Place::file(name);
        let header = Header::parse(place, bytes)?;
        let payload = &bytes[HEADER_BYTES..][..header.data_bytes as usize];
        if options.verify_hash {
            let hash = digest::of(header.package, payload);
            if hash != header.hash {
                let hex = |bytes: [u8; 32]| bytes.map(|byte| format!("{byte:02x}")).concat();
                return Err(place.invalid_key(
                    "hash",
                    format_args!("{}, the payload has {}", hex(header.hash), hex(hash)),
                ));
            }
        }
        let archive = Archive::open(place, header.package, payload, options)?;
        let top = graph::read_top(place, &archive, options.json_limits())?;
        let kernel_json = archive
            .get(&top.kernel)
            .ok_or_else(|| place.invalid(format_args!("no member {} in the archive", Quoted(&top.kernel))))?;
        let kernel = graph::read_kernel(place.member(&top.kernel), kernel_json, options.json_limits())?;
        let programs = kernel.subgraphs.iter().map(|subgraph| {
            read::read_program(place, &archive, subgraph, kernel.target, &top.tensors, options)
        });
        let programs = programs.collect::<Result<_, _>>()?;
        let members =
            archive.members().map(|(name, len_bytes)| Member { name: name.into(), len_bytes }).collect();
        Ok(Self { header, programs, members })
    }
}
