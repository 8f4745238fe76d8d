//! Placeholder for `producer`.
