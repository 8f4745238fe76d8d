//! Placeholder for `neff`.
