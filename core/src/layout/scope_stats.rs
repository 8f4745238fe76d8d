//! The ScopeStats subsystem: how full rings and heaps are when a scope begins and ends (wire contract, ScopeStats).
//!
//! One pool, filled by the orchestrating lane.

use super::describe::{header_words, wire_enum, wire_struct, wire_structs_per_arch};
use super::region::{PoolSpec, RegionSpec, buffer_layout, header_offsets, pool_offsets};
use super::{Arch, ArchId, BackpressureHeader, BufferLayout, PoolKind, Region, Shape};
use core::mem::offset_of;

/// Slots of a free queue.
pub const FREE_SLOTS: usize = 8;
/// Records in a buffer.
pub const RECORDS: usize = 512;
/// Entries in a ready ring; one stays free, so it holds one fewer.
pub const READY_ENTRIES: usize = 8;
/// Rings whose capacity is told.
pub const MAX_RINGS: usize = 4;
/// Scopes inside one another that are recorded.
pub const MAX_SCOPE_DEPTH: usize = 64;
/// Bytes of a file name, the closing NUL included.
pub const SITE_BYTES: usize = 32;

wire_enum! {
    /// Which end of a scope a record stands for.
    pub struct ScopePhase: i16 {
        /// The scope was entered.
        BEGIN = 0, "begin";
        /// The scope was left.
        END = 1, "end";
    }
}

wire_struct! {
    /// A full buffer on its way to the host.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadyQueueEntry = "ScopeStatsReadyQueueEntry" [size 32, align 32] {
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
    pub struct FreeQueue = "ScopeStatsFreeQueue" [size 128, align 64] {
        /// Device addresses of empty buffers, host-written.
        0 => buffer_ptrs: [u64; FREE_SLOTS],
        /// Pop counter, device-written.
        64 => head: u32,
        /// Push counter, host-written.
        68 => tail: u32,
        /// Zero.
        72 => _pad: [u32; 14],
    }
}

wire_struct! {
    /// The pool: free queue, buffer being filled, counters.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BufferState = "ScopeStatsBufferState" [size 192, align 64] {
        /// Empty buffers.
        0 => free_queue: FreeQueue,
        /// Device address of the buffer being filled, 0 = none.
        128 => current_buf_ptr: u64,
        /// Counts buffers of this pool.
        136 => current_buf_seq: u32,
        /// Records lost on the device; wraps.
        140 => dropped_record_count: u32,
        /// Attempts to record, lost ones included; wraps.
        144 => total_record_count: u32,
        /// Zero.
        148 => _pad: [u32; 11],
    }
}

wire_struct! {
    /// One end of one scope.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Record = "ScopeStatsRecord" [size 80, align 8] {
        /// Source file of the scope, closed by NUL, cut to 31 bytes.
        0 => site_file_basename: [u8; SITE_BYTES],
        /// Bytes ever reclaimed from the heap.
        32 => heap_start: u64,
        /// Bytes ever allocated from the heap.
        40 => heap_end: u64,
        /// Source line of the scope.
        48 => site_line: i32,
        /// Tail of the task ring.
        52 => task_start: i32,
        /// Head of the task ring.
        56 => task_end: i32,
        /// Tail of the dependency pool.
        60 => dep_pool_start: i32,
        /// Top of the dependency pool.
        64 => dep_pool_end: i32,
        /// Live entries of the tensor map.
        68 => tensormap_used: i32,
        /// Scopes around this one; 0 = the root.
        72 => depth: i16,
        /// Ring the scope uses.
        74 => ring_id: i16,
        /// Begin or end.
        76 => phase: ScopePhase,
        /// Zero.
        78 => _pad: i16,
    }
}

wire_struct! {
    /// A buffer of records.
    pub struct Buffer = "ScopeStatsBuffer" [size 41024, align 64] {
        /// Committed records.
        0 => count: u32,
        /// Keeps the count alone on its line.
        4 => _pad0: [u32; 15],
        /// Written by the lane.
        64 => records: [Record; RECORDS],
    }
}

wire_structs_per_arch! {
    /// First structure of the region.
    pub struct DataHeader = "ScopeStatsDataHeader" [size 1152 | 1472, align 64] {
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
        /// Tasks each ring holds; device-written, like all below.
        1076 | 1340 => task_window_cap: [i32; MAX_RINGS],
        /// Dependencies each ring's pool holds.
        1092 | 1356 => dep_pool_cap: [i32; MAX_RINGS],
        1108 | 1372 => before_heap_cap: [u8; 4]; unnamed,
        /// Bytes of each ring's heap.
        1112 | 1376 => heap_cap: [u64; MAX_RINGS],
        /// Entries the tensor map holds.
        1144 | 1408 => tensormap_cap: i32,
        /// 1 = the runtime met a fatal error.
        1148 | 1412 => fatal_latched: u32,
        1152 | 1416 => tail: [u8; This::ID.pick(0, 56)]; unnamed,
    }
}

header_words! {
    DataHeader { num_instances, task_window_cap, dep_pool_cap, heap_cap, tensormap_cap, fatal_latched }
}

/// A buffer.
pub const BUFFER: BufferLayout = buffer_layout!(Buffer, Record, RECORDS);

/// The ScopeStats region of a run.
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
            pool: pool_offsets!(BufferState, total: Some(offset_of!(BufferState, total_record_count))),
            free_slots: FREE_SLOTS as u32,
            pools: &[PoolSpec {
                kind: PoolKind::SOLE,
                name: "scope_stats",
                instances: 1,
                buffer: BUFFER,
                default_buffers: 4,
            }],
        },
    )
}
