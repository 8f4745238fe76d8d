//! The PMU's recorder: what the counters of a lane's cores came to, item by item.
//!
//! | architecture | counts lie in | the lane takes them |
//! |---|---|---|
//! | a2a3 | the core's registers | once the mailbox says that the item is finished |
//! | a5 | the core's staging ring | then too, if the ring holds the item's token; else the record is lost to `mismatch` |
//!
//! One pool per core. Records of both architectures take 64 bytes; they differ in how many counters stand in them.

use heapless::Vec;
use zerocopy::{FromZeros, IntoBytes};

use super::{
    AppendError, AttachError, Attachment, DropCause, Hooks, Lane, Pool, PoolSetup, Records, Subsystem,
    SwitchEnd,
};
use crate::gate::WaitEnv;
use crate::layout::extension::LaneActivity;
use crate::layout::pmu::{self, CoreType};
use crate::layout::{self, ArchId, BufferLayout, Instance, PoolKind};
use crate::mem::{DevAddr, Fault, LongPeer, Memory};
use crate::mmio::{Counts, LaneStaging};

/// The PMU subsystem.
#[derive(Debug)]
pub struct Pmu;

impl Subsystem for Pmu {}

/// Pools of what a core counted.
#[derive(Debug)]
pub struct CoreCounts;

/// Bytes of a record on either architecture.
pub const RECORD_BYTES: usize = 64;

impl Records for CoreCounts {
    type Record = [u8; RECORD_BYTES];
    type Hooks<M: Memory> = Staging<M>;
    const LAYOUT: BufferLayout = pmu::BUFFER;
    const KIND: PoolKind = PoolKind::SOLE;
}

/// Where the counts of a pool's core lie.
pub enum Staging<M: Memory> {
    /// In its registers.
    Registers,
    /// In this ring.
    Ring {
        /// Its address.
        at: DevAddr,
        /// The lane's side of it.
        lane: LaneStaging<M>,
    },
    /// In a ring that the host named none for, or one that cannot be reached.
    Nowhere,
}

impl<M: Memory> Staging<M> {
    /// The ring that the core is to be told of; null for its registers.
    fn ring(&self) -> DevAddr {
        match self {
            Self::Ring { at, .. } => *at,
            Self::Registers | Self::Nowhere => DevAddr::NULL,
        }
    }
}

impl<M: Memory> Hooks<M> for Staging<M> {
    fn attach(memory: &M, setup: &PoolSetup) -> Result<Self, Fault> {
        let Some(offset) = setup.offsets.staging_ptr else { return Ok(Self::Registers) };
        let at = LongPeer::at(memory, setup.region.offset(offset as u64))?.try_observe()?;
        match LaneStaging::attach(memory, at) {
            Ok(lane) if !at.is_null() => Ok(Self::Ring { at, lane }),
            _ => Ok(Self::Nowhere),
        }
    }

    fn claimed(&mut self, _: &mut M::Window) {}

    fn before_publish(&mut self) {}

    fn given_up(&mut self) {}
}

/// An item that a core has finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountedItem {
    /// Identity of the task.
    pub task_id: u64,
    /// Its kernel.
    pub kernel: u32,
    /// Which kind of core ran it.
    pub core_type: CoreType,
    /// Its dispatch token.
    pub token: u32,
}

impl CountedItem {
    /// The record of `arch`, which has room for as many counters as its cores have.
    fn record(&self, arch: ArchId, counts: &Counts) -> [u8; RECORD_BYTES] {
        macro_rules! of {
            ($arch:ident) => {{
                let mut record = pmu::$arch::Record {
                    task_id: self.task_id,
                    func_id: self.kernel,
                    core_type: self.core_type,
                    pmu_total_cycles: counts.total_cycles,
                    ..FromZeros::new_zeroed()
                };
                record.pmu_counters.iter_mut().zip(counts.events).for_each(|(slot, events)| *slot = events);
                let mut bytes = [0; RECORD_BYTES];
                bytes.copy_from_slice(record.as_bytes());
                bytes
            }};
        }
        match arch {
            ArchId::A2a3 => of!(a2a3),
            ArchId::A5 => of!(a5),
        }
    }
}

/// What one lane records. `CORES` is the most cores that a lane may own.
pub struct PmuRecorder<M: Memory, const CORES: usize> {
    lane: Lane<M, Pmu>,
    arch: ArchId,
    pools: Vec<(u32, Pool<M, CoreCounts, Pmu>), CORES>,
}

