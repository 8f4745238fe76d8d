//! Placeholder for `capture`.
