//! What stands inside segments: fixed-size notes as little-endian structures, and two JSON documents.
//!
//! Numbers read from a file are as untrusted as numbers read from a device: enumerations are newtypes over `u32`,
//! so a value of a later version is kept and shown, never misread.

use core::fmt;
use core::marker::PhantomData;
use core::mem::{offset_of, size_of};
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sluice_core::layout::device_phase::DevicePhase;
use sluice_core::layout::{PoolKind, SubsystemId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::dfx::PayloadMeta;
use crate::report::{Extent, Report};

/// Declares a number of the file whose known values have a name.
macro_rules! named_number {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$value_meta:meta])* $value:ident = $number:literal, $text:literal;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
        )]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$value_meta])* pub const $value: Self = Self($number);)+

            /// Every value this version knows.
            pub const KNOWN: &'static [Self] = &[$(Self::$value),+];

            /// `None` for a value of a later version.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)+
                    _ => None,
                }
            }

            /// The value of that name.
            pub fn named(name: &str) -> Option<Self> {
                Self::KNOWN.iter().copied().find(|value| value.name() == Some(name))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "unknown({})", self.0),
                }
            }
        }
    };
}

pub(super) use named_number;

named_number! {
    /// Which subsystem a buffer, freeze or loss belongs to.
    pub struct Subsystem {
        /// Who ran what, when.
        SWIMLANE = 0, "swimlane";
        /// Event counters per task.
        PMU = 1, "pmu";
        /// Dependencies between tasks.
        DEP_GEN = 2, "dep_gen";
        /// Arguments of tasks.
        ARGS_DUMP = 3, "args_dump";
        /// Occupancy per scope.
        SCOPE_STATS = 4, "scope_stats";
    }
}

impl Subsystem {
    /// The subsystem, when this version knows it.
    pub fn id(self) -> Option<SubsystemId> {
        SubsystemId::ALL.get(self.0 as usize).copied()
    }
}

impl From<SubsystemId> for Subsystem {
    fn from(subsystem: SubsystemId) -> Self {
        Self(subsystem.index() as u32)
    }
}

named_number! {
    /// One of the two gates of a subsystem.
    pub struct Gate {
        /// Push gate: a ready ring was full.
        READY = 0, "rq";
        /// Pop gate: a free queue was empty.
        FREE = 1, "fq";
    }
}

named_number! {
    /// Why a record did not arrive.
    pub struct LossCause {
        /// The lane's deadline passed without a host that serves it.
        HOST_GONE = 0, "host_gone";
        /// The buffer was in the hands of a host that died.
        HOST_CRASH = 1, "host_crash";
        /// Copying the buffer from the device failed.
        COPY_FAILED = 2, "copy_failed";
        /// The device never had a buffer for the record.
        NO_BUFFER = 3, "no_buffer";
        /// The device's words about the buffer made no sense.
        CORRUPT = 4, "corrupt";
        /// A core still held the buffer when it was given up.
        CORE_BUSY = 5, "core_busy";
        /// What a core had left belonged to another task.
        MISMATCH = 6, "mismatch";
    }
}

/// A pool: whose buffers carry consecutive sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pool {
    /// The subsystem.
    pub subsystem: Subsystem,
    /// The kind of pool.
    pub kind: PoolKind,
    /// Core, lane or 0, as the subsystem counts its pools.
    pub instance: u32,
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.subsystem == Subsystem::SWIMLANE {
            write!(f, "{}/{}[{}]", self.subsystem, self.kind, self.instance)
        } else {
            write!(f, "{}[{}]", self.subsystem, self.instance)
        }
    }
}

/// What stands before the records of a buffer segment, 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BufferHeader {
    subsystem: Subsystem,
    kind: PoolKind,
    instance: u32,
    /// Sequence number of the buffer within its pool.
    pub buffer_seq: u32,
    /// Records that follow.
    pub records: u32,
    /// Bytes of one record.
    pub record_bytes: u32,
    reserved: u64,
}

const _: () = assert!(size_of::<BufferHeader>() == 32);

impl BufferHeader {
    /// Describes `records` records of `record_bytes` bytes each.
    pub const fn new(pool: Pool, buffer_seq: u32, records: u32, record_bytes: u32) -> Self {
        Self {
            subsystem: pool.subsystem,
            kind: pool.kind,
            instance: pool.instance,
            buffer_seq,
            records,
            record_bytes,
            reserved: 0,
        }
    }

    /// The pool the buffer went round in.
    pub const fn pool(&self) -> Pool {
        Pool { subsystem: self.subsystem, kind: self.kind, instance: self.instance }
    }

