//! The pieces of a unit that threads race for, in every interleaving that loom tries.
//!
//! | piece | what holds |
//! |---|---|
//! | registry | a removal ends, nobody uses what it has removed, one that gives up leaves everything as it was |
//! | rings, builds | of two for the same tensors one stays; an evicted one lives with its user, and not longer |
//! | line | an execution is staged before the stop or not at all; whoever drops one lets the next start |
//!
//! The line is that of a whole unit, whose device is the test. The order that the registry needs is left out once.

use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use loom::cell::Cell;
use loom::thread;
use sluice_core::dma::{Barrier, Placement, TemplateAddr};
use sluice_core::exec::NrtStatus;
use sluice_core::fmap::VarId;
use sluice_core::mem::DevAddr;
use sluice_core::mmio::{Half, QueueId};

use super::mock::{Bench, MockDevice, MockTpb, model};
use super::registry::{HandleCounter, Holder, ModelHandle, Registry, RegistryError};
use super::ring::Bundle;
use super::template::{Template, TemplateBuilder};
use super::{Running, StageError, Staged, UnitOptions};
use crate::device::heap::UsageTag;
use crate::neff::Neff;
use crate::sync::WEAKENED;

/// Never over, see `sync`.
const EVER: Duration = Duration::MAX;

/// Preemptions in a run with three threads; two are explored without a bound.
const PREEMPTIONS: usize = 3;

fn explore(preemptions: Option<usize>, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(scenario);
}

/// A model that says so when someone uses it while, or after, another thread ends it.
type Value = Cell<u32>;

fn use_once(registry: &Registry<Value>, handle: ModelHandle, holder: Holder) {
    match registry.acquire(handle, holder) {
        Ok(held) => assert_eq!(held.get(), 1),
        Err(RegistryError::Unknown(of) | RegistryError::Removing(of)) => assert_eq!(of, handle),
        Err(error) => panic!("{error}"),
    }
}

fn remove(registry: &Registry<Value>, handle: ModelHandle, limit: Duration) -> Result<(), RegistryError> {
    registry.removal(handle)?.finish(limit, Vec::new).map(|value| value.set(0))
}

/// A model, `users` threads that use it, and a removal.
fn a_removal_beside(users: &'static [Holder]) {
    explore((users.len() > 1).then_some(PREEMPTIONS), || {
        let registry = Rc::new(Registry::new(HandleCounter::global()));
        let handle = registry.add(Value::new(1)).unwrap();
        let users: Vec<_> = users
            .iter()
            .map(|&holder| {
                let registry = Rc::clone(&registry);
                thread::spawn(move || use_once(&registry, handle, holder))
            })
            .collect();
        remove(&registry, handle, EVER).unwrap();
        assert!(registry.acquire(handle, Holder::Query).is_err());
        users.into_iter().for_each(|user| user.join().unwrap());
    });
}

#[test]
fn a_removal_ends_and_nobody_uses_what_is_removed() {
    a_removal_beside(&[Holder::Build]);
}

#[test]
fn the_last_of_two_users_lets_the_removal_end() {
    a_removal_beside(&[Holder::Build, Holder::Execution]);
}

#[test]
fn a_count_and_a_mark_that_only_acquire_and_release_are_reported() {
    // In a process of its own: threads that sleep for ever end it.
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "kbl::interleavings::a_removal_ends_and_nobody_uses_what_is_removed"]);
    let weakened = again.arg("--nocapture").env(WEAKENED, "1").output().unwrap();
    let said = String::from_utf8_lossy(&weakened.stderr);
    assert!(!weakened.status.success() && said.contains("deadlock"), "{said}");
}

#[test]
fn a_removal_that_gives_up_leaves_the_model_in_use() {
    explore(None, || {
        let registry = Rc::new(Registry::new(HandleCounter::global()));
        let handle = registry.add(Value::new(1)).unwrap();
        let user = {
            let registry = Rc::clone(&registry);
            thread::spawn(move || use_once(&registry, handle, Holder::Execution))
        };
        let first = remove(&registry, handle, Duration::ZERO);
        let second = remove(&registry, handle, EVER);
        match first {
            Ok(()) => assert_eq!(second, Err(RegistryError::Unknown(handle))),
            Err(RegistryError::Busy { .. }) => assert_eq!(second, Ok(())),
            Err(error) => panic!("{error}"),
        }
        user.join().unwrap();
    });
}

