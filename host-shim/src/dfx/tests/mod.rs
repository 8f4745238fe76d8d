//! Drain, keeper and attach on a memory double; lanes are played by direct stores.

mod attach;
mod control;
mod copied;
mod drain;
mod faults;
mod keeper;
mod owners;
mod payloads;
mod serving;
mod stage;
mod stopping;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use sluice_core::gate::Gate;
use sluice_core::layout::{Instance, PoolKind};
use sluice_core::mem::testing::{Double, Poke};
use sluice_core::mem::{DevAddr, Fault};
use sluice_core::producer::tiny::{self, Record};
use sluice_core::producer::{Beside, ReadyEntry, Records, Rules};

use super::attach::ScanViews;
use super::drain::Drain;
use super::keeper::{GateScope, Keeper, KeeperViews, Shut};
use super::ledger::{BufferId, CounterWord, Directory, GivenSide, TakenSide};
use super::release::ReleaseReady;
use super::{FreeQueueFeed, Full, GateControl, HeldWords, Pipe, RingDrain, RingWatch};

const LANES: u32 = 2;
const POOLS: u32 = 2;
/// Buffers of each pool.
const BUFFERS: u32 = 3;
/// Where a pool's status shows its stash.
const STASH: usize = 14;
/// A ring holds one fewer.
const READY_ENTRIES: u32 = 4;
const FREE_SLOTS: u32 = 2;

const GATES: [Gate; 2] = [Gate::Ready, Gate::Free];

/// A pipe for one thread.
struct Line<T>(Rc<RefCell<VecDeque<T>>>);

impl<T> Line<T> {
    fn new() -> Self {
        Self(Rc::default())
    }

    fn items(&self) -> Vec<T>
    where
        T: Clone,
    {
        self.0.borrow().iter().cloned().collect()
    }
}

impl<T> Pipe<T> for Line<T> {
    fn push(&self, item: T) {
        self.0.borrow_mut().push_back(item);
    }

    fn pop(&self) -> Option<T> {
        self.0.borrow_mut().pop_front()
    }
}

/// A subsystem that always says the same of a freeze's end.
struct Says(bool);

impl ReleaseReady for Says {
    fn is_ready(&mut self) -> Result<bool, Fault> {
        Ok(self.0)
    }
}

/// Two pools of three buffers, two lanes, and everything that serves them.
struct Bench {
    memory: Double,
    directory: Arc<Directory>,
    given: Vec<CounterWord>,
    taken: Vec<CounterWord>,
    collect: Line<Full>,
    returned: Line<BufferId>,
}

impl Bench {
    fn new() -> Self {
        let pool = |pool: u32| {
            let buffers = (pool * BUFFERS..(pool + 1) * BUFFERS).map(tiny::buffer).collect();
            (Record::KIND, Instance(pool), buffers)
        };
        let directory = Arc::new(Directory::new((0..POOLS).map(pool)));
        Self {
            memory: Double::new(tiny::BASE, tiny::BYTES),
            given: CounterWord::table(directory.buffers()),
            taken: CounterWord::table(directory.buffers()),
            directory,
            collect: Line::new(),
            returned: Line::new(),
        }
    }

    fn taken_side(&self) -> TakenSide<CounterWord> {
        TakenSide::new(self.given.clone(), self.taken.clone(), u32::MAX)
    }

    fn given_side(&self) -> GivenSide<CounterWord> {
        GivenSide::new(self.given.clone(), self.taken.clone(), u32::MAX)
    }

    /// Buffers that the ledger counts as the host's.
    fn host_held(&self) -> Vec<u32> {
        let ledger = self.given_side();
        (0..self.directory.buffers()).filter(|&buffer| ledger.is_host_held(BufferId(buffer))).collect()
    }

    fn rings(&self) -> Vec<RingDrain<Double>> {
        let ring = |lane| RingDrain::attach(&self.memory, tiny::BASE, tiny::ring(lane), READY_ENTRIES);
        (0..LANES).map(|lane| ring(lane).expect("mapped")).collect()
    }

    fn watches(&self) -> Vec<RingWatch<Double>> {
        let ring = |lane| RingWatch::attach(&self.memory, tiny::BASE, tiny::ring(lane), READY_ENTRIES);
        (0..LANES).map(|lane| ring(lane).expect("mapped")).collect()
    }

    fn queues(&self) -> Vec<FreeQueueFeed<Double>> {
        let queue =
            |pool| FreeQueueFeed::attach(&self.memory, tiny::BASE, &tiny::pool(pool), FREE_SLOTS, u32::MAX);
        (0..POOLS).map(|pool| queue(pool).expect("mapped")).collect()
    }

    fn held(&self) -> Vec<HeldWords<Double>> {
        let stash = |pool| Some(tiny::pool_status(pool, STASH));
        let current = |pool: u32| tiny::at(tiny::pool(pool).current_ptr);
        let held = |pool| HeldWords::attach(&self.memory, current(pool), stash(pool));
        (0..POOLS).map(|pool| held(pool).expect("mapped")).collect()
    }

