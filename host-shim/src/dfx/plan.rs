//! The memory of one session: the extension block, and per subsystem its region and every buffer. Allocated before the run
//! and never grown in it.
//!
//! ```text
//!  Plan ── extension block (all subsystems)
//!   └ Part, one per subsystem that is on
//!      ├ region           rings, gates, pools
//!      ├ slab per kind    buffers of pool 0, of pool 1, …
//!      └ arena per lane   payloads, of args_dump alone
//!   and tables beside the regions
//! ```

use std::mem::offset_of;
use std::sync::Arc;

use sluice_core::exec::Recorders;
use sluice_core::layout::args_dump::BufferState;
use sluice_core::layout::extension::{
    self, Extension, GateScope as WireScope, Head, LaneActivity, LaneStatus, Service, WaitLog,
};
use sluice_core::layout::pmu_events::event_group;
use sluice_core::layout::{
    self, ArchId, Instance, PoolArray, PoolKind, Region, SUBSYSTEMS, Shape, SubsystemId,
};
use sluice_core::mem::{CopyMemory, DevAddr, Fault, Memory, Word};
use zerocopy::{FromZeros, IntoBytes};

use super::arena::ArenaPlace;
use super::config::{DfxConfig, SubsystemConfig};
use super::keeper::GateScope;
use super::ledger::Directory;
use super::sink::LanePhase;
use super::tables::{HeapMirror, Tables};
use super::{control, header};
use crate::device::heap::{DeviceBlock, Heap, HeapError, UsageTag};

/// Alignment of everything that both sides touch: one cache line.
const ALIGN_BYTES: u64 = 64;

/// Number of what lanes are told to record at first.
pub(super) const FIRST_CONTROL: u32 = 1;

/// Why a session could not be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A pool without a buffer would block its lane for ever.
    #[error("pool {kind} needs at least 1 buffer, got 0")]
    NoBuffers {
        /// Name of the kind.
        kind: &'static str,
    },
    /// Cores have no such group of events.
    #[error("cores of {arch} have no group {number} of events")]
    NoEventGroup {
        /// Whose.
        arch: ArchId,
        /// The number asked for.
        number: u32,
    },
    /// Device memory is short.
    #[error(
        "the profiling session needs {needed_bytes} bytes of device memory, {free_bytes} are free: {error}"
    )]
    Memory {
        /// Bytes of the whole session.
        needed_bytes: u64,
        /// Bytes that were free before it.
        free_bytes: u64,
        /// The allocation that failed.
        #[source]
        error: HeapError,
    },
    /// Device memory could not be written.
    #[error("profiling region: {0}")]
    Fault(#[from] Fault),
}

/// A session's memory on the device. Freed when dropped, so it must outlive every lane's recorder.
#[derive(Debug)]
pub struct Plan {
    extension: Extension,
    extension_block: DeviceBlock,
    parts: Vec<Part>,
    tables: Tables,
}

/// One subsystem's memory.
#[derive(Debug)]
pub struct Part {
    /// Whose it is.
    pub subsystem: SubsystemId,
    /// The region's layout.
    pub region: Region,
    /// The region.
    pub region_block: DeviceBlock,
    /// Pools in use and their buffers.
    pub directory: Arc<Directory>,
    slabs: Vec<DeviceBlock>,
    /// Payload arenas, by lane.
    arenas: Vec<DeviceBlock>,
}

