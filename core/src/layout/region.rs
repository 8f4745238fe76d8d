//! Where every word of a subsystem's region stands.
//!
//! Each of the five subsystems owns one contiguous region of shared memory of the same build:
//!
//! ```text
//! base ─► ┌───────────────────────────────────────────────┐
//!         │ data header   queues[lane][entry]             │ ready rings, one per lane
//!         │               queue_heads[lane], queue_tails  │
//!         │               run parameters                  │
//!         │               backpressure                    │ the two gates
//!         ├───────────────────────────────────────────────┤
//!         │ pool[0] pool[1] …    kind of lowest address   │ current buffer, free queue, counters
//!         ├───────────────────────────────────────────────┤
//!         │ pool[0] pool[1] …    next kind                │
//!         └───────────────────────────────────────────────┘
//! ```
//!
//! A [`Region`] is that picture in numbers, for one architecture and one [`Shape`] of run. It holds no address:
//! all offsets are bytes from the region's base, and the live words behind them are reached through cells of
//! [`mem`](crate::mem). Everything is `const fn`, so firmware that fixes its shape pays nothing.
//!
//! Lookups by an index that the other side may have written return `None` when it is out of range.

use super::describe::{wire_enum, wire_struct};
use super::{ArchId, Describe};
use core::fmt;
use core::mem::offset_of;

wire_struct! {
    /// The two gates of a subsystem (wire contract, coordination block).
    ///
    /// The device only ever stores 1 to a `*_contended` word, the host only 0; the `*_freeze_active` words are the
    /// host's alone.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BackpressureHeader = "DfxBackpressureHeader" [size 16, align 4] {
        /// Push gate: 1 while lanes park before they publish.
        0 => rq_freeze_active: u32,
        /// A lane found its ready ring full.
        4 => rq_contended: u32,
        /// Pop gate: 1 while lanes park before they claim.
        8 => fq_freeze_active: u32,
        /// A lane found its free queue empty, or a payload arena needs recycling.
        12 => fq_contended: u32,
    }
}

wire_enum! {
    /// The kind of pool a full buffer came from, as ready entries carry it.
    ///
    /// Subsystems with one kind of pool use [`PoolKind::SOLE`]; in their entries this word is padding.
    pub struct PoolKind: u32 {
        /// Swimlane: dispatch and finish of a task, stamped by the lane; one pool per core.
        AICPU_TASK = 0, "aicpu_task";
        /// Swimlane: phases of a lane's scheduler loop; one pool per lane.
        SCHED_PHASE = 1, "sched_phase";
        /// Swimlane: request decoding per submit; one pool per lane.
        ORCH_PHASE = 2, "orch_phase";
        /// Swimlane: start and end of a task, stamped by the core itself; one pool per core.
        AICORE_TASK = 3, "aicore_task";
    }
}

impl PoolKind {
    /// The only kind of a subsystem that has one.
    pub const SOLE: Self = Self(0);
}

/// Most kinds of pool in one region.
pub const MAX_KINDS: usize = 4;

/// Bytes of a ready entry, the same in all subsystems.
pub const READY_ENTRY_BYTES: usize = 32;

/// Offsets inside a ready entry, the same in all subsystems.
pub mod entry {
    use super::super::swimlane::ReadyQueueEntry;
    use core::mem::offset_of;

    /// `u32`: which pool of its kind the buffer belongs to.
    pub const INSTANCE: usize = offset_of!(ReadyQueueEntry, core_index);
    /// `u32`: [`PoolKind`](super::PoolKind).
    pub const KIND: usize = offset_of!(ReadyQueueEntry, kind);
    /// `u64`: device address of the full buffer.
    pub const BUFFER_PTR: usize = offset_of!(ReadyQueueEntry, buffer_ptr);
    /// `u32`: sequence number of that buffer within its pool.
    pub const BUFFER_SEQ: usize = offset_of!(ReadyQueueEntry, buffer_seq);
}

/// A lane: one AICPU thread with a ready ring of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Lane(pub u32);

/// Which pool of its kind: the core, lane or 0, as the subsystem counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Instance(pub u32);

/// How much of an architecture a run uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    arch: ArchId,
    lanes: u32,
    cores: u32,
}

/// The run asks for more than the architecture has, or for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ShapeError {
    /// Lanes must be 1 to `max`.
    Lanes {
        /// Lanes asked for.
        asked: u32,
        /// Lanes of the architecture.
        max: u32,
    },
    /// Cores must be 1 to `max`.
    Cores {
        /// Cores asked for.
        asked: u32,
        /// Cores of the architecture.
        max: u32,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lanes { asked, max } => write!(f, "need 1 to {max} lanes, got {asked}"),
            Self::Cores { asked, max } => write!(f, "need 1 to {max} cores, got {asked}"),
        }
    }
}

