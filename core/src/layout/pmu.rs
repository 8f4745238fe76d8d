//! The PMU subsystem: hardware counters per task (wire contract, PMU).
//!
//! One pool per core, filled by the lane that owns the core. On a2a3 the lane reads the counters itself; on a5 the
//! core leaves them in a ring of two slots ([`a5::AicoreRing`], slot = dispatch token modulo 2) and the lane copies
//! them into the record. Times are ticks of the architecture's counter.

use super::describe::{header_words, wire_enum, wire_struct, wire_structs_per_arch};
use super::region::{PoolSpec, RegionSpec, buffer_layout, header_offsets, pool_offsets};
use super::{Arch, ArchId, BackpressureHeader, BufferLayout, PoolKind, PoolOffsets, Region, Shape};
use core::mem::offset_of;

/// Slots of a free queue.
pub const FREE_SLOTS: usize = 4;
/// Records in a buffer.
pub const RECORDS: usize = 512;
/// Slots of a core's staging ring on a5.
pub const AICORE_RING_SLOTS: usize = 2;
/// Event group unless the run says otherwise: pipes.
pub const DEFAULT_EVENT_TYPE: u32 = 2;

wire_enum! {
    /// Which kind of core ran the task.
    pub struct CoreType: u32 {
        /// Matrix core.
        AIC = 0, "aic";
        /// Vector core.
        AIV = 1, "aiv";
    }
}

wire_struct! {
    /// A full buffer on its way to the host.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadyQueueEntry = "PmuReadyQueueEntry" [size 32, align 32] {
        /// The core whose pool the buffer belongs to.
        0 => core_index: u32,
        /// Never read.
        4 => pad0: u32,
        /// Device address of the buffer; 0 means not yet published.
        8 => buffer_ptr: u64,
        /// Sequence number of the buffer within its pool.
        16 => buffer_seq: u32,
        /// Never read.
        20 => pad1: u32,
        24 => tail: [u8; 8]; unnamed,
    }
}

wire_struct! {
    /// Empty buffers on their way to the device. Counters run freely; the slot is the counter modulo the slots.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FreeQueue = "PmuFreeQueue" [size 128, align 64] {
        /// Device addresses of empty buffers, host-written.
        0 => buffer_ptrs: [u64; FREE_SLOTS],
        /// Pop counter, device-written.
        32 => head: u32,
        /// Push counter, host-written.
        36 => tail: u32,
        /// Zero.
        40 => pad: [u32; 22],
    }
}

