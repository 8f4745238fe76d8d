//! The table from names to values.

use core::fmt;
use core::marker::PhantomData;

use super::name::{Name, NameTooLong, hash};
use super::probe::{Probe, Slot, SlotPair, probe};

/// One name and its value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Entry<T> {
    pub(super) value: Option<T>,
    pub(super) name: Name,
}

impl<T> Entry<T> {
    /// An entry that holds nothing.
    pub const EMPTY: Self = Self { value: None, name: Name::EMPTY };
}

/// Where a table keeps its entries and their slots. The capacity is the smaller of both lengths.
///
/// Any pair of slices, boxes or vectors of [`Entry::EMPTY`] and `[Slot::EMPTY; 2]` will do.
pub trait Room<T> {
    /// Entries and slots.
    fn parts(&self) -> (&[Entry<T>], &[SlotPair]);
    /// Entries and slots, to change them.
    fn parts_mut(&mut self) -> (&mut [Entry<T>], &mut [SlotPair]);
}

impl<T, E, S> Room<T> for (E, S)
where
    E: AsRef<[Entry<T>]> + AsMut<[Entry<T>]>,
    S: AsRef<[SlotPair]> + AsMut<[SlotPair]>,
{
    #[inline]
    fn parts(&self) -> (&[Entry<T>], &[SlotPair]) {
        (self.0.as_ref(), self.1.as_ref())
    }

    #[inline]
    fn parts_mut(&mut self) -> (&mut [Entry<T>], &mut [SlotPair]) {
        (self.0.as_mut(), self.1.as_mut())
    }
}

/// Room for `N` entries in arrays.
pub type FixedRoom<T, const N: usize> = ([Entry<T>; N], [SlotPair; N]);

/// A name table with room for `N` names.
pub type FixedTable<T, const N: usize> = NameTable<T, FixedRoom<T, N>>;

/// What the caller binds to the names of one direction: his tensors, by handle.
pub type TensorSet<T, const N: usize> = FixedTable<T, N>;

/// A table from names to values, of fixed capacity.
///
/// ```
/// use sluice_core::fmap::TensorSet;
///
/// let mut set = TensorSet::<u32, 2>::new();
/// assert_eq!(set.insert(b"x", 7), Ok(None));
/// assert_eq!(set.insert(b"y", 8), Ok(None));
/// assert_eq!(set.insert(b"x", 9), Ok(Some(7)));
/// assert_eq!(set.insert(b"z", 1).unwrap_err().to_string(), "table full: 2 of 2 names");
/// assert_eq!((set.get(b"x"), set.get(b"z")), (Some(9), None));
/// ```
#[derive(Clone, Debug)]
pub struct NameTable<T, R> {
    room: R,
    len: usize,
    values: PhantomData<T>,
}

impl<T, const N: usize> FixedTable<T, N> {
    /// An empty table. `const`, so that a `static` holds it without ever standing on a stack.
    pub const fn new() -> Self {
        const { assert!(N < u32::MAX as usize, "entry numbers are 32 bits") };
        let room = ([const { Entry::EMPTY }; N], [[Slot::EMPTY; 2]; N]);
        Self { room, len: 0, values: PhantomData }
    }
}

impl<T, const N: usize> Default for FixedTable<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy, R: Room<T>> NameTable<T, R> {
    /// An empty table in `room`, whatever it held before.
    pub fn with_room(room: R) -> Self {
        let mut table = Self { room, len: 0, values: PhantomData };
        table.clear();
        table
    }

    /// Names there is room for.
    pub fn capacity(&self) -> usize {
        let (entries, slots) = self.room.parts();
        entries.len().min(slots.len())
    }

    /// Names in the table.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no name in the table.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the value of `name` and returns the one it had. A name that is in the table can be set even when the
    /// table is full.
    ///
    /// # Errors
    /// A name of more than 255 bytes, one more name than the table has room for, or one whose hash too many others have or
    /// come near.
    pub fn insert(&mut self, name: &[u8], value: T) -> Result<Option<T>, InsertError> {
        let name = Name::new(name)?;
        match self.probe(name.hash(), |entry| entry.name == name) {
            Probe::Found(entry) => Ok(self.room.parts_mut().0[entry].value.replace(value)),
            vacant => {
                self.put(vacant, name.hash(), Entry { name, value: Some(value) })?;
                Ok(None)
            }
        }
    }

    /// The value of `name`, if it is in the table.
    #[inline]
    pub fn get(&self, name: &[u8]) -> Option<T> {
        self.found(self.probe(hash(name), |entry| entry.name.is(name)))
    }

