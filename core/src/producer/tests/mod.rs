//! The engine on memory of its own, with the host's side played by direct stores.

mod accounts;
mod chains;
mod core_pool;
mod hooks;
mod hostile;
mod latch;
mod order;
mod schedules;
mod stash;
mod switch;
mod threads;

use super::tiny::{self, RECORDS, Record, Surroundings, Tiny};
use super::{Append, Lane, Patience, Pool, Progress, ReadyEntry, Subsystem, Switch, SwitchEnd};
use crate::gate::Gate;
use crate::mem::testing::{BlockMemory, Poke, block};
use crate::mem::{DevAddr, Memory, Window};
use std::vec::Vec;

/// Longest wait of a switch in these tests.
const LIMIT_CYCLES: u64 = 100;

/// The host, played word by word.
#[derive(Clone)]
struct Host<M> {
    memory: M,
    ready_entries: u32,
    free_slots: u32,
}

impl<M: Memory> Host<M> {
    fn word(&self, offset: usize) -> u32 {
        self.memory.peek(tiny::at(offset))
    }

    fn set_word(&self, offset: usize, value: u32) {
        self.memory.poke(tiny::at(offset), value);
    }

    /// Puts `address` into the pool's queue without looking whether there is room.
    fn push(&self, pool: u32, address: DevAddr) {
        let queue = tiny::pool(pool);
        let tail = self.word(queue.free_tail);
        self.memory.poke_address(tiny::at(queue.free_slot(tail, self.free_slots)), address);
        self.set_word(queue.free_tail, tail.wrapping_add(1));
    }

    fn waiting(&self, pool: u32) -> u32 {
        let queue = tiny::pool(pool);
        self.word(queue.free_tail).wrapping_sub(self.word(queue.free_head))
    }

    fn current(&self, pool: u32) -> DevAddr {
        self.memory.peek_address(tiny::at(tiny::pool(pool).current_ptr))
    }

    fn published(&self, lane: u32) -> u32 {
        let ring = tiny::ring(lane);
        let (head, tail) = (self.word(ring.head), self.word(ring.tail));
        (tail + self.ready_entries - head) % self.ready_entries
    }

    fn drain(&self, lane: u32) -> Option<ReadyEntry> {
        let ring = tiny::ring(lane);
        let head = self.word(ring.head);
        if head == self.word(ring.tail) {
            return None;
        }
        let words = ReadyEntry::table_words(self.ready_entries);
        let entries = self.memory.words(tiny::at(ring.ring), words).expect("mapped");
        let entry = ReadyEntry::read(&entries, head).expect("mapped");
        self.set_word(ring.head, (head + 1) % self.ready_entries);
        Some(entry)
    }

    fn drain_all(&self, lane: u32) -> Vec<ReadyEntry> {
        core::iter::from_fn(|| self.drain(lane)).collect()
    }

    /// The records that a buffer holds, as its count says.
    fn records(&self, buffer: DevAddr) -> Vec<[u32; 4]> {
        let window = self.memory.window(buffer, 64).expect("mapped");
        let mut count = [0; 4];
        assert!(window.read(48, &mut count));
        let read = |index: u32| {
            let mut bytes = [0; 16];
            assert!(window.read(index * 16, &mut bytes));
            core::array::from_fn(|i| u32::from_le_bytes(bytes[i * 4..][..4].try_into().expect("four bytes")))
        };
        (0..u32::from_le_bytes(count)).map(read).collect()
    }

    fn set_shut(&self, gate: Gate, shut: bool) {
        self.set_word(flag(gate), u32::from(shut));
    }

    fn is_contended(&self, gate: Gate) -> bool {
        self.word(signal(gate)) != 0
    }

    fn clear(&self, gate: Gate) {
        self.set_word(signal(gate), 0);
    }

    fn bump(&self, word: DevAddr) {
        self.memory.poke(word, self.memory.peek(word).wrapping_add(1));
    }

