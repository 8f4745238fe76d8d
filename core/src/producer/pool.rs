//! A pool: one stream of records with the buffer being filled and its accounts.

use core::marker::PhantomData;

use zerocopy::IntoBytes;

use super::{
    Beside, CountWords, FreeLook, FreeQueue, Hooks, PoolSetup, PoolWords, ReadyEntry, Records, Subsystem,
};
use crate::layout::extension::DROP_CAUSES;
use crate::layout::{Instance, PoolKind};
use crate::mem::{DevAddr, Fault, Memory, Window};

/// How far ahead of a record memory is told of the next ones. The host has read the lines of a buffer that comes back, and a
/// core that must ask for each when it stores to it waits a good part of its time.
const AHEAD_BYTES: u32 = 512;

/// Why records were lost on the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum DropCause {
    /// The deadline passed with no sign of the host, or the host had detached.
    HostGone,
    /// The stream has no buffer and was not allowed to wait for one.
    NoBuffer,
    /// What the other side wrote could not be used.
    Corrupt,
    /// A core did not finish within the operation timeout.
    CoreBusy,
    /// What a core had left belonged to another task.
    Mismatch,
}

impl DropCause {
    /// All causes, in the order of the extension block's words.
    pub const ALL: [Self; DROP_CAUSES] =
        [Self::HostGone, Self::NoBuffer, Self::Corrupt, Self::CoreBusy, Self::Mismatch];

    /// Index into [`DropCause::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Losses by cause, in the order of [`DropCause::ALL`].
pub type DropCounts = [u64; DROP_CAUSES];

/// A full buffer that has made room for the next and is not published yet, because its last record may still be under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Stash {
    /// The buffer; null when there is none.
    pub buffer: DevAddr,
    /// Records in it.
    pub count: u32,
    /// Its sequence number.
    pub sequence: u32,
}

/// What a pool remembers between calls; plain data, so that a checker can store and compare it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PoolState {
    /// The buffer being filled; null when there is none.
    pub buffer: DevAddr,
    /// Records in it.
    pub count: u32,
    /// Its sequence number, or the one the next buffer will get.
    pub sequence: u32,
    /// The full buffer before it, if that is not published yet.
    pub stash: Stash,
    /// Attempts to record but for one per record of the current buffer: that buffer's count stands for those, so that an
    /// append counts once. Wraps.
    pub attempts_elsewhere: u64,
    /// Slots that chains took beyond one per record.
    pub overflow: u64,
    /// Losses by cause.
    pub dropped: DropCounts,
    /// Buffers published.
    pub published: u64,
    /// Fewest buffers seen waiting when one was claimed.
    pub free_low_water: u32,
}

impl PoolState {
    /// Attempts to record.
    #[inline]
    pub fn total(&self) -> u64 {
        self.attempts_elsewhere.wrapping_add(u64::from(self.count))
    }

    /// Another number of records in the current buffer, of as many attempts as before.
    fn recount(&mut self, count: u32) {
        self.attempts_elsewhere = self.total().wrapping_sub(u64::from(count));
        self.count = count;
    }

    /// Losses of all causes.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

/// What an append did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Append {
    /// The record is in the buffer.
    Stored,
    /// The record is in the buffer, which is full now: switch before the next.
    Full,
    /// There is no buffer with room; nothing was stored. Switch and append again.
    NoBuffer,
}

/// A slot of the current buffer that is not committed yet.
pub struct Slot<'a, W> {
    window: &'a mut W,
    at: u32,
    bytes: u32,
}

impl<W: Window> Slot<'_, W> {
    /// Copies `bytes` to `offset` inside the slot. What does not fit is not written, and reported as `false`.
    pub fn write(&mut self, offset: u32, bytes: &[u8]) -> bool {
        let fits = (self.bytes as usize).checked_sub(bytes.len()).is_some_and(|most| offset as usize <= most);
        fits && self.window.write(self.at + offset, bytes)
    }
}

/// One stream of records of kind `K`, written by one lane.
pub struct Pool<M: Memory, K: Records, S> {
    memory: M,
    words: PoolWords<M>,
    free: FreeQueue<M>,
    instance: Instance,
    window: Option<M::Window>,
    stashed: Option<M::Window>,
    hooks: K::Hooks<M>,
    state: PoolState,
    kind: PhantomData<fn() -> S>,
}

