//! The board's memory: what the page table maps, and what the host shares.
#![allow(unsafe_code, reason = "the shared memory is mapped here")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use sluice_core::exec::link::{LINK_BYTES, LinkPlace};
use sluice_core::exec::loader::{LOADER_BYTES, LOADER_OFFSET};
use sluice_core::exec::vitals::ProcessorVitals;
use sluice_core::exec::{BOOT_BYTES, status_block};
use sluice_core::mem::{Backing, DevAddr, Volatile};

/// Device addresses are addresses of the board. Whatever the page table maps belongs to the shared memory from here on.
pub(crate) const LINK: DevAddr = DevAddr(0x4200_0000);
/// End of what the page table maps.
pub(crate) const MAPPED_END: u64 = 4 << 30;

/// Where shared memory ends: behind the two blocks that are there always until somebody has found out how much there is.
static SHARED_END: AtomicU64 = AtomicU64::new(LINK.0 + LOADER_OFFSET + LOADER_BYTES);

const _: () = assert!(LINK_BYTES <= LOADER_OFFSET, "the blocks lie behind each other");

/// The shared memory, mapped one to one for as long as the board runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Board;

// SAFETY: the page table maps everything from `LINK` up to `MAPPED_END`, behind which `SHARED_END` never lies, one to one for
// ever; the linker places nothing there, so no reference into it exists.
unsafe impl Backing for Board {
    type Keep = Self;

    fn keep(&self) -> Self {
        *self
    }

    fn resolve(&self, at: DevAddr, bytes: u64) -> Option<NonNull<u8>> {
        let end = at.0.checked_add(bytes)?;
        let is_inside = at >= LINK && end <= SHARED_END.load(Ordering::Relaxed);
        NonNull::new(at.0 as *mut u8).filter(|_| is_inside)
    }
}

/// The shared memory as processors reach it.
pub(crate) type Shared = Volatile<Board>;

/// The shared memory.
pub(crate) fn shared() -> Shared {
    Shared::new(Board)
}

/// Has the shared memory end at `end`, but no later than what is mapped.
pub(crate) fn share_up_to(end: u64) {
    SHARED_END.store(end.min(MAPPED_END), Ordering::Relaxed);
}

/// The end of the boot block, if the page table maps that much.
pub(crate) fn end_of(place: &LinkPlace) -> Option<u64> {
    place.boot.0.checked_add(BOOT_BYTES).filter(|&end| end <= MAPPED_END)
}

/// Leaves word of why `processor` has stopped, from the link block on: nothing else may be known yet. Where the host has laid
/// out none there is nobody to tell.
pub(crate) fn leave_reason(processor: u32, reason: &str) {
    if let Ok(Some(place)) = LinkPlace::read(&shared(), LINK)
        && let Some(end) = end_of(&place)
    {
        share_up_to(end);
        // Nobody is left to hear that it fails.
        let _ = ProcessorVitals::fault(&shared(), status_block(place.boot), processor, reason);
    }
}
