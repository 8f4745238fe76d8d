//! ScopeStats: how full rings and heap are when the scopes of an execution begin and end.
//!
//! ```text
//!   execution ─► subgraph ─► engine PE, ACT, POOL, DVE, SP     one such tree per TPB and execution, ring = TPB
//!   begin: the lanes have been told              end of an engine: its lane said so on the board
//! ```
//!
//! | field | is |
//! |---|---|
//! | line | the execution's number among those of the TPB |
//! | task ring | executions done, executions kicked off |
//! | dependency pool | pairs of the execution ring consumed, pairs posted |
//! | heap | bytes that the host has taken back, bytes that it has handed out |
//! | tensor map | notifications that the host has not harvested |
//!
//! Sequencers share a lane and it alone records, so whatever engines do on other lanes comes in when its sequencer sees it.

use heapless::Vec;
use sluice_core::dma::QueueRegisters;
use sluice_core::exec::{Channel, LaneIndex, NotificationWatch, WorkloadKinds};
use sluice_core::layout::scope_stats::{HeaderWords, MAX_RINGS, ScopePhase, header_words};
use sluice_core::layout::{Instance, Lane, PoolKind, SubsystemId};
use sluice_core::mem::{DevAddr, DeviceMemory, Fault, LongPeer, Own, Peer, Word};
use sluice_core::mmio::{ControlWord, Engine, Half, QueueId, TpbId, TpbRegisters};
use sluice_core::producer::scope_stats::{Occupancy, ScopeRecorder, Scopes, Site};
use sluice_core::producer::{AttachError, Attachment};
use zerocopy::IntoBytes;

use super::batch::Batch;
use super::event::{EngineEnd, Recording, Stamps, Submit};
use super::parking::Parking;
use super::run::Run;
use super::wishes::{Events, Wishes};
use crate::platform::{Context, Platform};

/// Status queues of a TPB and its error queue.
const CHANNELS: usize = Engine::COUNT + 1;

/// What one lane records: scopes on the sequencers' lane, nothing on the others.
pub(super) struct Recorder<M: DeviceMemory, const CORES: usize> {
    records: ScopeRecorder<M>,
    wishes: Wishes<M>,
    tpbs: Vec<Tpb<M>, { TpbId::COUNT as usize }>,
    heap: Option<Heap<M>>,
    fatal: Option<Own<M::Word>>,
}

/// One TPB: what is open on it, and where its occupancy stands.
struct Tpb<M: DeviceMemory> {
    tpb: TpbId,
    scopes: Scopes<Scope>,
    done: Peer<M::Word>,
    kicked: Peer<M::Word>,
    consumed: Peer<M::Word>,
    posted: Peer<M::Word>,
    notifications: Vec<NotificationWatch<M::Word>, CHANNELS>,
}

/// The host's account of device memory.
struct Heap<M: DeviceMemory> {
    handed_out: LongPeer<M::Word>,
    taken_back: LongPeer<M::Word>,
}

/// A scope, and the execution whose it is.
#[derive(Clone, Copy, Debug)]
struct Scope {
    kind: Kind,
    execution: u32,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Execution,
    Subgraph,
    Engine(Engine),
}

impl Site for Scope {
    fn file(&self) -> &str {
        match self.kind {
            Kind::Execution => "execution",
            Kind::Subgraph => "subgraph",
            Kind::Engine(engine) => engine.name(),
        }
    }

    fn line(&self) -> i32 {
        self.execution as i32
    }
}

