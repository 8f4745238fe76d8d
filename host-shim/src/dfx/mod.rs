//! Placeholder for `dfx`.
