//! Memory for the model checker: a handful of small words, explored one visible access at a time.
//!
//! The shipped code runs unchanged on it. A *step* of a process is: replay the accesses that its current poll has already
//! made, make the invisible ones that follow, make one visible access, and stop. Rust code cannot be stopped in the middle,
//! so after that access the memory is *dead*: loads return 0, stores do nothing, and whatever the poll concludes is thrown
//! away. Only the log of what it has read and stored so far is kept, and the next step replays it. When a poll ends without a
//! second visible access it is over, and its conclusions count.
//!
//! Visible are accesses that another process can notice or influence: acquire loads, release stores, pipes, the clock while
//! it can matter. Invisible are relaxed accesses: a side's own words, and tables that a later release store publishes; they
//! take effect together with the next visible access, which is when anybody else may look at them.

use std::cell::RefCell;
use std::rc::Rc;

use sluice_core::mem::{Clock, DevAddr, Fault, Memory, Window, Word, Words};
use sluice_core::producer::Beside;
use sluice_host::dfx::ledger::BufferId;
use sluice_host::dfx::{Full, Pipe};

use super::layout::{self, BUFFERS, Slot};

/// Everything that is shared, in slots of one byte.
pub type Slots = [u8; layout::SLOTS];

/// Who holds a buffer, as the checker's own bookkeeping has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Owner {
    /// A host role.
    #[default]
    Host,
    /// A free queue.
    Queue,
    /// Its lane.
    Lane,
    /// A ready ring.
    Ring,
}

/// Shared state of the world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shared {
    /// The words.
    pub slots: Slots,
    /// Owners of all buffers.
    pub owners: [Owner; BUFFERS],
}

/// One access of a poll, as a replay repeats it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Logged {
    /// Where.
    pub slot: Slot,
    /// What a load returned; `None` for a store.
    pub loaded: Option<u8>,
}

/// How much of a poll one step makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Grain {
    /// One visible access: every interleaving there is.
    #[default]
    Access,
    /// The whole poll: the interleavings of polls, for worlds too large for the finer grain.
    Poll,
}

/// An access over the transport that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedFault {
    /// Accesses before it.
    pub after: u32,
    /// Whether it is made all the same, and only said to have failed.
    pub is_done: bool,
}

/// Who is making a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Actor {
    /// A lane.
    Lane(u8),
    /// A role of the host.
    Host,
}

#[derive(Debug)]
struct Inner {
    shared: Shared,
    after_visible: Shared,
    log: Vec<Logged>,
    log_after_visible: usize,
    position: usize,
    stepped: bool,
    dead: bool,
    grain: Grain,
    tails_are_private: bool,
    may_repeat: bool,
    tracks_records: bool,
    arena_places: u8,
    actor: Actor,
    late: bool,
    clock_matters: bool,
    late_was_used: bool,
    /// The access over the transport that fails, counted from the next one.
    fault: Option<PlannedFault>,
    violation: Option<String>,
    violation_after_visible: Option<String>,
}

/// The memory; clones share it.
#[derive(Clone, Debug)]
pub struct ModelMemory {
    inner: Rc<RefCell<Inner>>,
}

/// What a step came to.
#[derive(Debug)]
pub struct Stepped {
    /// The shared state now.
    pub shared: Shared,
    /// Accesses of the unfinished poll; empty when the poll is over.
    pub log: Vec<Logged>,
    /// Whether the poll is over and its conclusions count.
    pub finished: bool,
    /// Whether anything visible was done; a poll without that need not be a step of its own.
    pub is_visible: bool,
    /// Whether the clock was asked and the answer could have been another.
    pub late_was_used: bool,
    /// A broken invariant.
    pub violation: Option<String>,
}

impl ModelMemory {
    /// Memory of a world explored at `grain`.
    ///
    /// `tails_are_private` says that each free queue's tail has one writer, so that reading it back is nobody else's affair.
    pub fn new(grain: Grain, tails_are_private: bool) -> Self {
        let shared = Shared { slots: [0; layout::SLOTS], owners: [Owner::Host; BUFFERS] };
        Self {
            inner: Rc::new(RefCell::new(Inner {
                shared,
                after_visible: shared,
                log: Vec::new(),
                log_after_visible: 0,
                position: 0,
                stepped: false,
                dead: false,
                grain,
                tails_are_private,
                may_repeat: false,
                tracks_records: false,
                arena_places: 0,
                actor: Actor::Host,
                late: false,
                clock_matters: false,
                late_was_used: false,
                fault: None,
                violation: None,
                violation_after_visible: None,
            })),
        }
    }

