//! Who holds each buffer.
//!
//! Two counters per buffer, each with one writer inside the host:
//!
//! | word | writer → reader | order | meaning |
//! |---|---|---|---|
//! | `given[b]` | keeper → drain | release → acquire | times the buffer was put into a free queue; bumped before the queue's tail |
//! | `taken[b]` | drain → keeper | release → acquire | times it came back; bumped before the ring's head |
//!
//! The buffer is the device's while `given = taken + 1` and the host's while they are equal. An entry for a buffer that is
//! the host's is a double publication and is refused. The keeper sees a buffer as host-held from before its ring slot is
//! free again, so "every ring is drained and the host holds nothing" can never be read in between.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_core::layout::{Instance, PoolKind};
use sluice_core::mem::{DevAddr, Own, Peer, Word};

/// A buffer of this session, counted through all pools.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferId(pub u32);

/// A pool of this session, counted through all kinds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolId(pub u32);

/// A pool and its buffers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolBuffers {
    /// Kind, as ready entries carry it.
    pub kind: PoolKind,
    /// Which pool of its kind.
    pub instance: Instance,
    /// Its buffers.
    pub buffers: Range<u32>,
}

/// The fixed part: which buffers there are and to which pool each belongs. Built before the run, never changed in it.
#[derive(Clone, Debug)]
pub struct Directory {
    pools: Vec<PoolBuffers>,
    addresses: Vec<DevAddr>,
    pool_of: Vec<PoolId>,
    by_address: HashMap<DevAddr, BufferId>,
    by_name: HashMap<(u32, u32), PoolId>,
}

impl Directory {
    /// A directory of `pools`, each with the addresses of its buffers.
    pub fn new(pools: impl IntoIterator<Item = (PoolKind, Instance, Vec<DevAddr>)>) -> Self {
        let mut directory = Self {
            pools: Vec::new(),
            addresses: Vec::new(),
            pool_of: Vec::new(),
            by_address: HashMap::new(),
            by_name: HashMap::new(),
        };
        for (kind, instance, addresses) in pools {
            let pool = PoolId(directory.pools.len() as u32);
            let first = directory.addresses.len() as u32;
            for address in addresses {
                directory.by_address.insert(address, BufferId(directory.addresses.len() as u32));
                directory.addresses.push(address);
                directory.pool_of.push(pool);
            }
            let buffers = first..directory.addresses.len() as u32;
            directory.by_name.insert((kind.0, instance.0), pool);
            directory.pools.push(PoolBuffers { kind, instance, buffers });
        }
        directory
    }

    /// All pools.
    pub fn pools(&self) -> &[PoolBuffers] {
        &self.pools
    }

    /// One pool.
    pub fn pool(&self, pool: PoolId) -> &PoolBuffers {
        &self.pools[pool.0 as usize]
    }

    /// Number of buffers.
    pub fn buffers(&self) -> u32 {
        self.addresses.len() as u32
    }

    /// Device address of a buffer.
    pub fn address(&self, buffer: BufferId) -> DevAddr {
        self.addresses[buffer.0 as usize]
    }

    /// The pool a buffer belongs to.
    pub fn pool_of(&self, buffer: BufferId) -> PoolId {
        self.pool_of[buffer.0 as usize]
    }

    /// The buffer at exactly this address.
    pub fn find(&self, address: DevAddr) -> Option<BufferId> {
        self.by_address.get(&address).copied()
    }

    /// The pool that a ready entry names.
    pub fn find_pool(&self, kind: PoolKind, instance: Instance) -> Option<PoolId> {
        self.by_name.get(&(kind.0, instance.0)).copied()
    }
}

/// The drain's side of the counters.
pub struct TakenSide<W> {
    given: Vec<Peer<W>>,
    taken: Vec<Own<W>>,
    mask: u32,
}

impl<W: Word> TakenSide<W> {
    /// The counters of all buffers, in order, counting under `mask`.
    pub fn new(given: impl IntoIterator<Item = W>, taken: impl IntoIterator<Item = W>, mask: u32) -> Self {
        Self {
            given: given.into_iter().map(Peer::new).collect(),
            taken: taken.into_iter().map(Own::new).collect(),
            mask,
        }
    }

    /// Takes a buffer back from the device; `false` if it is not the device's.
    #[must_use]
    pub fn take(&self, buffer: BufferId) -> bool {
        let index = buffer.0 as usize;
        let next = self.taken[index].get().wrapping_add(1) & self.mask;
        if self.given[index].observe() != next {
            return false;
        }
        self.taken[index].publish(next);
        true
    }
}

