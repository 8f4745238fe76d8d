//! Index patterns of a DMA block and their expansion into contiguous transfers.
//!
//! A block lists copies. Each copy walks two patterns at once, byte by byte, both outermost dimension first:
//!
//! ```text
//! offset 4, sizes [3, 2], steps [8, 1]          . . . . A B . . . . . . C D . . . . . . E F
//!                                               0       4               12              20
//! ```
//!
//! [`Pattern::new`] is the only way to a pattern, so a pattern that exists is non-empty and its last byte has an
//! offset that fits 64 bits. The container facts name no element size: sizes and steps count bytes.

use sluice_core::dma::ChunkLen;
use sluice_core::fmap::VarId;

/// Most dimensions of a pattern or of a shape (NEFF container facts).
pub const MAX_DIMS: usize = 8;

/// Bytes that one descriptor pair moves at most.
const PAIR_BYTES: u64 = ChunkLen::MAX.bytes() as u64;

/// One dimension of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// How many positions, at least 1.
    pub size: u64,
    /// Distance in bytes between two positions.
    pub step_bytes: u64,
}

/// Which bytes of a variable one side of a copy touches, and in which order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    offset_bytes: u64,
    dims: Vec<Dim>,
    len_bytes: u64,
    end_bytes: u64,
}

/// Why numbers do not form a pattern or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The two lists belong together element by element.
    #[error("{sizes} sizes but {steps} steps")]
    Lengths {
        /// Number of sizes.
        sizes: usize,
        /// Number of steps.
        steps: usize,
    },
    /// A pattern has 1..=[`MAX_DIMS`] dimensions.
    #[error("{dims} dimensions, want 1 to {MAX_DIMS}")]
    Dims {
        /// Dimensions given.
        dims: usize,
    },
    /// A size of 0 makes a transfer of 0 bytes, which a descriptor cannot say: length 0 means 64 KiB.
    #[error("dimension {dim} has size 0, a transfer of 0 bytes")]
    Empty {
        /// Which dimension, counted from the outermost.
        dim: usize,
    },
    /// The number of bytes or the last offset does not fit 64 bits.
    #[error("its length or last offset overflows 64 bits")]
    Overflow,
    /// Both sides of a copy have to move the same number of bytes.
    #[error("source pattern has {from_bytes} bytes, destination pattern {to_bytes}")]
    Unequal {
        /// Bytes of the source pattern.
        from_bytes: u64,
        /// Bytes of the destination pattern.
        to_bytes: u64,
    },
}

impl Pattern {
    /// Makes a pattern from the two lists of the container, outermost dimension first.
    pub fn new(offset_bytes: u64, sizes: &[u64], steps: &[u64]) -> Result<Self, PatternError> {
        if sizes.len() != steps.len() {
            return Err(PatternError::Lengths { sizes: sizes.len(), steps: steps.len() });
        }
        if sizes.is_empty() || sizes.len() > MAX_DIMS {
            return Err(PatternError::Dims { dims: sizes.len() });
        }
        if let Some(dim) = sizes.iter().position(|&size| size == 0) {
            return Err(PatternError::Empty { dim });
        }
        let dims: Vec<Dim> =
            sizes.iter().zip(steps).map(|(&size, &step_bytes)| Dim { size, step_bytes }).collect();
        let len_bytes = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let last = dims.iter().try_fold(offset_bytes, |sum, dim| {
            (dim.size - 1).checked_mul(dim.step_bytes).and_then(|span| sum.checked_add(span))
        });
        match (len_bytes, last.and_then(|last| last.checked_add(1))) {
            (Some(len_bytes), Some(end_bytes)) => Ok(Self { offset_bytes, dims, len_bytes, end_bytes }),
            _ => Err(PatternError::Overflow),
        }
    }

    /// `len_bytes` bytes in a row.
    pub fn contiguous(offset_bytes: u64, len_bytes: u64) -> Result<Self, PatternError> {
        Self::new(offset_bytes, &[len_bytes], &[1])
    }

    /// Offset of the first byte in its variable.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[Dim] {
        &self.dims
    }

    /// How many bytes the pattern visits, at least 1.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// One past the highest offset that the pattern visits.
    pub fn end_bytes(&self) -> u64 {
        self.end_bytes
    }
}

/// One copy of a block: the bytes of `from` in pattern order go to the bytes of `to` in pattern order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmaCopy {
    from: VarId,
    from_pattern: Pattern,
    to: VarId,
    to_pattern: Pattern,
}

impl DmaCopy {
    /// Joins two patterns of the same length.
    pub fn new(
        from: VarId,
        from_pattern: Pattern,
        to: VarId,
        to_pattern: Pattern,
    ) -> Result<Self, PatternError> {
        if from_pattern.len_bytes != to_pattern.len_bytes {
            return Err(PatternError::Unequal {
                from_bytes: from_pattern.len_bytes,
                to_bytes: to_pattern.len_bytes,
            });
        }
        Ok(Self { from, from_pattern, to, to_pattern })
    }

    /// Variable read.
    pub fn from(&self) -> VarId {
        self.from
    }

