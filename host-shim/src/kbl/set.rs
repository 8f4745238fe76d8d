//! Tensor sets: the caller's tensors by name.
//!
//! ```text
//!   add(name, tensor) ──► generation + 1         same name: the tensor is replaced
//!   snapshot() ──► { set, generation, storage generation } + addresses + what keeps the tensors alive
//! ```
//!
//! A build looks at a set through its [`Snapshot`]. As long as neither the set nor any of its tensors has moved, every
//! snapshot is the same shared one, and its [`SetKey`] alone says that all addresses are as before. An attach is a move even
//! to the bytes where the tensor is. While no tensor of the
//! process has moved, that costs one comparison; after a move elsewhere the set looks at its own tensors once.

use std::collections::TryReserveError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_core::exec::NrtStatus;
use sluice_core::fmap::{Entry, InsertError, NameTable, Slot, SlotPair};

use super::tensor::{StorageGeneration, Tensor, View};

/// A name table on the heap, of a capacity chosen at run time.
pub(super) type Table<T> = NameTable<T, (Box<[Entry<T>]>, Box<[SlotPair]>)>;

/// An empty table with room for `capacity` names, if the host has memory for it.
pub(super) fn try_table<T: Copy>(capacity: usize) -> Result<Table<T>, TryReserveError> {
    let (mut entries, mut slots) = (Vec::new(), Vec::new());
    entries.try_reserve_exact(capacity)?;
    slots.try_reserve_exact(capacity)?;
    entries.resize(capacity, Entry::EMPTY);
    slots.resize(capacity, [Slot::EMPTY; 2]);
    Ok(NameTable::with_room((entries.into_boxed_slice(), slots.into_boxed_slice())))
}

/// A tensor's place among those of its set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place(u32);

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

    /// The tensor at a place of the set that this is a snapshot of.
    pub(super) fn view(&self, place: Place) -> &View {
        &self.views[place.0 as usize]
    }
}

/// The last snapshot, and the generation of all storage up to which it holds.
#[derive(Debug)]
struct Latest {
    snapshot: Arc<Snapshot>,
    holds_at: StorageGeneration,
}

/// A change to a set that was refused. The set is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetError {
    /// A name that does not fit.
    #[error(transparent)]
    Name(#[from] InsertError),
    /// The host has no memory for it.
    #[error("no host memory for a set of {names} names")]
    HostMemory {
        /// Names that room was wanted for.
        names: usize,
    },
}

impl SetError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Name(InsertError::Name(_)) => NrtStatus::INVALID,
            Self::Name(_) => NrtStatus::RESOURCE,
            Self::HostMemory { .. } => NrtStatus::FAIL_HOST_MEM_ALLOC,
        }
    }
}

/// Tensors by name, for the inputs or for the outputs of an execution. Dropping a set does not free its tensors.
///
/// Memory is taken as names come, up to the capacity.
#[derive(Debug)]
pub struct TensorSet {
    id: u64,
    generation: u64,
    capacity: usize,
    places: Table<Place>,
    tensors: Vec<Tensor>,
    latest: Mutex<Option<Latest>>,
}

impl Default for TensorSet {
    fn default() -> Self {
        Self::with_capacity(Self::DEFAULT_CAPACITY)
    }
}

impl TensorSet {
    /// Names that a set has room for unless it says otherwise.
    pub const DEFAULT_CAPACITY: usize = 512;

    /// Names that room is first made for.
    const LEAST_ROOM: usize = 8;