    /// Bytes of all records.
    pub const fn records_bytes(&self) -> u64 {
        self.records as u64 * self.record_bytes as u64
    }
}

/// What stands before the bytes of a payload segment, 48 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PayloadHeader {
    subsystem: Subsystem,
    instance: u32,
    /// Sequence number of the buffer with the record.
    pub buffer_seq: u32,
    /// Place of the record in the buffer.
    pub record: u32,
    /// The task.
    pub task: u64,
    /// Place of the argument among those of the task.
    pub arg_index: u32,
    /// When it was recorded, as the record says.
    pub stage: u32,
    /// Place of the first byte in the payload.
    pub offset_bytes: u64,
    /// Bytes of the payload.
    pub total_bytes: u64,
}

const _: () = assert!(size_of::<PayloadHeader>() == 48);

impl PayloadHeader {
    /// Describes bytes of a payload whose record came through `pool`.
    pub fn new(pool: Pool, meta: &PayloadMeta) -> Self {
        Self {
            subsystem: pool.subsystem,
            instance: pool.instance,
            buffer_seq: meta.sequence,
            record: meta.record,
            task: meta.task,
            arg_index: meta.arg_index,
            stage: meta.stage.0.into(),
            offset_bytes: meta.offset_bytes,
            total_bytes: meta.total_bytes,
        }
    }

    /// The pool that the record came through.
    pub const fn pool(&self) -> Pool {
        Pool { subsystem: self.subsystem, kind: PoolKind::SOLE, instance: self.instance }
    }
}

/// The lane is not known.
pub const NO_LANE: u32 = u32::MAX;
/// The phase belongs to no execution.
pub const NO_EXECUTION: u64 = u64::MAX;

/// One freeze, from opening to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FreezeEvent {
    /// Whose gate.
    pub subsystem: Subsystem,
    /// Which gate.
    pub gate: Gate,
    /// The lane that had waited longest when it opened, [`NO_LANE`] when that is not known.
    pub opened_by: u32,
    /// Most lanes that stood at a gate at once.
    pub lanes_parked: u32,
    /// Host monotonic ns.
    pub opened_ns: u64,
    /// Host monotonic ns.
    pub released_ns: u64,
    /// Buffers that the host took meanwhile; 0 in captures of minor version 0.
    pub buffers_drained: u64,
}

impl FreezeEvent {
    /// Bytes of an event in captures of minor version 0.
    pub(super) const BYTES_0: usize = offset_of!(Self, buffers_drained);
}

/// The device counter and the host clock read at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ClockPair {
    /// Device counter.
    pub device_cycles: u64,
    /// Host monotonic ns, the middle of the reading.
    pub host_ns: u64,
    /// Half of the time the reading took: the instant is known to ± this.
    pub uncertainty_ns: u64,
}

/// The name of a host phase: at most [`Phase::MAX_BYTES`] bytes, kept in the note itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Phase([u8; Phase::MAX_BYTES]);

impl Phase {
    /// Longest name.
    pub const MAX_BYTES: usize = 28;

    /// A phase of that name; the build fails when the name is too long.
    pub const fn new(name: &str) -> Self {
        let (bytes, mut padded, mut i) = (name.as_bytes(), [0; Self::MAX_BYTES], 0);
        assert!(bytes.len() <= Self::MAX_BYTES, "name of a host phase is too long");
        while i < bytes.len() {
            padded[i] = bytes[i];
            i += 1;
        }
        Self(padded)
    }

    /// A phase of that name, or of as much of it as fits.
    pub fn named(name: &str) -> Self {
        let mut padded = [0; Self::MAX_BYTES];
        let bytes = &name.as_bytes()[..name.len().min(Self::MAX_BYTES)];
        padded[..bytes.len()].copy_from_slice(bytes);
        Self(padded)
    }

    /// The name; bytes that are no text are replaced.
    pub fn name(&self) -> std::borrow::Cow<'_, str> {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end])
    }
}

impl fmt::Debug for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.name(), f)
    }
}

/// Something the host did for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HostPhase {
    /// Host monotonic ns.
    pub start_ns: u64,
    /// Host monotonic ns.
    pub end_ns: u64,
    /// The execution it was done for, [`NO_EXECUTION`] when for none.
    pub execution: u64,
    /// Number of the thread, as the operating system counts them.
    pub thread: u32,
    /// What was done.
    pub phase: Phase,
}

/// A phase that a lane of the device went through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DevicePhaseNote {
    /// The lane.
    pub lane: u32,
    /// Which phase.
    pub phase: DevicePhase,
    /// Device counter when it began.
    pub start_cycles: u64,
    /// Device counter when it ended.
    pub end_cycles: u64,
}

