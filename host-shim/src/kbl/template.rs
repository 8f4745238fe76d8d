//! Templates: descriptors of one queue, with the addresses in tensors left open.
//!
//! ```text
//!   descriptors   d0 d1 d2 d3 … d63 │ d64 │ d65 d66 …    of one half
//!   runs          in x, + 128 each  │ y   │ fast         alike but for an address that grows evenly
//!   tensors       x: furthest byte, y: furthest byte
//! ```
//!
//! Copies follow patterns, so descriptors come in runs, and a run is kept as its first descriptor. A ring is written from its
//! template in one pass over the ring: each tensor is looked up once, and checked once, for the access that reaches furthest
//! into it; then a descriptor takes one addition.

use std::collections::HashMap;

use sluice_core::dma::{
    AddrWord, Barrier, Descriptor, Location, MAX_VRING_DESCRIPTORS, Pair, Placement, RingId, RingIds,
    RingSize, RxDesc, Shift, TemplateAddr, Transfer, TransferError, TxDesc,
};
use sluice_core::exec::NrtStatus;
use sluice_core::fmap::VarId;
use sluice_core::mem::{DevAddr, Fault};
use sluice_core::mmio::QueueId;
use zerocopy::IntoBytes;

use super::ring::BuildFault;
use super::sink::Sink;
use crate::device::heap::UsageTag;

/// Descriptors that are made between two writes to the device; they stay in the first-level cache.
const BATCH: usize = 256;

/// A template that can't be built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TemplateFault {
    /// More descriptors than one half of a ring has.
    #[error("Descriptor limit reached: {descriptors} descriptors, at most {MAX_VRING_DESCRIPTORS}")]
    DescriptorLimit {
        /// Descriptors needed.
        descriptors: u64,
    },
    /// A transfer that descriptors can't express.
    #[error(transparent)]
    Transfer(TransferError),
}

impl From<TransferError> for TemplateFault {
    /// One transfer can be too long as well as many together.
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::TooManyDescriptors { descriptors } => Self::DescriptorLimit { descriptors },
            error => Self::Transfer(error),
        }
    }
}

impl TemplateFault {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::DescriptorLimit { .. } => NrtStatus::QUEUE_FULL,
            Self::Transfer(_) => NrtStatus::INVALID,
        }
    }
}

/// A tensor that a template refers to.
#[derive(Debug)]
struct Reach {
    /// The access that ends last.
    furthest: TemplateAddr,
    bytes: u64,
}

impl Reach {
    fn end_bytes(&self) -> u64 {
        self.furthest.offset_bytes() + self.bytes
    }
}

/// Number of a shift: 0 for addresses that are final, 1 + the tensor's place among those of the template otherwise.
type ShiftIndex = u32;

/// Consecutive descriptors of one half that differ in their addresses alone, each by as much from the one before.
#[derive(Debug)]
struct Run<T> {
    first: T,
    step_bytes: u64,
    count: u32,
    shift: ShiftIndex,
}

impl<T: Descriptor + PartialEq> Run<T> {
    /// Takes one descriptor more, if it fits.
    fn extend(&mut self, next: T, shift: ShiftIndex) -> bool {
        let distance = next.address().0.wrapping_sub(self.first.address().0);
        let step_bytes = if self.count == 1 { distance } else { self.step_bytes };
        let mut alike = next;
        alike.set_address(self.first.address());
        let fits = shift == self.shift
            && alike == self.first
            && distance == step_bytes.wrapping_mul(self.count.into());
        if fits {
            (self.step_bytes, self.count) = (step_bytes, self.count + 1);
        }
        fits
    }

    /// Its descriptors from number `from` on, at most `most` of them.
    fn descriptors(&self, from: u32, most: u32, shift: Shift) -> impl ExactSizeIterator<Item = T> {
        let first = shift.of(self.first.address());
        (from..self.count.min(from.saturating_add(most))).map(move |number| {
            let mut descriptor = self.first;
            descriptor
                .set_address(AddrWord(first.0.wrapping_add(self.step_bytes.wrapping_mul(number.into()))));
            descriptor
        })
    }
}

/// Descriptors of one half of a ring.
#[derive(Debug)]
struct Half<T> {
    runs: Vec<Run<T>>,
}

impl<T: Descriptor + PartialEq> Half<T> {
    const EMPTY: Self = Self { runs: Vec::new() };

    fn push(&mut self, descriptor: T, shift: ShiftIndex) {
        if !self.runs.last_mut().is_some_and(|run| run.extend(descriptor, shift)) {
            self.runs.push(Run { first: descriptor, step_bytes: 0, count: 1, shift });
        }
    }

