//! A device's own memory: `volatile-register` cells plus the architecture's barriers.
//!
//! On a board the other side is a bus master or another core, and control words may lie in device memory where an atomic
//! instruction is not defined. Volatile accesses are single, in program order and never invented; the barrier orders them
//! against payload. (Rust's own threads must not share a word through this type; they use the atomic one.)

use core::ptr::NonNull;

use volatile_register::RW;

use super::{Backing, CopyMemory, DevAddr, DeviceMemory, Fault, Mapped, Memory, RawWindow, Word, Words};

/// Orders all memory accesses before it against all after it: `DMB` on Arm, the strongest fence elsewhere.
#[inline]
pub fn barrier() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a data memory barrier has no operands and no effect besides ordering.
    unsafe {
        core::arch::asm!("dmb sy", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "arm")]
    // SAFETY: a data memory barrier has no operands and no effect besides ordering.
    unsafe {
        core::arch::asm!("dmb", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "aarch64", target_arch = "arm")))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// Orders all stores before it against all stores after it, as others see them. Loads on x86 need not wait for that.
#[inline]
pub fn store_barrier() {
    if cfg!(any(target_arch = "aarch64", target_arch = "arm")) {
        barrier();
    } else {
        core::sync::atomic::fence(core::sync::atomic::Ordering::AcqRel);
    }
}

/// Device memory as the device itself reaches it.
#[derive(Clone, Debug)]
pub struct Volatile<B> {
    plain: Mapped<B>,
}

impl<B: Backing> Volatile<B> {
    /// Memory behind `backing`.
    pub fn new(backing: B) -> Self {
        Self { plain: Mapped::new(backing) }
    }

    /// Not inlined, like what copies: an image attaches hundreds of words, and each would bring the checks along.
    #[inline(never)]
    fn cells(&self, at: DevAddr, count: u32) -> Result<NonNull<RW<u32>>, Fault> {
        let bytes = u64::from(count) * 4;
        if !at.0.is_multiple_of(4) {
            return Err(Fault::Misaligned { at, align: 4 });
        }
        let start = self.plain.backing().resolve(at, bytes).ok_or(Fault::OutOfRange { at, bytes })?;
        Ok(start.cast())
    }
}

impl<B: Backing> Memory for Volatile<B> {
    type Word = VolatileWord<B::Keep>;
    type Words = VolatileWords<B::Keep>;
    type Window = RawWindow<B::Keep>;

    fn word(&self, at: DevAddr) -> Result<VolatileWord<B::Keep>, Fault> {
        Ok(VolatileWord { cell: self.cells(at, 1)?, _keep: self.plain.backing().keep() })
    }

    fn words(&self, at: DevAddr, count: u32) -> Result<VolatileWords<B::Keep>, Fault> {
        Ok(VolatileWords { first: self.cells(at, count)?, count, _keep: self.plain.backing().keep() })
    }

    #[inline(never)]
    fn window(&self, at: DevAddr, bytes: u32) -> Result<RawWindow<B::Keep>, Fault> {
        self.plain.window(at, bytes)
    }
}

impl<B: Backing> CopyMemory for Volatile<B> {
    #[inline(never)]
    fn copy(&self, from: DevAddr, to: DevAddr, bytes: u64) -> Result<(), Fault> {
        self.plain.copy(from, to, bytes)
    }

    #[inline(never)]
    fn read_bytes(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        self.plain.read_bytes(from, into)
    }

    #[inline(never)]
    fn write_bytes(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.plain.write_bytes(to, bytes)
    }
}

impl<B: Backing> DeviceMemory for Volatile<B> {
    #[inline(never)]
    fn accumulate(&self, at: DevAddr, value: u32) -> Result<(), Fault> {
        // An exclusive pair in RAM: several cores of a board may add at once.
        self.plain.accumulate(at, value)
    }

    #[inline(never)]
    fn publish(&self, at: DevAddr, value: u32) -> Result<(), Fault> {
        self.plain.publish(at, value)
    }
}

/// A control word on the device.
#[derive(Clone, Debug)]
pub struct VolatileWord<K> {
    cell: NonNull<RW<u32>>,
    _keep: K,
}

// SAFETY: one 32-bit volatile access at a time; the single core or the board's coherent bus serialises them.
unsafe impl<K: Send> Send for VolatileWord<K> {}
// SAFETY: as above.
unsafe impl<K: Sync> Sync for VolatileWord<K> {}

impl<K> VolatileWord<K> {
    fn cell(&self) -> &RW<u32> {
        // SAFETY: the backing resolved four aligned bytes for as long as the token lives.
        unsafe { self.cell.as_ref() }
    }
}

impl<K> Word for VolatileWord<K> {
    #[inline]
    fn load_relaxed(&self) -> u32 {
        self.cell().read()
    }

    #[inline]
    fn load_acquire(&self) -> u32 {
        let value = self.cell().read();
        barrier();
        value
    }

    #[inline]
    fn store_relaxed(&self, value: u32) {
        // SAFETY: control words are plain memory; storing any value to them has no effect besides the value.
        unsafe { self.cell().write(value) };
    }

    #[inline]
    fn store_release(&self, value: u32) {
        barrier();
        self.store_relaxed(value);
    }
}

/// A published table on the device.
#[derive(Clone, Debug)]
pub struct VolatileWords<K> {
    first: NonNull<RW<u32>>,
    count: u32,
    _keep: K,
}

// SAFETY: as for `VolatileWord`.
unsafe impl<K: Send> Send for VolatileWords<K> {}
// SAFETY: as for `VolatileWord`.
unsafe impl<K: Sync> Sync for VolatileWords<K> {}

impl<K> VolatileWords<K> {
    fn cell(&self, index: u32) -> Option<&RW<u32>> {
        if index >= self.count {
            return None;
        }
        // SAFETY: the backing resolved `count` aligned words for as long as the token lives, and `index < count`.
        Some(unsafe { self.first.add(index as usize).as_ref() })
    }
}

impl<K> Words for VolatileWords<K> {
    #[inline]
    fn get(&self, index: u32) -> u32 {
        self.cell(index).map_or(0, RW::read)
    }

    #[inline]
    fn set(&self, index: u32, value: u32) {
        if let Some(cell) = self.cell(index) {
            // SAFETY: as for `VolatileWord::store_relaxed`.
            unsafe { cell.write(value) };
        }
    }
}
