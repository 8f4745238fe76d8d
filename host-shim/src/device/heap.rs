//! Device memory: one range handed out in blocks, each accounted under a usage tag.
//!
//! ```text
//! base                                                          base + bytes
//!  ├─ WEIGHT ─┼┄ free ┄┼─ DMA_RING ─┼─ TENSOR ─┼┄┄┄┄ free ┄┄┄┄┄┄┄┤
//! ```
//!
//! The heap knows addresses only: it never touches the memory, so a block of gigabytes costs what a block of 64 bytes
//! costs. A [`DeviceBlock`] gives its range back when it is dropped; neighbouring free ranges merge at once, so a heap
//! whose blocks are all gone is one free range again. Address 0 is never handed out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sluice_core::exec::NrtStatus;
use sluice_core::mem::DevAddr;

use super::claim::DeviceId;
use super::process::{Forked, Process};

/// What device memory is used for. Numbers and names are those of the runtime's own accounting (KBL facts).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum UsageTag {
    /// Anything without a tag of its own.
    Generic = 0,
    /// Instructions of the matrix engine.
    InstrPe = 1,
    /// Instructions of the activation engine.
    InstrAct = 2,
    /// Instructions of the pooling engine.
    InstrPool = 3,
    /// Input and output buffers that the runtime itself allocates.
    Io = 4,
    /// Spilled variables.
    DramSpill = 5,
    /// File-backed constants.
    Weight = 6,
    /// Notification queues.
    Notification = 7,
    /// Activation tables.
    ActTable = 8,
    /// Instructions of the vector engine.
    InstrDve = 9,
    /// Instructions of the synchronisation engine.
    InstrSp = 10,
    /// Scratchpad that several programs share.
    Scratchpad = 11,
    /// Tensors of the caller.
    Tensor = 12,
    /// Microcode libraries.
    UcodeLib = 13,
    /// Standard output of the pooling engine.
    PoolStdio = 14,
    /// Collectives.
    Cc = 15,
    /// Scratchpad of one program.
    ScratchpadNotShared = 16,
    /// Collectives across devices.
    XtCc = 17,
    /// Descriptor rings without a tag of their own.
    DmaRing = 18,
    /// Descriptor rings of data queues.
    DmaRingSpill = 19,
    /// Descriptor rings of input and output queues.
    DmaRingIo = 20,
    /// Descriptor rings of collectives.
    DmaRingCollectives = 21,
}

impl UsageTag {
    /// Every tag, in the order of the numbers.
    pub const ALL: [Self; 22] = [
        Self::Generic,
        Self::InstrPe,
        Self::InstrAct,
        Self::InstrPool,
        Self::Io,
        Self::DramSpill,
        Self::Weight,
        Self::Notification,
        Self::ActTable,
        Self::InstrDve,
        Self::InstrSp,
        Self::Scratchpad,
        Self::Tensor,
        Self::UcodeLib,
        Self::PoolStdio,
        Self::Cc,
        Self::ScratchpadNotShared,
        Self::XtCc,
        Self::DmaRing,
        Self::DmaRingSpill,
        Self::DmaRingIo,
        Self::DmaRingCollectives,
    ];

    /// The tag's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Generic => "GENERIC",
            Self::InstrPe => "INSTR_PE",
            Self::InstrAct => "INSTR_ACT",
            Self::InstrPool => "INSTR_POOL",
            Self::Io => "IO",
            Self::DramSpill => "DRAM_SPILL",
            Self::Weight => "WEIGHT",
            Self::Notification => "NOTIFICATION",
            Self::ActTable => "ACT_TABLE",
            Self::InstrDve => "INSTR_DVE",
            Self::InstrSp => "INSTR_SP",
            Self::Scratchpad => "SCRATCHPAD",
            Self::Tensor => "TENSOR",
            Self::UcodeLib => "UCODE_LIB",
            Self::PoolStdio => "POOL_STDIO",
            Self::Cc => "CC",
            Self::ScratchpadNotShared => "SCRATCHPAD_NOT_SHARED",
            Self::XtCc => "XT_CC",
            Self::DmaRing => "DMA_RING",
            Self::DmaRingSpill => "DMA_RING_SPILL",
            Self::DmaRingIo => "DMA_RING_IO",
            Self::DmaRingCollectives => "DMA_RING_COLLECTIVES",
        }
    }
}