impl Plan {
    /// Allocates and initialises the memory of a session. The lanes must not be attached to it yet.
    ///
    /// # Errors
    /// [`PlanError`] with the figures; nothing stays allocated.
    pub fn new<M: CopyMemory>(config: &DfxConfig, memory: &M, heap: &Heap) -> Result<Self, PlanError> {
        let needed_bytes = Self::needed_bytes(config)?;
        let free_bytes = heap.usage().free_bytes;
        let extension = Extension::new(config.shape);
        let alloc = |bytes: u64| {
            heap.alloc(bytes, ALIGN_BYTES, UsageTag::Generic).map_err(|error| PlanError::Memory {
                needed_bytes,
                free_bytes,
                error,
            })
        };
        let plan = Self {
            extension,
            extension_block: alloc(extension.bytes() as u64)?,
            parts: config
                .enabled()
                .map(|(subsystem, part)| Part::new(subsystem, config, &part, alloc))
                .collect::<Result<_, _>>()?,
            tables: Tables::new(config, alloc)?,
        };
        zero(memory, &plan.extension_block)?;
        for (part, (_, config_of_part)) in plan.parts.iter().zip(config.enabled()) {
            zero(memory, &part.region_block)?;
            let region = part.region_block.at();
            header::write(memory, region, part.subsystem, config, config_of_part.level)?;
            part.write_arenas(memory)?;
            plan.write_directory(part, memory)?;
            plan.write_lanes(part.subsystem, config.shape, memory)?;
            control::write(memory, plan.service(part.subsystem), &config_of_part.control(), FIRST_CONTROL)?;
        }
        plan.tables.write(&plan.parts, memory)?;
        plan.write_head(config, memory)?;
        Ok(plan)
    }

    /// Bytes of device memory that a session takes.
    ///
    /// # Errors
    /// [`PlanError::NoBuffers`] when a pool would get none, [`PlanError::NoEventGroup`] for events that cores do not have.
    pub fn needed_bytes(config: &DfxConfig) -> Result<u64, PlanError> {
        let mut bytes = Extension::new(config.shape).bytes() as u64 + Tables::needed_bytes(config);
        for (subsystem, part) in config.enabled() {
            let (arch, number) = (config.shape.arch(), config.event_group);
            if subsystem == SubsystemId::Pmu && event_group(arch, number).is_none() {
                return Err(PlanError::NoEventGroup { arch, number });
            }
            let region = layout::region(subsystem, config.shape);
            let arenas = u64::from(lanes_with_arena(subsystem, config.shape));
            // More than there is stays more than there is.
            bytes = bytes.saturating_add(arenas.saturating_mul(config.arena_bytes()));
            bytes = bytes.saturating_add(region.bytes() as u64);
            for (array, instances) in arrays_in_use(subsystem, &region, config.shape) {
                match part.buffers.of(array.kind) {
                    0 => return Err(PlanError::NoBuffers { kind: array.name }),
                    buffers => bytes = bytes.saturating_add(slab_bytes(array, instances, buffers)),
                }
            }
        }
        Ok(bytes)
    }

    /// The subsystems that are on, in the order of reports.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Bytes of device memory the session holds.
    pub fn bytes(&self) -> u64 {
        let parts = self.parts.iter();
        let parts = parts.flat_map(|part| part.slabs.iter().chain(&part.arenas).chain([&part.region_block]));
        parts.map(DeviceBlock::bytes).sum::<u64>() + self.extension_block.bytes() + self.tables.bytes()
    }

    /// What the lanes are told to attach to.
    pub fn recorders(&self) -> Recorders {
        let mut regions = [DevAddr::NULL; SUBSYSTEMS];
        for part in &self.parts {
            regions[part.subsystem.index()] = part.region_block.at();
        }
        let enabled = self.parts.iter().map(|part| part.subsystem.enable_bit()).collect();
        let tables = self.tables.addresses();
        Recorders { enabled, extension: self.extension_block.at(), regions, tables }
    }

    /// What the device is to see of `heap`.
    ///
    /// # Errors
    /// [`Fault`] when it cannot be stored.
    pub(super) fn mirror<M: Memory>(&self, memory: &M, heap: &Heap) -> Result<HeapMirror<M::Word>, Fault> {
        self.tables.mirror(memory, heap)
    }

    /// The phases that lanes have stamped; whole once every lane has flushed.
    ///
    /// # Errors
    /// [`Fault`] when they cannot be read.
    pub fn phases<M: CopyMemory>(&self, memory: &M) -> Result<Vec<LanePhase>, Fault> {
        self.tables.phases(memory)
    }

