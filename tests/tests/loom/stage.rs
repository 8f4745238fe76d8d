//! Shipped lanes and host roles on loom's memory, as small as the protocol can be: one record fills a buffer, a ring of two
//! entries holds one, a lane has one pool.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use loom::thread;
use sluice_core::gate::{Gate, WaitEnv};
use sluice_core::layout::{BufferLayout, Instance, PoolKind};
use sluice_core::mem::{Clock, DevAddr, Memory, Relax, Window};
use sluice_core::producer::{Lane, Pool, PoolSetup, Records, Rules, Subsystem, SwitchEnd, tiny};
use sluice_host::dfx::attach::ScanViews;
use sluice_host::dfx::drain::{Drain, Drained};
use sluice_host::dfx::keeper::{GateScope, Keeper, KeeperViews, Kept, Shut};
use sluice_host::dfx::ledger::{BufferId, Directory, GivenSide, TakenSide};
use sluice_host::dfx::release::Unconditional;
use sluice_host::dfx::{FreeQueueFeed, Full, GateControl, HeldWords, Pipe, RingDrain, RingWatch};

use crate::memory::{LoomMemory, LoomWord, Weakened};

pub(crate) const READY_ENTRIES: u32 = 2;
pub(crate) const FREE_SLOTS: u32 = 2;
/// Fruitless looks, or rounds, of one thread up to which its runs branch. From there on threads take fair turns; else two that
/// wait could keep the third from its turn for ever.
const BRANCHING_LOOKS: u32 = 2;
/// Fruitless looks, or rounds, after which a wait counts as endless.
const ENDLESS_LOOKS: u32 = 100;

/// The protocol with all its rules.
pub(crate) struct Whole;

impl Subsystem for Whole {}

/// One record fills a buffer.
pub(crate) struct One;

impl Records for One {
    type Record = [u32; 2];
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout =
        BufferLayout { bytes: 12, count: 8, records: 0, record_bytes: 8, capacity: 1 };
    const KIND: PoolKind = PoolKind::SOLE;
}

/// A buffer of a pool.
pub(crate) const fn buffer(pool: u32, number: u32) -> DevAddr {
    tiny::buffer(pool * 8 + number)
}

/// Word `index` of the host's ledger.
pub(crate) const fn ledger(index: u32) -> DevAddr {
    DevAddr(0x1000 + index as u64 * 4)
}

/// A lane with its pool.
pub(crate) struct Worker<S: Subsystem> {
    pub(crate) lane: Lane<LoomMemory, S>,
    pub(crate) pool: Pool<LoomMemory, One, S>,
    pub(crate) env: Patience,
}

/// Surroundings of a lane that waits: others run between two looks, and a wait without end is reported.
#[derive(Default)]
pub(crate) struct Patience {
    looks: u32,
}

impl Patience {
    /// Lets others run.
    pub(crate) fn wait(&mut self) {
        self.looks += 1;
        assert!(self.looks < ENDLESS_LOOKS, "asleep for ever");
        if self.looks > BRANCHING_LOOKS {
            loom::skip_branch();
        }
        thread::yield_now();
    }
}

impl Clock for Patience {
    fn now_cycles(&self) -> u64 {
        0
    }

    fn frequency_hz(&self) -> u64 {
        1
    }
}

impl Relax for Patience {
    fn relax(&mut self, _round: u32) {
        self.wait();
    }
}

impl WaitEnv for Patience {
    fn note_parked(&mut self, _gate: Gate) {}
}

impl<S: Subsystem> Worker<S> {
    /// Claims a buffer.
    pub(crate) fn claim(&mut self) {
        let switch = self.lane.begin_claim();
        assert_eq!(self.lane.drive(&mut self.pool, switch, &mut self.env), SwitchEnd::Switched);
    }

    /// Stores `[value, !value]` without switching.
    pub(crate) fn fill(&mut self, value: u32) {
        let _ = self.pool.try_append(&[value, !value]);
    }

    /// Publishes the full buffer and claims the next.
    pub(crate) fn switch(&mut self) {
        let switch = self.lane.begin_switch();
        assert_eq!(self.lane.drive(&mut self.pool, switch, &mut self.env), SwitchEnd::Switched);
    }