/// How a heap is used at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapUsage {
    /// Bytes that can be handed out at all.
    pub total_bytes: u64,
    /// Bytes not handed out.
    pub free_bytes: u64,
    /// Longest run of free bytes.
    pub largest_free_bytes: u64,
    used_bytes: [u64; UsageTag::ALL.len()],
}

impl HeapUsage {
    /// Bytes in blocks of that tag, rounding included.
    pub fn used_bytes(&self, tag: UsageTag) -> u64 {
        self.used_bytes[tag as usize]
    }

    /// The tags in use and their bytes.
    pub fn by_tag(&self) -> impl Iterator<Item = (UsageTag, u64)> + '_ {
        UsageTag::ALL.into_iter().map(|tag| (tag, self.used_bytes(tag))).filter(|&(_, bytes)| bytes > 0)
    }
}

impl fmt::Display for HeapUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total_bytes, free_bytes, largest_free_bytes, .. } = self;
        write!(f, "{free_bytes} of {total_bytes} bytes free, longest run {largest_free_bytes}")?;
        for (index, (tag, bytes)) in self.by_tag().enumerate() {
            let lead = if index == 0 { "; used: " } else { ", " };
            write!(f, "{lead}{} {bytes}", tag.name())?;
        }
        Ok(())
    }
}

/// A block that can't be handed out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeapError {
    /// No run of free bytes is long enough.
    #[error("no room for {bytes} bytes of {} aligned to {align_bytes}: {usage}", tag.name())]
    Exhausted {
        /// Bytes asked for.
        bytes: u64,
        /// Alignment asked for.
        align_bytes: u64,
        /// What they were for.
        tag: UsageTag,
        /// The heap at that moment.
        usage: Box<HeapUsage>,
    },
    /// A block has at least one byte.
    #[error("a block of 0 bytes of {}", tag.name())]
    Empty {
        /// What it was for.
        tag: UsageTag,
    },
    /// Alignments are powers of two.
    #[error("alignment {align_bytes} of {} is not a power of two", tag.name())]
    Alignment {
        /// Alignment asked for.
        align_bytes: u64,
        /// What it was for.
        tag: UsageTag,
    },
    /// The memory is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl HeapError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Exhausted { .. } => NrtStatus::RESOURCE,
            Self::Empty { .. } | Self::Alignment { .. } => NrtStatus::INVALID,
            Self::Forked(_) => NrtStatus::FAILURE,
        }
    }
}

/// Bytes that went over a heap's counter, rounded as blocks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeapTotals {
    /// Handed out, those taken back included.
    pub handed_out_bytes: u64,
    /// Taken back.
    pub taken_back_bytes: u64,
}

/// Device memory that is handed out in blocks. Cheap to clone; all clones are the same heap.
#[derive(Clone, Debug)]
pub struct Heap {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    process: Process,
    device: OnceLock<DeviceId>,
    total_bytes: u64,
    handed_out_bytes: AtomicU64,
    taken_back_bytes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Start → length; no two ranges touch.
    free: BTreeMap<u64, u64>,
    used_bytes: [u64; UsageTag::ALL.len()],
    /// Blocks handed out before the one that is refused.
    #[cfg(test)]
    until_refusal: Option<u32>,
}

impl Heap {
    /// Sizes are rounded up to this, and every block starts at a multiple of it.
    pub const GRANULE_BYTES: u64 = 64;