    /// Writes the descriptors to device memory, addresses shifted.
    fn write(&self, sink: &impl Sink, at: DevAddr, shifts: &[Shift]) -> Result<(), Fault> {
        let mut batch: Vec<T> = Vec::with_capacity(BATCH);
        let mut at = at;
        let mut flush = |batch: &mut Vec<T>| {
            sink.put(at, batch.as_bytes())?;
            at = at.offset(batch.as_bytes().len() as u64);
            batch.clear();
            Ok(())
        };
        for run in &self.runs {
            let mut done = 0;
            while done < run.count {
                let part = run.descriptors(done, (BATCH - batch.len()) as u32, shifts[run.shift as usize]);
                done += part.len() as u32;
                batch.extend(part);
                if batch.len() == BATCH {
                    flush(&mut batch)?;
                }
            }
        }
        if batch.is_empty() { Ok(()) } else { flush(&mut batch) }
    }
}

/// Descriptors of one queue, addresses in tensors still open.
#[derive(Debug)]
pub(super) struct Template {
    queue: QueueId,
    tag: UsageTag,
    used: u32,
    size: RingSize,
    tx: Half<TxDesc>,
    rx: Half<RxDesc>,
    /// In the order of their first use.
    reaches: Box<[Reach]>,
}

/// The outside of a ring.
#[derive(Clone, Debug)]
pub(super) struct RingShape {
    /// The queue that runs it.
    pub(super) queue: QueueId,
    /// Descriptors of each half that move bytes.
    pub(super) used: u32,
    /// Slots per half.
    pub(super) size: RingSize,
    /// The variables whose addresses it holds.
    pub(super) vars: Vec<VarId>,
}

/// Collects the transfers of one queue.
#[derive(Debug)]
pub(super) struct TemplateBuilder {
    descriptors: u32,
    tx: Half<TxDesc>,
    rx: Half<RxDesc>,
    reaches: Vec<Reach>,
    /// Place of a variable among the reaches.
    places: HashMap<VarId, usize>,
}

impl TemplateBuilder {
    /// A template without transfers.
    pub(super) fn new() -> Self {
        Self { descriptors: 0, tx: Half::EMPTY, rx: Half::EMPTY, reaches: Vec::new(), places: HashMap::new() }
    }

    /// Appends a transfer of `bytes`, cut into pairs; `barrier` applies to the last of them.
    pub(super) fn transfer(
        &mut self,
        source: AddrWord,
        destination: AddrWord,
        bytes: u64,
        barrier: Barrier,
    ) -> Result<(), TemplateFault> {
        let transfer = Transfer::new(source, destination, bytes, barrier, false)?;
        let descriptors = u64::from(self.descriptors) + u64::from(transfer.descriptors());
        if descriptors > u64::from(MAX_VRING_DESCRIPTORS) {
            return Err(TemplateFault::DescriptorLimit { descriptors });
        }
        self.descriptors = descriptors as u32;
        let (from, to) = (self.reach(source, bytes), self.reach(destination, bytes));
        let ids = RingIds { tx: RingId::FIRST, rx: RingId::FIRST };
        for copy in transfer.chunks() {
            let pair = Pair::encode(copy, ids);
            self.tx.push(pair.tx, from);
            self.rx.push(pair.rx, to);
        }
        Ok(())
    }

    /// Takes note of an access.
    fn reach(&mut self, address: AddrWord, bytes: u64) -> ShiftIndex {
        let Ok(Location::Symbolic(furthest)) = address.locate() else { return 0 };
        let reach = Reach { furthest, bytes };
        let place = *self.places.entry(furthest.var()).or_insert(self.reaches.len());
        match self.reaches.get_mut(place) {
            Some(known) if known.end_bytes() >= reach.end_bytes() => {}
            Some(known) => *known = reach,
            None => self.reaches.push(reach),
        }
        place as u32 + 1
    }

    /// Ends the template; `None` if it has no transfer. `pad` is a word of device memory that padding copies onto itself.
    pub(super) fn finish(
        mut self,
        queue: QueueId,
        tag: UsageTag,
        pad: DevAddr,
    ) -> Result<Option<Template>, TemplateFault> {
        if self.descriptors == 0 {
            return Ok(None);
        }
        let limit = TemplateFault::DescriptorLimit { descriptors: self.descriptors.into() };
        let size = RingSize::linear(self.descriptors).map_err(|_| limit)?;
        let mut padding = Pair::padding(pad.into());
        padding.tx.stamp(RingId::FIRST);
        padding.rx.stamp(RingId::FIRST);
        for _ in self.descriptors..size.descriptors() {
            self.tx.push(padding.tx, 0);
            self.rx.push(padding.rx, 0);
        }
        self.tx.runs.shrink_to_fit();
        self.rx.runs.shrink_to_fit();
        let (used, reaches) = (self.descriptors, self.reaches.into());
        Ok(Some(Template { queue, tag, used, size, tx: self.tx, rx: self.rx, reaches }))
    }
}

