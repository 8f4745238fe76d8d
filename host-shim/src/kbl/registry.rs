//! Loaded models by handle, with counted references and a removal that ends.
//!
//! ```text
//!   add ──► handle ──acquire──► Held ──drop──► count − 1
//!                │                                          │ last one, and a removal waits: wake it
//!                └──removal: refuse new ones, wait for 0 ◄──┘
//!                                               ├─ then unlink
//!                                               └─ not in time: as before, name the holders
//! ```
//!
//! | word | writer → reader | ordering | what it says |
//! |---|---|---|---|
//! | `held[holder]` | every user → removal | sequentially consistent | references that such a holder has |
//! | `removing` | removal → every user | sequentially consistent | no new references; whoever drops one has to wake the removal |
//!
//! Both are sequentially consistent because each side stores its own word and then loads the other's: a user that
//! misses `removing` has lowered its count before the removal looks at it.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::PoisonError;
use std::sync::atomic::{self, Ordering};
use std::time::{Duration, Instant};

use sluice_core::exec::{NrtStatus, Ticket};

use super::error::first_of;
use crate::device::process::{Forked, Process};
use crate::sync::{Arc, AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, yield_now};

/// Number of a loaded model: unique in the process until 2^32 − 1 models were loaded, never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModelHandle(NonZeroU32);

impl ModelHandle {
    /// The handle with this number; `None` for 0, which no model has.
    pub const fn from_raw(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for ModelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where handles come from: incremented before use, 0 skipped.
#[derive(Debug)]
pub(super) struct HandleCounter(pub(super) atomic::AtomicU32);

impl HandleCounter {
    /// The counter of this process.
    pub(super) fn global() -> &'static Self {
        static COUNTER: HandleCounter = HandleCounter(atomic::AtomicU32::new(0));
        &COUNTER
    }

    fn next(&self) -> ModelHandle {
        loop {
            let number = self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if let Some(handle) = ModelHandle::from_raw(number) {
                return handle;
            }
        }
    }
}

/// Who holds a reference to a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// Someone who looks at the model.
    Query,
    /// A build of rings and swaps.
    Build,
    /// An execution that is staged or runs.
    Execution,
}

impl Holder {
    const ALL: [Self; 3] = [Self::Query, Self::Build, Self::Execution];

    const fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Build => "build",
            Self::Execution => "execution",
        }
    }
}

/// References to one model, by holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holders([u32; Holder::ALL.len()]);

impl Holders {
    /// References of that holder.
    pub fn count(&self, holder: Holder) -> u32 {
        self.0[holder as usize]
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|&count| count == 0)
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lead = "";
        for holder in Holder::ALL {
            let count = self.count(holder);
            if count > 0 {
                write!(f, "{lead}{} {count}", holder.name())?;
                lead = ", ";
            }
        }
        Ok(())
    }
}

/// A registry operation that was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegistryError {
    /// No model has this handle.
    #[error("Invalid model {0}")]
    Unknown(ModelHandle),
    /// The models are another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The handle of a new model is taken: the counter has gone round.
    #[error("model handle {0} is in use")]
    Duplicate(ModelHandle),
    /// The model is being removed, and nobody may begin to use it unless the removal gives up.
    #[error("model {0} is being removed")]
    Removing(ModelHandle),
    /// The model is still in use; it stays loaded.
    #[error(
        "model {handle} must be stopped before unloading: in use after {waited_ms} ms, references held by {holders}{}",
        listed(.tickets)
    )]
    Busy {
        /// The model.
        handle: ModelHandle,
        /// How long the removal waited.
        waited_ms: u64,
        /// Who holds it.
        holders: Holders,
        /// Its executions that are staged or running, oldest first.
        tickets: Vec<Ticket>,
    },
}

/// Tickets in parentheses, the first few of them; nothing if there are none.
fn listed(tickets: &[Ticket]) -> String {
    match tickets {
        [] => String::new(),
        _ => format!(" (tickets {})", first_of(tickets, 8, ", ")),
    }
}

impl RegistryError {
    /// The status that the C interface reports for it.
    pub fn status(&self) -> NrtStatus {
        match self {
            Self::Unknown(_) | Self::Duplicate(_) => NrtStatus::INVALID_HANDLE,
            Self::Removing(_) | Self::Busy { .. } => NrtStatus::INVALID,
            Self::Forked(_) => NrtStatus::FAILURE,
        }
    }
}

/// The models of one unit.
#[derive(Debug)]
pub(super) struct Registry<T> {
    handles: &'static HandleCounter,
    process: Process,
    entries: Mutex<BTreeMap<ModelHandle, Arc<Entry<T>>>>,
}

type Entries<'a, T> = MutexGuard<'a, BTreeMap<ModelHandle, Arc<Entry<T>>>>;

#[derive(Debug)]
struct Entry<T> {
    value: T,
    process: Process,
    held: [AtomicU32; Holder::ALL.len()],
    removing: AtomicBool,
    released: (Mutex<()>, Condvar),
}

