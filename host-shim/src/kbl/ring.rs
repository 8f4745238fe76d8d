//! Descriptor rings of a program's queues.
//!
//! ```text
//!   Template ── all addresses final ──► Ring, written at load
//!      │
//!      └─ some in tensors ─► Bundle: places of its tensors ─► Ring, written when first seen, kept in an LRU cache
//! ```
//!
//! A ring is linear: it runs from its start in every execution, because the swap list writes the queue's base anew. It is
//! filled up to its size with copies of 4 bytes onto themselves, and all of it carries the ring id of the first lap.
//! A ring never changes once it is written; executions share it by count.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_core::dma::{
    AddrWord, Barrier, Descriptor, Location, MAX_VRING_DESCRIPTORS, Pair, Placement, RING_ALIGN_BYTES,
    RingId, RingIds, RingSize, RxDesc, SwapFull, TemplateError, Transfer, TransferError, TxDesc,
    resolve_desc,
};
use sluice_core::exec::NrtStatus;
use sluice_core::fmap::VarId;
use sluice_core::mem::{DevAddr, Fault};
use sluice_core::mmio::{Half, QueueId};
use zerocopy::IntoBytes;

use super::lru::Lru;
use crate::device::Device;
use crate::device::heap::{DeviceBlock, Heap, HeapError, UsageTag};

/// Descriptors that are resolved between two writes to the device; they stay in the first-level cache.
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
    Transfer(#[from] TransferError),
}

impl TemplateFault {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::DescriptorLimit { .. } | Self::Transfer(TransferError::TooManyDescriptors { .. }) => {
                NrtStatus::QUEUE_FULL
            }
            Self::Transfer(_) => NrtStatus::INVALID,
        }
    }
}

/// A ring or a swap list that can't be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BuildFault {
    /// No memory for it.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// Device memory could not be reached.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A symbolic address leaves its variable.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A symbolic address names a variable that no tensor is bound to.
    #[error("Failed to find io name for mr {0}")]
    Unbound(VarId),
    /// A swap list longer than counted at load.
    #[error(transparent)]
    Swaps(#[from] SwapFull),
}

impl BuildFault {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Heap(_) => NrtStatus::RESOURCE,
            Self::Template(_) => NrtStatus::INVALID,
            Self::Fault(_) | Self::Unbound(_) | Self::Swaps(_) => NrtStatus::FAILURE,
        }
    }
}

/// Descriptors of one queue, addresses in tensors still symbolic.
#[derive(Debug)]
pub(super) struct Template {
    queue: QueueId,
    tag: UsageTag,
    size: RingSize,
    tx: Box<[TxDesc]>,
    rx: Box<[RxDesc]>,
    /// The variables it names, in order of their first use.
    vars: Box<[VarId]>,
}

/// Collects the transfers of one queue.
#[derive(Debug, Default)]
pub(super) struct TemplateBuilder {
    tx: Vec<TxDesc>,
    rx: Vec<RxDesc>,
    vars: Vec<VarId>,
}

impl TemplateBuilder {
    /// Appends a transfer of `bytes`, cut into pairs; `barrier` applies to the last of them.
    pub(super) fn transfer(
        &mut self,
        source: AddrWord,
        destination: AddrWord,
        bytes: u64,
        barrier: Barrier,
    ) -> Result<(), TemplateFault> {
        let transfer = Transfer::new(source, destination, bytes, barrier, false)?;
        let descriptors = self.tx.len() as u64 + u64::from(transfer.descriptors());
        if descriptors > u64::from(MAX_VRING_DESCRIPTORS) {
            return Err(TemplateFault::DescriptorLimit { descriptors });
        }
        for address in [source, destination] {
            if let Ok(Location::Symbolic(symbolic)) = address.locate()
                && !self.vars.contains(&symbolic.var())
            {
                self.vars.push(symbolic.var());
            }
        }
        let ids = RingIds { tx: RingId::FIRST, rx: RingId::FIRST };
        for copy in transfer.chunks() {
            let pair = Pair::encode(copy, ids);
            self.tx.push(pair.tx);
            self.rx.push(pair.rx);
        }
        Ok(())
    }

