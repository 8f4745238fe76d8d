//! The plan: what a load and a build would make of a container, without a device.
//!
//! The model is loaded by the very code that loads it onto a device, with paper in place of the device: addresses are handed
//! out, rings are sized, bytes go nowhere.

use std::collections::HashMap;
use std::fmt;

use serde::{Serialize, Serializer};
use sluice_core::dma::{RING_ALIGN_BYTES, SwapEncoder};
use sluice_core::fmap::Direction;
use sluice_core::mem::{DevAddr, Fault};
use sluice_core::mmio::{OutsideWindow, RegisterMap, TpbId, TpbRegisters};

use super::batch::PROLOGUE_PAIRS;
use super::error::LoadError;
use super::image::{ImageOptions, TpbImage, ring_tag};
use super::place;
use super::sink::Sink;
use super::template::RingShape;
use crate::device::heap::{DeviceBlock, Heap, HeapError, HeapUsage, UsageTag};
use crate::neff::{Bare, Header, Neff, Program, Target, Var, VarKind};

/// Memory that takes bytes and keeps none.
struct Paper;

impl Sink for Paper {
    fn put(&self, _: DevAddr, _: &[u8]) -> Result<(), Fault> {
        Ok(())
    }
}

/// What would be on the device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Plan {
    /// By TPB.
    pub tpbs: Vec<TpbPlan>,
    /// Device memory that the loaded model takes.
    pub load_bytes: TagBytes,
    /// Device memory that each build for other tensors takes besides: rings of I/O queues and swap data.
    pub build_bytes: TagBytes,
    /// Least device memory of the tensors themselves.
    pub tensor_bytes: TagBytes,
}

/// Bytes of device memory by usage tag, rounding included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TagBytes(Vec<(UsageTag, u64)>);

impl TagBytes {
    /// The tags and their bytes.
    pub fn iter(&self) -> impl Iterator<Item = (UsageTag, u64)> + '_ {
        self.0.iter().copied()
    }

    /// What `heap` has handed out since `before`.
    fn since(before: &HeapUsage, heap: &Heap) -> Self {
        let now = heap.usage();
        let more = UsageTag::ALL.map(|tag| (tag, now.used_bytes(tag) - before.used_bytes(tag)));
        Self(more.into_iter().filter(|&(_, bytes)| bytes > 0).collect())
    }
}

impl Serialize for TagBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(tag, bytes)| (tag.name(), bytes)))
    }
}

impl fmt::Display for TagBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (tag, bytes)) in self.iter().enumerate() {
            write!(f, "{}{} {bytes}", if place > 0 { ", " } else { "" }, tag.name())?;
        }
        f.write_str(if self.0.is_empty() { "none" } else { " bytes" })
    }
}

/// What would be on one TPB.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TpbPlan {
    /// The TPB.
    pub tpb: u32,
    /// Inputs, then outputs.
    pub contract: Vec<ContractLine>,
    /// In the order in which they are swapped in.
    pub rings: Vec<RingPlan>,
    /// Pointer cells, then rows of pointer tables, all of them.
    pub pointers: Vec<PointerPlan>,
    /// Descriptor pairs that an execution puts into the exec ring.
    pub exec_pairs: usize,
}

/// A tensor that has to be bound.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ContractLine {
    /// The name that it is bound under.
    pub name: String,
    /// Which set it is looked up in.
    #[serde(serialize_with = "as_text")]
    pub direction: Direction,
    /// The variable.
    pub var_id: u32,
    /// Least length.
    pub size_bytes: u64,
    /// Of what the address has to be a multiple.
    pub align_bytes: u64,
}

/// A queue with a ring.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RingPlan {
    /// Name of the queue.
    pub queue: String,
    /// Its number on the device.
    pub ring: u32,
    /// Written anew for other tensors, instead of at load.
    pub dynamic: bool,
    /// Descriptors of each half that move bytes.
    pub descriptors: u32,
    /// Descriptors of each half, padding included.
    pub allocated: u32,
    /// Bytes of both halves.
    pub bytes: u64,
    /// The tensors whose addresses it holds, by name.
    pub tensors: Vec<String>,
}

/// A pointer cell, or a row of a pointer table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PointerPlan {
    /// Name of the pointer or pointer table.
    pub owner: String,
    /// Row of the table.
    pub row: Option<u32>,
    /// The variable it is to point at.
    pub target: String,
    /// Overwritten by executions, for its target is a tensor; others are written at load.
    pub patched: bool,
}

fn as_text<S: Serializer>(direction: &Direction, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(direction)
}

