//! Memory that stands for a device's: one mapping that costs nothing until it is touched, of this process alone or of a file
//! that another process maps too.
#![allow(unsafe_code, reason = "maps and unmaps the memory that stands for the device's")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use sluice_core::mem::{Backing, DevAddr, Mapped, Slab};

/// A mapping, zero at first, unmapped with its last owner.
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
    fn new(bytes: usize, file: Option<&File>) -> io::Result<Self> {
        let (kind, descriptor) = match file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, kind, descriptor, 0)
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

/// Memory of a device that this process maps.
pub type MappedMemory = Mapped<Slab<Arc<Mapping>>>;

/// Maps `bytes` bytes that the device sees from `base` on, a multiple of the page size.
#[cfg(feature = "sim")]
pub(super) fn map(base: DevAddr, bytes: u64) -> io::Result<MappedMemory> {
    map_from(base, bytes, None)
}

/// Maps the first `bytes` bytes of `file`, which a device sees from `base` on, a multiple of the page size.
pub(super) fn map_file(base: DevAddr, bytes: u64, file: &File) -> io::Result<MappedMemory> {
    if file.metadata()?.len() < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    map_from(base, bytes, Some(file))
}

/// Name of a [`memory_file`], as the system shows it.
pub(super) const MEMORY_FILE: &str = "sluice";

/// A file of `bytes` bytes in memory, whose size is fixed from then on. It goes with its last user.
pub(super) fn memory_file(bytes: u64) -> io::Result<File> {
    let name = CString::new(MEMORY_FILE)?;
    // SAFETY: a call that reads a name, which lives on, and makes a descriptor.
    let descriptor =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so nobody else closes it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(bytes)?;
    // SAFETY: a call on a descriptor that is open.
    let sealed =
        unsafe { libc::fcntl(descriptor, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) };
    if sealed < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// Has `bytes` bytes from `at` on read zero again, for everyone who maps the file behind them; both are multiples of the page
/// size.
pub(super) fn discard(memory: &MappedMemory, at: DevAddr, bytes: u64) -> io::Result<()> {
    let start = memory.backing().resolve(at, bytes).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the range is mapped; it stays so, and any value of its bytes is as good as another to those who map it.
    let result = unsafe { libc::madvise(start.as_ptr().cast(), bytes as usize, libc::MADV_REMOVE) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn map_from(base: DevAddr, bytes: u64, file: Option<&File>) -> io::Result<MappedMemory> {
    let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mapping = Arc::new(Mapping::new(length, file)?);
    // SAFETY: the range is valid for reads and writes while any clone of the `Arc` lives; pages are aligned to more than 64
    // bytes and so is `base`; the mapping is new and only the slab knows its address. Whoever else maps the file is the device.
    let slab = unsafe { Slab::new(mapping.start, bytes, base, mapping.clone()) };
    Ok(Mapped::new(slab))
}

#[cfg(all(test, feature = "sim"))]
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

    #[test]
    fn what_is_discarded_reads_zero_for_all_who_map_the_file() {
        let base = DevAddr(0x4200_0000);
        let file = memory_file(0x3_0000).unwrap();
        let (one, other) =
            (map_file(base, 0x3_0000, &file).unwrap(), map_file(base, 0x3_0000, &file).unwrap());
        one.write_bytes(base, &[7; 0x3_0000]).unwrap();
        discard(&one, base.offset(0x1_0000), 0x1_0000).unwrap();
        let mut read = vec![1; 0x3_0000];
        other.read_bytes(base, &mut read).unwrap();
        let is_left = |byte: usize| !(0x1_0000..0x2_0000).contains(&byte);
        assert!(read.iter().enumerate().all(|(at, &byte)| byte == if is_left(at) { 7 } else { 0 }));
        assert!(discard(&one, base, 0x4_0000).is_err());
    }
}
