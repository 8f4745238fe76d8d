//! The loader block: how a host hands an image to a boot stub that waits for one, and how it gets the board back from an
//! image that runs.
//!
//! ```text
//!   0x00  asked · staged at, bytes       host
//!   0x40  back                           host
//!   0x80  waiting                        stub
//!   0xC0  answered · code, two numbers   stub
//! ```
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `waiting` | stub → host | release → acquire | the stub has begun once more to wait for an image; memory is the host's |
//! | `asked` | host → stub | release → acquire | an image is staged |
//! | `answered` | stub → host | release → acquire | the image that was asked for so often starts, or why not |
//! | `back` | host → image | release → acquire | processors are to stop, the first of them in the stub |
//!
//! The block outlives images: the host clears what they leave behind, but not this. Every word counts; none is set back.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::image::BadImage;
use crate::mem::{CopyMemory, DevAddr, DeviceMemory, Fault, Memory, Own, Peer};

/// Where the block lies behind the start of the shared memory.
pub const LOADER_OFFSET: u64 = 0x8000;
/// Its bytes.
pub const LOADER_BYTES: u64 = 0x100;

const ASKED: u64 = 0;
const STAGED: u64 = 8;
const BACK: u64 = 0x40;
const WAITING: u64 = 0x80;
const ANSWERED: u64 = 0xC0;
const ANSWER: u64 = 0xC8;

/// Bytes that the host has laid down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Staged {
    /// Where.
    pub at: u64,
    /// How many.
    pub bytes: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct AnswerLine {
    /// 0: it starts.
    code: u64,
    numbers: [u64; 2],
}

/// What the stub says of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is in its place and starts.
    Starts,
    /// It does not start.
    Refused(BadImage),
    /// A stub says what this host does not know.
    Unknown {
        /// Its code.
        code: u64,
    },
}

/// The host's side.
#[derive(Debug)]
pub struct HostLoader<M: Memory> {
    memory: M,
    block: DevAddr,
    asked: Own<M::Word>,
    back: Own<M::Word>,
    waiting: Peer<M::Word>,
    answered: Peer<M::Word>,
}

impl<M: CopyMemory> HostLoader<M> {
    /// The block of the shared memory that begins at `shared`.
    ///
    /// # Errors
    /// [`Fault`] when it cannot be reached.
    pub fn attach(memory: &M, shared: DevAddr) -> Result<Self, Fault> {
        let block = shared.offset(LOADER_OFFSET);
        let word = |offset| memory.word(block.offset(offset));
        Ok(Self {
            asked: Own::new(word(ASKED)?),
            back: Own::new(word(BACK)?),
            waiting: Peer::new(word(WAITING)?),
            answered: Peer::new(word(ANSWERED)?),
            memory: memory.clone(),
            block,
        })
    }

    /// How often the stub has begun to wait for an image.
    pub fn waiting(&self) -> u32 {
        self.waiting.observe()
    }

    /// Has the stub, which waits, start what is `staged`.
    ///
    /// # Errors
    /// [`Fault`] when the block cannot be reached.
    pub fn ask(&self, staged: Staged) -> Result<(), Fault> {
        self.memory.write_bytes(self.block.offset(STAGED), staged.as_bytes())?;
        self.asked.publish(self.asked.get().wrapping_add(1));
        Ok(())
    }

    /// What the stub says of the image that it was asked for last, once it does.
    ///
    /// # Errors
    /// [`Fault`] when the block cannot be reached.
    pub fn answer(&self) -> Result<Option<Answer>, Fault> {
        if self.answered.observe() != self.asked.get() {
            return Ok(None);
        }
        let mut line = AnswerLine::new_zeroed();
        self.memory.read_bytes(self.block.offset(ANSWER), line.as_mut_bytes())?;
        let unknown = Answer::Unknown { code: line.code };
        Ok(Some(match u32::try_from(line.code) {
            Ok(0) => Answer::Starts,
            Ok(code) => BadImage::from_words(code, line.numbers).map_or(unknown, Answer::Refused),
            Err(_) => unknown,
        }))
    }

    /// Has the image that runs give the board back to the stub. Ring the device afterwards.
    pub fn ask_back(&self) {
        self.back.publish(self.back.get().wrapping_add(1));
    }
}

/// The stub's side.
#[derive(Debug)]
pub struct StubLoader<M: Memory> {
    memory: M,
    block: DevAddr,
    asked: Peer<M::Word>,
    waiting: Own<M::Word>,
    answered: Own<M::Word>,
}

