//! Collectives: what a model that communicates needs of the host, as hooks that a runtime fills in.
//!
//! ```text
//!   load ──► first_exec ──► enqueue_proxy … ──────────────► semaphore_check ──► free
//!   model     before the      per execution, when staged     when the model      with the model
//!   is loaded first is staged   └─ not run: withdraw_proxy    is removed
//! ```
//!
//! A model that has no collective streams has no context, and none of this is called. The hooks of one context are never
//! called at the same time, but for [`enqueue_proxy`](Context::enqueue_proxy) and
//! [`withdraw_proxy`](Context::withdraw_proxy) of different executions beside [`first_exec`](Context::first_exec) of none.
//!
//! These two are called while the unit's line is locked. A hook that calls the unit from there would wait for itself; it
//! panics instead, and nothing is staged. That goes for a kickoff too; a staged execution that a hook drops is taken out of
//! the line once the hook has returned.
//!
//! [`LoopBack`] is the implementation for a device that has no peers: what a stream sends comes back to it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, ThreadId};

use sluice_core::exec::{NrtStatus, Ticket};
use sluice_core::mmio::TpbId;

/// What collectives are told of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CollectiveModel {
    /// Its name.
    pub name: String,
    /// The TPB whose executions carry the proxy tasks: the model's first.
    pub first_tpb: TpbId,
    /// Streams of all its programs together, at least one.
    pub streams: u64,
}

/// A hook that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{hook} of the collectives: {reason}")]
pub struct CollectiveError {
    /// The hook.
    pub hook: &'static str,
    /// What is wrong, in words.
    pub reason: String,
    /// The status that the C interface reports for it.
    pub status: NrtStatus,
}

/// Where collective contexts come from.
pub trait Collectives: fmt::Debug + Send + Sync {
    /// A context for a model that is being loaded. May block, as a load may.
    ///
    /// # Errors
    /// The load fails with it, and nothing of the model stays.
    fn load(&self, model: &CollectiveModel) -> Result<Box<dyn Context>, CollectiveError>;
}

/// The collective side of one loaded model.
pub trait Context: fmt::Debug + Send + Sync {
    /// Makes ready what only an execution needs. Called before the first execution is staged, and again before each later
    /// one until it has succeeded. May block; other executions of the model wait for it, so that staging one from here panics.
    ///
    /// # Errors
    /// Nothing is staged then.
    fn first_exec(&self) -> Result<(), CollectiveError>;

    /// Queues the proxy tasks of one execution and returns what its DMA increment word is to hold. Called when it is staged,
    /// once however many TPBs it runs on. Must not block: other executions of the unit wait for it. Must not call the unit.
    ///
    /// # Errors
    /// Nothing is staged then.
    fn enqueue_proxy(&self, ticket: Ticket) -> Result<u32, CollectiveError>;

    /// Takes back the proxy tasks of an execution that will not run. Must neither block nor call the unit.
    fn withdraw_proxy(&self, ticket: Ticket);

    /// Looks, when the model is removed, whether its semaphores are as a whole number of executions leaves them.
    ///
    /// # Errors
    /// The removal reports it; the model is gone all the same.
    fn semaphore_check(&self) -> Result<(), CollectiveError>;

    /// Gives back what the context holds. Called once, last.
    fn free(&self);
}

thread_local! {
    /// Whether this thread is in a hook that is called while the line is locked.
    static LOCKED: Cell<bool> = const { Cell::new(false) };
}

/// Calls a hook while the line is locked.
pub(super) fn locked<R>(hook: impl FnOnce() -> R) -> R {
    marked(true, hook)
}

/// Ends a unit that nobody else has any more, in a hook of another unit too: it does not wait for that one.
pub(super) fn of_no_other<R>(end: impl FnOnce() -> R) -> R {
    marked(false, end)
}

fn marked<R>(is_locked: bool, run: impl FnOnce() -> R) -> R {
    /// Also when that panics.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            LOCKED.set(self.0);
        }
    }
    let _restore = Restore(LOCKED.replace(is_locked));
    run()
}

/// Whether this is a hook that is called while the line is locked.
pub(super) fn is_locked() -> bool {
    LOCKED.get()
}

/// Comes before the line is locked: whoever has it locked is not to wait for it.
///
/// # Panics
/// In a hook that has it locked.
pub(super) fn not_locked() {
    assert!(!is_locked(), "a hook of the collectives calls the unit that waits for it");
}

/// The context of a loaded model, freed with it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) context: Box<dyn Context>,
    ready: Mutex<bool>,
    /// The thread that is in `first_exec`.
    preparing: Mutex<Option<ThreadId>>,
}

