//! Placeholder for `layout`.
