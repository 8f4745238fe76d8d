//! The interrupt controller, as far as it ends sleep: nothing is ever taken, interrupts stay masked.
//!
//! | interrupt | source | to |
//! |---|---|---|
//! | 0 | another processor | any |
//! | 27 | the processor's virtual timer | itself |
//! | 33 | UART 0: a byte from the host | processor 0 |
#![allow(unsafe_code, reason = "the registers lie at fixed addresses")]

use volatile_register::{RO, RW, WO};

const DISTRIBUTOR: usize = 0x0800_0000;
const INTERFACE: usize = 0x0801_0000;

const WAKE_UP: u32 = 0;
const TIMER: u32 = 27;
pub(crate) const UART: u32 = 33;
/// Numbers from here on stand for none.
const NONE: u32 = 1020;

#[repr(C)]
struct Distributor {
    control: RW<u32>,
    _to_enable: [u32; 63],
    /// 0x100; the first is each processor's own.
    enable: [RW<u32>; 32],
    _to_targets: [u32; 416],
    /// 0x800: a byte per interrupt, a bit per processor.
    targets: [RW<u32>; 255],
    _to_software: [u32; 193],
    /// 0xF00.
    software: WO<u32>,
}

const _: () = {
    assert!(core::mem::offset_of!(Distributor, enable) == 0x100);
    assert!(core::mem::offset_of!(Distributor, targets) == 0x800);
    assert!(core::mem::offset_of!(Distributor, software) == 0xF00);
};

#[repr(C)]
struct Interface {
    control: RW<u32>,
    mask: RW<u32>,
    _binary_point: u32,
    acknowledge: RO<u32>,
    end: WO<u32>,
}

fn distributor() -> &'static Distributor {
    // SAFETY: the board has the distributor's registers there for ever, mapped as device memory; each access is one word.
    unsafe { &*(DISTRIBUTOR as *const Distributor) }
}

fn interface() -> &'static Interface {
    // SAFETY: as for the distributor; each processor sees its own.
    unsafe { &*(INTERFACE as *const Interface) }
}

/// Lets bytes from the host reach processor 0. Once.
pub(crate) fn start() {
    let (word, bit) = ((UART / 32) as usize, 1 << (UART % 32));
    let gic = distributor();
    // SAFETY: stores that route and enable one interrupt, which stays masked at every processor.
    unsafe {
        gic.targets[(UART / 4) as usize].write(1 << (8 * (UART % 4)));
        gic.enable[word].write(bit);
        gic.control.write(1);
    }
}

/// Lets the timer and other processors end the sleep of the calling one.
pub(crate) fn start_processor() {
    // SAFETY: stores to the processor's own registers; interrupts stay masked.
    unsafe {
        distributor().enable[0].write(1 << TIMER | 1 << WAKE_UP);
        interface().mask.write(0xFF);
        interface().control.write(1);
    }
}

/// Ends the sleep of `processor`, or its next one.
pub(crate) fn wake(processor: u32) {
    // SAFETY: a store that sends a software interrupt.
    unsafe { distributor().software.write(1 << (16 + processor) | WAKE_UP) }
}

/// Takes everything that is pending at the calling processor, without being interrupted; `uart` is called if bytes of the host's are
/// among it.
pub(crate) fn take(mut uart: impl FnMut()) {
    loop {
        let taken = interface().acknowledge.read();
        let number = taken & 0x3FF;
        if number >= NONE {
            return;
        }
        if number == UART {
            uart();
        }
        // SAFETY: a store that ends the interrupt that was just taken.
        unsafe { interface().end.write(taken) };
    }
}