/// Plans what a load and a build make of `neff`.
///
/// # Errors
/// What a load onto a device with room for everything would be refused for.
pub fn plan(neff: &Neff) -> Result<Plan, LoadError> {
    /// More than any container asks for.
    const PAPER_BYTES: u64 = 1 << 56;
    let heap = Heap::new(DevAddr(Heap::GRANULE_BYTES), PAPER_BYTES);
    let empty = heap.usage();
    let at = registers(neff)?;
    let shared = place::shared_scratchpad(&neff.programs, &heap)?;
    let options = ImageOptions { device_target: Target::Any, ring_cache: 0, task_table: None };
    let images = neff.programs.iter().zip(at).map(|(program, at)| {
        Ok((at.0, program, TpbImage::load(program, at, &Paper, &heap, shared.as_ref(), options)?))
    });
    let images = images.collect::<Result<Vec<_>, LoadError>>()?;
    let load_bytes = TagBytes::since(&empty, &heap);
    let tpbs: Vec<_> = images.iter().map(|(tpb, program, image)| TpbPlan::of(*tpb, program, image)).collect();
    let loaded = heap.usage();
    let images = images.iter().map(|(_, program, image)| build(&heap, program, image));
    let _built = images.collect::<Result<Vec<_>, HeapError>>()?;
    let build_bytes = TagBytes::since(&loaded, &heap);
    let built = heap.usage();
    let _tensors = tensors(&heap, &tpbs)?;
    Ok(Plan { load_bytes, build_bytes, tensor_bytes: TagBytes::since(&built, &heap), tpbs })
}

/// What a build puts onto one TPB.
fn build(heap: &Heap, program: &Program, image: &TpbImage) -> Result<Vec<DeviceBlock>, HeapError> {
    let mut blocks =
        vec![heap.alloc(image.swap_bytes(), SwapEncoder::BLOB_STRIDE_BYTES, UsageTag::Generic)?];
    for RingShape { queue, size, .. } in image.ring_shapes().filter(|ring| !ring.vars.is_empty()) {
        let queue = program.queues.iter().find(|known| known.ring == Some(queue));
        let tag = queue.map_or(UsageTag::DmaRing, |queue| ring_tag(queue.kind));
        for _half in 0..2 {
            blocks.push(heap.alloc(size.bytes(), RING_ALIGN_BYTES, tag)?);
        }
    }
    Ok(blocks)
}

/// One TPB per program, as a load wants them.
fn registers(neff: &Neff) -> Result<Vec<(TpbId, TpbRegisters)>, LoadError> {
    let subgraphs = neff.programs.len();
    let Header { cores_requested: cores, virtual_core_size: tpbs_per_core, .. } = neff.header;
    let have = TpbId::COUNT as usize;
    let too_many =
        LoadError::NotEnoughCores { subgraphs, cores, tpbs_per_core, first_tpb: TpbId::FIRST, have };
    let Ok(map) = RegisterMap::new(DevAddr(1 << 57), subgraphs as u32) else { return Err(too_many) };
    let registers = (0..subgraphs as u32).map(|tpb| {
        let tpb = TpbId::new(tpb)?;
        Ok((tpb, map.tpb(tpb)?))
    });
    registers.collect::<Result<_, OutsideWindow>>().map_err(|_| too_many)
}

/// Programs share tensors by name: each counts once, with the greatest length that is wanted.
fn tensors(heap: &Heap, tpbs: &[TpbPlan]) -> Result<Vec<DeviceBlock>, HeapError> {
    let mut wanted: HashMap<(Direction, &str), u64> = HashMap::new();
    for line in tpbs.iter().flat_map(|tpb| &tpb.contract) {
        let bytes = wanted.entry((line.direction, &line.name)).or_default();
        *bytes = line.size_bytes.max(*bytes);
    }
    wanted.into_values().map(|bytes| heap.alloc(bytes, Heap::GRANULE_BYTES, UsageTag::Tensor)).collect()
}

impl TpbPlan {
    fn of(tpb: TpbId, program: &Program, image: &TpbImage) -> Self {
        let name = |var| program.var(var).name.clone();
        let queue_name = |number| {
            let queue = program.queues.iter().find(|queue| queue.ring == Some(number));
            queue.map_or_else(|| "prologue".into(), |queue| queue.name.clone())
        };
        Self {
            tpb: tpb.get(),
            contract: image
                .contract()
                .entries()
                .map(|(name, entry)| ContractLine {
                    name: name.to_string(),
                    direction: entry.direction,
                    var_id: entry.var.0,
                    size_bytes: entry.size_bytes,
                    align_bytes: entry.align_bytes,
                })
                .collect(),
            rings: image
                .ring_shapes()
                .map(|RingShape { queue, used, size, vars }| RingPlan {
                    queue: queue_name(queue),
                    ring: queue.get(),
                    dynamic: !vars.is_empty(),
                    descriptors: used,
                    allocated: size.descriptors(),
                    bytes: 2 * size.bytes(),
                    tensors: vars.iter().copied().map(name).collect(),
                })
                .collect(),
            pointers: pointers(program),
            exec_pairs: image.swap_pairs() + PROLOGUE_PAIRS,
        }
    }
}

