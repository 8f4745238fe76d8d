//! The extension block: what the protocol needs beyond the wire contract.
//!
//! A region of its own with its own address, so that the regions of the wire contract stay byte-identical. A device
//! that is given no address behaves as a reference peer, one that refuses the block records nothing and says why;
//! a host that finds no answer serves a reference peer.
//!
//! ```text
//!    0 ┌────────────────────────┐
//!      │ Head                   │ host, before the start
//!   64 ├────────────────────────┤
//!      │ Heartbeat              │ host
//!  128 ├────────────────────────┤
//!      │ Answer                 │ device, lane 0
//!  192 ├────────────────────────┤
//!      │ Service × 5            │ host: per subsystem a control line and a buffer directory
//! 1472 ├────────────────────────┤
//!      │ LaneStatus             │ device: per subsystem, per live lane
//!      ├────────────────────────┤
//!      │ PoolStatus             │ device: per subsystem, per pool
//!      ├────────────────────────┤
//!      │ WaitLog                │ device, its first line host: per subsystem, per live lane
//!      └────────────────────────┘
//! ```
//!
//! Every 64-byte line has one writer. Words are `u32` unless stated; 64-bit words are read high, low, high by a 32-bit
//! reader and published by a 32-bit word. Counters run freely.
//!
//! | word | writer | reader | ordering | what it publishes |
//! |---|---|---|---|---|
//! | `magic` | host, before the start | lanes | release → acquire, stored last | the rest of `Head`, and the directories |
//! | `heartbeat_host` | host | lanes | release → acquire | that the host lives |
//! | `release_epoch` | freeze | lanes | release → acquire, stored before the gates close | that a release took place, even if a gate was shut again since |
//! | `host_detached` | host | lanes | release → acquire | 1: nobody serves this subsystem any more |
//! | `control_seq` | host | lanes | release → acquire, stored last | `level`, `sample_every` and the window; the host changes them only when all lanes have seen the last change |
//! | `answer` | lane 0 | host | release → acquire | `answer_layout_hash`: the device read the head and accepts or refuses it |
//! | `heartbeat_device` | lane 0 | host | release → acquire | that the device lives |
//! | `state` | lane | host | release → acquire | `parked_since_cycles` |
//! | `flushed` | lane | host | release → acquire | 1: every buffer of this lane is published, its counters are final |
//! | `waits_logged` | lane | host | release → acquire | the records of `WaitLog` up to it |
//! | `control_seen` | lane | host | release → acquire | the lane records by the control words of this `control_seq` |
//! | other words of `LaneStatus` | lane | host | relaxed; exact when parked or flushed | nothing |
//! | `stash_ptr` | lane that owns the pool | host at re-attach | release → acquire, stored before the buffer leaves its old place | `stash_seq`: a full core buffer that waits for its last record |
//! | other words of `PoolStatus` | lane that owns the pool | host | relaxed; exact when parked or flushed | nothing |
//! | `taken` of `WaitLog` | host | lane | release → acquire | records up to it are read, their slots are free |
//!
//! A lane whose log is full goes on without logging: waits that began, less those logged, are the ones that went unlogged.

use super::describe::{wire_enum, wire_struct};
use super::{ArchId, Describe, Description, EnableMask, Lane, PoolKind, SUBSYSTEMS, Shape, SubsystemId};
use super::{HASH_SEED, contract, region};

/// First word of a block that is ready: `SLX1`.
pub const MAGIC: u32 = 0x534c_5831;
/// Version of this block.
pub const VERSION: u32 = 2;
/// Bytes of a line, the unit that has one writer.
pub const LINE_BYTES: usize = 64;
/// Kinds of pool that a buffer directory has room for.
pub const DIRECTORY_KINDS: usize = 8;

wire_enum! {
    /// Whom a freeze stops; the host's choice per run.
    pub struct GateScope: u32 {
        /// A shut gate parks every lane that reaches it.
        ALL = 0, "all";
        /// The host serves the starved lane without shutting a gate.
        LANE = 1, "lane";
    }
}

