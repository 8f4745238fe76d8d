//! A count that many raise and others wait for, with no wake-up lost.
//!
//! ```text
//!   waiter                          raiser
//!   waiters + 1   ──┐               count + 1
//!   count moved?    │ one of them   waiters > 0? ── lock, notify
//!   no: sleep     ──┘ sees the other
//! ```

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// An event count, on lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Progress {
    count: AtomicU32,
    waiters: AtomicU32,
    lock: Mutex<()>,
    moved: Condvar,
}

impl Progress {
    /// Raises the count and wakes everyone who waits. Cheap while nobody does.
    pub(super) fn raise(&self) {
        // Sequentially consistent with the waiter's two accesses: either it sees the count, or this sees the waiter.
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            // A waiter that has looked and not yet slept holds the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.moved.notify_all();
        }
    }

    /// The count.
    pub(super) fn get(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Blocks until the count differs from `seen` or `timeout` has passed, and returns it.
    pub(super) fn wait(&self, seen: u32, timeout: Duration) -> u32 {
        if self.get() == seen && !timeout.is_zero() {
            let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiters.fetch_add(1, Ordering::SeqCst);
            let waited = self.moved.wait_timeout_while(guard, timeout, |()| self.get() == seen);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            self.waiters.fetch_sub(1, Ordering::SeqCst);
        }
        self.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn every_raise_ends_a_wait() {
        const ROUNDS: u32 = 10_000;
        let [there, back] = [Progress::default(), Progress::default()];
        thread::scope(|scope| {
            scope.spawn(|| {
                for seen in 0..ROUNDS {
                    assert_ne!(there.wait(seen, Duration::from_secs(60)), seen);
                    back.raise();
                }
            });
            for seen in 0..ROUNDS {
                there.raise();
                assert_ne!(back.wait(seen, Duration::from_secs(60)), seen);
            }
        });
        assert_eq!((there.get(), back.get()), (ROUNDS, ROUNDS));
    }

    #[test]
    fn a_wait_for_nothing_ends_with_its_bound() {
        let progress = Progress::default();
        assert_eq!(progress.wait(0, Duration::ZERO), 0);
        assert_eq!(progress.wait(0, Duration::from_millis(1)), 0);
        progress.raise();
        assert_eq!(progress.wait(0, Duration::MAX), 1);
    }
}
