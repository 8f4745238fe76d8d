//! The pipes between a session's threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Pipe;

/// A first-in-first-out hand-over with a bounded wait for the taker. Allocates once, and calls the kernel only to wait or to
/// end a wait.
#[derive(Debug)]
pub struct WaitPipe<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    /// Takers that wait.
    waiting: u32,
    /// Nobody is to wait any more.
    is_closed: bool,
}

impl<T> WaitPipe<T> {
    /// A pipe with room for `capacity` items; more would reallocate.
    pub fn with_capacity(capacity: usize) -> Self {
        let state = State { items: VecDeque::with_capacity(capacity), waiting: 0, is_closed: false };
        Self { state: Mutex::new(state), filled: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // A panic while the lock is held cannot leave a queue half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest item, waiting up to `timeout` for one unless the pipe is closed.
    pub fn pop_wait(&self, timeout: Duration) -> Option<T> {
        let mut state = self.state();
        if state.items.is_empty() && !state.is_closed {
            state.waiting += 1;
            (state, _) = self
                .filled
                .wait_timeout_while(state, timeout, |state| state.items.is_empty() && !state.is_closed)
                .unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        state.items.pop_front()
    }

    /// Ends every wait of takers, now and later. What is in the pipe, or is pushed yet, can still be taken.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.filled.notify_all();
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.state().items.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.state().items.is_empty()
    }
}

impl<T> Pipe<T> for WaitPipe<T> {
    fn push(&self, item: T) {
        let mut state = self.state();
        state.items.push_back(item);
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.filled.notify_one();
        }
    }

    fn pop(&self) -> Option<T> {
        self.state().items.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_closed_pipe_ends_waits_and_still_gives_what_is_in_it() {
        let pipe = Arc::new(WaitPipe::with_capacity(2));
        let taker = thread::spawn({
            let pipe = Arc::clone(&pipe);
            move || pipe.pop_wait(LONG)
        });
        while pipe.state().waiting == 0 {
            thread::yield_now();
        }
        pipe.close();
        assert_eq!(taker.join().expect("the taker ends"), None);
        pipe.push(7);
        assert_eq!(pipe.pop_wait(LONG), Some(7));
        assert_eq!(pipe.pop_wait(LONG), None, "nobody waits at a closed pipe");
    }
}
