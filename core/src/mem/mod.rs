//! Memory as protocol code sees it: words, payload windows, time. The only module of this crate with `unsafe`.
//!
//! Gates, rings and state machines are generic over [`Memory`], so the very same code runs on a mapped device, on a
//! board's own RAM, under loom, under Miri and in the model checker. Three things live in shared memory and each has its
//! own access rule:
//!
//! | thing | type | access |
//! |---|---|---|
//! | control word | [`Word`], wrapped by who writes it: [`Own`], [`Peer`], [`Raise`], [`Consume`] | single 32-bit loads and stores with a stated order |
//! | table that a control word publishes | [`Words`] | relaxed 32-bit accesses, ordered by the publishing word |
//! | payload | [`Window`] | plain copies, only while this side owns the bytes |
//!
//! Between host and device there is no read-modify-write: no word has two writers, except a contention signal, on which the
//! device only ever stores 1 and the host only ever stores 0. Inside a device several services may raise one semaphore;
//! [`DeviceMemory`] is how, and only they have it.
#![allow(unsafe_code, reason = "every raw pointer of the crate is confined here")]

mod cell;
mod mapped;
#[cfg(any(test, feature = "test-utils"))]
pub mod testing;
mod time;
mod volatile;

use core::fmt;

pub use cell::{Consume, LongOwn, LongPeer, Own, OwnCount, Peer, Raise, Tally};
pub use mapped::{AtomicWord, AtomicWords, Backing, Lent, Line, Mapped, RawWindow, Slab};
pub use time::{Backoff, Clock, Deadline, Relax, SpinHint};
pub use volatile::{Volatile, VolatileWord, VolatileWords, barrier, store_barrier};

/// Address in device memory, in bytes. Zero is never a valid buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(transparent)]
pub struct DevAddr(pub u64);

impl DevAddr {
    /// The address that marks "none" on the wire.
    pub const NULL: Self = Self(0);

    /// The address `bytes` further on, or `None` past the end of the address space.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The address `bytes` further on, wrapping; for offsets inside a region that was checked as a whole.
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// Whether this is the null address.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Low and high 32 bits, as they stand in registers and ring entries.
    pub const fn split(self) -> (u32, u32) {
        (self.0 as u32, (self.0 >> 32) as u32)
    }

    /// The address with these low and high halves.
    pub const fn join(low: u32, high: u32) -> Self {
        Self((high as u64) << 32 | low as u64)
    }
}

impl fmt::Display for DevAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Why memory could not be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Fault {
    /// The range does not lie inside the memory that is mapped.
    OutOfRange {
        /// First byte asked for.
        at: DevAddr,
        /// Bytes asked for.
        bytes: u64,
    },
    /// The address is not a multiple of the alignment that the access needs.
    Misaligned {
        /// Address asked for.
        at: DevAddr,
        /// Alignment needed, in bytes.
        align: u32,
    },
    /// The transport to the device refused or failed; the access may be tried again.
    Transport {
        /// Address asked for.
        at: DevAddr,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OutOfRange { at, bytes } => write!(f, "{bytes} bytes at {at} lie outside device memory"),
            Self::Misaligned { at, align } => write!(f, "{at} is not a multiple of {align}"),
            Self::Transport { at } => write!(f, "transport failed at {at}"),
        }
    }
}

impl core::error::Error for Fault {}

/// One 32-bit control word, loaded and stored whole.
///
/// Implementations must make a release store visible only after everything stored before it, and an acquire load before
/// everything loaded after it. The `try_` forms exist for transports that can fail; on mapped memory they never do.
pub trait Word {
    /// Load with no ordering. For words this side writes itself, and for hints.
    fn load_relaxed(&self) -> u32;
    /// Load that later accesses cannot overtake; partner of the other side's [`store_release`](Word::store_release).
    fn load_acquire(&self) -> u32;
    /// Store with no ordering.
    fn store_relaxed(&self, value: u32);
    /// Store that no earlier access can fall behind; partner of the other side's [`load_acquire`](Word::load_acquire).
    fn store_release(&self, value: u32);
    /// [`load_acquire`](Word::load_acquire) over a transport that can fail.
    fn try_load(&self) -> Result<u32, Fault> {
        Ok(self.load_acquire())
    }
    /// [`store_release`](Word::store_release) over a transport that can fail.
    fn try_store(&self, value: u32) -> Result<(), Fault> {
        self.store_release(value);
        Ok(())
    }
}

