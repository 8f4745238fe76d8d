//! From device cycles to host time.
//!
//! ```text
//! ns = anchor.host_ns + (cycles − anchor.cycles) × 10⁹ / clock_hz
//! ```
//!
//! The anchor is the pair that was read with the least uncertainty; the rate is the nominal one of the device
//! counter, so that a duration in the trace is exactly its cycles. What that costs is stated, not hidden: the error
//! bound is the largest distance of any pair from the line, plus that pair's own uncertainty.

use crate::capture::ClockPair;

/// Largest time a trace can hold, ns.
const MAX_NS: i128 = i64::MAX as i128;

/// The line through the readings of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTime {
    clock_hz: u64,
    anchor: Option<ClockPair>,
    pairs: u64,
    /// Bounds of where the pairs put the host time of cycle 0, ns.
    low_ns: i128,
    high_ns: i128,
}

impl DeviceTime {
    /// Without a pair the device counter is its own time: 0 cycles are 0 ns, and nothing ties it to the host.
    pub fn new(clock_hz: u64) -> Self {
        Self { clock_hz: clock_hz.max(1), anchor: None, pairs: 0, low_ns: i128::MAX, high_ns: i128::MIN }
    }

    /// Adds a reading of both clocks.
    pub fn add(&mut self, pair: ClockPair) {
        let (origin, uncertainty) = (self.origin_ns(pair), i128::from(pair.uncertainty_ns));
        self.low_ns = self.low_ns.min(origin - uncertainty);
        self.high_ns = self.high_ns.max(origin + uncertainty);
        self.pairs += 1;
        if self.anchor.is_none_or(|anchor| pair.uncertainty_ns < anchor.uncertainty_ns) {
            self.anchor = Some(pair);
        }
    }

    /// Where a pair puts the host time of cycle 0.
    fn origin_ns(&self, pair: ClockPair) -> i128 {
        i128::from(pair.host_ns) - self.duration_ns(pair.device_cycles.into())
    }

    fn duration_ns(&self, cycles: i128) -> i128 {
        (cycles * 1_000_000_000).div_euclid(self.clock_hz.into())
    }

    /// Host time of a reading of the device counter, ns; 0 for readings before the host's time began.
    pub fn ns(&self, cycles: u64) -> u64 {
        let (from_cycles, from_ns) =
            self.anchor.map_or((0, 0), |pair| (i128::from(pair.device_cycles), i128::from(pair.host_ns)));
        (from_ns + self.duration_ns(i128::from(cycles) - from_cycles)).clamp(0, MAX_NS) as u64
    }

    /// Host time of a reading of the device counter that is given in nanoseconds since it was 0.
    pub fn ns_of_device_ns(&self, device_ns: u64) -> u64 {
        let cycles = u128::from(device_ns) * u128::from(self.clock_hz) / 1_000_000_000;
        self.ns(u64::try_from(cycles).unwrap_or(u64::MAX))
    }

    /// Whether the device's time is tied to the host's.
    pub fn is_aligned(&self) -> bool {
        self.anchor.is_some()
    }

    /// Where the line starts: host time of the anchor, 0 without one.
    pub fn anchor_ns(&self) -> u64 {
        self.anchor.map_or(0, |pair| pair.host_ns)
    }

    /// How far host and device events may be off against each other, ns. Device events among themselves are exact.
    pub fn error_bound_ns(&self) -> u64 {
        self.anchor.map_or(0, |anchor| {
            let origin = self.origin_ns(anchor);
            (self.high_ns - origin).max(origin - self.low_ns).clamp(0, MAX_NS) as u64
        })
    }

    /// The method in one sentence, for the trace and for reports.
    pub fn method(&self) -> String {
        if self.is_aligned() {
            format!(
                "device cycles / {} Hz from the best of {} clock pairs; host and device agree to +-{} ns",
                self.clock_hz,
                self.pairs,
                self.error_bound_ns()
            )
        } else {
            format!(
                "device cycles / {} Hz; no clock pair, host and device times are unrelated",
                self.clock_hz
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(device_cycles: u64, host_ns: u64, uncertainty_ns: u64) -> ClockPair {
        ClockPair { device_cycles, host_ns, uncertainty_ns }
    }

    fn fit(clock_hz: u64, pairs: &[ClockPair]) -> DeviceTime {
        let mut time = DeviceTime::new(clock_hz);
        pairs.iter().for_each(|&pair| time.add(pair));
        time
    }

    #[test]
    fn the_best_pair_anchors_and_the_others_bound_the_error() {
        let pairs = [pair(1000, 500_000, 90), pair(2000, 520_040, 10), pair(3000, 539_900, 20)];
        let time = fit(50_000_000, &pairs);
        assert_eq!(time.ns(2000), 520_040);
        assert_eq!((time.ns(1999), time.ns(2001)), (520_020, 520_060));
        assert_eq!(time.ns_of_device_ns(2001 * 20), 520_060);
        assert_eq!(time.error_bound_ns(), 140 + 20);
        assert!(time.method().ends_with("agree to +-160 ns"), "{}", time.method());
    }

    #[test]
    fn without_pairs_the_counter_is_its_own_time() {
        let time = fit(1_000_000_000, &[]);
        assert_eq!((time.ns(0), time.ns(77), time.is_aligned()), (0, 77, false));
    }

    #[test]
    fn times_outside_a_trace_are_clamped() {
        let time = fit(1, &[pair(1000, 5, 0)]);
        assert_eq!(time.ns(0), 0);
        assert_eq!(time.ns(u64::MAX), i64::MAX as u64);
    }

    proptest! {
        #[test]
        fn durations_are_the_cycles(
            hz in prop_oneof![Just(50_000_000u64), Just(1_000_000_000), Just(25_000_000), Just(62_500_000)],
            anchor in 0u64..1 << 40, start in 0u64..1 << 40, cycles in 0u64..1 << 40,
        ) {
            let time = fit(hz, &[pair(anchor, 1 << 60, 3)]);
            let ns_per_cycle = 1_000_000_000 / hz;
            prop_assert_eq!(time.ns(start + cycles) - time.ns(start), cycles * ns_per_cycle);
        }
    }
}