    /// An empty set with room for [`DEFAULT_CAPACITY`](TensorSet::DEFAULT_CAPACITY) names.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty set with room for `capacity` names.
    pub fn with_capacity(capacity: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            generation: 0,
            capacity,
            places: NameTable::with_room(Default::default()),
            tensors: Vec::new(),
            latest: Mutex::new(None),
        }
    }

    /// Enters `tensor` under `name`; an earlier tensor of that name is replaced.
    ///
    /// # Errors
    /// A name of more than 255 bytes, one more name than there is room for, or no memory of the host for it. The set is as it
    /// was then.
    pub fn add(&mut self, name: &str, tensor: Tensor) -> Result<(), SetError> {
        match self.places.get(name.as_bytes()) {
            Some(place) => self.tensors[place.0 as usize] = tensor,
            None => {
                let room = self.places.capacity();
                if self.len() == room && room < self.capacity {
                    self.places =
                        self.places_without(None, self.capacity.min(Self::LEAST_ROOM.max(2 * room)))?;
                }
                self.places.insert(name.as_bytes(), Place(self.tensors.len() as u32))?;
                self.tensors.push(tensor);
            }
        }
        self.note_change();
        Ok(())
    }

    /// Takes the tensor of that name out; `None` if there is none.
    ///
    /// # Errors
    /// No memory of the host for what is left. The set is as it was then.
    pub fn remove(&mut self, name: &str) -> Result<Option<Tensor>, SetError> {
        let Some(place) = self.places.get(name.as_bytes()) else { return Ok(None) };
        self.places = self.places_without(Some(place), self.places.capacity())?;
        let tensor = self.tensors.remove(place.0 as usize);
        self.note_change();
        Ok(Some(tensor))
    }

    /// The names, but for that of `gone`, in a table with that much room, and without a gap among their places.
    fn places_without(&self, gone: Option<Place>, room: usize) -> Result<Table<Place>, SetError> {
        let mut places = try_table(room).map_err(|_| SetError::HostMemory { names: room })?;
        for (name, place) in self.places.iter().filter(|&(_, place)| Some(place) != gone) {
            let behind = gone.is_some_and(|gone| gone.0 < place.0);
            places.insert(name.as_bytes(), Place(place.0 - u32::from(behind)))?;
        }
        Ok(places)
    }

    fn note_change(&mut self) {
        self.generation += 1;
        *self.latest.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Names it has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Names and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.places.iter().filter_map(|(name, place)| {
            // It was added as text.
            Some((std::str::from_utf8(name.as_bytes()).ok()?, &self.tensors[place.0 as usize]))
        })
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.places.get(name.as_bytes()).map(|place| &self.tensors[place.0 as usize])
    }

    /// How many tensors it holds.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Names and the places of their tensors in a snapshot.
    pub(super) fn places(&self) -> &Table<Place> {
        &self.places
    }

    /// The set's tensors resolved to where they are now.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the tensors are looked at: an attach in between makes the next look a thorough one.
        let now = StorageGeneration::now();
        if let Some(Latest { snapshot, holds_at }) = &mut *latest {
            let same = |(tensor, view): (&Tensor, &View)| tensor.view().is(view);
            if *holds_at == now || self.tensors.iter().zip(&snapshot.views).all(same) {
                *holds_at = now;
                return Arc::clone(snapshot);
            }
        }
        let key = SetKey { set: self.id, generation: self.generation, storage: now };
        let views = self.tensors.iter().map(Tensor::view).collect();
        let snapshot = Arc::new(Snapshot { key, views });
        *latest = Some(Latest { snapshot: Arc::clone(&snapshot), holds_at: now });
        snapshot
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

    fn at(set: &TensorSet, snapshot: &Snapshot, name: &str) -> DevAddr {
        snapshot.view(set.places().get(name.as_bytes()).unwrap()).at()
    }

    #[test]
    fn the_same_name_replaces_and_a_snapshot_keeps_what_it_saw() {
        let heap = heap();
        let (a, b) = (Tensor::allocate(&heap, 64).unwrap(), Tensor::allocate(&heap, 64).unwrap());
        let mut set = TensorSet::new();
        set.add("x", a.clone()).unwrap();
        let before = set.snapshot();
        assert!(Arc::ptr_eq(&before, &set.snapshot()));
        set.add("x", b.clone()).unwrap();
        let after = set.snapshot();
        assert_ne!(before.key(), after.key());
        assert_eq!((at(&set, &before, "x"), at(&set, &after, "x"), set.len()), (a.at(), b.at(), 1));
        assert_eq!(set.get("x").unwrap().at(), b.at());
        assert!(set.get("y").is_none());
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
        assert_eq!(at(&set, &after, "x"), b.at());
        // To where it is already, and there and back.
        let elsewhere = Tensor::allocate(&heap, 64).unwrap();
        let mut last = after.key();
        for to in [&[&b][..], &[&a], &[&elsewhere, &b]] {
            to.iter().for_each(|to| a.attach(to));
            let moved = set.snapshot();
            assert_ne!(moved.key(), last);
            assert_eq!(at(&set, &moved, "x"), b.at());
            assert!(Arc::ptr_eq(&moved, &set.snapshot()));
            last = moved.key();
        }
        let after = set.snapshot();
        // A tensor that is in no set moves nothing.
        b.attach(&b.slice(64, 64).unwrap());
        assert!(Arc::ptr_eq(&after, &set.snapshot()));
        assert_eq!(at(&set, &after, "x").offset(64), b.at());
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
    fn a_removed_name_is_gone_and_the_others_stay() {
        let (heap, mut set) = (heap(), TensorSet::new());
        let tensors: Vec<_> = (0..20).map(|_| Tensor::allocate(&heap, 64).unwrap()).collect();
        for (number, tensor) in tensors.iter().enumerate() {
            set.add(&format!("t{number}"), tensor.clone()).unwrap();
        }
        let (key, used) = (set.snapshot().key(), heap.usage());
        assert_eq!(set.remove("t7").unwrap().unwrap().at(), tensors[7].at());
        assert!(set.remove("t7").unwrap().is_none() && set.get("t7").is_none());
        let snapshot = set.snapshot();
        assert_ne!(snapshot.key(), key);
        let left: Vec<_> = set.iter().map(|(name, tensor)| (name.to_owned(), tensor.at())).collect();
        let all = tensors.iter().enumerate().filter(|(number, _)| *number != 7);
        let all: Vec<_> = all.map(|(number, tensor)| (format!("t{number}"), tensor.at())).collect();
        assert_eq!((left.len(), &left), (set.len(), &all));
        for (name, place) in &all {
            assert_eq!(at(&set, &snapshot, name), *place);
        }
        drop((tensors, snapshot));
        assert_eq!(heap.usage().free_bytes, used.free_bytes + 64);
        set.add("t7", Tensor::allocate(&heap, 64).unwrap()).unwrap();
        assert_eq!((set.len(), set.capacity()), (20, 512));
    }

    #[test]
    fn a_set_takes_memory_as_names_come() {
        let tensor = Tensor::allocate(&heap(), 64).unwrap();
        for capacity in [0, 1, 8, 9, 100, usize::MAX] {
            let mut set = TensorSet::with_capacity(capacity);
            assert_eq!(set.places().capacity(), 0);
            for number in 0..capacity.min(200) {
                set.add(&number.to_string(), tensor.clone()).unwrap();
                assert!(set.places().capacity() <= capacity.min(8.max(2 * set.len())));
            }
            if capacity < 200 {
                let full = set.add("one more", tensor.clone()).unwrap_err();
                assert_eq!(full.to_string(), format!("table full: {capacity} of {capacity} names"));
                assert_eq!((full.status(), set.len()), (NrtStatus::RESOURCE, capacity));
            }
        }
    }

    #[test]
    fn a_refused_name_changes_nothing() {
        let (heap, mut set) = (heap(), TensorSet::with_capacity(1));
        let tensor = Tensor::allocate(&heap, 64).unwrap();
        set.add("x", tensor.clone()).unwrap();
        let key = set.snapshot().key();
        let full = set.add("y", tensor.clone()).unwrap_err();
        assert_eq!(full.to_string(), "table full: 1 of 1 names");
        let long = set.add(&"n".repeat(256), tensor.clone()).unwrap_err();
        assert_eq!(long.to_string(), "name of 256 bytes exceeds 255");
        assert_eq!((full.status(), long.status()), (NrtStatus::RESOURCE, NrtStatus::INVALID));
        assert_eq!((set.len(), set.snapshot().key()), (1, key));
        set.add("x", tensor).unwrap();
        assert_ne!(set.snapshot().key(), key);
    }
}
