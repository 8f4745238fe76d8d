//! What a device says of itself: its status block, read once, and put so that people and tools can follow it.
//!
//! ```text
//!   status block ──read──► head, phase, lanes, processors ──► one account: a lane on a processor that has stopped has stopped
//! ```
//!
//! Nobody has to serve the device for that, and nothing in its memory is changed. What it says is its claim: unknown states are
//! shown by number, counts are what the words held.

use std::fmt;

use serde::{Deserialize, Serialize};
use sluice_core::exec::status_block;
use sluice_core::exec::vitals::{
    DevicePhase, GateAt, LaneReading, LaneState, ProcessorReading, ProcessorState, StatusError, StatusHead,
    StatusReader, TEXT_BYTES,
};
use sluice_core::mem::{CopyMemory, DevAddr};

/// What a device says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceStatus {
    /// How far it is: starting, ready, executing, stopped, faulted.
    pub phase: String,
    /// Name of the firmware's build.
    pub build: String,
    /// Cycles of its counter per second.
    pub frequency_hz: u64,
    /// By number.
    pub lanes: Vec<LaneStatus>,
    /// By number.
    pub processors: Vec<ProcessorStatus>,
}

/// What a lane says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneStatus {
    /// What it does: starting, running, parked, or what its processor does if that keeps it from both.
    pub state: String,
    /// The processor that it is on.
    pub processor: u32,
    /// Where it waits, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<Parked>,
    /// Waits so far.
    pub stalls: u64,
    /// Time that those took which are over, nanoseconds.
    pub stalled_ns: u64,
    /// Records lost.
    pub dropped: u64,
}

/// A wait that is not over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parked {
    /// At which gate: `rq` or `fq`.
    pub gate: String,
    /// Of which subsystem; absent if it is none that has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// The device's counter when it began.
    pub since_cycles: u64,
    /// How long it had lasted when the lane last looked, nanoseconds.
    pub lasted_ns: u64,
}

/// What a processor says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessorStatus {
    /// What it does: starting, running, asleep, faulted, stopped.
    pub state: String,
    /// Rounds of its services, running freely.
    pub beat: u32,
    /// Its stack; absent where nobody measures it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Stack>,
    /// Failures that it has met in programs, queues and executions.
    pub errors: u64,
    /// What the last one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Why it has stopped by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stack {
    /// Bytes that there are.
    pub bytes: u64,
    /// Most bytes that were in use.
    pub used_bytes: u64,
}

impl DeviceStatus {
    /// What the device says whose boot block is at `boot`.
    ///
    /// # Errors
    /// [`StatusError`] when there is no status block, or none that this library knows.
    pub fn read<M: CopyMemory>(memory: &M, boot: DevAddr) -> Result<Self, StatusError> {
        let reader = StatusReader::new(memory.clone(), status_block(boot));
        let head = reader.head()?;
        let said = reader.phase()?;
        let mut text = [0; TEXT_BYTES];
        let mut readings = Vec::new();
        for number in 0..head.processors {
            let reading = reader.processor(number, &mut text)?;
            readings.push((reading, String::from_utf8_lossy(&text[..reading.text_bytes]).into_owned()));
        }
        let lanes = (0..head.lanes).map(|lane| reader.lane(lane)).collect::<Result<Vec<_>, _>>()?;
        let state_of = |lane: &LaneReading| {
            readings.get(lane.processor as usize).map_or(ProcessorState::ABSENT, |(reading, _)| reading.state)
        };
        Ok(Self {
            phase: phase(said, readings.iter().map(|(reading, _)| reading.state)).to_string(),
            build: name(&head),
            frequency_hz: head.frequency_hz,
            lanes: lanes.iter().map(|lane| LaneStatus::of(lane, state_of(lane), head.frequency_hz)).collect(),
            processors: readings.iter().map(|(reading, text)| ProcessorStatus::of(reading, text)).collect(),
        })
    }

    /// Why processors have stopped by themselves, of each that has.
    pub fn faults(&self) -> impl Iterator<Item = (usize, &str)> {
        let processors = self.processors.iter().enumerate();
        processors.filter_map(|(number, processor)| Some((number, processor.fault.as_deref()?)))
    }
}

/// How far the device is, when processor 0 has said `said`: it speaks for the others only while they run.
fn phase(said: DevicePhase, mut states: impl Iterator<Item = ProcessorState> + Clone) -> DevicePhase {
    let is_on_its_way = |state| matches!(state, ProcessorState::ABSENT | ProcessorState::STARTING);
    if states.clone().any(|state| state == ProcessorState::FAULTED) {
        DevicePhase::FAULTED
    } else if said == DevicePhase::READY && states.any(is_on_its_way) {
        DevicePhase::STARTING
    } else {
        said
    }
}

fn name(head: &StatusHead) -> String {
    let end = head.build.iter().position(|&byte| byte == 0).unwrap_or(head.build.len());
    String::from_utf8_lossy(&head.build[..end]).into_owned()
}

