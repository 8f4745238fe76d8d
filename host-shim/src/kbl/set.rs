//! Tensor sets: the caller's tensors by name.
//!
//! ```text
//!   add(name, tensor) ──► generation + 1         same name: the tensor is replaced
//!   snapshot() ──► { set, generation, storage generation } + addresses + what keeps the tensors alive
//! ```
//!
//! A build looks at a set through its [`Snapshot`]. As long as neither the set nor any tensor of the process has moved,
//! every snapshot is the same shared one, and its [`SetKey`] alone says that all addresses are as before.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::tensor::{StorageGeneration, Tensor, View};

/// Which content of which set. Two snapshots with the same key hold the same addresses under the same names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct SetKey {
    set: u64,
    generation: u64,
    storage: StorageGeneration,
}

/// A set's tensors resolved to addresses. The tensors stay where they are while it lives.
#[derive(Debug)]
pub(super) struct Snapshot {
    key: SetKey,
    views: Box<[View]>,
}

impl Snapshot {
    pub(super) fn key(&self) -> SetKey {
        self.key
    }
}

/// A name that a set can't take.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetError {
    /// Names have 1 to 255 bytes.
    #[error("tensor name of {bytes} bytes, want 1 to {}", TensorSet::MAX_NAME_BYTES)]
    Name {
        /// Length of the name.
        bytes: usize,
    },
}

/// Tensors by name, for the inputs or for the outputs of an execution. Dropping a set does not free its tensors.
#[derive(Debug)]
pub struct TensorSet {
    id: u64,
    generation: u64,
    /// Name → place in `tensors`.
    names: HashMap<Box<str>, usize>,
    tensors: Vec<Tensor>,
    latest: Mutex<Option<Arc<Snapshot>>>,
}

impl Default for TensorSet {
    fn default() -> Self {
        Self::new()
    }
}

impl TensorSet {
    /// Longest name.
    pub const MAX_NAME_BYTES: usize = 255;

    /// An empty set.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            generation: 0,
            names: HashMap::new(),
            tensors: Vec::new(),
            latest: Mutex::new(None),
        }
    }

    /// Enters `tensor` under `name`; an earlier tensor of that name is replaced.
    ///
    /// # Errors
    /// An empty name, or one of more than 255 bytes.
    pub fn add(&mut self, name: &str, tensor: Tensor) -> Result<(), SetError> {
        if name.is_empty() || name.len() > Self::MAX_NAME_BYTES {
            return Err(SetError::Name { bytes: name.len() });
        }
        self.generation += 1;
        *self.latest.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        match self.names.get(name) {
            Some(&place) => self.tensors[place] = tensor,
            None => {
                self.names.insert(name.into(), self.tensors.len());
                self.tensors.push(tensor);
            }
        }
        Ok(())
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.names.get(name).map(|&place| &self.tensors[place])
    }

    /// How many tensors it holds.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The names, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(|name| &**name)
    }

    /// The set's tensors resolved to where they are now.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the tensors are looked at: an attach in between makes the next snapshot a new one.
        let storage = StorageGeneration::now();
        let key = SetKey { set: self.id, generation: self.generation, storage };
        match &*latest {
            Some(snapshot) if snapshot.key == key => Arc::clone(snapshot),
            _ => {
                let views = self.tensors.iter().map(Tensor::view).collect();
                let snapshot = Arc::new(Snapshot { key, views });
                *latest = Some(Arc::clone(&snapshot));
                snapshot
            }
        }
    }

    /// The tensor of that name as `snapshot`, which has to be this set's own, has it.
    pub(super) fn view<'a>(&self, snapshot: &'a Snapshot, name: &str) -> Option<&'a View> {
        self.names.get(name).map(|&place| &snapshot.views[place])
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::mem::DevAddr;

    use super::*;
    use crate::device::heap::Heap;

    fn heap() -> Heap {
        Heap::new(DevAddr(0x1_0000), 1 << 20)
    }

    #[test]
    fn the_same_name_replaces_and_a_snapshot_keeps_what_it_saw() {
        let heap = heap();
        let (a, b) = (Tensor::allocate(&heap, 64).unwrap(), Tensor::allocate(&heap, 64).unwrap());
        let mut set = TensorSet::new();
        set.add("x", a.clone()).unwrap();
        let before = set.snapshot();
        assert!(Arc::ptr_eq(&before, &set.snapshot()));
        assert_eq!(set.view(&before, "x").unwrap().at(), a.at());
        set.add("x", b.clone()).unwrap();
        let after = set.snapshot();
        assert_ne!(before.key(), after.key());
        assert_eq!((set.view(&after, "x").unwrap().at(), set.len()), (b.at(), 1));
        assert!(set.view(&after, "y").is_none() && set.get("y").is_none());
    }

    #[test]
    fn attach_makes_a_new_snapshot_and_sets_never_share_keys() {
        let heap = heap();
        let (a, b) = (Tensor::allocate(&heap, 64).unwrap(), Tensor::allocate(&heap, 128).unwrap());
        let (mut set, mut other) = (TensorSet::new(), TensorSet::new());
        set.add("x", a.clone()).unwrap();
        other.add("x", a.clone()).unwrap();
        let before = set.snapshot();
        assert_ne!(before.key(), other.snapshot().key());
        a.attach(&b);
        let after = set.snapshot();
        assert_ne!(before.key(), after.key());
        let view = set.view(&after, "x").unwrap();
        assert_eq!((view.at(), view.size_bytes()), (b.at(), 128));
    }

    #[test]
    fn a_snapshot_keeps_storage_and_a_dropped_set_lets_go() {
        let heap = heap();
        let start = heap.usage();
        let mut set = TensorSet::new();
        set.add("x", Tensor::allocate(&heap, 64).unwrap()).unwrap();
        let snapshot = set.snapshot();
        drop(set);
        assert_ne!(heap.usage(), start);
        drop(snapshot);
        assert_eq!(heap.usage(), start);
    }

    #[test]
    fn names_have_1_to_255_bytes() {
        let (heap, mut set) = (heap(), TensorSet::new());
        let tensor = Tensor::allocate(&heap, 64).unwrap();
        for bytes in [0, 256] {
            assert_eq!(set.add(&"n".repeat(bytes), tensor.clone()), Err(SetError::Name { bytes }));
        }
        set.add(&"n".repeat(255), tensor).unwrap();
        assert_eq!(set.names().next().map(str::len), Some(255));
    }
}