impl Template {
    /// Whether it names variables that are bound per execution.
    pub(super) fn is_dynamic(&self) -> bool {
        !self.reaches.is_empty()
    }

    /// The variables it names.
    pub(super) fn vars(&self) -> impl Iterator<Item = VarId> {
        self.reaches.iter().map(|reach| reach.furthest.var())
    }

    /// What a ring of it looks like.
    pub(super) fn shape(&self) -> RingShape {
        RingShape { queue: self.queue, used: self.used, size: self.size, vars: self.vars().collect() }
    }

    /// The queue that runs it.
    pub(super) fn queue(&self) -> QueueId {
        self.queue
    }

    /// What its rings are for.
    pub(super) fn tag(&self) -> UsageTag {
        self.tag
    }

    /// Writes both halves to device memory, TX at the first address and RX at the second, resolved by `place`.
    pub(super) fn write(
        &self,
        sink: &impl Sink,
        [tx, rx]: [DevAddr; 2],
        place: impl Fn(VarId) -> Result<Placement, BuildFault>,
    ) -> Result<(), BuildFault> {
        let shift = |reach: &Reach| Ok(reach.furthest.shift(place(reach.furthest.var())?, reach.bytes)?);
        let shifts = std::iter::once(Ok(Shift::NONE)).chain(self.reaches.iter().map(shift));
        let shifts = shifts.collect::<Result<Box<[Shift]>, BuildFault>>()?;
        self.tx.write(sink, tx, &shifts)?;
        self.rx.write(sink, rx, &shifts)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;
    use sluice_core::dma::{CopySpec, Position};
    use zerocopy::FromBytes;

    use super::super::mock::MockDevice;
    use super::*;
    use crate::device::Device;
    use crate::device::heap::DeviceBlock;

    /// One transfer: source and destination as (variable, or `None` for a fixed address; offset), and bytes.
    type Plan = (Option<u32>, Option<u32>, u64, u64);

    const FIXED: DevAddr = DevAddr(0x9000_0000);
    const PAD: DevAddr = DevAddr(0x9900_0000);

    fn word(var: Option<u32>, offset: u64) -> AddrWord {
        match var {
            Some(var) => TemplateAddr::new(VarId(var), offset).unwrap().into(),
            None => FIXED.offset(offset).into(),
        }
    }

    fn template(plan: &[Plan]) -> Template {
        let mut builder = TemplateBuilder::new();
        for &(from, to, offset, bytes) in plan {
            builder.transfer(word(from, offset), word(to, offset + 1), bytes, Barrier::Sow).unwrap();
        }
        builder.finish(QueueId::new(3).unwrap(), UsageTag::DmaRingIo, PAD).unwrap().unwrap()
    }

    /// Writes a ring to new memory.
    fn write(
        device: &MockDevice,
        template: &Template,
        place: impl Fn(VarId) -> Result<Placement, BuildFault>,
    ) -> ([DeviceBlock; 2], [DevAddr; 2]) {
        let heap = device.heap();
        let blocks = [(); 2].map(|()| heap.alloc(template.size.bytes(), 256, template.tag()).unwrap());
        let ring = [blocks[0].at(), blocks[1].at()];
        template.write(device, ring, place).unwrap();
        (blocks, ring)
    }

    /// The copies that a written ring asks for, checked as a device would.
    fn copies(device: &MockDevice, size: RingSize, ring: [DevAddr; 2]) -> Vec<CopySpec> {
        let mut at = [Position::start(size), Position::start(size)];
        let read = |half: DevAddr, index: u32, bytes: &mut [u8]| {
            device.read(half.offset(16 * u64::from(index)), bytes).unwrap();
        };
        let pairs = (0..size.descriptors()).map(|index| {
            let (mut tx, mut rx) = ([0; 16], [0; 16]);
            read(ring[0], index, &mut tx);
            read(ring[1], index, &mut rx);
            let pair =
                Pair { tx: TxDesc::read_from_bytes(&tx).unwrap(), rx: RxDesc::read_from_bytes(&rx).unwrap() };
            assert_eq!(at[0].accept(pair.tx.ring_id()).unwrap().index, index);
            assert_eq!(at[1].accept(pair.rx.ring_id()).unwrap().index, index);
            pair.decode().unwrap()
        });
        pairs.collect()
    }

    fn places(bases: [u64; 3]) -> impl Fn(VarId) -> Result<Placement, BuildFault> {
        move |var| {
            let base = bases.get(var.0 as usize).ok_or(BuildFault::NoInputOrOutput(var))?;
            Ok(Placement { base: DevAddr(*base), size_bytes: 1 << 30 })
        }
    }

    #[test]
    fn a_queue_without_transfers_has_no_ring() {
        let finished = TemplateBuilder::new().finish(QueueId::PROLOGUE, UsageTag::DmaRing, PAD);
        assert!(finished.unwrap().is_none());
    }

    #[test]
    fn a_queue_with_too_many_descriptors_is_refused() {
        let mut builder = TemplateBuilder::new();
        let limit = u64::from(MAX_VRING_DESCRIPTORS);
        let mut append = |bytes| builder.transfer(word(None, 0), word(None, 0), bytes, Barrier::None);
        assert_eq!(append((limit << 16) + 1).unwrap_err().status(), NrtStatus::QUEUE_FULL);
        append(1).unwrap();
        let error = append(limit << 16).unwrap_err();
        assert_eq!(error, TemplateFault::DescriptorLimit { descriptors: limit + 1 });
        assert_eq!(error.status(), NrtStatus::QUEUE_FULL);
    }

    #[test]
    fn work_grows_with_the_ring_and_looks_with_the_tensors() {
        let device = MockDevice::new(1);
        for rows in [100, 1000, 10_000] {
            // Rows that lie nowhere evenly, from two tensors in turns.
            let plan: Vec<Plan> =
                (0..rows).map(|row| (Some(row as u32 % 2), Some(2), row * row, 64)).collect();
            let (template, looks) = (template(&plan), Cell::new(0));
            let before = device.written_bytes();
            let place = |var| {
                looks.set(looks.get() + 1);
                places([1 << 32, 2 << 32, 3 << 32])(var)
            };
            write(&device, &template, place);
            assert_eq!((looks.get(), device.written_bytes() - before), (3, 2 * template.size.bytes()));
            assert!(template.size.descriptors() < rows as u32 + 32);
        }
    }

    #[test]
    fn a_transfer_more_takes_no_look_at_the_tensors_before_it() {
        // Compared one by one, these would take hours.
        let mut builder = TemplateBuilder::new();
        for var in 0..1 << 18 {
            builder
                .transfer(word(Some(var), 0), word(Some(1 << 18), 64 * u64::from(var)), 64, Barrier::None)
                .unwrap();
        }
        assert_eq!(builder.reaches.len(), (1 << 18) + 1);
    }

    #[test]
    fn rows_that_lie_evenly_are_one_run() {
        let row = |row: u64| (Some(0), None, row * 1000, 64);
        let even = template(&(0..500).map(row).collect::<Vec<_>>());
        assert_eq!((even.tx.runs.len(), even.rx.runs.len()), (2, 2), "and the padding is another");
        let broken = template(&(0..500).filter(|&place| place != 250).map(row).collect::<Vec<_>>());
        assert_eq!((broken.tx.runs.len(), broken.rx.runs.len()), (3, 3));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_ring_has_the_transfers_with_addresses(
            plan in prop::collection::vec(
                (prop::option::of(0u32..3), prop::option::of(0u32..3), 0u64..1 << 20, 1u64..200_000),
                1..40,
            ),
            bases in prop::array::uniform3(1u64 << 32..1 << 40),
        ) {
            let device = MockDevice::new(1);
            let template = template(&plan);
            let symbolic = plan.iter().any(|(from, to, ..)| from.or(*to).is_some());
            prop_assert_eq!(template.is_dynamic(), symbolic);
            let (_blocks, ring) = write(&device, &template, places(bases));
            let place = |var: Option<u32>, offset| {
                AddrWord(var.map_or(FIXED.0, |var| bases[var as usize]) + offset)
            };
            let copies = copies(&device, template.size, ring);
            let mut left = copies.iter();
            for (from, to, offset, bytes) in plan {
                let mut moved = 0;
                while moved < bytes {
                    let copy = left.next().unwrap();
                    prop_assert_eq!(copy.source, place(from, offset + moved));
                    prop_assert_eq!(copy.destination, place(to, offset + 1 + moved));
                    moved += u64::from(copy.len.bytes());
                    prop_assert_eq!(copy.barrier == Barrier::Sow, moved == bytes);
                }
                prop_assert_eq!(moved, bytes);
            }
            prop_assert!(left.len() >= 16);
            for padding in left {
                prop_assert_eq!((padding.source, padding.len.bytes()), (PAD.into(), 4));
                prop_assert_eq!(padding.destination, padding.source);
            }
        }
    }
}