fn ns_of(cycles: u64, frequency_hz: u64) -> u64 {
    let ns = u128::from(cycles) * 1_000_000_000 / u128::from(frequency_hz.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

impl LaneStatus {
    fn of(lane: &LaneReading, processor: ProcessorState, frequency_hz: u64) -> Self {
        let state = match (processor, lane.state) {
            (ProcessorState::FAULTED | ProcessorState::STOPPED, _)
            | (ProcessorState::ASLEEP, LaneState::RUNNING) => processor.to_string(),
            (_, state) => state.to_string(),
        };
        let parked = (lane.state == LaneState::PARKED).then(|| Parked {
            gate: GateAt::to_string(&lane.gate),
            subsystem: lane.subsystem.subsystem().map(|subsystem| subsystem.name().into()),
            since_cycles: lane.since_cycles,
            lasted_ns: ns_of(lane.seen_cycles.saturating_sub(lane.since_cycles), frequency_hz),
        });
        Self {
            state,
            processor: lane.processor,
            parked,
            stalls: lane.stalls.into(),
            stalled_ns: ns_of(lane.stalled_cycles, frequency_hz),
            dropped: lane.dropped.into(),
        }
    }
}

impl ProcessorStatus {
    fn of(processor: &ProcessorReading, text: &str) -> Self {
        let stack =
            Stack { bytes: processor.stack.bytes.into(), used_bytes: processor.stack.used_bytes.into() };
        Self {
            state: processor.state.to_string(),
            beat: processor.beat,
            stack: Some(stack).filter(|stack| stack.bytes > 0),
            errors: processor.errors.into(),
            last_error: processor.last_error.map(|class| match class.name() {
                "unknown error" => format!("{} {}", class.name(), class.0),
                name => name.into(),
            }),
            fault: (processor.state == ProcessorState::FAULTED).then(|| text.into()),
        }
    }
}

impl fmt::Display for LaneStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.state)?;
        if let Some(Parked { gate, subsystem, since_cycles, lasted_ns }) = &self.parked {
            let of = subsystem.as_deref().unwrap_or("no subsystem");
            write!(f, " at {gate} of {of} since cycle {since_cycles} ({:.3} s)", *lasted_ns as f64 / 1e9)?;
        }
        let Self { stalls, stalled_ns, dropped, .. } = self;
        write!(f, ", {stalls} stalls of {:.3} ms in all, {dropped} records lost", *stalled_ns as f64 / 1e6)
    }
}

impl fmt::Display for ProcessorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, beat {}", self.state, self.beat)?;
        if let Some(Stack { bytes, used_bytes }) = self.stack {
            write!(f, ", {used_bytes} of {bytes} bytes of stack used")?;
        }
        if let Some(last) = &self.last_error {
            write!(f, ", {} failures, last: {last}", self.errors)?;
        }
        match &self.fault {
            Some(fault) => write!(f, ": {fault}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::exec::vitals::SubsystemAt;

    #[test]
    fn one_processor_speaks_for_the_others_only_while_they_run() {
        use ProcessorState as P;
        let of = |said, states: &[P]| phase(said, states.iter().copied());
        assert_eq!(of(DevicePhase::READY, &[P::RUNNING, P::ASLEEP]), DevicePhase::READY);
        assert_eq!(of(DevicePhase::READY, &[P::RUNNING, P::ABSENT]), DevicePhase::STARTING);
        assert_eq!(of(DevicePhase::EXECUTING, &[P::RUNNING, P::FAULTED]), DevicePhase::FAULTED);
        assert_eq!(of(DevicePhase(9), &[P::RUNNING]).to_string(), "unknown(9)");
    }

    #[test]
    fn a_lane_is_what_its_processor_lets_it_be() {
        let lane = LaneReading {
            state: LaneState::RUNNING,
            processor: 1,
            gate: GateAt(7),
            subsystem: SubsystemAt(99),
            since_cycles: 1_000,
            seen_cycles: 3_000,
            stalls: 2,
            stalled_cycles: 1 << 60,
            dropped: 5,
        };
        let state = |lane: &LaneReading, processor| LaneStatus::of(lane, processor, 1_000_000).state;
        assert_eq!(state(&lane, ProcessorState::RUNNING), "running");
        assert_eq!(state(&lane, ProcessorState::ASLEEP), "asleep");
        let parked = LaneReading { state: LaneState::PARKED, ..lane };
        assert_eq!(state(&parked, ProcessorState::ASLEEP), "parked");
        assert_eq!(state(&parked, ProcessorState::FAULTED), "faulted");
        // Words that make no sense are shown, not believed.
        let shown = LaneStatus::of(&parked, ProcessorState::RUNNING, 0);
        assert_eq!(shown.stalled_ns, u64::MAX);
        assert!(shown.to_string().starts_with("parked at unknown(7) of no subsystem since cycle 1000 "));
        assert_eq!(
            LaneStatus::of(&parked, ProcessorState::RUNNING, 1_000_000).parked.unwrap().lasted_ns,
            2_000_000
        );
    }
}
