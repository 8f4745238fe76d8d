//! How a thread of the simulated device sleeps and is woken.
//!
//! A wake-up is remembered until the next wait, so none is lost between a look at memory and the wait. A waiter looks a while
//! before it sleeps, as long as that has paid lately.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::patience::Patience;

/// One thread's place to wait.
#[derive(Debug, Default)]
pub(super) struct Parker {
    thread: OnceLock<Thread>,
    patience: Patience,
    woken: AtomicBool,
    asleep: AtomicBool,
    sleeps: AtomicU64,
}

impl Parker {
    /// Blocks the calling thread until it was woken since its last wait, or `bound` has passed. Always called by the same
    /// thread.
    pub(super) fn wait(&self, bound: Duration) {
        let mut looks = self.patience.begin();
        while looks.another() {
            if self.take() {
                self.patience.learn(looks);
                return;
            }
        }
        self.patience.learn(looks);
        self.thread.get_or_init(thread::current);
        let start = Instant::now();
        self.asleep.store(true, Ordering::SeqCst);
        while !self.take() {
            let Some(left) = bound.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else { break };
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            thread::park_timeout(left);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Ends the present wait, or the next one.
    pub(super) fn wake(&self) {
        // Whatever the waker stored before is visible to the woken thread. Sequentially consistent with the waiter's two
        // accesses: either it finds itself woken when it has said that it sleeps, or this sees that it does.
        if !self.woken.swap(true, Ordering::SeqCst)
            && self.asleep.load(Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Whether the thread sleeps and nobody has woken it.
    pub(super) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) && !self.woken.load(Ordering::SeqCst)
    }

    /// Times that the thread went to sleep.
    pub(super) fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }

    fn take(&self) -> bool {
        self.woken.load(Ordering::SeqCst) && self.woken.swap(false, Ordering::SeqCst)
    }
}