    /// Ends the template; `None` if it has no transfer. `pad` is a word of device memory that padding copies onto itself.
    pub(super) fn finish(
        mut self,
        queue: QueueId,
        tag: UsageTag,
        pad: DevAddr,
    ) -> Result<Option<Template>, TemplateFault> {
        let descriptors = self.tx.len() as u64;
        if descriptors == 0 {
            return Ok(None);
        }
        let limit = TemplateFault::DescriptorLimit { descriptors };
        let size = RingSize::linear(self.tx.len() as u32).map_err(|_| limit)?;
        let mut padding = Pair::padding(pad.into());
        padding.tx.stamp(RingId::FIRST);
        padding.rx.stamp(RingId::FIRST);
        self.tx.resize(size.descriptors() as usize, padding.tx);
        self.rx.resize(size.descriptors() as usize, padding.rx);
        Ok(Some(Template {
            queue,
            tag,
            size,
            tx: self.tx.into(),
            rx: self.rx.into(),
            vars: self.vars.into(),
        }))
    }
}

impl Template {
    /// Whether it names variables that are bound per execution.
    pub(super) fn is_dynamic(&self) -> bool {
        !self.vars.is_empty()
    }

    /// The queue that runs it.
    pub(super) fn queue(&self) -> QueueId {
        self.queue
    }

    /// Writes both halves, resolved by `place`, to new device memory.
    pub(super) fn write<D: Device>(
        &self,
        device: &D,
        heap: &Heap,
        place: impl Fn(VarId) -> Option<Placement>,
    ) -> Result<Ring, BuildFault> {
        let half = || heap.alloc(self.size.bytes(), RING_ALIGN_BYTES, self.tag);
        let ring = Ring { size: self.size, tx: half()?, rx: half()? };
        write_half(device, &self.tx, ring.tx.at(), &place)?;
        write_half(device, &self.rx, ring.rx.at(), &place)?;
        Ok(ring)
    }
}

fn write_half<D: Device, T: Descriptor>(
    device: &D,
    template: &[T],
    at: DevAddr,
    place: &impl Fn(VarId) -> Option<Placement>,
) -> Result<(), BuildFault> {
    let mut resolved: Vec<T> = Vec::with_capacity(BATCH.min(template.len()));
    let mut at = at;
    for batch in template.chunks(BATCH) {
        resolved.clear();
        resolved.extend_from_slice(batch);
        for desc in &mut resolved {
            resolve_desc(desc, |var| place(var).ok_or(BuildFault::Unbound(var)))?;
        }
        let bytes = resolved.as_bytes();
        device.write(at, bytes)?;
        at = at.offset(bytes.len() as u64);
    }
    Ok(())
}

/// A pair of rings in device memory, ready to run.
#[derive(Debug)]
pub(super) struct Ring {
    size: RingSize,
    tx: DeviceBlock,
    rx: DeviceBlock,
}

impl Ring {
    /// Address of one half.
    pub(super) fn base(&self, half: Half) -> DevAddr {
        match half {
            Half::Tx => self.tx.at(),
            Half::Rx => self.rx.at(),
        }
    }

    /// Slots per half.
    pub(super) fn size(&self) -> RingSize {
        self.size
    }
}

/// A queue whose ring depends on the tensors bound, and the rings made so far.
#[derive(Debug)]
pub(super) struct Bundle {
    template: Template,
    /// By the addresses of the template's variables, in its order. A ring depends on nothing else.
    rings: Mutex<Lru<Box<[DevAddr]>, Ring>>,
}

impl Bundle {
    /// A bundle that keeps at most `capacity` rings which no execution uses.
    pub(super) fn new(template: Template, capacity: usize) -> Self {
        Self { template, rings: Mutex::new(Lru::new(capacity)) }
    }

    pub(super) fn template(&self) -> &Template {
        &self.template
    }

    /// The ring for tensors that lie at `place`: a kept one, or a new one.
    pub(super) fn ring<D: Device>(
        &self,
        device: &D,
        heap: &Heap,
        place: impl Fn(VarId) -> Option<Placement>,
    ) -> Result<Arc<Ring>, BuildFault> {
        let base = |&var: &VarId| Ok(place(var).ok_or(BuildFault::Unbound(var))?.base);
        let key = self.template.vars.iter().map(base).collect::<Result<Box<[DevAddr]>, BuildFault>>()?;
        if let Some(ring) = self.lock().get(&*key) {
            return Ok(ring);
        }
        // Written outside the lock; if another thread was faster, its ring is used and this one dropped.
        let ring = Arc::new(self.template.write(device, heap, place)?);
        Ok(self.lock().insert(key, ring))
    }

    fn lock(&self) -> MutexGuard<'_, Lru<Box<[DevAddr]>, Ring>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluice_core::dma::{Position, TemplateAddr};
    use zerocopy::FromBytes;

