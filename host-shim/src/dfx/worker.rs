//! A thread of a session, and a wait for its end that has an end itself.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::session::SessionError;

/// A running thread that comes back with a `T`.
pub(super) struct Worker<T> {
    role: &'static str,
    result: Receiver<T>,
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
            Ok(_) => Ok(Self { role, result }),
            Err(error) => Err(SessionError::Thread { role, error }),
        }
    }

    /// Waits for its end, up to `limit`.
    ///
    /// # Errors
    /// [`SessionError::Panicked`], or [`SessionError::Stuck`] when it still runs.
    pub(super) fn join(self, limit: Duration) -> Result<T, SessionError> {
        self.result.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => SessionError::Stuck { role: self.role, limit },
            RecvTimeoutError::Disconnected => SessionError::Panicked(self.role),
        })
    }
}
