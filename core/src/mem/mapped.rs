//! Memory that is mapped into this address space and shared with other threads or processes: atomics for words and
//! tables, plain copies for payload.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use super::{CopyMemory, DevAddr, DeviceMemory, Fault, Memory, Window, Word, Words};

/// Where device addresses lie in this address space.
///
/// # Safety
/// For every range for which [`resolve`](Backing::resolve) returns a pointer, that pointer must stay valid for reads and
/// writes of the whole range while this value, any clone of it or any token that [`keep`](Backing::keep) gave out lives, must
/// have the alignment of the device address modulo 64, and the bytes must not be reached through Rust references elsewhere.
pub unsafe trait Backing: Clone {
    /// What a word holds on to: as little as keeps the memory alive, because there are hundreds of words.
    type Keep: Clone;

    /// A token that keeps the memory alive.
    fn keep(&self) -> Self::Keep;

    /// The host pointer of `bytes` bytes at `at`, or `None` if any of them is outside.
    fn resolve(&self, at: DevAddr, bytes: u64) -> Option<NonNull<u8>>;
}

/// A contiguous range of host memory that stands for device addresses from `base` on. Who owns the memory is `K`'s affair:
/// a token whose clones keep it alive (`Arc<…>`, `&'static …`, `&'a [Cell<u8>]`).
#[derive(Clone, Debug)]
pub struct Slab<K> {
    start: NonNull<u8>,
    bytes: u64,
    base: DevAddr,
    keep: K,
}

// SAFETY: a slab is an address range plus its keep-alive token; all accesses go through atomics or through windows whose
// exclusive ownership the ring protocol grants (see `RawWindow`).
unsafe impl<K: Send> Send for Slab<K> {}
// SAFETY: as above; `&Slab` only computes addresses.
unsafe impl<K: Sync> Sync for Slab<K> {}

impl<K: Clone> Slab<K> {
    /// The `bytes` bytes from `start`, seen by the device at `base`.
    ///
    /// # Safety
    /// The range must be valid for reads and writes while any clone of `keep` lives, `start` and `base` must agree modulo
    /// 64, and no Rust reference to the bytes may exist meanwhile.
    pub unsafe fn new(start: NonNull<u8>, bytes: u64, base: DevAddr, keep: K) -> Self {
        assert_eq!(start.as_ptr() as u64 % 64, base.0 % 64, "host and device address must agree modulo 64");
        Self { start, bytes, base, keep }
    }

    /// First device address.
    pub fn base(&self) -> DevAddr {
        self.base
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// 64 bytes of plain memory with the alignment that device memory has.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Line(pub [u8; 64]);

impl Line {
    /// A line of zeros.
    pub const ZERO: Self = Self([0; 64]);
}

/// Token of memory that is lent for `'a`.
pub type Lent<'a> = PhantomData<&'a mut [Line]>;

impl<'a> Slab<Lent<'a>> {
    /// The memory of `lines`, lent for as long as the slab and its clones live, seen by the device at `base`, a multiple
    /// of 64.
    pub fn over(lines: &'a mut [Line], base: DevAddr) -> Self {
        let bytes = size_of_val(lines) as u64;
        // SAFETY: the exclusive borrow makes the range valid and unreferenced for 'a, which the token carries; lines are
        // aligned to 64 bytes, and `new` checks that `base` is.
        unsafe { Self::new(NonNull::from(lines).cast(), bytes, base, PhantomData) }
    }
}

// SAFETY: `Slab::new`'s caller guaranteed the range for as long as the token lives, and each clone carries the token.
unsafe impl<K: Clone> Backing for Slab<K> {
    type Keep = K;

    fn keep(&self) -> K {
        self.keep.clone()
    }

    #[inline]
    fn resolve(&self, at: DevAddr, bytes: u64) -> Option<NonNull<u8>> {
        let offset = at.0.checked_sub(self.base.0)?;
        let end = offset.checked_add(bytes)?;
        if end > self.bytes {
            return None;
        }
        // SAFETY: `offset <= self.bytes`, inside the range that `Slab::new`'s caller guaranteed.
        Some(unsafe { self.start.add(offset as usize) })
    }
}

/// Mapped device memory.
#[derive(Clone, Debug)]
pub struct Mapped<B> {
    backing: B,
}

impl<B: Backing> Mapped<B> {
    /// Memory behind `backing`.
    pub fn new(backing: B) -> Self {
        Self { backing }
    }

    /// The backing, for its own queries.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    fn aligned(&self, at: DevAddr, bytes: u64) -> Result<NonNull<u8>, Fault> {
        if !at.0.is_multiple_of(4) {
            return Err(Fault::Misaligned { at, align: 4 });
        }
        self.backing.resolve(at, bytes).ok_or(Fault::OutOfRange { at, bytes })
    }

    /// The word at `at`, without a hold on the backing.
    fn cell(&self, at: DevAddr) -> Result<&AtomicU32, Fault> {
        // SAFETY: the backing resolved four aligned bytes, and `self` keeps it for as long as the result lives.
        Ok(unsafe { self.aligned(at, 4)?.cast::<AtomicU32>().as_ref() })
    }
}

impl<B: Backing> Memory for Mapped<B> {
    type Word = AtomicWord<B::Keep>;
    type Words = AtomicWords<B::Keep>;
    type Window = RawWindow<B::Keep>;

