//! The memory of one session: region, extension block and every buffer, allocated before the run and never grown in it.

use std::mem::offset_of;

use sluice_core::layout::extension::{
    self, Extension, GateScope as WireScope, Head, LaneActivity, LaneStatus, Service,
};
use sluice_core::layout::swimlane::Level;
use sluice_core::layout::{self, EnableMask, Instance, PoolKind, Region, Shape, SubsystemId, swimlane};
use sluice_core::mem::{CopyMemory, DevAddr, Fault, Word};
use zerocopy::{FromZeros, IntoBytes};

use super::keeper::GateScope;
use super::ledger::Directory;
use crate::device::heap::{DeviceBlock, Heap, HeapError, UsageTag};

/// Alignment of everything that both sides touch: one cache line.
const ALIGN_BYTES: u64 = 64;

/// How many buffers each pool of a kind gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferCounts {
    counts: [u32; layout::MAX_KINDS],
}

impl BufferCounts {
    /// As many as the wire contract suggests.
    pub fn suggested(region: &Region) -> Self {
        let mut counts = [0; layout::MAX_KINDS];
        for array in region.arrays() {
            counts[array.kind.0 as usize] = array.default_buffers;
        }
        Self { counts }
    }

    /// The same number for every kind.
    pub const fn uniform(buffers: u32) -> Self {
        Self { counts: [buffers; layout::MAX_KINDS] }
    }

    /// Another number for one kind; a kind that does not exist is ignored.
    #[must_use]
    pub fn with(mut self, kind: PoolKind, buffers: u32) -> Self {
        if let Some(count) = self.counts.get_mut(kind.0 as usize) {
            *count = buffers;
        }
        self
    }

    /// The number for one kind.
    pub fn of(&self, kind: PoolKind) -> u32 {
        self.counts.get(kind.0 as usize).copied().unwrap_or(0)
    }
}

/// What a swimlane session records and with how much memory.
#[derive(Clone, Debug)]
pub struct SwimlaneConfig {
    /// Architecture, lanes and cores of the run.
    pub shape: Shape,
    /// How much is recorded.
    pub level: Level,
    /// Buffers per pool.
    pub buffers: BufferCounts,
    /// Whom a starving lane stops.
    pub scope: GateScope,
    /// Most cycles that a lane waits per switch; `None` is the architecture's 30 s.
    pub deadline_cycles: Option<u64>,
    /// Tells runs apart in captures.
    pub run_id: u64,
}

impl SwimlaneConfig {
    /// Everything recorded, with the buffers that the wire contract suggests.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            level: Level::FULL,
            buffers: BufferCounts::suggested(&swimlane::region(shape)),
            scope: GateScope::All,
            deadline_cycles: None,
            run_id: 0,
        }
    }
}

