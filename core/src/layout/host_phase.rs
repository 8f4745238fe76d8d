//! Phases of the host's own work on a run, recorded beside the device's (wire contract, host phases).
//!
//! No device reads or writes these; they share the buffer form so that one reader serves both sides. Times are
//! nanoseconds of the host's monotonic clock.

use super::BufferLayout;
use super::describe::{wire_enum, wire_struct};
use super::region::buffer_layout;

/// Records in a buffer.
pub const RECORDS: usize = 512;
/// Buffers of a run unless it says otherwise.
pub const DEFAULT_BUFFERS: u32 = 24;
/// The build of a buffer.
pub const BUFFER: BufferLayout = buffer_layout!(HostPhaseRecordBuffer, HostPhaseRecord, RECORDS);

wire_enum! {
    /// What the host did.
    pub struct HostPhaseKind: u32 {
        /// Gathered the arguments of a run.
        ARGS = 0, "args";
        /// Built the run's arena.
        ARENA_BUILD = 1, "arena_build";
        /// Built what does not change between runs.
        STATIC_ARENA = 2, "static_arena";
        /// Set up the device's heap.
        GM_HEAP = 3, "gm_heap";
        /// Set up shared memory.
        SHARED_MEM = 4, "shared_mem";
        /// Started the runtime.
        RUNTIME_INIT = 5, "runtime_init";
        /// Orchestrated on the host.
        HOST_ORCH = 6, "host_orch";
        /// Sent the graph to the device.
        GRAPH_UPLOAD = 7, "graph_upload";
        /// Put device addresses into the arena.
        RELOCATE = 8, "relocate";
        /// Copied shared memory to the device.
        SM_H2D = 9, "sm_h2d";
        /// Copied the arena to the device.
        ARENA_H2D = 10, "arena_h2d";
        /// Closed the host's view.
        HOST_VIEW_CLOSE = 11, "host_view_close";
        /// Submitted a task.
        SUBMIT_TASK = 12, "submit_task";
        /// Allocated tensors.
        ALLOC_TENSORS = 13, "alloc_tensors";
        /// Recorded a node of a graph.
        RECORD_NODE = 14, "record_node";
        /// Submitted a graph.
        GRAPH_SUBMIT = 15, "graph_submit";
        /// Built a graph's definition.
        BUILD_DEFINITION = 16, "build_definition";
    }
}

wire_struct! {
    /// One phase of host work.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HostPhaseRecord = "HostPhaseRecord" [size 40, align 8] {
        /// Nanoseconds.
        0 => start_ns: u64,
        /// Nanoseconds.
        8 => end_ns: u64,
        /// Identity of the task for kinds that submit one, else a number of bytes or nodes.
        16 => payload: u64,
        /// What the host did.
        24 => kind: HostPhaseKind,
        /// Submit index, 0 for phases of a bind.
        28 => index: u32,
        /// The operating system's number of the thread.
        32 => thread_id: u32,
        /// Zero.
        36 => _pad: u32,
    }
}

wire_struct! {
    /// A buffer of host phases.
    pub struct HostPhaseRecordBuffer = "HostPhaseRecordBuffer" [size 20544, align 64] {
        /// Written by the host.
        0 => records: [HostPhaseRecord; RECORDS],
        /// Committed records.
        20480 => count: u32,
        20484 => tail: [u8; 60]; unnamed,
    }
}