    /// Publishes the full buffer.
    pub(crate) fn flush(&mut self) {
        assert_eq!(self.lane.flush(&mut self.pool, &mut self.env), SwitchEnd::Switched);
    }
}

/// A pipe inside one thread.
pub(crate) struct Line<T>(RefCell<VecDeque<T>>);

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self(RefCell::default())
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

/// Everything a model needs; all words exist once it is built.
pub(crate) struct Stage {
    pub(crate) memory: LoomMemory,
    pub(crate) directory: Arc<Directory>,
    lanes: u32,
}

impl Stage {
    /// `lanes` lanes whose pools have `buffers` buffers each.
    pub(crate) fn new(weakened: Option<Weakened>, lanes: u32, buffers: u32) -> Self {
        let memory = LoomMemory::new(weakened);
        let addresses = |pool| (0..buffers).map(|number| buffer(pool, number)).collect::<Vec<_>>();
        let pools = (0..lanes).map(|pool| (One::KIND, Instance(pool), addresses(pool)));
        let directory = Arc::new(Directory::new(pools));
        for id in 0..directory.buffers() {
            memory.window(directory.address(BufferId(id)), One::LAYOUT.bytes as u32).expect("a buffer");
        }
        Self { memory, directory, lanes }
    }

    pub(crate) fn worker<S: Subsystem>(&self, lane: u32) -> Worker<S> {
        let setup = PoolSetup {
            region: tiny::BASE,
            offsets: tiny::pool(lane),
            free_slots: FREE_SLOTS,
            instance: Instance(lane),
        };
        Worker {
            lane: tiny::attach_lane(&self.memory, lane, READY_ENTRIES, u64::MAX).expect("a lane"),
            pool: Pool::attach(&self.memory, &setup, None).expect("a pool"),
            env: Patience::default(),
        }
    }

    /// What ready entries call a pool.
    pub(crate) fn pool_name(&self, pool: u32) -> (PoolKind, Instance) {
        (One::KIND, Instance(pool))
    }

    pub(crate) fn rings(&self) -> Vec<RingDrain<LoomMemory>> {
        let ring = |lane| RingDrain::attach(&self.memory, tiny::BASE, tiny::ring(lane), READY_ENTRIES);
        (0..self.lanes).map(|lane| ring(lane).expect("a ring")).collect()
    }

    pub(crate) fn queues(&self) -> Vec<FreeQueueFeed<LoomMemory>> {
        let queue =
            |pool| FreeQueueFeed::attach(&self.memory, tiny::BASE, &tiny::pool(pool), FREE_SLOTS, u32::MAX);
        (0..self.lanes).map(|pool| queue(pool).expect("a queue")).collect()
    }

    pub(crate) fn held(&self) -> Vec<HeldWords<LoomMemory>> {
        let current = |pool: u32| tiny::at(tiny::pool(pool).current_ptr);
        let held = |pool| HeldWords::attach(&self.memory, current(pool), None);
        (0..self.lanes).map(|pool| held(pool).expect("a word")).collect()
    }

    pub(crate) fn gates(&self) -> GateControl<LoomMemory> {
        let epoch = Some(tiny::EXTENSION_GATES.release_epoch);
        GateControl::attach(&self.memory, tiny::BASE, tiny::GATES, epoch).expect("a word")
    }

    fn ledger(&self, side: u32) -> Vec<LoomWord> {
        let first = side * self.directory.buffers();
        (0..self.directory.buffers())
            .map(|id| self.memory.word(ledger(first + id)).expect("a word"))
            .collect()
    }

    pub(crate) fn given_side(&self) -> GivenSide<LoomWord> {
        GivenSide::new(self.ledger(0), self.ledger(1), u32::MAX)
    }

    pub(crate) fn drain(&self) -> Drain<LoomMemory, LoomWord> {
        let ledger = TakenSide::new(self.ledger(0), self.ledger(1), u32::MAX);
        Drain::new(Arc::clone(&self.directory), self.rings(), self.held(), ledger, Vec::new())
    }

