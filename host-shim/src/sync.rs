//! Locks, counters and shared pointers of the pieces that threads race for: the standard library's, or, in builds with
//! `--cfg loom`, loom's, which tries their interleavings.
//!
//! loom takes sequentially consistent accesses for acquire and release. Here they get fences around them, which is what
//! makes them more than that; a process with `WEAKENED` in its environment leaves the fences out, to show that a piece needs
//! them.

#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU32},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use explored::*;

#[cfg(loom)]
mod explored {
    use std::sync::atomic::Ordering;
    use std::sync::{LazyLock, LockResult, PoisonError};
    use std::time::Duration;

    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
    pub(crate) use loom::thread::yield_now;

    /// A variable of the environment: sequentially consistent accesses only acquire and release.
    pub(crate) const WEAKENED: &str = "SLUICE_LOOM_WEAKENED";

    static IS_WEAKENED: LazyLock<bool> = LazyLock::new(|| std::env::var_os(WEAKENED).is_some());

    fn fenced<R>(order: Ordering, weaker: Ordering, access: impl FnOnce(Ordering) -> R) -> R {
        if order != Ordering::SeqCst {
            return access(order);
        }
        if *IS_WEAKENED {
            return access(weaker);
        }
        loom::sync::atomic::fence(Ordering::SeqCst);
        let result = access(weaker);
        loom::sync::atomic::fence(Ordering::SeqCst);
        result
    }

    #[derive(Debug)]
    pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

    impl AtomicBool {
        pub(crate) fn new(value: bool) -> Self {
            Self(loom::sync::atomic::AtomicBool::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> bool {
            fenced(order, Ordering::Acquire, |order| self.0.load(order))
        }

        pub(crate) fn store(&self, value: bool, order: Ordering) {
            fenced(order, Ordering::Release, |order| self.0.store(value, order));
        }
    }

    #[derive(Default, Debug)]
    pub(crate) struct AtomicU32(loom::sync::atomic::AtomicU32);

    impl AtomicU32 {
        pub(crate) fn load(&self, order: Ordering) -> u32 {
            fenced(order, Ordering::Acquire, |order| self.0.load(order))
        }

        pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            fenced(order, Ordering::AcqRel, |order| self.0.fetch_add(value, order))
        }

        pub(crate) fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
            fenced(order, Ordering::AcqRel, |order| self.0.fetch_sub(value, order))
        }
    }

    #[derive(Default, Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        /// A limit of zero has passed; any other one never does, so that a sleep without end is reported.
        pub(crate) fn wait_timeout_while<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            limit: Duration,
            mut condition: impl FnMut(&mut T) -> bool,
        ) -> LockResult<(MutexGuard<'a, T>, ())> {
            while !limit.is_zero() && condition(&mut guard) {
                guard = self.0.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            Ok((guard, ()))
        }
    }
}
