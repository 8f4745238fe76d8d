//! The swimlane subsystem: who ran what, when (wire contract, swimlane).
//!
//! Four kinds of pool. A lane stamps dispatch and finish of each task ([`AicpuTaskRecord`]), the core stamps start
//! and end of the same task ([`AicoreTaskRecord`], joined by `reg_task_id`), and a lane records the phases of its
//! own loop ([`AicpuSchedPhaseRecord`]) and of request decoding ([`AicpuOrchPhaseRecord`]).
//!
//! In the region the two task arrays are strided by the run's number of cores; the two phase arrays always hold
//! one pool per lane *of the architecture*, live or not, so the orchestrator array starts behind all scheduler
//! pools. The order in memory is not the order of the [`PoolKind`] numbers.
//!
//! All times are ticks of the architecture's counter.

use super::describe::{header_words, wire_enum, wire_struct, wire_structs_per_arch};
use super::region::{PoolSpec, RegionSpec, buffer_layout, header_offsets};
use super::{Arch, ArchId, BackpressureHeader, BufferLayout, PoolKind, PoolOffsets, Region, Shape};
use core::mem::offset_of;

/// Slots of a free queue.
pub const FREE_SLOTS: usize = 4;
/// Records in a buffer of kind [`PoolKind::AICPU_TASK`].
pub const AICPU_TASK_RECORDS: usize = 1000;
/// Records in a buffer of kind [`PoolKind::AICORE_TASK`].
pub const AICORE_TASK_RECORDS: usize = 1024;
/// Records in a buffer of a phase kind.
pub const PHASE_RECORDS: usize = 16384;
/// Queue shapes a scheduler phase samples: AIC, AIV, MIX.
pub const QUEUE_SHAPES: usize = 3;

wire_enum! {
    /// How much the subsystem records; each level includes those below.
    pub struct Level: u32 {
        /// Nothing.
        OFF = 0, "off";
        /// Core records.
        CORE = 1, "core";
        /// Also the lanes' task records.
        TASK = 2, "task";
        /// Also scheduler phases.
        SCHED = 3, "sched";
        /// Also orchestrator phases.
        FULL = 4, "full";
    }
}

wire_enum! {
    /// What a lane's scheduler loop did. 3 is unused on the wire.
    pub struct SchedPhaseKind: u32 {
        /// Handled finished tasks.
        COMPLETE = 0, "complete";
        /// Handed tasks to cores.
        DISPATCH = 1, "dispatch";
        /// Released resources of finished tasks.
        RELEASE = 2, "release";
        /// Ran tasks that need no core.
        DUMMY = 4, "dummy";
        /// Handed tasks to cores ahead of their inputs.
        EARLY_DISPATCH = 5, "early_dispatch";
        /// Resolved dependencies, inside another phase.
        RESOLVE = 6, "resolve";
        /// Marks one task that needed no core.
        DUMMY_TASK = 7, "dummy_task";
        /// Drained pending work.
        DRAIN = 8, "drain";
        /// First half of a drain, inside it.
        DRAIN_PREPARE = 9, "drain_prepare";
        /// Second half of a drain, inside it.
        DRAIN_PUBLISH = 10, "drain_publish";
        /// Looked for asynchronous completions.
        ASYNC_POLL = 11, "async_poll";
        /// Marks one task whose predicate was false.
        PREDICATED_SKIP = 12, "predicated_skip";
        /// Prepared an outer task of a graph.
        GRAPH_PREPARE = 13, "graph_prepare";
    }
}

wire_struct! {
    /// A full buffer on its way to the host.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadyQueueEntry = "ReadyQueueEntry" [size 32, align 32] {
        /// Which pool of its kind the buffer belongs to.
        0 => core_index: u32,
        /// The kind of that pool.
        4 => kind: PoolKind,
        /// Device address of the buffer; 0 means not yet published.
        8 => buffer_ptr: u64,
        /// Sequence number of the buffer within its pool.
        16 => buffer_seq: u32,
        /// Zero.
        20 => pad: u32,
        24 => tail: [u8; 8]; unnamed,
    }
}

