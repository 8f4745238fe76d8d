//! Device memory that is not mapped: each access is a range that is read or written through functions of the transport.
//!
//! ```text
//!   word ──load──► 4 bytes read                 own word ──load──► the value stored last, nothing is read
//!   word ──store─► 4 bytes written              table entry ──► its words in one read
//!   window ──────► the bytes asked for          payload ──► read or written as it is
//! ```
//!
//! Exactly the fields that are stored are written, never their neighbours: those are the device's. What a transport refuses
//! the `try_` forms report. An access that has no such form is repeated by nobody, so its failure is remembered and the next
//! access that can report one does; until then a load gives what was last seen.
//!
//! | word | writer | reader | ordering | what it publishes |
//! |---|---|---|---|---|
//! | any word of the device | as its own table says | as its own table says | calls of [`Ranges`] take effect in the order in which one thread makes them | as its own table says |
//! | the shadow of a word | this side | this side | relaxed: a value, nothing behind it | nothing |

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_core::mem::{CopyMemory, DevAddr, Fault, Memory, Window, Word, Words};
use zerocopy::IntoBytes;

/// Bytes of a word.
const WORD_BYTES: u64 = 4;

/// How ranges of device memory are read and written.
///
/// Calls of one thread take effect in their order: what a read returns is no older than what an earlier read returned, and
/// whoever finds a write finds all earlier ones. A range of 4 bytes at a multiple of 4 is read and written whole. Any thread may
/// call at any time.
pub trait Ranges: Send + Sync + 'static {
    /// Copies device memory from `from` on into `into`.
    ///
    /// # Errors
    /// A range that the device does not have, or [`Fault::Transport`] for what may be tried again. `into` may then be half
    /// written.
    fn read(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault>;

    /// Copies `bytes` into device memory from `to` on.
    ///
    /// # Errors
    /// As [`read`](Ranges::read). The range may then be half written.
    fn write(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault>;
}

impl<R: Ranges> Ranges for Arc<R> {
    fn read(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        R::read(self, from, into)
    }

    fn write(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        R::write(self, to, bytes)
    }
}

/// The transport, and what it refused where nobody could be told.
#[derive(Debug)]
struct Link<R> {
    ranges: R,
    missed: Mutex<Option<Fault>>,
}

impl<R: Ranges> Link<R> {
    fn read(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        self.report_missed()?;
        self.ranges.read(from, into)
    }

    fn write(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.report_missed()?;
        self.ranges.write(to, bytes)
    }

    fn read_word(&self, at: DevAddr) -> Result<u32, Fault> {
        let mut word = [0; WORD_BYTES as usize];
        self.read(at, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    fn write_word(&self, at: DevAddr, value: u32) -> Result<(), Fault> {
        self.write(at, &value.to_le_bytes())
    }

    /// Remembers a failure of which nobody can be told now.
    fn miss(&self, fault: Fault) {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
    }

    fn report_missed(&self) -> Result<(), Fault> {
        let missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner).take();
        missed.map_or(Ok(()), Err)
    }
}

/// Device memory behind a transport.
#[derive(Debug)]
pub struct CopiedMemory<R> {
    link: Arc<Link<R>>,
}

impl<R> Clone for CopiedMemory<R> {
    fn clone(&self) -> Self {
        Self { link: Arc::clone(&self.link) }
    }
}

impl<R: Ranges> CopiedMemory<R> {
    /// The memory that `ranges` reaches.
    pub fn new(ranges: R) -> Self {
        Self { link: Arc::new(Link { ranges, missed: Mutex::new(None) }) }
    }

    /// The transport.
    pub fn ranges(&self) -> &R {
        &self.link.ranges
    }
}

fn aligned(at: DevAddr) -> Result<DevAddr, Fault> {
    if at.0.is_multiple_of(WORD_BYTES) {
        Ok(at)
    } else {
        Err(Fault::Misaligned { at, align: WORD_BYTES as u32 })
    }
}

impl<R: Ranges> Memory for CopiedMemory<R> {
    type Word = CopiedWord<R>;
    type Words = CopiedWords<R>;
    type Window = CopiedWindow<R>;

    fn word(&self, at: DevAddr) -> Result<CopiedWord<R>, Fault> {
        // Whoever takes a word as its own goes on from what an earlier holder left there.
        let shadow = Arc::new(AtomicU32::new(self.link.read_word(aligned(at)?)?));
        Ok(CopiedWord { link: Arc::clone(&self.link), at, shadow })
    }

    fn words(&self, at: DevAddr, count: u32) -> Result<CopiedWords<R>, Fault> {
        Ok(CopiedWords { link: Arc::clone(&self.link), at: aligned(at)?, count })
    }

    fn window(&self, at: DevAddr, bytes: u32) -> Result<CopiedWindow<R>, Fault> {
        Ok(CopiedWindow { link: Arc::clone(&self.link), at: aligned(at)?, bytes })
    }
}

impl<R: Ranges> CopyMemory for CopiedMemory<R> {
    fn copy(&self, from: DevAddr, to: DevAddr, bytes: u64) -> Result<(), Fault> {
        let bytes = usize::try_from(bytes).map_err(|_| Fault::OutOfRange { at: from, bytes })?;
        let mut copied = vec![0; bytes];
        self.link.read(from, &mut copied)?;
        self.link.write(to, &copied)
    }

    fn read_bytes(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        self.link.read(from, into)
    }

    fn write_bytes(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.link.write(to, bytes)
    }
}

/// A control word behind a transport.
#[derive(Debug)]
pub struct CopiedWord<R> {
    link: Arc<Link<R>>,
    at: DevAddr,
    /// What was last seen or stored here.
    shadow: Arc<AtomicU32>,
}

impl<R> Clone for CopiedWord<R> {
    fn clone(&self) -> Self {
        Self { link: Arc::clone(&self.link), at: self.at, shadow: Arc::clone(&self.shadow) }
    }
}

impl<R: Ranges> Word for CopiedWord<R> {
    fn load_relaxed(&self) -> u32 {
        self.shadow.load(Ordering::Relaxed)
    }

    fn load_acquire(&self) -> u32 {
        self.try_load().unwrap_or_else(|fault| {
            self.link.miss(fault);
            self.load_relaxed()
        })
    }

    fn store_relaxed(&self, value: u32) {
        self.store_release(value);
    }

    fn store_release(&self, value: u32) {
        if let Err(fault) = self.try_store(value) {
            self.link.miss(fault);
        }
    }

    fn try_load(&self) -> Result<u32, Fault> {
        let value = self.link.read_word(self.at)?;
        self.shadow.store(value, Ordering::Relaxed);
        Ok(value)
    }

    fn try_store(&self, value: u32) -> Result<(), Fault> {
        self.link.write_word(self.at, value)?;
        self.shadow.store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// A table behind a transport.
#[derive(Debug)]
pub struct CopiedWords<R> {
    link: Arc<Link<R>>,
    at: DevAddr,
    count: u32,
}

impl<R> Clone for CopiedWords<R> {
    fn clone(&self) -> Self {
        Self { link: Arc::clone(&self.link), at: self.at, count: self.count }
    }
}

impl<R> CopiedWords<R> {
    /// Where word `index` lies, if the table has it and `count - 1` more behind it.
    fn place(&self, index: u32, count: usize) -> Option<DevAddr> {
        let end = usize::try_from(index).ok()?.checked_add(count)?;
        (end <= self.count as usize).then(|| self.at.offset(u64::from(index) * WORD_BYTES))
    }
}

impl<R: Ranges> Words for CopiedWords<R> {
    fn get(&self, index: u32) -> u32 {
        self.try_get(index).unwrap_or_else(|fault| {
            self.link.miss(fault);
            0
        })
    }

    fn set(&self, index: u32, value: u32) {
        if let Err(fault) = self.try_set(index, value) {
            self.link.miss(fault);
        }
    }

    fn try_get(&self, index: u32) -> Result<u32, Fault> {
        self.place(index, 1).map_or(Ok(0), |at| self.link.read_word(at))
    }

    fn try_set(&self, index: u32, value: u32) -> Result<(), Fault> {
        self.place(index, 1).map_or(Ok(()), |at| self.link.write_word(at, value))
    }

    fn try_read(&self, first: u32, into: &mut [u32]) -> Result<(), Fault> {
        let Some(at) = self.place(first, into.len()) else {
            into.fill(0);
            return Ok(());
        };
        self.link.read(at, into.as_mut_bytes())?;
        into.iter_mut().for_each(|word| *word = u32::from_le(*word));
        Ok(())
    }
}

/// Payload behind a transport.
#[derive(Debug)]
pub struct CopiedWindow<R> {
    link: Arc<Link<R>>,
    at: DevAddr,
    bytes: u32,
}

impl<R> CopiedWindow<R> {
    fn place(&self, offset: u32, bytes: usize) -> Option<DevAddr> {
        let end = (offset as usize).checked_add(bytes)?;
        (end <= self.bytes as usize).then(|| self.at.offset(u64::from(offset)))
    }
}

impl<R: Ranges> Window for CopiedWindow<R> {
    fn write(&mut self, offset: u32, bytes: &[u8]) -> bool {
        self.place(offset, bytes.len()).is_some_and(|at| self.link.write(at, bytes).is_ok())
    }

    fn read(&self, offset: u32, into: &mut [u8]) -> bool {
        self.place(offset, into.len()).is_some_and(|at| self.link.read(at, into).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: DevAddr = DevAddr(0x1000);

    /// What was called, in order.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Call {
        Read(u64, usize),
        Write(u64, usize),
    }

    /// Memory of 256 bytes that notes every call, and fails those that it is told to.
    #[derive(Default, Debug)]
    struct Recording {
        bytes: Mutex<Vec<u8>>,
        calls: Mutex<Vec<Call>>,
        failing: AtomicU32,
    }

    impl Recording {
        fn new() -> CopiedMemory<Self> {
            CopiedMemory::new(Self { bytes: Mutex::new((0..=255).collect()), ..Self::default() })
        }

        fn calls(&self) -> Vec<Call> {
            std::mem::take(&mut self.calls.lock().unwrap())
        }

        fn fail(&self, calls: u32) {
            self.failing.store(calls, Ordering::Relaxed);
        }

        fn range(&self, call: Call, at: DevAddr, bytes: usize) -> Result<std::ops::Range<usize>, Fault> {
            self.calls.lock().unwrap().push(call);
            let left = self.failing.load(Ordering::Relaxed);
            if left > 0 {
                self.failing.store(left - 1, Ordering::Relaxed);
                return Err(Fault::Transport { at });
            }
            let from = (at.0 - BASE.0) as usize;
            Ok(from..from + bytes)
        }
    }

    impl Ranges for Recording {
        fn read(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
            let range = self.range(Call::Read(from.0 - BASE.0, into.len()), from, into.len())?;
            into.copy_from_slice(&self.bytes.lock().unwrap()[range]);
            Ok(())
        }

        fn write(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
            let range = self.range(Call::Write(to.0 - BASE.0, bytes.len()), to, bytes.len())?;
            self.bytes.lock().unwrap()[range].copy_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn exactly_what_is_stored_is_written_and_own_words_are_not_read_back() {
        let memory = Recording::new();
        let word = memory.word(BASE.offset(8)).unwrap();
        assert_eq!((word.load_relaxed(), memory.ranges().calls()), (0x0B0A_0908, vec![Call::Read(8, 4)]));
        word.store_release(7);
        assert_eq!(word.load_relaxed(), 7);
        assert_eq!(memory.ranges().calls(), [Call::Write(8, 4)]);
        assert_eq!((word.load_acquire(), word.clone().load_relaxed()), (7, 7));
        assert_eq!(memory.ranges().calls(), [Call::Read(8, 4)]);

        let words = memory.words(BASE.offset(16), 4).unwrap();
        words.set(3, 0x0102_0304);
        // No such word: neither read nor written.
        words.set(4, 9);
        assert_eq!((words.get(4), words.get(3)), (0, 0x0102_0304));
        let mut read = [1; 3];
        words.try_read(1, &mut read).unwrap();
        assert_eq!(read, [0x1716_1514, 0x1B1A_1918, 0x0102_0304]);
        words.try_read(2, &mut read).unwrap();
        assert_eq!(read, [0; 3]);
        assert_eq!(memory.ranges().calls(), [Call::Write(28, 4), Call::Read(28, 4), Call::Read(20, 12)]);

        let mut window = memory.window(BASE.offset(64), 16).unwrap();
        let mut bytes = [0; 3];
        assert!(window.write(5, &[1, 2, 3]) && window.read(5, &mut bytes));
        assert!(!window.write(14, &[1, 2, 3]) && !window.read(u32::MAX, &mut bytes));
        assert_eq!(
            (bytes, memory.ranges().calls()),
            ([1, 2, 3], vec![Call::Write(69, 3), Call::Read(69, 3)])
        );

        memory.copy(BASE.offset(69), BASE.offset(101), 2).unwrap();
        memory.read_bytes(BASE.offset(101), &mut bytes[..2]).unwrap();
        assert_eq!(bytes, [1, 2, 3]);
        assert_eq!(
            memory.word(BASE.offset(2)).unwrap_err(),
            Fault::Misaligned { at: BASE.offset(2), align: 4 }
        );
    }

    #[test]
    fn what_a_transport_refused_is_reported_by_the_next_access_that_can() {
        let memory = Recording::new();
        let (first, second) = (memory.word(BASE).unwrap(), memory.word(BASE.offset(4)).unwrap());
        memory.ranges().fail(1);
        assert_eq!(first.try_store(9), Err(Fault::Transport { at: BASE }));
        assert_eq!((first.load_relaxed(), first.try_load()), (0x0302_0100, Ok(0x0302_0100)));

        memory.ranges().fail(1);
        first.store_release(9);
        assert_eq!(first.load_relaxed(), 0x0302_0100);
        assert_eq!(second.try_load(), Err(Fault::Transport { at: BASE }), "of the store before");
        assert_eq!(second.try_load(), Ok(0x0706_0504));

        memory.ranges().fail(1);
        assert_eq!(second.load_acquire(), 0x0706_0504, "what was seen last");
        assert_eq!(second.try_store(1), Err(Fault::Transport { at: BASE.offset(4) }));
        assert_eq!((second.try_store(1), second.try_load()), (Ok(()), Ok(1)));

        let words = memory.words(BASE, 2).unwrap();
        memory.ranges().fail(2);
        assert_eq!((words.try_get(1), words.get(1)), (Err(Fault::Transport { at: BASE.offset(4) }), 0));
        assert!(memory.read_bytes(BASE, &mut [0]).is_err());
        memory.ranges().fail(1);
        assert!(!memory.window(BASE, 8).unwrap().read(0, &mut [0; 8]));
    }
}
