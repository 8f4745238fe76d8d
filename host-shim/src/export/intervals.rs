//! Stretches of time that may overlap, and how much of a time they cover.

/// Stretches of time; once [`put_in_order`](Intervals::put_in_order), in order and apart from each other.
#[derive(Clone, Debug, Default)]
pub struct Intervals(Vec<Interval>);

#[derive(Clone, Copy, Debug)]
struct Interval {
    begin: u64,
    end: u64,
    /// What all intervals before this one cover.
    before: u64,
}

impl Intervals {
    /// Adds one; an empty one changes nothing.
    pub fn push(&mut self, begin: u64, end: u64) {
        if begin < end {
            self.0.push(Interval { begin, end, before: 0 });
        }
    }

    /// Sorts and joins them, for questions.
    pub fn put_in_order(&mut self) {
        self.0.sort_by_key(|interval| interval.begin);
        self.0.dedup_by(|next, interval| {
            let touch = next.begin <= interval.end;
            if touch {
                interval.end = interval.end.max(next.end);
            }
            touch
        });
        let mut before = 0;
        for interval in &mut self.0 {
            interval.before = before;
            before += interval.end - interval.begin;
        }
    }

    /// What they cover from 0 to `at`.
    pub fn until(&self, at: u64) -> u64 {
        let begun = self.0.partition_point(|interval| interval.begin < at);
        let last = begun.checked_sub(1).and_then(|last| self.0.get(last));
        last.map_or(0, |interval| interval.before + interval.end.min(at) - interval.begin)
    }

    /// What they cover from `from` to `to`.
    pub fn between(&self, from: u64, to: u64) -> u64 {
        self.until(to).saturating_sub(self.until(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_counts_once() {
        let mut intervals = Intervals::default();
        for (begin, end) in [(30, 40), (10, 20), (15, 25), (40, 41), (50, 50), (12, 13)] {
            intervals.push(begin, end);
        }
        intervals.put_in_order();
        let expected = [(0, 0), (10, 0), (11, 1), (25, 15), (30, 15), (35, 20), (41, 26), (u64::MAX, 26)];
        assert!(expected.into_iter().all(|(at, covered)| intervals.until(at) == covered));
        assert_eq!((intervals.between(12, 35), intervals.between(35, 12)), (18, 0));
        assert_eq!(Intervals::default().until(7), 0);
    }
}
