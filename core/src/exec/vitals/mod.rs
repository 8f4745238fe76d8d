//! The status block: what a device is doing, for anyone who can read its memory. It stands behind the boot block, reads zero
//! before the firmware starts, and needs no host that listens.
//!
//! ```text
//!   0x000  Head: magic, version, lanes, processors, rate, build      processor 0, magic last
//!   0x040  phase                                                     processor 0
//!   0x080  lane 0 … 15, a line each                                  the lane's processor
//!   0x480  processor 0 … 47, a line and 448 bytes of text each       that processor
//! ```
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `magic` | processor 0 → anyone | release → acquire | the rest of `Head` |
//! | `phase` | processor 0 → anyone | release → acquire | nothing; a fault of any processor overrides it |
//! | lane: `state` | the lane's processor → anyone | release → acquire | gate, subsystem and begin of the wait |
//! | lane: `since`, `seen`, `stalled` | as above | relaxed, read high, low, high | nothing |
//! | lane: other words | as above | relaxed | nothing |
//! | processor: `state` | that processor → anyone | release → acquire | 4: the text is why it has stopped |
//! | processor: other words | as above | relaxed | nothing |
//!
//! ```text
//!   lane       0 state   4 processor   8 gate   12 subsystem   16 since   24 seen   32 stalled   40 stalls   44 dropped
//!   processor  0 state   4 beat   8 stack bytes   12 of them used   16 errors   20 last error   24 text bytes   64 text
//! ```
//!
//! Every line has one writer. Words are 32 bits, times are cycles of the device's counter in two of them, counts run freely.
//! A reader takes nothing for granted: what it does not know it shows as a number, and what changes while it looks it reads
//! again, a few times.

mod reader;
mod writer;

use crate::gate::Gate;
use crate::layout::SubsystemId;
use crate::layout::describe::wire_enum;
use crate::mem::{DevAddr, Fault};

pub use reader::{LaneReading, ProcessorReading, StatusError, StatusReader};
pub use writer::{DeviceVitals, LaneVitals, ProcessorVitals};

/// Most lanes that have a line: more than any architecture has.
pub const STATUS_LANES: u32 = 16;
/// Most processors that have an entry.
pub const STATUS_PROCESSORS: u32 = 48;
/// Most bytes of the text that a processor leaves.
pub const TEXT_BYTES: usize = 448;
/// Bytes of the name of a build; what is left of them reads zero.
pub const BUILD_BYTES: usize = 32;
/// Bytes of the block.
pub const STATUS_BYTES: u64 = PROCESSORS + STATUS_PROCESSORS as u64 * PROCESSOR_BYTES;

const MAGIC: u32 = u32::from_le_bytes(*b"SLS1");
/// Version of this block.
pub const VERSION: u32 = 1;

const HEAD_VERSION: u64 = 0x04;
const HEAD_LANES: u64 = 0x08;
const HEAD_PROCESSORS: u64 = 0x0C;
const HEAD_HZ: u64 = 0x10;
const HEAD_BUILD: u64 = 0x20;
const PHASE: u64 = 0x40;

const LANES: u64 = 0x80;
const LANE_BYTES: u64 = 0x40;
const LANE_STATE: u64 = 0x00;
const LANE_PROCESSOR: u64 = 0x04;
const LANE_GATE: u64 = 0x08;
const LANE_SUBSYSTEM: u64 = 0x0C;
const LANE_SINCE: u64 = 0x10;
const LANE_SEEN: u64 = 0x18;
const LANE_STALLED: u64 = 0x20;
const LANE_STALLS: u64 = 0x28;
const LANE_DROPPED: u64 = 0x2C;

const PROCESSORS: u64 = LANES + STATUS_LANES as u64 * LANE_BYTES;
const PROCESSOR_BYTES: u64 = 0x200;
const PROCESSOR_STATE: u64 = 0x00;
const PROCESSOR_BEAT: u64 = 0x04;
const PROCESSOR_STACK: u64 = 0x08;
const PROCESSOR_STACK_USED: u64 = 0x0C;
const PROCESSOR_ERRORS: u64 = 0x10;
const PROCESSOR_ERROR: u64 = 0x14;
const PROCESSOR_TEXT_BYTES: u64 = 0x18;
const PROCESSOR_TEXT: u64 = 0x40;

const _: () = {
    assert!(HEAD_BUILD + BUILD_BYTES as u64 <= PHASE && PHASE + 0x40 <= LANES);
    assert!(LANE_DROPPED + 4 <= LANE_BYTES && PROCESSORS == 0x480);
    assert!(PROCESSOR_TEXT_BYTES + 4 <= PROCESSOR_TEXT);
    assert!(PROCESSOR_TEXT + TEXT_BYTES as u64 == PROCESSOR_BYTES);
    assert!(PROCESSORS.is_multiple_of(64) && STATUS_BYTES.is_multiple_of(64));
};