impl core::error::Error for ShapeError {}

impl Shape {
    /// A run on `lanes` lanes and `cores` cores of `arch`.
    pub const fn new(arch: ArchId, lanes: u32, cores: u32) -> Result<Self, ShapeError> {
        let (max_lanes, max_cores) = (arch.facts().lanes as u32, arch.facts().max_cores as u32);
        if lanes == 0 || lanes > max_lanes {
            return Err(ShapeError::Lanes { asked: lanes, max: max_lanes });
        }
        if cores == 0 || cores > max_cores {
            return Err(ShapeError::Cores { asked: cores, max: max_cores });
        }
        Ok(Self { arch, lanes, cores })
    }

    /// Everything the architecture has.
    #[must_use]
    pub const fn full(arch: ArchId) -> Self {
        Self { arch, lanes: arch.facts().lanes as u32, cores: arch.facts().max_cores as u32 }
    }

    /// The architecture.
    #[must_use]
    pub const fn arch(self) -> ArchId {
        self.arch
    }

    /// Live lanes.
    #[must_use]
    pub const fn lanes(self) -> u32 {
        self.lanes
    }

    /// Live cores.
    #[must_use]
    pub const fn cores(self) -> u32 {
        self.cores
    }
}

/// Offsets inside a data header that all subsystems have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderOffsets {
    /// Bytes of the header; the first pool follows.
    pub bytes: usize,
    /// Ready rings of all lanes.
    pub queues: usize,
    /// `u32` per lane, consumer index.
    pub queue_heads: usize,
    /// `u32` per lane, producer index.
    pub queue_tails: usize,
    /// The gates.
    pub backpressure: usize,
}

/// [`HeaderOffsets`] of a data header type.
macro_rules! header_offsets {
    ($header:ty) => {
        $crate::layout::HeaderOffsets {
            bytes: size_of::<$header>(),
            queues: core::mem::offset_of!($header, queues),
            queue_heads: core::mem::offset_of!($header, queue_heads),
            queue_tails: core::mem::offset_of!($header, queue_tails),
            backpressure: core::mem::offset_of!($header, backpressure),
        }
    };
}

/// The words of one pool: relative to the pool inside a [`Region`]'s table, from the region's base when returned
/// by [`Region::pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOffsets {
    /// The pool itself.
    pub base: usize,
    /// `u64` per slot: device addresses of empty buffers.
    pub free_ptrs: usize,
    /// `u32`, free-running pop counter.
    pub free_head: usize,
    /// `u32`, free-running push counter.
    pub free_tail: usize,
    /// `u64`: the buffer being filled, 0 = none.
    pub current_ptr: usize,
    /// `u32`: its sequence number.
    pub current_seq: usize,
    /// `u32`: attempts to record; ArgsDump has no such word.
    pub total_records: Option<usize>,
    /// `u32`: records lost on the device.
    pub dropped_records: usize,
    /// `u32`: slots that chains took beyond one per record; only DepGen has such a word.
    pub overflow_records: Option<usize>,
    /// `u32`: records lost because a core's staging slot held another task's; only PMU on a5 has such a word. They are not
    /// among those of `dropped_records`.
    pub mismatch_records: Option<usize>,
    /// `u64`: the staging ring of the pool's core; only PMU on a5 has such a word.
    pub staging_ptr: Option<usize>,
}

impl PoolOffsets {
    /// The slot that the free-running counter `counter` stands for in a queue of `slots` slots.
    #[must_use]
    pub const fn free_slot(&self, counter: u32, slots: u32) -> usize {
        self.free_ptrs + (counter % slots) as usize * size_of::<u64>()
    }

    const fn at(&self, base: usize) -> Self {
        const fn further(base: usize, offset: Option<usize>) -> Option<usize> {
            match offset {
                Some(offset) => Some(base + offset),
                None => None,
            }
        }
        Self {
            base: base + self.base,
            free_ptrs: base + self.free_ptrs,
            free_head: base + self.free_head,
            free_tail: base + self.free_tail,
            current_ptr: base + self.current_ptr,
            current_seq: base + self.current_seq,
            total_records: further(base, self.total_records),
            dropped_records: base + self.dropped_records,
            overflow_records: further(base, self.overflow_records),
            mismatch_records: further(base, self.mismatch_records),
            staging_ptr: further(base, self.staging_ptr),
        }
    }
}

