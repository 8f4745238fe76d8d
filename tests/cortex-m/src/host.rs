//! The other side, emulated in the same image: it stores to the words a host owns while a lane waits.
//!
//! A waiting lane calls [`Relax::relax`] between two looks; that is when the host moves. What it reads of entries
//! and buffers it reads as bytes, by the wire contract's offsets, not through the code under test.

use core::cell::Cell;

use sluice_core::gate::{ExtensionGateAddrs, Gate, WaitEnv};
use sluice_core::layout::swimlane;
use sluice_core::layout::{ArchId, Instance, Lane, PoolKind, Region, Shape};
use sluice_core::mem::{Clock, CopyMemory, DevAddr, Memory, Relax, Word};

use crate::board::Shared;
use crate::harness::scratch;

/// The swimlane region of one lane and one core.
pub(crate) const REGION: Region = match Shape::new(ArchId::A2a3, 1, 1) {
    Ok(shape) => swimlane::region(shape),
    Err(_) => panic!("one lane and one core are within every architecture"),
};

/// The pool whose records the tests write.
pub(crate) const KIND: PoolKind = PoolKind::AICPU_TASK;

/// Where the region lies.
pub(crate) const REGION_AT: DevAddr = scratch(0);

/// Where the extension words lie.
pub(crate) const EXTENSION: ExtensionGateAddrs = ExtensionGateAddrs {
    release_epoch: scratch(0x2_8000),
    host_detached: scratch(0x2_8004),
    host_heartbeat: scratch(0x2_8008),
};

/// Device address of buffer `index`.
pub(crate) const fn buffer(index: u32) -> DevAddr {
    scratch(0x3_0000 + index as u64 * 0x8000)
}

/// The word at `at`; tests only name words of the scratch part.
pub(crate) fn peek(shared: &Shared, at: DevAddr) -> u32 {
    let mut bytes = [0xff; 4];
    let _ = shared.read_bytes(at, &mut bytes);
    u32::from_le_bytes(bytes)
}

/// Stores to the word at `at`, with all stores before it visible first.
pub(crate) fn poke(shared: &Shared, at: DevAddr, value: u32) {
    if let Ok(word) = shared.word(at) {
        word.store_release(value);
    }
}

/// Surroundings of a waiting lane: a clock that advances with every wait, and somebody who acts meanwhile.
pub(crate) struct Waiting<F> {
    /// Waits so far, by gate.
    pub(crate) parked: [u32; 2],
    now: Cell<u64>,
    act: F,
}

impl<F: FnMut(u32)> Waiting<F> {
    /// `act` is called with the number of the wait round.
    pub(crate) fn with(act: F) -> Self {
        Self { parked: [0; 2], now: Cell::new(0), act }
    }
}

impl<F> Clock for Waiting<F> {
    fn now_cycles(&self) -> u64 {
        self.now.get()
    }

    fn frequency_hz(&self) -> u64 {
        1_000_000
    }
}

impl<F: FnMut(u32)> Relax for Waiting<F> {
    fn relax(&mut self, round: u32) {
        self.now.set(self.now.get() + 1);
        (self.act)(round);
    }
}

impl<F: FnMut(u32)> WaitEnv for Waiting<F> {
    fn note_parked(&mut self, gate: Gate) {
        self.parked[gate as usize] += 1;
    }
}

/// A full buffer as a host finds it in the ready ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) instance: u32,
    pub(crate) kind: u32,
    pub(crate) buffer: DevAddr,
    pub(crate) sequence: u32,
}

/// Where a freeze stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freeze {
    Open,
    Shut,
    Drained,
}

/// A host with one lane and one pool, whose ready ring has `ring_entries` entries.
pub(crate) struct Host<'a> {
    shared: &'a Shared,
    ring_entries: u32,
    freeze: Freeze,
    /// Freezes that were opened and released.
    pub(crate) freezes: u32,
}

impl<'a> Host<'a> {
    pub(crate) fn new(shared: &'a Shared, ring_entries: u32) -> Self {
        Self { shared, ring_entries, freeze: Freeze::Open, freezes: 0 }
    }

    /// Puts `buffer` into the free queue.
    pub(crate) fn give(&self, buffer: DevAddr) {
        let Some(pool) = REGION.pool(KIND, Instance(0)) else { return };
        let tail_at = REGION_AT.offset(pool.free_tail as u64);
        let tail = peek(self.shared, tail_at);
        let slot = REGION_AT.offset(pool.free_slot(tail, REGION.free_slots()) as u64);
        let (low, high) = buffer.split();
        poke(self.shared, slot, low);
        poke(self.shared, slot.offset(4), high);
        poke(self.shared, tail_at, tail.wrapping_add(1));
    }

    /// Takes the oldest entry out of the ready ring.
    pub(crate) fn drain(&self) -> Option<Found> {
        let lane = REGION.lane(Lane(0))?;
        let (head_at, tail_at) = (REGION_AT.offset(lane.head as u64), REGION_AT.offset(lane.tail as u64));
        let head = peek(self.shared, head_at);
        if head == peek(self.shared, tail_at) {
            return None;
        }
        let entry = REGION_AT.offset(lane.entry(head) as u64);
        let word = |offset: u64| peek(self.shared, entry.offset(offset));
        let found = Found {
            instance: word(0),
            kind: word(4),
            buffer: DevAddr::join(word(8), word(12)),
            sequence: word(16),
        };
        poke(self.shared, head_at, (head + 1) % self.ring_entries);
        Some(found)
    }

    /// One step of a freeze, if a signal asks for one: shut, then drain through `collect`, then release.
    pub(crate) fn step(&mut self, mut collect: impl FnMut(&Self, Found)) {
        let gates = REGION.gates();
        let at = |offset: usize| REGION_AT.offset(offset as u64);
        let flags = [at(gates.rq_freeze_active), at(gates.fq_freeze_active)];
        let signals = [at(gates.rq_contended), at(gates.fq_contended)];
        match self.freeze {
            Freeze::Open => {
                for (flag, signal) in flags.into_iter().zip(signals) {
                    if peek(self.shared, signal) != 0 {
                        poke(self.shared, flag, 1);
                        poke(self.shared, signal, 0);
                        self.freeze = Freeze::Shut;
                    }
                }
            }
            Freeze::Shut => {
                while let Some(found) = self.drain() {
                    collect(self, found);
                }
                self.freeze = Freeze::Drained;
            }
            Freeze::Drained => {
                poke(self.shared, EXTENSION.release_epoch, self.freezes + 1);
                flags.into_iter().for_each(|flag| poke(self.shared, flag, 0));
                self.freeze = Freeze::Open;
                self.freezes += 1;
            }
        }
    }
}
