//! One program, placed on one TPB.
//!
//! ```text
//!   Program ─┬─ variables ────► Places        fast addresses, pointers to patch
//!            ├─ queues ───────► static rings (and the prologue's), bundles of dynamic ones
//!            ├─ instructions ─► five programs in device memory
//!            └─ inputs, outputs ─► Contract
//! ```
//!
//! The queue bases of static rings are swapped in like those of dynamic ones: a ring runs from its start, with the ring
//! id of the first lap, in every execution, and another model may have used the queue in between.

use sluice_core::dma::{Barrier, Swap, SwapEncoder};
use sluice_core::fmap::VarId;
use sluice_core::mem::DevAddr;
use sluice_core::mmio::{Engine, Half, QueueId, TpbId, TpbRegisters};

use super::choice::ArgChoice;
use super::contract::{Bindings, Contract};
use super::error::LoadError;
use super::place::{IoPointer, Places};
use super::ring::{BoundRing, BuildFault, Bundle, Ring};
use super::sink::Sink;
use super::tasks::Tasks;
use super::template::{RingShape, Template, TemplateBuilder};
use super::work::{EngineReport, WorkItem};
use crate::device::Device;
use crate::device::heap::{DeviceBlock, Heap, UsageTag};
use crate::neff::{CarveOut, DmaOp, Program, QueueKind, Tables, Target};

/// How a load treats what the container leaves open.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImageOptions<'a> {
    pub(super) device_target: Target,
    pub(super) ring_cache: usize,
    pub(super) task_table: Option<&'a ArgChoice>,
}

/// A program in device memory.
#[derive(Debug)]
pub(super) struct TpbImage {
    registers: TpbRegisters,
    contract: Contract,
    places: Places,
    fixed: Vec<(QueueId, Ring)>,
    bundles: Vec<Bundle>,
    entries: [DevAddr; Engine::COUNT],
    _code: Vec<DeviceBlock>,
    barrier: Barrier,
    tables: Tables,
    engines: Vec<EngineReport>,
    items: Vec<WorkItem>,
    tasks: Option<Tasks>,
}

/// What a swap patches.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patched<'a> {
    /// The word that names the task bindings; the device clears it.
    Tasks,
    Pointer(&'a IoPointer),
    Queue(QueueId, Half),
}

impl TpbImage {
    /// Places `program` on `tpb`. `shared` is the scratchpad of all programs of the model.
    pub(super) fn load(
        program: &Program,
        (tpb, registers): (TpbId, TpbRegisters),
        sink: &impl Sink,
        heap: &Heap,
        shared: Option<&DeviceBlock>,
        options: ImageOptions<'_>,
    ) -> Result<Self, LoadError> {
        check_target(program, options.device_target)?;
        program.check().map_err(|fault| LoadError::Program { program: program.name.clone(), fault })?;
        let contract = Contract::of(program)?;
        let places = Places::new(program, heap, shared)?;
        places.write(program, sink)?;
        let barrier = barrier_of(program.target);
        let (mut fixed, mut bundles) = (Vec::new(), Vec::new());
        for template in templates(program, &places, barrier)? {
            if template.is_dynamic() {
                bundles.push(Bundle::new(template, options.ring_cache));
            } else {
                fixed.push((
                    template.queue(),
                    Ring::new(&template, sink, heap, |var| Err(BuildFault::NoInputOrOutput(var)))?,
                ));
            }
        }
        let (mut entries, mut code) = ([DevAddr::NULL; Engine::COUNT], Vec::new());
        for engine in program.engines.iter().filter(|engine| !engine.instructions.is_empty()) {
            let bytes = &engine.instructions;
            let block = heap.alloc(bytes.len() as u64, Heap::GRANULE_BYTES, code_tag(engine.engine))?;
            sink.put(block.at(), bytes)?;
            entries[engine.engine.index()] = block.at();
            code.push(block);
        }
        let describe = |choice| Tasks::load(program, &contract, choice, entries, sink, heap);
        let tasks = options.task_table.map(describe).transpose()?;
        let items = WorkItem::of(program, &contract, tpb);
        Ok(Self {
            registers,
            tasks,
            contract,
            places,
            fixed,
            bundles,
            entries,
            _code: code,
            barrier,
            tables: program.tables.clone(),
            engines: EngineReport::of(program, tpb),
            items,
        })
    }

