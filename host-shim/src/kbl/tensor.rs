//! Tensors: runs of bytes in device storage.
//!
//! ```text
//!   Tensor ──view──► { storage, offset, size } ──► Storage ──► DeviceBlock
//!   Tensor ──view──► { same storage, … }              a slice is a second tensor
//! ```
//!
//! A tensor carries neither element type nor shape. Clones are the same tensor; [`attach`](Tensor::attach) moves it, with
//! all its clones, onto other storage. Whoever has resolved tensors to addresses notices that by the storage generation,
//! a count over the whole process: it costs one load to see that nothing has moved.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use sluice_core::exec::NrtStatus;
use sluice_core::mem::{DevAddr, Fault};

use crate::device::Device;
use crate::device::heap::{DeviceBlock, Heap, HeapError, UsageTag};

/// How often any tensor of this process was moved onto other storage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct StorageGeneration(u64);

static GENERATION: AtomicU64 = AtomicU64::new(0);

impl StorageGeneration {
    /// Nothing was moved yet.
    const FIRST: Self = Self(0);

    /// The generation now. Read it before the tensors: what is resolved after an attach must not bear the number from
    /// before it.
    pub(super) fn now() -> Self {
        Self(GENERATION.load(Ordering::SeqCst))
    }
}

/// Device memory that tensors are views of. It is freed when the last view and the last execution that uses it are gone.
#[derive(Debug)]
pub(super) struct Storage {
    block: DeviceBlock,
}

/// Where a tensor lies, with what keeps it there.
#[derive(Clone, Debug)]
pub(super) struct View {
    storage: Arc<Storage>,
    offset_bytes: u64,
    size_bytes: u64,
    /// The attach that moved the tensor here; the first generation if none did.
    since: StorageGeneration,
}

impl View {
    pub(super) fn at(&self) -> DevAddr {
        self.storage.block.at().offset(self.offset_bytes)
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(super) fn heap(&self) -> &Heap {
        self.storage.block.heap()
    }

    /// Whether the tensor was not moved between both: not even to the bytes where it was before, or there and back.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
            && (self.offset_bytes, self.size_bytes, self.since)
                == (other.offset_bytes, other.size_bytes, other.since)
    }

    fn on<D: Device>(self, device: &D) -> Result<Self, TensorError> {
        match self.heap().can_be_of(device.driver().device()) {
            true => Ok(self),
            false => Err(TensorError::OtherDevice),
        }
    }

    fn part(&self, offset_bytes: u64, size_bytes: u64) -> Result<Self, TensorError> {
        let inside = offset_bytes.checked_add(size_bytes).is_some_and(|end| end <= self.size_bytes);
        if !inside || size_bytes == 0 {
            return Err(TensorError::Range { offset_bytes, size_bytes, tensor_bytes: self.size_bytes });
        }
        let storage = Arc::clone(&self.storage);
        let offset_bytes = self.offset_bytes + offset_bytes;
        Ok(Self { storage, offset_bytes, size_bytes, since: StorageGeneration::FIRST })
    }
}

/// An operation on a tensor that was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TensorError {
    /// Bytes outside the tensor, or none at all.
    #[error("{size_bytes} bytes at offset {offset_bytes} are not inside a tensor of {tensor_bytes} bytes")]
    Range {
        /// First byte asked for.
        offset_bytes: u64,
        /// Bytes asked for.
        size_bytes: u64,
        /// Length of the tensor.
        tensor_bytes: u64,
    },
    /// No device memory.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// Device memory could not be reached.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Its memory is not that device's.
    #[error("the tensor lies in memory of another device")]
    OtherDevice,
}

impl TensorError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Range { .. } | Self::OtherDevice => NrtStatus::INVALID,
            Self::Heap(error) => error.status(),
            Self::Fault(_) => NrtStatus::FAILURE,
        }
    }
}

/// A run of bytes in device memory. Cheap to clone; clones are the same tensor.
#[derive(Clone, Debug)]
pub struct Tensor {
    view: Arc<RwLock<View>>,
}

impl Tensor {
    /// Tensors start at a multiple of this.
    pub const ALIGN_BYTES: u64 = 64;

    /// A tensor on storage of its own. Its content is whatever was there.
    ///
    /// # Errors
    /// No room in the heap, or no bytes asked for.
    pub fn allocate(heap: &Heap, size_bytes: u64) -> Result<Self, TensorError> {
        Self::allocate_aligned(heap, size_bytes, Self::ALIGN_BYTES)
    }

    /// A tensor on storage of its own that begins at a multiple of `align_bytes` and of
    /// [`ALIGN_BYTES`](Tensor::ALIGN_BYTES).
    ///
    /// # Errors
    /// No room in the heap, no bytes asked for, or an alignment that is not a power of two.
    pub fn allocate_aligned(heap: &Heap, size_bytes: u64, align_bytes: u64) -> Result<Self, TensorError> {
        let align_bytes =
            if align_bytes.is_power_of_two() { align_bytes.max(Self::ALIGN_BYTES) } else { align_bytes };
        let block = heap.alloc(size_bytes, align_bytes, UsageTag::Tensor)?;
        let storage = Arc::new(Storage { block });
        Ok(Self::of(View { storage, offset_bytes: 0, size_bytes, since: StorageGeneration::FIRST }))
    }

