//! What host and firmware say to each other about one execution.
//!
//! | module | idea |
//! |---|---|
//! | `place` | where something runs: core, lane |

mod place;

pub use place::{CoreIndex, LaneIndex};