/// The keeper's side of the counters.
pub struct GivenSide<W> {
    given: Vec<Own<W>>,
    taken: Vec<Peer<W>>,
    mask: u32,
}

impl<W: Word> GivenSide<W> {
    /// The counters of all buffers, in order, counting under `mask`.
    pub fn new(given: impl IntoIterator<Item = W>, taken: impl IntoIterator<Item = W>, mask: u32) -> Self {
        Self {
            given: given.into_iter().map(Own::new).collect(),
            taken: taken.into_iter().map(Peer::new).collect(),
            mask,
        }
    }

    /// Counts a buffer as the device's. Comes before it can be seen in a free queue.
    pub fn give(&self, buffer: BufferId) {
        let given = &self.given[buffer.0 as usize];
        given.publish(given.get().wrapping_add(1) & self.mask);
    }

    /// Whether the host holds `buffer`.
    pub fn is_host_held(&self, buffer: BufferId) -> bool {
        let index = buffer.0 as usize;
        self.given[index].get() == self.taken[index].observe()
    }

    /// Whether the device holds `buffer`.
    pub fn is_device_held(&self, buffer: BufferId) -> bool {
        let index = buffer.0 as usize;
        self.given[index].get() == self.taken[index].observe().wrapping_add(1) & self.mask
    }

    /// Whether the host holds any of `buffers`.
    pub fn holds_any(&self, buffers: Range<u32>) -> bool {
        buffers.into_iter().any(|buffer| self.is_host_held(BufferId(buffer)))
    }
}

/// A host-internal counter: one of many atomics of one allocation.
#[derive(Clone, Debug)]
pub struct CounterWord {
    table: Arc<[AtomicU32]>,
    index: usize,
}

impl CounterWord {
    /// `count` counters, all zero.
    pub fn table(count: u32) -> Vec<Self> {
        let table: Arc<[AtomicU32]> = (0..count).map(|_| AtomicU32::new(0)).collect();
        (0..count as usize).map(|index| Self { table: Arc::clone(&table), index }).collect()
    }
}

impl Word for CounterWord {
    fn load_relaxed(&self) -> u32 {
        self.table[self.index].load(Ordering::Relaxed)
    }

    fn load_acquire(&self) -> u32 {
        self.table[self.index].load(Ordering::Acquire)
    }

    fn store_relaxed(&self, value: u32) {
        self.table[self.index].store(value, Ordering::Relaxed);
    }

    fn store_release(&self, value: u32) {
        self.table[self.index].store(value, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(buffers: u32) -> (TakenSide<CounterWord>, GivenSide<CounterWord>) {
        let (given, taken) = (CounterWord::table(buffers), CounterWord::table(buffers));
        (TakenSide::new(given.clone(), taken.clone(), u32::MAX), GivenSide::new(given, taken, u32::MAX))
    }

    #[test]
    fn a_buffer_alternates_between_the_sides() {
        let (drain, keeper) = sides(2);
        assert!(keeper.holds_any(0..2));
        assert!(!drain.take(BufferId(0)), "the host's own buffer cannot be published");
        keeper.give(BufferId(0));
        assert!(!keeper.is_host_held(BufferId(0)));
        assert!(keeper.holds_any(0..2));
        assert!(!keeper.holds_any(0..1));
        assert!(drain.take(BufferId(0)));
        assert!(!drain.take(BufferId(0)), "a second publication is refused");
        assert!(keeper.is_host_held(BufferId(0)));
    }

    #[test]
    fn the_directory_finds_what_it_was_given() {
        let directory = Directory::new([
            (PoolKind::AICPU_TASK, Instance(0), vec![DevAddr(64), DevAddr(128)]),
            (PoolKind::AICPU_TASK, Instance(1), vec![DevAddr(192)]),
        ]);
        assert_eq!(directory.buffers(), 3);
        let third = directory.find(DevAddr(192)).expect("known");
        assert_eq!(directory.pool_of(third), PoolId(1));
        assert_eq!(directory.address(third), DevAddr(192));
        assert_eq!(directory.find(DevAddr(65)), None);
        assert_eq!(directory.find_pool(PoolKind::AICPU_TASK, Instance(1)), Some(PoolId(1)));
        assert_eq!(directory.find_pool(PoolKind::AICPU_TASK, Instance(9999)), None);
        assert_eq!(directory.pool(PoolId(0)).buffers, 0..2);
    }
}
