//! The DepGen subsystem: dependencies between tasks, as submitted (wire contract, DepGen).
//!
//! One pool, filled by the orchestrating lane. A task with more explicit dependencies than a [`Record`] holds is
//! followed, in the same buffer, by a chain of [`OverflowRecord`]s.

use super::describe::{header_words, wire_struct, wire_structs_per_arch};
use super::region::{PoolSpec, RegionSpec, buffer_layout, header_offsets, pool_offsets};
use super::{Arch, ArchId, BackpressureHeader, BufferLayout, PoolKind, PoolOffsets, Region, Shape};
use bitflags::bitflags;
use core::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Slots of a free queue.
pub const FREE_SLOTS: usize = 4;
/// Record slots in a buffer; a chain takes one per link.
pub const RECORDS: usize = 1024;
/// Entries in a ready ring; one stays free, so it holds one fewer.
pub const READY_ENTRIES: usize = 8;
/// Tensors of a task.
pub const MAX_TENSORS: usize = 32;
/// Bytes of a tensor's opaque descriptor.
pub const TENSOR_BYTES: usize = 128;
/// Explicit dependencies in a [`Record`].
pub const MAX_EXPLICIT_DEPS: usize = 64;
/// Further dependencies in an [`OverflowRecord`].
pub const OVERFLOW_DEPS: usize = 582;
/// A kernel slot of [`Record::kernel_id`] that is not in use.
pub const NO_KERNEL: i32 = -1;

/// What a record slot is. Unknown bits are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct RecordFlags(u32);

bitflags! {
    impl RecordFlags: u32 {
        /// The task was submitted in a scope with manual dependencies.
        const MANUAL_SCOPE = 1;
        /// An overflow record follows.
        const HAS_OVERFLOW = 2;
        /// The slot holds an [`OverflowRecord`].
        const IS_OVERFLOW = 4;
        /// The last of its chain.
        const LAST_OVERFLOW = 8;
        /// The task may be dispatched ahead of its inputs.
        const EARLY_DISPATCH = 16;
        /// Bits of later versions.
        const _ = !0;
    }
}

wire_struct! {
    /// A full buffer on its way to the host.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadyQueueEntry = "DepGenReadyQueueEntry" [size 32, align 32] {
        /// The pool: always 0.
        0 => instance_index: u32,
        /// Never read.
        4 => _pad0: u32,
        /// Device address of the buffer; 0 means not yet published.
        8 => buffer_ptr: u64,
        /// Sequence number of the buffer within its pool.
        16 => buffer_seq: u32,
        /// Never read.
        20 => _pad1: u32,
        24 => tail: [u8; 8]; unnamed,
    }
}

wire_struct! {
    /// Empty buffers on their way to the device. Counters run freely; the slot is the counter modulo the slots.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FreeQueue = "DepGenFreeQueue" [size 128, align 64] {
        /// Device addresses of empty buffers, host-written.
        0 => buffer_ptrs: [u64; FREE_SLOTS],
        /// Pop counter, device-written.
        32 => head: u32,
        /// Push counter, host-written.
        36 => tail: u32,
        /// Zero.
        40 => _pad: [u32; 22],
    }
}

wire_struct! {
    /// The pool: free queue, buffer being filled, counters.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BufferState = "DepGenBufferState" [size 192, align 64] {
        /// Empty buffers.
        0 => free_queue: FreeQueue,
        /// Device address of the buffer being filled, 0 = none.
        128 => current_buf_ptr: u64,
        /// Counts buffers of this pool.
        136 => current_buf_seq: u32,
        /// Tasks lost on the device; wraps.
        140 => dropped_record_count: u32,
        /// Submits seen, lost ones included; wraps.
        144 => total_record_count: u32,
        /// Overflow records; wraps.
        148 => total_overflow_record_count: u32,
        /// Zero.
        152 => _pad: [u32; 10],
    }
}