impl<M: Memory, const CORES: usize> PmuRecorder<M, CORES> {
    /// A recorder for `lane`, which owns `cores`, at most `CORES` of them; further ones are left unrecorded.
    ///
    /// # Errors
    /// A lane or core that the region does not have, or memory that cannot be reached.
    pub fn attach(
        memory: &M,
        attachment: &Attachment,
        lane: layout::Lane,
        cores: impl IntoIterator<Item = u32>,
    ) -> Result<Self, AttachError> {
        let mut pools = Vec::new();
        for core in cores {
            if pools.push((core, attachment.pool(memory, Instance(core))?)).is_err() {
                break;
            }
        }
        let arch = attachment.region().shape().arch();
        let recorder = Self { lane: attachment.lane(memory, lane)?, arch, pools };
        recorder.lane.show(LaneActivity::RUNNING);
        Ok(recorder)
    }

    /// The ring that `core` is to leave its counts in; null for its registers.
    pub fn ring(&mut self, core: u32) -> DevAddr {
        let pool = self.pools.iter_mut().find(|(owned, _)| *owned == core);
        pool.map_or(DevAddr::NULL, |(_, pool)| pool.hooks().ring())
    }

    /// Records an item of `core`, whose `registers` are read if the counts lie there. A core that the lane does not own is
    /// not recorded.
    ///
    /// # Errors
    /// [`AppendError`] when the record is lost; it is counted.
    pub fn item(
        &mut self,
        core: u32,
        item: &CountedItem,
        registers: impl FnOnce() -> Counts,
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        let Some((_, pool)) = self.pools.iter_mut().find(|(owned, _)| *owned == core) else { return Ok(()) };
        let counts = match pool.hooks() {
            Staging::Registers => Ok(registers()),
            Staging::Ring { lane, .. } => lane.read(item.token).ok_or(DropCause::Mismatch),
            Staging::Nowhere => Err(DropCause::Corrupt),
        };
        match counts {
            Ok(counts) => self.lane.append(pool, &item.record(self.arch, &counts), env),
            Err(cause) => self.lane.forgo(pool, cause),
        }
    }

    /// Records `counts` of an item of `core`, wherever they come from. A core that the lane does not own is not recorded.
    ///
    /// # Errors
    /// [`AppendError`] when the record is lost; it is counted.
    pub fn counts(
        &mut self,
        core: u32,
        item: &CountedItem,
        counts: &Counts,
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        match self.pools.iter_mut().find(|(owned, _)| *owned == core) {
            Some((_, pool)) => self.lane.append(pool, &item.record(self.arch, counts), env),
            None => Ok(()),
        }
    }

    /// Publishes everything and tells the host so. Blocks up to one deadline per pool while the host is silent, and not at
    /// all once it is known to be gone.
    pub fn flush(&mut self, env: &mut impl WaitEnv) {
        for (_, pool) in &mut self.pools {
            let _: SwitchEnd = self.lane.flush(pool, env);
        }
        self.lane.show(LaneActivity::FLUSHED);
        self.lane.show_flushed();
    }

    /// The lane, for its counters.
    pub fn lane(&self) -> &Lane<M, Pmu> {
        &self.lane
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::pmu::{BUFFER, region};
    use crate::layout::{Region, Shape, SubsystemId};
    use crate::mem::CopyMemory;
    use crate::mem::testing::{BlockMemory, Poke, block};
    use crate::mmio::{CoreStaging, RING_BYTES};
    use crate::producer::still::Still;
    use zerocopy::FromBytes;

    const BASE: DevAddr = DevAddr(0x10_0000);
    const BUFFER_AT: DevAddr = DevAddr(BASE.0 + 0x2_0000);
    const RING_AT: DevAddr = DevAddr(BASE.0 + 0x4_0000);

    const ITEM: CountedItem =
        CountedItem { task_id: 1 << 40 | 7, kernel: 3, core_type: CoreType::AIV, token: 5 };
    const COUNTS: Counts = Counts { total_cycles: 1 << 33, events: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] };

    struct Bench {
        memory: BlockMemory,
        region: Region,
        recorder: PmuRecorder<BlockMemory, 1>,
    }

