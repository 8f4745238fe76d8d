//! The contract of a model: what it wants bound, and how a caller's set falls short of it.

use core::fmt;

use super::name::Name;
use super::table::{FixedTable, NameTable, Room};
use super::var::VarId;

/// Whether an execution reads a variable or writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Direction {
    /// The caller brings the bytes.
    Input,
    /// The execution leaves the bytes.
    Output,
}

impl Direction {
    /// The mem-ref type of such a variable: 6 − (1 for an input) (NEFF container facts).
    pub const fn mem_ref_type(self) -> u32 {
        match self {
            Self::Input => 5,
            Self::Output => 6,
        }
    }

    /// The direction of a variable of this mem-ref type; `None` when it is neither input nor output.
    pub const fn of_mem_ref_type(mem_ref_type: u32) -> Option<Self> {
        match mem_ref_type {
            5 => Some(Self::Input),
            6 => Some(Self::Output),
            _ => None,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Output => "output",
        })
    }
}

/// What a model wants bound to one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContractEntry {
    /// The least bytes that a tensor must have; more is fine.
    pub size_bytes: u64,
    /// A tensor must begin at a multiple of this. Sets hold handles, so whoever knows their addresses checks it.
    pub align_bytes: u64,
    /// The variable.
    pub var: VarId,
    /// Whether it is read or written.
    pub direction: Direction,
}

/// The contract of a model, in arrays.
pub type ContractSet<const N: usize> = FixedTable<ContractEntry, N>;

impl<R: Room<ContractEntry>> NameTable<ContractEntry, R> {
    /// Every entry that `tensors` does not satisfy, in the order of the contract. `size_bytes_of` gives the size of
    /// a tensor by its handle.
    pub fn offences<'a, T: Copy, Q: Room<T>>(
        &'a self,
        tensors: &'a NameTable<T, Q>,
        size_bytes_of: impl Fn(T) -> u64 + 'a,
    ) -> impl Iterator<Item = Offence<'a>> {
        self.iter().filter_map(move |(name, entry)| {
            let ContractEntry { size_bytes: need_bytes, direction, .. } = entry;
            match tensors.get_name(name).map(&size_bytes_of) {
                None => Some(Offence::Missing { name, direction, need_bytes }),
                Some(got_bytes) if got_bytes < need_bytes => {
                    Some(Offence::TooSmall { name, direction, need_bytes, got_bytes })
                }
                Some(_) => None,
            }
        })
    }

    /// The tensors of a set that the contract does not name.
    pub fn extras<'a, T: Copy, Q: Room<T>>(
        &'a self,
        tensors: &'a NameTable<T, Q>,
    ) -> impl Iterator<Item = &'a Name> {
        tensors.iter().map(|(name, _)| name).filter(|name| self.get_name(name).is_none())
    }
}

/// An entry of the contract that a tensor set does not satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offence<'a> {
    /// No tensor of that name.
    Missing {
        /// The name.
        name: &'a Name,
        /// Whether it is read or written.
        direction: Direction,
        /// Bytes it must have.
        need_bytes: u64,
    },
    /// A tensor that is too small.
    TooSmall {
        /// The name.
        name: &'a Name,
        /// Whether it is read or written.
        direction: Direction,
        /// Bytes it must have.
        need_bytes: u64,
        /// Bytes it has.
        got_bytes: u64,
    },
}

impl fmt::Display for Offence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, direction, need_bytes } => {
                write!(f, "{direction} `{name}` is missing, need {need_bytes} bytes")
            }
            Self::TooSmall { name, direction, need_bytes, got_bytes } => {
                write!(f, "{direction} `{name}` needs {need_bytes} bytes, got {got_bytes}")
            }
        }
    }
}

impl core::error::Error for Offence<'_> {}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use super::super::table::TensorSet;
    use super::*;

    fn contract() -> ContractSet<3> {
        let mut contract = ContractSet::new();
        for (var, (name, size_bytes)) in [("x", 100), ("y", 200), ("z", 300)].into_iter().enumerate() {
            let (var, direction) = (VarId(var as u32), Direction::Input);
            let entry = ContractEntry { size_bytes, align_bytes: 1, var, direction };
            contract.insert(name.as_bytes(), entry).unwrap();
        }
        contract
    }

    #[test]
    fn every_offence_is_named_with_its_numbers() {
        let contract = contract();
        let mut tensors = TensorSet::<u64, 4>::new();
        for (name, size_bytes) in [("z", 299), ("bias", 8), ("x", 101)] {
            tensors.insert(name.as_bytes(), size_bytes).unwrap();
        }
        let offences: Vec<_> = contract.offences(&tensors, |size| size).map(|o| o.to_string()).collect();
        assert_eq!(offences, ["input `y` is missing, need 200 bytes", "input `z` needs 300 bytes, got 299"]);
        assert!(contract.extras(&tensors).map(Name::to_string).eq(["bias"]));
    }

    #[test]
    fn exact_and_larger_tensors_satisfy() {
        let contract = contract();
        let mut tensors = TensorSet::<u64, 3>::new();
        for (name, size_bytes) in [("x", 100), ("y", 200), ("z", u64::MAX)] {
            tensors.insert(name.as_bytes(), size_bytes).unwrap();
        }
        assert_eq!(contract.offences(&tensors, |size| size).next(), None);
        assert_eq!(contract.extras(&tensors).next(), None);
    }

    #[test]
    fn directions_are_mem_ref_types() {
        for direction in [Direction::Input, Direction::Output] {
            assert_eq!(Direction::of_mem_ref_type(direction.mem_ref_type()), Some(direction));
        }
        assert_eq!(Direction::of_mem_ref_type(7), None);
    }
}
