//! UDMA memory-to-memory descriptors: encoding, rings, templates, transfers and swap lists.
//!
//! One copy of at most 64 KiB is a [`Pair`]: a TX descriptor that names the source and an RX descriptor that
//! names the destination. Each lies in a ring of its own; a ring is a lap counter (the ring id, or phase) and
//! an index, and the two rings of a queue run apart when their sizes differ.
//!
//! ```text
//!   transfer ──chunks──► CopySpec ──encode──► Pair ─┬─ TX ─► ring of 16-byte descriptors ─┐
//!   (any size)           (≤ 64 KiB)                 └─ RX ─► ring of 16-byte descriptors ─┤
//!                                                            stamped with the ring id      │
//!   doorbell: RX tail increment first, then TX ◄──────── number of new descriptors ◄──────┘
//! ```
//!
//! | module | idea |
//! |---|---|
//! | `word` | the two control words, their flags and fields |
//! | `desc` | one copy ⇄ one pair of wire descriptors |
//! | `queue` | one half of a queue as the device runs it |
//! | `ring` | ring sizes, cursors, phases, reservation, doorbell counts |
//! | `template` | addresses that are still symbolic, and their resolution |
//! | `transfer` | cutting a transfer into pairs |
//! | `swap` | the small copies that patch pointers and queue bases before a run |
//!
//! Only `queue` touches memory; the rest turns values into bytes and back. Every value that comes from a ring is
//! decoded as hostile.

mod desc;
mod queue;
mod ring;
mod swap;
mod template;
mod transfer;
mod word;

pub use desc::{
    Barrier, BarrierModes, ChunkLen, CopySpec, DecodeError, DescError, Descriptor, Pair, RxDesc, TxDesc,
};
pub use queue::{QueueRegisters, RING_ALIGN_BYTES, Ring};
pub use ring::{
    Cursor, Doorbell, PairCursor, PairSlots, PhaseMismatch, Position, RING_GAP, RingError, RingSize, Run,
    Runs, Slot, Slots,
};
pub use swap::{Swap, SwapEncoder, SwapFull, SwapValue};
pub use template::{AddrWord, Location, Placement, Shift, TemplateAddr, TemplateError};
pub use transfer::{Chunks, MAX_VRING_DESCRIPTORS, Transfer, TransferError};
pub use word::{LenCtrl, MetaCtrl, RingId, RingIds};