impl<M: DeviceMemory> StubLoader<M> {
    /// The block of the shared memory that begins at `shared`; says that the stub waits.
    ///
    /// # Errors
    /// [`Fault`] when it cannot be reached.
    pub fn wait_at(memory: &M, shared: DevAddr) -> Result<Self, Fault> {
        let block = shared.offset(LOADER_OFFSET);
        let word = |offset| memory.word(block.offset(offset));
        let (asked, waiting, answered) =
            (Peer::new(word(ASKED)?), Own::new(word(WAITING)?), Own::new(word(ANSWERED)?));
        waiting.publish(waiting.get().wrapping_add(1));
        Ok(Self { memory: memory.clone(), block, asked, waiting, answered })
    }

    /// The image that the host asks for, if that is not answered yet.
    ///
    /// # Errors
    /// [`Fault`] when the block cannot be reached.
    pub fn asked(&self) -> Result<Option<Staged>, Fault> {
        if self.asked.observe() == self.answered.get() {
            return Ok(None);
        }
        let mut staged = Staged::new_zeroed();
        self.memory.read_bytes(self.block.offset(STAGED), staged.as_mut_bytes())?;
        Ok(Some(staged))
    }

    /// Answers. A stub that has refused an image waits for another.
    ///
    /// # Errors
    /// [`Fault`] when the block cannot be reached.
    pub fn answer(&self, answer: Result<(), BadImage>) -> Result<(), Fault> {
        let (code, numbers) = answer.err().map_or((0, [0; 2]), BadImage::to_words);
        let line = AnswerLine { code: code.into(), numbers };
        self.memory.write_bytes(self.block.offset(ANSWER), line.as_bytes())?;
        self.answered.publish(self.answered.get().wrapping_add(1));
        if code != 0 {
            self.waiting.publish(self.waiting.get().wrapping_add(1));
        }
        Ok(())
    }
}

/// Whether the host wants the board back from the image that runs.
#[derive(Debug)]
pub struct Recall<M: Memory> {
    back: Peer<M::Word>,
    at_start: u32,
}

impl<M: Memory> Recall<M> {
    /// Looks at the block of the shared memory that begins at `shared`, at the start of an image.
    ///
    /// # Errors
    /// [`Fault`] when it cannot be reached.
    pub fn attach(memory: &M, shared: DevAddr) -> Result<Self, Fault> {
        let back = Peer::new(memory.word(shared.offset(LOADER_OFFSET + BACK))?);
        Ok(Self { at_start: back.observe(), back })
    }

    /// Whether it does.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.back.observe() != self.at_start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Line, Mapped, Slab};

    const SHARED: DevAddr = DevAddr(0x4200_0000);

    #[test]
    fn images_are_asked_for_refused_started_and_called_back() {
        let mut lines = [Line::ZERO; (LOADER_BYTES / 64) as usize];
        let memory = Mapped::new(Slab::over(&mut lines, SHARED.offset(LOADER_OFFSET)));
        let host = HostLoader::attach(&memory, SHARED).unwrap();
        assert_eq!(host.waiting(), 0);
        let stub = StubLoader::wait_at(&memory, SHARED).unwrap();
        assert_eq!((host.waiting(), stub.asked()), (1, Ok(None)));

        let staged = Staged { at: 5 << 32, bytes: 1 << 20 };
        host.ask(staged).unwrap();
        assert_eq!((host.answer(), stub.asked()), (Ok(None), Ok(Some(staged))));
        let bad = BadImage::Room { end: 1 << 40, most: 7 };
        stub.answer(Err(bad)).unwrap();
        assert_eq!((host.answer(), stub.asked()), (Ok(Some(Answer::Refused(bad))), Ok(None)));
        assert_eq!(host.waiting(), 2);

        host.ask(staged).unwrap();
        assert_eq!(host.answer(), Ok(None));
        stub.answer(Ok(())).unwrap();
        assert_eq!((host.answer(), host.waiting()), (Ok(Some(Answer::Starts)), 2));

        let image = Recall::attach(&memory, SHARED).unwrap();
        assert!(!image.is_wanted());
        host.ask_back();
        assert!(image.is_wanted());
        // The stub that comes back goes on counting, and so does the image after this one.
        let stub = StubLoader::wait_at(&memory, SHARED).unwrap();
        assert_eq!((host.waiting(), stub.asked()), (3, Ok(None)));
        assert!(!Recall::attach(&memory, SHARED).unwrap().is_wanted());
    }

    #[test]
    fn an_answer_that_no_stub_gives_is_told_by_its_code() {
        let mut lines = [Line::ZERO; (LOADER_BYTES / 64) as usize];
        let memory = Mapped::new(Slab::over(&mut lines, SHARED.offset(LOADER_OFFSET)));
        let host = HostLoader::attach(&memory, SHARED).unwrap();
        for code in [99, 1 << 32] {
            memory.write_bytes(SHARED.offset(LOADER_OFFSET + ANSWER), &u64::to_le_bytes(code)).unwrap();
            assert_eq!(host.answer(), Ok(Some(Answer::Unknown { code })));
        }
    }
}
