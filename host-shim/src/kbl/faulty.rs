//! Plain memory whose control words fail where a test says so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sluice_core::mem::testing::Mishap;
use sluice_core::mem::{AtomicWord, CopyMemory, DevAddr, Fault, Lent, Mapped, Memory, Slab, Word};

/// Plain memory, as the device itself sees it.
pub(super) type Plain = Mapped<Slab<Lent<'static>>>;

/// Memory as the host reaches it. Clones share everything.
#[derive(Clone)]
pub(super) struct Faulty {
    pub(super) plain: Plain,
    mishaps: Arc<Mishaps>,
}

#[derive(Default)]
struct Mishaps {
    next: Mutex<Vec<(DevAddr, Mishap)>>,
    is_cut: AtomicBool,
}

impl Mishaps {
    fn attempt(&self, at: DevAddr) -> Option<Mishap> {
        if self.is_cut.load(Ordering::Relaxed) {
            return Some(Mishap::Refused);
        }
        let mut next = self.next.lock().unwrap();
        let place = next.iter().position(|(of, _)| *of == at)?;
        Some(next.remove(place).1)
    }
}

impl Faulty {
    pub(super) fn over(plain: Plain) -> Self {
        Self { plain, mishaps: Arc::default() }
    }

    /// Lets the next access to the word at `at` fail, behind those that are to fail already.
    pub(super) fn fail(&self, at: DevAddr, mishap: Mishap) {
        self.mishaps.next.lock().unwrap().push((at, mishap));
    }

    /// Whether no word can be reached.
    pub(super) fn cut(&self, is_cut: bool) {
        self.mishaps.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

impl Memory for Faulty {
    type Word = FaultyWord;
    type Words = <Plain as Memory>::Words;
    type Window = <Plain as Memory>::Window;

    fn word(&self, at: DevAddr) -> Result<FaultyWord, Fault> {
        Ok(FaultyWord { word: self.plain.word(at)?, at, mishaps: Arc::clone(&self.mishaps) })
    }

    fn words(&self, at: DevAddr, count: u32) -> Result<Self::Words, Fault> {
        self.plain.words(at, count)
    }

    fn window(&self, at: DevAddr, bytes: u32) -> Result<Self::Window, Fault> {
        self.plain.window(at, bytes)
    }
}

impl CopyMemory for Faulty {
    fn copy(&self, from: DevAddr, to: DevAddr, bytes: u64) -> Result<(), Fault> {
        self.plain.copy(from, to, bytes)
    }

    fn read_bytes(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        self.plain.read_bytes(from, into)
    }

    fn write_bytes(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.plain.write_bytes(to, bytes)
    }
}

/// A control word of [`Faulty`] memory.
pub(super) struct FaultyWord {
    word: AtomicWord<Lent<'static>>,
    at: DevAddr,
    mishaps: Arc<Mishaps>,
}

impl Word for FaultyWord {
    fn load_relaxed(&self) -> u32 {
        self.word.load_relaxed()
    }

    fn load_acquire(&self) -> u32 {
        self.word.load_acquire()
    }

    fn store_relaxed(&self, value: u32) {
        self.word.store_relaxed(value);
    }

    fn store_release(&self, value: u32) {
        self.word.store_release(value);
    }

    fn try_load(&self) -> Result<u32, Fault> {
        match self.mishaps.attempt(self.at) {
            None => Ok(self.load_acquire()),
            Some(_) => Err(Fault::Transport { at: self.at }),
        }
    }

    fn try_store(&self, value: u32) -> Result<(), Fault> {
        let mishap = self.mishaps.attempt(self.at);
        if mishap != Some(Mishap::Refused) {
            self.store_release(value);
        }
        if mishap.is_some() { Err(Fault::Transport { at: self.at }) } else { Ok(()) }
    }
}