impl<T> Registry<T> {
    /// An empty registry that numbers its models by `handles`.
    pub(super) fn new(handles: &'static HandleCounter) -> Self {
        Self { handles, process: Process::this(), entries: Mutex::new(BTreeMap::new()) }
    }

    /// Enters `value` under a new handle.
    pub(super) fn add(&self, value: T) -> Result<ModelHandle, RegistryError> {
        let handle = self.handles.next();
        let entry = Arc::new(Entry {
            value,
            process: self.process,
            held: Default::default(),
            removing: AtomicBool::new(false),
            released: Default::default(),
        });
        let mut entries = self.lock()?;
        if entries.contains_key(&handle) {
            return Err(RegistryError::Duplicate(handle));
        }
        entries.insert(handle, entry);
        Ok(handle)
    }

    /// The handles of all models, also of one whose removal waits, in order of their numbers.
    pub(super) fn handles(&self) -> Result<Vec<ModelHandle>, RegistryError> {
        Ok(self.lock()?.keys().copied().collect())
    }

    /// A counted reference to the model.
    pub(super) fn acquire(&self, handle: ModelHandle, holder: Holder) -> Result<Held<T>, RegistryError> {
        let entries = self.lock()?;
        let entry = usable(&entries, handle)?;
        // Counted under the lock: a removal that begins later sees it.
        entry.held[holder as usize].fetch_add(1, Ordering::SeqCst);
        Ok(Held { entry: Arc::clone(entry), holder })
    }

    /// Looks at the model for a moment, without a reference: whoever adds, acquires or removes models waits meanwhile.
    pub(super) fn look<R>(
        &self,
        handle: ModelHandle,
        look: impl FnOnce(&T) -> R,
    ) -> Result<R, RegistryError> {
        let entries = self.lock()?;
        usable(&entries, handle).map(|entry| look(&entry.value))
    }

    /// Begins to take the model out: nobody gets a new reference.
    pub(super) fn removal(&self, handle: ModelHandle) -> Result<Removal<'_, T>, RegistryError> {
        let entries = self.lock()?;
        let entry = Arc::clone(usable(&entries, handle)?);
        entry.removing.store(true, Ordering::SeqCst);
        Ok(Removal { registry: self, handle, entry: Some(entry), started: Instant::now() })
    }

    /// Leaves the models to the process that loaded them.
    pub(super) fn forget(&mut self) {
        // A thread of that process may have been at work on them.
        std::mem::forget(std::mem::replace(&mut self.entries, Mutex::new(BTreeMap::new())));
    }

    fn lock(&self) -> Result<Entries<'_, T>, Forked> {
        self.process.check()?;
        Ok(self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The entry with that handle, unless it is being removed.
fn usable<T>(
    entries: &BTreeMap<ModelHandle, Arc<Entry<T>>>,
    handle: ModelHandle,
) -> Result<&Arc<Entry<T>>, RegistryError> {
    match entries.get(&handle) {
        None => Err(RegistryError::Unknown(handle)),
        Some(entry) if entry.removing.load(Ordering::SeqCst) => Err(RegistryError::Removing(handle)),
        Some(entry) => Ok(entry),
    }
}

/// A model that is being removed. Dropped without having ended, it leaves the model as it was.
#[derive(Debug)]
pub(super) struct Removal<'a, T> {
    registry: &'a Registry<T>,
    handle: ModelHandle,
    /// `None` once it has ended.
    entry: Option<Arc<Entry<T>>>,
    started: Instant,
}

impl<T> Removal<'_, T> {
    /// Takes the model out, once nobody holds it. Blocks until `limit` after the removal began; `executions` tells then which
    /// ones hold it.
    pub(super) fn finish(
        mut self,
        limit: Duration,
        executions: impl FnOnce() -> Vec<Ticket>,
    ) -> Result<T, RegistryError> {
        let (handle, started) = (self.handle, self.started);
        // It has one until it ends, which is here.
        let Some(entry) = &self.entry else { unreachable!("removed twice") };
        if !entry.wait_released(limit.saturating_sub(started.elapsed())) {
            let holders = entry.holders();
            let waited_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            return Err(RegistryError::Busy { handle, waited_ms, holders, tickets: executions() });
        }
        let linked = self.registry.lock()?.remove(&handle);
        drop(linked);
        let Some(mut entry) = self.entry.take() else { unreachable!("removed twice") };
        loop {
            match Arc::try_unwrap(entry) {
                Ok(entry) => return Ok(entry.value),
                // Whoever counted down last is about to drop its pointer.
                Err(shared) => entry = shared,
            }
            yield_now();
        }
    }
}

impl<T> Drop for Removal<'_, T> {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            entry.removing.store(false, Ordering::SeqCst);
        }
    }
}

impl<T> Entry<T> {
    fn holders(&self) -> Holders {
        Holders(std::array::from_fn(|holder| self.held[holder].load(Ordering::SeqCst)))
    }

