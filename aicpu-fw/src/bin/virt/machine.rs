//! What all processors share: the memory that the host has laid out, the bells, and how processors are started and stopped.
#![allow(
    unsafe_code,
    reason = "the shared memory is mapped here, and processors are started and stand still"
)]

use core::arch::asm;
use core::ptr::NonNull;

use aarch64_rt::{Stack, start_core};
use sluice_aicpu_fw::Place;
use sluice_core::exec::link::{DeviceLink, LINK_BYTES, LinkPlace, Listener, Ringer};
use sluice_core::exec::{BOOT_BYTES, BootShape};
use sluice_core::mem::{DevAddr, Slab, Volatile};
use smccc::Hvc;
use spin::Once;

use super::{STACK_PAGES, gic, uart};

/// Most processors that firmware runs on.
const MOST: usize = 8;

/// Device addresses are addresses of the board. Whatever the page table maps belongs to the shared memory from here on.
const LINK: DevAddr = DevAddr(0x4200_0000);
/// End of what the page table maps.
const MAPPED_END: u64 = 4 << 30;

/// Memory that is there as long as the board is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Board;

/// The shared memory as processors reach it.
pub(crate) type Shared = Volatile<Slab<Board>>;

/// What all processors share.
pub(crate) struct Machine {
    pub(crate) memory: Shared,
    place: LinkPlace,
    lanes: u32,
    pub(crate) link: DeviceLink<Shared>,
    pub(crate) to_host: Ringer<Shared>,
    pub(crate) from_host: Listener<Shared>,
}

static MACHINE: Once<Machine> = Once::new();

/// Stacks of all processors but the first.
#[unsafe(link_section = ".stack.processors")]
static mut STACKS: [Stack<STACK_PAGES>; MOST - 1] = [const { Stack::new() }; MOST - 1];

fn shared(bytes: u64) -> Shared {
    let Some(start) = NonNull::new(LINK.0 as *mut u8) else { panic!("shared memory begins at 0") };
    // SAFETY: the page table maps the range one to one for as long as the board runs; the linker places nothing there, so no
    // reference into it exists.
    Volatile::new(unsafe { Slab::new(start, bytes, LINK, Board) })
}

impl Machine {
    /// Finds out what the host has laid out. Called once, by the first processor.
    pub(crate) fn start() -> &'static Self {
        gic::start();
        uart::start();
        MACHINE.call_once(|| {
            let block = shared(LINK_BYTES);
            let Ok(Some(place)) = LinkPlace::read(&block, LINK) else {
                panic!("no host has laid out the memory")
            };
            let end = place.boot.0.checked_add(BOOT_BYTES).filter(|&end| end <= MAPPED_END);
            let Some(end) = end else { panic!("shared memory ends at or behind {:#x}", place.boot.0) };
            let memory = shared(end - LINK.0);
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
                ))
            };
            match parts() {
                Ok((link, to_host, from_host)) => {
                    Self { lanes: shape.lanes, place, link, to_host, from_host, memory }
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

    /// Has processor `id`, not the first, run `run`. Once for each.
    pub(crate) fn start_processor(&self, id: u32, run: fn(u32) -> !) {
        let stack = (&raw mut STACKS).cast::<Stack<STACK_PAGES>>().wrapping_add(id as usize - 1);
        // SAFETY: each processor but the first has a stack of its own in memory that the page table maps alike for all, and
        // nothing else touches it.
        let started = unsafe { start_core::<Hvc, _, STACK_PAGES>(u64::from(id), stack, move || run(id)) };
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

    /// Tells the host to look.
    pub(crate) fn ring_host(&self) {
        if self.to_host.ring() {
            uart::send();
        }
    }
}

/// Leaves `reason` for the host and stops the calling processor.
pub(crate) fn stand_still(reason: &str) -> ! {
    // Without a machine there is no place that the host would look at but this.
    if let Ok(link) = DeviceLink::attach(&shared(LINK_BYTES), LINK) {
        let _ = link.note_fault(reason);
    }
    if let Some(machine) = MACHINE.get() {
        machine.ring_host();
    }
    loop {
        sleep();
    }
}

/// Sleeps until an interrupt is pending.
pub(crate) fn sleep() {
    // SAFETY: waits with interrupts masked; one that is pending ends it.
    unsafe { asm!("dsb sy", "wfi", options(nostack, preserves_flags)) }
}

/// The counter.
pub(crate) fn now_cycles() -> u64 {
    let cycles;
    // SAFETY: reads a counter.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) cycles, options(nostack, preserves_flags)) }
    cycles
}

/// Its rate.
pub(crate) fn frequency_hz() -> u64 {
    let hz: u64;
    // SAFETY: reads a constant.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack, preserves_flags)) }
    hz
}

/// Has the timer end the sleep of the calling processor in `cycles` cycles.
pub(crate) fn set_timer(cycles: u64) {
    // SAFETY: sets the processor's own timer, whose interrupt is never taken.
    unsafe {
        asm!("msr cntv_tval_el0, {}", "msr cntv_ctl_el0, {}", in(reg) cycles.min(i32::MAX as u64), in(reg) 1u64,
            options(nostack, preserves_flags));
    }
}

/// Stops the timer of the calling processor.
pub(crate) fn stop_timer() {
    // SAFETY: as above.
    unsafe { asm!("msr cntv_ctl_el0, xzr", options(nostack, preserves_flags)) }
}

/// What kind of fault was taken last, and the address that it was about.
pub(crate) fn fault_registers() -> [u64; 2] {
    let (syndrome, address);
    // SAFETY: reads registers that describe the last fault.
    unsafe {
        asm!("mrs {}, esr_el1", "mrs {}, far_el1", out(reg) syndrome, out(reg) address,
            options(nomem, nostack, preserves_flags));
    }
    [syndrome, address]
}
