//! The calling processor: its number, its counter and timer, its sleep, the faults it takes.
#![allow(unsafe_code, reason = "reads and sets the processor's own registers")]

use core::arch::asm;

/// Sleeps until an interrupt is pending.
pub(crate) fn sleep() {
    // SAFETY: waits with interrupts masked; one that is pending ends it.
    unsafe { asm!("dsb sy", "wfi", options(nostack, preserves_flags)) }
}

/// Sleeps until an interrupt is pending, for `cycles` cycles at most.
pub(crate) fn nap(cycles: u64) {
    // SAFETY: sets the processor's own timer, whose interrupt is never taken.
    unsafe {
        asm!("msr cntv_tval_el0, {}", "msr cntv_ctl_el0, {}", in(reg) cycles.min(i32::MAX as u64), in(reg) 1u64,
            options(nostack, preserves_flags));
    }
    sleep();
    // SAFETY: stops that timer.
    unsafe { asm!("msr cntv_ctl_el0, xzr", options(nostack, preserves_flags)) }
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

/// Its number.
pub(crate) fn number() -> u32 {
    let affinity: u64;
    // SAFETY: reads a constant.
    unsafe { asm!("mrs {}, mpidr_el1", out(reg) affinity, options(nomem, nostack, preserves_flags)) }
    affinity as u32 & 0xFF
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

/// Goes on at `entry`, and never comes back.
///
/// # Safety
/// Instructions have to lie there that need nothing of what runs now: all that other processors and this one have reached
/// until now may be written over.
pub(crate) unsafe fn go_on_at(entry: u64) -> ! {
    // SAFETY: the caller's. Instructions written before are seen: the instruction cache is emptied after the stores are done.
    // They find the stack pointer selected as a processor that starts does.
    unsafe {
        asm!("msr spsel, #1", "dsb sy", "ic iallu", "dsb sy", "isb", "mov x0, xzr", "br {}", in(reg) entry, options(noreturn, nostack));
    }
}
