//! How a lane waits at a gate: a few looks at once, then sleeps that grow up to a millisecond and end early when the host
//! wakes the lanes.

use sluice_core::exec::LaneIndex;
use sluice_core::exec::vitals::LaneVitals;
use sluice_core::gate::{Gate, WaitEnv};
use sluice_core::layout::SubsystemId;
use sluice_core::mem::{Clock, DeviceMemory, Memory, Relax};

use super::heartbeat::Heartbeat;
use crate::platform::{Context, Platform};

/// Looks before the first sleep.
const SPIN_ROUNDS: u32 = 16;
/// The first sleep is this part of a second.
const FIRST_SLEEP_PER_SECOND: u64 = 20_000;
/// Times that a sleep doubles.
const DOUBLINGS: u32 = 4;

/// What a lane shows of itself while it waits.
pub(super) struct Signs<M: Memory> {
    /// To the host that serves it.
    pub(super) heartbeat: Heartbeat<M>,
    /// To anyone.
    pub(super) vitals: LaneVitals<M>,
}

impl<M: DeviceMemory> Signs<M> {
    /// The lane waits no more: its recorders have all been told. A wait of the next one has ended that of the one before.
    #[inline]
    pub(super) fn leave<P: Platform<Memory = M>>(&mut self, cx: &Context<P>) {
        if self.vitals.is_parked() {
            self.resume(cx);
        }
    }

    #[cold]
    #[inline(never)]
    fn resume<P: Platform<Memory = M>>(&mut self, cx: &Context<P>) {
        self.vitals.resume(cx.now_cycles());
    }
}

/// The surroundings of a lane that waits.
pub(super) struct Parking<'a, P: Platform> {
    cx: &'a Context<P>,
    lane: LaneIndex,
    subsystem: Option<SubsystemId>,
    gate: Gate,
    signs: &'a mut Signs<P::Memory>,
}

impl<'a, P: Platform> Parking<'a, P> {
    /// Those of `lane` at the gates of `subsystem`.
    pub(super) fn new(
        cx: &'a Context<P>,
        lane: LaneIndex,
        subsystem: Option<SubsystemId>,
        signs: &'a mut Signs<P::Memory>,
    ) -> Self {
        Self { cx, lane, subsystem, gate: Gate::Ready, signs }
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
        self.signs.heartbeat.beat();
        let sleeps = match round.checked_sub(SPIN_ROUNDS) {
            None if round > 0 => return core::hint::spin_loop(),
            None => {
                self.signs.vitals.park(self.gate, self.subsystem, self.cx.now_cycles());
                // Contention was raised just now, and perhaps buffers were published before that.
                self.cx.note_host_news();
                return self.cx.tell_host();
            }
            Some(sleeps) => sleeps,
        };
        self.signs.vitals.stay(self.cx.now_cycles());
        // The signal may have been taken and raised again.
        self.cx.note_host_news();
        self.cx.tell_host();
        let first_cycles = (self.frequency_hz() / FIRST_SLEEP_PER_SECOND).max(1);
        self.cx.platform().wait(first_cycles << sleeps.min(DOUBLINGS), || false);
    }
}

impl<P: Platform> WaitEnv for Parking<'_, P> {
    fn note_parked(&mut self, gate: Gate) {
        self.gate = gate;
        self.cx.platform().note_parked(self.lane, gate);
    }
}
