//! A soak of the compute-resource build: threads that load, build, execute and remove models of one unit at random.
//!
//! ```text
//!   threads ──► bindings: tensors with what they have to hold ──┐
//!           ──► models: shared, removed under each other's feet ┼──► one unit on the simulated device
//!           ──► common inputs: anybody moves them ──────────────┘
//! ```
//!
//! Every byte of every tensor is compared with a computation of the host's own, unused tensors included. In the end nothing
//! is in flight, every ticket went to one execution, and the heap is used as before, tag by tag.

mod binding;
#[path = "../../../host-shim/tests/common/expected.rs"]
mod expected;
#[path = "../../../host-shim/tests/common/random.rs"]
mod random;
mod recipes;
mod totals;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use sluice_host::device::Device;
use sluice_host::device::heap::Heap;
use sluice_host::device::sim::{SimConfig, SimDevice};
use sluice_host::kbl::{ModelHandle, Unit, UnitOptions};

use binding::Common;
use random::Dice;
use recipes::Recipe;
pub use totals::Totals;
use worker::Worker;

/// When a soak is over.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this time.
    Elapsed(Duration),
    /// After so many executions that ended well.
    Executions(u64),
}

/// Far less room than the threads want, so that both ways to have none are met.
const OPTIONS: UnitOptions = UnitOptions {
    exec_ring: 256,
    exec_ring_rx: None,
    depth: 24,
    opaque_engine_time: Duration::from_micros(20),
    phase_log: 64,
};

/// Longer than the device takes for what is in flight at the end.
const END: Duration = Duration::from_secs(120);

/// What the threads share.
struct Soak {
    unit: Unit<SimDevice>,
    heap: Heap,
    device: Arc<SimDevice>,
    recipes: Vec<Recipe>,
    /// By recipe.
    loaded: Vec<Mutex<Option<ModelHandle>>>,
    common: Common,
    until: Until,
    started: Instant,
    executions: AtomicU64,
    failed: AtomicBool,
}

impl Soak {
    fn is_over(&self) -> bool {
        let reached = match self.until {
            Until::Elapsed(time) => self.started.elapsed() >= time,
            Until::Executions(count) => self.executions.load(Ordering::Relaxed) >= count,
        };
        reached || self.failed.load(Ordering::Relaxed)
    }

    fn count_execution(&self) {
        self.executions.fetch_add(1, Ordering::Relaxed);
    }
}

/// A lock that stays usable when a thread has failed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `threads` threads on one unit, with choices that follow from `seed`.
///
/// # Errors
/// A wrong byte, a lost ticket, memory that did not come back, or a call that failed without a reason.
pub fn run(threads: u64, seed: u64, until: Until) -> anyhow::Result<Totals> {
    let config = SimConfig { ram_bytes: 1 << 30, ..SimConfig::default() };
    let device = Arc::new(SimDevice::start(config)?);
    let ram = device.map().ram;
    let heap = Heap::new(ram.base, ram.bytes);
    let unit = Unit::open(Arc::clone(&device), heap.clone(), OPTIONS)?;
    let recipes = recipes::all()?;
    let soak = Soak {
        loaded: recipes.iter().map(|_| Mutex::default()).collect(),
        common: Common::new(&heap, &device, &mut Dice(seed))?,
        recipes,
        unit,
        heap,
        device,
        until,
        started: Instant::now(),
        executions: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    let before = soak.heap.usage();

    let work = |thread| {
        let seed = seed ^ (thread << 32);
        let worked = Worker::new(&soak, seed).and_then(Worker::run);
        soak.failed.fetch_or(worked.is_err(), Ordering::Relaxed);
        worked.with_context(|| format!("thread {thread} of seed {seed:#x}"))
    };
    let worked = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked")));
        joined.collect::<Vec<_>>()
    });
    let mut totals = Totals::default();
    for worked in worked {
        totals += worked??;
    }
    end(soak, &before, &totals)?;
    Ok(totals)
}

fn end(soak: Soak, before: &sluice_host::device::heap::HeapUsage, totals: &Totals) -> anyhow::Result<()> {
    let Soak { unit, heap, loaded, common, .. } = soak;
    for model in loaded.iter().filter_map(|slot| *lock(slot)) {
        unit.unload(model, END)?;
    }
    let in_flight = unit.in_flight();
    ensure!(in_flight == 0, "{in_flight} executions of models that are gone");
    ensure!(heap.usage() == *before, "before: {before}\nafter: {}", heap.usage());
    totals.check_tickets(unit.tickets())?;
    let rearms = unit.rearms();
    ensure!(rearms == 0, "TPBs were set up anew {rearms} times");
    unit.close(END)?;
    drop((unit, common));
    let usage = heap.usage();
    ensure!(usage.free_bytes == usage.total_bytes, "in the end: {usage}");
    Ok(())
}
