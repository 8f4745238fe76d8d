//! A memory double for one thread: keeps words in cells, logs every store, and lets chosen accesses fail.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::vec::Vec;

use crate::mem::{DevAddr, Fault, Memory, Window, Word, Words};

/// One store, as its maker ordered it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logged {
    /// A word or table entry, stored without order.
    Relaxed {
        /// Where.
        at: DevAddr,
        /// What.
        value: u32,
    },
    /// A word, stored after everything before it.
    Release {
        /// Where.
        at: DevAddr,
        /// What.
        value: u32,
    },
    /// Bytes of a payload window.
    Payload {
        /// Where.
        at: DevAddr,
    },
}

impl Logged {
    /// Where it was stored.
    pub fn at(&self) -> DevAddr {
        match *self {
            Self::Relaxed { at, .. } | Self::Release { at, .. } | Self::Payload { at } => at,
        }
    }
}

/// How an access fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mishap {
    /// Nothing happens.
    Refused,
    /// A store takes effect all the same: the transport lost only the answer.
    AnswerLost,
}

struct Shared {
    cells: Vec<Cell<u32>>,
    log: RefCell<Vec<Logged>>,
    fallible: Cell<u32>,
    mishap: Cell<Option<(u32, Mishap)>>,
}

/// Device memory that a test can watch and break. Clones share everything.
#[derive(Clone)]
pub struct Double {
    base: DevAddr,
    shared: Rc<Shared>,
}

impl Double {
    /// At least `bytes` zeroed bytes from `base` on, a multiple of 4.
    pub fn new(base: DevAddr, bytes: u64) -> Self {
        let shared = Shared {
            cells: (0..bytes.div_ceil(4)).map(|_| Cell::new(0)).collect(),
            log: RefCell::default(),
            fallible: Cell::default(),
            mishap: Cell::default(),
        };
        Self { base, shared: Rc::new(shared) }
    }

    /// Forgets and returns what was stored so far, in order.
    pub fn take_log(&self) -> Vec<Logged> {
        self.shared.log.take()
    }

    /// Accesses so far that a transport could have failed.
    pub fn fallible_accesses(&self) -> u32 {
        self.shared.fallible.get()
    }

    /// Lets the `later`-th such access from now fail, 0 being the next. One failure can be pending at a time.
    pub fn fail_later(&self, later: u32, mishap: Mishap) {
        self.shared.mishap.set(Some((self.fallible_accesses() + later, mishap)));
    }

    /// The values of all words, to compare two courses of events.
    pub fn snapshot(&self) -> Vec<u32> {
        self.shared.cells.iter().map(Cell::get).collect()
    }

    fn attempt(&self) -> Option<Mishap> {
        let number = self.shared.fallible.replace(self.fallible_accesses() + 1);
        let (due, mishap) = self.shared.mishap.get()?;
        (number == due).then(|| {
            self.shared.mishap.set(None);
            mishap
        })
    }

    fn cells(&self, at: DevAddr, words: u32) -> Result<Cells, Fault> {
        let bytes = u64::from(words) * 4;
        if !at.0.is_multiple_of(4) {
            return Err(Fault::Misaligned { at, align: 4 });
        }
        let offset = at.0.checked_sub(self.base.0);
        match offset.and_then(|offset| offset.checked_add(bytes)) {
            Some(end) if end <= self.shared.cells.len() as u64 * 4 => {
                Ok(Cells { memory: self.clone(), at, words })
            }
            _ => Err(Fault::OutOfRange { at, bytes }),
        }
    }
}

impl Memory for Double {
    type Word = Cells;
    type Words = Cells;
    type Window = Cells;

    fn word(&self, at: DevAddr) -> Result<Cells, Fault> {
        self.cells(at, 1)
    }

    fn words(&self, at: DevAddr, count: u32) -> Result<Cells, Fault> {
        self.cells(at, count)
    }

