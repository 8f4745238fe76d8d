//! The link block: what a host and the firmware of a device of its own say to each other besides work, at the start of the
//! memory that they share.
//!
//! ```text
//!   0x000  magic, processors, ram, registers, boot    host, before the start, magic last
//!   0x040  to_device: rung                            host
//!   0x080  to_device: heard · ready · to_host: rung   device
//!   0x0C0  to_host: heard                             host
//!   0x100  clock: asked                               host
//!   0x140  clock: answered, cycles                    device
//! ```
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `magic` | host → firmware | release → acquire | where things lie |
//! | `ready` | device → host | added to, acquire | so many processors have taken their services |
//! | `rung` | ringer → listener | added to → acquire | all that the ringer stored before |
//! | `heard` | listener → ringer | full barrier on both sides | a signal for that many rings need not be sent again |
//! | `asked`, `answered` | host → device → host | release → acquire | the device's counter was read in between |
//!
//! A bell turns rings into signals of the machine, such as a byte on a line, and sends one only if none is on its way: a
//! listener that reads no signals for long costs nobody anything.
//!
//! ```text
//!   ringer                                listener, at a signal
//!   rung + 1                              heard := rung
//!   ── full barrier ──                    ── full barrier ──
//!   heard ≥ what was signalled last?      rung as before? else again
//!   signal
//! ```

use core::sync::atomic::{AtomicU32, Ordering};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::DeviceRange;
use crate::mem::{CopyMemory, DevAddr, DeviceMemory, Fault, Memory, Own, OwnCount, Peer, Word, barrier};

/// Bytes of the block.
pub const LINK_BYTES: u64 = 0x180;

const MAGIC: u32 = u32::from_le_bytes(*b"SLK1");
const TO_DEVICE: Bell = Bell { rung: 0x40, heard: 0x80 };
const READY: u64 = 0x84;
const TO_HOST: Bell = Bell { rung: 0x88, heard: 0xC0 };
const ASKED: u64 = 0x100;
const ANSWERED: u64 = 0x140;
const CYCLES: u64 = 0x148;

struct Bell {
    rung: u64,
    heard: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PlaceLine {
    magic: u32,
    processors: u32,
    ram_base: u64,
    ram_bytes: u64,
    registers: u64,
    boot: u64,
}

/// Where the host has laid out what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkPlace {
    /// Processors that run firmware.
    pub processors: u32,
    /// Memory that descriptors, programs and rings may lie in.
    pub ram: DeviceRange,
    /// The register window.
    pub registers: DevAddr,
    /// The boot block.
    pub boot: DevAddr,
}

impl LinkPlace {
    /// Writes the block at `link`, for firmware that is about to start on memory that reads zero.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn write<M: CopyMemory>(&self, memory: &M, link: DevAddr) -> Result<(), Fault> {
        let &Self { processors, ram, registers, boot } = self;
        let line = PlaceLine {
            magic: 0,
            processors,
            ram_base: ram.base.0,
            ram_bytes: ram.bytes,
            registers: registers.0,
            boot: boot.0,
        };
        memory.write_bytes(link, line.as_bytes())?;
        memory.word(link)?.try_store(MAGIC)
    }

    /// Reads the block at `link`; `None` when no host has written it.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn read<M: CopyMemory>(memory: &M, link: DevAddr) -> Result<Option<Self>, Fault> {
        if memory.word(link)?.try_load()? != MAGIC {
            return Ok(None);
        }
        let mut line = PlaceLine::new_zeroed();
        memory.read_bytes(link, line.as_mut_bytes())?;
        Ok(Some(Self {
            processors: line.processors,
            ram: DeviceRange { base: DevAddr(line.ram_base), bytes: line.ram_bytes },
            registers: DevAddr(line.registers),
            boot: DevAddr(line.boot),
        }))
    }
}

/// The side that rings. All threads of it share one.
#[derive(Debug)]
pub struct Ringer<M: Memory> {
    memory: M,
    rung_at: DevAddr,
    rung: M::Word,
    heard: Peer<M::Word>,
    /// What had been rung when the last signal was sent.
    signalled: AtomicU32,
}

