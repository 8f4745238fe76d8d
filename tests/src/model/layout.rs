//! The model's tiny wire: which words there are, where the shipped code finds them, and what they mean.
//!
//! Two lanes with one pool each; ready rings of two entries, which hold one; free queues of two slots; up to three buffers.
//! Device addresses map to slots of one byte; addresses are kept as buffer number + 1. Words that decide nothing (kind, pool
//! and sequence in an entry, upper halves, counters for reports) read 0 and are not part of the state.

use std::mem::offset_of;

use sluice_core::gate::ExtensionGateAddrs;
use sluice_core::layout::args_dump::BufferState;
use sluice_core::layout::{BufferLayout, GateOffsets, LaneOffsets, PoolOffsets};
use sluice_core::mem::DevAddr;

/// Number of a tracked word.
pub type Slot = u8;

/// Lanes, and pools: one each.
pub const LANES: usize = 2;
/// Most buffers.
pub const BUFFERS: usize = 3;
/// Most buffers of two records.
pub const PAIR_BUFFERS: usize = 2;
/// Records that these hold.
pub const PAIR: u32 = 2;
/// Tokens of items, from 1: more than there are items between one use of a slot and the next.
pub const TOKENS: u32 = 8;
/// Most places in an arena; a payload takes one.
pub const ARENA_PLACES: u8 = 3;
/// Entries of a ready ring.
pub const READY_ENTRIES: u32 = 2;
/// Slots of a free queue.
pub const FREE_SLOTS: u32 = 2;
/// Bits in which free-queue counters count: enough to tell full from empty.
pub const COUNTER_MASK: u32 = 3;
/// Bits in which ledger counters count: enough to tell the host's from the device's.
pub const LEDGER_MASK: u32 = 1;
/// What the clock shows when it is late, and the deadline.
pub const LATE_CYCLES: u64 = 1000;

const FLAGS: Slot = 0;
/// Release epoch.
pub const EPOCH: Slot = 4;
/// Host heartbeat.
pub const HEARTBEAT: Slot = 5;
const RINGS: Slot = 6;
const RING_SLOTS: Slot = 2 + READY_ENTRIES as Slot;
const QUEUES: Slot = RINGS + LANES as Slot * RING_SLOTS;
const QUEUE_SLOTS: Slot = 3 + FREE_SLOTS as Slot;
const CORE: Slot = QUEUES + LANES as Slot * QUEUE_SLOTS;
/// Sequence of the first pool's current buffer, where a core goes by it.
pub const SEQUENCE: Slot = CORE;
/// The first pool's stash.
pub const STASH: Slot = SEQUENCE + 1;
/// Token of the item that the core was given last.
pub const DISPATCHED: Slot = STASH + 1;
/// Token of the item that the core has finished last.
pub const FINISHED: Slot = DISPATCHED + 1;
const COUNTS: Slot = FINISHED + 1;
const RECORDS: Slot = COUNTS + PAIR_BUFFERS as Slot;
/// Payloads that are acknowledged.
pub const COMPLETED: Slot = RECORDS + (PAIR_BUFFERS * PAIR as usize) as Slot;
const ARENA: Slot = COMPLETED + 1;
const GIVEN: Slot = ARENA + ARENA_PLACES;
const TAKEN: Slot = GIVEN + BUFFERS as Slot;
/// Pipe from drain to collector.
pub const COLLECT: Slot = TAKEN + BUFFERS as Slot;
const PIPE_SLOTS: Slot = 1 + BUFFERS as Slot;
/// Pipe from collector to keeper.
pub const RETURNED: Slot = COLLECT + PIPE_SLOTS;
/// That the host has left.
pub const DETACHED: Slot = RETURNED + PIPE_SLOTS;
/// Number of slots.
pub const SLOTS: usize = (DETACHED + 1) as usize;

/// `given` counter of a buffer.
pub const fn given(buffer: usize) -> Slot {
    GIVEN + buffer as Slot
}

/// `taken` counter of a buffer.
pub const fn taken(buffer: usize) -> Slot {
    TAKEN + buffer as Slot
}

/// Consumer index of a lane's ring.
pub const fn ring_head(lane: usize) -> Slot {
    RINGS + lane as Slot * RING_SLOTS
}

/// Producer index of a lane's ring.
pub const fn ring_tail(lane: usize) -> Slot {
    ring_head(lane) + 1
}

/// Buffer in the ring's entry `index`.
pub const fn ring_entry(lane: usize, index: u8) -> Slot {
    ring_head(lane) + 2 + index % READY_ENTRIES as u8
}

/// Pop counter of a pool's queue.
pub const fn queue_head(pool: usize) -> Slot {
    QUEUES + pool as Slot * QUEUE_SLOTS
}

/// Push counter of a pool's queue.
pub const fn queue_tail(pool: usize) -> Slot {
    queue_head(pool) + 1
}

/// Buffer being filled.
pub const fn current(pool: usize) -> Slot {
    queue_head(pool) + 2
}