/// A table of 32-bit words that some control word publishes. An index outside the table reads 0 and stores nothing:
/// callers validate indices; this is the backstop that keeps a slip inside the table.
pub trait Words {
    /// Relaxed load of word `index`.
    fn get(&self, index: u32) -> u32;
    /// Relaxed store of word `index`.
    fn set(&self, index: u32, value: u32);
    /// Whether all `count` words from the first on read 0, by relaxed loads.
    fn are_zero(&self, count: u32) -> bool {
        (0..count).all(|index| self.get(index) == 0)
    }
    /// [`get`](Words::get) over a transport that can fail.
    fn try_get(&self, index: u32) -> Result<u32, Fault> {
        Ok(self.get(index))
    }
    /// [`set`](Words::set) over a transport that can fail.
    fn try_set(&self, index: u32, value: u32) -> Result<(), Fault> {
        self.set(index, value);
        Ok(())
    }
    /// Reads the words from `first` on into `into`, in one go where a transport can, in no particular order otherwise. A range
    /// outside the table reads 0.
    fn try_read(&self, first: u32, into: &mut [u32]) -> Result<(), Fault> {
        for (index, word) in (first..).zip(into) {
            *word = self.try_get(index)?;
        }
        Ok(())
    }
}

/// A run of payload bytes that this side owns for now. Out-of-range accesses do nothing and report `false`.
pub trait Window {
    /// Copies `bytes` to `offset`.
    fn write(&mut self, offset: u32, bytes: &[u8]) -> bool;
    /// Copies `first` and then `last`, each to the offset with it, and nothing behind one that does not fit.
    #[inline]
    fn write_both(&mut self, first: (u32, &[u8]), last: (u32, &[u8])) -> bool {
        self.write(first.0, first.1) && self.write(last.0, last.1)
    }
    /// Copies from `offset` into `into`.
    fn read(&self, offset: u32, into: &mut [u8]) -> bool;
    /// Says that what lies at `offset` is to be written soon, which may lie outside: a hint, which a memory near enough needs not.
    #[inline]
    fn expect_write(&self, offset: u32) {
        let _ = offset;
    }
}

/// One side's way into device memory. Cheap to clone; words and windows stay valid while any of them lives.
pub trait Memory: Clone {
    /// A control word.
    type Word: Word;
    /// A published table.
    type Words: Words;
    /// A payload window.
    type Window: Window;

    /// The word at `at`, which must be a multiple of 4.
    fn word(&self, at: DevAddr) -> Result<Self::Word, Fault>;
    /// A table of `count` words from `at`, which must be a multiple of 4.
    fn words(&self, at: DevAddr, count: u32) -> Result<Self::Words, Fault>;
    /// The payload window of `bytes` bytes from `at`, which must be a multiple of 4.
    fn window(&self, at: DevAddr, bytes: u32) -> Result<Self::Window, Fault>;
}

/// Memory that can move bytes between two device addresses, as a DMA engine does.
pub trait CopyMemory: Memory {
    /// Copies `bytes` from `from` to `to`; ranges may overlap.
    fn copy(&self, from: DevAddr, to: DevAddr, bytes: u64) -> Result<(), Fault>;
    /// Copies from device memory into `into`.
    fn read_bytes(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault>;
    /// Copies `bytes` into device memory.
    fn write_bytes(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault>;
}

/// Memory as the device's own services reach it.
pub trait DeviceMemory: CopyMemory {
    /// Adds `value` to the word at `at`, a multiple of 4, wrapping, in one step among all services of the device, after
    /// everything this one stored before. Never for a word that the host writes too.
    fn accumulate(&self, at: DevAddr, value: u32) -> Result<(), Fault>;
    /// Stores `value` to the word at `at`, a multiple of 4, after everything that this service stored before.
    fn publish(&self, at: DevAddr, value: u32) -> Result<(), Fault>;
    /// Says that what lies at `at` is to be read soon: a hint, which a memory near enough needs not.
    #[inline]
    fn prefetch(&self, at: DevAddr) {
        let _ = at;
    }
}
