//! Captures in the form that other tools read.
//!
//! Exports read a capture front to back in bounded memory: first for clocks, names and waits, then for what they show.

pub mod clock;
pub mod csv;
pub mod intervals;
pub mod perfetto;
pub mod proto;
pub mod stall;
