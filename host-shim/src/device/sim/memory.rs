//! Memory of the simulated device: one anonymous mapping that costs nothing until it is touched.
#![allow(unsafe_code, reason = "maps and unmaps the memory that stands for the device's")]

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use sluice_core::mem::{DevAddr, Mapped, Slab};

/// A private anonymous mapping, zero at first, unmapped with its last owner.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address range that stays valid until it is dropped; the owner of a `Mapping` gives no access to it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this range, and every slab on it holds a clone of the `Arc` around this value, so
        // nothing reaches it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Memory of the simulated device.
pub type SimMemory = Mapped<Slab<Arc<Mapping>>>;

/// Maps `bytes` bytes that the device sees from `base` on, a multiple of the page size.
pub(super) fn map(base: DevAddr, bytes: u64) -> io::Result<SimMemory> {
    let mapping = Arc::new(Mapping::new(usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?)?);
    // SAFETY: the range is valid for reads and writes while any clone of the `Arc` lives; pages are aligned to more than 64
    // bytes and so is `base`; the mapping is new and only the slab knows its address.
    let slab = unsafe { Slab::new(mapping.start, bytes, base, mapping.clone()) };
    Ok(Mapped::new(slab))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::mem::CopyMemory;

    #[test]
    fn distant_bytes_of_a_sparse_device_are_its_own() {
        let base = DevAddr(0x10_0000_0000);
        let bytes = 1 << 40;
        let memory = map(base, bytes).unwrap();
        let last = base.offset(bytes - 8);
        memory.write_bytes(last, &7u64.to_le_bytes()).unwrap();
        memory.copy(last, base, 8).unwrap();
        let mut read = [0; 16];
        memory.read_bytes(base, &mut read).unwrap();
        assert_eq!(read, [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(memory.write_bytes(last, &[0; 9]).is_err());
    }
}