/// Why a session could not be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A pool without a buffer would block its lane for ever.
    #[error("pool {kind} needs at least 1 buffer, got 0")]
    NoBuffers {
        /// Name of the kind.
        kind: &'static str,
    },
    /// Device memory is short.
    #[error("memory for the profiling session: {0}")]
    Memory(#[from] HeapError),
    /// Device memory could not be written.
    #[error("profiling region: {0}")]
    Fault(#[from] Fault),
}

/// A session's memory on the device. Freed when dropped, so it must outlive every lane's recorder.
#[derive(Debug)]
pub struct Plan {
    /// The region's layout.
    pub region: Region,
    /// The region.
    pub region_block: DeviceBlock,
    /// The extension block's layout.
    pub extension: Extension,
    /// The extension block.
    pub extension_block: DeviceBlock,
    /// Pools in use and their buffers.
    pub directory: Directory,
    slabs: Vec<DeviceBlock>,
}

impl Plan {
    /// Allocates and initialises the memory of a swimlane session. The lanes must not be attached to it yet.
    ///
    /// # Errors
    /// [`PlanError`] with the figures; nothing stays allocated.
    pub fn swimlane<M: CopyMemory>(
        config: &SwimlaneConfig,
        memory: &M,
        heap: &Heap,
    ) -> Result<Self, PlanError> {
        let shape = config.shape;
        let region = swimlane::region(shape);
        let extension = Extension::new(shape);
        let region_block = zeroed(memory, heap, region.bytes() as u64)?;
        let extension_block = zeroed(memory, heap, extension.bytes() as u64)?;
        let mut pools = Vec::new();
        let mut slabs = Vec::new();
        for array in region.arrays() {
            let instances = pools_in_use(array.kind, shape);
            if instances == 0 {
                continue;
            }
            let buffers = config.buffers.of(array.kind);
            if buffers == 0 {
                return Err(PlanError::NoBuffers { kind: array.name });
            }
            let stride = array.buffer.bytes as u64;
            let slab = heap.alloc(stride * u64::from(instances * buffers), ALIGN_BYTES, UsageTag::Generic)?;
            let address = |index: u32| slab.at().offset(u64::from(index) * stride);
            for instance in 0..instances {
                let addresses = (0..buffers).map(|buffer| address(instance * buffers + buffer)).collect();
                pools.push((array.kind, Instance(instance), addresses));
            }
            if let Some(entry_at) = extension::directory(SubsystemId::Swimlane, array.kind) {
                let entry = extension::DirectoryEntry {
                    slab_base: slab.at().0,
                    stride_bytes: stride as u32,
                    buffers_per_pool: buffers,
                    pools: instances,
                    pad: 0,
                };
                memory.write_bytes(extension_block.at().offset(entry_at as u64), entry.as_bytes())?;
            }
            slabs.push(slab);
        }
        let plan = Self {
            region,
            region_block,
            extension,
            extension_block,
            directory: Directory::new(pools),
            slabs,
        };
        plan.write_lanes(config, memory)?;
        plan.write_header(config, memory)?;
        plan.write_head(config, memory)?;
        Ok(plan)
    }

    /// Bytes of device memory the session holds.
    pub fn bytes(&self) -> u64 {
        let slabs: u64 = self.slabs.iter().map(DeviceBlock::bytes).sum();
        self.region_block.bytes() + self.extension_block.bytes() + slabs
    }

    /// Address of a word of the subsystem's control line in the extension block.
    pub fn service_word(&self, offset: usize) -> DevAddr {
        self.extension_block.at().offset((extension::service(SubsystemId::Swimlane) + offset) as u64)
    }

    /// Address of the release epoch.
    pub fn release_epoch(&self) -> DevAddr {
        self.service_word(offset_of!(Service, release_epoch))
    }

    /// Address of the word that says that no host serves.
    pub fn host_detached(&self) -> DevAddr {
        self.service_word(offset_of!(Service, host_detached))
    }

    /// Address of a word of what `lane` says of itself, if there is such a lane.
    pub fn lane_word(&self, lane: u32, offset: usize) -> Option<DevAddr> {
        let line = self.extension.lane(SubsystemId::Swimlane, layout::Lane(lane))?;
        Some(self.extension_block.at().offset((line + offset) as u64))
    }

    /// No lane has attached yet.
    fn write_lanes<M: CopyMemory>(&self, config: &SwimlaneConfig, memory: &M) -> Result<(), Fault> {
        let words =
            (0..config.shape.lanes()).filter_map(|lane| self.lane_word(lane, offset_of!(LaneStatus, state)));
        for word in words {
            memory.word(word)?.try_store(LaneActivity::IDLE.0)?;
        }
        Ok(())
    }

    fn write_header<M: CopyMemory>(&self, config: &SwimlaneConfig, memory: &M) -> Result<(), Fault> {
        let words = swimlane::header_words(config.shape.arch());
        let at = |offset: usize| self.region_block.at().offset(offset as u64);
        memory.word(at(words.num_cores))?.try_store(config.shape.cores())?;
        memory.word(at(words.chip_swimlane_level))?.try_store(config.level.0)
    }

    /// The magic number goes last: it tells the device that the rest is there.
    fn write_head<M: CopyMemory>(&self, config: &SwimlaneConfig, memory: &M) -> Result<(), Fault> {
        let mut head = Head::new_zeroed();
        head.version = extension::VERSION;
        head.layout_hash = extension::layout_hash(config.shape.arch());
        head.bytes = self.extension.bytes() as u32;
        head.lanes = config.shape.lanes();
        head.cores = config.shape.cores();
        head.gate_scope = match config.scope {
            GateScope::All => WireScope::ALL,
            GateScope::Lane => WireScope::LANE,
        };
        head.deadline_cycles = config.deadline_cycles.unwrap_or(0);
        head.run_id = config.run_id;
        head.enabled = EnableMask::SWIMLANE.bits();
        let at = self.extension_block.at().offset(extension::HEAD as u64);
        memory.write_bytes(at, head.as_bytes())?;
        memory.word(at.offset(offset_of!(Head, magic) as u64))?.try_store(extension::MAGIC)
    }
}

/// Pools of a kind that lanes of this run write. The cores' own pools are the compute cores' affair.
fn pools_in_use(kind: PoolKind, shape: Shape) -> u32 {
    match kind {
        PoolKind::AICPU_TASK => shape.cores(),
        PoolKind::SCHED_PHASE => shape.lanes(),
        PoolKind::ORCH_PHASE => 1,
        _ => 0,
    }
}

fn zeroed<M: CopyMemory>(memory: &M, heap: &Heap, bytes: u64) -> Result<DeviceBlock, PlanError> {
    let block = heap.alloc(bytes, ALIGN_BYTES, UsageTag::Generic)?;
    const CHUNK: [u8; 4096] = [0; 4096];
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(CHUNK.len() as u64);
        memory.write_bytes(block.at().offset(done), &CHUNK[..part as usize])?;
        done += part;
    }
    Ok(block)
}