wire_enum! {
    /// The device's answer to the head.
    pub struct AnswerCode: u32 {
        /// The device has not read the head yet.
        NONE = 0, "none";
        /// Another version than [`VERSION`].
        BAD_VERSION = 1, "bad_version";
        /// The layout hash is not the device's own.
        BAD_LAYOUT = 2, "bad_layout";
        /// Lanes, cores or bytes do not fit the device or each other.
        BAD_SHAPE = 3, "bad_shape";
        /// Accepted: the magic number, echoed.
        ACCEPTED = 0x534c_5831, "accepted";
    }
}

const _: () = assert!(AnswerCode::ACCEPTED.0 == MAGIC);

wire_enum! {
    /// What a lane does for one subsystem.
    pub struct LaneActivity: u32 {
        /// Records.
        RUNNING = 0, "running";
        /// Waits until it may publish.
        READY_GATE = 1, "ready_gate";
        /// Waits until it may claim.
        FREE_GATE = 2, "free_gate";
        /// Has published everything and records no more.
        FLUSHED = 3, "flushed";
        /// Took the host for gone; loses records instead of waiting until the host shows life.
        HOST_GONE = 4, "host_gone";
        /// Has no recorder. The host writes it before a lane attaches.
        IDLE = 5, "idle";
    }
}

wire_enum! {
    /// In what the window of [`Service`] is counted.
    pub struct WindowUnit: u32 {
        /// There is no window: everything is recorded.
        NONE = 0, "none";
        /// Executions of each TPB, by their ordinal.
        EXECUTIONS = 1, "executions";
        /// Ticks of the architecture's counter.
        CYCLES = 2, "cycles";
    }
}

/// Causes that [`PoolStatus::drops`] tells apart.
pub const DROP_CAUSES: usize = 5;
/// Records that a [`WaitLog`] holds.
pub const WAIT_RECORDS: usize = 64;

wire_struct! {
    /// Run parameters. Written by the host before the device starts, `magic` last.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Head = "SluiceExtensionHead" [size 64, align 64] {
        /// [`MAGIC`].
        0 => magic: u32,
        /// [`VERSION`].
        4 => version: u32,
        /// [`layout_hash`] of the host.
        8 => layout_hash: u64,
        /// Bytes of the block.
        16 => bytes: u32,
        /// Live lanes.
        20 => lanes: u32,
        /// Live cores.
        24 => cores: u32,
        /// Whom a freeze stops.
        28 => gate_scope: GateScope,
        /// Most ticks that one buffer switch may wait; 0 = default of the architecture.
        32 => deadline_cycles: u64,
        /// Tells runs apart in captures.
        40 => run_id: u64,
        /// Bits of [`EnableMask`].
        48 => enabled: u32,
        /// Zero.
        52 => pad: [u32; 3],
    }
}

impl Head {
    /// The subsystems that record.
    #[must_use]
    pub const fn enable_mask(&self) -> EnableMask {
        EnableMask::from_bits_retain(self.enabled)
    }
}

wire_struct! {
    /// Sign of life of the host.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Heartbeat = "SluiceExtensionHeartbeat" [size 64, align 64] {
        /// Counts ticks of the host.
        0 => heartbeat_host: u32,
        /// Zero.
        4 => pad: [u32; 15],
    }
}

wire_struct! {
    /// What the device says of the block. Written by lane 0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Answer = "SluiceExtensionAnswer" [size 64, align 64] {
        /// Accepted or why not.
        0 => answer: AnswerCode,
        /// Counts rounds of lane 0.
        4 => heartbeat_device: u32,
        /// [`layout_hash`] of the device.
        8 => answer_layout_hash: u64,
        /// Zero.
        16 => pad: [u32; 12],
    }
}

wire_struct! {
    /// Where the buffers of one kind of pool lie, so that a host that attaches to a running device can name them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DirectoryEntry = "SluiceExtensionDirectoryEntry" [size 24, align 8] {
        /// Device address of the first buffer; buffers of pool 0 come first, then those of pool 1 …
        0 => slab_base: u64,
        /// Bytes from one buffer to the next; 0 = the kind is not in use.
        8 => stride_bytes: u32,
        /// Buffers of each pool.
        12 => buffers_per_pool: u32,
        /// Pools of the kind.
        16 => pools: u32,
        /// Zero.
        20 => pad: u32,
    }
}