impl<M: DeviceMemory, const CORES: usize> Recorder<M, CORES> {
    /// The recorder of `lane`, if the run has ScopeStats and they can be reached.
    pub(super) fn attach<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        run: &Run<'_>,
    ) -> Option<Self> {
        let region = run.recorders.region(SubsystemId::ScopeStats)?;
        Self::open(cx, lane, run, region).ok()
    }

    fn open<P: Platform<Memory = M>>(
        cx: &Context<P>,
        lane: LaneIndex,
        run: &Run<'_>,
        region: DevAddr,
    ) -> Result<Self, AttachError> {
        let memory = cx.memory();
        let attachment =
            Attachment::open(memory, SubsystemId::ScopeStats, region, run.recorders.extension, run.shape)?;
        let orchestrates = lane == LaneIndex::SEQUENCER;
        let records = ScopeRecorder::attach(memory, &attachment, Lane(lane.get()), orchestrates)?;
        let at = orchestrates.then_some((PoolKind::SOLE, Instance(0)));
        let wishes = Wishes::attach(memory, &attachment, Lane(lane.get()), 1, Events::Submits, at)?;
        let mut recorder = Self { records, wishes, tpbs: Vec::new(), heap: None, fatal: None };
        if !orchestrates {
            return Ok(recorder);
        }
        let words = header_words(cx.arch());
        let map = cx.map();
        for tpb in (0..map.registers.tpbs()).filter_map(|tpb| TpbId::new(tpb).ok()) {
            let Ok(registers) = map.registers.tpb(tpb) else { continue };
            describe_ring(memory, region, &words, tpb, registers, map.ram.bytes)?;
            let tpb = Tpb::attach(memory, tpb, registers)?;
            let room: u32 = tpb.notifications.iter().map(NotificationWatch::capacity).sum();
            memory.word(region.offset(words.tensormap_cap as u64))?.store_relaxed(room);
            // There is room for as many as a device has.
            let _ = recorder.tpbs.push(tpb);
        }
        let totals = run.recorders.tables.heap_totals;
        if !totals.is_null() {
            recorder.heap = Some(Heap {
                handed_out: LongPeer::at(memory, totals)?,
                taken_back: LongPeer::at(memory, totals.offset(8))?,
            });
        }
        let fatal = Own::new(memory.word(region.offset(words.fatal_latched as u64))?);
        fatal.set(0);
        recorder.fatal = Some(fatal);
        Ok(recorder)
    }
}

/// Says in the region's header what the ring of `tpb` holds, for the rings that the header has room for.
fn describe_ring<M: DeviceMemory>(
    memory: &M,
    region: DevAddr,
    words: &HeaderWords,
    tpb: TpbId,
    registers: TpbRegisters,
    ram_bytes: u64,
) -> Result<(), Fault> {
    let ring = tpb.get() as usize;
    if ring >= MAX_RINGS {
        return Ok(());
    }
    let queue = QueueRegisters::attach(memory, registers.queue_bank(Half::Tx, QueueId::EXEC))?;
    let pairs = queue.ring().map_or(0, |ring| ring.size.descriptors());
    let at = |offset: usize, bytes: usize| region.offset((offset + ring * bytes) as u64);
    // An execution takes a pair at least.
    memory.write_bytes(at(words.task_window_cap, 4), pairs.as_bytes())?;
    memory.write_bytes(at(words.dep_pool_cap, 4), pairs.as_bytes())?;
    memory.write_bytes(at(words.heap_cap, 8), ram_bytes.as_bytes())
}

impl<M: DeviceMemory> Tpb<M> {
    fn attach(memory: &M, tpb: TpbId, registers: TpbRegisters) -> Result<Self, Fault> {
        let word = |word| Ok(Peer::new(memory.word(registers.control_word(word))?));
        let channels = Engine::ALL.map(Channel::Status).into_iter().chain([Channel::Errors]);
        Ok(Self {
            tpb,
            scopes: Scopes::new(),
            done: word(ControlWord::ExecutionsDone)?,
            kicked: word(ControlWord::Doorbell)?,
            consumed: word(ControlWord::ExecHeadPairs)?,
            posted: word(ControlWord::ExecPostedPairs)?,
            notifications: channels
                .map(|channel| NotificationWatch::attach(memory, registers, channel))
                .collect::<Result<_, _>>()?,
        })
    }

    fn ring(&self) -> i16 {
        self.tpb.get() as i16
    }

    fn occupancy(&self, heap: Option<&Heap<M>>) -> Occupancy {
        Occupancy {
            tasks: self.done.observe()..self.kicked.observe(),
            dependencies: self.consumed.observe()..self.posted.observe(),
            heap_bytes: heap.map_or(0..0, Heap::totals),
            tensors: self.notifications.iter().map(NotificationWatch::unharvested).sum(),
        }
    }
}

