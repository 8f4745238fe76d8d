//! Which buffers have been seen: duplicates out, gaps named.
//!
//! A buffer may stand in a capture twice, when a host died between writing and acknowledging and another one wrote
//! it again. Within one run a buffer is known by its pool and its sequence number.

use std::collections::BTreeMap;

use super::payload::Pool;

/// Most runs of consecutive sequence numbers kept over all pools. A capture of a healthy run has one per pool.
pub const MAX_RUNS: usize = 1 << 16;

/// The sequence numbers seen, per pool, as runs of consecutive numbers.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Start and end (exclusive) of each run, which never touch.
    pools: BTreeMap<Pool, BTreeMap<u64, u64>>,
    runs: usize,
}

/// What a buffer is to those seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not seen before.
    New,
    /// Seen before: to be left out.
    Duplicate,
    /// Cannot be told, the numbers seen so far are too scattered. Only a damaged or hostile capture gets here.
    Scattered,
}

impl Seen {
    /// Notes a buffer.
    pub fn admit(&mut self, pool: Pool, buffer_seq: u32) -> Verdict {
        let seq = u64::from(buffer_seq);
        if self.runs >= MAX_RUNS && !self.pools.contains_key(&pool) {
            return Verdict::Scattered;
        }
        let runs = self.pools.entry(pool).or_default();
        let before = runs.range(..=seq).next_back().map(|(&start, &end)| (start, end));
        if before.is_some_and(|(_, end)| seq < end) {
            return Verdict::Duplicate;
        }
        let joins_before = before.filter(|&(_, end)| end == seq);
        let joins_after = runs.get(&(seq + 1)).copied();
        if joins_before.is_none() && joins_after.is_none() && self.runs >= MAX_RUNS {
            return Verdict::Scattered;
        }
        let start = joins_before.map_or(seq, |(start, _)| start);
        if joins_after.is_some() {
            runs.remove(&(seq + 1));
            self.runs -= 1;
        }
        if runs.insert(start, joins_after.unwrap_or(seq + 1)).is_none() {
            self.runs += 1;
        }
        Verdict::New
    }

    /// Sequence numbers below the highest one seen that are missing, as ranges, pool by pool.
    pub fn gaps(&self) -> impl Iterator<Item = (Pool, core::ops::Range<u64>)> {
        self.pools.iter().flat_map(|(&pool, runs)| {
            let ends = core::iter::once(0).chain(runs.values().copied());
            ends.zip(runs.keys().copied())
                .filter(|(end, start)| end < start)
                .map(move |(end, start)| (pool, end..start))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use sluice_core::layout::PoolKind;

    use super::super::payload::Subsystem;
    use super::*;

    fn pool(instance: u32) -> Pool {
        Pool { subsystem: Subsystem::SWIMLANE, kind: PoolKind::AICPU_TASK, instance }
    }

    #[test]
    fn scattered_numbers_do_not_grow_without_bound() {
        let mut seen = Seen::default();
        for i in 0..MAX_RUNS as u32 {
            assert_eq!(seen.admit(pool(0), 2 * i), Verdict::New);
        }
        assert_eq!(seen.admit(pool(0), 2 * MAX_RUNS as u32), Verdict::Scattered);
        assert_eq!(seen.admit(pool(1), 0), Verdict::Scattered);
        assert_eq!(seen.admit(pool(0), 4), Verdict::Duplicate);
        assert_eq!(seen.admit(pool(0), 3), Verdict::New);
        assert_eq!(seen.admit(pool(1), 0), Verdict::New);
    }

    #[test]
    fn the_last_number_has_its_place() {
        let mut seen = Seen::default();
        assert_eq!(seen.admit(pool(0), u32::MAX), Verdict::New);
        assert_eq!(seen.admit(pool(0), u32::MAX), Verdict::Duplicate);
        assert_eq!(seen.gaps().collect::<Vec<_>>(), [(pool(0), 0..u64::from(u32::MAX))]);
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_set(numbers in prop::collection::vec((0u32..3, 0u32..40), 0..120)) {
            let (mut seen, mut plain) = (Seen::default(), HashSet::new());
            for &(instance, seq) in &numbers {
                let new = plain.insert((instance, seq));
                let verdict = if new { Verdict::New } else { Verdict::Duplicate };
                prop_assert_eq!(seen.admit(pool(instance), seq), verdict);
            }
            let missing: HashSet<(u32, u32)> = seen
                .gaps()
                .flat_map(|(pool, range)| range.map(move |seq| (pool.instance, seq as u32)))
                .collect();
            for instance in 0..3 {
                let top = plain.iter().filter(|seen| seen.0 == instance).map(|seen| seen.1).max().unwrap_or(0);
                for seq in 0..top {
                    prop_assert_ne!(plain.contains(&(instance, seq)), missing.contains(&(instance, seq)));
                }
            }
            let runs: usize = seen.pools.values().map(BTreeMap::len).sum();
            prop_assert_eq!(runs, seen.runs);
        }
    }
}
