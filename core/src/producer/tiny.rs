//! A tiny subsystem for tests: an address plan, records of 16 bytes, three to a buffer, and surroundings that a test
//! commands.
//!
//! ```text
//!  BASE ┌──────────────────┐
//!       │ gates            │
//!  + 64 │ extension words  │
//!  +256 ├──────────────────┤
//!       │ lane × 4         │ ring indices, ring, status words
//! +1280 ├──────────────────┤
//!       │ pool × 4         │ queue, current buffer, accounts
//! +2304 ├──────────────────┤
//!       │ log × 4          │ waits of each lane
//! +4096 ├──────────────────┤
//!       │ buffer × 64      │
//!       └──────────────────┘
//! ```
//!
//! Addresses have a high half, so that a torn one is none of them.

use core::cell::Cell;

use super::{
    CoreRecords, CountWords, Hooks, Lane, LaneWords, Pool, PoolSetup, ReadyRing, Records, Subsystem, WaitLog,
};
use crate::gate::{ExtensionGateAddrs, Gate, Gates, WaitEnv};
use crate::layout::{BufferLayout, GateOffsets, Instance, LaneOffsets, PoolKind, PoolOffsets};
use crate::mem::{Clock, DevAddr, Fault, LongOwn, Memory, Own, OwnCount, Relax, Window};

/// Base of the region, and of the memory.
pub const BASE: DevAddr = DevAddr(0x7_0000_0000);
/// Bytes of the memory.
pub const BYTES: u64 = 0x2000;
/// Most entries of a ready ring.
pub const MAX_READY_ENTRIES: u32 = 4;
/// Most slots of a free queue.
pub const MAX_FREE_SLOTS: u32 = 4;
/// Records in a buffer.
pub const RECORDS: u32 = 3;

const EXTENSION: usize = 0x40;
const LANES: usize = 0x100;
const POOLS: usize = 0x500;
const LOGS: usize = 0x900;
const BUFFERS: usize = 0x1000;
const STRIDE: usize = 0x100;
/// Where a pool shows its marks.
const MARKS: u64 = 0x5c;

/// The gates.
pub const GATES: GateOffsets =
    GateOffsets { rq_freeze_active: 0, rq_contended: 4, fq_freeze_active: 8, fq_contended: 12 };

/// The words of the extension block that gates read.
pub const EXTENSION_GATES: ExtensionGateAddrs = ExtensionGateAddrs {
    release_epoch: at(EXTENSION),
    host_detached: at(EXTENSION + 4),
    host_heartbeat: at(EXTENSION + 8),
};

/// The address `offset` bytes into the memory.
pub const fn at(offset: usize) -> DevAddr {
    BASE.offset(offset as u64)
}

/// A lane's ready ring.
pub const fn ring(lane: u32) -> LaneOffsets {
    let base = LANES + lane as usize * STRIDE;
    LaneOffsets { head: base, tail: base + 4, ring: base + 0x40 }
}

/// Word `index` of a lane's status.
pub const fn lane_status(lane: u32, index: usize) -> DevAddr {
    at(LANES + lane as usize * STRIDE + 0xc0 + index * 4)
}

/// A pool.
pub const fn pool(pool: u32) -> PoolOffsets {
    let base = POOLS + pool as usize * STRIDE;
    PoolOffsets {
        base,
        free_head: base,
        free_tail: base + 4,
        free_ptrs: base + 0x10,
        current_ptr: base + 0x40,
        current_seq: base + 0x48,
        total_records: Some(base + 0x4c),
        dropped_records: base + 0x50,
        overflow_records: Some(base + 0x54),
        mismatch_records: Some(base + 0x58),
        staging_ptr: None,
    }
}

/// Most waits that a lane's log holds.
pub const LOG_RECORDS: u32 = 4;

/// The word in which the host counts the waits that it has read of a lane's log. The log itself follows 64 bytes on.
pub const fn log_taken(lane: u32) -> DevAddr {
    at(LOGS + lane as usize * STRIDE)
}

/// The marks that a pool has published.
pub const fn marks(pool: u32) -> DevAddr {
    at(POOLS + pool as usize * STRIDE).offset(MARKS)
}

/// Word `index` of a pool's further accounts: halves of the total, low water, upper half of the
/// overflow, two words for each cause of loss, two for the stash and its sequence.
pub const fn pool_status(pool: u32, index: usize) -> DevAddr {
    at(POOLS + pool as usize * STRIDE + 0x80 + index * 4)
}

/// A buffer.
pub const fn buffer(number: u32) -> DevAddr {
    at(BUFFERS + number as usize * Record::LAYOUT.bytes)
}

/// The whole protocol.
#[derive(Debug)]
pub struct Tiny;

impl Subsystem for Tiny {}

/// A record of 16 bytes.
#[derive(Debug)]
pub struct Record;

impl Records for Record {
    type Record = [u32; 4];
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout =
        BufferLayout { bytes: 64, count: 48, records: 0, record_bytes: 16, capacity: RECORDS };
    const KIND: PoolKind = PoolKind(3);
}

/// The same record in pools that show how many marks they have published; the last slot of a claimed buffer is cleared.
#[derive(Debug)]
pub struct Marked;

impl Records for Marked {
    type Record = [u32; 4];
    type Hooks<M: Memory> = Marks<M>;
    const LAYOUT: BufferLayout = Record::LAYOUT;
    const KIND: PoolKind = Record::KIND;
}

/// The same record as a core writes it: the time at its end, one word unused, its token.
#[derive(Debug)]
pub struct OwnRecord;