    /// A heap over the `bytes` bytes from `base`; what does not fill a granule at either end stays unused.
    pub fn new(base: DevAddr, bytes: u64) -> Self {
        let end = base.0.saturating_add(bytes) / Self::GRANULE_BYTES * Self::GRANULE_BYTES;
        let start = base.0.max(1).checked_next_multiple_of(Self::GRANULE_BYTES).unwrap_or(end).min(end);
        let mut free = BTreeMap::new();
        if start < end {
            free.insert(start, end - start);
        }
        let state = State {
            free,
            used_bytes: [0; UsageTag::ALL.len()],
            #[cfg(test)]
            until_refusal: None,
        };
        Self {
            shared: Arc::new(Shared {
                process: Process::this(),
                device: OnceLock::new(),
                total_bytes: end - start,
                handed_out_bytes: AtomicU64::new(0),
                taken_back_bytes: AtomicU64::new(0),
                state: Mutex::new(state),
            }),
        }
    }

    /// A block of `bytes` bytes whose address is a multiple of `align_bytes`. Its content is whatever was there.
    ///
    /// # Errors
    /// No room, no bytes, an alignment that is not a power of two, or a heap of the process that this one is a fork of.
    pub fn alloc(&self, bytes: u64, align_bytes: u64, tag: UsageTag) -> Result<DeviceBlock, HeapError> {
        if bytes == 0 {
            return Err(HeapError::Empty { tag });
        }
        if !align_bytes.is_power_of_two() {
            return Err(HeapError::Alignment { align_bytes, tag });
        }
        self.shared.process.check()?;
        let mut state = self.shared.lock();
        let found = bytes.checked_next_multiple_of(Self::GRANULE_BYTES).and_then(|rounded| {
            Some((state.first_fit(rounded, align_bytes.max(Self::GRANULE_BYTES))?, rounded))
        });
        #[cfg(test)]
        let found = found.filter(|_| !state.refuses());
        let Some((start, rounded)) = found else {
            let usage = Box::new(self.shared.usage(&state));
            return Err(HeapError::Exhausted { bytes, align_bytes, tag, usage });
        };
        state.take(start, rounded);
        state.used_bytes[tag as usize] += rounded;
        self.shared.handed_out_bytes.fetch_add(rounded, Ordering::Release);
        Ok(DeviceBlock { heap: self.clone(), at: DevAddr(start), bytes, rounded_bytes: rounded, tag })
    }

    /// Hands out `blocks` blocks more, then refuses one, as if there were no room; `None` refuses none. Returns what was left
    /// of an earlier call: `None` if the refusal has happened.
    #[cfg(test)]
    pub(crate) fn refuse_after(&self, blocks: Option<u32>) -> Option<u32> {
        std::mem::replace(&mut self.shared.lock().until_refusal, blocks)
    }

    /// Whether it can be memory of that device: of no other that it was given to.
    pub(crate) fn can_be_of(&self, device: DeviceId) -> bool {
        self.shared.device.get().is_none_or(|known| *known == device)
    }

    /// Gives it to a device for good, if it can be of that one.
    pub(crate) fn give_to(&self, device: DeviceId) -> bool {
        *self.shared.device.get_or_init(|| device) == device
    }

    /// Whether both are the same heap.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Does something while it holds the lock.
    #[cfg(test)]
    pub(crate) fn locked<T>(&self, run: impl FnOnce() -> T) -> T {
        let _state = self.shared.lock();
        run()
    }

    /// What it has handed out and taken back since it was made. Takes no lock.
    pub fn totals(&self) -> HeapTotals {
        // In this order, so that no more was taken back than handed out.
        let taken_back_bytes = self.shared.taken_back_bytes.load(Ordering::Acquire);
        HeapTotals {
            taken_back_bytes,
            handed_out_bytes: self.shared.handed_out_bytes.load(Ordering::Acquire),
        }
    }

    /// How the heap is used now.
    pub fn usage(&self) -> HeapUsage {
        self.shared.usage(&self.shared.lock())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usage(&self, state: &State) -> HeapUsage {
        HeapUsage {
            total_bytes: self.total_bytes,
            free_bytes: state.free.values().sum(),
            largest_free_bytes: state.free.values().copied().max().unwrap_or(0),
            used_bytes: state.used_bytes,
        }
    }
}

impl State {
    /// Whether the block that is asked for is the one to refuse.
    #[cfg(test)]
    fn refuses(&mut self) -> bool {
        let Some(left) = self.until_refusal else { return false };
        self.until_refusal = left.checked_sub(1);
        left == 0
    }