#[test]
fn one_of_two_removals_has_the_model() {
    explore(Some(PREEMPTIONS), || {
        let registry = Rc::new(Registry::new(HandleCounter::global()));
        let handle = registry.add(Value::new(1)).unwrap();
        let [user, other] = [false, true].map(|removes| {
            let registry = Rc::clone(&registry);
            thread::spawn(move || match removes {
                false => use_once(&registry, handle, Holder::Query) == (),
                true => remove(&registry, handle, EVER).is_ok(),
            })
        });
        let mine = remove(&registry, handle, EVER).is_ok();
        user.join().unwrap();
        assert_ne!(mine, other.join().unwrap());
    });
}

/// A queue that copies variable 0 to variable 1.
fn template() -> Template {
    let mut builder = TemplateBuilder::new();
    let [from, to] = [0, 1].map(|var| TemplateAddr::new(VarId(var), 0).unwrap());
    builder.transfer(from.into(), to.into(), 4096, Barrier::Sow).unwrap();
    let pad = DevAddr(0x9000_0000);
    builder.finish(QueueId::new(3).unwrap(), UsageTag::DmaRingIo, pad).unwrap().unwrap()
}

/// Two threads want rings of a bundle that keeps one, each for variables that lie at its place of `places`.
fn two_want(places: [u64; 2]) {
    let device = MockDevice::new(1);
    explore(None, move || {
        let (heap, bundle) = (device.heap(), Rc::new(Bundle::new(template(), 1)));
        let [mine, other] = places.map(|place| {
            let (device, heap, bundle) = (Arc::clone(&device), heap.clone(), Rc::clone(&bundle));
            let at = move |VarId(var)| {
                Ok(Placement { base: DevAddr(place + (u64::from(var) << 32)), size_bytes: 4096 })
            };
            move || {
                let ring = bundle.ring(&*device, &heap, at).unwrap();
                bundle.keep(&ring);
                ring
            }
        });
        let other = thread::spawn(other);
        let ring = mine();
        drop(mine);
        let (mine, other) = (ring, other.join().unwrap());
        let one = 2 * mine.size().bytes();
        let used = || heap.usage().used_bytes(UsageTag::DmaRingIo);
        // Two that are not faster than each other have a ring each.
        let is_same = mine.base(Half::Tx) == other.base(Half::Tx);
        assert!(!is_same || places[0] == places[1]);
        assert_eq!(used(), if is_same { one } else { 2 * one });
        drop((mine, other));
        assert_eq!(used(), one, "what is kept");
        drop(bundle);
        assert_eq!(used(), 0);
    });
}

#[test]
fn of_two_rings_for_the_same_tensors_one_is_kept() {
    two_want([1 << 36; 2]);
}

#[test]
fn a_ring_that_is_evicted_lives_with_its_user() {
    two_want([1 << 36, 2 << 36]);
}

#[test]
fn threads_that_build_the_same_share_one() {
    on_a_unit(|bench, _| {
        let other = {
            let bench = Rc::clone(&bench);
            thread::spawn(move || bench.built())
        };
        let (mine, other) = (bench.built(), other.join().unwrap());
        assert!(Arc::ptr_eq(&mine.data, &other.data));
        let counts = bench.unit.model(bench.model).unwrap().build_counts();
        assert_eq!(counts.hits, u64::from(mine.was_hit()) + u64::from(other.was_hit()));
        assert_eq!(counts.hits + counts.misses, 2);
    });
}

/// A scenario on a unit that has one model with its tensors. The device is used again in each run: it is idle in between.
fn on_a_unit(scenario: impl Fn(Rc<Bench>, MockTpb) + Sync + Send + 'static) {
    let neff: Neff = model("pointers");
    let device = MockDevice::new(1);
    explore(None, move || {
        let options = UnitOptions { depth: 8, exec_ring: 256, ..UnitOptions::default() };
        let bench = Rc::new(Bench::on(Arc::clone(&device), &neff, options, 30));
        scenario(bench, device.tpb(0));
    });
}

/// Runs everything that is kicked off, of `executions` executions since ordinal `first`, and waits for `running`.
fn finish(tpb: &MockTpb, first: u32, running: impl IntoIterator<Item = Running<MockDevice>>) {
    (first..tpb.doorbell()).for_each(|ordinal| tpb.run(ordinal));
    running.into_iter().for_each(|running| drop(running.wait().unwrap()));
}

