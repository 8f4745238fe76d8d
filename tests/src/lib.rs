//! Whole-system tests of Sluice and the tools they share.

pub mod model;
pub mod soak;
