//! Variables by number, and the join with the caller's sets.

use core::fmt;

use super::contract::Direction;
use super::name::{Name, NameTooLong};
use super::probe::Probe;
use super::table::{Entry, FixedRoom, InsertError, NameTable, Room};

/// The compiler's number of one variable, dense from 0 inside one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct VarId(pub u32);

impl VarId {
    /// Dense numbers, spread by the golden ratio.
    const fn hash(self) -> u32 {
        self.0.wrapping_mul(0x9E37_79B9)
    }
}

impl fmt::Display for VarId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the map holds of one variable, beside its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VarEntry {
    /// The variable.
    pub var: VarId,
    /// Whether it is read or written.
    pub direction: Direction,
}

/// The input and output variables of a program: number → name and direction.
#[derive(Clone, Debug)]
pub struct VarMap<R> {
    table: NameTable<VarEntry, R>,
}

impl<const N: usize> VarMap<FixedRoom<VarEntry, N>> {
    /// An empty map with room for `N` variables.
    pub const fn new() -> Self {
        Self { table: NameTable::new() }
    }
}

impl<const N: usize> Default for VarMap<FixedRoom<VarEntry, N>> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Room<VarEntry>> VarMap<R> {
    /// An empty map in `room`, whatever it held before.
    pub fn with_room(room: R) -> Self {
        Self { table: NameTable::with_room(room) }
    }

    /// Variables in the map.
    pub const fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no variable in the map.
    pub const fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Enters a variable.
    ///
    /// # Errors
    /// A name of more than 255 bytes, a variable that is in the map already, or a map that has no place for it.
    pub fn insert(&mut self, var: VarId, name: &[u8], direction: Direction) -> Result<(), VarInsertError> {
        let name = Name::new(name)?;
        let entry = Entry { name, value: Some(VarEntry { var, direction }) };
        match self.probe(var) {
            Probe::Found(_) => Err(VarInsertError::Twice { var }),
            vacant => Ok(self.table.put(vacant, var.hash(), entry)?),
        }
    }

    /// Name and direction of a variable.
    pub fn get(&self, var: VarId) -> Option<(&Name, Direction)> {
        let Probe::Found(index) = self.probe(var) else { return None };
        let Entry { name, value } = self.table.entry(index);
        value.as_ref().map(|entry| (name, entry.direction))
    }

    /// Variables with their names, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (VarEntry, &Name)> {
        self.table.iter().map(|(name, entry)| (entry, name))
    }

    /// The tensor that is bound to a variable: its name, looked up in the set of its direction.
    ///
    /// # Errors
    /// A variable that is no input or output, or a name that the set does not have.
    pub fn resolve<T: Copy>(
        &self,
        var: VarId,
        inputs: &NameTable<T, impl Room<T>>,
        outputs: &NameTable<T, impl Room<T>>,
    ) -> Result<T, Miss<'_>> {
        let (name, direction) = self.get(var).ok_or(Miss::Variable { var })?;
        let tensor = match direction {
            Direction::Input => inputs.get_name(name),
            Direction::Output => outputs.get_name(name),
        };
        tensor.ok_or(Miss::Tensor { name })
    }

    fn probe(&self, var: VarId) -> Probe {
        self.table.probe(var.hash(), |entry| entry.value.is_some_and(|held| held.var == var))
    }
}

/// A variable that did not get into a map; the map is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum VarInsertError {
    /// Its name is too long.
    Name(NameTooLong),
    /// It is in the map already.
    Twice {
        /// The variable.
        var: VarId,
    },
    /// The map has no place for it.
    Table(InsertError),
}

impl From<NameTooLong> for VarInsertError {
    fn from(error: NameTooLong) -> Self {
        Self::Name(error)
    }
}

impl From<InsertError> for VarInsertError {
    fn from(error: InsertError) -> Self {
        Self::Table(error)
    }
}

impl fmt::Display for VarInsertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::Twice { var } => write!(f, "variable {var} occurs twice"),
            Self::Table(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for VarInsertError {}

/// A variable that no tensor could be found for. The texts are the wire contract's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss<'a> {
    /// The program has no input or output of this number.
    Variable {
        /// The variable.
        var: VarId,
    },
    /// The caller's set has no tensor of this name.
    Tensor {
        /// The name.
        name: &'a Name,
    },
}

impl fmt::Display for Miss<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable { var } => write!(f, "Failed to find io name for mr {var}"),
            Self::Tensor { name } => write!(f, "Failed to find fmap for tensor {name}"),
        }
    }
}

impl core::error::Error for Miss<'_> {}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use proptest::prelude::*;

    use super::super::table::{Full, TensorSet};
    use super::*;

    #[test]
    fn the_direction_of_the_variable_picks_the_set() {
        let mut map = VarMap::<FixedRoom<VarEntry, 4>>::new();
        map.insert(VarId(3), b"same", Direction::Output).unwrap();
        map.insert(VarId(9), b"same", Direction::Input).unwrap();
        let (mut inputs, mut outputs) = (TensorSet::<u8, 1>::new(), TensorSet::<u8, 1>::new());
        inputs.insert(b"same", 1).unwrap();
        outputs.insert(b"same", 2).unwrap();
        assert_eq!(map.resolve(VarId(9), &inputs, &outputs), Ok(1));
        assert_eq!(map.resolve(VarId(3), &inputs, &outputs), Ok(2));
    }

    #[test]
    fn the_two_misses_have_their_own_texts() {
        let mut map = VarMap::<FixedRoom<VarEntry, 1>>::new();
        map.insert(VarId(3), b"output0", Direction::Output).unwrap();
        let (inputs, outputs) = (TensorSet::<u8, 1>::new(), TensorSet::<u8, 1>::new());
        let text = |var| map.resolve(VarId(var), &inputs, &outputs).unwrap_err().to_string();
        assert_eq!(text(7), "Failed to find io name for mr 7");
        assert_eq!(text(3), "Failed to find fmap for tensor output0");
    }

    #[test]
    fn what_does_not_get_in_is_named() {
        let full = InsertError::Full(Full { capacity: 1, count: 1 });
        let mut map = VarMap::<FixedRoom<VarEntry, 1>>::new();
        let mut insert = |var, name: &[u8]| map.insert(VarId(var), name, Direction::Input);
        assert_eq!(insert(0, &[b'x'; 300]), Err(VarInsertError::Name(NameTooLong { len_bytes: 300 })));
        insert(0, b"x").unwrap();
        assert_eq!(insert(0, b"y"), Err(VarInsertError::Twice { var: VarId(0) }));
        assert_eq!(insert(1, b"y"), Err(VarInsertError::Table(full)));
        assert!(map.iter().map(|(entry, name)| (entry.var.0, name.to_string())).eq([(0, "x".to_string())]));
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
        fn every_variable_is_found_again(vars in prop::collection::hash_set(any::<u32>(), 0..64), other: u32) {
            let mut map = VarMap::<FixedRoom<VarEntry, 64>>::new();
            for var in &vars {
                map.insert(VarId(*var), &var.to_le_bytes(), Direction::Input).unwrap();
            }
            for var in &vars {
                let (name, _) = map.get(VarId(*var)).unwrap();
                prop_assert_eq!(name.as_bytes(), var.to_le_bytes());
            }
            prop_assert_eq!(map.get(VarId(other)).is_some(), vars.contains(&other));
        }
    }
}
