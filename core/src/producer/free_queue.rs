//! A pool's free queue: empty buffers on their way to the lane.
//!
//! Counters run freely and are reduced only to find a slot, so the queue holds as many buffers as it has slots.

use super::PoolSetup;
use crate::mem::{DevAddr, Fault, Memory, Own, Peer, Words};

/// What a look at the queue shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeLook {
    /// The oldest buffer, and how many wait including it.
    Buffer {
        /// Its address, as the host wrote it.
        address: DevAddr,
        /// Buffers waiting.
        waiting: u32,
    },
    /// No buffer waits.
    Empty,
    /// The host's counter is no counter of this queue; nothing may be taken.
    Corrupt {
        /// What it read.
        tail: u32,
        /// The lane's own counter.
        head: u32,
    },
}

/// The lane's side of a free queue.
pub struct FreeQueue<M: Memory> {
    head: Own<M::Word>,
    tail: Peer<M::Word>,
    slots: M::Words,
    slot_count: u32,
    counter_mask: u32,
}

impl<M: Memory> FreeQueue<M> {
    /// The queue of the pool at `setup`, of a power of two of slots, with counters of `counter_mask`.
    ///
    /// # Errors
    /// [`Fault`] when the queue lies outside device memory.
    pub fn attach(memory: &M, setup: &PoolSetup, counter_mask: u32) -> Result<Self, Fault> {
        let &PoolSetup { region, ref offsets, free_slots: slot_count, .. } = setup;
        Ok(Self {
            head: Own::new(memory.word(region.offset(offsets.free_head as u64))?),
            tail: Peer::new(memory.word(region.offset(offsets.free_tail as u64))?),
            slots: memory.words(region.offset(offsets.free_ptrs as u64), slot_count * 2)?,
            slot_count,
            counter_mask,
        })
    }

    /// Looks at the oldest buffer.
    pub fn look(&self) -> FreeLook {
        let tail = self.tail.observe();
        let head = self.head.get();
        match tail.wrapping_sub(head) & self.counter_mask {
            0 => FreeLook::Empty,
            waiting if waiting > self.slot_count => FreeLook::Corrupt { tail, head },
            waiting => {
                let slot = (head & (self.slot_count - 1)) * 2;
                FreeLook::Buffer {
                    address: DevAddr::join(self.slots.get(slot), self.slots.get(slot + 1)),
                    waiting,
                }
            }
        }
    }

    /// Takes the oldest buffer out. Call only after [`look`](FreeQueue::look) showed one; the host only ever adds.
    pub fn advance(&self) {
        let head = self.head.get();
        self.head.publish(head.wrapping_add(1) & self.counter_mask);
    }

    /// The host's counter as it reads now.
    pub fn tail(&self) -> u32 {
        self.tail.observe()
    }
}
