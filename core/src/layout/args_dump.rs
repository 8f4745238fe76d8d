//! The ArgsDump subsystem: arguments of tasks, with the bytes of tensors (wire contract, ArgsDump).
//!
//! One pool per lane. A [`Record`] describes one argument; the bytes of a tensor stand in the lane's payload arena,
//! a ring whose write cursor runs freely. The lane reuses arena space only after the host acknowledged the payloads
//! that lie there:
//!
//! | word | writer | reader | ordering | what it publishes |
//! |---|---|---|---|---|
//! | `arena_base`, `arena_size` | host, before the start | lane | by the start itself | the arena |
//! | `arena_write_offset` | lane | host | plain, before the ready tail | how far the arena is written |
//! | `published_payload_count` | lane | host | before the ready tail | payloads in published buffers |
//! | `completed_payload_count` | host | lane | release → acquire | those payloads are safe, their space may be reused |

use super::describe::{header_words, wire_enum, wire_struct, wire_structs_per_arch};
use super::region::{PoolSpec, RegionSpec, buffer_layout, header_offsets, pool_offsets};
use super::{Arch, ArchId, BackpressureHeader, BufferLayout, PoolKind, Region, Shape};
use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Slots of a free queue.
pub const FREE_SLOTS: usize = 4;
/// Records in a buffer.
pub const RECORDS: usize = 256;
/// Dimensions of a tensor.
pub const MAX_DIMS: usize = 5;
/// Kernels of a task.
pub const MAX_FUNC_IDS: usize = 3;
/// An entry of [`Record::func_ids`] that is not known.
pub const UNKNOWN_FUNC: u16 = 0xffff;
/// Value of [`a2a3::DataHeader::magic`]: `DUMP`.
pub const MAGIC: u32 = 0x4455_4d50;
/// Bytes of a lane's payload arena unless the run says otherwise.
pub const DEFAULT_ARENA_BYTES: u64 = 128 << 20;

wire_enum! {
    /// Which arguments are recorded.
    pub struct Level: u32 {
        /// None.
        OFF = 0, "off";
        /// Those selected by the task's mask.
        PARTIAL = 1, "partial";
        /// All, with their bytes.
        FULL = 2, "full";
        /// All, with the bytes of selected ones.
        HYBRID = 3, "hybrid";
    }
}

wire_enum! {
    /// How a task uses an argument.
    pub struct Role: u8 {
        /// Read.
        INPUT = 0, "input";
        /// Written.
        OUTPUT = 1, "output";
        /// Read and written.
        INOUT = 2, "inout";
    }
}

wire_enum! {
    /// When an argument was recorded.
    pub struct Stage: u8 {
        /// Before the task was handed to a core.
        BEFORE_DISPATCH = 0, "before_dispatch";
        /// After it finished.
        AFTER_COMPLETION = 1, "after_completion";
    }
}

wire_enum! {
    /// What an argument is.
    pub struct ArgKind: u8 {
        /// A tensor; its bytes stand in the arena.
        TENSOR = 0, "tensor";
        /// A scalar; its bits stand in the record.
        SCALAR = 1, "scalar";
    }
}

/// Remarks on an argument. Unknown bits are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct ArgFlags(u8);

bitflags! {
    impl ArgFlags: u8 {
        /// The position of the argument is not certain.
        const INDEX_AMBIGUOUS = 1;
        /// Bits of later versions.
        const _ = !0;
    }
}

wire_struct! {
    /// A full buffer on its way to the host.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadyQueueEntry = "DumpReadyQueueEntry" [size 32, align 32] {
        /// The lane whose pool the buffer belongs to.
        0 => thread_index: u32,
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
    pub struct FreeQueue = "DumpFreeQueue" [size 128, align 64] {
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

wire_struct! {
    /// A pool: free queue, buffer being filled, payload arena. It counts losses but not attempts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BufferState = "DumpBufferState" [size 256, align 64] {
        /// Empty buffers.
        0 => free_queue: FreeQueue,
        /// Device address of the buffer being filled, 0 = none.
        128 => current_buf_ptr: u64,
        /// Counts buffers of this pool.
        136 => current_buf_seq: u32,
        /// Zero.
        140 => pad0: u32,
        /// Device address of the lane's payload arena.
        144 => arena_base: u64,
        /// Bytes of the arena.
        152 => arena_size: u64,
        /// Bytes ever reserved; the physical place is this modulo the size.
        160 => arena_write_offset: u64,
        /// Non-empty tensor payloads in published buffers.
        168 => published_payload_count: u64,
        /// Payloads the host is done with.
        176 => completed_payload_count: u64,
        /// Records lost on the device; stops at its maximum.
        184 => dropped_record_count: u32,
        /// Zero.
        188 => pad1: [u8; 68],
    }
}

wire_struct! {
    /// One argument of one task.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Record = "ArgsDumpRecord" [size 128, align 64] {
        /// Identity of the task.
        0 => task_id: u64,
        /// How the task uses the argument.
        8 => role: Role,
        /// When it was recorded.
        9 => stage: Stage,
        /// Dimensions in use, at most [`MAX_DIMS`].
        10 => ndims: u8,
        11 => before_arg_index: u8; unnamed,
        /// Position of the argument.
        12 => arg_index: u32,
        /// Code of the element type.
        16 => dtype: u8,
        /// 1 = larger than the arena, only a part was taken.
        17 => truncated: u8,
        /// 1 = the view is dense.
        18 => is_contiguous: u8,
        /// Zero.
        19 => pad0_align: u8,
        20 => before_payload_offset: [u8; 4]; unnamed,
        /// Free-running place of the payload in the arena.
        24 => payload_offset: u64,
        /// Bytes of the payload.
        32 => payload_size: u64,
        /// Bits of a scalar.
        40 => scalar_value: u64,
        /// Tensor or scalar.
        48 => kind: ArgKind,
        /// Remarks.
        49 => flags: ArgFlags,
        /// Kernels of the task; [`UNKNOWN_FUNC`] where not known.
        50 => func_ids: [u16; MAX_FUNC_IDS],
        /// Valid entries of `func_ids`.
        56 => func_count: u8,
        /// Zero.
        57 => pad0: [u8; 7],
        /// First element of the view.
        64 => start_offset: u64,
        /// Elements from one to the next, per dimension.
        72 => strides: [u32; MAX_DIMS],
        /// Elements of the view, per dimension.
        92 => shapes: [u32; MAX_DIMS],
        112 => tail: [u8; 16]; unnamed,
    }
}

