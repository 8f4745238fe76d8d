//! Fixed-capacity name tables: how a compiled model's variables meet the caller's tensors.

mod var;

pub use var::VarId;
