//! Whoever looks at the status block: nothing in it is believed that does not fit.

use super::{
    BUILD_BYTES, DevicePhase, GateAt, HEAD_BUILD, HEAD_HZ, HEAD_LANES, HEAD_PROCESSORS, HEAD_VERSION,
    LANE_DROPPED, LANE_GATE, LANE_PROCESSOR, LANE_SEEN, LANE_SINCE, LANE_STALLED, LANE_STALLS, LANE_STATE,
    LANE_SUBSYSTEM, LaneState, MAGIC, PHASE, PROCESSOR_BEAT, PROCESSOR_ERROR, PROCESSOR_ERRORS,
    PROCESSOR_STACK, PROCESSOR_STACK_USED, PROCESSOR_STATE, PROCESSOR_TEXT, PROCESSOR_TEXT_BYTES,
    ProcessorState, STATUS_LANES, STATUS_PROCESSORS, StackUse, StatusHead, SubsystemAt, TEXT_BYTES, VERSION,
    lane_at, processor_at,
};
use crate::exec::ErrorClass;
use crate::mem::{CopyMemory, DevAddr, Fault, LongPeer, Word};

/// A reader looks so often for words that belong together.
const LOOKS: u32 = 4;

/// A block that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusError {
    /// Memory cannot be reached.
    Fault(Fault),
    /// No firmware has begun the block.
    Absent {
        /// What stands in place of the magic number.
        found: u32,
    },
    /// Another version than [`VERSION`].
    Version {
        /// The version.
        found: u32,
    },
    /// More lanes or processors than the block has room for.
    Shape {
        /// Lanes that the block names.
        lanes: u32,
        /// Processors that it names.
        processors: u32,
    },
}

impl From<Fault> for StatusError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl core::fmt::Display for StatusError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Fault(fault) => write!(f, "status block: {fault}"),
            Self::Absent { found } => {
                write!(
                    f,
                    "status block starts with {found:#010x}, expected {MAGIC:#010x}: no firmware has started"
                )
            }
            Self::Version { found } => write!(f, "status block has version {found}, expected {VERSION}"),
            Self::Shape { lanes, processors } => write!(
                f,
                "status block names {lanes} lanes and {processors} processors, it has room for {STATUS_LANES} and \
                 {STATUS_PROCESSORS}"
            ),
        }
    }
}

impl core::error::Error for StatusError {}

/// What a lane's line says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneReading {
    /// What it does.
    pub state: LaneState,
    /// On which processor.
    pub processor: u32,
    /// At which gate it waits; of the last wait if it does not.
    pub gate: GateAt,
    /// Of which subsystem.
    pub subsystem: SubsystemAt,
    /// When that wait began.
    pub since_cycles: u64,
    /// When the lane last looked whether it is over.
    pub seen_cycles: u64,
    /// Waits so far.
    pub stalls: u32,
    /// Cycles that those took which are over.
    pub stalled_cycles: u64,
    /// Records lost.
    pub dropped: u32,
}

/// What a processor's entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessorReading {
    /// What it does.
    pub state: ProcessorState,
    /// Rounds of its services.
    pub beat: u32,
    /// Its stack; all zero where nobody measures it.
    pub stack: StackUse,
    /// Failures so far.
    pub errors: u32,
    /// The last one, if there was one. No claim of more than 16 bits names a failure.
    pub last_error: Option<ErrorClass>,
    /// Bytes of the text that it left.
    pub text_bytes: usize,
}

/// The side that looks.
#[derive(Clone, Debug)]
pub struct StatusReader<M> {
    memory: M,
    block: DevAddr,
}

impl<M: CopyMemory> StatusReader<M> {
    /// The block at `block`.
    pub fn new(memory: M, block: DevAddr) -> Self {
        Self { memory, block }
    }

    fn word(&self, at: DevAddr) -> Result<u32, Fault> {
        self.memory.word(at)?.try_load()
    }

