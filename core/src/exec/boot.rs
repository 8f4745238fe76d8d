//! The boot block: what the host hands to the firmware before it starts, and how it switches profiling on and off.
//!
//! ```text
//!   0x00  magic, arch, tpbs, lanes                 host, before the start, magic last
//!   0x40  enable mask, extension, 5 regions        host, while no recorder is attached
//!   0x80  dfx_generation, dfx_stop_generation      host, at any time
//!   0xC0  workload                                 host
//!   0x100 workload_made[lane]                      lanes
//!   0x140 side tables                              host, while no recorder is attached
//!   0x180 status block                             firmware
//! ```
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `magic` | host → firmware | release → acquire | the shape of the device |
//! | `dfx_generation` | host → lanes | release → acquire | a new mask and new addresses: attach recorders to them |
//! | `dfx_stop_generation` | host → lanes | release → acquire | equal to `dfx_generation`: flush and record no more |
//! | workload | host → lanes | by `dfx_generation` | how many records of which kinds the lanes make up and record, and how fast |
//! | `workload_stop` | host → lanes | release → acquire | 1: make up no more of them |
//! | `workload_made[lane]` | lane → host | release → acquire | the generation whose share this lane has made |
//!
//! A lane looks at the generation before it takes up an execution, so whatever is kicked off after
//! [`HostBoot::attach_recorders`] is recorded. That a lane has flushed it says in the extension block.

use core::fmt;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::layout::{ArchId, EnableMask, SUBSYSTEMS, SubsystemId};
use crate::mem::{CopyMemory, DevAddr, Fault, Memory, Own, Peer, Word};
use crate::mmio::TpbId;

use super::vitals::STATUS_BYTES;
use super::{LaneIndex, Workload, WorkloadKinds};

/// Bytes of the block, with the status block at its end.
pub const BOOT_BYTES: u64 = STATUS + STATUS_BYTES;

/// Where the status block of the device stands whose boot block is at `boot`.
pub const fn status_block(boot: DevAddr) -> DevAddr {
    boot.offset(STATUS)
}

const MAGIC: u32 = u32::from_le_bytes(*b"SLB1");
const GENERATION: u64 = 0x80;
const STOP_GENERATION: u64 = 0x84;
const RECORDERS: u64 = 0x40;
const WORKLOAD: u64 = 0xC0;
const WORKLOAD_STOP: u64 = 0xC8;
const WORKLOAD_MADE: u64 = 0x100;
const TABLES: u64 = 0x140;
const STATUS: u64 = 0x180;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WorkloadLine {
    records: u64,
    stop: u32,
    kinds: u32,
    rate_hz: u64,
    chain: u32,
    payload_bytes: u32,
    payload_source: u64,
    core_item: u64,
}

/// Lanes that have a word in the workload's line: more than any architecture has.
const WORKLOAD_LANES: u32 = 16;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ShapeLine {
    magic: u32,
    arch: u32,
    tpbs: u32,
    lanes: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RecorderLine {
    enabled: u32,
    pad: u32,
    extension: u64,
    regions: [u64; SUBSYSTEMS],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TableLine {
    aicore_heads: u64,
    pmu_rings: u64,
    device_phases: u64,
    heap_totals: u64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(ShapeLine, magic) == 0 && offset_of!(ShapeLine, arch) == 4);
    assert!(offset_of!(ShapeLine, tpbs) == 8 && offset_of!(ShapeLine, lanes) == 12);
    assert!(size_of::<ShapeLine>() as u64 <= RECORDERS);
    assert!(offset_of!(RecorderLine, enabled) == 0 && offset_of!(RecorderLine, extension) == 8);
    assert!(offset_of!(RecorderLine, regions) == 16);
    assert!(RECORDERS + size_of::<RecorderLine>() as u64 <= GENERATION);
    assert!(STOP_GENERATION < WORKLOAD && WORKLOAD + size_of::<WorkloadLine>() as u64 <= WORKLOAD_MADE);
    assert!(offset_of!(WorkloadLine, stop) as u64 == WORKLOAD_STOP - WORKLOAD);
    assert!(WORKLOAD_MADE + WORKLOAD_LANES as u64 * 4 <= TABLES);
    assert!(offset_of!(TableLine, aicore_heads) == 0 && offset_of!(TableLine, pmu_rings) == 8);
    assert!(offset_of!(TableLine, device_phases) == 16 && offset_of!(TableLine, heap_totals) == 24);
    assert!(TABLES + size_of::<TableLine>() as u64 <= STATUS);
};

/// What the firmware is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootShape {
    /// Whose wire contract profiling follows.
    pub arch: ArchId,
    /// TPBs that have sequencers, 1..=8.
    pub tpbs: u32,
    /// Lanes, 1 up to the most that the architecture has.
    pub lanes: u32,
}