/// A lane that waited at a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WaitNote {
    /// Whose gate.
    pub subsystem: Subsystem,
    /// The lane.
    pub lane: u32,
    /// Which gate.
    pub gate: Gate,
    /// Kind of the pool whose buffer it was about.
    pub kind: PoolKind,
    /// Which pool of its kind.
    pub instance: u32,
    /// 1: the lane took the host for gone, and lost records.
    pub gave_up: u32,
    /// Device counter when it began.
    pub begin_cycles: u64,
    /// Device counter when it had ended.
    pub end_cycles: u64,
}

/// When the host had a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TransitNote {
    subsystem: Subsystem,
    kind: PoolKind,
    instance: u32,
    /// Sequence number of the buffer within its pool.
    pub buffer_seq: u32,
    /// When it was taken out of the ready ring, host monotonic ns.
    pub drained_ns: u64,
    /// When its records were safe, host monotonic ns.
    pub collected_ns: u64,
}

impl TransitNote {
    /// Buffer `buffer_seq` of `pool`.
    pub const fn new(pool: Pool, buffer_seq: u32, drained_ns: u64, collected_ns: u64) -> Self {
        let Pool { subsystem, kind, instance } = pool;
        Self { subsystem, kind, instance, buffer_seq, drained_ns, collected_ns }
    }

    /// The pool the buffer went round in.
    pub const fn pool(&self) -> Pool {
        Pool { subsystem: self.subsystem, kind: self.kind, instance: self.instance }
    }
}

/// Records that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LossNote {
    subsystem: Subsystem,
    kind: PoolKind,
    instance: u32,
    /// Sequence number of the buffer they stood in, `u32::MAX` when they never had one.
    pub buffer_seq: u32,
    /// Why.
    pub cause: LossCause,
    /// Lane that reported it, [`NO_LANE`] when none did.
    pub lane: u32,
    /// How many.
    pub records: u64,
    /// When the host learnt of it, host monotonic ns.
    pub noted_ns: u64,
}

const _: () = assert!(size_of::<FreezeEvent>() == 40 && FreezeEvent::BYTES_0 == 32);
const _: () = assert!(size_of::<ClockPair>() == 24);
const _: () = assert!(size_of::<HostPhase>() == 56 && size_of::<LossNote>() == 40);
const _: () = assert!(size_of::<DevicePhaseNote>() == 24 && size_of::<WaitNote>() == 40);
const _: () = assert!(size_of::<TransitNote>() == 32);

impl LossNote {
    /// `records` records of `pool` were lost by `cause`.
    pub const fn new(
        pool: Pool,
        buffer_seq: Option<u32>,
        cause: LossCause,
        records: u64,
        noted_ns: u64,
    ) -> Self {
        Self {
            subsystem: pool.subsystem,
            kind: pool.kind,
            instance: pool.instance,
            buffer_seq: match buffer_seq {
                Some(seq) => seq,
                None => u32::MAX,
            },
            cause,
            lane: NO_LANE,
            records,
            noted_ns,
        }
    }

    /// The pool they were meant for.
    pub const fn pool(&self) -> Pool {
        Pool { subsystem: self.subsystem, kind: self.kind, instance: self.instance }
    }
}

/// What was about to run, written before it ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Back-end and board, such as `sim`.
    pub device: String,
    /// Live lanes.
    pub lanes: u32,
    /// `all` or `lane`.
    pub gate_scope: String,
    /// Command line or caller, for people.
    pub options: String,
    /// Name of the model.
    pub model: String,
    /// Subgraphs, one per TPB.
    pub tpbs: u32,
    /// Executions asked for.
    pub executions: u64,
    /// Group of events that cores count; 0 when they count none.
    pub event_group: u32,
    /// How much of the run each subsystem that is on records.
    pub recorded: BTreeMap<String, Extent>,
    /// Whether scopes are recorded.
    pub has_scopes: bool,
    /// Buffers per pool, by name of the kind of pool, of those that record.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub buffers: BTreeMap<String, u32>,
    /// Indexed by core as the task pools count them.
    pub cores: Vec<Core>,
}

/// One core and what it is going to do in every execution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Core {
    /// Name for people, such as `TPB0 PE`.
    pub name: String,
    /// The lane that dispatches to it.
    pub lane: u32,
    /// Work items of one execution, in program order. Dispatch tokens count through them from 1.
    pub items: Vec<WorkItem>,
}

/// One queue block of one engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkItem {
    /// Name for people.
    pub name: String,
    /// Block number.
    pub block: u32,
    /// DMA queue; absent when the program cannot be interpreted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// Bytes moved; absent when the program cannot be interpreted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Descriptor pairs; absent when the program cannot be interpreted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<u64>,
    /// Of its arguments, in their order, the tensors that they are parts of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