impl<M: Memory, K: Records, S: Subsystem> Pool<M, K, S> {
    const BYTES: u32 = K::LAYOUT.bytes as u32;
    const COUNT_AT: u32 = K::LAYOUT.count as u32;
    const RECORDS_AT: u32 = K::LAYOUT.records as u32;
    const RECORD_BYTES: u32 = size_of::<K::Record>() as u32;

    /// The pool at `setup`, empty and without a buffer. Clears the words that this side owns, except the free queue's head,
    /// which goes on from where it stands.
    ///
    /// # Errors
    /// [`Fault`] when the pool lies outside device memory.
    pub fn attach(memory: &M, setup: &PoolSetup, counts: Option<CountWords<M::Word>>) -> Result<Self, Fault> {
        const { assert!(size_of::<K::Record>() == K::LAYOUT.record_bytes, "a record fills its slot") };
        Ok(Self {
            free: FreeQueue::attach(memory, setup, S::COUNTER_MASK)?,
            hooks: K::Hooks::attach(memory, setup)?,
            words: PoolWords::attach(memory, setup, counts)?,
            memory: memory.clone(),
            instance: setup.instance,
            window: None,
            stashed: None,
            state: PoolState { free_low_water: setup.free_slots, ..PoolState::default() },
            kind: PhantomData,
        })
    }

    /// Counts an attempt to record. Comes first, so that an attempt is never lost from the total.
    #[inline]
    pub fn count_attempt(&mut self) {
        self.state.attempts_elsewhere = self.state.attempts_elsewhere.wrapping_add(1);
        self.words.store_total(self.state.total());
    }

    /// Counts an attempt to record, and stores `record` in the current buffer, if there is one with room.
    #[inline]
    pub fn append(&mut self, record: &K::Record) -> Append {
        self.words.store_total(self.state.total().wrapping_add(1));
        let stored = self.store(record);
        if stored == Append::NoBuffer {
            self.state.attempts_elsewhere = self.state.attempts_elsewhere.wrapping_add(1);
        }
        stored
    }

    /// Stores `record`, of an attempt that is counted already, in the current buffer, if there is one with room.
    #[inline]
    pub fn try_append(&mut self, record: &K::Record) -> Append {
        let stored = self.store(record);
        if stored != Append::NoBuffer {
            self.state.attempts_elsewhere = self.state.attempts_elsewhere.wrapping_sub(1);
        }
        stored
    }

    /// Stores `record`, whose attempt the buffer's count stands for from then on.
    #[inline]
    fn store(&mut self, record: &K::Record) -> Append {
        let Some(window) = self.window.as_mut() else { return Append::NoBuffer };
        let index = self.state.count;
        if index >= K::LAYOUT.capacity {
            return Append::NoBuffer;
        }
        let slot_at = Self::RECORDS_AT + index * Self::RECORD_BYTES;
        window.expect_write(slot_at + AHEAD_BYTES);
        window.write_both((slot_at, record.as_bytes()), (Self::COUNT_AT, &(index + 1).to_le_bytes()));
        self.state.count = index + 1;
        if index + 1 == K::LAYOUT.capacity { Append::Full } else { Append::Stored }
    }

    /// Slots that the current buffer still has.
    pub fn room(&self) -> u32 {
        if self.window.is_some() { K::LAYOUT.capacity - self.state.count } else { 0 }
    }

