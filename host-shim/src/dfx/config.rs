//! What a session records: the run, the subsystems that are on, and how much memory each of their pools gets.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use sluice_core::layout::extension::LINE_BYTES;
use sluice_core::layout::{self, EnableMask, PoolKind, SUBSYSTEMS, Shape, SubsystemId, args_dump, pmu};

use sluice_core::producer::{Control, RecordWindow};

use super::keeper::GateScope;

/// The subsystems that the firmware of this build records.
pub const RECORDED: &[SubsystemId] = &SubsystemId::ALL;

/// Bytes of an arena unless told otherwise.
const DEFAULT_ARENA_BYTES: NonZeroU64 = match NonZeroU64::new(args_dump::DEFAULT_ARENA_BYTES) {
    Some(bytes) => bytes,
    None => NonZeroU64::MIN,
};
/// How long a stop waits for a sink that takes nothing, unless told otherwise.
const LINGER: Duration = Duration::from_secs(10);

/// How many buffers each pool of a kind gets, in one subsystem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferCounts {
    counts: [u32; layout::MAX_KINDS],
}

impl BufferCounts {
    /// As many as the wire contract suggests.
    pub fn suggested(subsystem: SubsystemId, shape: Shape) -> Self {
        let mut counts = [0; layout::MAX_KINDS];
        for array in layout::region(subsystem, shape).arrays() {
            counts[array.kind.0 as usize] = array.default_buffers;
        }
        Self { counts }
    }

    /// The same number for every kind.
    pub const fn uniform(buffers: u32) -> Self {
        Self { counts: [buffers; layout::MAX_KINDS] }
    }

    /// Another number for one kind; a kind that does not exist is ignored.
    #[must_use]
    pub fn with(mut self, kind: PoolKind, buffers: u32) -> Self {
        if let Some(count) = self.counts.get_mut(kind.0 as usize) {
            *count = buffers;
        }
        self
    }

    /// The number for one kind.
    pub fn of(&self, kind: PoolKind) -> u32 {
        self.counts.get(kind.0 as usize).copied().unwrap_or(0)
    }
}

/// What one subsystem records, and with how many buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubsystemConfig {
    /// How much is recorded, in the subsystem's own levels; 0 = nothing until the session is told otherwise.
    pub level: u32,
    /// Every how many executions one is recorded, at least 1.
    pub sample_every: u32,
    /// Which part of the run.
    pub window: RecordWindow,
    /// Buffers per pool.
    pub buffers: BufferCounts,
}

impl SubsystemConfig {
    /// Everything recorded, with the buffers that the wire contract suggests.
    pub fn new(subsystem: SubsystemId, shape: Shape) -> Self {
        let Control { level, sample_every, window } = Control::at_level(subsystem.full_level());
        Self { level, sample_every, window, buffers: BufferCounts::suggested(subsystem, shape) }
    }

    /// What lanes are told.
    pub(super) fn control(&self) -> Control {
        Control { level: self.level, sample_every: self.sample_every, window: self.window }
    }
}

/// A session: which subsystems record, and what all of them have in common.
#[derive(Clone, Debug)]
pub struct DfxConfig {
    /// Architecture, lanes and cores of the run.
    pub shape: Shape,
    /// Whom a starving lane stops.
    pub scope: GateScope,
    /// Most cycles that a lane waits per switch; `None` is the architecture's 30 s.
    pub deadline_cycles: Option<u64>,
    /// Tells runs apart in captures.
    pub run_id: u64,
    /// Threads that copy buffers out and hand them to the sink. One more serves the device, however many subsystems record.
    pub collectors: NonZeroU32,
    /// The group of events that cores count, where pmu is on.
    pub event_group: u32,
    /// Bytes of the arena that each lane has for payloads, where the subsystem has payloads; rounded up to whole lines. A
    /// payload larger than it is cut.
    pub arena_bytes: NonZeroU64,
    /// How long a stop waits for a sink that takes nothing.
    pub linger: Duration,
    /// What each subsystem records, by [`SubsystemId::index`]; `None` is off.
    pub subsystems: [Option<SubsystemConfig>; SUBSYSTEMS],
}

impl DfxConfig {
    /// A session of `shape` in which no subsystem is on yet.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            scope: GateScope::All,
            deadline_cycles: None,
            run_id: 0,
            collectors: NonZeroU32::MIN,
            event_group: pmu::DEFAULT_EVENT_TYPE,
            arena_bytes: DEFAULT_ARENA_BYTES,
            linger: LINGER,
            subsystems: [None; SUBSYSTEMS],
        }
    }

    /// Bytes that an arena has.
    pub(super) fn arena_bytes(&self) -> u64 {
        self.arena_bytes.get().checked_next_multiple_of(LINE_BYTES as u64).unwrap_or(u64::MAX)
    }

    /// Turns `subsystem` on.
    #[must_use]
    pub fn with(mut self, subsystem: SubsystemId, config: SubsystemConfig) -> Self {
        self.subsystems[subsystem.index()] = Some(config);
        self
    }

    /// The subsystems that are on, in the order of reports.
    pub fn enabled(&self) -> impl Iterator<Item = (SubsystemId, SubsystemConfig)> + '_ {
        let each = SubsystemId::ALL.into_iter().zip(&self.subsystems);
        each.filter_map(|(subsystem, config)| Some((subsystem, (*config)?)))
    }

    /// The subsystems that are on, as the device is told.
    pub fn enable_mask(&self) -> EnableMask {
        self.enabled().map(|(subsystem, _)| subsystem.enable_bit()).collect()
    }
}
