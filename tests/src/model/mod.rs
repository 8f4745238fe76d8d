//! Exhaustive exploration of the shipped protocol code.

mod canonical;
pub mod explore;
pub mod layout;
pub mod memory;
mod scc;
pub mod suite;
pub mod world;