    /// Address of a word that all subsystems share in the extension block.
    pub fn extension_word(&self, offset: usize) -> DevAddr {
        self.extension_block.at().offset(offset as u64)
    }

    /// Address of the release epoch of `subsystem`.
    pub fn release_epoch(&self, subsystem: SubsystemId) -> DevAddr {
        self.extension_word(extension::service(subsystem) + offset_of!(Service, release_epoch))
    }

    /// Address of the word that says that no host serves `subsystem`.
    pub fn host_detached(&self, subsystem: SubsystemId) -> DevAddr {
        self.extension_word(extension::service(subsystem) + offset_of!(Service, host_detached))
    }

    /// Address of a word of what `lane` says of itself in `subsystem`.
    ///
    /// # Errors
    /// [`Fault::OutOfRange`] when the run has no such lane.
    pub fn lane_word(&self, subsystem: SubsystemId, lane: u32, offset: usize) -> Result<DevAddr, Fault> {
        let (at, bytes) = (self.extension_block.at(), size_of::<LaneStatus>() as u64);
        let line = self.extension.lane(subsystem, layout::Lane(lane));
        Ok(self.extension_word(line.ok_or(Fault::OutOfRange { at, bytes })? + offset))
    }

    /// Where the host says what it wants of `subsystem`.
    pub(super) fn service(&self, subsystem: SubsystemId) -> DevAddr {
        self.extension_word(extension::service(subsystem))
    }

    /// Address of a part of the log of `lane`'s waits in `subsystem`.
    ///
    /// # Errors
    /// [`Fault::OutOfRange`] when the run has no such lane.
    pub fn wait_log(&self, subsystem: SubsystemId, lane: u32, offset: usize) -> Result<DevAddr, Fault> {
        let (at, bytes) = (self.extension_block.at(), size_of::<WaitLog>() as u64);
        let log = self.extension.wait_log(subsystem, layout::Lane(lane));
        Ok(self.extension_word(log.ok_or(Fault::OutOfRange { at, bytes })? + offset))
    }

    /// Address of a word of what a lane says of its pool, if there is such a pool.
    pub fn pool_word(
        &self,
        part: &Part,
        kind: PoolKind,
        instance: Instance,
        offset: usize,
    ) -> Option<DevAddr> {
        let number = part.region.pool_number(kind, instance)?;
        Some(self.extension_word(self.extension.pool(part.subsystem, number)? + offset))
    }

    fn write_directory<M: CopyMemory>(&self, part: &Part, memory: &M) -> Result<(), Fault> {
        let slabs = arrays_in_use(part.subsystem, &part.region, part.region.shape()).zip(&part.slabs);
        for ((array, instances), slab) in slabs {
            let Some(at) = extension::directory(part.subsystem, array.kind) else { continue };
            let first = part.directory.find_pool(array.kind, Instance(0));
            let entry = extension::DirectoryEntry {
                slab_base: slab.at().0,
                stride_bytes: array.buffer.bytes as u32,
                buffers_per_pool: first.map_or(0, |pool| part.directory.pool(pool).buffers.len() as u32),
                pools: instances,
                pad: 0,
            };
            memory.write_bytes(self.extension_word(at), entry.as_bytes())?;
        }
        Ok(())
    }

    /// No lane has attached yet.
    fn write_lanes<M: CopyMemory>(
        &self,
        subsystem: SubsystemId,
        shape: Shape,
        memory: &M,
    ) -> Result<(), Fault> {
        (0..shape.lanes()).try_for_each(|lane| {
            let at = self.lane_word(subsystem, lane, offset_of!(LaneStatus, state))?;
            memory.word(at)?.try_store(LaneActivity::IDLE.0)
        })
    }

    /// The magic number goes last: it tells the device that the rest is there.
    fn write_head<M: CopyMemory>(&self, config: &DfxConfig, memory: &M) -> Result<(), Fault> {
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
        head.enabled = config.enable_mask().bits();
        let at = self.extension_word(extension::HEAD);
        memory.write_bytes(at, head.as_bytes())?;
        memory.word(at.offset(offset_of!(Head, magic) as u64))?.try_store(extension::MAGIC)
    }
}

