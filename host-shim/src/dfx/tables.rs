//! Tables beside the regions, whose addresses lanes and cores are told in the boot block.
//!
//! | table | written by | read by |
//! |---|---|---|
//! | staging rings, one per core (PMU on a5) | the cores; zeroed here | the lanes, by the pointer in each pool |
//! | addresses of the rings | the host | cores that are not told by their lane |
//! | heads of the cores' own pools (swimlane) | the lanes; zeroed here | cores that are not told by their lane |
//! | device phases | the lanes; reads as never stamped here | the host at the end |
//! | totals of the heap | the host, all the time ([`HeapMirror`]) | the lane of the sequencers (ScopeStats) |

use sluice_core::exec::SideTables;
use sluice_core::layout::device_phase::{self, DevicePhase, NEVER, PhaseRecord, TaskTimingRecord};
use sluice_core::layout::{Instance, Lane, PoolKind, Region, Shape, SubsystemId};
use sluice_core::mem::{CopyMemory, DevAddr, Fault, Memory, Word};
use sluice_core::mmio::RING_BYTES;
use zerocopy::{FromZeros, IntoBytes};

use super::again::again;
use super::config::DfxConfig;
use super::plan::{Part, PlanError, zero};
use super::sink::LanePhase;
use crate::device::heap::{DeviceBlock, Heap, HeapTotals};

/// The tables of one session.
#[derive(Debug)]
pub(super) struct Tables {
    shape: Shape,
    /// Rings, and the table of their addresses.
    staging: Option<[DeviceBlock; 2]>,
    aicore_heads: Option<DeviceBlock>,
    phases: DeviceBlock,
    heap_totals: DeviceBlock,
}

/// Bytes of the heap's totals: two 64-bit words.
const TOTALS_BYTES: u64 = 16;

/// Bytes of all rings and of the table of their addresses, where a session has them.
fn staging_bytes(config: &DfxConfig) -> Option<[u64; 2]> {
    let mut regions = config.enabled().map(|(subsystem, _)| region(subsystem, config.shape));
    let cores = u64::from(config.shape.cores());
    regions
        .any(|region| staging_ptr(&region, Instance(0)).is_some())
        .then_some([cores * RING_BYTES as u64, cores * size_of::<u64>() as u64])
}

/// Bytes of the table of heads, where a session has one.
fn aicore_heads_bytes(config: &DfxConfig) -> Option<u64> {
    let has_swimlane = config.subsystems[SubsystemId::Swimlane.index()].is_some();
    has_swimlane.then(|| u64::from(config.shape.cores()) * size_of::<u64>() as u64)
}

fn region(subsystem: SubsystemId, shape: Shape) -> Region {
    sluice_core::layout::region(subsystem, shape)
}

/// Where the pool of a core names the core's ring, from the region's base.
fn staging_ptr(region: &Region, core: Instance) -> Option<usize> {
    region.pool(PoolKind::SOLE, core)?.staging_ptr
}

impl Tables {
    /// Bytes of device memory that the tables take.
    pub(super) fn needed_bytes(config: &DfxConfig) -> u64 {
        staging_bytes(config).iter().flatten().sum::<u64>()
            + aicore_heads_bytes(config).unwrap_or(0)
            + device_phase::bytes(config.shape.lanes()) as u64
            + TOTALS_BYTES
    }

    /// Allocates the tables.
    pub(super) fn new(
        config: &DfxConfig,
        alloc: impl Fn(u64) -> Result<DeviceBlock, PlanError>,
    ) -> Result<Self, PlanError> {
        let staging = match staging_bytes(config) {
            Some([rings, addresses]) => Some([alloc(rings)?, alloc(addresses)?]),
            None => None,
        };
        let aicore_heads = aicore_heads_bytes(config).map(&alloc).transpose()?;
        let phases = alloc(device_phase::bytes(config.shape.lanes()) as u64)?;
        let heap_totals = alloc(TOTALS_BYTES)?;
        Ok(Self { shape: config.shape, staging, aicore_heads, phases, heap_totals })
    }

