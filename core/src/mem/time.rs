//! Time and patience: the clock a deadline is measured on, and what a waiting core does between two looks.

use embedded_hal::delay::DelayNs;

/// A free-running 64-bit counter and its rate. Sources are the architecture's system counter on a device and the
/// simulated counter elsewhere.
pub trait Clock {
    /// Cycles since an arbitrary start. Never goes back.
    fn now_cycles(&self) -> u64;
    /// Cycles per second.
    fn frequency_hz(&self) -> u64;
}

impl<C: Clock> Clock for &C {
    fn now_cycles(&self) -> u64 {
        (**self).now_cycles()
    }

    fn frequency_hz(&self) -> u64 {
        (**self).frequency_hz()
    }
}

/// What a waiting core does between two looks at a word.
pub trait Relax {
    /// Called after look number `round` of one wait (0 is the first). Must return within a bounded time.
    fn relax(&mut self, round: u32);
}

/// The processor's spin hint and nothing else.
#[derive(Clone, Copy, Default, Debug)]
pub struct SpinHint;

impl Relax for SpinHint {
    fn relax(&mut self, _round: u32) {
        core::hint::spin_loop();
    }
}

/// Bounded exponential back-off on any `embedded-hal` delay: spin hints for the first rounds, then delays that double
/// from one microsecond up to a cap.
#[derive(Clone, Debug)]
pub struct Backoff<D> {
    delay: D,
    cap_ns: u32,
}

impl<D: DelayNs> Backoff<D> {
    /// Rounds that only spin.
    const SPIN_ROUNDS: u32 = 16;
    const FIRST_NS: u32 = 1_000;

    /// Backs off on `delay`, never longer than `cap_ns` nanoseconds at a time.
    pub fn new(delay: D, cap_ns: u32) -> Self {
        Self { delay, cap_ns }
    }
}

impl<D: DelayNs> Relax for Backoff<D> {
    fn relax(&mut self, round: u32) {
        match round.checked_sub(Self::SPIN_ROUNDS) {
            None => core::hint::spin_loop(),
            Some(doublings) => {
                let wanted = Self::FIRST_NS.checked_shl(doublings.min(21)).unwrap_or(u32::MAX);
                self.delay.delay_ns(wanted.min(self.cap_ns));
            }
        }
    }
}

/// The one deadline of a switch. The clock is not read until the first wait, so an uncontended switch costs no clock read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Deadline {
    limit_cycles: u64,
    started_cycles: Option<u64>,
}

impl Deadline {
    /// A deadline `limit_cycles` after the first time it is asked.
    pub const fn after(limit_cycles: u64) -> Self {
        Self { limit_cycles, started_cycles: None }
    }

    /// Whether the limit has passed; starts the clock on the first call.
    pub fn expired<C: Clock>(&mut self, clock: &C) -> bool {
        self.expired_at(clock.now_cycles())
    }

    /// [`expired`](Deadline::expired) for a caller that has read the clock.
    pub fn expired_at(&mut self, now_cycles: u64) -> bool {
        let started = *self.started_cycles.get_or_insert(now_cycles);
        now_cycles.wrapping_sub(started) >= self.limit_cycles
    }

    /// The same deadline, counted from `now_cycles`.
    pub const fn started_at(self, now_cycles: u64) -> Self {
        Self { started_cycles: Some(now_cycles), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use std::vec::Vec;

    struct Hand(Cell<u64>);

    impl Clock for Hand {
        fn now_cycles(&self) -> u64 {
            self.0.get()
        }

        fn frequency_hz(&self) -> u64 {
            1
        }
    }

    #[test]
    fn deadline_starts_at_the_first_question() {
        let clock = Hand(Cell::new(100));
        let mut deadline = Deadline::after(10);
        clock.0.set(500);
        assert!(!deadline.expired(&clock));
        clock.0.set(509);
        assert!(!deadline.expired(&clock));
        clock.0.set(510);
        assert!(deadline.expired(&clock));
    }

    #[test]
    fn deadline_holds_across_the_wrap_of_the_counter() {
        let clock = Hand(Cell::new(u64::MAX - 4));
        let mut deadline = Deadline::after(10);
        assert!(!deadline.expired(&clock));
        clock.0.set(4);
        assert!(!deadline.expired(&clock));
        clock.0.set(5);
        assert!(deadline.expired(&clock));
    }

    #[test]
    fn back_off_doubles_up_to_its_cap() {
        struct Log(Vec<u32>);
        impl DelayNs for Log {
            fn delay_ns(&mut self, ns: u32) {
                self.0.push(ns);
            }
        }
        let mut backoff = Backoff::new(Log(Vec::new()), 5_000);
        for round in 0..22 {
            backoff.relax(round);
        }
        assert_eq!(backoff.delay.0, [1_000, 2_000, 4_000, 5_000, 5_000, 5_000]);
        backoff.relax(u32::MAX);
        assert_eq!(backoff.delay.0.last(), Some(&5_000));
    }
}
