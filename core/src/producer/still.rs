//! Surroundings of a lane that never has to wait, for tests of recorders.

use crate::gate::{Gate, WaitEnv};
use crate::mem::{Clock, Relax};

/// A clock that stands, for a lane that finds what it needs.
pub(super) struct Still;

impl Clock for Still {
    fn now_cycles(&self) -> u64 {
        0
    }

    fn frequency_hz(&self) -> u64 {
        1
    }
}

impl Relax for Still {
    fn relax(&mut self, _: u32) {
        panic!("nothing waits here");
    }
}

impl WaitEnv for Still {
    fn note_parked(&mut self, _: Gate) {}
}
