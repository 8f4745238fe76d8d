//! Whether what a record costs depends on how many there were before, or on how many pools they go to.
//!
//! | figure | value | baseline |
//! |---|---|---|
//! | `flat_records` | ns per record of the last tenth of a thousand million (of ten million in the quick form), one pool | of the first tenth |
//! | `flat_pools` | ns per record of twenty-four pools | of one pool |
//!
//! Both with a counting collector, as the hand-over is. The tenths are looked at in a thousand slices, a million records each
//! in the full form, of which the lower quartile counts: what else the machine does meanwhile costs some slices much.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;

use crate::Figure;
use crate::cores::Cores;
use crate::handover::{Counting, rate, rate_watched};
use crate::windows::Effort;

/// Slices of a run, and how many of them are a tenth.
const SLICES: u64 = 1_000;
const TENTH: usize = 100;

/// Nanoseconds per record of the slice that a quarter of `slices` are not dearer than.
fn lower_quartile_ns(slices: &[Instant], records: u64) -> anyhow::Result<f64> {
    let mut costs: Vec<_> = slices.windows(2).map(|pair| pair[1] - pair[0]).collect();
    costs.sort_unstable();
    let cost = costs.get(costs.len() / 4).context("a run without slices")?;
    Ok(cost.as_nanos() as f64 / records as f64)
}

/// The first records and the last.
pub(crate) fn records(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    let records: u64 = match effort {
        Effort::Full => 1_000_000_000,
        Effort::Quick => 10_000_000,
    };
    let slice = records / SLICES;
    let mut stamps = Vec::with_capacity(SLICES as usize);
    let mut next = 0;
    rate_watched(cores, 1, records, Arc::new(Counting::default()), |number| {
        if number >= next {
            stamps.push(Instant::now());
            next += slice;
        }
    })?;
    let of_the_first = lower_quartile_ns(&stamps[..TENTH], slice)?;
    let value = lower_quartile_ns(&stamps[stamps.len() - TENTH..], slice)?;
    Ok(vec![Figure { name: "flat_records", unit: "ns", value, baseline: ("of_the_first", of_the_first) }])
}

/// One pool and many.
pub(crate) fn pools(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    let (records, rounds) = match effort {
        Effort::Full => (50_000_000, 4),
        Effort::Quick => (1_000_000, 1),
    };
    let cost_ns = |pools: u32| {
        let mut best = 0f64;
        for _ in 0..rounds {
            best = best.max(rate(cores, pools, records, Arc::new(Counting::default()))?);
        }
        anyhow::Ok(1e9 / best)
    };
    let (of_one, value) = (cost_ns(1)?, cost_ns(24)?);
    Ok(vec![Figure { name: "flat_pools", unit: "ns", value, baseline: ("of_one_pool", of_one) }])
}
