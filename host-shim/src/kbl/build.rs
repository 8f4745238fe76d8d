//! The build of one execution: a model's programs joined with the caller's tensors.
//!
//! ```text
//!   keys of both sets ──► kept build? ──────────────────────────────────────────────► Built      hit
//!                            └ no ─► join by name ─► rings ─► swap list, blob ─► keep ─┘          miss
//! ```
//!
//! The swap list is what the exec ring runs before the programs start. Its order, and where its barriers stand:
//!
//! | pairs | barrier |
//! |---|---|
//! | task bindings, of a model that was loaded with a task table | |
//! | pointer cells, pointer-table rows | |
//! | queue bases, TX before RX; queues that depend on tensors before the others, the prologue's last | on the last pair, the one that the program's architecture prefers: the prologue's queue is complete before it is started |
//! | request, increment, sequence word, tail increments, start event (see `batch`) | DMB on the first tail increment and on the event |
//!
//! Everything that a build allocates has an owner from its first byte; a build that fails half-way leaves nothing behind.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sluice_core::dma::{Pair, Placement, RxDesc, Swap, SwapEncoder, SwapValue, TxDesc};
use sluice_core::exec::NrtStatus;
use sluice_core::fmap::Direction;
use sluice_core::mem::{DevAddr, Fault};
use zerocopy::little_endian::U32;
use zerocopy::{FromZeros, IntoBytes};

use super::contract::{Bindings, Found, Offender, Sets};
use super::error::first_of;
use super::image::{Patched, TpbImage};
use super::model::{Model, Wanted};
use super::registry::{Holder, ModelHandle, Registry, RegistryError};
use super::ring::{BoundRing, BuildFault};
use super::set::{SetKey, Snapshot, TensorSet};
use crate::device::Device;
use crate::device::heap::{DeviceBlock, Heap, HeapError, UsageTag};
use crate::device::process::Forked;

/// A build that can't be made. Nothing of it stays on the device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BuildError {
    /// The unit belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The unit is closed.
    #[error("the unit is closed")]
    Closed,
    /// No such model.
    #[error(transparent)]
    Model(#[from] RegistryError),
    /// Tensors that are missing, too small, or on another device: all of them, of which the text names the first 32.
    #[error("{}", first_of(.0, 32, "; "))]
    Tensors(Vec<Offender>),
    /// No device memory for the rings.
    #[error("Failed to allocate dynamic_ring_set: {0}")]
    RingSet(HeapError),
    /// Rings could not be built.
    #[error("Failed to build dma rings for io: {0}")]
    Rings(BuildFault),
    /// The swap list could not be built.
    #[error("Failed to build ioq switching descriptors: {0}")]
    Swaps(BuildFault),
}

impl BuildError {
    fn of_rings(fault: BuildFault) -> Self {
        match fault {
            BuildFault::Heap(error) => Self::RingSet(error),
            fault => Self::Rings(fault),
        }
    }

    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Forked(_) => NrtStatus::FAILURE,
            Self::Closed => NrtStatus::CLOSED,
            Self::Model(error) => error.status(),
            Self::Tensors(_) => NrtStatus::INVALID,
            Self::RingSet(_) => NrtStatus::RESOURCE,
            Self::Rings(fault) | Self::Swaps(fault) => fault.status(),
        }
    }
}

/// Which tensors a build is for: the content of both sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BuildKey {
    inputs: SetKey,
    outputs: SetKey,
}

/// What one TPB runs before its programs start.
#[derive(Debug)]
pub(super) struct TpbBuild {
    bindings: Bindings,
    rings: Vec<BoundRing>,
    tasks: Option<DeviceBlock>,
    _blob: Option<DeviceBlock>,
    tx: Box<[TxDesc]>,
    rx: Box<[RxDesc]>,
}

