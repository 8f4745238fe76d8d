//! The firmware's side of the status block: what each part says of itself, on lines of its own.

use core::cell::Cell;

use super::{
    DevicePhase, GateAt, HEAD_BUILD, HEAD_HZ, HEAD_LANES, HEAD_PROCESSORS, HEAD_VERSION, LANE_BYTES,
    LANE_DROPPED, LANE_GATE, LANE_PROCESSOR, LANE_SEEN, LANE_SINCE, LANE_STALLED, LANE_STALLS, LANE_STATE,
    LANE_SUBSYSTEM, LaneState, MAGIC, PHASE, PROCESSOR_BEAT, PROCESSOR_ERROR, PROCESSOR_ERRORS,
    PROCESSOR_STACK, PROCESSOR_STACK_USED, PROCESSOR_STATE, PROCESSOR_TEXT, PROCESSOR_TEXT_BYTES,
    ProcessorState, STATUS_LANES, StackUse, StatusHead, SubsystemAt, TEXT_BYTES, VERSION, entry, lane_at,
};
use crate::exec::ErrorClass;
use crate::gate::Gate;
use crate::layout::SubsystemId;
use crate::mem::{CopyMemory, DevAddr, Fault, Memory, Own, OwnCount};

/// The device's own line, as processor 0 writes it.
pub struct DeviceVitals<M: Memory> {
    phase: Own<M::Word>,
    shown: Cell<DevicePhase>,
}

impl<M: CopyMemory> DeviceVitals<M> {
    /// Writes the head of the block at `block`, for a device that starts.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn begin(memory: &M, block: DevAddr, head: &StatusHead) -> Result<Self, Fault> {
        let own = |offset| memory.word(block.offset(offset)).map(Own::new);
        let magic = own(0)?;
        magic.publish(0);
        own(HEAD_VERSION)?.set(VERSION);
        own(HEAD_LANES)?.set(head.lanes);
        own(HEAD_PROCESSORS)?.set(head.processors);
        OwnCount::at(memory, block.offset(HEAD_HZ))?.set(head.frequency_hz);
        memory.write_bytes(block.offset(HEAD_BUILD), &head.build)?;
        let vitals = Self { phase: own(PHASE)?, shown: Cell::new(DevicePhase::ABSENT) };
        vitals.show(DevicePhase::STARTING);
        magic.publish(MAGIC);
        Ok(vitals)
    }

    /// Says how far the device is, if that has changed.
    #[inline]
    pub fn show(&self, phase: DevicePhase) {
        if self.shown.replace(phase) != phase {
            self.phase.publish(phase.0);
        }
    }
}

/// A lane's line, as its processor writes it.
pub struct LaneVitals<M: Memory> {
    state: Own<M::Word>,
    gate: Own<M::Word>,
    subsystem: Own<M::Word>,
    since: OwnCount<M::Word>,
    seen: OwnCount<M::Word>,
    stalled: OwnCount<M::Word>,
    stalls: Own<M::Word>,
    dropped: Own<M::Word>,
    /// When the present wait began, if there is one.
    parked_cycles: Option<u64>,
    stall_count: u32,
    stalled_cycles: u64,
    drop_count: u32,
}

impl<M: Memory> LaneVitals<M> {
    /// The line of `lane` in the block at `block`, for a lane of `processor` that starts.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached, or there is no line for the lane.
    pub fn begin(memory: &M, block: DevAddr, lane: u32, processor: u32) -> Result<Self, Fault> {
        let at = lane_at(block, lane);
        if lane >= STATUS_LANES {
            return Err(Fault::OutOfRange { at, bytes: LANE_BYTES });
        }
        let own = |offset| memory.word(at.offset(offset)).map(Own::new);
        let count = |offset| OwnCount::at(memory, at.offset(offset));
        let vitals = Self {
            state: own(LANE_STATE)?,
            gate: own(LANE_GATE)?,
            subsystem: own(LANE_SUBSYSTEM)?,
            since: count(LANE_SINCE)?,
            seen: count(LANE_SEEN)?,
            stalled: count(LANE_STALLED)?,
            stalls: own(LANE_STALLS)?,
            dropped: own(LANE_DROPPED)?,
            parked_cycles: None,
            stall_count: 0,
            stalled_cycles: 0,
            drop_count: 0,
        };
        own(LANE_PROCESSOR)?.set(processor);
        vitals.stalled.set(0);
        vitals.stalls.set(0);
        vitals.dropped.set(0);
        vitals.state.publish(LaneState::STARTING.0);
        Ok(vitals)
    }

    /// The lane serves its engines.
    pub fn run(&self) {
        self.state.publish(LaneState::RUNNING.0);
    }