    /// Prepares a step of `actor` from `shared`, whose current poll has made the accesses of `log`.
    pub fn begin(&self, shared: Shared, log: &[Logged], actor: Actor, clock_matters: bool, late: bool) {
        let mut inner = self.inner.borrow_mut();
        inner.shared = shared;
        inner.log.clear();
        inner.log.extend_from_slice(log);
        inner.position = 0;
        inner.stepped = false;
        inner.dead = false;
        inner.actor = actor;
        inner.late = late;
        inner.clock_matters = clock_matters;
        inner.late_was_used = false;
        inner.fault = None;
        inner.violation = None;
        inner.violation_after_visible = None;
    }

    /// Ends the step.
    pub fn end(&self) -> Stepped {
        let mut inner = self.inner.borrow_mut();
        let finished = !inner.dead;
        let mut log = std::mem::take(&mut inner.log);
        if finished {
            log.clear();
        } else {
            inner.shared = inner.after_visible;
            inner.violation = inner.violation_after_visible.take();
            log.truncate(inner.log_after_visible);
        }
        Stepped {
            shared: inner.shared,
            log,
            finished,
            is_visible: inner.stepped,
            late_was_used: inner.late_was_used,
            violation: inner.violation.take(),
        }
    }

    /// Lets writes be repeated, in a world whose transport fails.
    pub fn allow_repetition(&self) {
        self.inner.borrow_mut().may_repeat = true;
    }

    /// Has records, and the words that come with them, be part of the state, and an arena of so many places.
    pub fn track_records(&self, arena_places: u8) {
        let mut inner = self.inner.borrow_mut();
        (inner.tracks_records, inner.arena_places) = (true, arena_places);
    }

    /// Has one access of the step over the transport fail.
    pub fn plan_fault(&self, fault: PlannedFault) {
        self.inner.borrow_mut().fault = Some(fault);
    }

    /// Whether the fault that was planned for the step is still to come.
    pub fn fault_is_due(&self) -> bool {
        self.inner.borrow().fault.is_some()
    }

    /// Makes an access over the transport.
    fn transport<T>(&self, access: impl FnOnce() -> T) -> Result<T, Fault> {
        let planned = self.inner.borrow().fault;
        let Some(PlannedFault { after, is_done }) = planned else { return Ok(access()) };
        let left = after.checked_sub(1);
        self.inner.borrow_mut().fault = left.map(|after| PlannedFault { after, is_done });
        if left.is_some() {
            return Ok(access());
        }
        if is_done {
            access();
        }
        Err(Fault::Transport { at: DevAddr::NULL })
    }

    fn access(&self, slot: Slot, visible: bool, run: impl FnOnce(&mut Inner) -> Option<u8>) -> u8 {
        let mut inner = self.inner.borrow_mut();
        if inner.dead {
            return 0;
        }
        if inner.position < inner.log.len() {
            let logged = inner.log[inner.position];
            assert_eq!(logged.slot, slot, "a replay must make the same accesses");
            inner.position += 1;
            return logged.loaded.unwrap_or(0);
        }
        if visible {
            if inner.stepped && inner.grain == Grain::Access {
                inner.dead = true;
                return 0;
            }
            inner.stepped = true;
        }
        let loaded = run(&mut inner);
        inner.log.push(Logged { slot, loaded });
        inner.position += 1;
        if visible {
            inner.after_visible = inner.shared;
            inner.log_after_visible = inner.log.len();
            inner.violation_after_visible = inner.violation.clone();
        }
        loaded.unwrap_or(0)
    }

    fn load(&self, slot: Slot, visible: bool) -> u32 {
        layout::decode(slot, self.access(slot, visible, |inner| Some(inner.shared.slots[slot as usize])))
    }

    fn store(&self, slot: Slot, value: u32, visible: bool) {
        let new = layout::encode(slot, value);
        self.access(slot, visible, |inner| {
            let old = inner.shared.slots[slot as usize];
            inner.shared.slots[slot as usize] = new;
            // A write that was made and said to have failed is made again.
            if old != new || !inner.may_repeat {
                inner.on_store(slot, old, new);
            }
            None
        });
    }
}

impl Inner {
    fn violate(&mut self, text: String) {
        self.violation.get_or_insert(text);
    }

    /// Moves buffers between owners as the words say, and checks that they could be moved.
    fn on_store(&mut self, slot: Slot, old: u8, new: u8) {
        match layout::meaning(slot) {
            layout::Meaning::QueueTail(pool) => self.queue_grew(pool, old, new),
            layout::Meaning::QueueHead(pool) => {
                let buffer = self.shared.slots[layout::queue_slot(pool, old) as usize];
                self.hand_over(buffer, Owner::Queue, Owner::Lane, "claim");
            }
            layout::Meaning::RingTail(lane) => {
                let buffer = self.shared.slots[layout::ring_entry(lane, old) as usize];
                self.hand_over(buffer, Owner::Lane, Owner::Ring, "publication");
                self.look_for_evidence(buffer);
            }
            layout::Meaning::RingHead(lane) => {
                let buffer = self.shared.slots[layout::ring_entry(lane, old) as usize];
                self.hand_over(buffer, Owner::Ring, Owner::Host, "drain");
            }
            layout::Meaning::Arena(place) if old != 0 => {
                self.violate(format!("arena: place {place} is written over before it is copied"));
            }
            layout::Meaning::Arena(_) | layout::Meaning::Other => {}
        }
    }

