//! A lane's part of the PMU: what each item of its cores came to by the core's counters.
//!
//! The region's header names the group of events. Counters run from here on until the end, and are then left as they
//! were found. An item that was dispatched before is not of this run; the end waits for those that cores still count, because
//! a core may be about to write the ring that the host is given back.

use heapless::Vec;
use sluice_core::exec::{LaneIndex, WorkloadKinds};
use sluice_core::layout::pmu::{CoreType, header_words};
use sluice_core::layout::pmu_events::event_group;
use sluice_core::layout::{Instance, Lane, PoolKind, SubsystemId};
use sluice_core::mem::{Clock, DevAddr, DeviceMemory, Word};
use sluice_core::mmio::{Counts, Engine, LaneCounters, TpbRegisters};
use sluice_core::producer::pmu::{CountedItem, PmuRecorder};
use sluice_core::producer::{AttachError, Attachment, Settlement};

use super::batch::Batch;
use super::event::{Dispatch, Finish, Recording, Stamps};
use super::parking::Parking;
use super::run::{Run, cores};
use super::wishes::{Events, Wishes};
use crate::platform::{Context, Platform};

/// What one lane records. What is lost is counted by cause in its pool.
pub(super) struct Recorder<M: DeviceMemory, const CORES: usize> {
    records: PmuRecorder<M, CORES>,
    wishes: Wishes<M>,
    /// Those whose counters run.
    cores: Vec<Core<M>, CORES>,
    /// Since when nothing is waited for but what cores still count.
    ending_since_cycles: Option<u64>,
    /// How long a core may take for an item.
    limit_cycles: u64,
}

/// One core while its counters run.
struct Core<M: DeviceMemory> {
    number: u32,
    core_type: CoreType,
    counters: Running<M>,
    /// Whether its present item is one that it counts.
    is_counted: bool,
}

impl<M: DeviceMemory, const CORES: usize> Recorder<M, CORES> {
    /// The recorder of `lane`, if the run has a PMU and it can be reached.
    pub(super) fn attach<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        run: &Run<'_>,
    ) -> Option<Self> {
        let region = run.recorders.region(SubsystemId::Pmu)?;
        Self::open(cx, lane, run, region).ok()
    }

    fn open<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        run: &Run<'_>,
        region: DevAddr,
    ) -> Result<Self, AttachError> {
        let memory = cx.memory();
        let event_type = region.offset(header_words(cx.arch()).event_type as u64);
        let group = event_group(cx.arch(), memory.word(event_type)?.load_acquire());
        // Of a group that nobody knows the cycles are counted all the same.
        let events = group.map_or(&[][..], |group| group.events);
        let attachment =
            Attachment::open(memory, SubsystemId::Pmu, region, run.recorders.extension, run.shape)?;
        let own = || cores(cx).filter(|core| core.lane(cx.map().lanes) == lane);
        let own_numbers = own().map(|core| core.get() as u32);
        let mut records = PmuRecorder::attach(memory, &attachment, Lane(lane.get()), own_numbers)?;
        let mut counted = Vec::new();
        for core in own() {
            let Ok(registers) = cx.map().registers.tpb(core.tpb()) else { continue };
            let (number, engine) = (core.get() as u32, core.engine());
            let ring = records.ring(number);
            let counters =
                Running::start(memory, registers, engine, |counters| counters.start(events, ring))?;
            let core_type = core_type(engine);
            if counted.push(Core { number, core_type, counters, is_counted: false }).is_err() {
                break;
            }
        }
        let limit_cycles = cx.arch().facts().operation_timeout_cycles();
        let at = own().next().map(|core| (PoolKind::SOLE, Instance(core.get() as u32)));
        let wishes = Wishes::attach(memory, &attachment, Lane(lane.get()), 1, Events::Items, at)?;
        Ok(Self { records, wishes, cores: counted, ending_since_cycles: None, limit_cycles })
    }
}

