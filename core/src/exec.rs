//! Placeholder for `exec`.
