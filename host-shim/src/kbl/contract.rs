//! What a program wants to be bound: its inputs and outputs by name, and the join with the caller's sets.
//!
//! ```text
//!   contract entry (name, size, alignment, var_id, direction) ──name, in the set of that direction──► tensor ──► place
//! ```
//!
//! Direction stands in each entry, so one join mixes both sets.

use std::fmt;

use sluice_core::dma::Placement;
use sluice_core::fmap::{self, ContractEntry, Direction, Offence, VarId};
use sluice_core::mem::DevAddr;

use super::error::LoadError;
use super::ring::BuildFault;
use super::set::{Place, Snapshot, Table, TensorSet, try_table};
use crate::device::heap::Heap;
use crate::neff::{Program, Var};

/// A tensor that the contract asks for and the caller did not bring as asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offender {
    /// The set it belongs to.
    pub direction: Direction,
    /// Its name.
    pub name: String,
    /// Bytes needed.
    pub need_bytes: u64,
    /// What was found.
    pub found: Found,
}

/// What is wrong with a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The set has no tensor of that name.
    Missing,
    /// Its tensor is shorter than needed.
    TooSmall {
        /// Its length.
        got_bytes: u64,
    },
    /// Its tensor does not begin where the program needs it to.
    Misaligned {
        /// Of what its address has to be a multiple.
        need_align_bytes: u64,
        /// Its address.
        at: DevAddr,
    },
    /// Its tensor lies on another device.
    Elsewhere,
}

impl Offender {
    fn new(direction: Direction, name: &fmap::Name, need_bytes: u64, found: Found) -> Self {
        Self { direction, name: name.to_string(), need_bytes, found }
    }
}

impl From<Offence<'_>> for Offender {
    fn from(offence: Offence<'_>) -> Self {
        match offence {
            Offence::Missing { name, direction, need_bytes } => {
                Self::new(direction, name, need_bytes, Found::Missing)
            }
            Offence::TooSmall { name, direction, need_bytes, got_bytes } => {
                Self::new(direction, name, need_bytes, Found::TooSmall { got_bytes })
            }
        }
    }
}

impl fmt::Display for Offender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, name, need_bytes, found } = self;
        match found {
            Found::Missing => write!(f, "{direction} `{name}` is missing, need {need_bytes} bytes"),
            Found::TooSmall { got_bytes } => {
                write!(f, "{direction} `{name}` needs {need_bytes} bytes, got {got_bytes}")
            }
            Found::Misaligned { need_align_bytes, at } => {
                write!(
                    f,
                    "{direction} `{name}` needs an address that is a multiple of {need_align_bytes}, got {at}"
                )
            }
            Found::Elsewhere => write!(f, "{direction} `{name}` lies on another device"),
        }
    }
}

/// The caller's two sets, each with its snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sets<'a> {
    pub(super) inputs: (&'a TensorSet, &'a Snapshot),
    pub(super) outputs: (&'a TensorSet, &'a Snapshot),
}

/// Everything a program wants to be bound: inputs, then outputs, each in the order of the variables.
#[derive(Debug)]
pub(super) struct Contract {
    inputs: Table<ContractEntry>,
    outputs: Table<ContractEntry>,
    /// Per variable its place in the order of the contract.
    by_var: Box<[Option<u32>]>,
}

/// An empty table for the inputs, or the outputs.
pub(super) fn side_table(variables: usize) -> Result<Table<ContractEntry>, LoadError> {
    try_table(variables).map_err(|_| LoadError::Contract { variables })
}

/// Places of the bound tensors, in the order of the contract; none where the set has no tensor of the name.
#[derive(Debug)]
pub(super) struct Bindings {
    places: Vec<Option<Placement>>,
}

impl Bindings {
    pub(super) fn places(&self) -> &[Option<Placement>] {
        &self.places
    }
}

impl Contract {
    pub(super) fn of(program: &Program) -> Result<Self, LoadError> {
        let (inputs, outputs) = (program.inputs().collect(), program.outputs().collect());
        Self::new(program.vars.len(), inputs, outputs)
    }