    /// Slot `number` of those that are still free. Filling it commits nothing.
    pub(super) fn slot(&mut self, number: u32) -> Option<Slot<'_, M::Window>> {
        let index = self.state.count.checked_add(number).filter(|&index| index < K::LAYOUT.capacity)?;
        let at = Self::RECORDS_AT + index * Self::RECORD_BYTES;
        Some(Slot { window: self.window.as_mut()?, at, bytes: Self::RECORD_BYTES })
    }

    /// Commits the next `slots` slots, at most those that have room, as one record.
    pub(super) fn commit(&mut self, slots: u32) -> Append {
        let Some(window) = self.window.as_mut() else { return Append::NoBuffer };
        self.state.recount(self.state.count + slots);
        window.write(Self::COUNT_AT, &self.state.count.to_le_bytes());
        if slots > 1 {
            self.state.overflow = self.state.overflow.wrapping_add(u64::from(slots - 1));
            self.words.store_overflow(self.state.overflow);
        }
        if self.state.count == K::LAYOUT.capacity { Append::Full } else { Append::Stored }
    }

    /// What pools of this kind do beyond the common.
    pub fn hooks(&mut self) -> &mut K::Hooks<M> {
        &mut self.hooks
    }

    /// The stashed buffer, if there is one, to look for its last record.
    pub fn stashed(&self) -> Option<&M::Window> {
        self.stashed.as_ref()
    }

    /// Whether a buffer is being filled.
    pub fn has_buffer(&self) -> bool {
        self.window.is_some()
    }

    /// What the pool remembers.
    pub fn state(&self) -> PoolState {
        self.state
    }

    /// Puts the pool into `state`, for a checker that explores from many states.
    ///
    /// # Errors
    /// [`Fault`] when the state names a buffer outside device memory.
    pub fn restore(&mut self, state: PoolState) -> Result<(), Fault> {
        let window = |buffer: DevAddr| {
            (!buffer.is_null()).then(|| self.memory.window(buffer, Self::BYTES)).transpose()
        };
        (self.window, self.stashed) = (window(state.buffer)?, window(state.stash.buffer)?);
        self.state = state;
        Ok(())
    }

    /// The entry that publishes the current buffer.
    pub(super) fn entry(&self) -> ReadyEntry {
        ReadyEntry {
            instance: self.instance,
            kind: K::KIND,
            buffer: self.state.buffer,
            sequence: self.state.sequence,
            beside: self.hooks.beside(),
        }
    }

    /// The entry that publishes the stashed buffer.
    pub(super) fn stash_entry(&self) -> ReadyEntry {
        let Stash { buffer, sequence, .. } = self.state.stash;
        ReadyEntry { instance: self.instance, kind: K::KIND, buffer, sequence, beside: Beside::UNSAID }
    }

    /// Lets go of the stashed buffer, which was just published.
    pub(super) fn stash_released(&mut self) {
        if let Some(counts) = &self.words.counts {
            counts.stash.publish(DevAddr::NULL);
        }
        self.stashed = None;
        self.state.stash = Stash::default();
        self.state.published += 1;
    }

    /// Lets go of the buffer that was just published. The pointer word is cleared after the tail store, so the buffer is
    /// never invisible.
    pub(super) fn released(&mut self) {
        self.window = None;
        self.state.buffer = DevAddr::NULL;
        self.state.recount(0);
        self.state.sequence = self.state.sequence.wrapping_add(1) & S::COUNTER_MASK;
        self.state.published += 1;
    }

    /// Stores the pointer word.
    pub(super) fn clear_current(&self) {
        self.words.current.publish(DevAddr::NULL);
    }

    /// Looks at the free queue and takes its oldest buffer if there is one.
    pub(super) fn try_claim(&mut self) -> FreeLook {
        self.claim(|_| ())
    }

    /// Takes the oldest buffer out of the free queue if there is one, and puts the current one into the stash.
    pub(super) fn try_rotate(&mut self) -> FreeLook {
        self.claim(Self::put_into_stash)
    }

    /// The stash shows the buffer before `current` shows another.
    fn put_into_stash(&mut self) {
        let PoolState { buffer, count, sequence, .. } = self.state;
        if let Some(counts) = &self.words.counts {
            counts.stash_sequence.set(sequence);
            counts.stash.publish(buffer);
        }
        self.stashed = self.window.take();
        self.state.stash = Stash { buffer, count, sequence };
        self.state.sequence = sequence.wrapping_add(1) & S::COUNTER_MASK;
    }

    #[inline]
    fn claim(&mut self, make_room: impl FnOnce(&mut Self)) -> FreeLook {
        let look = self.free.look();
        let FreeLook::Buffer { address, waiting } = look else { return look };
        let window = if address.is_null() { None } else { self.memory.window(address, Self::BYTES).ok() };
        let Some(mut window) = window else {
            // An address that cannot be used is stepped over, so that the next look finds the next slot.
            self.free.advance();
            return FreeLook::Corrupt { tail: self.free.tail(), head: address.0 as u32 };
        };
        if !S::RULES.ownership_order {
            self.free.advance();
        }
        window.write(Self::COUNT_AT, &0u32.to_le_bytes());
        Self::clear_evidence(&mut window);
        self.hooks.claimed(&mut window);
        make_room(self);
        self.words.current.publish(address);
        // A core that goes by the sequence finds the buffer by it.
        self.words.sequence.publish(self.state.sequence);
        if S::RULES.ownership_order {
            // Partner of the refiller's acquire load, and of an attaching host's: `current` shows the buffer by now.
            self.free.advance();
        }
        self.window = Some(window);
        self.state.buffer = address;
        self.state.recount(0);
        if waiting < self.state.free_low_water {
            self.state.free_low_water = waiting;
            if let Some(counts) = &self.words.counts {
                counts.free_low_water.set(waiting);
            }
        }
        look
    }

    /// Counts `records` as lost.
    pub(super) fn drop_records(&mut self, records: u32, cause: DropCause) {
        let lost = &mut self.state.dropped[cause.index()];
        *lost = lost.wrapping_add(u64::from(records));
        self.words.store_dropped(&self.state.dropped);
    }

    /// Counts everything in the current buffer as lost and starts it afresh.
    pub(super) fn drop_buffer(&mut self, cause: DropCause) -> u32 {
        let records = self.state.count;
        self.drop_records(records, cause);
        self.hooks.given_up();
        self.state.recount(0);
        if let Some(window) = self.window.as_mut() {
            window.write(Self::COUNT_AT, &0u32.to_le_bytes());
            if K::BY_CORE {
                Self::clear_evidence(window);
                // A core begins again with the first slot when it sees another number.
                self.state.sequence = self.state.sequence.wrapping_add(1) & S::COUNTER_MASK;
                self.words.sequence.publish(self.state.sequence);
            }
        }
        records
    }

    /// Counts the record of the slot committed last as lost, and the slot as free: the core it was for left nothing there.
    pub(super) fn drop_last(&mut self, cause: DropCause) {
        let Some(count) = self.state.count.checked_sub(1) else { return };
        self.state.recount(count);
        if let Some(window) = self.window.as_mut() {
            window.write(Self::COUNT_AT, &count.to_le_bytes());
        }
        self.drop_records(1, cause);
    }

    /// The slot committed last.
    pub(super) fn last_slot(&self) -> Option<DevAddr> {
        let last = self.state.count.checked_sub(1)?;
        let at = Self::RECORDS_AT + last * Self::RECORD_BYTES;
        self.window.is_some().then(|| self.state.buffer.offset(at.into()))
    }

    /// Makes slots that a core writes say nothing: what they show from then on is the core's record of this use.
    fn clear_evidence(window: &mut M::Window) {
        const CLEAR: [u8; 512] = [0; 512];
        let bytes = if K::BY_CORE { K::LAYOUT.capacity * Self::RECORD_BYTES } else { 0 };
        for from in (0..bytes).step_by(CLEAR.len()) {
            let part = CLEAR.len().min((bytes - from) as usize);
            window.write(Self::RECORDS_AT + from, &CLEAR[..part]);
        }
    }

    /// Counts everything in the stashed buffer as lost. It stays where it is, empty, until it can be published.
    pub(super) fn drop_stash(&mut self, cause: DropCause) -> u32 {
        let records = self.state.stash.count;
        self.drop_records(records, cause);
        self.state.stash.count = 0;
        if let Some(window) = self.stashed.as_mut() {
            window.write(Self::COUNT_AT, &0u32.to_le_bytes());
        }
        records
    }

    /// Which pool this is.
    pub(super) fn name(&self) -> (PoolKind, Instance) {
        (K::KIND, self.instance)
    }

    /// The host's push counter as it reads now.
    pub(super) fn queue_tail(&self) -> u32 {
        self.free.tail()
    }
}
