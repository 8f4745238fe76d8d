//! Fixed-capacity name tables: how a compiled model's variables meet the caller's tensors.
//!
//! A program names its variables by number, the caller names tensors by string. Two tables join them, for
//! inputs and outputs mixed, because the direction stands in the entry of the variable:
//!
//! ```text
//!   var_id ──VarMap──► (name, direction) ──► input set  ──┐
//!                                        └─► output set ──┴──► the caller's tensor
//!          "Failed to find io name for mr 7"     "Failed to find fmap for tensor x"
//! ```
//!
//! | table | key → value | full |
//! |---|---|---|
//! | contract, one per direction | name → size, alignment, variable, direction | error with capacity and count |
//! | tensor set, one per direction | name → the caller's handle | the same; a name that is in it is still overwritten |
//! | variable map | variable → name, direction | the same |
//!
//! All of them are one open-addressing scheme ([`NameTable`], [`VarMap`]) with two slots per entry, so the load never
//! exceeds a half. A look-up takes a bounded number of steps, whatever the names are: one that collides with too many others
//! is refused. Nothing is allocated: entries and slots are arrays ([`FixedTable`]) or slices that the caller brings
//! ([`Room`]). Large tables are built where they stay: [`FixedTable::new`] is `const`, and a run-time sized table takes
//! its slices from wherever they are.

mod contract;
mod name;
mod probe;
mod table;
mod var;

pub use contract::{ContractEntry, ContractSet, Direction, Offence};
pub use name::{Name, NameTooLong};
pub use probe::{Slot, SlotPair};
pub use table::{Entry, FixedRoom, FixedTable, Full, InsertError, NameTable, Room, TensorSet};
pub use var::{Miss, VarEntry, VarId, VarInsertError, VarMap};