wire_struct! {
    /// The buffer being filled, and the pool's counters. Device-written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ActiveHead = "ChipSwimlaneActiveHead" [size 64, align 64] {
        /// Device address of the buffer being filled, 0 = none; a core reads it for its own pool.
        0 => current_buf_ptr: u64,
        /// Counts buffers of this pool; a core reloads the pointer when it changes.
        8 => current_buf_seq: u32,
        /// Attempts to record, lost ones included; wraps.
        12 => total_record_count: u32,
        /// Records lost on the device; wraps.
        16 => dropped_record_count: u32,
        /// Fills the line.
        20 => pad: [u32; 11],
    }
}

wire_struct! {
    /// Empty buffers on their way to the device. Counters run freely; the slot is the counter modulo the slots.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FreeQueue = "ChipSwimlaneFreeQueue" [size 128, align 64] {
        /// Device addresses of empty buffers, host-written.
        0 => buffer_ptrs: [u64; FREE_SLOTS],
        /// Pop counter, device-written.
        32 => head: u32,
        /// Push counter, host-written.
        36 => tail: u32,
        /// Zero.
        40 => pad: [u32; 13],
        92 => line_end: [u8; 36]; unnamed,
    }
}

wire_struct! {
    /// Pool of kind [`PoolKind::AICPU_TASK`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AicpuTaskPool = "ChipSwimlaneAicpuTaskPool" [size 192, align 64] {
        /// The buffer being filled.
        0 => head: ActiveHead,
        /// Empty buffers.
        64 => free_queue: FreeQueue,
    }
}

wire_struct! {
    /// Pool of kind [`PoolKind::AICORE_TASK`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AicoreTaskPool = "ChipSwimlaneAicoreTaskPool" [size 192, align 64] {
        /// The buffer being filled.
        0 => head: ActiveHead,
        /// Empty buffers.
        64 => free_queue: FreeQueue,
    }
}

wire_struct! {
    /// Pool of kind [`PoolKind::SCHED_PHASE`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AicpuSchedPhasePool = "ChipSwimlaneAicpuSchedPhasePool" [size 192, align 64] {
        /// The buffer being filled.
        0 => head: ActiveHead,
        /// Empty buffers.
        64 => free_queue: FreeQueue,
    }
}

wire_struct! {
    /// Pool of kind [`PoolKind::ORCH_PHASE`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AicpuOrchPhasePool = "ChipSwimlaneAicpuOrchPhasePool" [size 192, align 64] {
        /// The buffer being filled.
        0 => head: ActiveHead,
        /// Empty buffers.
        64 => free_queue: FreeQueue,
    }
}

wire_struct! {
    /// One task as its lane saw it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AicpuTaskRecord = "ChipSwimlaneAicpuTaskRecord" [size 32, align 32] {
        /// When the dispatch register was written, cycles.
        0 => dispatch_time: u64,
        /// When the completion was observed, cycles.
        8 => finish_time: u64,
        /// Dispatch token of this core, joins the core's own record.
        16 => reg_task_id: u32,
        20 => tail: u32; unnamed,
        24 => tail_end: u64; unnamed,
    }
}

wire_struct! {
    /// One task as its core saw it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AicoreTaskRecord = "ChipSwimlaneAicoreTaskRecord" [size 32, align 32] {
        /// When the kernel was about to run, cycles; 0 = slot never written.
        0 => start_time: u64,
        /// Right after the kernel, cycles.
        8 => end_time: u64,
        /// Identity of the task: ring in the upper half, number in the lower. Not unique per core.
        16 => task_token_raw: u64,
        /// Dispatch token of this core, joins the lane's record.
        24 => reg_task_id: u32,
        /// From reading the new token to `start_time`.
        28 => receive_to_start_cycles: u32,
    }
}