    fn count(&self, at: DevAddr) -> Result<u64, Fault> {
        Ok(LongPeer::<M::Word>::at(&self.memory, at)?.try_observe()?.0)
    }

    /// What the device is.
    ///
    /// # Errors
    /// [`StatusError`] when there is no such block, or not one for this reader.
    pub fn head(&self) -> Result<StatusHead, StatusError> {
        let found = self.word(self.block)?;
        if found != MAGIC {
            return Err(StatusError::Absent { found });
        }
        let found = self.word(self.block.offset(HEAD_VERSION))?;
        if found != VERSION {
            return Err(StatusError::Version { found });
        }
        let lanes = self.word(self.block.offset(HEAD_LANES))?;
        let processors = self.word(self.block.offset(HEAD_PROCESSORS))?;
        if lanes > STATUS_LANES || processors > STATUS_PROCESSORS {
            return Err(StatusError::Shape { lanes, processors });
        }
        let mut build = [0; BUILD_BYTES];
        self.memory.read_bytes(self.block.offset(HEAD_BUILD), &mut build)?;
        let frequency_hz = self.count(self.block.offset(HEAD_HZ))?;
        Ok(StatusHead { lanes, processors, frequency_hz, build })
    }

    /// How far processor 0 says that the device is.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn phase(&self) -> Result<DevicePhase, Fault> {
        self.word(self.block.offset(PHASE)).map(DevicePhase)
    }

    /// What lane `lane` says of itself, less than [`STATUS_LANES`].
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn lane(&self, lane: u32) -> Result<LaneReading, Fault> {
        let at = lane_at(self.block, lane.min(STATUS_LANES - 1));
        let word = |offset| self.word(at.offset(offset));
        let mut reading = self.lane_once(at)?;
        for _ in 0..LOOKS {
            if (LaneState(word(LANE_STATE)?), word(LANE_STALLS)?) == (reading.state, reading.stalls) {
                break;
            }
            reading = self.lane_once(at)?;
        }
        Ok(reading)
    }

    fn lane_once(&self, at: DevAddr) -> Result<LaneReading, Fault> {
        let word = |offset| self.word(at.offset(offset));
        let count = |offset| self.count(at.offset(offset));
        Ok(LaneReading {
            state: LaneState(word(LANE_STATE)?),
            stalls: word(LANE_STALLS)?,
            processor: word(LANE_PROCESSOR)?,
            gate: GateAt(word(LANE_GATE)?),
            subsystem: SubsystemAt(word(LANE_SUBSYSTEM)?),
            since_cycles: count(LANE_SINCE)?,
            seen_cycles: count(LANE_SEEN)?,
            stalled_cycles: count(LANE_STALLED)?,
            dropped: word(LANE_DROPPED)?,
        })
    }

    /// What processor `processor` says of itself, less than [`STATUS_PROCESSORS`]; `text` takes the words that it left.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn processor(&self, processor: u32, text: &mut [u8; TEXT_BYTES]) -> Result<ProcessorReading, Fault> {
        let at = processor_at(self.block, processor.min(STATUS_PROCESSORS - 1));
        let word = |offset| self.word(at.offset(offset));
        // First: once it reads faulted, the text is there.
        let state = ProcessorState(word(PROCESSOR_STATE)?);
        let errors = word(PROCESSOR_ERRORS)?;
        let last_error = u16::try_from(word(PROCESSOR_ERROR)?).ok().map(ErrorClass);
        let text_bytes = match state {
            ProcessorState::FAULTED => (word(PROCESSOR_TEXT_BYTES)? as usize).min(TEXT_BYTES),
            _ => 0,
        };
        self.memory.read_bytes(at.offset(PROCESSOR_TEXT), &mut text[..text_bytes])?;
        Ok(ProcessorReading {
            state,
            beat: word(PROCESSOR_BEAT)?,
            stack: StackUse { bytes: word(PROCESSOR_STACK)?, used_bytes: word(PROCESSOR_STACK_USED)? },
            errors,
            last_error: last_error.filter(|_| errors > 0),
            text_bytes,
        })
    }
}