#[test]
fn an_execution_is_staged_before_the_stop_or_not_at_all() {
    on_a_unit(|bench, tpb| {
        let (first, built) = (tpb.doorbell(), bench.built());
        let stager = {
            let bench = Rc::clone(&bench);
            thread::spawn(move || match bench.unit.stage(&built) {
                Ok(staged) => Some(staged.kickoff()),
                Err(error) => {
                    assert_eq!(error, StageError::Closed);
                    None
                }
            })
        };
        let closed = bench.unit.close(Duration::ZERO);
        let staged = stager.join().unwrap();
        let was_staged = u32::from(staged.is_some());
        assert!(closed.is_err() || staged.is_none(), "closed, and something is in flight");
        // One that is kicked off after the limit of the close is refused.
        let running = staged.and_then(|kicked_off| {
            kicked_off.map_err(|error| assert_eq!(error.status(), NrtStatus::CLOSED)).ok()
        });
        let executions = u32::from(running.is_some());
        assert_eq!((bench.unit.tickets(), bench.unit.in_flight()), (was_staged.into(), executions as usize));
        // What was staged before the stop ends, then the stop itself.
        let copies = tpb.consume();
        let stop = copies.iter().position(|copy| tpb.is_stop(copy));
        assert_eq!(stop, (was_staged > 0).then(|| copies.len() - 1));
        assert_eq!(tpb.doorbell(), first + was_staged + executions);
        finish(&tpb, first, running);
        bench.unit.close(Duration::ZERO).unwrap();
    });
}

#[test]
fn dropping_an_execution_lets_the_next_start() {
    on_a_unit(|bench, tpb| {
        let (first, built) = (tpb.doorbell(), bench.built());
        let [earlier, later] = [(); 2].map(|()| bench.unit.stage(&built).unwrap());
        let dropper = thread::spawn(move || drop(earlier));
        let running = later.kickoff().unwrap();
        bench.unit.harvest().unwrap();
        dropper.join().unwrap();
        assert_eq!((tpb.doorbell(), bench.unit.in_flight()), (first + 1, 1));
        let copies = tpb.consume();
        let moves = copies.iter().map(|copy| copy.source != copy.destination).collect::<Vec<_>>();
        let (padding, batch) = moves.split_at(moves.len() / 2);
        assert!(padding.iter().all(|moves| !moves) && batch.iter().all(|&moves| moves));
        finish(&tpb, first, [running]);
        assert_eq!(bench.unit.in_flight(), 0);
    });
}

#[test]
fn pairs_that_are_taken_back_are_never_those_of_another() {
    on_a_unit(|bench, tpb| {
        let (first, built) = (tpb.doorbell(), bench.built());
        let dropped: Staged<MockDevice> = bench.unit.stage(&built).unwrap();
        let dropper = thread::spawn(move || drop(dropped));
        let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
        dropper.join().unwrap();
        // It has the ticket and the pairs of the one that was dropped before it was staged, or its own behind them.
        let ticket = running.ticket().0;
        assert_eq!((bench.unit.tickets(), tpb.doorbell()), (ticket + 1, first + 1));
        let moving = tpb.consume().iter().filter(|copy| copy.source != copy.destination).count();
        let still = bench.unit.patched_slots(&built).unwrap().len();
        assert!(moving > 0 && moving > still / 2, "{moving} of {still}");
        finish(&tpb, first, [running]);
        assert_eq!(bench.unit.in_flight(), 0);
    });
}

#[test]
fn a_model_is_removed_or_runs_to_its_end() {
    on_a_unit(|bench, tpb| {
        let (first, built) = (tpb.doorbell(), bench.built());
        let stager = {
            let bench = Rc::clone(&bench);
            thread::spawn(move || bench.unit.stage(&built).and_then(|staged| Ok(staged.kickoff().unwrap())))
        };
        let removed = bench.unit.unload(bench.model, Duration::ZERO);
        let staged = stager.join().unwrap();
        if let (Ok(()), Ok(_)) | (Err(_), Err(_)) = (&removed, &staged) {
            // It was in use for a moment by one who was then refused, or the execution found the model back.
            assert!(removed.is_err(), "removed under an execution");
        }
        finish(&tpb, first, staged.ok());
        assert_eq!(
            (bench.unit.in_flight(), bench.unit.unload(bench.model, EVER).is_err()),
            (0, removed.is_ok())
        );
    });
}
