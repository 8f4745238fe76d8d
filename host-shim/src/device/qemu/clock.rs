//! The board's counter as this process knows it: read once against the host's clock, counted on from there. QEMU derives it
//! from that clock, so neither runs ahead of the other.

use std::time::{Duration, Instant};

/// Cycles of the generic timer per second.
pub(super) const HZ: u64 = 62_500_000;

const CYCLE_NS: u64 = 1_000_000_000 / HZ;

/// Readings, of which the one with the least doubt counts.
pub(super) const EXCHANGES: u32 = 8;

/// A reading of the counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoardClock {
    at: Instant,
    cycles: u64,
    doubt: Duration,
}

impl BoardClock {
    /// Any reading is better.
    pub(super) fn unknown() -> Self {
        Self { at: Instant::now(), cycles: 0, doubt: Duration::MAX }
    }

    /// The counter read `cycles` between `asked` and now.
    pub(super) fn read(asked: Instant, cycles: u64) -> Self {
        let half = asked.elapsed() / 2;
        Self { at: asked + half, cycles, doubt: half }
    }

    /// The reading with less doubt.
    pub(super) fn better(self, other: Self) -> Self {
        if other.doubt < self.doubt { other } else { self }
    }

    pub(super) fn now_cycles(&self) -> u64 {
        self.cycles + self.at.elapsed().as_nanos() as u64 / CYCLE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reading_with_the_least_doubt_counts() {
        let now = Instant::now();
        let reading = |cycles, doubt| BoardClock { at: now, cycles, doubt: Duration::from_micros(doubt) };
        let best = BoardClock::unknown().better(reading(5, 30)).better(reading(6, 10)).better(reading(7, 20));
        assert_eq!(best.cycles, 6);
        assert!(best.now_cycles() >= 6);
    }
}
