//! Exhaustive exploration of the shipped protocol code.

pub mod arena;
mod canonical;
mod checks;
pub mod explore;
pub mod layout;
pub mod memory;
pub mod rotation;
mod scc;
mod scenarios;
pub mod state;
pub mod suite;
pub mod world;