/// The firmware cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum BootError {
    /// The boot block cannot be reached.
    Fault(Fault),
    /// The host has not written the block, or speaks another version.
    BadMagic {
        /// What stands in its place.
        found: u32,
    },
    /// No such architecture.
    UnknownArch {
        /// The number.
        number: u32,
    },
    /// A device has 1 to 8 TPBs.
    Tpbs {
        /// The number asked for.
        asked: u32,
    },
    /// The architecture has fewer lanes.
    Lanes {
        /// The number asked for.
        asked: u32,
        /// The most it has.
        max: u32,
    },
}

impl From<Fault> for BootError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => write!(f, "boot block: {fault}"),
            Self::BadMagic { found } => {
                write!(f, "boot block starts with {found:#010x}, expected {MAGIC:#010x}")
            }
            Self::UnknownArch { number } => {
                write!(f, "boot block names architecture {number}, known are 0 and 1")
            }
            Self::Tpbs { asked } => write!(f, "need 1 to {} TPBs, got {asked}", TpbId::COUNT),
            Self::Lanes { asked, max } => write!(f, "need 1 to {max} lanes, got {asked}"),
        }
    }
}

impl core::error::Error for BootError {}

impl BootShape {
    /// Checks the figures against each other.
    ///
    /// # Errors
    /// TPBs or lanes outside their range.
    pub const fn check(self) -> Result<Self, BootError> {
        let max = self.arch.facts().lanes as u32;
        if self.tpbs == 0 || self.tpbs > TpbId::COUNT {
            Err(BootError::Tpbs { asked: self.tpbs })
        } else if self.lanes == 0 || self.lanes > max {
            Err(BootError::Lanes { asked: self.lanes, max })
        } else {
            Ok(self)
        }
    }

    /// Reads what the host wrote into the block at `boot`.
    ///
    /// # Errors
    /// A block that was not written, or that asks for what there is not.
    pub fn read<M: CopyMemory>(memory: &M, boot: DevAddr) -> Result<Self, BootError> {
        let magic = memory.word(boot)?.try_load()?;
        if magic != MAGIC {
            return Err(BootError::BadMagic { found: magic });
        }
        let mut line = ShapeLine::new_zeroed();
        memory.read_bytes(boot, line.as_mut_bytes())?;
        let arch =
            *ArchId::ALL.get(line.arch as usize).ok_or(BootError::UnknownArch { number: line.arch })?;
        Self { arch, tpbs: line.tpbs, lanes: line.lanes }.check()
    }

    /// Writes the shape into the block at `boot`, for firmware that is about to start.
    ///
    /// # Errors
    /// A shape that no device has, or memory that cannot be reached.
    pub fn write<M: CopyMemory>(self, memory: &M, boot: DevAddr) -> Result<(), BootError> {
        let Self { arch, tpbs, lanes } = self.check()?;
        let line = ShapeLine { magic: 0, arch: arch as u32, tpbs, lanes };
        memory.write_bytes(boot, line.as_bytes())?;
        memory.word(boot)?.try_store(MAGIC)?;
        Ok(())
    }
}

/// Tables beside the regions, by address; null for one that a run does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SideTables {
    /// `u64` per core: where the core's own pool of the swimlane begins, for the core. The lanes fill it in.
    pub aicore_heads: DevAddr,
    /// `u64` per core: the staging ring of the core's counters, for the core. The host fills it in.
    pub pmu_rings: DevAddr,
    /// Stamps of each lane's phases ([`device_phase`](crate::layout::device_phase)).
    pub device_phases: DevAddr,
    /// Two `u64`, each read high, low, high: bytes of device memory that the host has handed out in all, and those that it has
    /// taken back. It goes on storing them while recorders are attached.
    pub heap_totals: DevAddr,
}