wire_struct! {
    /// One phase of a lane's scheduler loop.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AicpuSchedPhaseRecord = "ChipSwimlaneAicpuSchedPhaseRecord" [size 64, align 8] {
        /// Cycles.
        0 => start_time: u64,
        /// Cycles.
        8 => end_time: u64,
        /// Iteration of the loop.
        16 => loop_iter: u32,
        /// What the lane did.
        20 => kind: SchedPhaseKind,
        /// Work units of the phase.
        24 => tasks_processed: u32,
        /// Selected by `kind`. Dispatch: ready-queue hits, then misses, since the previous dispatch record. Dummy
        /// task, predicated skip and graph prepare: the task's number, then its ring. Else zero.
        28 => phase_data: [u32; 2] = {
            "phase_data.dispatch.pop_hit" @ 28, 4;
            "phase_data.dispatch.pop_miss" @ 32, 4;
            "phase_data.dummy_task.local_id" @ 28, 4;
            "phase_data.dummy_task.ring_id" @ 32, 4;
            "phase_data.graph_task.local_id" @ 28, 4;
            "phase_data.graph_task.ring_id" @ 32, 4;
        },
        /// Depth of the ready queue of each shape at the start; 0 when not sampled.
        36 => shared_depth_at_start: [i16; QUEUE_SHAPES],
        /// The same at the end.
        42 => shared_depth_at_end: [i16; QUEUE_SHAPES],
        /// Zero.
        48 => _pad: [u32; 4],
    }
}

wire_struct! {
    /// One submit, as decoded by the orchestrating lane.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AicpuOrchPhaseRecord = "ChipSwimlaneAicpuOrchPhaseRecord" [size 32, align 8] {
        /// Cycles.
        0 => start_time: u64,
        /// Cycles.
        8 => end_time: u64,
        /// Identity of the task.
        16 => task_id: u64,
        /// Counts submits.
        24 => submit_idx: u32,
        /// Zero.
        28 => _pad: u32,
    }
}

wire_struct! {
    /// Buffer of kind [`PoolKind::AICPU_TASK`].
    pub struct AicpuTaskBuffer = "ChipSwimlaneAicpuTaskBuffer" [size 32064, align 64] {
        /// Written by the lane.
        0 => records: [AicpuTaskRecord; AICPU_TASK_RECORDS],
        /// Committed records.
        32000 => count: u32,
        32004 => tail: [u8; 60]; unnamed,
    }
}

wire_struct! {
    /// Buffer of kind [`PoolKind::AICORE_TASK`].
    pub struct AicoreTaskBuffer = "ChipSwimlaneAicoreTaskBuffer" [size 32832, align 64] {
        /// Written by the core.
        0 => records: [AicoreTaskRecord; AICORE_TASK_RECORDS],
        /// Stamped by the lane just before it publishes.
        32768 => count: u32,
        32772 => tail: [u8; 60]; unnamed,
    }
}

wire_struct! {
    /// Buffer of kind [`PoolKind::SCHED_PHASE`].
    pub struct AicpuSchedPhaseBuffer = "ChipSwimlaneAicpuSchedPhaseBuffer" [size 1048640, align 64] {
        /// Written by the lane.
        0 => records: [AicpuSchedPhaseRecord; PHASE_RECORDS],
        /// Committed records.
        1048576 => count: u32,
        1048580 => tail: [u8; 60]; unnamed,
    }
}

wire_struct! {
    /// Buffer of kind [`PoolKind::ORCH_PHASE`].
    pub struct AicpuOrchPhaseBuffer = "ChipSwimlaneAicpuOrchPhaseBuffer" [size 524352, align 64] {
        /// Written by the lane.
        0 => records: [AicpuOrchPhaseRecord; PHASE_RECORDS],
        /// Committed records.
        524288 => count: u32,
        524292 => tail: [u8; 60]; unnamed,
    }
}

