//! The join as runtimes make it without remembering it, for comparison.
//!
//! ```text
//!   check   every entry of each program's contract ──name──► tensor of the set: large enough?
//!   join    every variable of each program ──number──► name, direction ──name──► tensor of that set ──► address
//! ```
//!
//! Both go through chained tables of 1,024 buckets: names are hashed byte by byte with FNV-1a and reached through a pointer.

use sluice_core::mem::DevAddr;

/// Buckets of a table.
const BUCKETS: usize = 1024;

/// What an entry is found by.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Key {
    Number(u64),
    Name(Box<[u8]>),
}

#[derive(Debug)]
struct Node<V> {
    key: Key,
    value: V,
    next: Option<Box<Node<V>>>,
}

/// A table of chains.
#[derive(Debug)]
pub(crate) struct Chained<V> {
    buckets: Vec<Option<Box<Node<V>>>>,
}

impl<V> Chained<V> {
    pub(crate) fn new() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| None).collect() }
    }

    /// Enters `value` at the head of its chain.
    pub(crate) fn insert(&mut self, key: Key, value: V) {
        let bucket = match &key {
            Key::Number(number) => bucket(*number),
            Key::Name(name) => bucket(fnv1a(name)),
        };
        let next = self.buckets[bucket].take();
        self.buckets[bucket] = Some(Box::new(Node { key, value, next }));
    }

    fn by_number(&self, number: u64) -> Option<&V> {
        self.find(bucket(number), |key| matches!(key, Key::Number(held) if *held == number))
    }

    fn by_name(&self, name: &[u8]) -> Option<&V> {
        self.find(bucket(fnv1a(name)), |key| matches!(key, Key::Name(held) if **held == *name))
    }

    fn find(&self, bucket: usize, same: impl Fn(&Key) -> bool) -> Option<&V> {
        let mut node = self.buckets[bucket].as_deref();
        while let Some(Node { key, value, next }) = node {
            if same(key) {
                return Some(value);
            }
            node = next.as_deref();
        }
        None
    }
}

fn bucket(hash: u64) -> usize {
    hash as usize % BUCKETS
}

/// The 64-bit FNV-1a hash.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// One entry of a contract.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) number: u64,
    pub(crate) name: Box<[u8]>,
    /// Number of the set.
    pub(crate) side: usize,
    pub(crate) size_bytes: u64,
}

/// A tensor as a set has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) at: DevAddr,
    pub(crate) size_bytes: u64,
}

/// What one program wants, in the order of its contract and by number.
#[derive(Debug)]
pub(crate) struct Program {
    contract: Vec<Wanted>,
    by_number: Chained<(Box<[u8]>, usize)>,
}

impl Program {
    pub(crate) fn new(contract: Vec<Wanted>) -> Self {
        let mut by_number = Chained::new();
        for Wanted { number, name, side, .. } in &contract {
            by_number.insert(Key::Number(*number), (name.clone(), *side));
        }
        Self { contract, by_number }
    }

    /// Appends the address of every variable to `addresses`; `None` for a tensor that is missing or too small.
    pub(crate) fn join(&self, sets: &[Chained<Bound>; 2], addresses: &mut Vec<DevAddr>) -> Option<()> {
        for Wanted { name, side, size_bytes, .. } in &self.contract {
            if sets[*side].by_name(name)?.size_bytes < *size_bytes {
                return None;
            }
        }
        for Wanted { number, .. } in &self.contract {
            let (name, side) = self.by_number.by_number(*number)?;
            addresses.push(sets[*side].by_name(name)?.at);
        }
        Some(())
    }
}
