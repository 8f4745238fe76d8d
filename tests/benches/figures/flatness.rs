//! Whether what a record costs depends on how many there are, or on how many pools they go to.
//!
//! | figure | value | baseline |
//! |---|---|---|
//! | `flat_records` | ns per record of a thousand million (ten million in the quick form), one pool | of one million |
//! | `flat_pools` | ns per record of twenty-four pools | of one pool |
//!
//! Measured from the first append to the end of the stop, with a counting collector, as the hand-over is. The end of a session
//! takes as long for few records as for many, so a million of them look a little dearer than they are.

use std::sync::Arc;

use crate::Figure;
use crate::cores::Cores;
use crate::handover::{Counting, rate};
use crate::windows::Effort;

/// Records of the short side, and how often they are measured; the best counts.
const FEW: u64 = 1_000_000;

fn cost_ns(cores: &Cores, pools: u32, records: u64, rounds: u32) -> anyhow::Result<f64> {
    let mut best = 0f64;
    for _ in 0..rounds {
        best = best.max(rate(cores, pools, records, Arc::new(Counting::default()))?);
    }
    Ok(1e9 / best)
}

/// Few records and many.
pub(crate) fn records(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    let (many, rounds) = match effort {
        Effort::Full => (1_000_000_000, 16),
        Effort::Quick => (10_000_000, 2),
    };
    let of_few = cost_ns(cores, 1, FEW, rounds)?;
    let value = cost_ns(cores, 1, many, 1)?;
    Ok(vec![Figure { name: "flat_records", unit: "ns", value, baseline: ("of_a_million", of_few) }])
}

/// One pool and many.
pub(crate) fn pools(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    let (records, rounds) = match effort {
        Effort::Full => (50_000_000, 4),
        Effort::Quick => (FEW, 1),
    };
    let of_one = cost_ns(cores, 1, records, rounds)?;
    let value = cost_ns(cores, 24, records, rounds)?;
    Ok(vec![Figure { name: "flat_pools", unit: "ns", value, baseline: ("of_one_pool", of_one) }])
}