    /// One lane with one core, which has one buffer and, on a5, the ring at `ring`.
    fn bench(arch: ArchId, ring: DevAddr) -> Bench {
        let memory = block(BASE, 0x5_0000);
        let shape = Shape::new(arch, 1, 1).unwrap();
        let region = region(shape);
        let pool = region.pool(PoolKind::SOLE, Instance(0)).unwrap();
        let at = |offset: usize| BASE.offset(offset as u64);
        memory.poke_address(at(pool.free_ptrs), BUFFER_AT);
        memory.poke(at(pool.free_tail), 1);
        if let Some(staging) = pool.staging_ptr {
            memory.poke_address(at(staging), ring);
        }
        let attachment = Attachment::open(&memory, SubsystemId::Pmu, BASE, DevAddr::NULL, shape).unwrap();
        let recorder = PmuRecorder::attach(&memory, &attachment, layout::Lane(0), [0]).unwrap();
        Bench { memory, region, recorder }
    }

    impl Bench {
        /// Attempts, losses and mismatches as the region has them.
        fn counts(&self) -> [u32; 3] {
            let pool = self.region.pool(PoolKind::SOLE, Instance(0)).unwrap();
            let words = [pool.total_records, Some(pool.dropped_records), pool.mismatch_records];
            words.map(|word| word.map_or(0, |word| self.memory.peek(BASE.offset(word as u64))))
        }

        fn record<R: FromBytes>(&self) -> R {
            let mut bytes = [0; RECORD_BYTES];
            self.memory.read_bytes(BUFFER_AT.offset(BUFFER.records as u64), &mut bytes).unwrap();
            R::read_from_bytes(&bytes).unwrap()
        }
    }

    #[test]
    fn a_record_holds_the_counters_of_its_architecture() {
        let mut a2a3 = bench(ArchId::A2a3, DevAddr::NULL);
        assert_eq!(a2a3.recorder.ring(0), DevAddr::NULL);
        a2a3.recorder.item(0, &ITEM, || COUNTS, &mut Still).unwrap();
        let mut a5 = bench(ArchId::A5, RING_AT);
        assert_eq!(a5.recorder.ring(0), RING_AT);
        CoreStaging::attach(&a5.memory, RING_AT).unwrap().show(ITEM.token, &COUNTS);
        a5.recorder.item(0, &ITEM, || panic!("nothing lies in registers"), &mut Still).unwrap();
        let (of_a2a3, of_a5) = (a2a3.record::<pmu::a2a3::Record>(), a5.record::<pmu::a5::Record>());
        assert_eq!(of_a2a3.pmu_counters, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(of_a5.pmu_counters, COUNTS.events);
        for (task_id, kernel, core_type, cycles) in [
            (of_a2a3.task_id, of_a2a3.func_id, of_a2a3.core_type, of_a2a3.pmu_total_cycles),
            (of_a5.task_id, of_a5.func_id, of_a5.core_type, of_a5.pmu_total_cycles),
        ] {
            assert_eq!((task_id, kernel, core_type), (ITEM.task_id, ITEM.kernel, ITEM.core_type));
            assert_eq!(cycles, COUNTS.total_cycles);
        }
        assert_eq!((a2a3.counts(), a5.counts()), ([1, 0, 0], [1, 0, 0]));
    }

    #[test]
    fn an_item_whose_counts_are_not_there_is_counted_and_makes_no_record() {
        let mut bench = bench(ArchId::A5, RING_AT);
        let core = CoreStaging::attach(&bench.memory, RING_AT).unwrap();
        core.show(ITEM.token - 2, &COUNTS);
        let lost = bench.recorder.item(0, &ITEM, || COUNTS, &mut Still);
        assert_eq!(lost, Err(AppendError { cause: DropCause::Mismatch }));
        assert_eq!(bench.counts(), [1, 0, 1], "not among the losses of the wire");
        core.show(ITEM.token, &COUNTS);
        bench.recorder.item(0, &ITEM, || COUNTS, &mut Still).unwrap();
        assert_eq!(bench.counts(), [2, 0, 1]);
        bench.recorder.item(1, &ITEM, || COUNTS, &mut Still).expect("a core of another lane");
        assert_eq!(bench.counts(), [2, 0, 1]);
    }

    #[test]
    fn a_core_without_a_ring_loses_what_it_counts() {
        for ring in [DevAddr::NULL, DevAddr(BASE.0 + 0x5_0000 - RING_BYTES as u64 + 64)] {
            let mut bench = bench(ArchId::A5, ring);
            assert_eq!(bench.recorder.ring(0), DevAddr::NULL);
            let lost = bench.recorder.item(0, &ITEM, || COUNTS, &mut Still);
            assert_eq!(lost, Err(AppendError { cause: DropCause::Corrupt }));
            assert_eq!(bench.counts(), [1, 1, 0]);
        }
    }
}
