//! Placeholder for `fmap`.
