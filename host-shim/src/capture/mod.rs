//! The capture file `capture.slc`: everything a run recorded, append-only, checksummed, readable after a crash.
//!
//! ```text
//! ┌──────────────┬───────────────────┬───────────────────┬─────┬───────────────────┐
//! │ file header  │ segment 0         │ segment 1         │  …  │ segment n (end)   │
//! │ 64 B + CRC32 │ head 32 B │ bytes │ head 32 B │ bytes │     │ head 32 B │ bytes │
//! └──────────────┴───────────────────┴───────────────────┴─────┴───────────────────┘
//!                  sync, kind, sequence, length, CRC32 of the bytes, CRC32 of the head
//! ```
//!
//! A segment describes itself, is written by **one** `writev(2)` and starts at a multiple of 8 bytes. No index is
//! needed to read: a reader walks from head to head, and after damage it looks for the next sync word. All
//! integers are little-endian. [`Kind`] lists what a segment can hold; records stand in [`Kind::BUFFER`] segments
//! exactly as on the wire.
//!
//! # What an acknowledgement means
//!
//! [`Writer::append_buffer`] returns after the kernel has taken the bytes. They survive the death of the process
//! (`kill -9` included) but not a power failure: nothing is synced per segment. A write that fails half-way is cut
//! off again, so the file never holds half a segment while the process lives; after a crash the reader reports the
//! torn tail by offset and delivers what stands before it.
//!
//! # How the file comes to be
//!
//! [`Writer::create`] makes a file of a fresh name in the destination folder, which is locked for this run
//! ([`RunFolder`]): `O_EXCL`, `O_NOFOLLOW`, mode 0600, because a capture may hold the bytes of tensors. It writes the
//! header, removes the artefacts of an earlier run, and renames the file to its final name at once, before the run
//! starts. So a symbolic link at the destination is replaced and never followed, a reader of an older capture
//! keeps its file, a folder that cannot be written is known before anything ran, and a crash leaves the capture
//! under the name it was promised, and nothing of another run beside it. Reading back goes through the open file
//! ([`Writer::reader`]).
//!
//! # Bounds of the reader
//!
//! Everything in a file is untrusted. A payload is at most [`Kind::max_payload_bytes`]; the reader holds one payload,
//! at most [`MAX_DAMAGES`](reader::MAX_DAMAGES) damage notes and at most [`MAX_RUNS`](dedup::MAX_RUNS) runs of
//! sequence numbers, whatever the file says.

pub mod chains;
pub mod check;
pub mod controls;
pub mod damage;
pub mod dedup;
pub mod folder;
pub mod format;
pub mod payload;
pub mod reader;
pub mod segment;
pub mod writer;

pub use check::{Census, census};
pub use controls::{ControlNote, ControlStage, Controls};
pub use damage::Damage;
pub use folder::{FolderError, RunFolder};
pub use format::{FileHeader, HeaderError, Kind, RunId};
pub use payload::{
    BufferHeader, ClockPair, Core, DevicePhaseNote, FreezeEvent, Gate, HostPhase, Items, LossCause, LossNote,
    Manifest, PayloadHeader, Phase, Pool, PoolTotals, Subsystem, Summary, TransitNote, WaitNote, WorkItem,
};
pub use reader::{OpenError, Reader};
pub use segment::Segment;
pub use writer::Writer;