    /// A keeper that holds `spare`.
    pub(crate) fn keeper(&self, scope: GateScope, spare: &[u32], shut: Shut) -> Keeper<LoomMemory, LoomWord> {
        let ring = |lane| RingWatch::attach(&self.memory, tiny::BASE, tiny::ring(lane), READY_ENTRIES);
        let rings = (0..self.lanes).map(|lane| ring(lane).expect("a ring")).collect();
        let views = KeeperViews { queues: self.queues(), rings, gates: self.gates() };
        let spare = spare.iter().copied().map(BufferId);
        let directory = Arc::clone(&self.directory);
        Keeper::new(directory, views, self.given_side(), scope, Rules::ALL, spare, shut)
    }

    pub(crate) fn host(&self, scope: GateScope) -> Host {
        let spare: Vec<_> = (0..self.directory.buffers()).collect();
        Host {
            memory: self.memory.clone(),
            directory: Arc::clone(&self.directory),
            drain: self.drain(),
            keeper: self.keeper(scope, &spare, Shut::default()),
            collect: Line::default(),
            returned: Line::default(),
            collected: Vec::new(),
            opened: 0,
            patience: Patience::default(),
        }
    }

    pub(crate) fn scan<R>(&self, with: impl FnOnce(&ScanViews<'_, LoomMemory>) -> R) -> R {
        let (queues, held, rings, gates) = (self.queues(), self.held(), self.rings(), self.gates());
        with(&ScanViews { queues: &queues, held: &held, rings: &rings, gates: &gates })
    }
}

/// Drain, collector and keeper on one thread.
pub(crate) struct Host {
    memory: LoomMemory,
    directory: Arc<Directory>,
    drain: Drain<LoomMemory, LoomWord>,
    keeper: Keeper<LoomMemory, LoomWord>,
    collect: Line<Full>,
    returned: Line<BufferId>,
    pub(crate) collected: Vec<u32>,
    pub(crate) opened: u32,
    patience: Patience,
}

impl Host {
    /// One look at every ring, then one round of the keeper.
    pub(crate) fn serve(&mut self) {
        for _ in 0..self.drain.rings() {
            match self.drain.poll(&self.collect, &self.returned).expect("no fault") {
                Drained::Nothing | Drained::Buffer(_) => {}
                drained => panic!("nothing hostile runs here: {drained:?}"),
            }
        }
        while let Some(full) = self.collect.pop() {
            self.collected.push(read(&self.memory, self.directory.address(full.buffer)));
            self.returned.push(full.buffer);
        }
        let mut opened = 0;
        let event = |kept| opened += u32::from(matches!(kept, Kept::Opened(_)));
        self.keeper.round(&self.returned, &mut Unconditional, event).expect("no fault");
        self.opened += opened;
    }

    /// Serves until `done`.
    pub(crate) fn serve_until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            self.serve();
            self.patience.wait();
        }
    }

    /// Whether every buffer is given and no gate is shut.
    pub(crate) fn is_at_rest(&self) -> bool {
        let state = self.keeper.state();
        !state.shut.any() && state.spare.iter().all(VecDeque::is_empty)
    }
}

/// The value recorded in the buffer at `address`.
pub(crate) fn read(memory: &LoomMemory, address: DevAddr) -> u32 {
    let window = memory.window(address, One::LAYOUT.bytes as u32).expect("a buffer");
    let mut bytes = [0; 12];
    assert!(window.read(0, &mut bytes));
    let word = |index: usize| u32::from_le_bytes(bytes[index * 4..][..4].try_into().expect("four bytes"));
    assert_eq!((word(1), word(2)), (!word(0), 1), "a whole record and its count");
    word(0)
}

/// Stores a whole buffer with `value` at `address`.
pub(crate) fn record(memory: &LoomMemory, address: DevAddr, value: u32) {
    let mut window = memory.window(address, One::LAYOUT.bytes as u32).expect("a buffer");
    for (offset, word) in (0..).step_by(4).zip([value, !value, 1]) {
        assert!(window.write(offset, &word.to_le_bytes()));
    }
}
