//! The wire contract: what stands where in the memory that firmware and host share.
//!
//! Types and numbers only, no behaviour. Structures are declared once, by a macro that also proves their size,
//! alignment and every offset at compile time and describes them for `cargo xtask layout`; they serve as a
//! description, as payload types and as a source of offsets. *Live* control words are never reached through these
//! structures: they are cells of [`mem`](crate::mem) at the offsets that a [`Region`] computes.
//!
//! Little-endian throughout. Each subsystem owns one region: its data header, then its pools (see [`Region`] for
//! the picture). Record buffers are allocations of their own and travel by device address.
//!
//! # Words of a subsystem's region
//!
//! One buffer goes round: free queue → current → ready ring → host → free queue.
//!
//! | word | writer | reader | ordering | what it publishes |
//! |---|---|---|---|---|
//! | `queues[lane][i]` | lane | drain | plain, before the tail | a full buffer: kind, pool, address, sequence |
//! | `queue_tails[lane]` | lane | drain | release → acquire | the entry, and the buffer's records and `count` |
//! | `queue_heads[lane]` | drain | lane | release → acquire | the entry has been read, its slot is free |
//! | `free_queue.buffer_ptrs[i]` | refill | lane | plain, before the tail | an empty buffer |
//! | `free_queue.tail` | refill | lane | release → acquire | the pointer in the slot |
//! | `free_queue.head` | lane | refill | release → acquire | the claim: `current_buf_ptr` and `current_buf_seq` |
//! | `current_buf_ptr`, `current_buf_seq` | lane | core; host at re-attach | before `free_queue.head` when claimed, cleared after `queue_tails` | the buffer being filled |
//! | `count` of a buffer | lane | collector | plain, before the tail | how many records are whole |
//! | `total_record_count`, `dropped_record_count` | lane | host | relaxed; exact when the lane is parked or flushed | nothing |
//! | `rq_contended`, `fq_contended` | lanes store 1, freeze stores 0 | freeze, lanes | release → acquire | a lane starves |
//! | `rq_freeze_active`, `fq_freeze_active` | freeze | lanes | release → acquire | the gate, and all that was done before it moved |
//! | run parameters (`num_cores`, level, …) | host, before the start | lanes | by the start itself | the shape of the run |
//!
//! *drain*, *refill*, *collector* and *freeze* are roles of the host; *lane* is an AICPU thread, *core* a compute
//! core. No word is ever read, modified and written in one step by one side while the other side writes it.

mod arch;
pub mod args_dump;
pub mod dep_gen;
pub(crate) mod describe;
pub mod device_phase;
pub mod extension;
pub mod host_phase;
pub mod pmu;
pub mod pmu_events;
mod region;
pub mod scope_stats;
mod subsystem;
pub mod swimlane;

pub use arch::*;
pub use describe::{Describe, Description, Field, HASH_SEED};
pub use region::*;
pub use subsystem::*;

macro_rules! descriptions {
    ($($structure:ty),+ $(,)?) => { &[$(<$structure as Describe>::DESCRIPTION),+] };
}

macro_rules! contract {
    ($arch:ident $(, $only:ty)*) => {
        descriptions![
            BackpressureHeader,
            swimlane::AicpuTaskRecord,
            swimlane::AicoreTaskRecord,
            swimlane::AicpuSchedPhaseRecord,
            swimlane::AicpuOrchPhaseRecord,
            host_phase::HostPhaseRecord,
            swimlane::AicpuTaskBuffer,
            swimlane::AicoreTaskBuffer,
            swimlane::AicpuSchedPhaseBuffer,
            swimlane::AicpuOrchPhaseBuffer,
            host_phase::HostPhaseRecordBuffer,
            swimlane::FreeQueue,
            swimlane::ActiveHead,
            swimlane::AicpuTaskPool,
            swimlane::AicoreTaskPool,
            swimlane::AicpuSchedPhasePool,
            swimlane::AicpuOrchPhasePool,
            swimlane::ReadyQueueEntry,
            swimlane::$arch::DataHeader,
            pmu::$arch::Record,
            pmu::$arch::Buffer,
            pmu::FreeQueue,
            pmu::$arch::BufferState,
            pmu::ReadyQueueEntry,
            pmu::$arch::DataHeader,
            dep_gen::Record,
            dep_gen::OverflowRecord,
            dep_gen::Buffer,
            dep_gen::FreeQueue,
            dep_gen::BufferState,
            dep_gen::ReadyQueueEntry,
            dep_gen::$arch::DataHeader,
            args_dump::Record,
            args_dump::MetaBuffer,
            args_dump::FreeQueue,
            args_dump::BufferState,
            args_dump::ReadyQueueEntry,
            args_dump::$arch::DataHeader,
            args_dump::ArgInfo,
            args_dump::TaskMetadata,
            scope_stats::Record,
            scope_stats::Buffer,
            scope_stats::FreeQueue,
            scope_stats::BufferState,
            scope_stats::ReadyQueueEntry,
            scope_stats::$arch::DataHeader,
            device_phase::PhaseRecord,
            device_phase::BufferHeader,
            device_phase::TaskTimingRecord,
            $($only,)*
        ]
    };
}

/// The whole wire contract of an architecture, structure by structure.
#[must_use]
pub const fn contract(arch: ArchId) -> &'static [Description] {
    match arch {
        ArchId::A2a3 => contract!(a2a3),
        ArchId::A5 => contract!(a5, pmu::a5::AicoreRing),
    }
}

/// Offset of the header word that says for how many cores the region is; `None` for a subsystem whose pools do not follow
/// the cores.
#[must_use]
pub const fn num_cores_word(subsystem: SubsystemId, arch: ArchId) -> Option<usize> {
    match subsystem {
        SubsystemId::Swimlane => Some(swimlane::header_words(arch).num_cores),
        SubsystemId::Pmu => Some(pmu::header_words(arch).num_cores),
        SubsystemId::DepGen | SubsystemId::ArgsDump | SubsystemId::ScopeStats => None,
    }
}

/// The region of a subsystem for one shape of run.
#[must_use]
pub const fn region(subsystem: SubsystemId, shape: Shape) -> Region {
    match subsystem {
        SubsystemId::Swimlane => swimlane::region(shape),
        SubsystemId::Pmu => pmu::region(shape),
        SubsystemId::DepGen => dep_gen::region(shape),
        SubsystemId::ArgsDump => args_dump::region(shape),
        SubsystemId::ScopeStats => scope_stats::region(shape),
    }
}

#[cfg(test)]
mod tests;
