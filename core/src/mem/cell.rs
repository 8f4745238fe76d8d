//! Control words typed by who may write them.
//!
//! | cell | this side | other side | order |
//! |---|---|---|---|
//! | [`Own`] | stores, reads back its own value | loads | release store ↔ the other side's acquire load |
//! | [`Tally`] | stores, keeps its value at hand | loads | as [`Own`] |
//! | [`Peer`] | loads | stores | acquire load ↔ the other side's release store |
//! | [`Raise`] | stores 1 if it reads 0 | stores 0 | release; the level is re-raised, so a lost store costs one look |
//! | [`Consume`] | stores 0 | stores 1 | as above, from the host's side |
//!
//! [`OwnCount`] is a 64-bit count in two [`Own`] words that nothing publishes. [`LongOwn`] and [`LongPeer`] are 64-bit values in two such words, each published by itself. A reader reads high, low,
//! high; what it reads while the value changes may be torn, but then it also sees all that was stored before the change.

use super::{DevAddr, Fault, Memory, Word};

/// A word that only this side stores.
#[derive(Clone, Debug)]
pub struct Own<W>(W);

impl<W: Word> Own<W> {
    /// Takes `word` as this side's own. The wire contract names exactly one writer for it; being that side is the caller's
    /// claim.
    pub fn new(word: W) -> Self {
        Self(word)
    }

    /// The value this side stored last.
    pub fn get(&self) -> u32 {
        self.0.load_relaxed()
    }

    /// Stores without order; something stored later publishes it.
    pub fn set(&self, value: u32) {
        self.0.store_relaxed(value);
    }

    /// Stores after everything before it; partner of [`Peer::observe`].
    pub fn publish(&self, value: u32) {
        self.0.store_release(value);
    }

    /// [`publish`](Own::publish) over a transport that can fail.
    pub fn try_publish(&self, value: u32) -> Result<(), Fault> {
        self.0.try_store(value)
    }

    /// Reads back what this side, or an earlier holder of its role, left in the word.
    pub fn recover(&self) -> Result<u32, Fault> {
        self.0.try_load()
    }
}

/// A word that only this side stores, with its value at hand. Where the other side polls, loading one's own word back would
/// fetch its line from there each time.
#[derive(Debug)]
pub struct Tally<W> {
    word: Own<W>,
    value: u32,
}

impl<W: Word> Tally<W> {
    /// Takes `word` as this side's own, with what is in it: an earlier holder of the role may have left something.
    ///
    /// # Errors
    /// [`Fault`] when it can't be read.
    pub fn take(word: W) -> Result<Self, Fault> {
        let word = Own::new(word);
        let value = word.recover()?;
        Ok(Self { word, value })
    }

    /// The value this side stored last.
    pub fn get(&self) -> u32 {
        self.value
    }

    /// Stores after everything before it; partner of [`Peer::observe`].
    pub fn publish(&mut self, value: u32) {
        self.word.publish(value);
        self.value = value;
    }

    /// [`publish`](Tally::publish) over a transport that can fail. The value stays as it was then.
    pub fn try_publish(&mut self, value: u32) -> Result<(), Fault> {
        self.word.try_publish(value)?;
        self.value = value;
        Ok(())
    }
}

/// A word that only the other side stores. What it reads is the other side's claim: validate before use.
#[derive(Clone, Debug)]
pub struct Peer<W>(W);

impl<W: Word> Peer<W> {
    /// Views `word` as the other side's.
    pub fn new(word: W) -> Self {
        Self(word)
    }

    /// Loads before everything after it; partner of [`Own::publish`].
    pub fn observe(&self) -> u32 {
        self.0.load_acquire()
    }

    /// [`observe`](Peer::observe) over a transport that can fail.
    pub fn try_observe(&self) -> Result<u32, Fault> {
        self.0.try_load()
    }
}

/// A contention signal as the device sees it.
#[derive(Clone, Debug)]
pub struct Raise<W>(W);

