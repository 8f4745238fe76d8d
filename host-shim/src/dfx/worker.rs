//! A thread of a session, and a wait for its end that has an end itself.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::session::SessionError;

/// A running thread that comes back with a `T`.
pub(super) struct Worker<T> {
    role: &'static str,
    result: Receiver<T>,
    thread: JoinHandle<()>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a thread for `role`.
    ///
    /// # Errors
    /// [`SessionError::Thread`] when the system has none to give.
    pub(super) fn spawn(
        role: &'static str,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Self, SessionError> {
        let (done, result) = mpsc::sync_channel(1);
        let body = move || {
            // Nobody may wait any more.
            let _ = done.send(run());
        };
        match thread::Builder::new().name(format!("sluice-{role}")).spawn(body) {
            Ok(thread) => Ok(Self { role, result, thread }),
            Err(error) => Err(SessionError::Thread { role, error }),
        }
    }

    /// Waits for its end, up to `limit`.
    ///
    /// # Errors
    /// [`SessionError::Panicked`], or [`SessionError::Stuck`] when it still runs.
    pub(super) fn join(self, limit: Duration) -> Result<T, SessionError> {
        let result = self.result.recv_timeout(limit);
        if matches!(result, Err(RecvTimeoutError::Timeout)) {
            return Err(SessionError::Stuck { role: self.role, limit });
        }
        // It has nothing left to do.
        let ended = self.thread.join();
        result.ok().filter(|_| ended.is_ok()).ok_or(SessionError::Panicked(self.role))
    }
}