impl<M: DeviceMemory> Heap<M> {
    /// Bytes taken back and handed out. What cannot be read, or is torn, reads as nothing.
    fn totals(&self) -> ::core::ops::Range<u64> {
        // The later figure second, so that no more is taken back than was handed out.
        match (self.taken_back.try_observe(), self.handed_out.try_observe()) {
            (Ok(taken_back), Ok(handed_out)) if taken_back <= handed_out => taken_back.0..handed_out.0,
            _ => 0..0,
        }
    }
}

impl<P: Platform<Memory: DeviceMemory>, const CORES: usize> Recording<P> for Recorder<P::Memory, CORES> {
    const SUBSYSTEM: Option<SubsystemId> = Some(SubsystemId::ScopeStats);

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

    fn passed_over(&mut self, tpb: TpbId) {
        if let Some(tpb) = self.tpbs.iter_mut().find(|known| known.tpb == tpb) {
            tpb.scopes.clear();
        }
    }

    fn submitted(&mut self, submit: &Submit, env: &mut Parking<'_, P>) {
        let Self { records, tpbs, heap, .. } = self;
        let Some(tpb) = tpbs.iter_mut().find(|tpb| tpb.tpb == submit.tpb) else { return };
        let (at, ring) = (tpb.occupancy(heap.as_ref()), tpb.ring());
        let scope = |kind| Scope { kind, execution: submit.ordinal };
        // Whatever an execution that never ended has left open.
        tpb.scopes.clear();
        for kind in [Kind::Execution, Kind::Subgraph] {
            let _ = records.begin(&mut tpb.scopes, scope(kind), ring, &at, env);
        }
        for engine in Engine::ALL.map(Kind::Engine) {
            let _ = records.leaf(&tpb.scopes, &scope(engine), ScopePhase::BEGIN, ring, &at, env);
        }
    }

    fn engine_ended(&mut self, end: &EngineEnd, env: &mut Parking<'_, P>) {
        let Self { records, tpbs, heap, .. } = self;
        let Some(tpb) = tpbs.iter().find(|tpb| tpb.tpb == end.tpb && tpb.scopes.depth() > 0) else { return };
        let (at, ring) = (tpb.occupancy(heap.as_ref()), tpb.ring());
        let scope = Scope { kind: Kind::Engine(end.engine), execution: end.ordinal };
        let _ = records.leaf(&tpb.scopes, &scope, ScopePhase::END, ring, &at, env);
    }

    fn execution_ended(&mut self, tpb: TpbId, env: &mut Parking<'_, P>) {
        let Self { records, tpbs, heap, .. } = self;
        let Some(tpb) = tpbs.iter_mut().find(|known| known.tpb == tpb) else { return };
        let (at, ring) = (tpb.occupancy(heap.as_ref()), tpb.ring());
        while tpb.scopes.depth() > 0 {
            let _ = records.end(&mut tpb.scopes, ring, &at, env);
        }
    }

    fn failed(&mut self, env: &mut Parking<'_, P>) {
        if let Some(fatal) = &self.fatal {
            fatal.publish(1);
            self.records.publish(env);
        }
    }

    fn make_up(&mut self, batch: &mut Batch<'_>, env: &mut Parking<'_, P>) {
        if batch.kind != WorkloadKinds::SCOPE_STATS {
            return;
        }
        let Self { records, tpbs, heap, .. } = self;
        let at = tpbs.first().map_or_else(Occupancy::default, |tpb| tpb.occupancy(heap.as_ref()));
        for made in batch {
            let phase = if made.number % 2 == 1 { ScopePhase::BEGIN } else { ScopePhase::END };
            let scope = Scope { kind: Kind::Execution, execution: made.number };
            let _ = records.leaf(&Scopes::new(), &scope, phase, 0, &at, env);
        }
    }

    fn flush(&mut self, env: &mut Parking<'_, P>) {
        self.records.flush(env);
    }
}
