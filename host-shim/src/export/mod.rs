//! Placeholder for `export`.