    pub(super) fn contract(&self) -> &Contract {
        &self.contract
    }

    /// Where the five programs start; null for an engine without one.
    pub(super) fn entries(&self) -> [DevAddr; Engine::COUNT] {
        self.entries
    }

    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The barrier that the program's architecture prefers.
    pub(super) fn barrier(&self) -> Barrier {
        self.barrier
    }

    pub(super) fn engines(&self) -> &[EngineReport] {
        &self.engines
    }

    pub(super) fn items(&self) -> &[WorkItem] {
        &self.items
    }

    /// The word whose content the prologue queue copies on.
    pub(super) fn sequence_source(&self) -> DevAddr {
        self.places.sequence_source()
    }

    /// Descriptor pairs of the swap list: the same for all tensors.
    pub(super) fn swap_pairs(&self) -> usize {
        let queues = self.fixed.len() + self.bundles.len();
        usize::from(self.tasks.is_some()) + self.places.pointers().count() + 2 * queues
    }

    /// Device memory of the swap list's data.
    pub(super) fn swap_bytes(&self) -> u64 {
        SwapEncoder::BLOB_STRIDE_BYTES * self.swap_pairs() as u64
    }

    /// What its rings look like, in the order of the swap list: those that depend on tensors before the static ones.
    pub(super) fn ring_shapes(&self) -> impl Iterator<Item = RingShape> {
        let dynamic = self.bundles.iter().map(|bundle| bundle.template().shape());
        dynamic.chain(self.fixed.iter().map(|(queue, ring)| ring.fixed_shape(*queue)))
    }

    /// The rings for tensors at these places, one per bundle.
    pub(super) fn rings<D: Device>(
        &self,
        device: &D,
        heap: &Heap,
        bindings: &Bindings,
    ) -> Result<Vec<BoundRing>, BuildFault> {
        let place = |var: VarId| self.contract.place(bindings, var);
        self.bundles.iter().map(|bundle| bundle.ring(device, heap, place)).collect()
    }

    /// Keeps the rings of a build that has succeeded, one per bundle, for builds to come.
    pub(super) fn keep_rings(&self, rings: &[BoundRing]) {
        self.bundles.iter().zip(rings).for_each(|(bundle, ring)| bundle.keep(ring));
    }

    /// Says for a task table, if there is one, where the tensors are.
    pub(super) fn bind_tasks(
        &self,
        sink: &impl Sink,
        heap: &Heap,
        bindings: &Bindings,
    ) -> Result<Option<DeviceBlock>, BuildFault> {
        self.tasks.as_ref().map(|tasks| tasks.bind(bindings, sink, heap)).transpose()
    }

    /// The swap list for tensors at these places: the task bindings, if there are any, pointer cells, table rows, then queue
    /// bases, of the rings that depend on tensors before the static ones.
    pub(super) fn swaps<'a>(
        &'a self,
        bindings: &'a Bindings,
        rings: &'a [BoundRing],
        tasks: Option<DevAddr>,
    ) -> impl Iterator<Item = Result<(Patched<'a>, Swap), BuildFault>> {
        let tasks =
            tasks.map(|target| Ok((Patched::Tasks, Swap::Pointer { cell: self.registers.tasks(), target })));
        let pointers = self.places.pointers().map(move |pointer| {
            let target = self.contract.place(bindings, pointer.target)?.base;
            let swap = match pointer.row {
                None => Swap::Pointer { cell: pointer.at, target },
                Some(_) => Swap::Row { row: pointer.at, target },
            };
            Ok((Patched::Pointer(pointer), swap))
        });
        let dynamic = self.bundles.iter().map(|bundle| bundle.template().queue());
        let dynamic = dynamic.zip(rings.iter().map(|ring| &**ring));
        let fixed = self.fixed.iter().map(|(queue, ring)| (*queue, ring));
        let queues = dynamic.chain(fixed).flat_map(|(queue, ring)| {
            [Half::Tx, Half::Rx].map(|half| {
                let bank = self.registers.queue_bank(half, queue);
                let swap = Swap::QueueBase { bank, base: ring.base(half), size: ring.size() };
                Ok((Patched::Queue(queue, half), swap))
            })
        });
        tasks.into_iter().chain(pointers).chain(queues)
    }
}

