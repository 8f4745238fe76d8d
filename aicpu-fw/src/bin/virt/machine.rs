//! What all processors share: the memory that the host has laid out, the bells, and how processors are started and stopped.
#![allow(unsafe_code, reason = "processors are started, and the last one leaves")]

use aarch64_rt::{Stack, start_core};
use sluice_aicpu_fw::Place;
use sluice_core::exec::BootShape;
use sluice_core::exec::image::VIRT_STUB;
use sluice_core::exec::link::{DeviceLink, LinkPlace, Listener, Ringer};
use sluice_core::exec::loader::Recall;
use smccc::psci::{AffinityState, LowestAffinityLevel};
use smccc::{Hvc, psci};
use spin::Once;

use super::shared::{LINK, Shared, end_of, leave_reason, share_up_to, shared};
use super::{START_PAGES, cpu, gic, run, stack, uart};

/// Most processors that firmware runs on.
pub(crate) const MOST: usize = 8;

/// Naps while the other processors switch off, or while nobody wants the board back.
const NAPS_PER_SECOND: u64 = 1000;

/// What all processors share.
pub(crate) struct Machine {
    pub(crate) memory: Shared,
    place: LinkPlace,
    lanes: u32,
    pub(crate) link: DeviceLink<Shared>,
    pub(crate) to_host: Ringer<Shared>,
    pub(crate) from_host: Listener<Shared>,
    recall: Recall<Shared>,
}

static MACHINE: Once<Machine> = Once::new();

/// What all processors but the first start on.
#[unsafe(link_section = ".stack.processors")]
static mut STACKS: [Stack<START_PAGES>; MOST - 1] = [const { Stack::new() }; MOST - 1];

impl Machine {
    /// Finds out what the host has laid out. Called once, by the first processor.
    pub(crate) fn start() -> &'static Self {
        gic::start();
        uart::start();
        MACHINE.call_once(|| {
            let memory = shared();
            let Ok(Some(place)) = LinkPlace::read(&memory, LINK) else {
                panic!("no host has laid out the memory")
            };
            let Some(end) = end_of(&place) else {
                panic!("shared memory ends at or behind {:#x}", place.boot.0)
            };
            share_up_to(end);
            let shape = match BootShape::read(&memory, place.boot) {
                Ok(shape) => shape,
                Err(error) => panic!("{error}"),
            };
            if place.processors as usize > MOST || place.processors < shape.lanes {
                panic!("need {} to {MOST} processors, got {}", shape.lanes, place.processors);
            }
            let parts = || {
                Ok::<_, sluice_core::mem::Fault>((
                    DeviceLink::attach(&memory, LINK)?,
                    Ringer::to_host(&memory, LINK)?,
                    Listener::on_device(&memory, LINK)?,
                    Recall::attach(&memory, LINK)?,
                ))
            };
            match parts() {
                Ok((link, to_host, from_host, recall)) => {
                    Self { lanes: shape.lanes, place, link, to_host, from_host, recall, memory }
                }
                Err(fault) => panic!("{fault}"),
            }
        })
    }

    /// The machine, once it has started.
    pub(crate) fn get() -> &'static Self {
        match MACHINE.get() {
            Some(machine) => machine,
            None => panic!("the first processor has not started the machine"),
        }
    }

    pub(crate) fn processors(&self) -> u32 {
        self.place.processors
    }

    pub(crate) fn lanes(&self) -> u32 {
        self.lanes
    }

    pub(crate) fn place(&self) -> Place {
        Place { ram: self.place.ram, registers: self.place.registers, boot: self.place.boot }
    }

    /// Has processor `id`, not the first, run its services. Once for each.
    pub(crate) fn start_processor(&self, id: u32) {
        let start = (&raw mut STACKS).cast::<Stack<START_PAGES>>().wrapping_add(id as usize - 1);
        // SAFETY: each processor but the first has a stack of its own in memory that the page table maps alike for all, and
        // nothing else touches it.
        let started = unsafe {
            start_core::<Hvc, _, START_PAGES>(u64::from(id), start, move || stack::run_on(id, run))
        };
        if let Err(error) = started {
            panic!("processor {id} does not start: {error}");
        }
    }

    /// Tells the host that one more processor has its services.
    pub(crate) fn note_ready(&self) {
        if let Err(fault) = self.link.note_ready() {
            panic!("{fault}");
        }
        self.ring_host();
    }

    /// Whether the host wants the board back.
    #[inline]
    pub(crate) fn is_recalled(&self) -> bool {
        self.recall.is_wanted()
    }

    /// Switches the calling processor off, or, if it is the first, goes on in the boot stub once all others are off.
    pub(crate) fn hand_back(&self) -> ! {
        if cpu::number() != 0 {
            let _ = psci::cpu_off::<Hvc>();
            panic!("processor {} cannot be switched off", cpu::number());
        }
        let is_off =
            |id| matches!(psci::affinity_info::<Hvc>(id, LowestAffinityLevel::All), Ok(AffinityState::Off));
        while !(1..self.processors()).all(|id| is_off(u64::from(id))) {
            nap();
        }
        // SAFETY: the stub lies there, which begins as after a reset. No other processor runs, and this function's own
        // processor uses nothing of this image from here on.
        unsafe { cpu::go_on_at(VIRT_STUB.0) }
    }

    /// Tells the host to look.
    pub(crate) fn ring_host(&self) {
        if self.to_host.ring() {
            uart::send();
        }
    }
}

/// Leaves `reason` for the host and stops the calling processor.
pub(crate) fn stand_still(reason: &str) -> ! {
    leave_reason(cpu::number(), reason);
    let Some(machine) = MACHINE.get() else {
        loop {
            cpu::sleep();
        }
    };
    machine.ring_host();
    while !machine.is_recalled() {
        nap();
    }
    machine.hand_back()
}

fn nap() {
    cpu::nap(cpu::frequency_hz() / NAPS_PER_SECOND);
    gic::take(uart::drain);
}
