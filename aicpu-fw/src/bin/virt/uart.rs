//! The doorbell line: a byte either way says "look at memory", its value says nothing.
#![allow(unsafe_code, reason = "the registers lie at a fixed address")]

use volatile_register::{RO, RW};

const UART: usize = 0x0900_0000;

const RECEIVE_EMPTY: u32 = 1 << 4;
/// Enabled, sends and receives.
const ON: u32 = 1 | 1 << 8 | 1 << 9;
/// A byte has come, or stands there for a while.
const RECEIVED: u32 = 1 << 4 | 1 << 6;

/// An Arm PL011.
#[repr(C)]
struct Uart {
    data: RW<u32>,
    _to_flags: [u32; 5],
    flags: RO<u32>,
    _to_control: [u32; 5],
    control: RW<u32>,
    _level: u32,
    interrupts: RW<u32>,
    _to_clear: [u32; 2],
    clear: RW<u32>,
}

const _: () = {
    assert!(core::mem::offset_of!(Uart, flags) == 0x18 && core::mem::offset_of!(Uart, control) == 0x30);
    assert!(core::mem::offset_of!(Uart, interrupts) == 0x38 && core::mem::offset_of!(Uart, clear) == 0x44);
};

fn uart() -> &'static Uart {
    // SAFETY: the board has the UART's registers there for ever, mapped as device memory; each access is one word.
    unsafe { &*(UART as *const Uart) }
}

/// Has bytes from the host raise the interrupt. Once.
pub(crate) fn start() {
    // SAFETY: stores that switch the UART on.
    unsafe {
        uart().control.write(ON);
        uart().interrupts.write(RECEIVED);
    }
}

/// Takes every byte that has come.
pub(crate) fn drain() {
    while uart().flags.read() & RECEIVE_EMPTY == 0 {
        uart().data.read();
    }
    // SAFETY: a store that clears what the bytes just taken had raised.
    unsafe { uart().clear.write(RECEIVED) }
}

/// Sends a byte. The host reads all the time, so there is room.
pub(crate) fn send() {
    // SAFETY: a store that sends.
    unsafe { uart().data.write(u32::from(b'!')) }
}