/// Buffer in the queue's slot for `counter`.
pub const fn queue_slot(pool: usize, counter: u8) -> Slot {
    queue_head(pool) + 3 + counter % FREE_SLOTS as u8
}

/// Records counted in a buffer of two.
pub const fn count(buffer: usize) -> Slot {
    COUNTS + buffer as Slot
}

/// What such a buffer's record `index` says: a token, or the place of a payload and one more.
pub const fn record(buffer: usize, index: u8) -> Slot {
    RECORDS + (buffer * PAIR as usize) as Slot + index
}

/// Slots that hold tokens.
pub const TOKEN_SLOTS: [std::ops::Range<Slot>; 2] = [DISPATCHED..COUNTS, RECORDS..COMPLETED];

/// Whether a place of the arena holds a payload that is not copied yet.
pub const fn arena_place(place: u8) -> Slot {
    ARENA + place
}

/// Whether a slot is part of the state only where records are.
pub const fn is_of_records(slot: Slot) -> bool {
    slot >= CORE && slot < GIVEN
}

/// What a store to a slot moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// Buffers into a pool's queue.
    QueueTail(usize),
    /// A buffer to the lane.
    QueueHead(usize),
    /// A buffer into a lane's ring.
    RingTail(usize),
    /// A buffer to the host.
    RingHead(usize),
    /// A payload into a place.
    Arena(u8),
    /// Nothing.
    Other,
}

/// What a store to `slot` moves.
pub const fn meaning(slot: Slot) -> Meaning {
    if slot >= ARENA && slot < GIVEN {
        return Meaning::Arena(slot - ARENA);
    }
    let mut lane = 0;
    while lane < LANES {
        if slot == queue_tail(lane) {
            return Meaning::QueueTail(lane);
        }
        if slot == queue_head(lane) {
            return Meaning::QueueHead(lane);
        }
        if slot == ring_tail(lane) {
            return Meaning::RingTail(lane);
        }
        if slot == ring_head(lane) {
            return Meaning::RingHead(lane);
        }
        lane += 1;
    }
    Meaning::Other
}

/// Distance of addresses that stand for neighbouring things.
const STRIDE: u64 = 0x1000;
const GATES_AT: u64 = STRIDE;
const EXTENSION_AT: u64 = 2 * STRIDE;
const RINGS_AT: u64 = 4 * STRIDE;
const POOLS_AT: u64 = 8 * STRIDE;
const STATUS_AT: u64 = 12 * STRIDE;
/// The first pool's words for its arena.
pub const ARENA_WORDS_AT: u64 = 13 * STRIDE;
/// Bytes of the arena, a number that differs from world to world.
pub const ARENA_BYTES_AT: u64 = ARENA_WORDS_AT + offset_of!(BufferState, arena_size) as u64;
/// The arena.
pub const ARENA_AT: u64 = 14 * STRIDE;
const BUFFERS_AT: u64 = 16 * STRIDE;
const ENTRY_BYTES: u64 = 32;

/// The gates' words.
pub const GATES: GateOffsets = GateOffsets {
    rq_freeze_active: GATES_AT as usize,
    rq_contended: GATES_AT as usize + 4,
    fq_freeze_active: GATES_AT as usize + 8,
    fq_contended: GATES_AT as usize + 12,
};

/// The extension's words.
pub const EXTENSION: ExtensionGateAddrs = ExtensionGateAddrs {
    release_epoch: DevAddr(EXTENSION_AT),
    host_heartbeat: DevAddr(EXTENSION_AT + 4),
    host_detached: DevAddr(EXTENSION_AT + 8),
};

/// A lane's ring.
pub const fn lane_offsets(lane: usize) -> LaneOffsets {
    let base = (RINGS_AT + lane as u64 * STRIDE) as usize;
    LaneOffsets { head: base, tail: base + 4, ring: base + 64 }
}

/// A pool's words.
pub const fn pool_offsets(pool: usize) -> PoolOffsets {
    let base = (POOLS_AT + pool as u64 * STRIDE) as usize;
    PoolOffsets {
        base,
        free_head: base,
        free_tail: base + 4,
        current_ptr: base + 8,
        free_ptrs: base + 16,
        current_seq: base + 64,
        total_records: None,
        dropped_records: base + 68,
        overflow_records: None,
        mismatch_records: None,
        staging_ptr: None,
    }
}

/// A buffer of one record.
pub const BUFFER: BufferLayout =
    BufferLayout { bytes: 64, count: 32, records: 0, record_bytes: 32, capacity: 1 };

/// A buffer of two records.
pub const PAIR_BUFFER: BufferLayout =
    BufferLayout { bytes: 128, count: 64, records: 0, record_bytes: RECORD_BYTES as usize, capacity: PAIR };
const RECORD_BYTES: u64 = 32;
/// Where in a core's record its token stands.
pub const TOKEN_AT: u64 = 12;
/// Where in it the time stands at which the item ended: there as soon as the token is.
pub const END_AT: u64 = 0;

