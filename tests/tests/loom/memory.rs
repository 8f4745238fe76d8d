//! Device memory made of loom's cells: atomics for control words, checked cells for tables and payload, so that an access to
//! them that no control word orders is reported as a data race.
//!
//! Tables are read and written as relaxed words on a device. Here they are checked as if they were plain memory: a word
//! that one side may overwrite while the other reads it would be a mistake of the protocol, whatever the access.
//!
//! loom's search has two gaps that protocols like this one fall into; both are closed here.
//!
//! * Of the accesses to a word it remembers the last. A thread that loads a word and then stores it hides the peers' earlier
//!   loads, and the run in which the store comes first is never tried. So what an owner reads back is not asked of loom: it is
//!   what the owner stored last. A signal, which a lane looks at before it stores, has a mark for each view: looking at
//!   the signal stores one's own mark, storing the signal looks at all others.
//! * Stores of two threads to one word stay without an order between them, so each could find its own in the word for ever.
//!   So stores to a signal exchange its value.
//!
//! All threads of a model run on one thread of the machine, so plain reference counting shares it.

use std::cell::{self, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use loom::cell::Cell;
use loom::sync::atomic::{AtomicU32, Ordering};
use sluice_core::mem::{DevAddr, Fault, Memory, Window, Word, Words};
use sluice_core::producer::tiny;

/// An order left out on purpose: the mistake that a test must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Weakened {
    /// Release stores to this word are relaxed.
    Stores(DevAddr),
    /// Acquire loads of this word are relaxed.
    Loads(DevAddr),
}

/// The words that both sides store.
const SIGNALS: [DevAddr; 2] = [tiny::at(tiny::GATES.rq_contended), tiny::at(tiny::GATES.fq_contended)];

/// A word with what its owner stored last, and the marks of its views if it is a signal.
struct Shared {
    value: AtomicU32,
    stored: cell::Cell<u32>,
    is_signal: bool,
    marks: RefCell<Vec<Rc<AtomicU32>>>,
}

#[derive(Default)]
struct Cells {
    words: RefCell<HashMap<DevAddr, Rc<Shared>>>,
    plain: RefCell<HashMap<DevAddr, Rc<Cell<u32>>>>,
    weakened: Option<Weakened>,
}

/// One model's memory. Cells come into being when they are first asked for; that must be before other threads start.
#[derive(Clone, Default)]
pub(crate) struct LoomMemory(Rc<Cells>);

impl LoomMemory {
    /// Memory that keeps every order except `weakened`.
    pub(crate) fn new(weakened: Option<Weakened>) -> Self {
        Self(Rc::new(Cells { weakened, ..Cells::default() }))
    }

    fn plain(&self, at: DevAddr, words: u32) -> Vec<Rc<Cell<u32>>> {
        let mut cells = self.0.plain.borrow_mut();
        let mut cell = |at| Rc::clone(cells.entry(at).or_insert_with(|| Rc::new(Cell::new(0))));
        (0..words).map(|index| cell(at.offset(u64::from(index) * 4))).collect()
    }
}

impl Memory for LoomMemory {
    type Word = LoomWord;
    type Words = LoomWords;
    type Window = LoomWindow;

    fn word(&self, at: DevAddr) -> Result<LoomWord, Fault> {
        let mut words = self.0.words.borrow_mut();
        let shared = Rc::clone(words.entry(at).or_insert_with(|| {
            Rc::new(Shared {
                value: AtomicU32::new(0),
                stored: cell::Cell::new(0),
                is_signal: SIGNALS.contains(&at),
                marks: RefCell::default(),
            })
        }));
        let mark = shared.is_signal.then(|| {
            let mark = Rc::new(AtomicU32::new(0));
            shared.marks.borrow_mut().push(Rc::clone(&mark));
            mark
        });
        let order = |whole, without| if self.0.weakened == Some(without) { Ordering::Relaxed } else { whole };
        Ok(LoomWord {
            shared,
            mark,
            acquire: order(Ordering::Acquire, Weakened::Loads(at)),
            release: order(Ordering::Release, Weakened::Stores(at)),
        })
    }

    fn words(&self, at: DevAddr, count: u32) -> Result<LoomWords, Fault> {
        Ok(LoomWords(self.plain(at, count)))
    }

    fn window(&self, at: DevAddr, bytes: u32) -> Result<LoomWindow, Fault> {
        Ok(LoomWindow(self.plain(at, bytes / 4)))
    }
}

/// A view of a control word.
pub(crate) struct LoomWord {
    shared: Rc<Shared>,
    mark: Option<Rc<AtomicU32>>,
    acquire: Ordering,
    release: Ordering,
}

impl LoomWord {
    fn store(&self, value: u32, order: Ordering) {
        self.shared.stored.set(value);
        match &self.mark {
            None => self.shared.value.store(value, order),
            Some(own) => {
                for mark in self.shared.marks.borrow().iter().filter(|mark| !Rc::ptr_eq(mark, own)) {
                    mark.fetch_add(1, Ordering::Relaxed);
                }
                self.shared.value.swap(value, order);
            }
        }
    }
}

impl Word for LoomWord {
    fn load_relaxed(&self) -> u32 {
        self.shared.stored.get()
    }

    fn load_acquire(&self) -> u32 {
        if let Some(mark) = &self.mark {
            mark.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.value.load(self.acquire)
    }

    fn store_relaxed(&self, value: u32) {
        self.store(value, Ordering::Relaxed);
    }

    fn store_release(&self, value: u32) {
        self.store(value, self.release);
    }
}

/// A published table.
pub(crate) struct LoomWords(Vec<Rc<Cell<u32>>>);

impl Words for LoomWords {
    fn get(&self, index: u32) -> u32 {
        self.0.get(index as usize).map_or(0, |cell| cell.get())
    }

    fn set(&self, index: u32, value: u32) {
        if let Some(cell) = self.0.get(index as usize) {
            cell.set(value);
        }
    }
}

/// Payload that one side owns at a time.
pub(crate) struct LoomWindow(Vec<Rc<Cell<u32>>>);

impl Window for LoomWindow {
    fn write(&mut self, offset: u32, bytes: &[u8]) -> bool {
        let (words, rest) = bytes.as_chunks();
        assert!(offset.is_multiple_of(4) && rest.is_empty(), "payload is written in whole words");
        let cells = self.0.iter().skip(offset as usize / 4);
        cells.zip(words).for_each(|(cell, &word)| cell.set(u32::from_le_bytes(word)));
        offset as usize / 4 + words.len() <= self.0.len()
    }

    fn read(&self, offset: u32, into: &mut [u8]) -> bool {
        let (words, rest) = into.as_chunks_mut();
        assert!(offset.is_multiple_of(4) && rest.is_empty(), "payload is read in whole words");
        let fits = offset as usize / 4 + words.len() <= self.0.len();
        let cells = self.0.iter().skip(offset as usize / 4);
        cells.zip(words).for_each(|(cell, word)| *word = cell.get().to_le_bytes());
        fits
    }
}