wire_struct! {
    /// One subsystem's control line and buffer directory, host-written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Service = "SluiceExtensionService" [size 256, align 64] {
        /// Counts releases.
        0 => release_epoch: u32,
        /// 1: no host serves this subsystem.
        4 => host_detached: u32,
        /// Counts changes of the words up to `window_stop`; 0 = never set, the region's own level holds.
        8 => control_seq: u32,
        /// How much to record, in the subsystem's own levels; 0 = nothing.
        12 => level: u32,
        /// Every how many executions one is recorded; 0 and 1 = all.
        16 => sample_every: u32,
        /// In what the window is counted.
        20 => window_unit: WindowUnit,
        /// First unit that is recorded.
        24 => window_start: u64,
        /// First one that is recorded no more.
        32 => window_stop: u64,
        /// Zero.
        40 => pad: [u32; 6],
        /// By [`PoolKind`]; written before the device starts.
        64 => directory: [DirectoryEntry; DIRECTORY_KINDS],
    }
}

wire_struct! {
    /// One lane's state in one subsystem, written by that lane.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LaneStatus = "SluiceExtensionLaneStatus" [size 64, align 64] {
        /// What the lane does.
        0 => state: LaneActivity,
        /// 1: everything is published and the counters are final.
        4 => flushed: u32,
        /// Counter when the present wait began.
        8 => parked_since_cycles: u64,
        /// Waits for room in the ready ring.
        16 => waits_rq: u32,
        /// Waits for an empty buffer.
        20 => waits_fq: u32,
        /// Waits at a shut gate.
        24 => parks: u32,
        /// Waits that ended by the deadline.
        28 => expiries: u32,
        /// Records lost, all pools of the lane together.
        32 => dropped_records: u32,
        /// Most entries ever seen in the ready ring.
        36 => ready_high_water: u32,
        /// Ticks spent waiting for room in the ready ring, waits that have ended.
        40 => waited_rq_cycles: u64,
        /// Ticks spent waiting for an empty buffer, waits that have ended.
        48 => waited_fq_cycles: u64,
        /// Counts records of the [`WaitLog`].
        56 => waits_logged: u32,
        /// The `control_seq` by which the lane records.
        60 => control_seen: u32,
    }
}

wire_struct! {
    /// One pool's stash and counters, written by the lane that owns the pool.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PoolStatus = "SluiceExtensionPoolStatus" [size 128, align 64] {
        /// A full core buffer that is not published yet, 0 = none.
        0 => stash_ptr: u64,
        /// Its sequence number.
        8 => stash_seq: u32,
        /// Fewest buffers ever seen in the free queue.
        12 => free_low_water: u32,
        /// The pool's attempts where the wire contract has no word for them.
        16 => total_records_lo: u32,
        /// Upper half of the pool's attempts.
        20 => total_records_hi: u32,
        /// Upper half of the pool's overflow records, beside the 32-bit word of the wire contract.
        24 => overflow_records_hi: u32,
        /// Zero.
        28 => pad0: u32,
        /// Records lost because the host was gone, no buffer was to be had, a shared word was corrupt, a core did not
        /// finish, what a core had left belonged to another task.
        32 => drops: [u64; DROP_CAUSES],
        /// What was passed over because of sampling or the window, items and submits, of all pools of the lane; only in one of
        /// them.
        72 => passed_over: u64,
        /// Zero.
        80 => pad: [u32; 12],
    }
}

wire_struct! {
    /// One wait of a lane, from its first fruitless look to its end.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WaitRecord = "SluiceExtensionWaitRecord" [size 32, align 8] {
        /// Counter when it began.
        0 => begin_cycles: u64,
        /// Counter when it had ended.
        8 => end_cycles: u64,
        /// At which gate.
        16 => gate: LaneActivity,
        /// What the lane did next: it ran, or took the host for gone.
        20 => next: LaneActivity,
        /// Kind of the pool whose buffer it was about.
        24 => kind: PoolKind,
        /// Which pool of its kind.
        28 => instance: u32,
    }
}

