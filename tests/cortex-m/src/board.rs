//! The board: start, faults, and the shared memory. The only module of this image with `unsafe`.
#![allow(unsafe_code, reason = "start-up code and the one mapping of the shared memory live here")]

use core::panic::PanicInfo;
use core::ptr::NonNull;

// Printing under semihosting takes the critical section that this crate provides.
use cortex_m as _;
use cortex_m_rt::{ExceptionFrame, entry, exception};
use cortex_m_semihosting::{debug, hprintln};
use sluice_core::mem::{DevAddr, Slab, Volatile};

use crate::harness;

/// The shared memory as firmware reaches it: volatile cells and barriers.
pub(crate) type Shared = Volatile<Slab<()>>;

/// Device address of the shared memory. Its upper half is not zero, so an address cut to 32 bits is noticed.
pub(crate) const SHARED_BASE: DevAddr = DevAddr(0x0000_0042_2100_0000);

unsafe extern "C" {
    static __shared_start: u8;
    static __shared_end: u8;
}

#[entry]
fn main() -> ! {
    let start = &raw const __shared_start;
    let bytes = &raw const __shared_end as usize - start as usize;
    let start = NonNull::new(start.cast_mut()).unwrap_or_else(|| unreachable!("the map puts it above zero"));
    // SAFETY: the memory map reserves these bytes of the board's RAM and places nothing in them; they exist as long as
    // the board runs, and this is the only place that makes anything of them.
    let slab = unsafe { Slab::new(start, bytes as u64, SHARED_BASE, ()) };
    exit(harness::run_all(crate::TESTS, &Volatile::new(slab)));
}

#[exception]
unsafe fn HardFault(frame: &ExceptionFrame) -> ! {
    hprintln!("hard fault at {:#010x}, called from {:#010x}", frame.pc(), frame.lr());
    exit(false)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    hprintln!("{}", info);
    harness::abandoned();
    exit(false)
}

/// Ends the emulator: status 0 when all is well, 1 otherwise.
fn exit(well: bool) -> ! {
    loop {
        debug::exit(if well { debug::EXIT_SUCCESS } else { debug::EXIT_FAILURE });
    }
}