    /// A second tensor over part of this one's bytes. It stays where it is when this one is attached elsewhere.
    ///
    /// # Errors
    /// A part that is empty or not inside this tensor.
    pub fn slice(&self, offset_bytes: u64, size_bytes: u64) -> Result<Self, TensorError> {
        Ok(Self::of(self.view().part(offset_bytes, size_bytes)?))
    }

    /// Moves this tensor, and with it every clone and every set that holds one, onto the bytes of `other`. The old bytes
    /// stay for executions that were built with them until these end, and for a set until it is next built with.
    pub fn attach(&self, other: &Self) {
        let mut view = other.view();
        let mut held = self.view.write().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: whoever sees the new generation waits for the view that belongs to it.
        view.since = StorageGeneration(GENERATION.fetch_add(1, Ordering::SeqCst) + 1);
        *held = view;
    }

    /// Where it begins in device memory.
    pub fn at(&self) -> DevAddr {
        self.view().at()
    }

    /// Its length.
    pub fn size_bytes(&self) -> u64 {
        self.view().size_bytes
    }

    /// Copies `bytes` into the tensor from `offset_bytes` on.
    ///
    /// # Errors
    /// Bytes outside the tensor, a device that can't be reached, or another than the one whose unit has the tensor's heap.
    pub fn write<D: Device>(&self, device: &D, offset_bytes: u64, bytes: &[u8]) -> Result<(), TensorError> {
        let part = self.view().part(offset_bytes, bytes.len() as u64)?.on(device)?;
        Ok(device.write(part.at(), bytes)?)
    }

    /// Copies from the tensor, `offset_bytes` on, into `into`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read<D: Device>(&self, device: &D, offset_bytes: u64, into: &mut [u8]) -> Result<(), TensorError> {
        let part = self.view().part(offset_bytes, into.len() as u64)?.on(device)?;
        Ok(device.read(part.at(), into)?)
    }

    /// Where it is now, kept there for as long as the result lives.
    pub(super) fn view(&self) -> View {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn of(view: View) -> Self {
        Self { view: Arc::new(RwLock::new(view)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap() -> Heap {
        Heap::new(DevAddr(0x1_0000), 1 << 20)
    }

    #[test]
    fn a_slice_shares_storage_and_outlives_its_source() {
        let heap = heap();
        let start = heap.usage();
        let whole = Tensor::allocate(&heap, 1000).unwrap();
        let slice = whole.slice(100, 200).unwrap().slice(50, 150).unwrap();
        assert_eq!((slice.at(), slice.size_bytes()), (whole.at().offset(150), 150));
        drop(whole);
        assert_ne!(heap.usage(), start);
        drop(slice);
        assert_eq!(heap.usage(), start);
    }

    #[test]
    fn an_alignment_is_a_power_of_two() {
        let heap = heap();
        for align_bytes in [0, 3, 48, 63, 96] {
            let error = Tensor::allocate_aligned(&heap, 10, align_bytes).unwrap_err();
            assert_eq!(error.to_string(), format!("alignment {align_bytes} of TENSOR is not a power of two"));
            assert_eq!(error.status(), NrtStatus::INVALID);
        }
        for align_bytes in [1, 2, 64, 4096] {
            let tensor = Tensor::allocate_aligned(&heap, 10, align_bytes).unwrap();
            assert!(tensor.at().0.is_multiple_of(align_bytes.max(Tensor::ALIGN_BYTES)));
        }
    }

    #[test]
    fn parts_outside_are_refused_with_numbers() {
        let tensor = Tensor::allocate(&heap(), 64).unwrap();
        for (offset, size) in [(0, 0), (0, 65), (64, 1), (1, u64::MAX)] {
            let error = tensor.slice(offset, size).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{size} bytes at offset {offset} are not inside a tensor of 64 bytes")
            );
        }
        assert!(tensor.slice(63, 1).is_ok());
    }

    #[test]
    fn attach_moves_every_clone_and_frees_the_old_storage() {
        let heap = heap();
        let (a, b) = (Tensor::allocate(&heap, 64).unwrap(), Tensor::allocate(&heap, 128).unwrap());
        let (clone, slice, before) = (a.clone(), a.slice(0, 8).unwrap(), StorageGeneration::now());
        a.attach(&b);
        assert_ne!(StorageGeneration::now(), before);
        assert_eq!((clone.at(), clone.size_bytes()), (b.at(), 128));
        assert_ne!(slice.at(), b.at());
        drop(slice);
        assert_eq!(heap.usage().used_bytes(UsageTag::Tensor), 128);
        a.attach(&clone);
        assert_eq!(a.at(), b.at());
    }
}