    fn word(&self, at: DevAddr) -> Result<AtomicWord<B::Keep>, Fault> {
        let cell = self.aligned(at, 4)?.cast();
        Ok(AtomicWord { cell, _keep: self.backing.keep() })
    }

    fn words(&self, at: DevAddr, count: u32) -> Result<AtomicWords<B::Keep>, Fault> {
        let first = self.aligned(at, u64::from(count) * 4)?.cast();
        Ok(AtomicWords { first, count, _keep: self.backing.keep() })
    }

    fn window(&self, at: DevAddr, bytes: u32) -> Result<RawWindow<B::Keep>, Fault> {
        let start = self.aligned(at, u64::from(bytes))?;
        Ok(RawWindow { start, bytes, _keep: self.backing.keep() })
    }
}

impl<B: Backing> CopyMemory for Mapped<B> {
    #[inline]
    fn copy(&self, from: DevAddr, to: DevAddr, bytes: u64) -> Result<(), Fault> {
        let source = self.backing.resolve(from, bytes).ok_or(Fault::OutOfRange { at: from, bytes })?;
        let target = self.backing.resolve(to, bytes).ok_or(Fault::OutOfRange { at: to, bytes })?;
        // SAFETY: both ranges were resolved by the backing, which vouches for them; `copy` allows overlap. Device programs
        // order their transfers among each other by semaphores and barriers, as on silicon.
        unsafe { core::ptr::copy(source.as_ptr(), target.as_ptr(), bytes as usize) };
        Ok(())
    }

