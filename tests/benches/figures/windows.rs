//! Windows of time: baseline, value, baseline, value, … and the best of each.
//!
//! ```text
//!   baseline ▁▁  ▁▁  ▁▁  ▁▁▔▁  ▁▁        the best window of each side counts: what else the machine does
//!   value      ▂▂  ▂▂▔▂  ▂▂  ▂▂  ▂▂      makes windows longer, never shorter
//! ```
//!
//! Windows are short, so that on a busy machine some of them are left alone, and both sides meet the same clock rates
//! and the same neighbours.

use std::time::{Duration, Instant};

/// How long to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Effort {
    /// Long enough for figures that can be compared.
    #[default]
    Full,
    /// Long enough to see that everything runs.
    Quick,
}

impl Effort {
    /// Windows of each side.
    pub(crate) const fn windows(self) -> u32 {
        match self {
            Self::Full => 150,
            Self::Quick => 15,
        }
    }
}

/// What a window takes, about.
const WINDOW: Duration = Duration::from_millis(2);

/// Nanoseconds that one round of each side takes, in the best of its windows. `baseline` and `value` do as many rounds as
/// they are told.
pub(crate) fn best_ns(
    effort: Effort,
    mut baseline: impl FnMut(u64),
    mut value: impl FnMut(u64),
) -> (f64, f64) {
    let rounds = (rounds_per_window(&mut baseline), rounds_per_window(&mut value));
    let mut best = (f64::INFINITY, f64::INFINITY);
    for _ in 0..effort.windows() {
        best.0 = best.0.min(ns_per_round(&mut baseline, rounds.0));
        best.1 = best.1.min(ns_per_round(&mut value, rounds.1));
    }
    best
}

/// As many rounds as fill a window; finding out warms the side up.
fn rounds_per_window(side: &mut impl FnMut(u64)) -> u64 {
    let mut rounds = 1;
    loop {
        let started = Instant::now();
        side(rounds);
        let took = started.elapsed();
        if took >= WINDOW {
            return rounds;
        }
        rounds *= if took < WINDOW / 16 { 8 } else { 2 };
    }
}

fn ns_per_round(side: &mut impl FnMut(u64), rounds: u64) -> f64 {
    let started = Instant::now();
    side(rounds);
    started.elapsed().as_nanos() as f64 / rounds as f64
}

/// Median of the nanoseconds that `side` takes, over `samples` times, each after `before`, which does not count.
pub(crate) fn median_ns(samples: u32, mut before: impl FnMut(), mut side: impl FnMut()) -> f64 {
    let took = (0..samples).map(|_| {
        before();
        let started = Instant::now();
        side();
        started.elapsed().as_nanos()
    });
    let mut took = took.collect::<Vec<_>>();
    took.sort_unstable();
    took[took.len() / 2] as f64
}