wire_struct! {
    /// One submitted task.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Record = "DepGenRecord" [size 4672, align 64] {
        /// Identity of the task.
        0 => task_id: u64,
        /// What the slot is.
        8 => flags: RecordFlags,
        /// Valid entries of `tensors` and `arg_types`.
        12 => tensor_count: u16,
        /// Valid entries of `explicit_deps`.
        14 => explicit_dep_count: u16,
        /// Identities of tasks this one waits for.
        16 => explicit_deps: [u64; MAX_EXPLICIT_DEPS],
        /// Kind of each argument.
        528 => arg_types: [u8; MAX_TENSORS],
        /// Kernels on the matrix core and the two vector cores; [`NO_KERNEL`] = none.
        560 => kernel_id: [i32; 3],
        /// Blocks the task is split into, at least 1.
        572 => block_num: u32,
        /// Opaque descriptors; zero for outputs.
        576 => tensors: [[u8; TENSOR_BYTES]; MAX_TENSORS],
    }
}

wire_struct! {
    /// Further dependencies of the task before it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OverflowRecord = "DepGenOverflowRecord" [size 4672, align 64] {
        /// Identity of the task, that of its [`Record`].
        0 => task_id: u64,
        /// What the slot is.
        8 => flags: RecordFlags,
        /// Valid entries of `deps`.
        12 => dep_count: u16,
        /// Zero.
        14 => _reserved: u16,
        /// Identities of tasks this one waits for.
        16 => deps: [u64; OVERFLOW_DEPS],
    }
}

wire_struct! {
    /// A buffer of record slots.
    pub struct Buffer = "DepGenBuffer" [size 4784192, align 64] {
        /// Committed slots.
        0 => count: u32,
        /// Keeps the count alone on its line.
        4 => _pad0: [u32; 15],
        /// Written by the lane.
        64 => records: [Record; RECORDS],
    }
}

wire_structs_per_arch! {
    /// First structure of the region.
    pub struct DataHeader = "DepGenDataHeader" [size 1088 | 1344, align 64] {
        /// Ready rings, device-written.
        0 | 0 => queues: [[ReadyQueueEntry; READY_ENTRIES]; This::FACTS.lanes],
        /// Consumer index per lane, reduced modulo the ring size, host-written.
        1024 | 1280 => queue_heads: [u32; This::FACTS.lanes],
        /// Producer index per lane, reduced modulo the ring size, device-written.
        1040 | 1300 => queue_tails: [u32; This::FACTS.lanes],
        /// Pools that follow: 1; host-written before the device starts.
        1056 | 1320 => num_instances: u32,
        /// The gates.
        1060 | 1324 => backpressure: BackpressureHeader,
        1076 | 1340 => tail: [u8; This::ID.pick(12, 4)]; unnamed,
    }
}

header_words! { DataHeader { num_instances } }

/// The buffers of the pool.
pub const BUFFER: BufferLayout = buffer_layout!(Buffer, Record, RECORDS);

/// The DepGen region of a run.
#[must_use]
pub const fn region(shape: Shape) -> Region {
    Region::new(
        shape,
        RegionSpec {
            ready_entries: READY_ENTRIES,
            header: match shape.arch() {
                ArchId::A2a3 => header_offsets!(a2a3::DataHeader),
                ArchId::A5 => header_offsets!(a5::DataHeader),
            },
            pool_bytes: size_of::<BufferState>(),
            pool: PoolOffsets {
                overflow_records: Some(offset_of!(BufferState, total_overflow_record_count)),
                ..pool_offsets!(BufferState, total: Some(offset_of!(BufferState, total_record_count)))
            },
            free_slots: FREE_SLOTS as u32,
            pools: &[PoolSpec {
                kind: PoolKind::SOLE,
                name: "dep_gen",
                instances: 1,
                buffer: BUFFER,
                default_buffers: 4,
            }],
        },
    )
}