    /// The value of `name`, whose hash is known already.
    #[inline]
    pub fn get_name(&self, name: &Name) -> Option<T> {
        self.found(self.probe(name.hash(), |entry| entry.name.is(name.as_bytes())))
    }

    /// Names and values, in the order in which the names came.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, T)> {
        let (entries, _) = self.room.parts();
        entries[..self.len].iter().filter_map(|entry| Some((&entry.name, entry.value?)))
    }

    /// Empties the table.
    pub fn clear(&mut self) {
        let (_, slots) = self.room.parts_mut();
        slots.fill([Slot::EMPTY; 2]);
        self.len = 0;
    }

    /// Looks for the entry for which `same` holds, among those that were put under `hash`.
    #[inline]
    pub(super) fn probe(&self, hash: u32, same: impl Fn(&Entry<T>) -> bool) -> Probe {
        let (entries, slots) = self.room.parts();
        probe(slots.as_flattened(), hash, |entry| same(&entries[entry]))
    }

    /// Appends an entry under `hash`, at the place that [`probe`](Self::probe) found for it.
    pub(super) fn put(&mut self, place: Probe, hash: u32, entry: Entry<T>) -> Result<(), InsertError> {
        let (capacity, count) = (self.capacity(), self.len);
        let slot = match place {
            Probe::Vacant(slot) if count < capacity => slot,
            Probe::Crowded if count < capacity => return Err(InsertError::Crowded { count }),
            _ => return Err(Full { capacity, count }.into()),
        };
        let (entries, slots) = self.room.parts_mut();
        entries[count] = entry;
        slots.as_flattened_mut()[slot] = Slot::of(hash, count);
        self.len += 1;
        Ok(())
    }

    pub(super) fn entry(&self, index: usize) -> &Entry<T> {
        &self.room.parts().0[index]
    }

    #[inline]
    fn found(&self, probe: Probe) -> Option<T> {
        match probe {
            Probe::Found(entry) => self.entry(entry).value,
            Probe::Vacant(_) | Probe::Full | Probe::Crowded => None,
        }
    }
}

/// No room for one more name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Full {
    /// Names there is room for.
    pub capacity: usize,
    /// Names in the table.
    pub count: usize,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table full: {} of {} names", self.count, self.capacity)
    }
}

impl core::error::Error for Full {}

/// A name that did not get into a table; the table is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum InsertError {
    /// It is too long.
    Name(NameTooLong),
    /// The table is full.
    Full(Full),
    /// Its hash collides with those of too many others.
    Crowded {
        /// Names in the table.
        count: usize,
    },
}

impl From<NameTooLong> for InsertError {
    fn from(error: NameTooLong) -> Self {
        Self::Name(error)
    }
}

impl From<Full> for InsertError {
    fn from(error: Full) -> Self {
        Self::Full(error)
    }
}

impl fmt::Display for InsertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::Full(error) => error.fmt(f),
            Self::Crowded { count } => {
                write!(f, "name collides with too many of the {count} names in the table")
            }
        }
    }
}