    fn gates(&self) -> GateControl<Double> {
        let epoch = Some(tiny::EXTENSION_GATES.release_epoch);
        GateControl::attach(&self.memory, tiny::BASE, tiny::GATES, epoch).expect("mapped")
    }

    fn drain(&self, unsettled: &[u32]) -> Drain<Double, CounterWord> {
        let unsettled = unsettled.iter().copied().map(BufferId).collect();
        let directory = Arc::clone(&self.directory);
        Drain::new(directory, self.rings(), self.held(), self.taken_side(), unsettled)
    }

    fn keeper(&self, scope: GateScope, spare: &[u32], shut: Shut) -> Keeper<Double, CounterWord> {
        let views = KeeperViews { queues: self.queues(), rings: self.watches(), gates: self.gates() };
        let spare = spare.iter().copied().map(BufferId);
        let directory = Arc::clone(&self.directory);
        Keeper::new(directory, views, self.given_side(), scope, Rules::ALL, spare, shut)
    }

    fn scan<R>(&self, with: impl FnOnce(&ScanViews<'_, Double>) -> R) -> R {
        let (queues, held, rings, gates) = (self.queues(), self.held(), self.rings(), self.gates());
        with(&ScanViews { queues: &queues, held: &held, rings: &rings, gates: &gates })
    }

    /// Counts `buffers` as the device's.
    fn give(&self, buffers: impl IntoIterator<Item = u32>) {
        let ledger = self.given_side();
        buffers.into_iter().for_each(|buffer| ledger.give(BufferId(buffer)));
    }

    fn word(&self, offset: usize) -> u32 {
        self.memory.peek(tiny::at(offset))
    }

    fn set_word(&self, offset: usize, value: u32) {
        self.memory.poke(tiny::at(offset), value);
    }

    fn flag(&self, gate: Gate) -> u32 {
        self.word(flag(gate))
    }

    fn raise(&self, gate: Gate) {
        self.set_word(signal(gate), 1);
    }

    fn epoch(&self) -> u32 {
        self.memory.peek(tiny::EXTENSION_GATES.release_epoch)
    }

    /// Publishes `entry` in the ring of `lane`, as a lane does.
    fn publish_entry(&self, lane: u32, entry: &ReadyEntry) {
        let ring = tiny::ring(lane);
        let tail = self.word(ring.tail);
        let at = ring.entry(tail);
        self.set_word(at, entry.instance.0);
        self.set_word(at + 4, entry.kind.0);
        self.memory.poke_address(tiny::at(at + 8), entry.buffer);
        self.set_word(at + 16, entry.sequence);
        self.set_word(ring.tail, (tail + 1) % READY_ENTRIES);
    }

    fn publish(&self, lane: u32, buffer: u32, sequence: u32) {
        self.publish_entry(lane, &entry(buffer, sequence));
    }

    fn waiting_entries(&self, lane: u32) -> u32 {
        let ring = tiny::ring(lane);
        (self.word(ring.tail) + READY_ENTRIES - self.word(ring.head)) % READY_ENTRIES
    }

    fn set_current(&self, pool: u32, buffer: Option<u32>) {
        let address = buffer.map_or(DevAddr::NULL, tiny::buffer);
        self.memory.poke_address(tiny::at(tiny::pool(pool).current_ptr), address);
    }

    fn set_stash(&self, pool: u32, buffer: Option<u32>) {
        let address = buffer.map_or(DevAddr::NULL, tiny::buffer);
        self.memory.poke_address(tiny::pool_status(pool, STASH), address);
    }

    /// The buffers in the queue of `pool`, oldest first.
    fn queue(&self, pool: u32) -> Vec<DevAddr> {
        let queue = tiny::pool(pool);
        let (head, tail) = (self.word(queue.free_head), self.word(queue.free_tail));
        let slot = |number: u32| {
            self.memory.peek_address(tiny::at(queue.free_slot(head.wrapping_add(number), FREE_SLOTS)))
        };
        (0..tail.wrapping_sub(head)).map(slot).collect()
    }

    /// Takes the oldest buffer out of the queue of `pool`, as a lane does.
    fn claim(&self, pool: u32) -> DevAddr {
        let queue = tiny::pool(pool);
        let oldest = self.queue(pool)[0];
        self.set_word(queue.free_head, self.word(queue.free_head).wrapping_add(1));
        oldest
    }
}

fn entry(buffer: u32, sequence: u32) -> ReadyEntry {
    let instance = Instance(buffer / BUFFERS);
    ReadyEntry {
        instance,
        kind: Record::KIND,
        buffer: tiny::buffer(buffer),
        sequence,
        beside: Beside::UNSAID,
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

/// A kind that no pool has.
const NO_KIND: PoolKind = PoolKind(Record::KIND.0 + 1);