/// All pointers of a program: cells, then rows.
fn pointers(program: &Program) -> Vec<PointerPlan> {
    let plan = |owner: &Var, row, target| {
        let Var { name, kind, .. } = program.var(target);
        PointerPlan { owner: owner.name.clone(), row, target: name.clone(), patched: kind.is_io() }
    };
    let cells = program.vars.iter().filter_map(|var| match var.kind {
        VarKind::Pointer { target } => Some(plan(var, None, target)),
        _ => None,
    });
    let tables = program.vars.iter().filter_map(|var| match &var.kind {
        VarKind::PointerTable { rows } => Some((var, rows)),
        _ => None,
    });
    let rows = tables
        .flat_map(|(var, rows)| (0..).zip(rows).map(move |(row, &target)| plan(var, Some(row), target)));
    cells.chain(rows).collect()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tpb in &self.tpbs {
            writeln!(f, "TPB {}: {} exec-ring pairs per execution", tpb.tpb, tpb.exec_pairs)?;
            for ContractLine { name, direction, var_id, size_bytes, align_bytes } in &tpb.contract {
                write!(f, "  bind {direction} {} (var {var_id}), {size_bytes} bytes or more", Bare(name))?;
                if *align_bytes > 1 {
                    write!(f, ", at a multiple of {align_bytes}")?;
                }
                writeln!(f)?;
            }
            for ring in &tpb.rings {
                let RingPlan { queue, ring: number, descriptors, allocated, bytes, .. } = ring;
                write!(
                    f,
                    "  ring {number} {}: {descriptors} descriptors, {allocated} with padding, ",
                    Bare(queue)
                )?;
                write!(f, "{bytes} bytes in two halves, written ")?;
                f.write_str(if ring.dynamic { "per build for" } else { "at load" })?;
                for (place, tensor) in ring.tensors.iter().enumerate() {
                    write!(f, "{} {}", if place > 0 { "," } else { "" }, Bare(tensor))?;
                }
                writeln!(f)?;
            }
            for PointerPlan { owner, row, target, patched } in &tpb.pointers {
                match row {
                    Some(row) => write!(f, "  pointer table {} row {row} → {}", Bare(owner), Bare(target))?,
                    None => write!(f, "  pointer {} → {}", Bare(owner), Bare(target))?,
                }
                writeln!(f, ", written {}", if *patched { "per execution" } else { "at load" })?;
            }
        }
        let Self { load_bytes, build_bytes, tensor_bytes, .. } = self;
        writeln!(f, "memory at load: {load_bytes}")?;
        writeln!(f, "memory per build besides: {build_bytes}")?;
        writeln!(f, "memory of the tensors: {tensor_bytes}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::mock::{Bench, model, tensors};
    use super::*;

    #[test]
    fn a_plan_says_what_a_load_and_a_build_take() {
        for name in ["gather", "pointers"] {
            let neff = model(name);
            let plan = plan(&neff).unwrap();
            let bench = Bench::new(&neff);
            let open = bench.heap.usage();
            let again = bench.unit.load(&neff, &crate::kbl::LoadOptions::default()).unwrap();
            let loaded = bench.heap.usage();
            assert_eq!(plan.load_bytes, TagBytes::since(&open, &bench.heap), "{name}");
            let (inputs, outputs) = tensors(&bench.unit, again);
            assert_eq!(plan.tensor_bytes, TagBytes::since(&loaded, &bench.heap), "{name}");
            let before = bench.heap.usage();
            let built = bench.unit.build(again, &inputs, &outputs).unwrap();
            assert_eq!(plan.build_bytes, TagBytes::since(&before, &bench.heap), "{name}");
            assert!(plan.build_bytes.iter().any(|(tag, _)| tag == UsageTag::DmaRingIo), "{name}");

            let wanted: Vec<_> = bench.unit.model(again).unwrap().wants().collect();
            let planned = plan.tpbs.iter().flat_map(|tpb| tpb.contract.iter().map(|line| (tpb.tpb, line)));
            for (wanted, (tpb, line)) in wanted.iter().zip(planned) {
                assert_eq!((wanted.tpb.get(), &wanted.name, wanted.var.0), (tpb, &line.name, line.var_id));
            }
            let staged = bench.unit.stage(&built).unwrap();
            let posted: Vec<_> =
                plan.tpbs.iter().map(|tpb| bench.device.tpb(tpb.tpb).posted() as usize).collect();
            assert_eq!(posted, plan.tpbs.iter().map(|tpb| tpb.exec_pairs).collect::<Vec<_>>());
            drop(staged);
        }
    }

    #[test]
    fn a_plan_reads_like_this() {
        let plan = plan(&model("pointers")).unwrap();
        let text = plan.to_string();
        for line in [
            "TPB 0: ",
            "  bind input x (var 0), 8192 bytes or more\n",
            "prologue: 1 descriptors, 64 with padding, ",
            "  pointer at_z → z, written per execution\n",
            "  pointer at_keep → keep, written at load\n",
            "  pointer table all row 2 → z, written per execution\n",
            "  pointer table all row 3 → keep, written at load\n",
            "memory of the tensors: TENSOR 24576 bytes\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn what_can_not_be_loaded_can_not_be_planned() {
        let mut neff = model("gather");
        neff.programs[1].carve_out =
            Some(crate::neff::CarveOut { size_bytes: 9, ..crate::neff::CarveOut::EVENT_ACCELERATOR });
        assert!(matches!(plan(&neff), Err(LoadError::CarveOut { .. })));
    }
}
