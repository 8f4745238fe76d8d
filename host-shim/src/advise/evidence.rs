//! What a capture tells of its buffers: when each was published, drained and collected, and which waits there were.
//!
//! | instant | where it comes from |
//! |---|---|
//! | published | the end of the last record, where records have times; else the instant of the drain. Where the lane then waited for room in its ring, or for the next buffer of the pool: when that wait began, if that is earlier |
//! | drained, collected | the host's own clock, in the capture |
//!
//! Memory: 48 bytes per buffer and 16 per wait, at most [`MOST_BUFFERS`] and as many waits; those beyond are counted and not
//! looked at.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek};
use std::mem::offset_of;

use sluice_core::layout::swimlane::{
    AicoreTaskRecord, AicpuOrchPhaseRecord, AicpuSchedPhaseRecord, AicpuTaskRecord,
};
use sluice_core::layout::{self, ArchId, PoolKind, Shape, SubsystemId};

use super::lane_of;
use crate::capture::dedup::{Seen, Verdict};
use crate::capture::segment::Segment;
use crate::capture::{Gate, Pool, Reader, WaitNote};
use crate::export::clock::DeviceTime;
use crate::export::intervals::Intervals;

/// Most buffers that are looked at.
pub const MOST_BUFFERS: usize = 1 << 22;

/// The life of one buffer outside its lane, host monotonic ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transit {
    /// Its pool.
    pub pool: Pool,
    /// When the lane meant to publish it.
    pub published_ns: u64,
    /// When the host took it out of the ready ring.
    pub drained_ns: u64,
    /// When its records were safe.
    pub collected_ns: u64,
}

/// Waits, counted and added up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waited {
    /// How many.
    pub count: u64,
    /// Together.
    pub ns: u64,
}

/// What a capture tells.
#[derive(Debug)]
pub struct Evidence {
    /// Architecture.
    pub arch: ArchId,
    /// Buffers of which all three instants are known, pool by pool in the order of their numbers.
    pub transits: Vec<Transit>,
    /// The lane that publishes the buffers of each pool, where it is known.
    pub lanes: BTreeMap<Pool, u32>,
    /// Waits of each lane in all subsystems, host monotonic ns.
    pub waits: BTreeMap<u32, Intervals>,
    /// Waits for an empty buffer, by pool.
    free_waits: BTreeMap<Pool, Waited>,
    /// Freezes by subsystem and gate.
    pub freezes: BTreeMap<(SubsystemId, Gate), u64>,
    /// Buffers per pool in the run, by name of the kind.
    pub had: BTreeMap<String, u32>,
    /// Buffers without times, and those that were too many.
    pub without_times: u64,
    /// Waits that are not in the capture.
    pub unlogged: u64,
}

/// When a buffer was drained and collected.
type HostTimes = (u64, u64);

impl Evidence {
    /// Reads a capture. The reader is rewound first and walked once.
    ///
    /// # Errors
    /// What the system says about reading.
    pub fn read<R: Read + Seek>(reader: &mut Reader<R>) -> io::Result<Self> {
        let header = *reader.header();
        let mut time = DeviceTime::new(header.clock_hz);
        let mut lane_of_core = Vec::new();
        let (mut lanes, mut had) = (header.arch.facts().lanes as u32, BTreeMap::new());
        // Pool and number: the end of the last record in cycles, and what the host says.
        let mut ends: BTreeMap<(Pool, u32), Option<u64>> = BTreeMap::new();
        let mut host: BTreeMap<(Pool, u32), HostTimes> = BTreeMap::new();
        let mut notes: Vec<WaitNote> = Vec::new();
        let (mut freezes, mut seen, mut without_times) = (BTreeMap::new(), Seen::default(), 0);
        let mut unlogged = 0;
        reader.rewind()?;
        while let Some(segment) = reader.read()? {
            match segment {
                Segment::Manifest(manifest) => {
                    lane_of_core = manifest.cores.iter().map(|core| core.lane).collect();
                    (lanes, had) = (manifest.lanes, manifest.buffers);
                }
                Segment::ClockPairs(pairs) => pairs.for_each(|pair| time.add(pair)),
                Segment::Buffer(buffer, records) => {
                    let (pool, seq) = (buffer.pool(), buffer.buffer_seq);
                    if seen.admit(pool, seq) != Verdict::Duplicate {
                        if ends.len() < MOST_BUFFERS {
                            ends.insert((pool, seq), end_of(pool, records, buffer.record_bytes as usize));
                        } else {
                            without_times += 1;
                        }
                    }
                }
                Segment::Transits(transits) => {
                    for transit in transits {
                        if host.len() < MOST_BUFFERS {
                            let times = (transit.drained_ns, transit.collected_ns);
                            host.insert((transit.pool(), transit.buffer_seq), times);
                        }
                    }
                }
                Segment::Waits(waits) => {
                    let room = MOST_BUFFERS.saturating_sub(notes.len());
                    unlogged += waits.len().saturating_sub(room) as u64;
                    notes.extend(waits.take(room));
                }
                Segment::Freezes(all) => {
                    for freeze in all {
                        if let Some(subsystem) = freeze.subsystem.id() {
                            *freezes.entry((subsystem, freeze.gate)).or_default() += 1;
                        }
                    }
                }
                Segment::End(summary) => {
                    let waits = summary.report.dfx.values().filter_map(|dfx| dfx.waits);
                    unlogged += waits.map(|waits| waits.unlogged).sum::<u64>();
                }
                _ => {}
            }
        }
        let mut evidence = Self {
            arch: header.arch,
            transits: Vec::new(),
            lanes: BTreeMap::new(),
            waits: BTreeMap::new(),
            free_waits: BTreeMap::new(),
            freezes,
            had,
            without_times,
            unlogged,
        };
        evidence.add_buffers(&ends, &host, &time, lanes.max(1), &lane_of_core);
        evidence.add_waits(&notes, &time);
        Ok(evidence)
    }