/// [`PoolOffsets`] of a pool type relative to itself, without words that only one subsystem has.
macro_rules! pool_offsets {
    ($pool:ty, total: $total:expr) => {
        $crate::layout::PoolOffsets {
            base: 0,
            free_ptrs: core::mem::offset_of!($pool, free_queue.buffer_ptrs),
            free_head: core::mem::offset_of!($pool, free_queue.head),
            free_tail: core::mem::offset_of!($pool, free_queue.tail),
            current_ptr: core::mem::offset_of!($pool, current_buf_ptr),
            current_seq: core::mem::offset_of!($pool, current_buf_seq),
            total_records: $total,
            dropped_records: core::mem::offset_of!($pool, dropped_record_count),
            overflow_records: None,
            mismatch_records: None,
            staging_ptr: None,
        }
    };
}

/// The build of a record buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLayout {
    /// Bytes of the whole buffer, a multiple of 64.
    pub bytes: usize,
    /// `u32`: committed records.
    pub count: usize,
    /// The first record.
    pub records: usize,
    /// Bytes of a record, also the distance between two.
    pub record_bytes: usize,
    /// Records a buffer holds.
    pub capacity: u32,
}

impl BufferLayout {
    /// Offset of record `index` from the start of the buffer; `None` when the buffer has no such record.
    #[must_use]
    pub const fn record(&self, index: u32) -> Option<usize> {
        if index < self.capacity { Some(self.records + index as usize * self.record_bytes) } else { None }
    }
}

/// [`BufferLayout`] of a buffer type with fields `records: [Record; CAPACITY]` and `count: u32`.
macro_rules! buffer_layout {
    ($buffer:ty, $record:ty, $capacity:expr) => {
        $crate::layout::BufferLayout {
            bytes: size_of::<$buffer>(),
            count: core::mem::offset_of!($buffer, count),
            records: core::mem::offset_of!($buffer, records),
            record_bytes: size_of::<$record>(),
            capacity: $capacity as u32,
        }
    };
}

pub(super) use {buffer_layout, header_offsets, pool_offsets};

/// All pools of one kind: an array inside the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolArray {
    /// The kind, as ready entries carry it.
    pub kind: PoolKind,
    /// Name in reports and artefacts.
    pub name: &'static str,
    /// Pools in the array.
    pub instances: u32,
    /// Offset of the first pool.
    pub base: usize,
    /// The buffers that circulate in these pools.
    pub buffer: BufferLayout,
    /// Buffers per pool unless the run says otherwise.
    pub default_buffers: u32,
}

/// The words of one lane's ready ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneOffsets {
    /// Entry 0 of the ring.
    pub ring: usize,
    /// `u32`: consumer index, already reduced modulo the ring size.
    pub head: usize,
    /// `u32`: producer index, already reduced modulo the ring size.
    pub tail: usize,
}

impl LaneOffsets {
    /// Offset of entry `index`, which must be below [`Region::ready_entries`].
    #[must_use]
    pub const fn entry(&self, index: u32) -> usize {
        self.ring + index as usize * READY_ENTRY_BYTES
    }
}

/// The four gate words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateOffsets {
    /// `u32`, see [`BackpressureHeader::rq_freeze_active`].
    pub rq_freeze_active: usize,
    /// `u32`, see [`BackpressureHeader::rq_contended`].
    pub rq_contended: usize,
    /// `u32`, see [`BackpressureHeader::fq_freeze_active`].
    pub fq_freeze_active: usize,
    /// `u32`, see [`BackpressureHeader::fq_contended`].
    pub fq_contended: usize,
}

/// A kind of pool before its place in the region is known.
#[derive(Clone, Copy)]
pub(super) struct PoolSpec {
    pub kind: PoolKind,
    pub name: &'static str,
    pub instances: u32,
    pub buffer: BufferLayout,
    pub default_buffers: u32,
}

/// What the generic build needs to know of a subsystem.
pub(super) struct RegionSpec<'a> {
    pub ready_entries: usize,
    pub header: HeaderOffsets,
    pub pool_bytes: usize,
    pub pool: PoolOffsets,
    pub free_slots: u32,
    /// In the order of their addresses.
    pub pools: &'a [PoolSpec],
}

/// One subsystem's region for one shape of run; see the module text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    shape: Shape,
    ready_entries: u32,
    header: HeaderOffsets,
    pool_bytes: usize,
    pool: PoolOffsets,
    free_slots: u32,
    arrays: [PoolArray; MAX_KINDS],
    kinds: usize,
}