wire_enum! {
    /// How far a device is.
    pub struct DevicePhase: u32 {
        /// Nothing was ever started.
        ABSENT = 0, "absent";
        /// Its processors take their services.
        STARTING = 1, "starting";
        /// It waits for work.
        READY = 2, "ready";
        /// An execution is under way.
        EXECUTING = 3, "executing";
        /// It was ended in order.
        STOPPED = 4, "stopped";
        /// A processor has stopped by a fault.
        FAULTED = 5, "faulted";
    }
}

wire_enum! {
    /// What a lane does.
    pub struct LaneState: u32 {
        /// There is no such lane.
        ABSENT = 0, "absent";
        /// Its processor takes its services.
        STARTING = 1, "starting";
        /// Serves its engines.
        RUNNING = 2, "running";
        /// Waits at a gate.
        PARKED = 3, "parked";
    }
}

wire_enum! {
    /// What a processor does.
    pub struct ProcessorState: u32 {
        /// It was never started.
        ABSENT = 0, "absent";
        /// Takes its services.
        STARTING = 1, "starting";
        /// Polls its services.
        RUNNING = 2, "running";
        /// Has nothing to do.
        ASLEEP = 3, "asleep";
        /// Has stopped by a fault or a panic, and says why.
        FAULTED = 4, "faulted";
        /// Was ended in order.
        STOPPED = 5, "stopped";
    }
}

wire_enum! {
    /// At which gate a lane waits.
    pub struct GateAt: u32 {
        /// None.
        NONE = 0, "none";
        /// Before a full buffer is published.
        READY = 1, "rq";
        /// Before an empty buffer is claimed.
        FREE = 2, "fq";
    }
}

impl From<Gate> for GateAt {
    fn from(gate: Gate) -> Self {
        match gate {
            Gate::Ready => Self::READY,
            Gate::Free => Self::FREE,
        }
    }
}

/// The subsystem for whose gate a lane waits, as the block has it: 0 for none, else one more than its place in the order of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SubsystemAt(pub u32);

impl From<Option<SubsystemId>> for SubsystemAt {
    fn from(subsystem: Option<SubsystemId>) -> Self {
        Self(subsystem.map_or(0, |subsystem| subsystem.index() as u32 + 1))
    }
}

impl SubsystemAt {
    /// The subsystem, if it is one.
    pub fn subsystem(self) -> Option<SubsystemId> {
        SubsystemId::ALL.get(self.0.checked_sub(1)? as usize).copied()
    }
}

const fn lane_at(block: DevAddr, lane: u32) -> DevAddr {
    block.offset(LANES + lane as u64 * LANE_BYTES)
}

const fn processor_at(block: DevAddr, processor: u32) -> DevAddr {
    block.offset(PROCESSORS + processor as u64 * PROCESSOR_BYTES)
}

/// What stands in the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusHead {
    /// Lanes of the device.
    pub lanes: u32,
    /// Processors that run firmware.
    pub processors: u32,
    /// Cycles of the device's counter per second.
    pub frequency_hz: u64,
    /// Name of the build, with zeros behind it.
    pub build: [u8; BUILD_BYTES],
}

/// How much of a stack was ever used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StackUse {
    /// Bytes that there are.
    pub bytes: u32,
    /// Most bytes that were in use.
    pub used_bytes: u32,
}

fn entry(block: DevAddr, processor: u32) -> Result<DevAddr, Fault> {
    let at = processor_at(block, processor);
    if processor < STATUS_PROCESSORS { Ok(at) } else { Err(Fault::OutOfRange { at, bytes: PROCESSOR_BYTES }) }
}

#[cfg(test)]
mod tests {
    use super::super::ErrorClass;
    use super::*;
    use crate::mem::{Line, Mapped, Memory, Slab, Word};

    const BLOCK: DevAddr = DevAddr(0x4300_0000);
    const HEAD: StatusHead =
        StatusHead { lanes: 2, processors: 3, frequency_hz: 1 << 33, build: [b'x'; BUILD_BYTES] };

    type Ram<'a> = Mapped<Slab<crate::mem::Lent<'a>>>;