    /// Bytes read, in order.
    pub fn from_pattern(&self) -> &Pattern {
        &self.from_pattern
    }

    /// Variable written.
    pub fn to(&self) -> VarId {
        self.to
    }

    /// Bytes written, in order.
    pub fn to_pattern(&self) -> &Pattern {
        &self.to_pattern
    }

    /// The copy as the fewest transfers whose two sides are both contiguous, in order.
    pub fn transfers(&self) -> Transfers<'_> {
        Transfers {
            copy: self,
            from: Runs::of(&self.from_pattern),
            to: Runs::of(&self.to_pattern),
            pending: None,
        }
    }

    /// How many descriptor pairs the copy becomes, one per 64 KiB or part of each transfer; `None` above `limit`.
    /// Takes no more steps than `limit`.
    pub fn pairs_up_to(&self, limit: u64) -> Option<u64> {
        self.transfers().try_fold(0, |pairs: u64, transfer| {
            Some(pairs + transfer.len_bytes.div_ceil(PAIR_BYTES)).filter(|&pairs| pairs <= limit)
        })
    }
}

/// A contiguous copy between two variables; what a descriptor pair, or several of them, can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Variable read.
    pub from: VarId,
    /// First byte read.
    pub from_offset_bytes: u64,
    /// Variable written.
    pub to: VarId,
    /// First byte written.
    pub to_offset_bytes: u64,
    /// Length, at least 1.
    pub len_bytes: u64,
}

impl Transfer {
    fn is_continued_by(&self, next: &Self) -> bool {
        self.from_offset_bytes + self.len_bytes == next.from_offset_bytes
            && self.to_offset_bytes + self.len_bytes == next.to_offset_bytes
    }
}

/// Iterator over the [`Transfer`]s of a [`DmaCopy`].
#[derive(Clone, Debug)]
pub struct Transfers<'a> {
    copy: &'a DmaCopy,
    from: Runs,
    to: Runs,
    pending: Option<Transfer>,
}

impl Transfers<'_> {
    /// The next piece that is contiguous on both sides, not yet joined with its neighbours.
    fn piece(&mut self) -> Option<Transfer> {
        let len_bytes = self.from.left_bytes.min(self.to.left_bytes);
        (len_bytes > 0).then(|| Transfer {
            from: self.copy.from,
            from_offset_bytes: self.from.take(len_bytes),
            to: self.copy.to,
            to_offset_bytes: self.to.take(len_bytes),
            len_bytes,
        })
    }
}

impl Iterator for Transfers<'_> {
    type Item = Transfer;

    fn next(&mut self) -> Option<Transfer> {
        let mut joined = self.pending.take().or_else(|| self.piece())?;
        while let Some(piece) = self.piece() {
            if !joined.is_continued_by(&piece) {
                self.pending = Some(piece);
                break;
            }
            joined.len_bytes += piece.len_bytes;
        }
        Some(joined)
    }
}

/// Walks a pattern run by run; a run is what the inner dimensions make contiguous.
#[derive(Clone, Debug)]
struct Runs {
    /// Dimensions outside the run, innermost first, with the position in each.
    outer: Vec<(Dim, u64)>,
    run_bytes: u64,
    run_start: u64,
    /// Bytes of the current run not yet taken; 0 when the pattern is used up.
    left_bytes: u64,
}

impl Runs {
    fn of(pattern: &Pattern) -> Self {
        let mut run_bytes = 1;
        let mut outer: Vec<(Dim, u64)> = Vec::new();
        for dim in pattern.dims.iter().rev().filter(|dim| dim.size > 1) {
            match outer.last_mut() {
                None if dim.step_bytes == run_bytes => run_bytes *= dim.size,
                Some((last, _)) if last.step_bytes.checked_mul(last.size) == Some(dim.step_bytes) => {
                    last.size *= dim.size;
                }
                _ => outer.push((*dim, 0)),
            }
        }
        Self { outer, run_bytes, run_start: pattern.offset_bytes, left_bytes: run_bytes }
    }

    /// Takes `len_bytes` ≤ `left_bytes` and returns where they start.
    fn take(&mut self, len_bytes: u64) -> u64 {
        let start = self.run_start + (self.run_bytes - self.left_bytes);
        self.left_bytes -= len_bytes;
        if self.left_bytes == 0 {
            self.next_run();
        }
        start
    }

