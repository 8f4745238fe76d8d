//! How a thread of the simulated device sleeps and is woken.
//!
//! ```text
//!   waiter                              waker
//!   count as at the last wait? look on  count + 1
//!   asleep := 1                         asleep? := 0, unpark
//!   count as at the last wait? park
//! ```
//!
//! | word | writer | reader | ordering | what it publishes |
//! |---|---|---|---|---|
//! | `count` | wakers | waiter | sequentially consistent | whatever a waker stored before |
//! | `asleep` | both | wakers | sequentially consistent | that the waiter has looked at `count` for the last time |
//! | `seen` | waiter | anyone | relaxed | nothing: the waiter's own |
//!
//! A wake-up is remembered until the next wait, so none is lost between a look at memory and the wait. A waiter looks a while
//! before it sleeps, as long as that has paid lately; looking stores nothing that a waker has to fetch.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::patience::Patience;

/// What wakers write, on lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Wakes {
    count: AtomicU32,
    asleep: AtomicBool,
}

/// One thread's place to wait.
#[derive(Debug, Default)]
pub(super) struct Parker {
    wakes: Wakes,
    seen: AtomicU32,
    thread: OnceLock<Thread>,
    patience: Patience,
    sleeps: AtomicU64,
}

impl Parker {
    /// Blocks the calling thread until it was woken since its last wait, or `bound` has passed. Always called by the same
    /// thread. As long as it looks, `has_news` ends the wait as well: the wake-up, which comes behind the news, is then taken
    /// by the next wait.
    pub(super) fn wait(&self, bound: Duration, has_news: impl Fn() -> bool) {
        let mut looks = self.patience.begin();
        while looks.another() {
            if has_news() || self.take() {
                self.patience.learn(looks);
                return;
            }
        }
        self.patience.learn(looks);
        self.thread.get_or_init(thread::current);
        let start = Instant::now();
        loop {
            // Every time: a waker that was late may have reset it for a wake-up that was taken long ago.
            self.wakes.asleep.store(true, Ordering::SeqCst);
            if self.take() {
                break;
            }
            let Some(left) = bound.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else { break };
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            thread::park_timeout(left);
        }
        self.wakes.asleep.store(false, Ordering::SeqCst);
    }

    /// Ends the present wait, or the next one.
    pub(super) fn wake(&self) {
        // Sequentially consistent with the waiter's store and load: either it finds itself woken when it has said that it
        // sleeps, or this sees that it does.
        self.wakes.count.fetch_add(1, Ordering::SeqCst);
        if self.wakes.asleep.load(Ordering::SeqCst)
            && self.wakes.asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Whether the thread sleeps and nobody has woken it.
    pub(super) fn is_asleep(&self) -> bool {
        let asleep = self.wakes.asleep.load(Ordering::SeqCst);
        asleep && self.wakes.count.load(Ordering::SeqCst) == self.seen.load(Ordering::Relaxed)
    }

    /// Times that the thread went to sleep.
    pub(super) fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }

    fn take(&self) -> bool {
        let count = self.wakes.count.load(Ordering::SeqCst);
        let woken = count != self.seen.load(Ordering::Relaxed);
        if woken {
            self.seen.store(count, Ordering::Relaxed);
        }
        woken
    }
}