impl<M: DeviceMemory, const CORES: usize> Recorder<M, CORES> {
    /// Stops the counters of cores without an item that is counted.
    fn release_idle_cores(&mut self) {
        self.cores.retain(|core| core.is_counted);
    }
}

impl<P: Platform<Memory: DeviceMemory>, const CORES: usize> Recording<P> for Recorder<P::Memory, CORES> {
    const SUBSYSTEM: Option<SubsystemId> = Some(SubsystemId::Pmu);

    fn stamps(&self) -> Stamps {
        Stamps::default()
    }

    fn published(&self) -> u32 {
        self.records.lane().ready_tail()
    }

    fn dropped(&self) -> u32 {
        self.records.lane().state().dropped
    }

    #[inline]
    fn wishes(&mut self) -> Option<&mut Wishes<P::Memory>> {
        Some(&mut self.wishes)
    }

    fn dispatched(&mut self, dispatch: &Dispatch, _: &mut Parking<'_, P>) {
        let number = dispatch.core.get() as u32;
        if let Some(core) = self.cores.iter_mut().find(|core| core.number == number) {
            core.is_counted = true;
        }
    }

    fn finished(&mut self, finish: &Finish, env: &mut Parking<'_, P>) {
        let number = finish.core.get() as u32;
        let Some(core) = self.cores.iter_mut().find(|core| core.number == number) else { return };
        if core::mem::take(&mut core.is_counted) {
            let item = CountedItem {
                task_id: finish.task_id(),
                kernel: finish.kernel,
                core_type: core.core_type,
                token: finish.token,
            };
            let _ = self.records.item(number, &item, || core.counters.registers.read(), env);
        }
        if self.ending_since_cycles.is_some() {
            self.release_idle_cores();
        }
    }

    fn make_up(&mut self, batch: &mut Batch<'_>, env: &mut Parking<'_, P>) {
        if batch.kind != WorkloadKinds::PMU {
            return;
        }
        for made in batch {
            let item = CountedItem {
                task_id: (made.core.get() as u64) << 32 | u64::from(made.number),
                kernel: 0,
                core_type: core_type(made.core.engine()),
                token: made.number,
            };
            let total_cycles = made.end_cycles - made.begin_cycles;
            let counts = Counts { total_cycles, ..Counts::default() };
            let _ = self.records.counts(made.core.get() as u32, &item, &counts, env);
        }
    }

    fn settle(&mut self, env: &mut Parking<'_, P>) -> Settlement {
        self.release_idle_cores();
        if self.cores.is_empty() {
            return Settlement::Settled;
        }
        let now_cycles = env.now_cycles();
        let since_cycles = *self.ending_since_cycles.get_or_insert(now_cycles);
        match since_cycles.saturating_add(self.limit_cycles) {
            until_cycles if now_cycles < until_cycles => Settlement::Owed { until_cycles },
            _ => Settlement::Settled,
        }
    }

    fn flush(&mut self, env: &mut Parking<'_, P>) {
        // Before the host is told: what rings the cores have is its own again then.
        self.cores.clear();
        self.records.flush(env);
    }
}

const fn core_type(engine: Engine) -> CoreType {
    match engine {
        Engine::Pe => CoreType::AIC,
        _ => CoreType::AIV,
    }
}

/// Counters that run; they are left as they were found.
struct Running<M: DeviceMemory> {
    registers: LaneCounters<M>,
    found: u32,
}

impl<M: DeviceMemory> Running<M> {
    fn start(
        memory: &M,
        tpb: TpbRegisters,
        engine: Engine,
        start: impl FnOnce(&LaneCounters<M>) -> u32,
    ) -> Result<Self, AttachError> {
        let registers = LaneCounters::attach(memory, tpb, engine)?;
        let found = start(&registers);
        Ok(Self { registers, found })
    }
}

impl<M: DeviceMemory> Drop for Running<M> {
    fn drop(&mut self) {
        self.registers.restore(self.found);
    }
}