    fn window(&self, at: DevAddr, bytes: u32) -> Result<Cells, Fault> {
        self.cells(at, bytes.div_ceil(4))
    }
}

/// A control word, a table or a payload window of a [`Double`].
pub struct Cells {
    memory: Double,
    at: DevAddr,
    words: u32,
}

impl Cells {
    fn at(&self, index: u32) -> DevAddr {
        self.at.offset(u64::from(index) * 4)
    }

    fn cell(&self, index: u32) -> Option<&Cell<u32>> {
        let first = ((self.at.0 - self.memory.base.0) / 4) as usize;
        (index < self.words).then(|| &self.memory.shared.cells[first + index as usize])
    }

    fn load(&self, index: u32) -> u32 {
        self.cell(index).map_or(0, Cell::get)
    }

    fn store(&self, index: u32, value: u32, logged: Logged) {
        if let Some(cell) = self.cell(index) {
            cell.set(value);
            self.memory.shared.log.borrow_mut().push(logged);
        }
    }

    fn try_load(&self, index: u32) -> Result<u32, Fault> {
        match self.memory.attempt() {
            None => Ok(self.load(index)),
            Some(_) => Err(Fault::Transport { at: self.at(index) }),
        }
    }

    fn try_store(&self, store: impl FnOnce(), index: u32) -> Result<(), Fault> {
        let mishap = self.memory.attempt();
        if mishap != Some(Mishap::Refused) {
            store();
        }
        if mishap.is_some() { Err(Fault::Transport { at: self.at(index) }) } else { Ok(()) }
    }
}

impl Word for Cells {
    fn load_relaxed(&self) -> u32 {
        self.load(0)
    }

    fn load_acquire(&self) -> u32 {
        self.load(0)
    }

    fn store_relaxed(&self, value: u32) {
        self.store(0, value, Logged::Relaxed { at: self.at, value });
    }

    fn store_release(&self, value: u32) {
        self.store(0, value, Logged::Release { at: self.at, value });
    }

    fn try_load(&self) -> Result<u32, Fault> {
        self.try_load(0)
    }

    fn try_store(&self, value: u32) -> Result<(), Fault> {
        self.try_store(|| self.store_release(value), 0)
    }
}

impl Words for Cells {
    fn get(&self, index: u32) -> u32 {
        self.load(index)
    }

    fn set(&self, index: u32, value: u32) {
        self.store(index, value, Logged::Relaxed { at: self.at(index), value });
    }

    fn try_get(&self, index: u32) -> Result<u32, Fault> {
        self.try_load(index)
    }

    fn try_set(&self, index: u32, value: u32) -> Result<(), Fault> {
        self.try_store(|| self.set(index, value), index)
    }
}

impl Window for Cells {
    fn write(&mut self, offset: u32, bytes: &[u8]) -> bool {
        let Some(place) = self.bytes(offset, bytes.len()) else { return false };
        for (byte, &value) in place.zip(bytes) {
            let cell = &self.memory.shared.cells[byte / 4];
            let mut word = cell.get().to_le_bytes();
            word[byte % 4] = value;
            cell.set(u32::from_le_bytes(word));
        }
        let at = self.at.offset(u64::from(offset));
        self.memory.shared.log.borrow_mut().push(Logged::Payload { at });
        true
    }

    fn read(&self, offset: u32, into: &mut [u8]) -> bool {
        let Some(place) = self.bytes(offset, into.len()) else { return false };
        for (byte, value) in place.zip(into) {
            *value = self.memory.shared.cells[byte / 4].get().to_le_bytes()[byte % 4];
        }
        true
    }
}

impl Cells {
    /// The bytes of the memory that `len` bytes at `offset` are, if all of them are the window's.
    fn bytes(&self, offset: u32, len: usize) -> Option<core::ops::Range<usize>> {
        let end = (offset as usize).checked_add(len)?;
        let first = (self.at.0 - self.memory.base.0) as usize;
        (end <= self.words as usize * 4).then(|| first + offset as usize..first + end)
    }
}