/// Where recorders find their regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorders {
    /// Which subsystems record. Unknown bits are kept.
    pub enabled: EnableMask,
    /// The extension block; null for a host that has none.
    pub extension: DevAddr,
    /// Each subsystem's region by [`SubsystemId::index`]; null when it has none.
    pub regions: [DevAddr; SUBSYSTEMS],
    /// What lies beside the regions.
    pub tables: SideTables,
}

impl Recorders {
    /// The region of `subsystem`, if it records.
    pub fn region(&self, subsystem: SubsystemId) -> Option<DevAddr> {
        let region = self.regions[subsystem.index()];
        (self.enabled.contains(subsystem.enable_bit()) && !region.is_null()).then_some(region)
    }
}

/// The host's side.
#[derive(Clone, Debug)]
pub struct HostBoot<M: Memory> {
    memory: M,
    boot: DevAddr,
    generation: Own<M::Word>,
    stop_generation: Own<M::Word>,
    workload_stop: Own<M::Word>,
}

impl<M: CopyMemory> HostBoot<M> {
    /// The block at `boot`.
    ///
    /// # Errors
    /// [`Fault`] when it lies outside device memory.
    pub fn attach(memory: &M, boot: DevAddr) -> Result<Self, Fault> {
        Ok(Self {
            memory: memory.clone(),
            boot,
            generation: Own::new(memory.word(boot.offset(GENERATION))?),
            stop_generation: Own::new(memory.word(boot.offset(STOP_GENERATION))?),
            workload_stop: Own::new(memory.word(boot.offset(WORKLOAD_STOP))?),
        })
    }

    /// Has the lanes make up records between them, once the recorders of the next
    /// [`attach_recorders`](HostBoot::attach_recorders) are attached: a load for the recording that needs no model.
    /// [`Workload::NONE`] ends that for later attachments.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn set_workload(&self, workload: &Workload) -> Result<(), Fault> {
        let &Workload { records, kinds, rate_hz, chain, payload_bytes, payload_source, core_item } = workload;
        let line = WorkloadLine {
            records,
            stop: 0,
            kinds: kinds.bits(),
            rate_hz,
            chain,
            payload_bytes,
            payload_source: payload_source.0,
            core_item: core_item.0,
        };
        self.memory.write_bytes(self.boot.offset(WORKLOAD), line.as_bytes())?;
        self.workload_stop.try_publish(0)
    }

    /// Has the lanes make up no more records.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn stop_workload(&self) -> Result<(), Fault> {
        self.workload_stop.try_publish(1)
    }

    /// Whether lane `lane` has made its share of the workload since the recorders were attached, or as much of it as it was
    /// let.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn workload_made(&self, lane: LaneIndex) -> Result<bool, Fault> {
        let made = Peer::new(self.memory.word(workload_made(self.boot, lane))?).try_observe()?;
        Ok(made == self.generation.recover()?)
    }

    /// Has every lane attach its recorders to `recorders`. Regions and extension block have to be complete. Recorders that
    /// are still attached are abandoned without a flush. Wake the lanes afterwards.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn attach_recorders(&self, recorders: &Recorders) -> Result<(), Fault> {
        let line = RecorderLine {
            enabled: recorders.enabled.bits(),
            pad: 0,
            extension: recorders.extension.0,
            regions: recorders.regions.map(|region| region.0),
        };
        self.memory.write_bytes(self.boot.offset(RECORDERS), line.as_bytes())?;
        let SideTables { aicore_heads, pmu_rings, device_phases, heap_totals } = recorders.tables;
        let tables = TableLine {
            aicore_heads: aicore_heads.0,
            pmu_rings: pmu_rings.0,
            device_phases: device_phases.0,
            heap_totals: heap_totals.0,
        };
        self.memory.write_bytes(self.boot.offset(TABLES), tables.as_bytes())?;
        let generation = self.generation.recover()?;
        // 0 means that nothing was ever attached.
        self.generation.try_publish(generation.wrapping_add(1).max(1))
    }

    /// Asks every lane to flush and to record no more. Wake the lanes afterwards; each says in the extension block when it
    /// is done.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn stop_recorders(&self) -> Result<(), Fault> {
        self.stop_generation.try_publish(self.generation.recover()?)
    }
}

