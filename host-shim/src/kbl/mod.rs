//! Placeholder for `kbl`.