    fn bump_epoch(&self) {
        self.bump(tiny::EXTENSION_GATES.release_epoch);
    }

    fn detach(&self) {
        self.memory.poke(tiny::EXTENSION_GATES.host_detached, 1);
    }
}

const fn flag(gate: Gate) -> usize {
    match gate {
        Gate::Ready => tiny::GATES.rq_freeze_active,
        Gate::Free => tiny::GATES.fq_freeze_active,
    }
}

const fn signal(gate: Gate) -> usize {
    match gate {
        Gate::Ready => tiny::GATES.rq_contended,
        Gate::Free => tiny::GATES.fq_contended,
    }
}

const GATES: [Gate; 2] = [Gate::Ready, Gate::Free];

/// A lane with a pool, and the host that is played.
struct Bench<M: Memory, S = Tiny> {
    host: Host<M>,
    lane: Lane<M, S>,
    pool: Pool<M, Record, S>,
    env: Surroundings<fn(u32)>,
}

type MappedBench = Bench<BlockMemory>;

fn mapped() -> BlockMemory {
    block(tiny::BASE, tiny::BYTES)
}

fn bench() -> MappedBench {
    Bench::on(mapped())
}

impl<M: Memory, S: Subsystem> Bench<M, S> {
    /// A ring of two entries, which holds one, and a queue of two slots.
    fn on(memory: M) -> Self {
        Self::sized(memory, 2, 2)
    }

    fn sized(memory: M, ready_entries: u32, free_slots: u32) -> Self {
        Self {
            lane: tiny::attach_lane(&memory, 0, ready_entries, LIMIT_CYCLES).expect("mapped"),
            pool: tiny::attach_pool(&memory, 0, free_slots).expect("mapped"),
            host: Host { memory, ready_entries, free_slots },
            env: Surroundings::new(|_| ()),
        }
    }

    fn poll(&mut self, switch: &mut Switch) -> Progress {
        self.lane.poll_switch(&mut self.pool, switch, &self.env)
    }

    /// A look that finds the deadline passed, and the one that acts on it.
    fn poll_twice(&mut self, switch: &mut Switch) -> Progress {
        assert_eq!(self.poll(switch), Progress::Moved);
        assert_eq!(switch.patience(), Patience::Ended);
        self.poll(switch)
    }

    fn append(&mut self, first: u32) -> Result<(), super::AppendError> {
        self.lane.append(&mut self.pool, &[first, !first, 7, first], &mut self.env)
    }

    /// Claims `buffer`, given by the host for it.
    fn claim(&mut self, buffer: DevAddr) {
        self.host.push(0, buffer);
        let mut switch = self.lane.begin_claim();
        assert_eq!(self.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
        assert_eq!(self.pool.state().buffer, buffer);
    }

    /// Stores records up to the last that fits.
    fn fill(&mut self) {
        for first in self.pool.state().count..RECORDS {
            self.pool.count_attempt();
            let stored = self.pool.try_append(&[first, !first, 7, first]);
            assert_eq!(stored, if first + 1 < RECORDS { Append::Stored } else { Append::Full });
        }
    }

    /// A switch that stands before publication: the current buffer is full and the ring has room or not.
    fn with_full_buffer(mut self, ring_has_room: bool) -> Self {
        if !ring_has_room {
            for other in 1..self.host.ready_entries {
                self.claim(tiny::buffer(other));
                self.fill();
                let mut switch = self.lane.begin_switch();
                assert_eq!(self.poll(&mut switch), Progress::Moved);
            }
        }
        self.claim(tiny::buffer(0));
        self.fill();
        self
    }

    /// Holds what must hold whenever nothing is in flight: every attempt is stored, published or counted as lost.
    fn assert_conserved(&self, collected: u64) {
        let state = self.pool.state();
        assert_eq!(collected + u64::from(state.count) + state.dropped_total(), state.total());
    }
}