    fn add_buffers(
        &mut self,
        ends: &BTreeMap<(Pool, u32), Option<u64>>,
        host: &BTreeMap<(Pool, u32), HostTimes>,
        time: &DeviceTime,
        lanes: u32,
        lane_of_core: &[u32],
    ) {
        for (&(pool, seq), &end) in ends {
            let Some(&(drained_ns, collected_ns)) = host.get(&(pool, seq)) else {
                self.without_times += 1;
                continue;
            };
            let published_ns = end.map_or(drained_ns, |end| time.ns(end)).min(drained_ns);
            self.transits.push(Transit { pool, published_ns, drained_ns, collected_ns });
            let region = pool.subsystem.id().and_then(|subsystem| {
                let shape = Shape::new(self.arch, lanes, lane_of_core.len().max(1) as u32).ok()?;
                Some(layout::region(subsystem, shape))
            });
            if let Some(lane) = region.and_then(|region| lane_of(pool, &region, lane_of_core)) {
                self.lanes.insert(pool, lane);
            }
        }
    }

    /// A wait for a buffer follows a publication of its pool, one for room precedes it.
    fn add_waits(&mut self, notes: &[WaitNote], time: &DeviceTime) {
        for note in notes {
            let pool = Pool { subsystem: note.subsystem, kind: note.kind, instance: note.instance };
            let (begin, end) = (time.ns(note.begin_cycles), time.ns(note.end_cycles));
            self.waits.entry(note.lane).or_default().push(begin, end);
            let is_free = note.gate == Gate::FREE;
            if is_free {
                let waited = self.free_waits.entry(pool).or_default();
                waited.count += 1;
                waited.ns += end.saturating_sub(begin);
            }
            let of_pool = range_of(&self.transits, pool);
            let of_pool = &mut self.transits[of_pool];
            // The first buffer that was drained after the wait was filled, or published, behind it.
            let behind = of_pool.partition_point(|transit| transit.drained_ns <= end);
            let published = if is_free { behind.checked_sub(1) } else { Some(behind) };
            if let Some(transit) = published.and_then(|number| of_pool.get_mut(number)) {
                transit.published_ns = transit.published_ns.min(begin);
            }
        }
        self.waits.values_mut().for_each(Intervals::put_in_order);
    }

    /// Waits for an empty buffer of `pool`.
    pub fn waits_for(&self, pool: Pool) -> Waited {
        self.free_waits.get(&pool).copied().unwrap_or_default()
    }
}

/// Where the buffers of `pool` stand.
fn range_of(transits: &[Transit], pool: Pool) -> std::ops::Range<usize> {
    transits.partition_point(|transit| transit.pool < pool)
        ..transits.partition_point(|transit| transit.pool <= pool)
}

/// The end of the last record, device cycles, where records have one.
fn end_of(pool: Pool, records: &[u8], record_bytes: usize) -> Option<u64> {
    macro_rules! end {
        ($record:ty, $field:ident) => {
            (offset_of!($record, $field), size_of::<$record>())
        };
    }
    let (offset, bytes) = match (pool.subsystem.id()?, pool.kind) {
        (SubsystemId::Swimlane, PoolKind::AICPU_TASK) => end!(AicpuTaskRecord, finish_time),
        (SubsystemId::Swimlane, PoolKind::AICORE_TASK) => end!(AicoreTaskRecord, end_time),
        (SubsystemId::Swimlane, PoolKind::SCHED_PHASE) => end!(AicpuSchedPhaseRecord, end_time),
        (SubsystemId::Swimlane, PoolKind::ORCH_PHASE) => end!(AicpuOrchPhaseRecord, end_time),
        _ => return None,
    };
    let last = records.chunks_exact(bytes).last().filter(|_| bytes == record_bytes)?;
    last[offset..].first_chunk().map(|end| u64::from_le_bytes(*end))
}
