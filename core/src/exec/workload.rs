//! Records that lanes make up, to load the recording and nothing else: what the host asks for.

use bitflags::bitflags;

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
}

impl Workload {
    /// None.
    pub const NONE: Self = Self { records: 0, kinds: WorkloadKinds::empty(), rate_hz: 0 };

    /// So many tasks, as fast as lanes can.
    pub const fn tasks(records: u64) -> Self {
        Self { records, kinds: WorkloadKinds::AICPU_TASK, rate_hz: 0 }
    }
}