fn check_target(program: &Program, device: Target) -> Result<(), LoadError> {
    let target = program.target;
    if target != device && target != Target::Any && device != Target::Any {
        return Err(LoadError::Incompatible { program: program.name.clone(), target, device });
    }
    match program.carve_out {
        Some(found) if target == Target::Cayman && found != CarveOut::EVENT_ACCELERATOR => {
            Err(LoadError::CarveOut { found })
        }
        _ => Ok(()),
    }
}

/// DMB before the strong-ordered write existed, that one since.
const fn barrier_of(target: Target) -> Barrier {
    match target {
        Target::Sunda => Barrier::Dmb,
        Target::Cayman | Target::Mariana | Target::Any => Barrier::Sow,
    }
}

const fn code_tag(engine: Engine) -> UsageTag {
    match engine {
        Engine::Pe => UsageTag::InstrPe,
        Engine::Act => UsageTag::InstrAct,
        Engine::Pool => UsageTag::InstrPool,
        Engine::Dve => UsageTag::InstrDve,
        Engine::Sp => UsageTag::InstrSp,
    }
}

/// What the ring of a queue is for.
pub(super) const fn ring_tag(kind: QueueKind) -> UsageTag {
    match kind {
        QueueKind::In | QueueKind::Out => UsageTag::DmaRingIo,
        QueueKind::Data => UsageTag::DmaRingSpill,
        QueueKind::ActLoad | QueueKind::EmbeddingUpdate | QueueKind::Dynamic => UsageTag::DmaRing,
    }
}

/// One template per queue that has something to do, then the prologue's.
fn templates(program: &Program, places: &Places, barrier: Barrier) -> Result<Vec<Template>, LoadError> {
    let mut all = Vec::new();
    for (index, queue) in program.queues.iter().enumerate() {
        let Some(ring) = queue.ring else { continue };
        let fault = |fault| LoadError::Queue { queue: queue.name.clone(), fault };
        let mut builder = TemplateBuilder::new();
        let blocks = program.engines.iter().flat_map(|engine| &engine.blocks);
        for block in blocks.filter(|block| block.queue == index) {
            if block.op != DmaOp::Copy {
                return Err(LoadError::Operation {
                    queue: queue.name.clone(),
                    block: block.id,
                    op: block.op,
                });
            }
            for copy in &block.copies {
                let mut transfers = copy.transfers().peekable();
                while let Some(part) = transfers.next() {
                    let from = places.address(program, part.from, part.from_offset_bytes, part.len_bytes)?;
                    let to = places.address(program, part.to, part.to_offset_bytes, part.len_bytes)?;
                    // What the container lists as one copy is one transfer: its last descriptor has the barrier.
                    let last = transfers.peek().is_none();
                    let barrier = if last { barrier } else { Barrier::None };
                    builder.transfer(from, to, part.len_bytes, barrier).map_err(fault)?;
                }
            }
        }
        all.extend(builder.finish(ring, ring_tag(queue.kind), places.padding()).map_err(fault)?);
    }
    let fault = |fault| LoadError::Queue { queue: "prologue".into(), fault };
    let mut prologue = TemplateBuilder::new();
    let (source, destination) = (places.sequence_source(), places.sequence_destination());
    prologue.transfer(source.into(), destination.into(), 4, barrier).map_err(fault)?;
    all.extend(prologue.finish(QueueId::PROLOGUE, UsageTag::DmaRing, places.padding()).map_err(fault)?);
    Ok(all)
}