impl core::error::Error for InsertError {}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::collections::HashMap;
    use std::string::String;
    use std::sync::LazyLock;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::super::probe::{MAX_ALIKE, MAX_LOOKS};
    use super::*;

    /// The first two and the next two share all 32 bits of their hash; they were found by trying.
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
        let mut names: Vec<String> =
            [67_720, 88_596, 6_433, 120_735].iter().map(|n| std::format!("layers.{n}.weight")).collect();
        names.extend(["", "x", "y", "input.0", "input.1"].map(String::from));
        names.push("n".repeat(255));
        names
    });

    #[test]
    fn names_with_the_same_hash_are_told_apart() {
        for pair in NAMES[..4].chunks_exact(2) {
            let (first, twin) = (pair[0].as_bytes(), pair[1].as_bytes());
            assert_eq!(hash(first), hash(twin), "{pair:?} no longer collide: find others");
            let mut table = FixedTable::<u8, 2>::new();
            table.insert(first, 1).unwrap();
            assert_eq!((table.get(first), table.get(twin)), (Some(1), None));
            table.insert(twin, 2).unwrap();
            assert_eq!((table.get(first), table.get(twin)), (Some(1), Some(2)));
        }
    }

    /// Inserts until the table is crowded, and makes sure that what is in it is found.
    fn crowd(table: &mut FixedTable<usize, 1024>, mut names: impl Iterator<Item = Vec<u8>>) -> usize {
        let mut known = Vec::new();
        let refused = loop {
            let name = names.next().unwrap();
            match table.insert(&name, known.len()) {
                Ok(_) => known.push(name),
                Err(error) => {
                    assert_eq!(error, InsertError::Crowded { count: known.len() });
                    break name;
                }
            }
        };
        assert_eq!((table.len(), table.get(&refused)), (known.len(), None));
        for (value, name) in known.iter().enumerate() {
            assert_eq!((table.get(name), table.insert(name, value)), (Some(value), Ok(Some(value))));
        }
        known.len()
    }

    #[test]
    fn names_that_were_made_to_have_one_hash_are_refused_at_the_ninth() {
        // A second word that makes the product of the fold 0, whatever the first is.
        let twin = |first: u64| [first, 0x6A09_E667_F3BC_C909].map(u64::to_le_bytes).concat();
        assert_eq!(hash(&twin(1)), hash(&twin(2)), "the names no longer collide: find others");
        let mut table = FixedTable::new();
        assert_eq!(crowd(&mut table, (0..).map(twin)), MAX_ALIKE);
        table.insert(b"another", 0).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
    fn names_that_were_made_to_lie_in_a_row_are_refused_when_it_is_long() {
        let in_row = (0u64..).map(|n| n.to_le_bytes().to_vec()).filter(|name| hash(name) >> 21 == 2047);
        // In the last slot, and then in those from the first on.
        assert_eq!(crowd(&mut FixedTable::new(), in_row), MAX_LOOKS);
    }

    #[test]
    fn a_full_table_names_its_numbers_and_still_overwrites() {
        let mut table = FixedTable::<u8, 1>::new();
        table.insert(b"x", 1).unwrap();
        assert_eq!(table.insert(b"y", 2), Err(InsertError::Full(Full { capacity: 1, count: 1 })));
        assert_eq!(table.insert(b"x", 3), Ok(Some(1)));
        let long = [b'x'; 256];
        assert_eq!(table.insert(&long, 4), Err(InsertError::Name(NameTooLong { len_bytes: 256 })));
        assert_eq!((table.get(b"x"), table.get(b"y"), table.get(&long)), (Some(3), None, None));
        table.clear();
        assert_eq!((table.get(b"x"), table.is_empty()), (None, true));
    }

    #[test]
    fn a_table_without_room_holds_nothing() {
        let mut table = FixedTable::<u8, 0>::new();
        assert_eq!(table.insert(b"x", 1), Err(InsertError::Full(Full { capacity: 0, count: 0 })));
        assert_eq!(table.get(b"x"), None);
    }

    #[test]
    fn a_table_in_slices_is_sized_at_run_time() {
        let entries = std::vec![Entry::EMPTY; 3].into_boxed_slice();
        let slots: Box<[SlotPair]> = std::vec![[Slot::EMPTY; 2]; 5].into_boxed_slice();
        let mut table = NameTable::with_room((entries, slots));
        assert_eq!(table.capacity(), 3);
        for (value, name) in NAMES.iter().take(3).enumerate() {
            table.insert(name.as_bytes(), value).unwrap();
        }
        assert!(table.insert(b"x", 3).is_err());
        let listed: Vec<_> = table.iter().map(|(name, value)| (name.as_bytes(), value)).collect();
        assert_eq!(listed, [0, 1, 2].map(|i| (NAMES[i].as_bytes(), i)));
    }

    #[test]
    fn a_large_table_is_built_in_place() {
        static LARGE: FixedTable<u64, 4096> = FixedTable::new();
        let small_stack = std::thread::Builder::new().stack_size(128 << 10);
        let thread = small_stack.spawn(|| (LARGE.capacity(), LARGE.get(b"x"))).unwrap();
        assert_eq!(thread.join().unwrap(), (4096, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Room for fewer names than there are, so that tables run full.
        #[test]
        #[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
        fn a_table_answers_like_a_plain_map(
            ops in prop::collection::vec((any::<prop::sample::Index>(), any::<Option<u16>>()), 0..40),
        ) {
            let mut table = FixedTable::<u16, 7>::new();
            let mut plain = HashMap::new();
            for (name, value) in ops {
                let name = name.get(&NAMES).as_bytes();
                match value {
                    None => {
                        prop_assert_eq!(table.get(name), plain.get(name).copied());
                        prop_assert_eq!(table.get_name(&Name::new(name).unwrap()), plain.get(name).copied());
                    }
                    Some(value) if plain.len() == 7 && !plain.contains_key(name) => {
                        let full = InsertError::Full(Full { capacity: 7, count: 7 });
                        prop_assert_eq!(table.insert(name, value), Err(full));
                    }
                    Some(value) => prop_assert_eq!(table.insert(name, value), Ok(plain.insert(name, value))),
                }
                prop_assert_eq!(table.len(), plain.len());
            }
        }
    }
}