wire_struct! {
    /// One lane's last waits in one subsystem.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WaitLog = "SluiceExtensionWaitLog" [size 2112, align 64] {
        /// Counts records that the host has read. Its line is the host's.
        0 => taken: u32,
        /// Zero.
        4 => pad: [u32; 15],
        /// The lane's, by `waits_logged` modulo their number.
        64 => records: [WaitRecord; WAIT_RECORDS],
    }
}

/// Offset of [`Head`].
pub const HEAD: usize = 0;
/// Offset of [`Heartbeat`].
pub const HEARTBEAT: usize = HEAD + size_of::<Head>();
/// Offset of [`Answer`].
pub const ANSWER: usize = HEARTBEAT + size_of::<Heartbeat>();

const SERVICES: usize = ANSWER + size_of::<Answer>();
const LANES: usize = SERVICES + SUBSYSTEMS * size_of::<Service>();

/// Offset of a subsystem's [`Service`].
#[must_use]
pub const fn service(subsystem: SubsystemId) -> usize {
    SERVICES + subsystem.index() * size_of::<Service>()
}

/// Offset of the [`DirectoryEntry`] of one kind of pool; `None` when the directory has no room for the kind.
#[must_use]
pub const fn directory(subsystem: SubsystemId, kind: PoolKind) -> Option<usize> {
    let index = kind.0 as usize;
    if index >= DIRECTORY_KINDS {
        return None;
    }
    Some(service(subsystem) + core::mem::offset_of!(Service, directory) + index * size_of::<DirectoryEntry>())
}

/// The block of one shape of run: where the parts stand whose number the run decides.
///
/// All subsystems have their lines, enabled or not, so that both sides compute the same offsets from the shape alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    lanes: u32,
    /// First pool of each subsystem, then the first wait log.
    pools: [usize; SUBSYSTEMS + 1],
}

impl Extension {
    /// The block of a run.
    #[must_use]
    pub const fn new(shape: Shape) -> Self {
        let mut pools = [0; SUBSYSTEMS + 1];
        pools[0] = LANES + SUBSYSTEMS * shape.lanes() as usize * size_of::<LaneStatus>();
        let mut i = 0;
        while i < SUBSYSTEMS {
            let count = region(SubsystemId::ALL[i], shape).pools();
            pools[i + 1] = pools[i] + count as usize * size_of::<PoolStatus>();
            i += 1;
        }
        Self { lanes: shape.lanes(), pools }
    }

    /// Bytes of the block, a multiple of [`LINE_BYTES`].
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.pools[SUBSYSTEMS] + SUBSYSTEMS * self.lanes as usize * size_of::<WaitLog>()
    }

    /// Offset of the [`LaneStatus`] of `lane` in `subsystem`; `None` when the lane is not live.
    #[must_use]
    pub const fn lane(&self, subsystem: SubsystemId, lane: Lane) -> Option<usize> {
        if lane.0 >= self.lanes {
            return None;
        }
        Some(LANES + (subsystem.index() * self.lanes as usize + lane.0 as usize) * size_of::<LaneStatus>())
    }

    /// Offset of the [`WaitLog`] of `lane` in `subsystem`; `None` when the lane is not live.
    #[must_use]
    pub const fn wait_log(&self, subsystem: SubsystemId, lane: Lane) -> Option<usize> {
        if lane.0 >= self.lanes {
            return None;
        }
        let number = subsystem.index() * self.lanes as usize + lane.0 as usize;
        Some(self.pools[SUBSYSTEMS] + number * size_of::<WaitLog>())
    }

    /// Offset of the [`PoolStatus`] of pool `number` of `subsystem`, counted as
    /// [`Region::pool_number`](super::Region::pool_number) does; `None` when there is no such pool.
    #[must_use]
    pub const fn pool(&self, subsystem: SubsystemId, number: u32) -> Option<usize> {
        let (first, end) = (self.pools[subsystem.index()], self.pools[subsystem.index() + 1]);
        // Division before multiplication: the number may be anything, and an offset may have 32 bits.
        if number as usize >= (end - first) / size_of::<PoolStatus>() {
            return None;
        }
        Some(first + number as usize * size_of::<PoolStatus>())
    }
}