impl Records for OwnRecord {
    type Record = [u32; 4];
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout = Record::LAYOUT;
    const KIND: PoolKind = Record::KIND;
    const BY_CORE: bool = true;
}

impl CoreRecords for OwnRecord {
    const TOKEN_AT: u64 = 12;
    const END_AT: u64 = 0;
}

/// What a pool of [`Marked`] records keeps beside its buffer.
pub struct Marks<M: Memory> {
    pending: u32,
    published: Own<M::Word>,
}

impl<M: Memory> Marks<M> {
    /// Marks the current buffer once more.
    pub fn mark(&mut self) {
        self.pending += 1;
    }
}

impl<M: Memory> Hooks<M> for Marks<M> {
    fn attach(memory: &M, setup: &PoolSetup) -> Result<Self, Fault> {
        let at = setup.region.offset(setup.offsets.base as u64 + MARKS);
        Ok(Self { pending: 0, published: Own::new(memory.word(at)?) })
    }

    fn claimed(&mut self, buffer: &mut M::Window) {
        let last = Record::LAYOUT.record(RECORDS - 1).unwrap_or_default();
        buffer.write(last as u32, &[0; Record::LAYOUT.record_bytes]);
    }

    fn before_publish(&mut self) {
        self.published.set(self.published.get().wrapping_add(self.pending));
        self.pending = 0;
    }

    fn given_up(&mut self) {
        self.pending = 0;
    }
}

/// Lane number `number` with a ring of `ready_entries` and all the words that one of our own hosts has.
///
/// # Errors
/// [`Fault`] when the plan does not fit `memory`.
pub fn attach_lane<M: Memory, S: Subsystem>(
    memory: &M,
    number: u32,
    ready_entries: u32,
    limit_cycles: u64,
) -> Result<Lane<M, S>, Fault> {
    let word = |index| memory.word(lane_status(number, index)).map(Own::new);
    let count = |index| OwnCount::at(memory, lane_status(number, index));
    let words = LaneWords {
        state: word(0)?,
        parked_since: count(1)?,
        waits_rq: word(3)?,
        waits_fq: word(4)?,
        parks: word(5)?,
        expiries: word(6)?,
        ready_high_water: word(7)?,
        flushed: word(8)?,
        dropped: word(9)?,
        waited: [count(10)?, count(12)?],
        log: WaitLog::attach(
            memory,
            log_taken(number).offset(64),
            LOG_RECORDS,
            log_taken(number),
            lane_status(number, 14),
        )?,
    };
    let gates = Gates::attach(memory, BASE, GATES, Some(EXTENSION_GATES))?;
    let ring = ReadyRing::attach(memory, BASE, ring(number), ready_entries)?;
    Ok(Lane::new(gates, ring, Some(words), limit_cycles))
}

/// The further accounts of pool number `number`.
///
/// # Errors
/// [`Fault`] when the plan does not fit `memory`.
pub fn count_words<M: Memory>(memory: &M, number: u32) -> Result<CountWords<M::Word>, Fault> {
    let word = |index| memory.word(pool_status(number, index)).map(Own::new);
    let lost = |cause: usize| OwnCount::at(memory, pool_status(number, 4 + cause * 2));
    Ok(CountWords {
        total_low: Some(word(0)?),
        total_high: word(1)?,
        free_low_water: word(2)?,
        overflow_high: word(3)?,
        stash: LongOwn::at(memory, pool_status(number, 14))?,
        stash_sequence: word(16)?,
        by_cause: [lost(0)?, lost(1)?, lost(2)?, lost(3)?, lost(4)?],
    })
}

/// Pool number `number` with a queue of `free_slots`.
///
/// # Errors
/// [`Fault`] when the plan does not fit `memory`.
pub fn attach_pool<M: Memory, K: Records, S: Subsystem>(
    memory: &M,
    number: u32,
    free_slots: u32,
) -> Result<Pool<M, K, S>, Fault> {
    let setup = PoolSetup { region: BASE, offsets: pool(number), free_slots, instance: Instance(number) };
    Pool::attach(memory, &setup, Some(count_words(memory, number)?))
}

/// Surroundings of a lane: a clock that stands still unless told otherwise, and a hook that runs between two looks.
pub struct Surroundings<F> {
    /// What the clock shows.
    pub now_cycles: Cell<u64>,
    /// How often it was read.
    pub clock_reads: Cell<u32>,
    /// Times a wait was noted at the push and at the pop gate.
    pub parked: [u32; 2],
    hook: F,
}

impl<F: FnMut(u32)> Surroundings<F> {
    /// `hook` runs on each relaxation and is given the number of the look; the clock moves on by one cycle with each.
    pub fn new(hook: F) -> Self {
        Self { now_cycles: Cell::new(0), clock_reads: Cell::new(0), parked: [0; 2], hook }
    }
}

impl<F> Clock for Surroundings<F> {
    fn now_cycles(&self) -> u64 {
        self.clock_reads.set(self.clock_reads.get() + 1);
        self.now_cycles.get()
    }

    fn frequency_hz(&self) -> u64 {
        1
    }
}

impl<F: FnMut(u32)> Relax for Surroundings<F> {
    fn relax(&mut self, round: u32) {
        self.now_cycles.set(self.now_cycles.get() + 1);
        (self.hook)(round);
    }
}

impl<F: FnMut(u32)> WaitEnv for Surroundings<F> {
    fn note_parked(&mut self, gate: Gate) {
        self.parked[match gate {
            Gate::Ready => 0,
            Gate::Free => 1,
        }] += 1;
    }
}