impl TpbBuild {
    fn new<D: Device>(
        image: &TpbImage,
        bindings: Bindings,
        device: &D,
        heap: &Heap,
    ) -> Result<Self, BuildError> {
        let rings = image.rings(device, heap, &bindings).map_err(BuildError::of_rings)?;
        let tasks = image.bind_tasks(device, heap, &bindings).map_err(BuildError::Swaps)?;
        let swaps = image.swaps(&bindings, &rings, tasks.as_ref().map(DeviceBlock::at));
        let (blob, tx, rx) = swap_list(image, swaps, device, heap).map_err(BuildError::Swaps)?;
        Ok(Self { bindings, rings, tasks, _blob: blob, tx, rx })
    }

    fn tasks_at(&self) -> Option<DevAddr> {
        self.tasks.as_ref().map(DeviceBlock::at)
    }

    /// The swap list, not yet placed in a ring.
    pub(super) fn swaps(&self) -> impl ExactSizeIterator<Item = Pair> + Clone + '_ {
        self.tx.iter().zip(&self.rx).map(|(&tx, &rx)| Pair { tx, rx })
    }
}

type SwapList = (Option<DeviceBlock>, Box<[TxDesc]>, Box<[RxDesc]>);

fn swap_list<'a, D: Device>(
    image: &TpbImage,
    swaps: impl Iterator<Item = Result<(Patched<'a>, Swap), BuildFault>>,
    device: &D,
    heap: &Heap,
) -> Result<SwapList, BuildFault> {
    let pairs = image.swap_pairs();
    if pairs == 0 {
        return Ok((None, Box::default(), Box::default()));
    }
    let mut tx = vec![TxDesc::new_zeroed(); pairs].into_boxed_slice();
    let mut rx = vec![RxDesc::new_zeroed(); pairs].into_boxed_slice();
    let mut values = vec![SwapValue::default(); pairs];
    let blob = heap.alloc(image.swap_bytes(), SwapEncoder::BLOB_STRIDE_BYTES, UsageTag::Generic)?;
    let mut encoder = SwapEncoder::new(blob.at(), &mut values, &mut tx, &mut rx);
    for swap in swaps {
        encoder.push(swap?.1)?;
    }
    encoder.finish(image.barrier());
    device.write(blob.at(), values.as_bytes())?;
    Ok((Some(blob), tx, rx))
}

/// What a build consists of, shared by all executions with the same tensors.
#[derive(Debug)]
pub(super) struct BuildData {
    /// One per program, in the order of the model's images.
    pub(super) tpbs: Vec<TpbBuild>,
    extra: Vec<(Direction, String)>,
}

impl BuildData {
    fn new<D: Device>(model: &Model, sets: Sets<'_>, device: &D, heap: &Heap) -> Result<Self, BuildError> {
        let mut offenders = Vec::new();
        let images = model.images().iter().map(|(_, image)| image);
        let bindings: Vec<Bindings> =
            images.clone().map(|image| image.contract().join(sets, heap, &mut offenders)).collect();
        if !offenders.is_empty() {
            return Err(BuildError::Tensors(merged(offenders)));
        }
        let build = |(image, bindings)| TpbBuild::new(image, bindings, device, heap);
        let tpbs = images.zip(bindings).map(build).collect::<Result<_, _>>()?;
        Ok(Self { tpbs, extra: extra_tensors(model, sets) })
    }

    /// Keeps its rings for other builds of `model`, which it is a build of.
    fn keep_rings(&self, model: &Model) {
        model.images().iter().zip(&self.tpbs).for_each(|((_, image), build)| image.keep_rings(&build.rings));
    }
}

