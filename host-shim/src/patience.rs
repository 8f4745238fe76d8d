//! How many looks a wait is worth before its thread sleeps.
//!
//! Waking a thread takes many times as long as handing it something, so whoever waits looks for a while first. How long is
//! learned: waits that end within their looks are given twice as many, others half as many. Where threads share a processor
//! nothing arrives while one of them looks, so there they soon sleep at once. Now and then a wait is given the most, or a
//! place that has learned to sleep would never find out that looking has come to pay.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};

/// What was learned from the waits at one place.
#[derive(Debug)]
pub(crate) struct Patience {
    looks: AtomicU32,
    waits: AtomicU32,
}

impl Patience {
    const LEAST: u32 = 4;
    const MOST: u32 = 512;
    /// One wait of so many is a trial.
    const TRIAL: u32 = 64;

    /// Nothing learned yet.
    pub(crate) const fn new() -> Self {
        Self { looks: AtomicU32::new(64), waits: AtomicU32::new(1) }
    }

    /// Begins a wait.
    pub(crate) fn begin(&self) -> Looks {
        let trial = self.waits.fetch_add(1, Ordering::Relaxed).is_multiple_of(Self::TRIAL);
        let allowed = if trial { Self::MOST } else { self.looks.load(Ordering::Relaxed) };
        Looks { allowed, left: allowed, trial }
    }

    /// Learns from a wait that has ended.
    pub(crate) fn learn(&self, looks: Looks) {
        let next = match looks {
            Looks { left: 0, trial: true, .. } => return,
            Looks { left: 0, allowed, .. } => allowed / 2,
            Looks { allowed, .. } => allowed * 2,
        };
        self.looks.store(next.clamp(Self::LEAST, Self::MOST), Ordering::Relaxed);
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}

/// The looks of one wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks {
    allowed: u32,
    left: u32,
    trial: bool,
}

impl Looks {
    /// Passes a moment; `false` once it is time to sleep.
    pub(crate) fn another(&mut self) -> bool {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                hint::spin_loop();
                true
            }
            None => false,
        }
    }

    /// Whether it is time to sleep.
    pub(crate) fn are_over(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(patience: &Patience, looks_needed: u32) -> bool {
        let mut looks = patience.begin();
        let in_time = (0..looks_needed).all(|_| looks.another());
        patience.learn(looks);
        in_time
    }

    #[test]
    fn waits_that_pay_become_longer_and_others_shorter() {
        let patience = Patience::new();
        for _ in 0..10 {
            assert!(wait(&patience, 10));
        }
        assert!(wait(&patience, 500));
        for _ in 0..10 {
            assert!(!wait(&patience, 1000));
        }
        assert!(!wait(&patience, 10));
        assert!(wait(&patience, 1));
    }

    #[test]
    fn a_place_that_has_learned_to_sleep_tries_again() {
        let patience = Patience::new();
        let mut waits = (0..1000).map(|round| wait(&patience, if round < 200 { 1000 } else { 300 }));
        assert!(waits.by_ref().take(200).all(|in_time| !in_time));
        let first = waits.by_ref().position(|in_time| in_time).unwrap();
        assert!(first < 64 && waits.all(|in_time| in_time));
    }
}