impl Region {
    pub(super) const fn new(shape: Shape, spec: RegionSpec<'_>) -> Self {
        assert!(spec.free_slots.is_power_of_two(), "slots must divide 2^32: the counters wrap there");
        let first = spec.pools[0];
        let mut base = spec.header.bytes;
        let mut arrays = [PoolArray {
            kind: first.kind,
            name: first.name,
            instances: 0,
            base,
            buffer: first.buffer,
            default_buffers: 0,
        }; MAX_KINDS];
        let mut i = 0;
        while i < spec.pools.len() {
            let PoolSpec { kind, name, instances, buffer, default_buffers } = spec.pools[i];
            arrays[i] = PoolArray { kind, name, instances, base, buffer, default_buffers };
            base += instances as usize * spec.pool_bytes;
            i += 1;
        }
        Self {
            shape,
            ready_entries: spec.ready_entries as u32,
            header: spec.header,
            pool_bytes: spec.pool_bytes,
            pool: spec.pool,
            free_slots: spec.free_slots,
            arrays,
            kinds: spec.pools.len(),
        }
    }

    /// The shape this was computed for.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes of the region.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        let last = &self.arrays[self.kinds - 1];
        last.base + last.instances as usize * self.pool_bytes
    }

    /// Offsets inside the data header.
    #[must_use]
    pub const fn header(&self) -> HeaderOffsets {
        self.header
    }

    /// Entries per ready ring; it holds one fewer.
    #[must_use]
    pub const fn ready_entries(&self) -> u32 {
        self.ready_entries
    }

    /// Slots per free queue; it holds as many.
    #[must_use]
    pub const fn free_slots(&self) -> u32 {
        self.free_slots
    }

    /// The kinds of pool, in the order of their addresses.
    #[must_use]
    pub const fn arrays(&self) -> &[PoolArray] {
        self.arrays.split_at(self.kinds).0
    }

    /// All pools of `kind`; `None` when the subsystem has no such kind.
    #[must_use]
    pub const fn array(&self, kind: PoolKind) -> Option<&PoolArray> {
        let mut i = 0;
        while i < self.kinds {
            if self.arrays[i].kind.0 == kind.0 {
                return Some(&self.arrays[i]);
            }
            i += 1;
        }
        None
    }

    /// The gates.
    #[must_use]
    pub const fn gates(&self) -> GateOffsets {
        let base = self.header.backpressure;
        GateOffsets {
            rq_freeze_active: base + offset_of!(BackpressureHeader, rq_freeze_active),
            rq_contended: base + offset_of!(BackpressureHeader, rq_contended),
            fq_freeze_active: base + offset_of!(BackpressureHeader, fq_freeze_active),
            fq_contended: base + offset_of!(BackpressureHeader, fq_contended),
        }
    }

    /// The ready ring of `lane`; `None` when the lane is not live.
    #[must_use]
    pub const fn lane(&self, lane: Lane) -> Option<LaneOffsets> {
        if lane.0 >= self.shape.lanes {
            return None;
        }
        let index = lane.0 as usize;
        Some(LaneOffsets {
            ring: self.header.queues + index * self.ready_entries as usize * READY_ENTRY_BYTES,
            head: self.header.queue_heads + index * size_of::<u32>(),
            tail: self.header.queue_tails + index * size_of::<u32>(),
        })
    }

    /// The words of one pool; `None` when the region has no such pool.
    #[must_use]
    pub const fn pool(&self, kind: PoolKind, instance: Instance) -> Option<PoolOffsets> {
        match self.array(kind) {
            Some(array) if instance.0 < array.instances => {
                Some(self.pool.at(array.base + instance.0 as usize * self.pool_bytes))
            }
            _ => None,
        }
    }

    /// Pools of all kinds together.
    #[must_use]
    pub const fn pools(&self) -> u32 {
        ((self.bytes() - self.header.bytes) / self.pool_bytes) as u32
    }

    /// The number of a pool, counted through all kinds in the order of their addresses; `None` when the region
    /// has no such pool.
    #[must_use]
    pub const fn pool_number(&self, kind: PoolKind, instance: Instance) -> Option<u32> {
        match self.array(kind) {
            Some(array) if instance.0 < array.instances => {
                Some(((array.base - self.header.bytes) / self.pool_bytes) as u32 + instance.0)
            }
            _ => None,
        }
    }
}

const _: () = assert!(cfg!(target_endian = "little"), "the wire contract is little-endian");
const _: () = assert!(super::swimlane::ReadyQueueEntry::DESCRIPTION.size == READY_ENTRY_BYTES);