/// What a run came to, written last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The report of the run.
    pub report: Report,
    /// Every pool that carried records.
    pub pools: Vec<PoolTotals>,
}

/// The device's and the host's account of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolTotals {
    /// Name of the subsystem.
    pub subsystem: String,
    /// Number of the kind of pool.
    pub kind: u32,
    /// Core, lane or 0.
    pub instance: u32,
    /// Attempts to record, by the device's account.
    pub produced: u64,
    /// Records that reached the capture.
    pub collected: u64,
    /// Records lost, by either account.
    pub dropped: u64,
    /// Buffers that reached the capture.
    pub buffers: u64,
}

impl PoolTotals {
    /// The pool, when this version knows its subsystem.
    pub fn pool(&self) -> Option<Pool> {
        let subsystem = Subsystem::named(&self.subsystem)?;
        Some(Pool { subsystem, kind: PoolKind(self.kind), instance: self.instance })
    }
}

/// Fixed-size items one after another, read by copy from bytes that need no alignment.
#[derive(Clone, Debug)]
pub struct Items<'a, T> {
    bytes: &'a [u8],
    item_bytes: usize,
    item: PhantomData<fn() -> T>,
}

impl<'a, T: FromBytes> Items<'a, T> {
    /// The items that stand whole in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::of_size(bytes, size_of::<T>())
    }

    /// The items that stand whole in `bytes`, of which each takes `item_bytes`, at most as many as one has today and not 0;
    /// what an item of then had not is 0.
    pub(super) fn of_size(bytes: &'a [u8], item_bytes: usize) -> Self {
        Self { bytes, item_bytes, item: PhantomData }
    }
}

impl<T: FromBytes + IntoBytes> Iterator for Items<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let (bytes, rest) = self.bytes.split_at_checked(self.item_bytes)?;
        self.bytes = rest;
        let mut item = T::new_zeroed();
        item.as_mut_bytes().get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let items = self.bytes.len() / self.item_bytes;
        (items, Some(items))
    }
}

impl<T: FromBytes + IntoBytes> ExactSizeIterator for Items<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_numbers() {
        for &subsystem in Subsystem::KNOWN {
            assert_eq!(Subsystem::named(subsystem.name().unwrap()), Some(subsystem));
        }
        for subsystem in SubsystemId::ALL {
            assert_eq!(Subsystem::from(subsystem).name(), Some(subsystem.name()));
            assert_eq!(Subsystem::from(subsystem).id(), Some(subsystem));
        }
        assert_eq!(Subsystem(9).to_string(), "unknown(9)");
        assert_eq!(Subsystem(9).id(), None);
        assert_eq!(LossCause::named("core_busy"), Some(LossCause::CORE_BUSY));
        assert_eq!(Gate::named("tq"), None);
    }

    #[test]
    fn phase_names_end_at_the_padding() {
        assert_eq!(Phase::new("wait").name(), "wait");
        let full = "x".repeat(Phase::MAX_BYTES);
        assert_eq!(Phase::new(&full).name(), full);
        assert_eq!(Phase::named(&format!("{full}y")), Phase::new(&full));
        assert_eq!(Phase([0xff; 28]).name().chars().next(), Some('\u{fffd}'));
    }

    #[test]
    fn items_are_read_at_any_alignment() {
        let pair = ClockPair { device_cycles: 1, host_ns: 2, uncertainty_ns: 3 };
        let bytes = [&[0xee][..], pair.as_bytes(), pair.as_bytes()].concat();
        let items = Items::<ClockPair>::new(&bytes[1..bytes.len() - 1]);
        assert_eq!(items.len(), 1);
        assert_eq!(items.collect::<Vec<_>>(), [pair]);
    }

    #[test]
    fn documents_of_another_minor_version_are_read() {
        let text = r#"{"device": "sim", "lanes": 2, "later": [1], "cores": [{"name": "TPB0 PE", "hue": 7}]}"#;
        let manifest: Manifest = serde_json::from_str(text).unwrap();
        assert_eq!((manifest.device.as_str(), manifest.lanes, manifest.cores.len()), ("sim", 2, 1));
    }

    #[test]
    fn pools_read_like_paths() {
        let pool = |subsystem, kind| Pool { subsystem, kind, instance: 3 };
        assert_eq!(pool(Subsystem::SWIMLANE, PoolKind::SCHED_PHASE).to_string(), "swimlane/sched_phase[3]");
        assert_eq!(pool(Subsystem::PMU, PoolKind::SOLE).to_string(), "pmu[3]");
    }
}