wire_structs_per_arch! {
    /// First structure of the region.
    pub struct DataHeader = "ChipSwimlaneDataHeader" [size 127168 | 233152, align 64] {
        /// Ready rings, device-written.
        0 | 0 => queues: [[ReadyQueueEntry; This::FACTS.swimlane_ready_entries]; This::FACTS.lanes],
        /// Consumer index per lane, reduced modulo the ring size, host-written.
        126976 | 232960 => queue_heads: [u32; This::FACTS.lanes],
        /// Producer index per lane, reduced modulo the ring size, device-written.
        126992 | 232980 => queue_tails: [u32; This::FACTS.lanes],
        /// Live cores, the stride of the task pools; host-written before the device starts.
        127008 | 233000 => num_cores: u32,
        /// How much to record; host-written before the device starts.
        127012 | 233004 => chip_swimlane_level: Level,
        /// Live scheduler-phase pools, device-written.
        127016 | 233008 => num_sched_phase_threads: u32,
        /// Live orchestrator-phase pools (0 or 1), device-written.
        127020 | 233012 => num_orch_phase_threads: u32,
        /// Valid entries of `core_to_thread`, device-written.
        127024 | 233016 => num_phase_cores: u32,
        /// Lane that owns each core, -1 = none, device-written.
        127028 | 233020 => core_to_thread: [i8; This::FACTS.max_cores],
        /// The gates.
        127100 | 233128 => backpressure: BackpressureHeader,
        127116 | 233144 => tail: [u8; This::ID.pick(52, 8)]; unnamed,
    }
}

header_words! {
    DataHeader {
        num_cores, chip_swimlane_level, num_sched_phase_threads, num_orch_phase_threads, num_phase_cores,
        core_to_thread,
    }
}

/// Buffers of kind [`PoolKind::AICPU_TASK`].
pub const AICPU_TASK_BUFFER: BufferLayout =
    buffer_layout!(AicpuTaskBuffer, AicpuTaskRecord, AICPU_TASK_RECORDS);
/// Buffers of kind [`PoolKind::AICORE_TASK`].
pub const AICORE_TASK_BUFFER: BufferLayout =
    buffer_layout!(AicoreTaskBuffer, AicoreTaskRecord, AICORE_TASK_RECORDS);
/// Buffers of kind [`PoolKind::SCHED_PHASE`].
pub const SCHED_PHASE_BUFFER: BufferLayout =
    buffer_layout!(AicpuSchedPhaseBuffer, AicpuSchedPhaseRecord, PHASE_RECORDS);
/// Buffers of kind [`PoolKind::ORCH_PHASE`].
pub const ORCH_PHASE_BUFFER: BufferLayout =
    buffer_layout!(AicpuOrchPhaseBuffer, AicpuOrchPhaseRecord, PHASE_RECORDS);

const fn spec(kind: PoolKind, instances: u32, buffer: BufferLayout, default_buffers: u32) -> PoolSpec {
    let Some(name) = kind.name() else { panic!("a kind of this subsystem") };
    PoolSpec { kind, name, instances, buffer, default_buffers }
}

/// The swimlane region of a run.
#[must_use]
pub const fn region(shape: Shape) -> Region {
    let lanes = shape.arch().facts().lanes as u32;
    Region::new(
        shape,
        RegionSpec {
            ready_entries: shape.arch().facts().swimlane_ready_entries,
            header: match shape.arch() {
                ArchId::A2a3 => header_offsets!(a2a3::DataHeader),
                ArchId::A5 => header_offsets!(a5::DataHeader),
            },
            pool_bytes: size_of::<AicpuTaskPool>(),
            // All four kinds of pool are built alike.
            pool: PoolOffsets {
                base: 0,
                free_ptrs: offset_of!(AicpuTaskPool, free_queue.buffer_ptrs),
                free_head: offset_of!(AicpuTaskPool, free_queue.head),
                free_tail: offset_of!(AicpuTaskPool, free_queue.tail),
                current_ptr: offset_of!(AicpuTaskPool, head.current_buf_ptr),
                current_seq: offset_of!(AicpuTaskPool, head.current_buf_seq),
                total_records: Some(offset_of!(AicpuTaskPool, head.total_record_count)),
                dropped_records: offset_of!(AicpuTaskPool, head.dropped_record_count),
                overflow_records: None,
                mismatch_records: None,
                staging_ptr: None,
            },
            free_slots: FREE_SLOTS as u32,
            pools: &[
                spec(PoolKind::AICPU_TASK, shape.cores(), AICPU_TASK_BUFFER, 8),
                spec(PoolKind::AICORE_TASK, shape.cores(), AICORE_TASK_BUFFER, 4),
                spec(PoolKind::SCHED_PHASE, lanes, SCHED_PHASE_BUFFER, 6),
                spec(PoolKind::ORCH_PHASE, lanes, ORCH_PHASE_BUFFER, 8),
            ],
        },
    )
}
