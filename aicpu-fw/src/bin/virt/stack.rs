//! Stacks of processors, each with nothing mapped below it: one that overflows faults, and is named.
//!
//! ```text
//!   0x1_0000_0000 + 4 MiB × processor
//!        ├── 2 MiB, not mapped ──┼── 2 MiB, stack ──┤      = 0x40E0_0000 + 2 MiB × processor of memory
//! ```
//!
//! Services run on the processor's thread stack pointer; exceptions are taken on the other one, which still points into the
//! small stack that the processor started on. So there is a stack left to tell of an overflow.
//!
//! A stack is painted before it is used. What is not paint any more was in use; that is looked for once a second.
#![allow(
    unsafe_code,
    reason = "stacks are painted, looked at and switched to, and the page table names them"
)]

use core::arch::asm;
use core::cell::Cell;

use aarch64_rt::enable_mmu;
use sluice_core::exec::vitals::StackUse;

use super::cpu;
use super::machine::MOST;

/// Memory of the stacks, as `memory.ld` keeps it free.
const MEMORY: usize = 0x40E0_0000;
/// Where processors see them.
const SEEN: usize = 4 << 30;
const STACK_BYTES: usize = 2 << 20;
/// A stack and what is below it.
const SLOT_BYTES: usize = 2 * STACK_BYTES;

/// What nobody stores.
const PAINT: u64 = 0x5AFE_C0DE_5AFE_C0DE;

/// Valid, a block, accessed; memory outer and inner write-back, inner shareable.
const NORMAL: usize = 0b01 | 1 << 2 | 0b11 << 8 | 1 << 10;
/// Valid, a block, accessed, never executed.
const DEVICE: usize = 0b01 | 1 << 10 | NEVER_EXECUTED;
const NEVER_EXECUTED: usize = 1 << 54;
/// Valid, the next table.
const TABLE: usize = 0b11;
const GIB: usize = 1 << 30;

/// Entries that are numbers or addresses of tables with a number added.
#[repr(C, align(4096))]
struct Table([*const u8; 512]);

// SAFETY: a table is only ever read.
unsafe impl Sync for Table {}

const NONE: *const u8 = core::ptr::null();

const fn entry(value: usize) -> *const u8 {
    NONE.wrapping_add(value)
}

/// Of the whole address space, a gibibyte an entry.
static ROOT: Table = {
    let mut table = [NONE; 512];
    table[0] = entry(DEVICE);
    table[1] = entry(NORMAL | GIB);
    table[2] = entry(NORMAL | (2 * GIB));
    table[3] = entry(NORMAL | (3 * GIB));
    table[SEEN / GIB] = (&raw const STACKS).cast::<u8>().wrapping_add(TABLE);
    Table(table)
};

/// Of the stacks, two mebibytes an entry.
static STACKS: Table = {
    let mut table = [NONE; 512];
    let mut processor = 0;
    while processor < MOST {
        table[2 * processor + 1] = entry(NORMAL | NEVER_EXECUTED | (MEMORY + processor * STACK_BYTES));
        processor += 1;
    }
    Table(table)
};

enable_mmu!(ROOT);

/// The stack of a processor, as that processor looks at it.
pub(crate) struct Stack {
    bottom: *const u64,
    /// Lowest word that is known to have been in use.
    lowest: Cell<usize>,
    /// When it is looked at next.
    due_cycles: Cell<u64>,
}

const WORDS: usize = STACK_BYTES / 8;

fn bottom_of(processor: u32) -> *mut u64 {
    (SEEN + processor as usize * SLOT_BYTES + STACK_BYTES) as *mut u64
}

impl Stack {
    /// That of `processor`, less than [`MOST`], which calls and runs on it.
    pub(crate) fn of(processor: u32) -> Self {
        let pointer: usize;
        // SAFETY: reads the stack pointer.
        unsafe { asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack, preserves_flags)) }
        let bottom = bottom_of(processor);
        let lowest = (pointer - bottom as usize) / 8;
        Self { bottom, lowest: Cell::new(lowest.min(WORDS)), due_cycles: Cell::new(0) }
    }

    /// Looks at the stack if it has not within the last second, and says what is known.
    pub(crate) fn look(&self) -> StackUse {
        let now_cycles = cpu::now_cycles();
        if now_cycles >= self.due_cycles.get() {
            self.due_cycles.set(now_cycles + cpu::frequency_hz());
            let used = (0..self.lowest.get()).find(|&word| {
                // SAFETY: a load inside the stack of the calling processor, below everything that is in use now: no other
                // access to it is under way.
                unsafe { self.bottom.add(word).read_volatile() != PAINT }
            });
            self.lowest.set(used.unwrap_or(self.lowest.get()));
        }
        StackUse { bytes: STACK_BYTES as u32, used_bytes: ((WORDS - self.lowest.get()) * 8) as u32 }
    }
}

/// Has the calling processor, which is number `processor`, run `run` on its stack for ever.
pub(crate) fn run_on(processor: u32, run: extern "C" fn(u64) -> !) -> ! {
    assert!((processor as usize) < MOST, "there is no stack for processor {processor}");
    let bottom = bottom_of(processor);
    for word in 0..WORDS {
        // SAFETY: a store inside the processor's own stack, on which nobody runs yet.
        unsafe { bottom.add(word).write_volatile(PAINT) };
    }
    let top = bottom.wrapping_add(WORDS);
    // SAFETY: the page table maps the stack below `top`, and only this processor uses it. The stack that the processor is on
    // is left as it is, for exceptions; nothing ever returns to it.
    unsafe {
        asm!("msr spsel, #0", "mov sp, {}", "mov x29, xzr", "mov x30, xzr", "br {}",
            in(reg) top, in(reg) run, in("x0") u64::from(processor), options(noreturn));
    }
}

/// Whose stack has overflowed, if an access of `address` says so.
pub(crate) fn overflowed_at(address: u64) -> Option<usize> {
    let offset = usize::try_from(address).ok()?.checked_sub(SEEN)?;
    let (processor, inside) = (offset / SLOT_BYTES, offset % SLOT_BYTES);
    (processor < MOST && inside < STACK_BYTES).then_some(processor)
}

/// Calls itself until the stack is used up.
#[cfg(feature = "virt-overflow")]
pub(crate) fn overflow(depth: u64) -> u64 {
    let words = core::hint::black_box([depth; 64]);
    let deeper = if words[0] == u64::MAX { 0 } else { overflow(depth + 1) };
    deeper + core::hint::black_box(words)[1]
}