    fn queue_grew(&mut self, pool: usize, old: u8, new: u8) {
        if new != (old + 1) & layout::COUNTER_MASK as u8 {
            self.violate(format!("free queue {pool}: tail went from {old} to {new}"));
            return;
        }
        let buffer = self.shared.slots[layout::queue_slot(pool, old) as usize];
        self.hand_over(buffer, Owner::Host, Owner::Queue, "refill");
        let head = self.shared.slots[layout::queue_head(pool) as usize];
        if (new.wrapping_sub(head)) & layout::COUNTER_MASK as u8 > layout::FREE_SLOTS as u8 {
            self.violate(format!("free queue {pool} holds more than it has slots"));
        }
    }

    /// What a buffer counts must be there when it is published.
    fn look_for_evidence(&mut self, buffer: u8) {
        if !self.tracks_records {
            return;
        }
        let buffer = usize::from(buffer) - 1;
        let slots = &self.shared.slots;
        let count = slots[layout::count(buffer) as usize];
        if let Some(index) = (0..count).find(|&index| slots[layout::record(buffer, index) as usize] == 0) {
            self.violate(format!("evidence: buffer {buffer} is published without its record {index}"));
        }
    }

    fn hand_over(&mut self, buffer: u8, from: Owner, to: Owner, what: &str) {
        let Some(index) = buffer.checked_sub(1).map(usize::from).filter(|&index| index < BUFFERS) else {
            self.violate(format!("{what} of no buffer ({buffer})"));
            return;
        };
        let owner = self.shared.owners[index];
        if owner != from {
            self.violate(format!("double ownership: {what} of buffer {index}, which {owner:?} holds"));
        }
        self.shared.owners[index] = to;
    }
}

/// A word: tracked, or one that plays no part and never changes.
#[derive(Clone, Debug)]
pub struct ModelWord {
    memory: ModelMemory,
    slot: Option<Slot>,
    /// What it reads where it is not part of the state.
    constant: u32,
}

impl ModelWord {
    /// The word in `slot`.
    pub fn at(memory: &ModelMemory, slot: Slot) -> Self {
        Self { memory: memory.clone(), slot: Some(slot), constant: 0 }
    }
}

impl Word for ModelWord {
    fn load_relaxed(&self) -> u32 {
        let Some(slot) = self.slot else { return self.constant };
        let is_visible = matches!(layout::meaning(slot), layout::Meaning::QueueTail(_))
            && !self.memory.inner.borrow().tails_are_private;
        self.memory.load(slot, is_visible)
    }

    fn load_acquire(&self) -> u32 {
        self.slot.map_or(self.constant, |slot| self.memory.load(slot, !layout::is_race_free(slot)))
    }

    fn store_relaxed(&self, value: u32) {
        if let Some(slot) = self.slot {
            self.memory.store(slot, value, false);
        }
    }

    fn store_release(&self, value: u32) {
        if let Some(slot) = self.slot {
            self.memory.store(slot, value, !layout::is_race_free(slot));
        }
    }

    fn try_load(&self) -> Result<u32, Fault> {
        self.memory.transport(|| self.load_acquire())
    }

    fn try_store(&self, value: u32) -> Result<(), Fault> {
        self.memory.transport(|| self.store_release(value))
    }
}

/// A table of words.
pub struct ModelWords {
    memory: ModelMemory,
    first: u64,
    count: u32,
}

impl ModelWords {
    fn address(&self, index: u32) -> u64 {
        assert!(index < self.count, "index {index} in a table of {}", self.count);
        self.first + u64::from(index) * 4
    }
}

impl Words for ModelWords {
    fn get(&self, index: u32) -> u32 {
        let at = self.address(index);
        layout::tracked(at).map_or_else(|| layout::constant(at), |slot| self.memory.load(slot, false))
    }

    fn set(&self, index: u32, value: u32) {
        if let Some(slot) = layout::tracked(self.address(index)) {
            self.memory.store(slot, value, false);
        }
    }
}

/// The payload of one buffer; only its owner may touch it.
pub struct ModelWindow {
    memory: ModelMemory,
    buffer: usize,
}

