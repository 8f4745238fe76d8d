//! The pipes between a session's threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Pipe;

/// A first-in-first-out hand-over with a bounded wait for the taker. Allocates once.
#[derive(Debug)]
pub struct WaitPipe<T> {
    items: Mutex<VecDeque<T>>,
    filled: Condvar,
}

impl<T> WaitPipe<T> {
    /// A pipe with room for `capacity` items; more would reallocate.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { items: Mutex::new(VecDeque::with_capacity(capacity)), filled: Condvar::new() }
    }

    fn items(&self) -> MutexGuard<'_, VecDeque<T>> {
        // A panic while the lock is held cannot leave a queue half changed.
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest item, waiting up to `timeout` for one.
    pub fn pop_wait(&self, timeout: Duration) -> Option<T> {
        let items = self.items();
        let (mut items, _) = self
            .filled
            .wait_timeout_while(items, timeout, |items| items.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        items.pop_front()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.items().is_empty()
    }
}

impl<T> Pipe<T> for WaitPipe<T> {
    fn push(&self, item: T) {
        let mut items = self.items();
        let was_empty = items.is_empty();
        items.push_back(item);
        drop(items);
        if was_empty {
            self.filled.notify_one();
        }
    }

    fn pop(&self) -> Option<T> {
        self.items().pop_front()
    }
}
