//! Placeholder for `mem`.
