//! Captures in the form that other tools read.
//!
//! Exports read a capture front to back in constant memory: two passes, the first for clocks and names.

pub mod clock;
pub mod perfetto;
pub mod proto;
