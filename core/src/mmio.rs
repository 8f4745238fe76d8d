//! Placeholder for `mmio`.