    fn next_run(&mut self) {
        for (dim, position) in &mut self.outer {
            if *position + 1 < dim.size {
                *position += 1;
                self.run_start += dim.step_bytes;
                self.left_bytes = self.run_bytes;
                return;
            }
            self.run_start -= *position * dim.step_bytes;
            *position = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: VarId = VarId(0);
    const B: VarId = VarId(1);

    /// Every offset by the definition: nested counting, innermost fastest.
    fn offsets(pattern: &Pattern) -> Vec<u64> {
        let mut all = vec![pattern.offset_bytes()];
        for dim in pattern.dims() {
            all = all
                .iter()
                .flat_map(|base| (0..dim.size).map(move |position| base + position * dim.step_bytes))
                .collect();
        }
        all
    }

    fn transfers(from: Pattern, to: Pattern) -> Vec<(u64, u64, u64)> {
        DmaCopy::new(A, from, B, to)
            .unwrap()
            .transfers()
            .map(|t| (t.from_offset_bytes, t.to_offset_bytes, t.len_bytes))
            .collect()
    }

    #[test]
    fn rows_of_a_matrix_become_one_transfer_each() {
        let rows = Pattern::new(4, &[3, 2], &[8, 1]).unwrap();
        assert_eq!((rows.len_bytes(), rows.end_bytes()), (6, 22));
        assert_eq!(
            transfers(rows, Pattern::contiguous(100, 6).unwrap()),
            [(4, 100, 2), (12, 102, 2), (20, 104, 2)]
        );
    }

    #[test]
    fn dimensions_that_touch_are_one_run() {
        let dense = Pattern::new(0, &[4, 1, 8, 16], &[128, 7, 16, 1]).unwrap();
        assert_eq!(transfers(dense.clone(), dense), [(0, 0, 512)]);
    }

    #[test]
    fn example_of_the_container_facts_is_contiguous() {
        let example = Pattern::new(0, &[128, 1], &[1, 128]).unwrap();
        assert_eq!(transfers(example, Pattern::contiguous(0, 128).unwrap()), [(0, 0, 128)]);
    }

    #[test]
    fn numbers_that_make_no_pattern_are_refused() {
        use PatternError::*;
        let new = Pattern::new;
        assert_eq!(new(0, &[1, 2], &[1]), Err(Lengths { sizes: 2, steps: 1 }));
        assert_eq!(new(0, &[], &[]), Err(Dims { dims: 0 }));
        assert_eq!(new(0, &[1; 9], &[1; 9]), Err(Dims { dims: 9 }));
        assert_eq!(new(0, &[4, 0], &[1, 1]), Err(Empty { dim: 1 }));
        assert_eq!(new(u64::MAX, &[1], &[1]), Err(Overflow));
        assert_eq!(new(0, &[1 << 33, 1 << 33], &[0, 0]), Err(Overflow));
        assert_eq!(new(0, &[3], &[1 << 63]), Err(Overflow));
        assert_eq!(new(u64::MAX - 1, &[1], &[1]).unwrap().end_bytes(), u64::MAX);
        let (two, three) = (Pattern::contiguous(0, 2).unwrap(), Pattern::contiguous(0, 3).unwrap());
        assert_eq!(DmaCopy::new(A, two, B, three), Err(Unequal { from_bytes: 2, to_bytes: 3 }));
    }

    #[test]
    fn a_long_run_is_not_walked_byte_by_byte() {
        let huge = Pattern::new(0, &[1 << 20, 1 << 20], &[1 << 20, 1]).unwrap();
        assert_eq!(transfers(huge.clone(), huge), [(0, 0, 1 << 40)]);
    }

    #[test]
    fn pairs_are_counted_per_64_kib_up_to_a_limit() {
        let pairs = |pattern: Pattern, limit| {
            let to = Pattern::contiguous(0, pattern.len_bytes()).unwrap();
            DmaCopy::new(A, pattern, B, to).unwrap().pairs_up_to(limit)
        };
        let row = |bytes| Pattern::contiguous(0, bytes).unwrap();
        assert_eq!(
            [1, 65_536, 65_537, 131_072, 131_073].map(|n| pairs(row(n), 9)),
            [1, 1, 2, 2, 3].map(Some)
        );
        assert_eq!(pairs(row(131_073), 2), None);
        let endless = Pattern::new(0, &[1 << 40, 1], &[2, 1]).unwrap();
        assert_eq!(pairs(endless, 1000), None);
    }

    fn dims() -> impl Strategy<Value = (Vec<u64>, Vec<u64>)> {
        prop::collection::vec((1u64..5, prop_oneof![0u64..9, Just(16), Just(64)]), 1..5)
            .prop_map(|dims| dims.into_iter().unzip())
    }

    proptest! {
        #[test]
        fn transfers_visit_the_bytes_of_both_patterns_in_order(
            (sizes, steps) in dims(), offset in 0u64..50, split in 1u64..4,
        ) {
            let from = Pattern::new(offset, &sizes, &steps).unwrap();
            let len = from.len_bytes();
            let to = if len.is_multiple_of(split) {
                Pattern::new(7, &[len / split, split], &[split + 1, 1]).unwrap()
            } else {
                Pattern::contiguous(7, len).unwrap()
            };
            let want: Vec<_> = offsets(&from).into_iter().zip(offsets(&to)).collect();
            let runs = transfers(from.clone(), to);
            let got: Vec<_> =
                runs.iter().flat_map(|&(f, t, len)| (0..len).map(move |i| (f + i, t + i))).collect();
            prop_assert_eq!(&got, &want);
            let fewest = 1 + want.windows(2).filter(|w| (w[0].0 + 1, w[0].1 + 1) != w[1]).count();
            prop_assert_eq!(runs.len(), fewest);
            prop_assert_eq!(offsets(&from).into_iter().max().unwrap() + 1, from.end_bytes());
        }
    }
}