impl ModelWindow {
    fn check_owner(&self) {
        let mut inner = self.memory.inner.borrow_mut();
        let is_live = !inner.dead && inner.position == inner.log.len();
        if !is_live {
            return;
        }
        let owner = inner.shared.owners[self.buffer];
        // A claim clears the count while the buffer still stands at the head of the lane's own queue.
        if !matches!(owner, Owner::Lane | Owner::Queue) {
            let (buffer, actor) = (self.buffer, inner.actor);
            inner.violate(format!("{actor:?} writes into buffer {buffer}, which {owner:?} holds"));
        }
    }
}

impl Window for ModelWindow {
    fn write(&mut self, offset: u32, bytes: &[u8]) -> bool {
        self.check_owner();
        if self.memory.inner.borrow().tracks_records {
            for (at, slot) in layout::words_of_pair(self.buffer) {
                let byte = at.checked_sub(u64::from(offset)).and_then(|at| bytes.get(at as usize));
                byte.into_iter().for_each(|&byte| self.memory.store(slot, byte.into(), false));
            }
        }
        true
    }

    fn read(&self, _offset: u32, _into: &mut [u8]) -> bool {
        true
    }
}

impl Memory for ModelMemory {
    type Word = ModelWord;
    type Words = ModelWords;
    type Window = ModelWindow;

    fn word(&self, at: DevAddr) -> Result<ModelWord, Fault> {
        let Inner { tracks_records, arena_places, .. } = *self.inner.borrow();
        let constant =
            if at.0 == layout::ARENA_BYTES_AT { arena_places.into() } else { layout::constant(at.0) };
        let slot = layout::tracked(at.0).filter(|&slot| tracks_records || !layout::is_of_records(slot));
        Ok(ModelWord { memory: self.clone(), slot, constant })
    }

    fn words(&self, at: DevAddr, count: u32) -> Result<ModelWords, Fault> {
        Ok(ModelWords { memory: self.clone(), first: at.0, count })
    }

    fn window(&self, at: DevAddr, bytes: u32) -> Result<ModelWindow, Fault> {
        let buffer = layout::buffer_at(at).ok_or(Fault::OutOfRange { at, bytes: u64::from(bytes) })?;
        Ok(ModelWindow { memory: self.clone(), buffer })
    }
}

/// The clock: never late while the host lives; while it is dead, late whenever the explorer says so.
impl Clock for ModelMemory {
    fn now_cycles(&self) -> u64 {
        if !self.inner.borrow().clock_matters {
            return 0;
        }
        let value = self.access(Slot::MAX, true, |inner| {
            inner.late_was_used = true;
            Some(u8::from(inner.late))
        });
        u64::from(value) * layout::LATE_CYCLES
    }

    fn frequency_hz(&self) -> u64 {
        1
    }
}

/// A pipe between two roles of the host.
#[derive(Clone, Debug)]
pub struct ModelPipe {
    memory: ModelMemory,
    first: Slot,
}

impl ModelPipe {
    /// The pipe whose length stands in `first` and whose items follow.
    pub fn at(memory: &ModelMemory, first: Slot) -> Self {
        Self { memory: memory.clone(), first }
    }

    fn push_buffer(&self, buffer: BufferId) {
        let first = self.first as usize;
        // Whoever takes from the pipe may as well be late: a push is never worth a step of its own.
        self.memory.access(self.first, false, |inner| {
            let length = inner.shared.slots[first] as usize;
            if length >= BUFFERS {
                inner.violate(format!("a pipe took a buffer twice ({})", buffer.0));
            } else {
                inner.shared.slots[first + 1 + length] = buffer.0 as u8 + 1;
                inner.shared.slots[first] += 1;
            }
            None
        });
    }

    fn pop_buffer(&self) -> Option<BufferId> {
        let first = self.first as usize;
        let popped = self.memory.access(self.first, true, |inner| {
            let slots = &mut inner.shared.slots;
            if slots[first] == 0 {
                return Some(0);
            }
            let oldest = slots[first + 1];
            slots.copy_within(first + 2..first + 1 + BUFFERS, first + 1);
            slots[first + BUFFERS] = 0;
            slots[first] -= 1;
            Some(oldest)
        });
        popped.checked_sub(1).map(|buffer| BufferId(u32::from(buffer)))
    }
}

impl Pipe<BufferId> for ModelPipe {
    fn push(&self, item: BufferId) {
        self.push_buffer(item);
    }

    fn pop(&self) -> Option<BufferId> {
        self.pop_buffer()
    }
}

impl Pipe<Full> for ModelPipe {
    fn push(&self, item: Full) {
        self.push_buffer(item.buffer);
    }

    fn pop(&self) -> Option<Full> {
        self.pop_buffer().map(|buffer| Full { buffer, sequence: 0, beside: Beside::UNSAID })
    }
}
