//! Phases of the device's own start and end, one stamp pair each (wire contract, device phases).
//!
//! No rings and no gates: a fixed table that the device fills and the host reads after the run.
//!
//! ```text
//! BufferHeader │ PhaseRecord [lane][phase] │ TaskTimingRecord [lane][slot]
//! ```

use super::describe::{wire_enum, wire_struct};

/// Phases per lane.
pub const PHASES: usize = DevicePhase::KNOWN.len();
/// Tagged tasks per lane.
pub const TASK_TIMING_SLOTS: usize = 16;
/// [`PhaseRecord::start_cycle`] and [`TaskTimingRecord::dispatch_cycle`] before anything was stamped.
pub const NEVER: u64 = u64::MAX;

wire_enum! {
    /// Which phase; the second index of the table.
    pub struct DevicePhase: u32 {
        /// The whole run.
        RUN_WALL = 0, "run_wall";
        /// Entry and attachment.
        PREAMBLE = 1, "preamble";
        /// Loading of code.
        SO_LOAD = 2, "so_load";
        /// Building the graph.
        GRAPH_BUILD = 3, "graph_build";
        /// After orchestration.
        POST_ORCH = 4, "post_orch";
        /// Orchestration.
        ORCH_WINDOW = 5, "orch_window";
        /// Scheduling.
        SCHED_WINDOW = 6, "sched_window";
        /// Checking the configuration.
        CONFIG_VALIDATE = 7, "config_validate";
        /// Setting up the arena.
        ARENA_WIRE = 8, "arena_wire";
        /// Resetting shared memory.
        SM_RESET = 9, "sm_reset";
    }
}

wire_struct! {
    /// First structure of the table.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BufferHeader = "DevicePhaseBufferHeader" [size 16, align 8] {
        /// 0 = no task was tagged, the host may skip the timing records.
        0 => task_timing_tail_used: u64,
        /// Zero.
        8 => reserved: u64,
    }
}

wire_struct! {
    /// One phase of one lane.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PhaseRecord = "AicpuPhaseRecord" [size 16, align 8] {
        /// Cycles; [`NEVER`] = not stamped.
        0 => start_cycle: u64,
        /// Cycles.
        8 => end_cycle: u64,
    }
}

wire_struct! {
    /// One tagged task of one lane.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TaskTimingRecord = "TaskTimingRecord" [size 16, align 8] {
        /// First dispatch, cycles; [`NEVER`] = none.
        0 => dispatch_cycle: u64,
        /// Last completion, cycles; 0 = none.
        8 => finish_cycle: u64,
    }
}

/// Offset of the first [`TaskTimingRecord`] in a table for `lanes` lanes.
#[must_use]
pub const fn task_timing_offset(lanes: u32) -> usize {
    size_of::<BufferHeader>() + lanes as usize * PHASES * size_of::<PhaseRecord>()
}

/// Bytes of a table for `lanes` lanes.
#[must_use]
pub const fn bytes(lanes: u32) -> usize {
    task_timing_offset(lanes) + lanes as usize * TASK_TIMING_SLOTS * size_of::<TaskTimingRecord>()
}
