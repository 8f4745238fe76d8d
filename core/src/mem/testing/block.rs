//! A block of the heap that stands for device memory, freed with its last user.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use std::boxed::Box;
use std::sync::Arc;

use crate::mem::{DevAddr, Line, Mapped, Slab};

/// The memory behind a [`BlockMemory`].
pub struct Block(Box<[UnsafeCell<Line>]>);

// SAFETY: nothing reads or writes the lines through this type; it only keeps them allocated for the slab, whose users
// follow the rules of mapped memory.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// Mapped memory on the heap.
pub type BlockMemory = Mapped<Slab<Arc<Block>>>;

/// At least `bytes` zeroed bytes that the device sees from `base` on, a multiple of 64.
pub fn block(base: DevAddr, bytes: u64) -> BlockMemory {
    let keep = Arc::new(Block((0..bytes.div_ceil(64)).map(|_| UnsafeCell::new(Line::ZERO)).collect()));
    let bytes = size_of_val(&*keep.0) as u64;
    let start = NonNull::from(&*keep.0).cast();
    // SAFETY: the lines live as long as `keep`, are aligned to 64, and are `UnsafeCell`s that nothing else reaches into.
    Mapped::new(unsafe { Slab::new(start, bytes, base, keep) })
}