impl<W: Word> Raise<W> {
    /// Views `word` as a signal to raise.
    pub fn new(word: W) -> Self {
        Self(word)
    }

    /// Stores 1 if the word reads 0. Called on every look that finds the queue full or empty: the host clears the word
    /// blindly, so a signal sent only once could be lost for ever.
    pub fn raise(&self) {
        if self.0.load_acquire() == 0 {
            self.0.store_release(1);
        }
    }

    /// Whether the signal still stands; partner of [`Consume::clear`].
    pub fn is_raised(&self) -> bool {
        self.0.load_acquire() != 0
    }
}

/// A contention signal as the host sees it.
#[derive(Clone, Debug)]
pub struct Consume<W>(W);

impl<W: Word> Consume<W> {
    /// Views `word` as a signal to consume.
    pub fn new(word: W) -> Self {
        Self(word)
    }

    /// Whether the device asks for service; any non-zero value counts.
    pub fn is_raised(&self) -> Result<bool, Fault> {
        Ok(self.0.try_load()? != 0)
    }

    /// Stores 0. A raise that races with it is repeated by the lane's next look.
    pub fn clear(&self) -> Result<(), Fault> {
        self.0.try_store(0)
    }
}

/// A 64-bit count that only this side stores, without order: exact for a reader that knows it to stand still.
#[derive(Clone, Debug)]
pub struct OwnCount<W> {
    low: Own<W>,
    high: Own<W>,
}

impl<W: Word> OwnCount<W> {
    /// The count whose low word lies at `at`.
    pub fn at<M: Memory<Word = W>>(memory: &M, at: DevAddr) -> Result<Self, Fault> {
        Ok(Self { low: Own::new(memory.word(at)?), high: Own::new(memory.word(at.offset(4))?) })
    }

    /// Stores both halves.
    pub fn set(&self, value: u64) {
        self.low.set(value as u32);
        self.high.set((value >> 32) as u32);
    }
}

/// A 64-bit address that only this side stores, published by a 32-bit word stored after it.
#[derive(Clone, Debug)]
pub struct LongOwn<W> {
    low: W,
    high: W,
}

impl<W: Word> LongOwn<W> {
    /// The value whose low word lies at `at`.
    pub fn at<M: Memory<Word = W>>(memory: &M, at: DevAddr) -> Result<Self, Fault> {
        Ok(Self { low: memory.word(at)?, high: memory.word(at.offset(4))? })
    }

    /// Stores both halves, each after everything before it: a reader that finds the low half also finds the high one, and
    /// whoever finds either half changed, or the value torn, finds what was stored before.
    pub fn publish(&self, value: DevAddr) {
        let (low, high) = value.split();
        self.high.store_release(high);
        self.low.store_release(low);
    }
}

/// A 64-bit address that only the other side stores.
#[derive(Clone, Debug)]
pub struct LongPeer<W> {
    low: W,
    high: W,
}

impl<W: Word> LongPeer<W> {
    /// How often a torn read is repeated before the value last read is returned; the caller looks it up in a table of
    /// known addresses, so a torn value is refused there.
    const RETRIES: u32 = 4;

    /// The value whose low word lies at `at`.
    pub fn at<M: Memory<Word = W>>(memory: &M, at: DevAddr) -> Result<Self, Fault> {
        Ok(Self { low: memory.word(at)?, high: memory.word(at.offset(4))? })
    }

    /// Reads high, low, high until both high halves agree.
    pub fn try_observe(&self) -> Result<DevAddr, Fault> {
        let mut high = self.high.try_load()?;
        for _ in 0..Self::RETRIES {
            let low = self.low.try_load()?;
            let again = self.high.try_load()?;
            if again == high {
                return Ok(DevAddr::join(low, high));
            }
            high = again;
        }
        Ok(DevAddr::join(self.low.try_load()?, high))
    }
}
