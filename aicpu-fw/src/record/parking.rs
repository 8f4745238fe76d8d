//! How a lane waits at a gate: a few looks at once, then sleeps that grow up to a millisecond and end early when the host
//! wakes the lanes.

use sluice_core::exec::LaneIndex;
use sluice_core::gate::{Gate, WaitEnv};
use sluice_core::mem::{Clock, DeviceMemory, Relax};

use super::heartbeat::Heartbeat;
use crate::platform::{Context, Platform};

/// Looks before the first sleep.
const SPIN_ROUNDS: u32 = 16;
/// The first sleep is this part of a second.
const FIRST_SLEEP_PER_SECOND: u64 = 20_000;
/// Times that a sleep doubles.
const DOUBLINGS: u32 = 4;

/// The surroundings of a lane that waits.
pub(super) struct Parking<'a, P: Platform> {
    cx: &'a Context<P>,
    lane: LaneIndex,
    heartbeat: &'a mut Heartbeat<P::Memory>,
}

impl<'a, P: Platform> Parking<'a, P> {
    pub(super) fn new(cx: &'a Context<P>, lane: LaneIndex, heartbeat: &'a mut Heartbeat<P::Memory>) -> Self {
        Self { cx, lane, heartbeat }
    }

    /// The device that it is on.
    pub(super) fn context(&self) -> &'a Context<P> {
        self.cx
    }
}

impl<P: Platform> Clock for Parking<'_, P> {
    fn now_cycles(&self) -> u64 {
        self.cx.now_cycles()
    }

    fn frequency_hz(&self) -> u64 {
        self.cx.platform().frequency_hz()
    }
}

impl<P: Platform<Memory: DeviceMemory>> Relax for Parking<'_, P> {
    fn relax(&mut self, round: u32) {
        self.heartbeat.beat();
        let sleeps = match round.checked_sub(SPIN_ROUNDS) {
            None if round > 0 => return core::hint::spin_loop(),
            None => {
                // Contention was raised just now, and perhaps buffers were published before that.
                self.cx.note_host_news();
                return self.cx.tell_host();
            }
            Some(sleeps) => sleeps,
        };
        // The signal may have been taken and raised again.
        self.cx.note_host_news();
        self.cx.tell_host();
        let first_cycles = (self.frequency_hz() / FIRST_SLEEP_PER_SECOND).max(1);
        self.cx.platform().wait(first_cycles << sleeps.min(DOUBLINGS), || false);
    }
}

impl<P: Platform> WaitEnv for Parking<'_, P> {
    fn note_parked(&mut self, gate: Gate) {
        self.cx.platform().note_parked(self.lane, gate);
    }
}