    /// Makes the tables what lanes and cores expect, once the regions are.
    pub(super) fn write<M: CopyMemory>(&self, parts: &[Part], memory: &M) -> Result<(), Fault> {
        if let Some([rings, addresses]) = &self.staging {
            zero(memory, rings)?;
            for core in 0..self.shape.cores() {
                let ring = rings.at().offset(u64::from(core) * RING_BYTES as u64);
                memory.write_bytes(addresses.at().offset(u64::from(core) * 8), ring.0.as_bytes())?;
                for part in parts {
                    if let Some(offset) = staging_ptr(&part.region, Instance(core)) {
                        memory
                            .write_bytes(part.region_block.at().offset(offset as u64), ring.0.as_bytes())?;
                    }
                }
            }
        }
        self.aicore_heads.iter().try_for_each(|heads| zero(memory, heads))?;
        zero(memory, &self.phases)?;
        let lanes = self.shape.lanes();
        let never = PhaseRecord { start_cycle: NEVER, end_cycle: 0 };
        for number in 0..lanes as usize * device_phase::PHASES {
            memory.write_bytes(self.phase_at(number), never.as_bytes())?;
        }
        let untagged = TaskTimingRecord { dispatch_cycle: NEVER, finish_cycle: 0 };
        for number in 0..lanes as usize * device_phase::TASK_TIMING_SLOTS {
            let offset = device_phase::task_timing_offset(lanes) + number * size_of::<TaskTimingRecord>();
            memory.write_bytes(self.phases.at().offset(offset as u64), untagged.as_bytes())?;
        }
        Ok(())
    }

    /// Bytes of device memory that the tables hold.
    pub(super) fn bytes(&self) -> u64 {
        let blocks = self.staging.iter().flatten().chain(&self.aicore_heads);
        blocks.chain([&self.phases, &self.heap_totals]).map(DeviceBlock::bytes).sum()
    }

    /// Where they lie.
    pub(super) fn addresses(&self) -> SideTables {
        SideTables {
            pmu_rings: self.staging.as_ref().map_or(DevAddr::NULL, |[_, addresses]| addresses.at()),
            aicore_heads: self.aicore_heads.as_ref().map_or(DevAddr::NULL, DeviceBlock::at),
            device_phases: self.phases.at(),
            heap_totals: self.heap_totals.at(),
        }
    }

    /// Keeps the totals what those of `heap` are, which it stores at once.
    ///
    /// # Errors
    /// [`Fault`] when they cannot be reached.
    pub(super) fn mirror<M: Memory>(&self, memory: &M, heap: &Heap) -> Result<HeapMirror<M::Word>, Fault> {
        let word = |offset: u64| memory.word(self.heap_totals.at().offset(offset));
        let mut mirror = HeapMirror {
            heap: heap.clone(),
            handed_out: [word(0)?, word(4)?],
            taken_back: [word(8)?, word(12)?],
            shown: None,
        };
        mirror.show();
        Ok(mirror)
    }

    /// The phases that lanes have stamped, lane by lane.
    ///
    /// # Errors
    /// [`Fault`] when the table cannot be read.
    pub(super) fn phases<M: CopyMemory>(&self, memory: &M) -> Result<Vec<LanePhase>, Fault> {
        let mut phases = Vec::new();
        for number in 0..self.shape.lanes() as usize * device_phase::PHASES {
            let mut record = PhaseRecord::new_zeroed();
            again(|| memory.read_bytes(self.phase_at(number), record.as_mut_bytes()))?;
            let PhaseRecord { start_cycle: start_cycles, end_cycle: end_cycles } = record;
            if start_cycles != NEVER {
                let lane = Lane((number / device_phase::PHASES) as u32);
                let phase = DevicePhase((number % device_phase::PHASES) as u32);
                phases.push(LanePhase { lane, phase, start_cycles, end_cycles });
            }
        }
        Ok(phases)
    }

    /// Phase `number % PHASES` of lane `number / PHASES`.
    fn phase_at(&self, number: usize) -> DevAddr {
        let offset = size_of::<device_phase::BufferHeader>() + number * size_of::<PhaseRecord>();
        self.phases.at().offset(offset as u64)
    }
}

/// What the device sees of the host's heap.
pub(super) struct HeapMirror<W> {
    heap: Heap,
    handed_out: [W; 2],
    taken_back: [W; 2],
    shown: Option<HeapTotals>,
}

impl<W: Word> HeapMirror<W> {
    /// Stores the totals if they have moved. What a failed transport leaves undone is done the next time.
    pub(super) fn show(&mut self) {
        let totals = self.heap.totals();
        if self.shown != Some(totals) {
            self.shown = self.store(totals).is_ok().then_some(totals);
        }
    }

    /// The greater first, so that a reader that takes them the other way round finds no more taken back than handed out.
    fn store(&self, totals: HeapTotals) -> Result<(), Fault> {
        let HeapTotals { handed_out_bytes, taken_back_bytes } = totals;
        for ([low, high], bytes) in
            [(&self.handed_out, handed_out_bytes), (&self.taken_back, taken_back_bytes)]
        {
            high.try_store((bytes >> 32) as u32)?;
            low.try_store(bytes as u32)?;
        }
        Ok(())
    }
}