/// The word of `lane` in the workload's line.
const fn workload_made(boot: DevAddr, lane: LaneIndex) -> DevAddr {
    boot.offset(WORKLOAD_MADE + (lane.get() % WORKLOAD_LANES) as u64 * 4)
}

/// A lane's side.
#[derive(Clone, Debug)]
pub struct LaneBoot<M: Memory> {
    memory: M,
    boot: DevAddr,
    generation: Peer<M::Word>,
    stop_generation: Peer<M::Word>,
    workload_stop: Peer<M::Word>,
}

impl<M: CopyMemory> LaneBoot<M> {
    /// The block at `boot`.
    ///
    /// # Errors
    /// [`Fault`] when it lies outside device memory.
    pub fn attach(memory: &M, boot: DevAddr) -> Result<Self, Fault> {
        Ok(Self {
            memory: memory.clone(),
            boot,
            generation: Peer::new(memory.word(boot.offset(GENERATION))?),
            stop_generation: Peer::new(memory.word(boot.offset(STOP_GENERATION))?),
            workload_stop: Peer::new(memory.word(boot.offset(WORKLOAD_STOP))?),
        })
    }

    /// What all lanes together are to make up. Holds while [`generation`](LaneBoot::generation) stays the same.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn workload(&self) -> Result<Workload, Fault> {
        let mut line = WorkloadLine::new_zeroed();
        self.memory.read_bytes(self.boot.offset(WORKLOAD), line.as_mut_bytes())?;
        Ok(Workload {
            records: line.records,
            kinds: WorkloadKinds::from_bits_retain(line.kinds),
            rate_hz: line.rate_hz,
            chain: line.chain,
            payload_bytes: line.payload_bytes,
            payload_source: DevAddr(line.payload_source),
            core_item: DevAddr(line.core_item),
        })
    }

    /// Whether the host wants no more of the workload.
    pub fn workload_stopped(&self) -> bool {
        self.workload_stop.observe() != 0
    }

    /// Says that `lane` has made its share of the workload of `generation`.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn show_workload_made(&self, lane: LaneIndex, generation: u32) -> Result<(), Fault> {
        Own::new(self.memory.word(workload_made(self.boot, lane))?).try_publish(generation)
    }

    /// The generation that should record now; `None` before the first and after a stop.
    pub fn generation(&self) -> Option<u32> {
        let generation = self.generation.observe();
        (generation != 0 && generation != self.stop_generation.observe()).then_some(generation)
    }

    /// What to attach to. Holds while [`generation`](LaneBoot::generation) stays the same.
    ///
    /// # Errors
    /// [`Fault`] when memory cannot be reached.
    pub fn recorders(&self) -> Result<Recorders, Fault> {
        let mut line = RecorderLine::new_zeroed();
        self.memory.read_bytes(self.boot.offset(RECORDERS), line.as_mut_bytes())?;
        let mut tables = TableLine::new_zeroed();
        self.memory.read_bytes(self.boot.offset(TABLES), tables.as_mut_bytes())?;
        Ok(Recorders {
            enabled: EnableMask::from_bits_retain(line.enabled),
            extension: DevAddr(line.extension),
            regions: line.regions.map(DevAddr),
            tables: SideTables {
                aicore_heads: DevAddr(tables.aicore_heads),
                pmu_rings: DevAddr(tables.pmu_rings),
                device_phases: DevAddr(tables.device_phases),
                heap_totals: DevAddr(tables.heap_totals),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Line, Mapped, Slab};

    const BOOT: DevAddr = DevAddr(0x1000);

    #[test]
    fn a_shape_is_read_back_or_refused_with_its_figures() {
        let mut lines = [Line::ZERO; BOOT_BYTES as usize / 64];
        let memory = Mapped::new(Slab::over(&mut lines, BOOT));
        assert_eq!(BootShape::read(&memory, BOOT), Err(BootError::BadMagic { found: 0 }));
        let shape = BootShape { arch: ArchId::A5, tpbs: 2, lanes: 5 };
        shape.write(&memory, BOOT).unwrap();
        assert_eq!(BootShape::read(&memory, BOOT), Ok(shape));
        let write = |arch, tpbs, lanes| BootShape { arch, tpbs, lanes }.write(&memory, BOOT);
        assert_eq!(write(ArchId::A2a3, 2, 5), Err(BootError::Lanes { asked: 5, max: 4 }));
        assert_eq!(write(ArchId::A5, 9, 1), Err(BootError::Tpbs { asked: 9 }));
        assert_eq!(BootShape::read(&memory, BOOT), Ok(shape), "a refused shape changes nothing");
        memory.word(BOOT.offset(4)).unwrap().store_relaxed(2);
        assert_eq!(BootShape::read(&memory, BOOT), Err(BootError::UnknownArch { number: 2 }));
    }

    #[test]
    fn recorders_are_attached_stopped_and_attached_again() {
        let mut lines = [Line::ZERO; BOOT_BYTES as usize / 64];
        let memory = Mapped::new(Slab::over(&mut lines, BOOT));
        let host = HostBoot::attach(&memory, BOOT).unwrap();
        let lane = LaneBoot::attach(&memory, BOOT).unwrap();
        host.stop_recorders().unwrap();
        assert_eq!(lane.generation(), None);
        let mut recorders = Recorders {
            enabled: EnableMask::SWIMLANE | EnableMask::from_bits_retain(0x100),
            extension: DevAddr(0x2000),
            regions: [0x3000, 0, 0, 0, 0x7000].map(DevAddr),
            tables: SideTables {
                aicore_heads: DevAddr(0x8000),
                pmu_rings: DevAddr(0x9_0000_0000),
                device_phases: DevAddr(0xA000),
                heap_totals: DevAddr(0xB000),
            },
        };
        for generation in [1, 2] {
            host.attach_recorders(&recorders).unwrap();
            assert_eq!(lane.generation(), Some(generation));
            assert_eq!(lane.recorders(), Ok(recorders));
            host.stop_recorders().unwrap();
            assert_eq!(lane.generation(), None);
            recorders.regions[1] = DevAddr(0x4000);
        }
        assert_eq!(recorders.region(SubsystemId::Swimlane), Some(DevAddr(0x3000)));
        assert_eq!(recorders.region(SubsystemId::ScopeStats), None, "not enabled");
    }

    #[test]
    fn a_workload_is_published_stopped_and_reported_per_lane() {
        let mut lines = [Line::ZERO; BOOT_BYTES as usize / 64];
        let memory = Mapped::new(Slab::over(&mut lines, BOOT));
        let host = HostBoot::attach(&memory, BOOT).unwrap();
        let lane = LaneBoot::attach(&memory, BOOT).unwrap();
        let lanes = [LaneIndex::SEQUENCER, LaneIndex::new(4).unwrap()];
        let recorders = Recorders {
            enabled: EnableMask::SWIMLANE,
            extension: DevAddr::NULL,
            regions: [DevAddr::NULL; 5],
            tables: SideTables::default(),
        };
        let workload = Workload {
            records: u64::MAX - 1,
            kinds: WorkloadKinds::PMU | WorkloadKinds::from_bits_retain(1 << 31),
            rate_hz: 1 << 40,
            chain: 3,
            payload_bytes: 4096,
            payload_source: DevAddr(0x5_0000_0040),
            core_item: DevAddr(0x6_0000_0080),
        };
        for generation in [1, 2] {
            host.set_workload(&workload).unwrap();
            host.attach_recorders(&recorders).unwrap();
            assert_eq!((lane.workload(), lane.workload_stopped()), (Ok(workload), false));
            assert_eq!(lanes.map(|lane| host.workload_made(lane).unwrap()), [false, false]);
            lane.show_workload_made(lanes[1], generation).unwrap();
            assert_eq!(lanes.map(|lane| host.workload_made(lane).unwrap()), [false, true]);
            host.stop_workload().unwrap();
            assert!(lane.workload_stopped());
        }
    }
}