    fn release(&self, holder: Holder) {
        self.held[holder as usize].fetch_sub(1, Ordering::SeqCst);
        // A removal waits in the process that loaded the model.
        if self.removing.load(Ordering::SeqCst) && self.process.is_this() {
            let (lock, released) = &self.released;
            drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
            released.notify_all();
        }
    }

    /// Whether nobody holds the entry; waits up to `limit` for that.
    fn wait_released(&self, limit: Duration) -> bool {
        let (lock, released) = &self.released;
        let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            released
                .wait_timeout_while(guard, limit, |()| !self.holders().is_empty())
                .unwrap_or_else(PoisonError::into_inner),
        );
        self.holders().is_empty()
    }
}

/// A counted reference to a model. The model stays loaded while it lives.
#[derive(Debug)]
pub struct Held<T> {
    entry: Arc<Entry<T>>,
    holder: Holder,
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.entry.value
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        self.entry.release(self.holder);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(60);

    fn registry() -> Registry<&'static str> {
        Registry::new(HandleCounter::global())
    }

    fn remove<T>(registry: &Registry<T>, handle: ModelHandle, limit: Duration) -> Result<T, RegistryError> {
        registry.removal(handle)?.finish(limit, Vec::new)
    }

    #[test]
    fn handles_skip_zero_and_a_taken_one_is_refused() {
        static COUNTER: HandleCounter = HandleCounter(atomic::AtomicU32::new(u32::MAX - 1));
        let registry = Registry::new(&COUNTER);
        assert_eq!(registry.add("last").unwrap().get(), u32::MAX);
        let first = registry.add("first").unwrap();
        assert_eq!(first.get(), 1);
        COUNTER.0.store(0, Ordering::Relaxed);
        assert_eq!(registry.add("again"), Err(RegistryError::Duplicate(first)));
        assert_eq!(*registry.acquire(first, Holder::Query).unwrap(), "first");
    }

    #[test]
    fn a_removed_handle_is_unknown() {
        let registry = registry();
        let handle = registry.add("model").unwrap();
        let other = registry.add("other").unwrap();
        assert_eq!(registry.handles(), Ok(vec![handle, other]));
        assert_eq!(remove(&registry, handle, SHORT), Ok("model"));
        assert_eq!(registry.handles(), Ok(vec![other]));
        let error = registry.acquire(handle, Holder::Build).unwrap_err();
        assert_eq!(error.to_string(), format!("Invalid model {handle}"));
        assert_eq!(remove(&registry, handle, SHORT), Err(RegistryError::Unknown(handle)));
    }

    #[test]
    fn a_held_model_stays_and_its_holders_are_named() {
        let registry = registry();
        let handle = registry.add("model").unwrap();
        let held = [Holder::Execution, Holder::Build, Holder::Execution]
            .map(|holder| registry.acquire(handle, holder).unwrap());
        let error = remove(&registry, handle, SHORT).unwrap_err();
        assert!(error.to_string().ends_with("references held by build 1, execution 2"), "{error}");
        assert_eq!(*registry.acquire(handle, Holder::Query).unwrap(), "model");
        let removal = registry.removal(handle).unwrap();
        let error = registry.acquire(handle, Holder::Query).unwrap_err();
        assert_eq!((error.status(), error), (NrtStatus::INVALID, RegistryError::Removing(handle)));
        assert_eq!(registry.look(handle, |_| ()), Err(RegistryError::Removing(handle)));
        assert!(matches!(registry.removal(handle), Err(RegistryError::Removing(_))));
        drop(removal);
        drop(held);
        assert_eq!(registry.look(handle, |&model| model), Ok("model"));
        assert_eq!(remove(&registry, handle, SHORT), Ok("model"));
    }

    #[test]
    fn the_last_reference_wakes_the_removal() {
        let registry = registry();
        let handle = registry.add("model").unwrap();
        let held = registry.acquire(handle, Holder::Execution).unwrap();
        let (started, unlinked) = mpsc::channel();
        thread::scope(|scope| {
            let removal = scope.spawn(|| {
                started.send(()).unwrap();
                remove(&registry, handle, LONG)
            });
            unlinked.recv().unwrap();
            while registry.acquire(handle, Holder::Query).is_ok() {
                thread::yield_now();
            }
            drop(held);
            assert_eq!(removal.join().unwrap(), Ok("model"));
        });
    }

    #[test]
    fn users_and_removal_race_without_loss() {
        let dropped = Arc::new(());
        for _ in 0..200 {
            let token = Arc::clone(&dropped);
            let inner = Registry::new(HandleCounter::global());
            let handle = inner.add(token).unwrap();
            thread::scope(|scope| {
                for holder in [Holder::Build, Holder::Execution] {
                    let inner = &inner;
                    scope.spawn(move || while inner.acquire(handle, holder).is_ok() {});
                }
                remove(&inner, handle, LONG).unwrap();
            });
        }
        assert_eq!(Arc::strong_count(&dropped), 1);
    }
}
