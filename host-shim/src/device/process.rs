#![allow(unsafe_code, reason = "registers a handler with the system, and forks in tests")]
//! Which process this is. A fork has all memory of its parent, and a device that belongs to the parent.
//!
//! ```text
//!   Process::this() ──► { forks so far }          fork ──► handler in the child: forks + 1
//!   is_this() ── one load ──► as many forks as then?
//! ```

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many forks lie between this process and the one that loaded the library. Counted in the child, before it runs.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// The system counts them.
static COUNTED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A process, as far as a fork differs from its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    id: u32,
    forks: u32,
}

impl Process {
    /// The one that asks.
    pub(crate) fn this() -> Self {
        static REGISTER: Once = Once::new();
        REGISTER.call_once(|| {
            // SAFETY: the handler is a function of this library, which is never unloaded, and only adds to an atomic,
            // as a child of a process with threads may.
            let registered = unsafe { libc::pthread_atfork(None, None, Some(in_child)) } == 0;
            COUNTED.store(registered, Ordering::Relaxed);
        });
        Self { id: std::process::id(), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Makes sure that it is the one that asks. Whatever a fork can reach comes behind this: a lock that was held when the
    /// process was forked is never let go of in the fork.
    pub(crate) fn check(self) -> Result<(), Forked> {
        match self.is_this() {
            true => Ok(()),
            false => Err(Forked { opened_by: self.id, here: std::process::id() }),
        }
    }

    /// Whether it is the one that asks. Costs a load.
    pub(crate) fn is_this(self) -> bool {
        match COUNTED.load(Ordering::Relaxed) {
            true => self.forks == FORKS.load(Ordering::Relaxed),
            false => self.id == std::process::id(),
        }
    }
}

/// A unit, or a heap, in the hands of a process that was forked from the one that made it. The device is that one's: nothing
/// is touched from here, and what it has in flight goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the device is driven by process {opened_by}, and this is process {here}, forked from it")]
pub struct Forked {
    /// Who made it.
    pub opened_by: u32,
    /// Who asks.
    pub here: u32,
}

/// Runs `child` in a fork, and returns whether it returned `true` there.
#[cfg(test)]
pub(crate) fn in_fork(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: other threads of the test may hold locks that the child never gets; the caller's closure takes none of theirs,
    // and the allocator's are whole in a child.
    let id = unsafe { libc::fork() };
    assert!(id >= 0, "cannot fork");
    if id == 0 {
        // SAFETY: only sets a timer, whose signal ends the child should it hang.
        unsafe { libc::alarm(60) };
        let is_good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: ends the child without running what belongs to the parent: its harness, its threads.
        unsafe { libc::_exit(i32::from(!is_good)) };
    }
    let mut status = 0;
    // SAFETY: the status is written to a variable that outlives the call.
    let waited = unsafe { libc::waitpid(id, &raw mut status, 0) };
    waited == id && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_another_process() {
        let parent = Process::this();
        assert_eq!(parent.check(), Ok(()));
        assert!(in_fork(|| {
            let child = Process::this();
            parent.check().is_err_and(|forked| forked.opened_by != forked.here)
                && child.is_this()
                && child != parent
                && in_fork(|| !child.is_this())
        }));
        assert!(!in_fork(|| false));
        assert!(parent.is_this());
    }
}