    fn new(vars: usize, inputs: Vec<&Var>, outputs: Vec<&Var>) -> Result<Self, LoadError> {
        let mut by_var = vec![None; vars].into_boxed_slice();
        for (order, var) in (0..).zip(inputs.iter().chain(&outputs)) {
            by_var[var.id.0 as usize] = Some(order);
        }
        let side = |vars: Vec<&Var>, direction| {
            let mut side = side_table(vars.len())?;
            for var in vars {
                let Var { size_bytes, alignment_bytes: align_bytes, id: var_id, .. } = *var;
                let entry = ContractEntry { size_bytes, align_bytes, var: var_id, direction };
                side.insert(var.name.as_bytes(), entry)?;
            }
            Ok::<_, LoadError>(side)
        };
        let (inputs, outputs) = (side(inputs, Direction::Input)?, side(outputs, Direction::Output)?);
        Ok(Self { inputs, outputs, by_var })
    }

    /// Names and what is wanted of their tensors, in order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&fmap::Name, ContractEntry)> {
        self.inputs.iter().chain(self.outputs.iter())
    }

    /// Joins both sets to the contract. Every entry that has no proper tensor is added to `offenders`.
    pub(super) fn join(&self, sets: Sets<'_>, heap: &Heap, offenders: &mut Vec<Offender>) -> Bindings {
        let mut places = Vec::with_capacity(self.inputs.len() + self.outputs.len());
        for (side, (set, snapshot)) in [(&self.inputs, sets.inputs), (&self.outputs, sets.outputs)] {
            let size_bytes_of = |place: Place| snapshot.view(place).size_bytes();
            offenders.extend(side.offences(set.places(), size_bytes_of).map(Offender::from));
            for (name, entry) in side.iter() {
                let Some(place) = set.places().get_name(name) else {
                    places.push(None);
                    continue;
                };
                let view = snapshot.view(place);
                let ContractEntry { size_bytes, align_bytes: need_align_bytes, direction, .. } = entry;
                let at = view.at();
                let found = if !view.heap().is(heap) {
                    Some(Found::Elsewhere)
                } else if !at.0.is_multiple_of(need_align_bytes) {
                    Some(Found::Misaligned { need_align_bytes, at })
                } else {
                    None
                };
                offenders.extend(found.map(|found| Offender::new(direction, name, size_bytes, found)));
                places.push(Some(Placement { base: at, size_bytes: view.size_bytes() }));
            }
        }
        Bindings { places }
    }

    /// The tensors of both sets that the contract does not name.
    pub(super) fn extras(&self, sets: Sets<'_>) -> impl Iterator<Item = (Direction, String)> {
        let side = |direction, side: &Table<ContractEntry>, set: &TensorSet| {
            side.extras(set.places()).map(|name| (direction, name.to_string())).collect::<Vec<_>>()
        };
        let inputs = side(Direction::Input, &self.inputs, sets.inputs.0);
        inputs.into_iter().chain(side(Direction::Output, &self.outputs, sets.outputs.0))
    }

    /// The place of `var` in the order of the contract, if it is an input or output.
    pub(super) fn order_of(&self, var: VarId) -> Option<u32> {
        self.by_var.get(var.0 as usize).copied().flatten()
    }

    /// Where `var` is bound. A variable that is neither input nor output is one thing, an input or output without a tensor
    /// another.
    pub(super) fn place(&self, bindings: &Bindings, var: VarId) -> Result<Placement, BuildFault> {
        let order = self.order_of(var).ok_or(BuildFault::NoInputOrOutput(var))? as usize;
        bindings.places.get(order).copied().flatten().ok_or_else(|| match self.entries().nth(order) {
            Some((name, _)) => BuildFault::Unbound(Box::new(*name)),
            None => BuildFault::NoInputOrOutput(var),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kbl::Tensor;
    use crate::neff::VarKind;

    fn var(id: u32, name: &str, size_bytes: u64, kind: VarKind) -> Var {
        let (name, id) = (name.into(), VarId(id));
        Var { name, id, kind, size_bytes, alignment_bytes: 1, dtype: None, shape: vec![] }
    }

    fn contract(inputs: &[(&str, u64)], outputs: &[(&str, u64)]) -> Contract {
        let side = |first: usize, side: &[(&str, u64)], kind: VarKind| {
            let numbered = side.iter().enumerate();
            numbered
                .map(|(number, &(name, bytes))| var((first + number) as u32, name, bytes, kind.clone()))
                .collect::<Vec<_>>()
        };
        let (inputs, outputs) =
            (side(0, inputs, VarKind::Input), side(inputs.len(), outputs, VarKind::Output));
        let vars = inputs.len() + outputs.len() + 1;
        Contract::new(vars, inputs.iter().collect(), outputs.iter().collect()).unwrap()
    }

    fn set(heap: &Heap, tensors: &[(&str, u64)]) -> TensorSet {
        let mut set = TensorSet::with_capacity(8);
        for &(name, bytes) in tensors {
            set.add(name, Tensor::allocate(heap, bytes).unwrap()).unwrap();
        }
        set
    }

    struct Joined {
        bindings: Bindings,
        offenders: Vec<String>,
        extras: Vec<(Direction, String)>,
    }

    fn join(contract: &Contract, heap: &Heap, inputs: &TensorSet, outputs: &TensorSet) -> Joined {
        let (input_snapshot, output_snapshot) = (inputs.snapshot(), outputs.snapshot());
        let sets = Sets { inputs: (inputs, &input_snapshot), outputs: (outputs, &output_snapshot) };
        let mut offenders = Vec::new();
        let bindings = contract.join(sets, heap, &mut offenders);
        let offenders = offenders.iter().map(Offender::to_string).collect();
        Joined { bindings, offenders, extras: contract.extras(sets).collect() }
    }

    #[test]
    fn both_sets_are_joined_by_name_and_direction() {
        let heap = Heap::new(DevAddr(0x1000), 1 << 20);
        let contract = contract(&[("x", 64)], &[("x", 64)]);
        let (inputs, outputs) = (set(&heap, &[("x", 64)]), set(&heap, &[("extra", 1), ("x", 4096)]));
        let Joined { bindings, offenders, extras } = join(&contract, &heap, &inputs, &outputs);
        assert_eq!(offenders, [""; 0]);
        assert_eq!(extras, [(Direction::Output, "extra".into())]);
        let place = |var| contract.place(&bindings, VarId(var)).map(|place| (place.base, place.size_bytes));
        assert_eq!(place(0), Ok((inputs.get("x").unwrap().at(), 64)));
        assert_eq!(place(1), Ok((outputs.get("x").unwrap().at(), 4096)));
        for var in [2, 3] {
            assert_eq!(place(var), Err(BuildFault::NoInputOrOutput(VarId(var))));
        }
    }

    #[test]
    fn every_offender_is_named_at_once() {
        let (heap, other) = (Heap::new(DevAddr(0x1000), 1 << 20), Heap::new(DevAddr(0x1000), 1 << 20));
        let contract = contract(&[("a", 65536), ("b", 64)], &[("c", 8), ("d", 8)]);
        let inputs = set(&heap, &[("a", 4096)]);
        let mut outputs = set(&heap, &[("d", 8)]);
        outputs.add("c", Tensor::allocate(&other, 8).unwrap()).unwrap();
        assert_eq!(
            join(&contract, &heap, &inputs, &outputs).offenders,
            [
                "input `a` needs 65536 bytes, got 4096",
                "input `b` is missing, need 64 bytes",
                "output `c` lies on another device",
            ]
        );
    }

    #[test]
    fn a_tensor_that_begins_elsewhere_than_the_program_needs_is_named() {
        let heap = Heap::new(DevAddr(0x1000), 1 << 20);
        let input = Var { alignment_bytes: 4096, ..var(0, "a", 64, VarKind::Input) };
        let contract = Contract::new(1, vec![&input], vec![]).unwrap();
        let aligned = Tensor::allocate_aligned(&heap, 8192, 4096).unwrap();
        let bound = |tensor: Tensor| {
            let mut inputs = TensorSet::with_capacity(1);
            inputs.add("a", tensor).unwrap();
            join(&contract, &heap, &inputs, &TensorSet::with_capacity(1)).offenders
        };
        let odd = aligned.slice(64, 4096).unwrap();
        assert_eq!(
            bound(odd.clone()),
            [format!("input `a` needs an address that is a multiple of 4096, got {}", odd.at())]
        );
        assert_eq!(bound(aligned.slice(4096, 64).unwrap()), [""; 0]);
    }
}