/// The structures of the block.
pub const STRUCTURES: &[Description] = &[
    Head::DESCRIPTION,
    Heartbeat::DESCRIPTION,
    Answer::DESCRIPTION,
    DirectoryEntry::DESCRIPTION,
    Service::DESCRIPTION,
    LaneStatus::DESCRIPTION,
    PoolStatus::DESCRIPTION,
    WaitRecord::DESCRIPTION,
    WaitLog::DESCRIPTION,
];

const fn fold_all(structures: &[Description], mut hash: u64) -> u64 {
    let mut i = 0;
    while i < structures.len() {
        hash = structures[i].fold(hash);
        i += 1;
    }
    hash
}

const fn hash_of(arch: ArchId) -> u64 {
    fold_all(STRUCTURES, fold_all(contract(arch), HASH_SEED))
}

const HASHES: [u64; 2] = [hash_of(ArchId::A2a3), hash_of(ArchId::A5)];

/// FNV-1a over every name and number of the wire contract of `arch`, then of this block. Two sides that agree on it
/// agree on every offset.
#[must_use]
pub const fn layout_hash(arch: ArchId) -> u64 {
    match arch {
        ArchId::A2a3 => HASHES[0],
        ArchId::A5 => HASHES[1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn fixed_parts_stand_where_the_picture_says() {
        assert_eq!((HEAD, HEARTBEAT, ANSWER), (0, 64, 128));
        assert_eq!(service(SubsystemId::Swimlane), 192);
        assert_eq!(service(SubsystemId::ScopeStats), 192 + 4 * 256);
        assert_eq!(LANES, 1472);
        assert_eq!(directory(SubsystemId::Pmu, PoolKind(7)), Some(192 + 256 + 64 + 7 * 24));
        assert_eq!(directory(SubsystemId::Pmu, PoolKind(8)), None);
    }

    #[test]
    fn the_smallest_block_fits_a_small_board() {
        let block = Extension::new(Shape::new(ArchId::A2a3, 1, 1).unwrap());
        // Five lanes' lines; ten swimlane pools (one per core twice, four lanes twice) and four others; five logs.
        assert_eq!(block.bytes(), 1472 + 5 * 64 + (10 + 4) * 128 + 5 * 2112);
    }

    #[test]
    fn architectures_do_not_pass_for_one_another() {
        assert_ne!(layout_hash(ArchId::A2a3), layout_hash(ArchId::A5));
    }

    proptest! {
        /// Parts whose number the run decides are disjoint, gapless and inside the block.
        #[test]
        fn lines_have_one_owner(shape in crate::layout::tests::shape()) {
            let block = Extension::new(shape);
            let mut parts = Vec::new();
            for subsystem in SubsystemId::ALL {
                let lane = |lane| (block.lane(subsystem, Lane(lane)).unwrap(), size_of::<LaneStatus>());
                parts.extend((0..shape.lanes()).map(lane));
                prop_assert_eq!(block.lane(subsystem, Lane(shape.lanes())), None);
            }
            for subsystem in SubsystemId::ALL {
                let pools = (0..).map_while(|number| block.pool(subsystem, number));
                parts.extend(pools.map(|at| (at, size_of::<PoolStatus>())));
                prop_assert_eq!(block.pool(subsystem, u32::MAX), None);
            }
            for subsystem in SubsystemId::ALL {
                let log = |lane| (block.wait_log(subsystem, Lane(lane)).unwrap(), size_of::<WaitLog>());
                parts.extend((0..shape.lanes()).map(log));
                prop_assert_eq!(block.wait_log(subsystem, Lane(shape.lanes())), None);
            }
            let mut next = LANES;
            for (at, bytes) in parts {
                prop_assert_eq!((at, bytes % LINE_BYTES), (next, 0));
                next += bytes;
            }
            prop_assert_eq!(next, block.bytes());
        }
    }
}
