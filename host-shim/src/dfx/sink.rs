//! Where a session's records and events go.

use std::fmt;
use std::io;
use std::time::Instant;

use sluice_core::gate::Gate;
use sluice_core::layout::args_dump::Stage;
use sluice_core::layout::device_phase::DevicePhase;
use sluice_core::layout::{Instance, Lane, PoolKind, SubsystemId};
use sluice_core::producer::Control;

/// Which buffer the bytes of one call come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferMeta {
    /// Subsystem.
    pub subsystem: SubsystemId,
    /// Kind of pool.
    pub kind: PoolKind,
    /// Which pool of its kind.
    pub instance: Instance,
    /// Its sequence number in the pool.
    pub sequence: u32,
    /// Records in it.
    pub count: u32,
    /// When it was taken out of the ready ring.
    pub drained: Instant,
}

impl fmt::Display for BufferMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subsystem, kind, instance, sequence, .. } = self;
        write!(f, "{subsystem} pool {kind} {}, buffer {sequence}", instance.0)
    }
}

/// Which bytes of which payload the bytes of one call are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayloadMeta {
    /// The lane, whose pool the record came through.
    pub lane: Lane,
    /// Sequence number of the buffer with the record.
    pub sequence: u32,
    /// Place of the record in the buffer.
    pub record: u32,
    /// The task.
    pub task: u64,
    /// Place of the argument among those of the task.
    pub arg_index: u32,
    /// When it was recorded.
    pub stage: Stage,
    /// Place of the bytes in the payload.
    pub offset_bytes: u64,
    /// Bytes of the payload.
    pub total_bytes: u64,
}

/// A freeze: one gate shut, from there to the release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freeze {
    /// Subsystem.
    pub subsystem: SubsystemId,
    /// The gate.
    pub gate: Gate,
    /// The lane that had waited there longest, so far as it could be seen.
    pub opened_by: Option<Lane>,
    /// Host clock when the gate was shut, ns.
    pub opened_ns: u64,
    /// Host clock at the release, ns.
    pub released_ns: u64,
    /// Device clock when the gate was shut, cycles.
    pub opened_cycles: u64,
    /// Device clock at the release, cycles.
    pub released_cycles: u64,
    /// Most lanes that stood at either gate of the subsystem at once.
    pub lanes_parked: u32,
    /// Buffers drained meanwhile.
    pub buffers_drained: u64,
}

/// A wait of a lane at a gate, from its first fruitless look to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// Subsystem.
    pub subsystem: SubsystemId,
    /// The lane.
    pub lane: Lane,
    /// The gate.
    pub gate: Gate,
    /// Kind of the pool whose buffer it was about.
    pub kind: PoolKind,
    /// Which pool of its kind.
    pub instance: Instance,
    /// Device clock when it began, cycles.
    pub begin_cycles: u64,
    /// Device clock when it had ended, cycles.
    pub end_cycles: u64,
    /// Whether the lane took the host for gone, and lost records.
    pub gave_up: bool,
}

/// A phase that a lane of the device went through, once in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LanePhase {
    /// The lane.
    pub lane: Lane,
    /// The phase.
    pub phase: DevicePhase,
    /// When it began, cycles.
    pub start_cycles: u64,
    /// When it ended, cycles.
    pub end_cycles: u64,
}

/// Another level, sample or window of a subsystem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Of which.
    pub subsystem: SubsystemId,
    /// Its number, counted from 1; the first is what the session began with.
    pub number: u32,
    /// What is recorded from now on.
    pub control: Control,
    /// Whether every lane records by it. Each change comes twice: when lanes are about to be told, and when all of them follow.
    /// The first comes once, for no lane has ever recorded by anything else.
    pub is_followed: bool,
    /// Device clock, cycles.
    pub at_cycles: u64,
}

/// Takes what a session records. Called from the collectors' threads; calls for one pool come in order, one at a time. Changes
/// come from the thread that makes them.
pub trait Sink: Send + Sync {
    /// Takes the records of one buffer, as they lie on the wire. The buffer goes back to the device after this returns `Ok`,
    /// so the bytes must be safe by then.
    ///
    /// # Errors
    /// What kept the bytes from being safe. They are offered a few times; then the records are counted as `copy_failed` and
    /// the buffer is recycled.
    fn buffer(&self, meta: &BufferMeta, records: &[u8]) -> io::Result<()>;

    /// Takes bytes of a payload, before the record that it belongs to. The lane may write over it once this has returned `Ok`
    /// for all of it. A sink that does not say otherwise keeps none.
    ///
    /// # Errors
    /// As [`buffer`](Sink::buffer); all records of the buffer are counted as `copy_failed` then.
    fn payload(&self, _meta: &PayloadMeta, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// Takes a freeze that ended.
    ///
    /// # Errors
    /// What kept it from being written; the session goes on.
    fn freeze(&self, freeze: &Freeze) -> io::Result<()>;

    /// Takes waits of lanes that have ended, those of one lane and subsystem in order. Kept by nobody unless told otherwise.
    ///
    /// # Errors
    /// What kept them from being written; the session goes on.
    fn waits(&self, _waits: &[Wait]) -> io::Result<()> {
        Ok(())
    }

    /// Takes a change of what is recorded, before any record that is made by it. Kept by nobody unless told otherwise.
    ///
    /// # Errors
    /// What kept it from being written. A change that lanes have not been told of is not made then.
    fn change(&self, _change: &Change) -> io::Result<()> {
        Ok(())
    }

    /// Takes the phases of the device, lane by lane, at the end of the session. Kept by nobody unless told otherwise.
    ///
    /// # Errors
    /// What kept them from being written; the session ends all the same.
    fn phases(&self, _phases: &[LanePhase]) -> io::Result<()> {
        Ok(())
    }
}

/// A sink that counts and keeps nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct Discard;

impl Sink for Discard {
    fn buffer(&self, _meta: &BufferMeta, _records: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn freeze(&self, _freeze: &Freeze) -> io::Result<()> {
        Ok(())
    }
}