    /// The lowest aligned address from which `bytes` bytes are free.
    fn first_fit(&self, bytes: u64, align_bytes: u64) -> Option<u64> {
        self.free.iter().find_map(|(&start, &len)| {
            let aligned = start.checked_next_multiple_of(align_bytes)?;
            let end = aligned.checked_add(bytes)?;
            (end <= start + len).then_some(aligned)
        })
    }

    /// Cuts a range that [`first_fit`](State::first_fit) found out of the free range around it.
    fn take(&mut self, start: u64, bytes: u64) {
        let Some((&around, &len)) = self.free.range(..=start).next_back() else { return };
        self.free.remove(&around);
        if around < start {
            self.free.insert(around, start - around);
        }
        let (end, around_end) = (start + bytes, around + len);
        if end < around_end {
            self.free.insert(end, around_end - end);
        }
    }

    fn give_back(&mut self, start: u64, bytes: u64) {
        let (mut start, mut bytes) = (start, bytes);
        if let Some(behind) = self.free.remove(&(start + bytes)) {
            bytes += behind;
        }
        if let Some((&before, &len)) = self.free.range(..start).next_back()
            && before + len == start
        {
            start = before;
            bytes += len;
        }
        self.free.insert(start, bytes);
    }
}

/// A block of device memory. Dropping it gives the memory back, but not in a fork of the process that made the heap.
#[derive(Debug)]
pub struct DeviceBlock {
    heap: Heap,
    at: DevAddr,
    bytes: u64,
    rounded_bytes: u64,
    tag: UsageTag,
}

impl DeviceBlock {
    /// Where it begins.
    pub fn at(&self) -> DevAddr {
        self.at
    }

    /// Bytes asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it is for.
    pub fn tag(&self) -> UsageTag {
        self.tag
    }