/// Programs share tensors: each offender once, with the greatest need.
fn merged(offenders: Vec<Offender>) -> Vec<Offender> {
    let mut merged: Vec<Offender> = Vec::new();
    let mut places: HashMap<(Direction, String), usize> = HashMap::new();
    for offender in offenders {
        let place = *places.entry((offender.direction, offender.name.clone())).or_insert(merged.len());
        let Some(known) = merged.get_mut(place) else {
            merged.push(offender);
            continue;
        };
        known.need_bytes = known.need_bytes.max(offender.need_bytes);
        if let (
            Found::Misaligned { need_align_bytes, .. },
            Found::Misaligned { need_align_bytes: also, .. },
        ) = (&mut known.found, offender.found)
        {
            *need_align_bytes = (*need_align_bytes).max(also);
        }
    }
    merged
}

/// What no program of the model names.
fn extra_tensors(model: &Model, sets: Sets<'_>) -> Vec<(Direction, String)> {
    let mut contracts = model.images().iter().map(|(_, image)| image.contract());
    let Some(first) = contracts.next() else { return Vec::new() };
    let mut extra: Vec<_> = first.extras(sets).collect();
    for contract in contracts {
        let also: HashSet<_> = contract.extras(sets).collect();
        extra.retain(|tensor| also.contains(tensor));
    }
    extra
}

/// A model joined with tensors, ready to be staged, any number of times. The tensors stay where they are while it lives.
#[derive(Clone, Debug)]
pub struct Built {
    pub(super) model: ModelHandle,
    pub(super) data: Arc<BuildData>,
    pub(super) pins: [Arc<Snapshot>; 2],
    hit: bool,
}

impl Built {
    /// Joins a model with both sets, or finds that it has done so before.
    pub(super) fn new<D: Device>(
        models: &Registry<Model>,
        handle: ModelHandle,
        (inputs, outputs): (&TensorSet, &TensorSet),
        device: &D,
        heap: &Heap,
    ) -> Result<Self, BuildError> {
        let pins = [inputs.snapshot(), outputs.snapshot()];
        let key = BuildKey { inputs: pins[0].key(), outputs: pins[1].key() };
        let kept = models.look(handle, |model| model.builds.again(&key))?;
        let hit = kept.is_some();
        let data = match kept {
            Some(data) => data,
            None => {
                let model = models.acquire(handle, Holder::Build)?;
                let sets = Sets { inputs: (inputs, &pins[0]), outputs: (outputs, &pins[1]) };
                let data = model.builds.keep(key, BuildData::new(&model, sets, device, heap)?);
                // Those of the build that is used, not before all of it has succeeded.
                data.keep_rings(&model);
                data
            }
        };
        Ok(Self { model: handle, data, pins, hit })
    }

    /// The model it is for.
    pub fn model(&self) -> ModelHandle {
        self.model
    }

    /// Whether everything was as in an earlier build.
    pub fn was_hit(&self) -> bool {
        self.hit
    }

    /// Tensors of the sets that the model does not name, by direction and name. They are accepted and not used.
    pub fn extra_tensors(&self) -> &[(Direction, String)] {
        &self.data.extra
    }
}

/// An input or output of a model, bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bound {
    /// What the model wants, as in [`Model::names`].
    pub wanted: Wanted,
    /// Where the tensor begins.
    pub at: DevAddr,
    /// Its length, which may be more than wanted.
    pub size_bytes: u64,
}

/// Every name that `build` binds, once: inputs, then outputs.
pub(super) fn bound(model: &Model, build: &BuildData) -> Vec<Bound> {
    let places = build.tpbs.iter().flat_map(|build| build.bindings.places());
    let mut by_name: HashMap<(Direction, String), Placement> = HashMap::new();
    for (wanted, place) in model.wants().zip(places) {
        if let Some(place) = *place {
            by_name.entry((wanted.direction, wanted.name)).or_insert(place);
        }
    }
    let names = [Direction::Input, Direction::Output].into_iter().flat_map(|side| model.names(side));
    let bound = names.filter_map(|wanted| {
        let place = by_name.get(&(wanted.direction, wanted.name.clone()))?;
        Some(Bound { wanted, at: place.base, size_bytes: place.size_bytes })
    });
    bound.collect()
}

