//! The traffic of a capture once more, with lanes that never wait.
//!
//! ```text
//!   published' = published − what the lane had waited until then
//!   drained'   = max(published', drained' of the buffer before) + what the drain took
//!   collected' = max(published', collected' of the buffer before) + what the host took
//! ```
//!
//! The host takes one buffer after the other, in the order of publication. What it took for a buffer is the time from when it
//! could begin, with the buffer published and the one before done, until it was done: a pause of the host is part of it.

use std::collections::{BTreeMap, VecDeque};

use sluice_core::layout::SubsystemId;

use super::evidence::{Evidence, Transit};
use crate::capture::Pool;

/// The most at once, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peak {
    /// How many.
    pub most: u32,
    /// Host monotonic ns of the replay.
    pub at_ns: u64,
    /// Buffers looked at.
    pub buffers: u64,
}

/// What comes of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Replay {
    /// Buffers of each pool that were published and not collected.
    pub pools: BTreeMap<Pool, Peak>,
    /// Buffers of each subsystem and lane that were published and not drained.
    pub rings: BTreeMap<(SubsystemId, u32), Peak>,
    /// Share of the time in which the host was busy.
    pub host_load: f64,
}

/// A buffer on its way, in the order of publication.
struct Step {
    pool: Pool,
    published: u64,
    drain_takes: u64,
    host_takes: u64,
}

impl Replay {
    /// Replays `evidence`.
    pub fn of(evidence: &Evidence) -> Self {
        let mut steps = steps(evidence);
        steps.sort_by_key(|step| step.published);
        let (mut drained, mut collected) = (0, 0);
        let mut pools: BTreeMap<_, InFlight> = BTreeMap::new();
        let mut rings: BTreeMap<_, InFlight> = BTreeMap::new();
        let mut busy_ns = 0;
        for step in &steps {
            drained = step.published.max(drained) + step.drain_takes;
            collected = step.published.max(collected) + step.host_takes;
            busy_ns += step.host_takes;
            pools.entry(step.pool).or_default().publish(step.published, collected);
            let ring = step.pool.subsystem.id().zip(evidence.lanes.get(&step.pool).copied());
            if let Some(ring) = ring {
                rings.entry(ring).or_default().publish(step.published, drained);
            }
        }
        let begin = steps.first().map_or(0, |step| step.published);
        let span_ns = collected.saturating_sub(begin).max(1);
        Self {
            pools: pools.into_iter().map(|(key, in_flight)| (key, in_flight.peak)).collect(),
            rings: rings.into_iter().map(|(key, in_flight)| (key, in_flight.peak)).collect(),
            host_load: busy_ns as f64 / span_ns as f64,
        }
    }
}

/// What each step of the host took, and when lanes that never wait would have published.
fn steps(evidence: &Evidence) -> Vec<Step> {
    let takes = |mut transits: Vec<(usize, &Transit)>, end: fn(&Transit) -> u64| {
        transits.sort_by_key(|(_, transit)| end(transit));
        let mut takes = vec![0; transits.len()];
        let mut before = 0;
        for (number, transit) in transits {
            takes[number] = end(transit).saturating_sub(transit.published_ns.max(before));
            before = end(transit);
        }
        takes
    };
    let numbered = || evidence.transits.iter().enumerate().collect();
    let drain_takes = takes(numbered(), |transit| transit.drained_ns);
    let host_takes = takes(numbered(), |transit| transit.collected_ns);
    let waited = |pool: &Pool, ns: u64| {
        let waits = evidence.lanes.get(pool).and_then(|lane| evidence.waits.get(lane));
        waits.map_or(0, |waits| waits.until(ns))
    };
    let step = |((transit, drain_takes), host_takes): ((&Transit, u64), u64)| Step {
        pool: transit.pool,
        published: transit.published_ns - waited(&transit.pool, transit.published_ns),
        drain_takes,
        host_takes,
    };
    evidence.transits.iter().zip(drain_takes).zip(host_takes).map(step).collect()
}

/// What is under way; those that leave do so in the order in which they came.
#[derive(Default)]
struct InFlight {
    until: VecDeque<u64>,
    peak: Peak,
}

impl InFlight {
    fn publish(&mut self, now: u64, until: u64) {
        while self.until.front().is_some_and(|&until| until <= now) {
            self.until.pop_front();
        }
        self.until.push_back(until);
        self.peak.buffers += 1;
        if self.until.len() as u32 > self.peak.most {
            (self.peak.most, self.peak.at_ns) = (self.until.len() as u32, now);
        }
    }
}