    use super::super::mock::MockDevice;
    use super::*;

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
        let mut builder = TemplateBuilder::default();
        for &(from, to, offset, bytes) in plan {
            builder.transfer(word(from, offset), word(to, offset + 1), bytes, Barrier::Sow).unwrap();
        }
        builder.finish(QueueId::new(3).unwrap(), UsageTag::DmaRingIo, PAD).unwrap().unwrap()
    }

    /// The copies that a ring asks for, checked as a device would.
    fn copies(device: &MockDevice, ring: &Ring) -> Vec<sluice_core::dma::CopySpec> {
        let mut at = [Position::start(ring.size()), Position::start(ring.size())];
        let read = |half, index: u32, bytes: &mut [u8]| {
            device.read(ring.base(half).offset(16 * u64::from(index)), bytes).unwrap();
        };
        let pairs = (0..ring.size().descriptors()).map(|index| {
            let (mut tx, mut rx) = ([0; 16], [0; 16]);
            read(Half::Tx, index, &mut tx);
            read(Half::Rx, index, &mut rx);
            let pair =
                Pair { tx: TxDesc::read_from_bytes(&tx).unwrap(), rx: RxDesc::read_from_bytes(&rx).unwrap() };
            assert_eq!(at[0].accept(pair.tx.ring_id()).unwrap().index, index);
            assert_eq!(at[1].accept(pair.rx.ring_id()).unwrap().index, index);
            pair.decode().unwrap()
        });
        pairs.collect()
    }

    fn places(bases: [u64; 3]) -> impl Fn(VarId) -> Option<Placement> {
        move |VarId(var)| {
            let base = DevAddr(*bases.get(var as usize)?);
            Some(Placement { base, size_bytes: 1 << 30 })
        }
    }

    #[test]
    fn a_queue_without_transfers_has_no_ring() {
        let finished = TemplateBuilder::default().finish(QueueId::PROLOGUE, UsageTag::DmaRing, PAD);
        assert!(finished.unwrap().is_none());
    }

    #[test]
    fn a_queue_with_too_many_descriptors_is_refused() {
        let mut builder = TemplateBuilder::default();
        let limit = u64::from(MAX_VRING_DESCRIPTORS);
        let mut append = |bytes| builder.transfer(word(None, 0), word(None, 0), bytes, Barrier::None);
        assert_eq!(append((limit << 16) + 1).unwrap_err().status(), NrtStatus::QUEUE_FULL);
        append(1).unwrap();
        let error = append(limit << 16).unwrap_err();
        assert_eq!(error, TemplateFault::DescriptorLimit { descriptors: limit + 1 });
        assert_eq!(error.status(), NrtStatus::QUEUE_FULL);
    }

    #[test]
    fn a_variable_that_is_not_bound_is_named_and_nothing_is_kept() {
        let device = MockDevice::new(1);
        let heap = device.heap();
        let bundle = Bundle::new(template(&[(Some(2), None, 0, 64)]), 4);
        let start = heap.usage();
        let error = bundle.ring(&*device, &heap, |_| None).unwrap_err();
        assert_eq!(error.to_string(), "Failed to find io name for mr 2");
        let short = |_| Some(Placement { base: FIXED, size_bytes: 63 });
        let error = bundle.ring(&*device, &heap, short).unwrap_err();
        assert_eq!(error.to_string(), "access ends at byte 64 of variable 2, which has 63");
        assert_eq!(heap.usage(), start);
    }

    #[test]
    fn threads_that_build_the_same_ring_share_one() {
        let device = MockDevice::new(1);
        let heap = device.heap();
        let bundle = Bundle::new(template(&[(Some(0), Some(1), 0, 1 << 20)]), 4);
        let place = places([1 << 32, 2 << 32, 3 << 32]);
        let rings: Vec<_> = std::thread::scope(|scope| {
            let build = || bundle.ring(&*device, &heap, &place).unwrap();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(build)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(rings.iter().all(|ring| Arc::ptr_eq(ring, &rings[0])));
        let bytes = 2 * rings[0].size().bytes();
        assert_eq!(heap.usage().used_bytes(UsageTag::DmaRingIo), bytes);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_ring_is_its_template_with_addresses(
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
            let ring = template.write(&*device, &device.heap(), places(bases)).unwrap();
            let place = |var: Option<u32>, offset| {
                AddrWord(var.map_or(FIXED.0, |var| bases[var as usize]) + offset)
            };
            let copies = copies(&device, &ring);
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