wire_structs_per_arch! {
    /// Counters of one task.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Record = "PmuRecord" [size 64 | 64, align 64] {
        /// Identity of the task. In a staging slot of a5 the dispatch token stands here.
        0 | 0 => task_id: u64,
        /// Kernel.
        8 | 8 => func_id: u32,
        /// Which kind of core ran the task.
        12 | 12 => core_type: CoreType,
        /// Cycles of the whole task.
        16 | 16 => pmu_total_cycles: u64,
        /// Events, by slot of the event group.
        24 | 24 => pmu_counters: [u32; This::FACTS.pmu_counters],
        56 | 64 => tail: [u8; This::ID.pick(8, 0)]; unnamed,
    }

    /// A buffer of records.
    pub struct Buffer = "PmuBuffer" [size 32832 | 32832, align 64] {
        /// Written by the lane.
        0 | 0 => records: [Record; RECORDS],
        /// Committed records.
        32768 | 32768 => count: u32,
        32772 | 32772 => tail: [u8; 60]; unnamed,
    }

    /// First structure of the region.
    pub struct DataHeader = "PmuDataHeader" [size 18496 | 34688, align 64] {
        /// Ready rings, device-written.
        0 | 0 => queues: [[ReadyQueueEntry; This::FACTS.pmu_ready_entries]; This::FACTS.lanes],
        /// Consumer index per lane, reduced modulo the ring size, host-written.
        18432 | 34560 => queue_heads: [u32; This::FACTS.lanes],
        /// Producer index per lane, reduced modulo the ring size, device-written.
        18448 | 34580 => queue_tails: [u32; This::FACTS.lanes],
        /// Live cores, one pool each; host-written before the device starts.
        18464 | 34600 => num_cores: u32,
        /// Event group; host-written before the device starts.
        18468 | 34604 => event_type: u32,
        /// The gates.
        18472 | 34608 => backpressure: BackpressureHeader,
        18488 | 34624 => pad: [u32; 2]; unnamed_on_a2a3,
        18496 | 34632 => tail: [u8; This::ID.pick(0, 56)]; unnamed,
    }

    also in a2a3 {
        wire_struct! {
            /// A pool: free queue, buffer being filled, counters.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct BufferState = "PmuBufferState" [size 192, align 64] {
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
                148 => pad: [u32; 11],
            }
        }
    }

    also in a5 {
        wire_struct! {
            /// A pool: free queue, buffer being filled, staging ring, counters.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct BufferState = "PmuBufferState" [size 192, align 64] {
                /// Empty buffers.
                0 => free_queue: FreeQueue,
                /// Device address of the buffer being filled, 0 = none.
                128 => current_buf_ptr: u64,
                /// Device address of the core's [`AicoreRing`]; host-written, fixed for the run.
                136 => aicore_ring_ptr: u64,
                /// Counts buffers of this pool.
                144 => current_buf_seq: u32,
                /// Attempts to record, lost and mismatched ones included; wraps.
                148 => total_record_count: u32,
                /// Records lost on the device; wraps.
                152 => dropped_record_count: u32,
                /// Tasks whose staging slot held another token; wraps.
                156 => mismatch_record_count: u32,
                /// Zero.
                160 => pad: [u32; 8],
            }
        }

        wire_struct! {
            /// Where a core leaves the counters of its last tasks for the lane.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct AicoreRing = "PmuAicoreRing" [size 128, align 64] {
                /// By dispatch token, modulo the slots. The core writes the token last.
                0 => dual_issue_slots: [Record; AICORE_RING_SLOTS],
            }
        }
    }
}

header_words! { DataHeader { num_cores, event_type } }

/// A buffer, the same on both architectures.
pub const BUFFER: BufferLayout = buffer_layout!(a2a3::Buffer, a2a3::Record, RECORDS);

const _: () = {
    let a5 = buffer_layout!(a5::Buffer, a5::Record, RECORDS);
    assert!(a5.bytes == BUFFER.bytes && a5.count == BUFFER.count && a5.records == BUFFER.records);
    assert!(a5.record_bytes == BUFFER.record_bytes && a5.capacity == BUFFER.capacity);
};

/// The PMU region of a run.
#[must_use]
pub const fn region(shape: Shape) -> Region {
    macro_rules! of {
        ($arch:ident, mismatch: $mismatch:expr, staging: $staging:expr) => {
            Region::new(
                shape,
                RegionSpec {
                    ready_entries: shape.arch().facts().pmu_ready_entries,
                    header: header_offsets!($arch::DataHeader),
                    pool_bytes: size_of::<$arch::BufferState>(),
                    pool: PoolOffsets {
                        mismatch_records: $mismatch,
                        staging_ptr: $staging,
                        ..pool_offsets!(
                            $arch::BufferState,
                            total: Some(offset_of!($arch::BufferState, total_record_count))
                        )
                    },
                    free_slots: FREE_SLOTS as u32,
                    pools: &[PoolSpec {
                        kind: PoolKind::SOLE,
                        name: "pmu",
                        instances: shape.cores(),
                        buffer: BUFFER,
                        default_buffers: 2,
                    }],
                },
            )
        };
    }
    match shape.arch() {
        ArchId::A2a3 => of!(a2a3, mismatch: None, staging: None),
        ArchId::A5 => of!(
            a5,
            mismatch: Some(offset_of!(a5::BufferState, mismatch_record_count)),
            staging: Some(offset_of!(a5::BufferState, aicore_ring_ptr))
        ),
    }
}
