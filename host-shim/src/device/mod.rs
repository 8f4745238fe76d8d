//! The device as the host sees it.

pub mod heap;