impl<M: DeviceMemory> Ringer<M> {
    fn attach(memory: &M, link: DevAddr, bell: &Bell) -> Result<Self, Fault> {
        let rung = memory.word(link.offset(bell.rung))?;
        let heard = Peer::new(memory.word(link.offset(bell.heard))?);
        let signalled = AtomicU32::new(heard.try_observe()?);
        Ok(Self { memory: memory.clone(), rung_at: link.offset(bell.rung), rung, heard, signalled })
    }

    /// The host's, for the device.
    ///
    /// # Errors
    /// [`Fault`] when the block cannot be reached.
    pub fn to_device(memory: &M, link: DevAddr) -> Result<Self, Fault> {
        Self::attach(memory, link, &TO_DEVICE)
    }

    /// The device's, for the host.
    ///
    /// # Errors
    /// [`Fault`] when the block cannot be reached.
    pub fn to_host(memory: &M, link: DevAddr) -> Result<Self, Fault> {
        Self::attach(memory, link, &TO_HOST)
    }

    /// Rings. Whether a signal has to be sent.
    #[must_use = "nobody hears a ring without its signal"]
    pub fn ring(&self) -> bool {
        if self.memory.accumulate(self.rung_at, 1).is_err() {
            return false;
        }
        // Partner of the listener's: either it sees this ring, or this sees that it has heard the last signal.
        barrier();
        let signalled = self.signalled.load(Ordering::Relaxed);
        let is_heard = self.heard.observe().wrapping_sub(signalled) as i32 >= 0;
        let rung = self.rung.load_acquire();
        is_heard
            && self.signalled.compare_exchange(signalled, rung, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The side that listens: one thread.
#[derive(Debug)]
pub struct Listener<M: Memory> {
    rung: Peer<M::Word>,
    heard: Own<M::Word>,
}

impl<M: Memory> Listener<M> {
    fn attach(memory: &M, link: DevAddr, bell: &Bell) -> Result<Self, Fault> {
        Ok(Self {
            rung: Peer::new(memory.word(link.offset(bell.rung))?),
            heard: Own::new(memory.word(link.offset(bell.heard))?),
        })
    }

    /// The device's, for what the host rings.
    ///
    /// # Errors
    /// [`Fault`] when the block cannot be reached.
    pub fn on_device(memory: &M, link: DevAddr) -> Result<Self, Fault> {
        Self::attach(memory, link, &TO_DEVICE)
    }

    /// The host's, for what the device rings.
    ///
    /// # Errors
    /// [`Fault`] when the block cannot be reached.
    pub fn on_host(memory: &M, link: DevAddr) -> Result<Self, Fault> {
        Self::attach(memory, link, &TO_HOST)
    }

    /// How often it was rung.
    pub fn rung(&self) -> u32 {
        self.rung.observe()
    }

    /// Hears every ring so far; a later one sends a signal again. Call it after the signals were taken, and look at memory
    /// after it.
    pub fn hear(&self) {
        loop {
            let rung = self.rung.observe();
            self.heard.publish(rung);
            // Partner of the ringer's.
            barrier();
            if self.rung.observe() == rung {
                return;
            }
        }
    }
}

/// What the firmware says of itself.
#[derive(Debug)]
pub struct DeviceLink<M: Memory> {
    memory: M,
    link: DevAddr,
    asked: Peer<M::Word>,
    answered: Own<M::Word>,
    cycles: OwnCount<M::Word>,
}

impl<M: DeviceMemory> DeviceLink<M> {
    /// The block at `link`.
    ///
    /// # Errors
    /// [`Fault`] when it cannot be reached.
    pub fn attach(memory: &M, link: DevAddr) -> Result<Self, Fault> {
        Ok(Self {
            memory: memory.clone(),
            link,
            asked: Peer::new(memory.word(link.offset(ASKED))?),
            answered: Own::new(memory.word(link.offset(ANSWERED))?),
            cycles: OwnCount::at(memory, link.offset(CYCLES))?,
        })
    }

    /// One more processor has its services.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn note_ready(&self) -> Result<(), Fault> {
        self.memory.accumulate(self.link.offset(READY), 1)
    }

    /// Reads the counter for a host that has asked. Whether it had.
    pub fn answer_clock(&self, now_cycles: impl FnOnce() -> u64) -> bool {
        let asked = self.asked.observe();
        let has_news = asked != self.answered.get();
        if has_news {
            self.cycles.set(now_cycles());
            self.answered.publish(asked);
        }
        has_news
    }
}

/// What a host sees of the firmware.
#[derive(Debug)]
pub struct HostLink<M: Memory> {
    memory: M,
    link: DevAddr,
    asked: Own<M::Word>,
    answered: Peer<M::Word>,
}

impl<M: CopyMemory> HostLink<M> {
    /// The block at `link`.
    ///
    /// # Errors
    /// [`Fault`] when it cannot be reached.
    pub fn attach(memory: &M, link: DevAddr) -> Result<Self, Fault> {
        Ok(Self {
            memory: memory.clone(),
            link,
            asked: Own::new(memory.word(link.offset(ASKED))?),
            answered: Peer::new(memory.word(link.offset(ANSWERED))?),
        })
    }

    /// Processors that have their services.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn ready(&self) -> Result<u32, Fault> {
        self.memory.word(self.link.offset(READY))?.try_load()
    }

    /// Asks for the device's counter. Ring the device afterwards, and wait for [`clock_answer`](HostLink::clock_answer).
    pub fn ask_clock(&self) {
        self.asked.publish(self.asked.get().wrapping_add(1));
    }

    /// The counter as it was read for the last question, if that is answered.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn clock_answer(&self) -> Result<Option<u64>, Fault> {
        if self.answered.try_observe()? != self.asked.get() {
            return Ok(None);
        }
        let mut cycles = [0; 8];
        self.memory.read_bytes(self.link.offset(CYCLES), &mut cycles)?;
        Ok(Some(u64::from_le_bytes(cycles)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Line, Mapped, Slab};

    const LINK: DevAddr = DevAddr(0x4200_0000);

    fn with_memory(test: impl FnOnce(Mapped<Slab<crate::mem::Lent<'_>>>)) {
        let mut lines = [Line::ZERO; (LINK_BYTES / 64) as usize];
        test(Mapped::new(Slab::over(&mut lines, LINK)));
    }

    #[test]
    fn a_place_is_read_as_it_was_written_and_not_before() {
        with_memory(|memory| {
            assert_eq!(LinkPlace::read(&memory, LINK), Ok(None));
            let place = LinkPlace {
                processors: 4,
                ram: DeviceRange { base: LINK.offset(LINK_BYTES), bytes: 1 << 40 },
                registers: DevAddr(5 << 32),
                boot: DevAddr(6 << 32),
            };
            place.write(&memory, LINK).expect("mapped");
            assert_eq!(LinkPlace::read(&memory, LINK), Ok(Some(place)));
        });
    }

    #[test]
    fn one_signal_is_sent_until_it_is_heard_and_no_ring_is_missed() {
        with_memory(|memory| {
            let (ringer, listener) =
                (Ringer::to_device(&memory, LINK).unwrap(), Listener::on_device(&memory, LINK).unwrap());
            assert!(ringer.ring());
            assert!(!ringer.ring() && !ringer.ring(), "one is on its way");
            assert_eq!(listener.rung(), 3);
            listener.hear();
            assert!(ringer.ring());
            // A ringer that comes anew does not know what was signalled: it sends one signal too many at most.
            let again = Ringer::to_device(&memory, LINK).unwrap();
            assert!(again.ring());
            listener.hear();
            assert!(again.ring() && !again.ring());
            // The other bell is another.
            assert!(Ringer::to_host(&memory, LINK).unwrap().ring());
        });
    }

    #[test]
    fn clock_and_ready_reach_the_host() {
        with_memory(|memory| {
            let device = DeviceLink::attach(&memory, LINK).unwrap();
            let host = HostLink::attach(&memory, LINK).unwrap();
            assert_eq!(host.ready(), Ok(0));
            (0..3).for_each(|_| device.note_ready().expect("mapped"));
            assert_eq!(host.ready(), Ok(3));
            assert!(!device.answer_clock(|| unreachable!("nobody has asked")));
            host.ask_clock();
            assert_eq!(host.clock_answer(), Ok(None));
            assert!(device.answer_clock(|| 7 << 32 | 5));
            assert_eq!(host.clock_answer(), Ok(Some(7 << 32 | 5)));
        });
    }
}