    #[inline]
    fn read_bytes(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        let bytes = into.len() as u64;
        let source = self.backing.resolve(from, bytes).ok_or(Fault::OutOfRange { at: from, bytes })?;
        // SAFETY: the backing vouches for the source; `into` is a live exclusive slice of the same length.
        unsafe { core::ptr::copy_nonoverlapping(source.as_ptr(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    #[inline]
    fn write_bytes(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        let len = bytes.len() as u64;
        let target = self.backing.resolve(to, len).ok_or(Fault::OutOfRange { at: to, bytes: len })?;
        // SAFETY: the backing vouches for the target; `bytes` is a live slice of the same length outside device memory.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        Ok(())
    }
}

impl<B: Backing> DeviceMemory for Mapped<B> {
    fn accumulate(&self, at: DevAddr, value: u32) -> Result<(), Fault> {
        self.cell(at)?.fetch_add(value, Ordering::AcqRel);
        Ok(())
    }

    fn publish(&self, at: DevAddr, value: u32) -> Result<(), Fault> {
        self.cell(at)?.store(value, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn prefetch(&self, at: DevAddr) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some(line) = self.backing.resolve(at, 1) {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch reads nothing that the program can see and faults at no address; every x86-64 processor has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = at;
    }
}

/// A control word in mapped memory.
#[derive(Clone, Debug)]
pub struct AtomicWord<K> {
    cell: NonNull<AtomicU32>,
    _keep: K,
}

// SAFETY: the only access is through an `AtomicU32`; the token may move between threads as `K` allows.
unsafe impl<K: Send> Send for AtomicWord<K> {}
// SAFETY: as above.
unsafe impl<K: Sync> Sync for AtomicWord<K> {}

impl<K> AtomicWord<K> {
    fn cell(&self) -> &AtomicU32 {
        // SAFETY: the backing resolved four aligned bytes for as long as the token lives.
        unsafe { self.cell.as_ref() }
    }
}

impl<K> Word for AtomicWord<K> {
    #[inline]
    fn load_relaxed(&self) -> u32 {
        self.cell().load(Ordering::Relaxed)
    }

    #[inline]
    fn load_acquire(&self) -> u32 {
        self.cell().load(Ordering::Acquire)
    }

    #[inline]
    fn store_relaxed(&self, value: u32) {
        self.cell().store(value, Ordering::Relaxed);
    }

    #[inline]
    fn store_release(&self, value: u32) {
        self.cell().store(value, Ordering::Release);
    }
}

/// A published table in mapped memory.
#[derive(Clone, Debug)]
pub struct AtomicWords<K> {
    first: NonNull<AtomicU32>,
    count: u32,
    _keep: K,
}

// SAFETY: the only access is through `AtomicU32`s; the token may move between threads as `K` allows.
unsafe impl<K: Send> Send for AtomicWords<K> {}
// SAFETY: as above.
unsafe impl<K: Sync> Sync for AtomicWords<K> {}

impl<K> AtomicWords<K> {
    fn cells(&self) -> &[AtomicU32] {
        // SAFETY: the backing resolved `count` aligned words for as long as the token lives.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count as usize) }
    }
}

impl<K> Words for AtomicWords<K> {
    fn are_zero(&self, count: u32) -> bool {
        let cells = &self.cells()[..count.min(self.count) as usize];
        // Without a branch per word: nearly always all of them are.
        cells.iter().fold(0, |seen, cell| seen | cell.load(Ordering::Relaxed)) == 0
    }

    #[inline]
    fn get(&self, index: u32) -> u32 {
        self.cells().get(index as usize).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    #[inline]
    fn set(&self, index: u32, value: u32) {
        if let Some(cell) = self.cells().get(index as usize) {
            cell.store(value, Ordering::Relaxed);
        }
    }
}

/// Payload bytes in mapped memory, owned by the holder between the word that handed them over and the word that hands them
/// on.
#[derive(Debug)]
pub struct RawWindow<K> {
    start: NonNull<u8>,
    bytes: u32,
    _keep: K,
}

// SAFETY: a window is handed over as a whole by the ring protocol: the release store that publishes a buffer happens after
// the last write of its old owner, and the acquire load that takes it before the first access of the new one.
unsafe impl<K: Send> Send for RawWindow<K> {}

impl<K> RawWindow<K> {
    #[inline]
    fn at(&self, offset: u32, len: usize) -> Option<NonNull<u8>> {
        let end = (offset as usize).checked_add(len)?;
        if end > self.bytes as usize {
            return None;
        }
        // SAFETY: `offset` lies inside the range that the backing resolved.
        Some(unsafe { self.start.add(offset as usize) })
    }
}

impl<K> Window for RawWindow<K> {
    #[inline]
    fn write(&mut self, offset: u32, bytes: &[u8]) -> bool {
        let Some(target) = self.at(offset, bytes.len()) else { return false };
        // SAFETY: the range was checked; the window's holder owns the bytes by the ring protocol.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        true
    }

    /// Looks at both places before it writes, so that a caller who knows that the first lies before the last pays for one.
    #[inline]
    fn write_both(&mut self, first: (u32, &[u8]), last: (u32, &[u8])) -> bool {
        let Some(last_at) = self.at(last.0, last.1.len()) else { return false };
        let Some(first_at) = self.at(first.0, first.1.len()) else { return false };
        // SAFETY: as for `write`.
        unsafe {
            core::ptr::copy_nonoverlapping(first.1.as_ptr(), first_at.as_ptr(), first.1.len());
            core::ptr::copy_nonoverlapping(last.1.as_ptr(), last_at.as_ptr(), last.1.len());
        }
        true
    }

    #[inline]
    fn read(&self, offset: u32, into: &mut [u8]) -> bool {
        let Some(source) = self.at(offset, into.len()) else { return false };
        // SAFETY: as for `write`.
        unsafe { core::ptr::copy_nonoverlapping(source.as_ptr(), into.as_mut_ptr(), into.len()) };
        true
    }

    /// Another core that has read the bytes holds their lines; asked for ahead, they come while others are filled.
    #[inline]
    fn expect_write(&self, offset: u32) {
        let line = self.start.as_ptr().wrapping_add(offset as usize);
        // SAFETY: a prefetch changes nothing that the program can see and faults at no address; an x86-64 processor without
        // this one takes it for no operation.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            // The intrinsic asks to read, unless the whole program is compiled for newer processors.
            core::arch::asm!("prefetchw [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly));
        }
        // SAFETY: likewise, of every AArch64 processor.
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        unsafe {
            core::arch::asm!("prfm pstl1keep, [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        let _ = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: DevAddr = DevAddr(0x1_0000_0000);

    #[test]
    fn a_place_to_be_written_may_lie_anywhere() {
        let mut lines = [Line::ZERO; 2];
        let m = Mapped::new(Slab::over(&mut lines, BASE));
        let mut window = m.window(BASE, 128).expect("inside");
        assert!(window.write(120, &[7; 8]));
        for offset in [0, 127, 128, 4_096, u32::MAX] {
            window.expect_write(offset);
        }
        let mut bytes = [0; 8];
        assert!(window.read(120, &mut bytes));
        assert_eq!(bytes, [7; 8]);
    }

    #[test]
    fn ranges_are_checked_to_the_last_byte() {
        let mut lines = [Line::ZERO; 2];
        let m = Mapped::new(Slab::over(&mut lines, BASE));
        assert!(m.word(BASE.offset(124)).is_ok());
        assert_eq!(
            m.word(BASE.offset(128)).err(),
            Some(Fault::OutOfRange { at: BASE.offset(128), bytes: 4 })
        );
        assert_eq!(m.word(BASE.offset(2)).err(), Some(Fault::Misaligned { at: BASE.offset(2), align: 4 }));
        assert!(m.word(DevAddr(BASE.0 - 4)).is_err());
        assert!(m.window(BASE, 128).is_ok());
        assert!(m.window(BASE.offset(4), 128).is_err());
        assert!(m.window(DevAddr(u64::MAX - 3), 8).is_err());
        assert!(m.words(BASE, 33).is_err());
    }

    #[test]
    fn words_tables_and_windows_see_the_same_bytes() {
        let mut lines = [Line::ZERO; 2];
        let m = Mapped::new(Slab::over(&mut lines, BASE));
        let table = m.words(BASE, 4).unwrap();
        let word = m.word(BASE.offset(8)).unwrap();
        table.set(2, 0x0403_0201);
        assert_eq!(word.load_acquire(), 0x0403_0201);
        table.set(4, 7);
        assert_eq!(table.get(4), 0);
        let mut window = m.window(BASE, 16).unwrap();
        let mut bytes = [0; 4];
        assert!(window.read(8, &mut bytes));
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert!(window.write(12, &[9; 4]));
        assert!(!window.write(13, &[9; 4]));
        assert_eq!(table.get(3), 0x0909_0909);
    }

    #[test]
    fn copies_move_bytes_and_refuse_what_is_outside() {
        let mut lines = [Line::ZERO; 4];
        let m = Mapped::new(Slab::over(&mut lines, BASE));
        m.write_bytes(BASE, &[1, 2, 3, 4, 5]).unwrap();
        m.copy(BASE, BASE.offset(3), 5).unwrap();
        let mut back = [0; 8];
        m.read_bytes(BASE, &mut back).unwrap();
        assert_eq!(back, [1, 2, 3, 1, 2, 3, 4, 5]);
        assert!(m.copy(BASE, BASE.offset(254), 5).is_err());
        assert!(m.copy(BASE.offset(254), BASE, 5).is_err());
    }

    #[test]
    fn sums_lose_nothing_between_threads() {
        let mut lines = [Line::ZERO; 1];
        let m = Mapped::new(Slab::over(&mut lines, BASE));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..1000).try_for_each(|_| m.accumulate(BASE.offset(4), 3)).unwrap());
            }
        });
        assert_eq!(m.word(BASE.offset(4)).unwrap().load_acquire(), 6000);
        assert!(m.accumulate(BASE.offset(64), 1).is_err());
    }
}
