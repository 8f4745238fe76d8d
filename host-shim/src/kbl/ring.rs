//! Descriptor rings of a program's queues.
//!
//! ```text
//!   Template ── all addresses final ──► Ring, written at load
//!      │
//!      └─ some in tensors ─► Bundle: places of its tensors ─► Ring, written when first seen,
//!                                                             kept in an LRU cache once the whole build has succeeded
//! ```
//!
//! A ring is linear: it runs from its start in every execution, because the swap list writes the queue's base anew. It is
//! filled up to its size with copies of 4 bytes onto themselves, and all of it carries the ring id of the first lap.
//! A ring never changes once it is written; executions share it by count.

use std::ops::Deref;
use std::sync::{Arc, PoisonError};

use sluice_core::dma::{Placement, RING_ALIGN_BYTES, RingSize, SwapFull, TemplateError};
use sluice_core::exec::NrtStatus;
use sluice_core::fmap::{Miss, Name, VarId};
use sluice_core::mem::{DevAddr, Fault};
use sluice_core::mmio::{Half, QueueId};

use super::lru::Lru;
use super::sink::Sink;
use super::template::{RingShape, Template};
use crate::device::Device;
use crate::device::heap::{DeviceBlock, Heap, HeapError};
use crate::sync::{Mutex, MutexGuard};

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
    /// A variable that is neither input nor output is looked for among the tensors.
    #[error("{}", Miss::Variable { var: *.0 })]
    NoInputOrOutput(VarId),
    /// An input or output that no tensor is bound to.
    #[error("{}", Miss::Tensor { name: &**.0 })]
    Unbound(Box<Name>),
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
            Self::Fault(_) | Self::NoInputOrOutput(_) | Self::Unbound(_) | Self::Swaps(_) => {
                NrtStatus::FAILURE
            }
        }
    }
}

/// A pair of rings in device memory, ready to run.
#[derive(Debug)]
pub(super) struct Ring {
    used: u32,
    size: RingSize,
    tx: DeviceBlock,
    rx: DeviceBlock,
}

impl Ring {
    /// A ring of `template` in new device memory, for tensors that lie at `place`.
    pub(super) fn new(
        template: &Template,
        sink: &impl Sink,
        heap: &Heap,
        place: impl Fn(VarId) -> Result<Placement, BuildFault>,
    ) -> Result<Self, BuildFault> {
        let RingShape { used, size, .. } = template.shape();
        let half = || heap.alloc(size.bytes(), RING_ALIGN_BYTES, template.tag());
        let ring = Self { used, size, tx: half()?, rx: half()? };
        template.write(sink, [ring.tx.at(), ring.rx.at()], place)?;
        Ok(ring)
    }

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

    /// What it looks like on `queue`, if it depends on no tensor.
    pub(super) fn fixed_shape(&self, queue: QueueId) -> RingShape {
        RingShape { queue, used: self.used, size: self.size, vars: Vec::new() }
    }
}

/// The ring of a bundle for some tensors.
#[derive(Debug)]
pub(super) struct BoundRing {
    /// The addresses of the template's variables, in its order. A ring depends on nothing else.
    bases: Arc<[DevAddr]>,
    ring: Arc<Ring>,
}

impl Deref for BoundRing {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        &self.ring
    }
}

/// A queue whose ring depends on the tensors bound, and the rings kept so far.
#[derive(Debug)]
pub(super) struct Bundle {
    template: Template,
    rings: Mutex<Lru<Arc<[DevAddr]>, Ring>>,
}

impl Bundle {
    /// A bundle that keeps at most `capacity` rings which no execution uses.
    pub(super) fn new(template: Template, capacity: usize) -> Self {
        Self { template, rings: Mutex::new(Lru::new(capacity)) }
    }

    pub(super) fn template(&self) -> &Template {
        &self.template
    }

    /// The ring for tensors that lie at `place`: a kept one, or a new one. What is kept does not change.
    pub(super) fn ring<D: Device>(
        &self,
        device: &D,
        heap: &Heap,
        place: impl Fn(VarId) -> Result<Placement, BuildFault>,
    ) -> Result<BoundRing, BuildFault> {
        let base = |var: VarId| Ok(place(var)?.base);
        let bases = self.template.vars().map(base).collect::<Result<Arc<[DevAddr]>, BuildFault>>()?;
        let kept = self.lock().peek(&*bases);
        let ring = match kept {
            Some(ring) => ring,
            // Written outside the lock.
            None => Arc::new(Ring::new(&self.template, device, heap, place)?),
        };
        Ok(BoundRing { bases, ring })
    }

    /// Keeps a ring of a build that has succeeded, unless another thread was faster; that one and this are used by their
    /// builds then.
    pub(super) fn keep(&self, BoundRing { bases, ring }: &BoundRing) {
        // What is dropped gives device memory back: outside the lock.
        let _gone = self.lock().insert(Arc::clone(bases), Arc::clone(ring));
    }

    fn lock(&self) -> MutexGuard<'_, Lru<Arc<[DevAddr]>, Ring>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::dma::{Barrier, TemplateAddr};

    use super::super::mock::MockDevice;
    use super::super::template::TemplateBuilder;
    use super::*;
    use crate::device::heap::UsageTag;

    const FIXED: DevAddr = DevAddr(0x9000_0000);

    /// One transfer from variable 0 to variable 1.
    fn template(bytes: u64) -> Template {
        let mut builder = TemplateBuilder::new();
        let [from, to] = [0, 1].map(|var| TemplateAddr::new(VarId(var), 0).unwrap());
        builder.transfer(from.into(), to.into(), bytes, Barrier::Sow).unwrap();
        builder.finish(QueueId::new(3).unwrap(), UsageTag::DmaRingIo, FIXED).unwrap().unwrap()
    }

    #[test]
    fn a_variable_that_is_not_bound_is_named_and_nothing_is_kept() {
        let device = MockDevice::new(1);
        let heap = device.heap();
        let bundle = Bundle::new(template(64), 4);
        let start = heap.usage();
        let error = bundle.ring(&*device, &heap, |var| Err(BuildFault::NoInputOrOutput(var))).unwrap_err();
        assert_eq!(error.to_string(), "Failed to find io name for mr 0");
        let short = |_| Ok(Placement { base: FIXED, size_bytes: 63 });
        let error = bundle.ring(&*device, &heap, short).unwrap_err();
        assert_eq!(error.to_string(), "access ends at byte 64 of variable 0, which has 63");
        assert_eq!(heap.usage(), start);
    }

    #[test]
    fn of_the_rings_that_threads_build_for_the_same_tensors_one_is_kept() {
        let device = MockDevice::new(1);
        let heap = device.heap();
        let bundle = Bundle::new(template(1 << 20), 4);
        let place =
            |VarId(var)| Ok(Placement { base: DevAddr(u64::from(1 + var) << 32), size_bytes: 1 << 20 });
        let build = || bundle.ring(&*device, &heap, place).unwrap();
        let rings: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let ring = build();
                        bundle.keep(&ring);
                        ring
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let kept = build();
        assert!(rings.iter().any(|ring| Arc::ptr_eq(&ring.ring, &kept.ring)));
        drop(rings);
        let bytes = 2 * kept.size().bytes();
        assert_eq!(heap.usage().used_bytes(UsageTag::DmaRingIo), bytes);
    }
}