    /// A wait begins. One that has not been said to be over is over.
    #[cold]
    pub fn park(&mut self, gate: Gate, subsystem: Option<SubsystemId>, now_cycles: u64) {
        self.resume(now_cycles);
        self.parked_cycles = Some(now_cycles);
        self.stall_count = self.stall_count.wrapping_add(1);
        self.stalls.set(self.stall_count);
        self.gate.set(GateAt::from(gate).0);
        self.subsystem.set(SubsystemAt::from(subsystem).0);
        self.since.set(now_cycles);
        self.seen.set(now_cycles);
        self.state.publish(LaneState::PARKED.0);
    }

    /// The wait goes on.
    pub fn stay(&self, now_cycles: u64) {
        self.seen.set(now_cycles);
    }

    /// Whether a wait is under way.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.parked_cycles.is_some()
    }

    /// The wait is over, if there was one.
    #[cold]
    pub fn resume(&mut self, now_cycles: u64) {
        if let Some(since_cycles) = self.parked_cycles.take() {
            self.stalled_cycles = self.stalled_cycles.wrapping_add(now_cycles.saturating_sub(since_cycles));
            self.stalled.set(self.stalled_cycles);
            self.run();
        }
    }

    /// So many records of the lane were lost in all, by a count that runs freely.
    #[inline]
    pub fn note_dropped(&mut self, records: u32) {
        if self.drop_count != records {
            self.drop_count = records;
            self.dropped.set(records);
        }
    }
}

/// A processor's entry, as that processor writes it.
pub struct ProcessorVitals<M: Memory> {
    state: Own<M::Word>,
    beat: Own<M::Word>,
    stack: [Own<M::Word>; 2],
    errors: Own<M::Word>,
    last_error: Own<M::Word>,
    beats: u32,
    error_count: u32,
}

impl<M: CopyMemory> ProcessorVitals<M> {
    /// The entry of `processor` in the block at `block`, for one that starts.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached, or there is no entry for the processor.
    pub fn begin(memory: &M, block: DevAddr, processor: u32) -> Result<Self, Fault> {
        let at = entry(block, processor)?;
        let own = |offset| memory.word(at.offset(offset)).map(Own::new);
        let vitals = Self {
            state: own(PROCESSOR_STATE)?,
            beat: own(PROCESSOR_BEAT)?,
            stack: [own(PROCESSOR_STACK)?, own(PROCESSOR_STACK_USED)?],
            errors: own(PROCESSOR_ERRORS)?,
            last_error: own(PROCESSOR_ERROR)?,
            beats: 0,
            error_count: 0,
        };
        own(PROCESSOR_TEXT_BYTES)?.set(0);
        vitals.errors.set(0);
        vitals.last_error.set(0);
        vitals.note_stack(StackUse::default());
        vitals.state.publish(ProcessorState::STARTING.0);
        Ok(vitals)
    }

    /// Leaves word of why `processor` has stopped: whatever state it was in, this one comes last. What does not fit of
    /// `text` is cut off.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached, or there is no entry for the processor.
    pub fn fault(memory: &M, block: DevAddr, processor: u32, text: &str) -> Result<(), Fault> {
        let at = entry(block, processor)?;
        let bytes = &text.as_bytes()[..text.len().min(TEXT_BYTES)];
        memory.write_bytes(at.offset(PROCESSOR_TEXT), bytes)?;
        Own::new(memory.word(at.offset(PROCESSOR_TEXT_BYTES))?).set(bytes.len() as u32);
        Own::new(memory.word(at.offset(PROCESSOR_STATE))?).try_publish(ProcessorState::FAULTED.0)
    }

    /// Says what the processor does.
    #[inline]
    pub fn show(&self, state: ProcessorState) {
        self.state.publish(state.0);
    }

    /// One more round of its services.
    #[inline]
    pub fn beat(&mut self) {
        self.beats = self.beats.wrapping_add(1);
        self.beat.set(self.beats);
    }

    /// Rounds so far.
    #[inline]
    pub fn beats(&self) -> u32 {
        self.beats
    }

    /// Says how many failures there were, by a count that runs freely, and what the last one was.
    #[inline]
    pub fn note_errors(&mut self, count: u32, last: ErrorClass) {
        if self.error_count != count {
            self.error_count = count;
            self.last_error.set(last.0.into());
            self.errors.set(count);
        }
    }

    /// Says how much of the stack was ever used.
    pub fn note_stack(&self, stack: StackUse) {
        self.stack[0].set(stack.bytes);
        self.stack[1].set(stack.used_bytes);
    }
}