    fn with_memory(test: impl FnOnce(Ram<'_>)) {
        let mut lines = [Line::ZERO; (STATUS_BYTES / 64) as usize];
        test(Mapped::new(Slab::over(&mut lines, BLOCK)));
    }

    #[test]
    fn a_block_is_read_once_it_was_begun_and_only_if_it_fits() {
        with_memory(|memory| {
            let reader = StatusReader::new(memory.clone(), BLOCK);
            assert_eq!(reader.head(), Err(StatusError::Absent { found: 0 }));
            let device = DeviceVitals::begin(&memory, BLOCK, &HEAD).unwrap();
            assert_eq!(reader.head(), Ok(HEAD));
            assert_eq!(reader.phase(), Ok(DevicePhase::STARTING));
            device.show(DevicePhase::EXECUTING);
            assert_eq!(reader.phase(), Ok(DevicePhase::EXECUTING));
            let set = |offset, value| memory.word(BLOCK.offset(offset)).unwrap().store_release(value);
            set(HEAD_PROCESSORS, u32::MAX);
            assert_eq!(reader.head(), Err(StatusError::Shape { lanes: 2, processors: u32::MAX }));
            set(HEAD_VERSION, 9);
            assert_eq!(reader.head(), Err(StatusError::Version { found: 9 }));
            set(PHASE, 77);
            assert_eq!(std::format!("{}", reader.phase().unwrap()), "unknown(77)");
        });
    }

    #[test]
    fn waits_of_a_lane_are_told_while_they_last_and_counted() {
        with_memory(|memory| {
            let reader = StatusReader::new(memory.clone(), BLOCK);
            let last = STATUS_LANES - 1;
            assert_eq!(reader.lane(last).unwrap().state, LaneState::ABSENT);
            assert!(LaneVitals::begin(&memory, BLOCK, STATUS_LANES, 0).is_err());
            let mut lane = LaneVitals::begin(&memory, BLOCK, last, 2).unwrap();
            assert_eq!(reader.lane(last).unwrap().state, LaneState::STARTING);
            lane.run();
            let high = 5 << 32;
            lane.park(Gate::Free, Some(SubsystemId::ScopeStats), high | 7);
            lane.stay(high | 9);
            let reading = reader.lane(last).unwrap();
            assert_eq!((reading.state, reading.gate), (LaneState::PARKED, GateAt::FREE));
            assert_eq!(reading.subsystem.subsystem(), Some(SubsystemId::ScopeStats));
            assert_eq!((reading.since_cycles, reading.seen_cycles), (high | 7, high | 9));
            assert_eq!((reading.processor, reading.stalls, reading.stalled_cycles), (2, 1, 0));
            // The next wait ends this one.
            lane.park(Gate::Ready, None, high | 10);
            assert_eq!(reader.lane(last).unwrap().subsystem.subsystem(), None);
            assert!(lane.is_parked());
            lane.resume(high | 30);
            lane.resume(high | 99);
            lane.note_dropped(4);
            let reading = reader.lane(last).unwrap();
            assert_eq!((reading.state, reading.stalls), (LaneState::RUNNING, 2));
            assert_eq!((reading.stalled_cycles, reading.dropped), (23, 4));
            assert_eq!(reader.lane(0).unwrap().state, LaneState::ABSENT, "its line is its own");
            assert_eq!(SubsystemAt(6).subsystem(), None);
        });
    }

    #[test]
    fn every_processor_leaves_its_own_words() {
        with_memory(|memory| {
            let reader = StatusReader::new(memory.clone(), BLOCK);
            let mut text = [0; TEXT_BYTES];
            let last = STATUS_PROCESSORS - 1;
            let mut processor = ProcessorVitals::begin(&memory, BLOCK, last).unwrap();
            processor.show(ProcessorState::RUNNING);
            processor.beat();
            processor.note_errors(3, ErrorClass::DMA_ABORT);
            processor.note_stack(StackUse { bytes: 4096, used_bytes: 100 });
            let reading = reader.processor(last, &mut text).unwrap();
            assert_eq!((reading.state, reading.beat, reading.errors), (ProcessorState::RUNNING, 1, 3));
            assert_eq!(reading.last_error, Some(ErrorClass::DMA_ABORT));
            assert_eq!(reading.stack, StackUse { bytes: 4096, used_bytes: 100 });
            ProcessorVitals::fault(&memory, BLOCK, 0, "one").unwrap();
            ProcessorVitals::fault(&memory, BLOCK, last, &"x".repeat(2 * TEXT_BYTES)).unwrap();
            assert!(ProcessorVitals::fault(&memory, BLOCK, STATUS_PROCESSORS, "none").is_err());
            let reading = reader.processor(0, &mut text).unwrap();
            assert_eq!((reading.state, &text[..reading.text_bytes]), (ProcessorState::FAULTED, &b"one"[..]));
            assert_eq!(reading.last_error, None);
            assert_eq!(reader.processor(last, &mut text).unwrap().text_bytes, TEXT_BYTES);
            // Nonsense is bounded.
            let claimed = memory.word(processor_at(BLOCK, 0).offset(PROCESSOR_TEXT_BYTES)).unwrap();
            claimed.store_release(u32::MAX);
            assert_eq!(reader.processor(0, &mut text).unwrap().text_bytes, TEXT_BYTES);
        });
    }
}
