//! The drain: takes full buffers out of the ready rings, one per ring and turn, in rotation.
//!
//! For each entry: read it once, check every field against the directory, take the buffer in the ledger, give the slot
//! back, hand the buffer on. What cannot be right is counted under its reason and its slot given back, so one bad entry
//! costs one entry.
//!
//! A transport may fail when the slot is given back. By then the ledger counts the buffer as the host's, and the lane may
//! already reuse the slot; so the entry is kept, and the next poll of that ring only gives the slot back.
//!
//! After an attach some buffers may have been seen only as held by a lane, current or stashed: either the lane does hold
//! them, or it had published them to the dead host and not yet cleared the word. The drain settles these, because it alone takes entries
//! out: a buffer that a lane no longer names and no ring holds is the host's.

use std::sync::Arc;

use sluice_core::mem::{Fault, Memory};
use sluice_core::producer::ReadyEntry;

use super::ledger::{BufferId, Directory, TakenSide};
use super::{Full, HeldWords, Pipe, RingDrain, RingState};

/// Why an entry was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// No pool of that kind and number.
    UnknownPool,
    /// No buffer at that address.
    UnknownBuffer,
    /// The buffer belongs to another pool.
    ForeignBuffer,
    /// The buffer is not the device's: published twice.
    NotDeviceHeld,
}

/// What one poll did.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum Drained {
    /// The ring looked at had nothing.
    Nothing,
    /// One buffer went on to the collector.
    Buffer(Full),
    /// One entry was refused.
    Refused {
        /// Ring it came from.
        ring: u32,
        /// What it said.
        entry: ReadyEntry,
        /// Why it was refused.
        why: Refusal,
    },
    /// An index of the ring was out of range.
    CorruptRing {
        /// The ring.
        ring: u32,
        /// What its head read.
        head: u32,
        /// What its tail read.
        tail: u32,
    },
    /// A buffer that an attach had left open turned out to be the host's.
    Recovered(BufferId),
}

/// What the drain remembers between polls; plain data.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct DrainState {
    /// Ring to look at next.
    pub ring: u32,
    /// Buffers that an attach left open.
    pub unsettled: Vec<BufferId>,
    /// An entry of that ring that was judged but whose slot could not be given back, and the slot.
    pub judged: Option<(u32, Drained)>,
}

/// The drain of one subsystem.
pub struct Drain<M: Memory, W> {
    directory: Arc<Directory>,
    rings: Vec<RingDrain<M>>,
    held: Vec<HeldWords<M>>,
    ledger: TakenSide<W>,
    state: DrainState,
}

impl<M: Memory, W: sluice_core::mem::Word> Drain<M, W> {
    /// A drain over `rings`; `held` are the words in which lanes show what they hold of all pools, in the directory's order.
    pub fn new(
        directory: Arc<Directory>,
        rings: Vec<RingDrain<M>>,
        held: Vec<HeldWords<M>>,
        ledger: TakenSide<W>,
        unsettled: Vec<BufferId>,
    ) -> Self {
        Self { directory, rings, held, ledger, state: DrainState { ring: 0, unsettled, judged: None } }
    }

    /// What the drain remembers.
    pub fn state(&self) -> &DrainState {
        &self.state
    }

    /// Puts the drain into `state`, for a checker that explores from many states.
    pub fn restore(&mut self, state: DrainState) {
        self.state = state;
    }

    /// Number of rings; after that many polls that drained nothing, nothing waited.
    pub fn rings(&self) -> usize {
        self.rings.len()
    }

    /// Looks at the next ring and takes at most one entry.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails; the next poll goes on from there.
    pub fn poll(
        &mut self,
        collect: &impl Pipe<Full>,
        returned: &impl Pipe<BufferId>,
    ) -> Result<Drained, Fault> {
        let ring = self.state.ring;
        let drained = self.poll_ring(ring, collect)?;
        self.state.ring = if ring as usize + 1 >= self.rings.len() { 0 } else { ring + 1 };
        if drained == Drained::Nothing && !self.state.unsettled.is_empty() {
            return self.settle(returned);
        }
        Ok(drained)
    }

    fn poll_ring(&mut self, number: u32, collect: &impl Pipe<Full>) -> Result<Drained, Fault> {
        let ring = &self.rings[number as usize];
        let (index, drained) = match self.state.judged {
            Some(judged) => judged,
            None => match ring.look()? {
                RingState::Empty => return Ok(Drained::Nothing),
                RingState::Corrupt { head, tail } => {
                    return Ok(Drained::CorruptRing { ring: number, head, tail });
                }
                RingState::Entry { index, .. } => {
                    let entry = ring.read(index)?;
                    let drained = match self.accept(&entry) {
                        Ok(buffer) => {
                            Drained::Buffer(Full { buffer, sequence: entry.sequence, beside: entry.beside })
                        }
                        Err(why) => Drained::Refused { ring: number, entry, why },
                    };
                    *self.state.judged.insert((index, drained))
                }
            },
        };
        ring.give_back(index)?;
        self.state.judged = None;
        if let Drained::Buffer(full) = drained {
            self.state.unsettled.retain(|&open| open != full.buffer);
            collect.push(full);
        }
        Ok(drained)
    }

    fn accept(&self, entry: &ReadyEntry) -> Result<BufferId, Refusal> {
        let pool = self.directory.find_pool(entry.kind, entry.instance).ok_or(Refusal::UnknownPool)?;
        let buffer = self.directory.find(entry.buffer).ok_or(Refusal::UnknownBuffer)?;
        if self.directory.pool_of(buffer) != pool {
            return Err(Refusal::ForeignBuffer);
        }
        if self.ledger.take(buffer) { Ok(buffer) } else { Err(Refusal::NotDeviceHeld) }
    }

    /// Looks again at the oldest open buffer: first at the lane's words, then at the rings, in the direction in which
    /// buffers move.
    fn settle(&mut self, returned: &impl Pipe<BufferId>) -> Result<Drained, Fault> {
        let buffer = self.state.unsettled[0];
        let address = self.directory.address(buffer);
        let pool = self.directory.pool_of(buffer);
        let HeldWords { current, stash } = &self.held[pool.0 as usize];
        for word in [Some(current), stash.as_ref()].into_iter().flatten() {
            if word.try_observe()? == address {
                self.state.unsettled.rotate_left(1);
                return Ok(Drained::Nothing);
            }
        }
        for ring in &self.rings {
            for entry in ring.waiting()? {
                if entry?.buffer == address {
                    return Ok(Drained::Nothing);
                }
            }
        }
        self.state.unsettled.remove(0);
        if !self.ledger.take(buffer) {
            return Ok(Drained::Nothing);
        }
        returned.push(buffer);
        Ok(Drained::Recovered(buffer))
    }
}
