//! One processor as the firmware sees it: its clock, its sleep, and how it wakes others.
//!
//! ```text
//!   sleeper                              waker
//!   pending? := no, and back             pending := yes; was it no? software interrupt
//!   timer, wait for an interrupt ◄────── pending at the controller until it is taken
//!   take what is pending; again
//! ```
//!
//! The timer bounds each sleep: stores of the host raise no interrupt by themselves, and the doorbell reaches processor 0 only
//! while that sleeps.

use core::sync::atomic::{AtomicBool, Ordering};

use sluice_aicpu_fw::{Place, Platform};
use sluice_core::exec::LaneIndex;
use sluice_core::exec::vitals::StackUse;
use sluice_core::gate::Gate;
use sluice_core::mem::Clock;

use super::machine::Machine;
use super::shared::Shared;
use super::stack::Stack;
use super::{cpu, gic, uart};

/// Longest sleep: a tenth of a millisecond.
const SLEEPS_PER_SECOND: u64 = 10_000;

/// Who is to wake up, by processor.
static PENDING: [AtomicBool; 8] = [const { AtomicBool::new(false) }; 8];

/// The calling processor.
pub(crate) struct Processor {
    machine: &'static Machine,
    id: u32,
    stack: Stack,
}

impl Processor {
    /// Processor `id`, which calls.
    pub(crate) fn start(machine: &'static Machine, id: u32) -> Self {
        gic::start_processor();
        Self { machine, id, stack: Stack::of(id) }
    }

    fn take_wake_up(&self) -> bool {
        PENDING.get(self.id as usize).is_some_and(|pending| pending.swap(false, Ordering::SeqCst))
    }

    /// What the host rang for concerns everyone.
    fn hear_host(&self) {
        uart::drain();
        self.machine.from_host.hear();
        if self.machine.link.answer_clock(cpu::now_cycles) {
            self.machine.ring_host();
        }
        (0..self.machine.processors()).for_each(wake);
    }
}

/// Ends the sleep of `processor`, or its next one.
fn wake(processor: u32) {
    let Some(pending) = PENDING.get(processor as usize) else { return };
    if !pending.swap(true, Ordering::SeqCst) {
        gic::wake(processor);
    }
}

impl Clock for Processor {
    fn now_cycles(&self) -> u64 {
        cpu::now_cycles()
    }

    fn frequency_hz(&self) -> u64 {
        cpu::frequency_hz()
    }
}

impl Platform for Processor {
    type Memory = Shared;

    fn memory(&self) -> &Shared {
        &self.machine.memory
    }

    fn place(&self) -> Place {
        self.machine.place()
    }

    fn core_id(&self) -> u32 {
        self.id
    }

    fn processors(&self) -> u32 {
        self.machine.processors()
    }

    fn wait(&self, bound_cycles: u64, has_news: impl Fn() -> bool) {
        let most = cpu::frequency_hz() / SLEEPS_PER_SECOND;
        let began = cpu::now_cycles();
        while !self.take_wake_up() && !has_news() {
            let waited = cpu::now_cycles() - began;
            if waited >= bound_cycles.min(most) {
                break;
            }
            cpu::nap(bound_cycles.min(most) - waited);
            gic::take(|| self.hear_host());
        }
    }

    fn wake(&self, processor: u32) {
        wake(processor);
    }

    fn wake_host(&self) {
        self.machine.ring_host();
    }

    fn note_parked(&self, _lane: LaneIndex, _gate: Gate) {}

    fn stack(&self) -> Option<StackUse> {
        Some(self.stack.look())
    }
}