/// One word, or one address, that an execution writes before its programs start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PatchedSlot {
    /// What it is, in words.
    pub what: String,
    /// Where it is.
    pub at: DevAddr,
    /// What has to stand there after the execution.
    pub expected: u64,
    /// How many bytes of it, 4 or 8.
    pub bytes: u32,
}

impl PatchedSlot {
    /// What stands there now.
    ///
    /// # Errors
    /// Device memory that can't be reached.
    pub fn read_back<D: Device>(&self, device: &D) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        device.read(self.at, &mut bytes[..self.bytes as usize])?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// What executions of `build` write before the programs of `model`, which it is a build of, start.
pub(super) fn patched_slots(model: &Model, build: &BuildData) -> Result<Vec<PatchedSlot>, BuildFault> {
    let mut slots = Vec::new();
    for ((tpb, image), build) in model.images().iter().zip(&build.tpbs) {
        for swap in image.swaps(&build.bindings, &build.rings, build.tasks_at()) {
            let (patched, swap) = swap?;
            let (at, [low, high, length, _]) = (swap.destination(), swap.value().map(U32::get));
            match patched {
                Patched::Tasks => {}
                Patched::Pointer(pointer) => {
                    let what = match pointer.row {
                        None => format!("TPB {tpb}: pointer {}", pointer.owner),
                        Some(row) => format!("TPB {tpb}: pointer table {}, row {row}", pointer.owner),
                    };
                    slots.push(PatchedSlot { what, at, expected: DevAddr::join(low, high).0, bytes: 8 });
                }
                Patched::Queue(queue, half) => {
                    let registers = [("base low", low), ("base high", high), ("length", length)];
                    slots.extend((0..).zip(registers).map(|(place, (register, value))| PatchedSlot {
                        what: format!("TPB {tpb}: queue {queue} {half} ring {register}"),
                        at: at.offset(4 * place),
                        expected: value.into(),
                        bytes: 4,
                    }));
                }
            }
        }
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offender(direction: Direction, name: &str, need_bytes: u64, found: Found) -> Offender {
        Offender { direction, name: name.into(), need_bytes, found }
    }

    #[test]
    fn offenders_are_merged_by_direction_and_name() {
        use Direction::{Input, Output};
        let odd = |need_align_bytes| Found::Misaligned { need_align_bytes, at: DevAddr(8) };
        let all = vec![
            offender(Input, "x", 8, odd(16)),
            offender(Output, "x", 1, Found::Missing),
            offender(Input, "x", 4, odd(64)),
            offender(Output, "x", 2, Found::Missing),
        ];
        let once = [offender(Input, "x", 8, odd(64)), offender(Output, "x", 2, Found::Missing)];
        assert_eq!(merged(all), once);
    }

    #[test]
    fn merging_takes_as_many_steps_as_there_are_offenders() {
        // Compared one by one, these would take hours.
        let missing = |number: u32| offender(Direction::Input, &number.to_string(), 1, Found::Missing);
        assert_eq!(merged((0..1 << 19).map(missing).collect()).len(), 1 << 19);
    }

    #[test]
    fn an_error_keeps_every_offender_and_names_the_first() {
        for (offenders, last) in [
            (1, "input `0` is missing, need 1 bytes"),
            (32, "input `31` is missing, need 1 bytes"),
            (33, "and 1 more"),
            (100_000, "and 99968 more"),
        ] {
            let missing = |number: u32| offender(Direction::Input, &number.to_string(), 1, Found::Missing);
            let error = BuildError::Tensors((0..offenders).map(missing).collect());
            let text = error.to_string();
            let parts: Vec<_> = text.split("; ").collect();
            assert_eq!((parts.len(), *parts.last().unwrap()), (offenders.min(33) as usize, last));
            let BuildError::Tensors(all) = error else { panic!() };
            assert_eq!(all.len(), offenders as usize);
        }
    }
}
