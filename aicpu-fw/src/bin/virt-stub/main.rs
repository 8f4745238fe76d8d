//! Boot stub for QEMU's `virt` board: waits until the host has staged an image, checks it, and starts it in its place.
//!
//! ```text
//!   wait ─► header: of this board, this layout, fits? ─► copy ─► CRC of the copy? ─► caches ─► its entry
//!    ▲ └─ no: answer with the reason ─┘                                                           │
//!    └────────────────────────────── the host wants the board back ◄────────────────────────────┘
//! ```
//!
//! The payload is copied before it is checked: what is checked is then out of the host's reach. It is copied by this processor's
//! own stores, because instructions that somebody else has written may be fetched as they were before.
#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "writes an image to its place and goes on in it")]

#[path = "../virt/cpu.rs"]
#[allow(dead_code, reason = "the stub measures no time and knows one processor")]
mod cpu;
#[path = "../virt/gic.rs"]
#[allow(dead_code, reason = "the stub wakes nobody")]
mod gic;
#[path = "../virt/shared.rs"]
mod shared;

use core::arch::asm;
use core::panic::PanicInfo;

use aarch64_rt::{
    ExceptionHandlers, InitialPagetable, RegisterStateRef, entry, exception_handlers, initial_pagetable,
};
use sluice_core::exec::image::{BadImage, IMAGE_HEADER_BYTES, ImageHeader, VIRT_ROOM};
use sluice_core::exec::loader::{Staged, StubLoader};
use sluice_core::mem::{CopyMemory, DevAddr, Fault};

use shared::{LINK, MAPPED_END, Shared, share_up_to, shared};

const LOOKS_PER_SECOND: u64 = 2000;

entry!(main, 8);

initial_pagetable!({
    /// Valid, a block, accessed; memory outer and inner write-back, inner shareable.
    const MEMORY: usize = 0b1 | 1 << 2 | 0b11 << 8 | 1 << 10;
    /// Valid, a block, accessed, never executed.
    const DEVICE: usize = 0b1 | 1 << 10 | 1 << 54;
    const GIB: usize = 1 << 30;
    let mut map = [0; 512];
    map[0] = DEVICE;
    map[1] = MEMORY | GIB;
    map[2] = MEMORY | (2 * GIB);
    map[3] = MEMORY | (3 * GIB);
    InitialPagetable(map)
});

fn main(_: u64, _: u64, _: u64, _: u64) -> ! {
    gic::start();
    gic::start_processor();
    share_up_to(MAPPED_END);
    match wait(&shared()) {
        // SAFETY: an image that was checked lies there, in memory of its own, and begins as after a reset.
        Ok(entry) => unsafe { cpu::go_on_at(entry.0) },
        Err(_) => stand_still("the boot stub cannot reach the memory it shares"),
    }
}

/// Waits for an image that can be started, and says where.
fn wait(memory: &Shared) -> Result<DevAddr, Fault> {
    let loader = StubLoader::wait_at(memory, LINK)?;
    loop {
        if let Some(staged) = loader.asked()? {
            let placed = place(memory, staged)?;
            loader.answer(placed.map(|_| ()))?;
            if let Ok(entry) = placed {
                return Ok(entry);
            }
        }
        cpu::nap(cpu::frequency_hz() / LOOKS_PER_SECOND);
        gic::take(|| ());
    }
}

/// Puts what is staged into its place.
fn place(memory: &Shared, Staged { at, bytes }: Staged) -> Result<Result<DevAddr, BadImage>, Fault> {
    let Some(payload_bytes) = bytes.checked_sub(IMAGE_HEADER_BYTES as u64) else {
        return Ok(Err(BadImage::Length { need: IMAGE_HEADER_BYTES as u64, got: bytes }));
    };
    let mut header = [0; IMAGE_HEADER_BYTES];
    memory.read_bytes(DevAddr(at), &mut header)?;
    let checked = ImageHeader::decode(&header, bytes).and_then(|header| {
        header.check_fit(&VIRT_ROOM)?;
        Ok(header)
    });
    let header = match checked {
        Ok(header) => header,
        Err(bad) => return Ok(Err(bad)),
    };
    // SAFETY: the range lies inside the memory that the board has for images, as was just checked. The page table maps it, and
    // while the stub runs nothing else uses it.
    let payload =
        unsafe { core::slice::from_raw_parts_mut(header.load.0 as *mut u8, payload_bytes as usize) };
    memory.read_bytes(DevAddr(at + IMAGE_HEADER_BYTES as u64), payload)?;
    Ok(header.check_payload(payload).map(|()| {
        clean(header.load.0, payload_bytes);
        header.entry
    }))
}

/// Has instruction fetches see what was stored to the `bytes` bytes at `start`.
fn clean(start: u64, bytes: u64) {
    /// The least that a line can have.
    const LINE: usize = 16;
    for line in (start..start + bytes).step_by(LINE) {
        // SAFETY: writes a line of mapped memory back.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) }
    }
}

exception_handlers!(Exceptions);

struct Exceptions;

impl ExceptionHandlers for Exceptions {
    extern "C" fn sync_current(_: RegisterStateRef) {
        stand_still("the boot stub took a fault")
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    stand_still("the boot stub panicked")
}

/// Leaves `reason` for the host.
fn stand_still(reason: &str) -> ! {
    shared::leave_reason(0, reason);
    loop {
        cpu::sleep();
    }
}
