//! Where a session's records and events go.

use std::io;

use sluice_core::layout::{Instance, PoolKind, SubsystemId};

use super::keeper::Shut;

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
}

/// A freeze, from the first gate shut to the release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freeze {
    /// Gates that were shut.
    pub gates: Shut,
    /// Host clock when the first gate was shut, ns.
    pub opened_ns: u64,
    /// Host clock at the release, ns.
    pub released_ns: u64,
    /// Device clock when the first gate was shut, cycles.
    pub opened_cycles: u64,
    /// Device clock at the release, cycles.
    pub released_cycles: u64,
    /// Lanes that stood at a gate at the release.
    pub lanes_parked: u32,
    /// Buffers drained meanwhile.
    pub buffers_drained: u64,
}

/// Takes what a session records. Called from the collector's thread, one call at a time.
pub trait Sink: Send {
    /// Takes the records of one buffer, as they lie on the wire. The buffer goes back to the device after this returns `Ok`,
    /// so the bytes must be safe by then.
    ///
    /// # Errors
    /// What kept the bytes from being safe; the records are counted as `copy_failed` and the buffer recycled.
    fn buffer(&mut self, meta: &BufferMeta, records: &[u8]) -> io::Result<()>;

    /// Takes a freeze that ended.
    ///
    /// # Errors
    /// What kept it from being written; the session goes on.
    fn freeze(&mut self, freeze: &Freeze) -> io::Result<()>;
}

/// A sink that counts and keeps nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct Discard;

impl Sink for Discard {
    fn buffer(&mut self, _meta: &BufferMeta, _records: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn freeze(&mut self, _freeze: &Freeze) -> io::Result<()> {
        Ok(())
    }
}