wire_struct! {
    /// A buffer of records.
    pub struct MetaBuffer = "DumpMetaBuffer" [size 32832, align 64] {
        /// Written by the lane.
        0 => records: [Record; RECORDS],
        /// Committed records.
        32768 => count: u32,
        32772 => tail: [u8; 60]; unnamed,
    }
}

wire_struct! {
    /// An argument as the scheduler hands it to the recorder. Stays on the device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ArgInfo = "ArgsDumpInfo" [size 104, align 8] {
        /// Identity of the task.
        0 => task_id: u64,
        /// How the task uses the argument.
        8 => role: Role,
        /// When it is recorded.
        9 => stage: Stage,
        /// Code of the element type.
        10 => dtype: u8,
        /// Dimensions in use, at most [`MAX_DIMS`].
        11 => ndims: u8,
        /// Position of the argument.
        12 => arg_index: u32,
        /// Device address of the tensor's storage.
        16 => buffer_addr: u64,
        /// Bits of a scalar.
        24 => scalar_value: u64,
        /// Kernels of the task.
        32 => func_ids: [i32; MAX_FUNC_IDS],
        /// Valid entries of `func_ids`.
        44 => func_count: u32,
        /// Tensor or scalar.
        48 => kind: ArgKind,
        /// Remarks.
        49 => flags: ArgFlags,
        /// 1 = copy the bytes too.
        50 => capture_payload: u8,
        /// Zero.
        51 => pad: [u8; 5],
        /// First element of the view.
        56 => start_offset: u64,
        /// Elements of the view, per dimension.
        64 => shapes: [u32; MAX_DIMS],
        /// Elements from one to the next, per dimension.
        84 => strides: [u32; MAX_DIMS],
    }
}

wire_struct! {
    /// Which arguments of a task are recorded. Stays on the device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TaskMetadata = "ArgsDumpTaskMetadata" [size 32, align 8] {
        /// One bit per argument.
        0 => dump_arg_mask: u64,
        /// Bits beside the mask that the contract does not name.
        8 => dump_arg_flags: u64,
        /// Code of the element type of each scalar.
        16 => scalar_dtypes: [u8; 16],
    }
}

wire_structs_per_arch! {
    /// First structure of the region.
    pub struct DataHeader = "DumpDataHeader" [size 8320 | 12928, align 64] {
        /// Ready rings, device-written.
        0 | 0 => queues: [[ReadyQueueEntry; This::FACTS.args_dump_ready_entries]; This::FACTS.lanes],
        /// Consumer index per lane, reduced modulo the ring size, host-written.
        8192 | 12800 => queue_heads: [u32; This::FACTS.lanes],
        /// Producer index per lane, reduced modulo the ring size, device-written.
        8208 | 12820 => queue_tails: [u32; This::FACTS.lanes],
        /// Live lanes, one pool each; host-written before the device starts, like all up to `dump_args_level`.
        8224 | 12840 => num_dump_threads: u32,
        /// [`RECORDS`].
        8228 | 12844 => records_per_buffer: u32,
        /// Bytes.
        8232 | 12848 => arena_size_per_thread: u64,
        /// [`MAGIC`].
        8240 | 12856 => magic: u32,
        /// Which arguments are recorded.
        8244 | 12860 => dump_args_level: Level,
        /// The gates.
        8248 | 12864 => backpressure: BackpressureHeader,
        8264 | 12880 => tail: [u8; This::ID.pick(56, 48)]; unnamed,
    }
}

header_words! {
    DataHeader { num_dump_threads, records_per_buffer, arena_size_per_thread, magic, dump_args_level }
}

/// The buffers of a pool.
pub const BUFFER: BufferLayout = buffer_layout!(MetaBuffer, Record, RECORDS);

/// The ArgsDump region of a run.
#[must_use]
pub const fn region(shape: Shape) -> Region {
    Region::new(
        shape,
        RegionSpec {
            ready_entries: shape.arch().facts().args_dump_ready_entries,
            header: match shape.arch() {
                ArchId::A2a3 => header_offsets!(a2a3::DataHeader),
                ArchId::A5 => header_offsets!(a5::DataHeader),
            },
            pool_bytes: size_of::<BufferState>(),
            pool: pool_offsets!(BufferState, total: None),
            free_slots: FREE_SLOTS as u32,
            pools: &[PoolSpec {
                kind: PoolKind::SOLE,
                name: "args_dump",
                instances: shape.lanes(),
                buffer: BUFFER,
                default_buffers: 8,
            }],
        },
    )
}