    /// The heap that it goes back to.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        // In a fork the memory is still its parent's, and the lock may be a thread's that is not there.
        if !self.heap.shared.process.is_this() {
            return;
        }
        let mut state = self.heap.shared.lock();
        state.used_bytes[self.tag as usize] -= self.rounded_bytes;
        self.heap.shared.taken_back_bytes.fetch_add(self.rounded_bytes, Ordering::Release);
        state.give_back(self.at.0, self.rounded_bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn numbers_of_the_tags_are_their_places() {
        for (number, tag) in UsageTag::ALL.into_iter().enumerate() {
            assert_eq!(tag as usize, number);
        }
        assert_eq!(UsageTag::ScratchpadNotShared as u8, 16);
        assert_eq!(UsageTag::DmaRingIo.name(), "DMA_RING_IO");
    }

    #[test]
    fn gigabytes_are_handed_out_and_merge_again() {
        let heap = Heap::new(DevAddr(0x10_0000_0000), 64 * GIB);
        let start = heap.usage();
        let large = heap.alloc(4 * GIB + 1, 4096, UsageTag::Tensor).unwrap();
        let small = heap.alloc(8, 8, UsageTag::Io).unwrap();
        assert!(large.at().0.is_multiple_of(4096));
        assert_eq!(heap.usage().used_bytes(UsageTag::Tensor), 4 * GIB + 64);
        drop(large);
        assert_eq!(heap.usage().largest_free_bytes, 60 * GIB - 128);
        drop(small);
        assert_eq!(heap.usage(), start);
    }

    #[test]
    fn totals_only_grow_and_differ_by_what_is_used() {
        let heap = Heap::new(DevAddr(0x1000), 4096);
        let of = |handed_out_bytes, taken_back_bytes| HeapTotals { handed_out_bytes, taken_back_bytes };
        let block = heap.alloc(1, 1, UsageTag::Tensor).unwrap();
        assert_eq!(heap.totals(), of(64, 0));
        drop(block);
        assert!(heap.alloc(8192, 1, UsageTag::Tensor).is_err());
        let _ring = heap.alloc(128, 1, UsageTag::DmaRing).unwrap();
        assert_eq!(heap.totals(), of(192, 64));
    }

    #[test]
    fn address_zero_is_never_handed_out() {
        let heap = Heap::new(DevAddr(0), 128);
        assert_eq!(heap.alloc(1, 1, UsageTag::Generic).unwrap().at(), DevAddr(64));
        assert_eq!(heap.usage().total_bytes, 64);
    }

    #[test]
    fn a_range_without_a_whole_granule_has_no_bytes() {
        for (base, bytes) in [(0, 0), (0, 63), (u64::MAX - 3, 100), (65, 60)] {
            assert_eq!(
                Heap::new(DevAddr(base), bytes).usage().total_bytes,
                0,
                "{bytes} bytes from {base:#x}"
            );
        }
    }

    #[test]
    fn refusal_names_what_was_asked_and_what_is_used() {
        let heap = Heap::new(DevAddr(0x1000), 4096);
        let _weights = heap.alloc(1000, 1, UsageTag::Weight).unwrap();
        let _ring = heap.alloc(1024, 256, UsageTag::DmaRing).unwrap();
        let error = heap.alloc(65536, 64, UsageTag::Tensor).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no room for 65536 bytes of TENSOR aligned to 64: 2048 of 4096 bytes free, longest run 2048; \
             used: WEIGHT 1024, DMA_RING 1024"
        );
        assert!(matches!(heap.alloc(u64::MAX, 1, UsageTag::Tensor), Err(HeapError::Exhausted { .. })));
        assert_eq!(heap.alloc(0, 1, UsageTag::Io).unwrap_err(), HeapError::Empty { tag: UsageTag::Io });
        assert!(matches!(heap.alloc(1, 48, UsageTag::Io), Err(HeapError::Alignment { align_bytes: 48, .. })));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Alloc { bytes: u64, align_shift: u32, tag: usize },
        Free { which: prop::sample::Index },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1u64..5000, 0u32..13, 0..UsageTag::ALL.len())
                .prop_map(|(bytes, align_shift, tag)| Step::Alloc { bytes, align_shift, tag }),
            any::<prop::sample::Index>().prop_map(|which| Step::Free { which }),
        ]
    }

    proptest! {
        #[test]
        fn live_blocks_are_apart_and_everything_comes_back(
            base in 0u64..10_000,
            steps in prop::collection::vec(step(), 1..200),
        ) {
            const BYTES: u64 = 1 << 17;
            let heap = Heap::new(DevAddr(base), BYTES);
            let start = heap.usage();
            let mut live: Vec<DeviceBlock> = Vec::new();
            for step in steps {
                match step {
                    Step::Alloc { bytes, align_shift, tag } => {
                        let tag = UsageTag::ALL[tag];
                        let Ok(block) = heap.alloc(bytes, 1 << align_shift, tag) else { continue };
                        let (at, end) = (block.at().0, block.at().0 + bytes);
                        prop_assert!(at.is_multiple_of(1 << align_shift) && at >= base.max(1) && end <= base + BYTES);
                        for other in &live {
                            prop_assert!(end <= other.at().0 || other.at().0 + other.bytes() <= at);
                        }
                        live.push(block);
                    }
                    Step::Free { which } if !live.is_empty() => drop(live.swap_remove(which.index(live.len()))),
                    Step::Free { .. } => {}
                }
                let usage = heap.usage();
                let used: u64 = usage.by_tag().map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(used + usage.free_bytes, usage.total_bytes);
                for tag in UsageTag::ALL {
                    let asked: u64 = live.iter().filter(|block| block.tag() == tag).map(DeviceBlock::bytes).sum();
                    prop_assert!(usage.used_bytes(tag) >= asked);
                }
            }
            drop(live);
            prop_assert_eq!(heap.usage(), start);
        }
    }
}