impl Held {
    pub(super) fn new(context: Box<dyn Context>) -> Self {
        Self { context, ready: Mutex::new(false), preparing: Mutex::new(None) }
    }

    /// Sees to it that `first_exec` has succeeded once.
    ///
    /// # Panics
    /// In that hook, which would wait for itself.
    pub(super) fn prepare(&self) -> Result<(), CollectiveError> {
        let mut ready = match self.ready.try_lock() {
            Ok(ready) => ready,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let is_own = *self.preparing() == Some(thread::current().id());
                assert!(!is_own, "a hook of the collectives stages an execution that waits for it");
                self.ready.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        if !*ready {
            let _preparing = Preparing::of(self);
            self.context.first_exec()?;
            *ready = true;
        }
        Ok(())
    }

    fn preparing(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.preparing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says which thread is in `first_exec`, until it is not, be it by a panic.
struct Preparing<'a>(&'a Held);

impl<'a> Preparing<'a> {
    fn of(held: &'a Held) -> Self {
        *held.preparing() = Some(thread::current().id());
        Self(held)
    }
}

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        *self.0.preparing() = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.context.free();
    }
}

/// Collectives of a device without peers: each stream of an execution raises one semaphore, and lowers it again when its
/// message has come back.
///
/// Messages come back at once, or, [held](Self::holding), when they are [delivered](Self::deliver).
#[derive(Clone, Debug, Default)]
pub struct LoopBack {
    wire: Arc<Mutex<Wire>>,
}

#[derive(Debug, Default)]
struct Wire {
    holds: bool,
    /// Contexts loaded so far, and how many of them are not freed.
    loaded: u64,
    live: u64,
    /// Messages under way, one per stream, by context and execution.
    under_way: BTreeMap<(u64, Ticket), u64>,
    delivered: u64,
}

impl LoopBack {
    /// Collectives that keep every message until it is delivered.
    pub fn holding() -> Self {
        let loop_back = Self::default();
        loop_back.lock().holds = true;
        loop_back
    }

    /// Lets all messages come back; returns how many there were.
    pub fn deliver(&self) -> u64 {
        let mut wire = self.lock();
        let messages = std::mem::take(&mut wire.under_way).into_values().sum();
        wire.delivered += messages;
        messages
    }

    /// Messages that have come back so far.
    pub fn delivered(&self) -> u64 {
        self.lock().delivered
    }

    /// Contexts that are loaded and not freed.
    pub fn contexts(&self) -> u64 {
        self.lock().live
    }

    fn lock(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collectives for LoopBack {
    fn load(&self, model: &CollectiveModel) -> Result<Box<dyn Context>, CollectiveError> {
        // The increment of an execution has to say how many there are.
        let Ok(streams) = u32::try_from(model.streams) else {
            return Err(CollectiveError {
                hook: "load",
                reason: format!("{} streams, at most {}", model.streams, u32::MAX),
                status: NrtStatus::INVALID,
            });
        };
        let mut wire = self.lock();
        wire.loaded += 1;
        wire.live += 1;
        Ok(Box::new(Looped { number: wire.loaded, streams, loop_back: self.clone() }))
    }
}

/// The context of one model on a [`LoopBack`].
#[derive(Debug)]
struct Looped {
    number: u64,
    streams: u32,
    loop_back: LoopBack,
}

impl Context for Looped {
    fn first_exec(&self) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn enqueue_proxy(&self, ticket: Ticket) -> Result<u32, CollectiveError> {
        let mut wire = self.loop_back.lock();
        if wire.holds {
            wire.under_way.insert((self.number, ticket), self.streams.into());
        } else {
            wire.delivered += u64::from(self.streams);
        }
        Ok(self.streams)
    }

    fn withdraw_proxy(&self, ticket: Ticket) {
        self.loop_back.lock().under_way.remove(&(self.number, ticket));
    }

    fn semaphore_check(&self) -> Result<(), CollectiveError> {
        let wire = self.loop_back.lock();
        let own = wire.under_way.range((self.number, Ticket(0))..=(self.number, Ticket(u64::MAX)));
        match own.map(|(_, messages)| messages).sum() {
            0u64 => Ok(()),
            left => Err(CollectiveError {
                hook: "semaphore_check",
                reason: format!("{left} messages have not come back"),
                status: NrtStatus::EXEC_HW_ERR_COLLECTIVES,
            }),
        }
    }

    fn free(&self) {
        self.loop_back.lock().live -= 1;
    }
}
