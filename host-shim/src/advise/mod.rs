//! How many buffers would have kept the lanes from waiting, told from a capture of a run in which they did or did not.
//!
//! | step | module |
//! |---|---|
//! | when each buffer was published, drained and collected | [`evidence`] |
//! | the same traffic again, with lanes that never wait and a host as fast, or as slow, as it was | [`replay`] |
//! | the most that were in use at once, per kind of pool, and what that costs | here |
//!
//! What comes of it holds for the same load on the same host. Where the host takes no more than lanes make, more buffers only
//! put the wait off: [`Advice::host_load`] tells.

pub mod evidence;
pub mod replay;

use std::collections::BTreeMap;
use std::io::{self, Read, Seek};

use sluice_core::layout::{self, PoolKind, Region, Shape, SubsystemId};

use crate::capture::{Gate, Pool, Reader};
use evidence::Evidence;
use replay::Replay;

/// A host that is busy for more of the time than this has no reserve.
pub const BUSY: f64 = 0.9;

/// Recommended buffers of one kind of pool.
#[derive(Clone, PartialEq, Debug)]
pub struct KindAdvice {
    /// Subsystem.
    pub subsystem: SubsystemId,
    /// Kind of pool.
    pub kind: PoolKind,
    /// Its name, as `--buffers` knows it.
    pub name: &'static str,
    /// Pools of the kind that handed over a buffer.
    pub pools: u32,
    /// Buffers that each had, where the capture says so.
    pub had: Option<u32>,
    /// Most buffers of one pool that were published and not back at once, in the replay.
    pub peak: u32,
    /// The pool in which that was.
    pub peak_instance: u32,
    /// When, host monotonic ns of the replay.
    pub peak_ns: u64,
    /// Buffers per pool that would have kept every lane from waiting for one: those under way, and the one being filled.
    pub recommended: u32,
    /// Device memory that they take, all pools together.
    pub device_bytes: u64,
    /// Buffers that tell so.
    pub buffers: u64,
    /// Waits for an empty buffer that the capture has.
    pub waits: u64,
    /// Together, ns.
    pub waited_ns: u64,
}

/// How full the ready ring of a lane would have been.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingAdvice {
    /// Subsystem.
    pub subsystem: SubsystemId,
    /// Lane.
    pub lane: u32,
    /// Most entries at once, in the replay.
    pub peak: u32,
    /// Entries that it holds.
    pub room: u32,
}

impl RingAdvice {
    /// Whether the lane would have waited for room, whatever its buffers.
    pub const fn is_full(&self) -> bool {
        self.peak > self.room
    }
}

/// What a capture recommends.
#[derive(Clone, PartialEq, Debug)]
pub struct Advice {
    /// By kind of pool, those that handed over a buffer.
    pub kinds: Vec<KindAdvice>,
    /// By lane, those that published a buffer.
    pub rings: Vec<RingAdvice>,
    /// Freezes that the capture has.
    pub freezes: u64,
    /// Those that the recommended buffers would have avoided.
    pub freezes_avoided: u64,
    /// Share of the replayed time in which the host was busy with buffers.
    pub host_load: f64,
    /// Buffers of which the capture does not say when they were drained and collected.
    pub buffers_without_times: u64,
    /// Waits that lanes could not log.
    pub waits_unlogged: u64,
}

impl Advice {
    /// Looks at a capture. The reader is rewound first.
    ///
    /// # Errors
    /// What the system says about reading.
    pub fn of<R: Read + Seek>(reader: &mut Reader<R>) -> io::Result<Self> {
        let evidence = Evidence::read(reader)?;
        let replay = Replay::of(&evidence);
        let region = |subsystem| layout::region(subsystem, Shape::full(evidence.arch));
        let mut kinds: BTreeMap<(SubsystemId, PoolKind), KindAdvice> = BTreeMap::new();
        for (pool, peak) in &replay.pools {
            let Some(subsystem) = pool.subsystem.id() else { continue };
            let region = region(subsystem);
            let Some(array) = region.array(pool.kind) else { continue };
            let kind = kinds.entry((subsystem, pool.kind)).or_insert_with(|| KindAdvice {
                subsystem,
                kind: pool.kind,
                name: array.name,
                pools: 0,
                had: evidence.had.get(array.name).copied(),
                peak: 0,
                peak_instance: pool.instance,
                peak_ns: 0,
                recommended: 0,
                device_bytes: 0,
                buffers: 0,
                waits: 0,
                waited_ns: 0,
            });
            kind.pools += 1;
            kind.buffers += peak.buffers;
            let waited = evidence.waits_for(*pool);
            kind.waits += waited.count;
            kind.waited_ns += waited.ns;
            if peak.most > kind.peak {
                (kind.peak, kind.peak_instance, kind.peak_ns) = (peak.most, pool.instance, peak.at_ns);
            }
            kind.recommended = kind.peak + 1;
            kind.device_bytes =
                u64::from(kind.recommended) * u64::from(kind.pools) * array.buffer.bytes as u64;
        }
        let ring = |(&(subsystem, lane), peak): (&(SubsystemId, u32), &replay::Peak)| {
            let room = region(subsystem).ready_entries() - 1;
            RingAdvice { subsystem, lane, peak: peak.most, room }
        };
        let rings: Vec<_> = replay.rings.iter().map(ring).collect();
        let avoidable = |subsystem, gate| {
            gate == Gate::FREE || !rings.iter().any(|ring| ring.subsystem == subsystem && ring.is_full())
        };
        let avoided = evidence.freezes.iter().filter(|((subsystem, gate), _)| avoidable(*subsystem, *gate));
        Ok(Self {
            freezes: evidence.freezes.values().sum(),
            freezes_avoided: avoided.map(|(_, count)| count).sum(),
            kinds: kinds.into_values().collect(),
            rings,
            host_load: replay.host_load,
            buffers_without_times: evidence.without_times,
            waits_unlogged: evidence.unlogged,
        })
    }

    /// What to give to `--buffers`; `None` when no buffer tells anything.
    pub fn buffers_option(&self) -> Option<String> {
        let kinds: Vec<_> =
            self.kinds.iter().map(|kind| format!("{}={}", kind.name, kind.recommended)).collect();
        (!kinds.is_empty()).then(|| kinds.join(","))
    }

    /// Whether the host took no more than the lanes made.
    pub fn is_host_busy(&self) -> bool {
        self.host_load > BUSY
    }
}

/// The lane that publishes the buffers of a pool.
fn lane_of(pool: Pool, region: &Region, lane_of_core: &[u32]) -> Option<u32> {
    match (pool.subsystem.id()?, pool.kind) {
        (SubsystemId::Swimlane, PoolKind::AICPU_TASK | PoolKind::AICORE_TASK) | (SubsystemId::Pmu, _) => {
            lane_of_core.get(pool.instance as usize).copied()
        }
        (SubsystemId::Swimlane, PoolKind::SCHED_PHASE) | (SubsystemId::ArgsDump, _) => Some(pool.instance),
        _ => Some(0),
    }
    .filter(|&lane| lane < region.shape().lanes())
}

#[cfg(test)]
mod tests;
