//! Records that lanes make up, to load the recording and nothing else: what the host asks for.

use bitflags::bitflags;

use crate::mem::DevAddr;

bitflags! {
    /// Kinds of record that a workload is made of. Unknown bits are kept, and made by nobody.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(transparent)]
    pub struct WorkloadKinds: u32 {
        /// Tasks of the swimlane as their lane saw them.
        const AICPU_TASK = 1 << 0;
        /// Phases of a lane's loop in the swimlane.
        const SCHED_PHASE = 1 << 1;
        /// Submits in the swimlane, on the sequencers' lane.
        const ORCH_PHASE = 1 << 2;
        /// Counters of cores.
        const PMU = 1 << 3;
        /// Begins and ends of scopes, on the sequencers' lane.
        const SCOPE_STATS = 1 << 4;
        /// Dependencies of tasks, on the sequencers' lane.
        const DEP_GEN = 1 << 5;
        /// Arguments of tasks.
        const ARGS_DUMP = 1 << 6;
        /// Tasks of the swimlane as their cores saw them: cores are given items that belong to no execution.
        const AICORE_TASK = 1 << 7;
    }
}

impl WorkloadKinds {
    /// Those that only the sequencers' lane records.
    pub const OF_SEQUENCERS: Self = Self::ORCH_PHASE.union(Self::SCOPE_STATS).union(Self::DEP_GEN);
}

/// A workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workload {
    /// Records that all lanes make together. Lanes share them evenly, kinds of record and pools take turns.
    pub records: u64,
    /// What they are.
    pub kinds: WorkloadKinds,
    /// Records per second that all lanes make together at most; 0 = as fast as they can.
    pub rate_hz: u64,
    /// Slots of the longest chain of dependencies: task `n` of a pool takes 1 + `n` mod this many. One or none: no chains.
    pub chain: u32,
    /// Bytes of each argument.
    pub payload_bytes: u32,
    /// Where they lie: [`source_bytes`](Workload::source_bytes) bytes, of which argument `n` of a pool begins `n` mod
    /// [`PAYLOAD_STARTS`](Workload::PAYLOAD_STARTS) steps of [`PAYLOAD_STEP_BYTES`](Workload::PAYLOAD_STEP_BYTES) in.
    pub payload_source: DevAddr,
    /// The instruction that cores are given over and over; null: cores are given nothing.
    pub core_item: DevAddr,
}

impl Workload {
    /// Places at which arguments begin.
    pub const PAYLOAD_STARTS: u32 = 1024;
    /// Bytes from one of them to the next.
    pub const PAYLOAD_STEP_BYTES: u32 = 8;

    /// None.
    pub const NONE: Self = Self {
        records: 0,
        kinds: WorkloadKinds::empty(),
        rate_hz: 0,
        chain: 0,
        payload_bytes: 0,
        payload_source: DevAddr::NULL,
        core_item: DevAddr::NULL,
    };

    /// So many tasks, as fast as lanes can.
    pub const fn tasks(records: u64) -> Self {
        Self { records, kinds: WorkloadKinds::AICPU_TASK, ..Self::NONE }
    }

    /// Bytes that arguments are taken from.
    pub const fn source_bytes(&self) -> u64 {
        self.payload_bytes as u64 + (Self::PAYLOAD_STARTS as u64 - 1) * Self::PAYLOAD_STEP_BYTES as u64
    }
}