impl Part {
    fn new(
        subsystem: SubsystemId,
        session: &DfxConfig,
        config: &SubsystemConfig,
        alloc: impl Fn(u64) -> Result<DeviceBlock, PlanError>,
    ) -> Result<Self, PlanError> {
        let shape = session.shape;
        let region = layout::region(subsystem, shape);
        let region_block = alloc(region.bytes() as u64)?;
        let (mut pools, mut slabs) = (Vec::new(), Vec::new());
        for (array, instances) in arrays_in_use(subsystem, &region, shape) {
            let buffers = config.buffers.of(array.kind);
            let slab = alloc(slab_bytes(array, instances, buffers))?;
            let address = |index: u32| slab.at().offset(u64::from(index) * array.buffer.bytes as u64);
            for instance in 0..instances {
                let addresses = (0..buffers).map(|buffer| address(instance * buffers + buffer)).collect();
                pools.push((array.kind, Instance(instance), addresses));
            }
            slabs.push(slab);
        }
        let arenas = (0..lanes_with_arena(subsystem, shape)).map(|_| alloc(session.arena_bytes()));
        let (arenas, directory) = (arenas.collect::<Result<_, _>>()?, Arc::new(Directory::new(pools)));
        Ok(Self { subsystem, region, region_block, directory, slabs, arenas })
    }

    /// Where the payload arenas of the lanes lie.
    pub(super) fn arenas(&self) -> Vec<ArenaPlace> {
        ArenaPlace::all(&self.region, self.region_block.at(), &self.arenas)
    }

    /// Tells each lane of its arena.
    fn write_arenas<M: CopyMemory>(&self, memory: &M) -> Result<(), Fault> {
        for (lane, arena) in (0..).zip(&self.arenas) {
            let Some(pool) = self.region.pool(PoolKind::SOLE, Instance(lane)) else { continue };
            let at = |offset: usize| self.region_block.at().offset((pool.base + offset) as u64);
            let (base, size) = (offset_of!(BufferState, arena_base), offset_of!(BufferState, arena_size));
            memory.write_bytes(at(base), &arena.at().0.to_le_bytes())?;
            memory.write_bytes(at(size), &arena.bytes().to_le_bytes())?;
        }
        Ok(())
    }
}

/// Lanes that have a payload arena.
fn lanes_with_arena(subsystem: SubsystemId, shape: Shape) -> u32 {
    if subsystem == SubsystemId::ArgsDump { shape.lanes() } else { 0 }
}

fn slab_bytes(array: &PoolArray, instances: u32, buffers: u32) -> u64 {
    array.buffer.bytes as u64 * u64::from(instances) * u64::from(buffers)
}

/// The kinds of pool that lanes of this run write, and how many pools of each.
fn arrays_in_use(
    subsystem: SubsystemId,
    region: &Region,
    shape: Shape,
) -> impl Iterator<Item = (&PoolArray, u32)> {
    let in_use = move |array: &PoolArray| match (subsystem, array.kind) {
        (SubsystemId::Swimlane, PoolKind::SCHED_PHASE) => shape.lanes(),
        (SubsystemId::Swimlane, PoolKind::ORCH_PHASE) => 1,
        _ => array.instances,
    };
    region.arrays().iter().map(move |array| (array, in_use(array))).filter(|(_, instances)| *instances > 0)
}

/// Fills a block with zeroes.
pub(super) fn zero<M: CopyMemory>(memory: &M, block: &DeviceBlock) -> Result<(), Fault> {
    const CHUNK: [u8; 4096] = [0; 4096];
    let mut done = 0;
    while done < block.bytes() {
        let part = (block.bytes() - done).min(CHUNK.len() as u64);
        memory.write_bytes(block.at().offset(done), &CHUNK[..part as usize])?;
        done += part;
    }
    Ok(())
}