/// Words of the first pool that only our own hosts have; the stash's come first.
pub const fn status(word: u64) -> DevAddr {
    DevAddr(STATUS_AT + word * 4)
}

/// Words of such a buffer that are part of the state, by their offset in it.
pub fn words_of_pair(buffer: usize) -> impl Iterator<Item = (u64, Slot)> {
    let records =
        (0..PAIR as u8).map(move |index| (u64::from(index) * RECORD_BYTES + TOKEN_AT, record(buffer, index)));
    records.chain([(PAIR_BUFFER.count as u64, count(buffer))]).filter(move |_| buffer < PAIR_BUFFERS)
}

/// Address of a buffer.
pub const fn buffer_address(buffer: usize) -> DevAddr {
    DevAddr(BUFFERS_AT + buffer as u64 * STRIDE)
}

/// The buffer at an address.
pub fn buffer_at(at: DevAddr) -> Option<usize> {
    (0..BUFFERS).find(|&buffer| buffer_address(buffer) == at)
}

/// The slot behind an address, if the word there is part of the state.
pub fn tracked(at: u64) -> Option<Slot> {
    let offset = at % STRIDE;
    match at / STRIDE {
        1 => Some(FLAGS + (offset / 4) as Slot),
        2 => match offset {
            0 => Some(EPOCH),
            4 => Some(HEARTBEAT),
            8 => Some(DETACHED),
            _ => None,
        },
        page @ (4 | 5) => {
            let lane = (page - 4) as usize;
            match offset {
                0 => Some(ring_head(lane)),
                4 => Some(ring_tail(lane)),
                // The low half of the buffer's address in an entry.
                _ if offset >= 64 && (offset - 64) % ENTRY_BYTES == 8 => {
                    Some(ring_entry(lane, ((offset - 64) / ENTRY_BYTES) as u8))
                }
                _ => None,
            }
        }
        page @ (8 | 9) => {
            let pool = (page - 8) as usize;
            match offset {
                0 => Some(queue_head(pool)),
                4 => Some(queue_tail(pool)),
                8 => Some(current(pool)),
                16 | 24 => Some(queue_slot(pool, ((offset - 16) / 8) as u8)),
                64 if pool == 0 => Some(SEQUENCE),
                _ => None,
            }
        }
        12 if offset == 0 => Some(STASH),
        13 => (offset == offset_of!(BufferState, completed_payload_count) as u64).then_some(COMPLETED),
        page @ (16 | 17) if offset < PAIR_BUFFER.count as u64 => {
            let is_evidence = matches!(offset % RECORD_BYTES, TOKEN_AT | END_AT);
            is_evidence.then(|| record((page - 16) as usize, (offset / RECORD_BYTES) as u8))
        }
        _ => None,
    }
}

const fn is_pointer(slot: Slot) -> bool {
    if slot == STASH {
        return true;
    }
    let mut lane = 0;
    while lane < LANES {
        let entries = ring_head(lane) + 2;
        let queue = queue_head(lane) + 2;
        if slot >= entries && slot < entries + READY_ENTRIES as Slot {
            return true;
        }
        if slot >= queue && slot <= queue + FREE_SLOTS as Slot {
            return true;
        }
        lane += 1;
    }
    false
}

/// The byte that stands for `value` in `slot`.
pub fn encode(slot: Slot, value: u32) -> u8 {
    if is_pointer(slot) && value != 0 {
        buffer_at(DevAddr(u64::from(value))).map_or(u8::MAX, |buffer| buffer as u8 + 1)
    } else {
        value as u8
    }
}

/// The value for which the byte in `slot` stands.
pub fn decode(slot: Slot, byte: u8) -> u32 {
    match byte.checked_sub(1) {
        Some(buffer) if is_pointer(slot) => buffer_address(usize::from(buffer)).0 as u32,
        _ => u32::from(byte),
    }
}

/// What a word reads that is not part of the state: the pool in a ring's entry, which is always the lane's own; where the
/// arena lies; else 0.
pub fn constant(at: u64) -> u32 {
    let offset = at % STRIDE;
    match at / STRIDE {
        page @ (4 | 5) if offset >= 64 && offset.is_multiple_of(ENTRY_BYTES) => (page - 4) as u32,
        13 if offset == offset_of!(BufferState, arena_base) as u64 => ARENA_AT as u32,
        _ => 0,
    }
}

/// Whether accesses to a slot are worth no step of their own. A buffer's `given` counter is stored before the tail that lets
/// the device have the buffer, and read only after the device has given it back. That the host has left is stored once, and
/// looked at again and again. A core reads the sequence only between being given an item and finishing it, when the lane
/// stores nothing.
pub const fn is_race_free(slot: Slot) -> bool {
    (slot >= GIVEN && slot < TAKEN) || slot == DETACHED || slot == SEQUENCE
}
