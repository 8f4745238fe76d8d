//! Hooks of collectives that drop or kick off what is staged, of models without hooks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_core::exec::Ticket;

use super::super::mock::{Bench, MockDevice, model, tensors};
use super::collective::{communicating, open, run_both};
use super::*;
use crate::neff::Neff;

/// What a hook does with a staged execution.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Drop,
    KickOff,
    /// As a hook that panics for reasons of its own.
    DropUnwinding,
}

/// Collectives one hook of which does something with staged executions, each time with one of them.
#[derive(Clone, Debug)]
struct Meddling {
    hook: &'static str,
    deed: Deed,
    staged: Arc<Mutex<Vec<Staged<MockDevice>>>>,
}

impl Meddling {
    fn staged(&self) -> MutexGuard<'_, Vec<Staged<MockDevice>>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn called(&self, hook: &'static str) {
        let taken = if hook == self.hook { self.staged().pop() } else { None };
        let Some(staged) = taken else { return };
        match self.deed {
            Deed::Drop => drop(staged),
            Deed::KickOff => drop(staged.kickoff()),
            Deed::DropUnwinding => {
                let _staged = staged;
                panic!("told to panic");
            }
        }
    }
}

impl Collectives for Meddling {
    fn load(&self, _: &CollectiveModel) -> Result<Box<dyn Context>, CollectiveError> {
        self.called("load");
        Ok(Box::new(self.clone()))
    }
}

impl Context for Meddling {
    fn first_exec(&self) -> Result<(), CollectiveError> {
        self.called("first_exec");
        Ok(())
    }

    fn enqueue_proxy(&self, _: Ticket) -> Result<u32, CollectiveError> {
        self.called("enqueue_proxy");
        Ok(0)
    }

    fn withdraw_proxy(&self, _: Ticket) {
        self.called("withdraw_proxy");
    }

    fn semaphore_check(&self) -> Result<(), CollectiveError> {
        self.called("semaphore_check");
        Ok(())
    }

    fn free(&self) {
        self.called("free");
    }
}

/// Lets `hook` do something with staged executions while `call` runs, which stages these by what it is given; returns whether
/// it did not panic. Nothing is left in line then but `running` executions, and the unit goes on.
fn meddle(
    (hook, deed): (&'static str, Deed),
    running: u32,
    call: impl FnOnce(&Unit<MockDevice>, &Built, &dyn Fn()),
) -> bool {
    let meddling = Meddling { hook, deed, staged: Arc::default() };
    let (device, unit) = open(meddling.clone());
    let build = |neff: &Neff| {
        let handle = unit.load(neff, &LoadOptions::default()).unwrap();
        let (inputs, outputs) = tensors(&unit, handle);
        unit.build(handle, &inputs, &outputs).unwrap()
    };
    // Those that the hook is given call none.
    let (silent, built) = (build(&model("gather")), build(&communicating()));
    let stage = || meddling.staged().extend((0..2).map(|_| unit.stage(&silent).unwrap()));
    let call = AssertUnwindSafe(|| call(&unit, &built, &stage));
    let returned = catch_unwind(call).is_ok();
    let left = std::mem::take(&mut *meddling.staged());
    assert!(left.len() < 2, "{hook} was called");
    drop(left);
    assert_eq!(unit.in_flight(), running as usize, "{hook}, {deed:?}");
    (0..running).for_each(|ordinal| run_both(&device, ordinal));
    let next = unit.stage(&built).unwrap().kickoff().unwrap();
    run_both(&device, running);
    next.wait().unwrap();
    unit.unload(silent.model(), AT_ONCE).unwrap();
    unit.unload(built.model(), AT_ONCE).unwrap();
    returned
}

#[test]
fn a_hook_may_drop_what_is_staged_and_not_kick_it_off_while_the_line_is_locked() {
    for (deed, returns) in [(Deed::Drop, true), (Deed::KickOff, false), (Deed::DropUnwinding, false)] {
        for hook in ["enqueue_proxy", "withdraw_proxy"] {
            let returned = meddle((hook, deed), 0, |unit, built, stage| {
                stage();
                drop(unit.stage(built).unwrap());
            });
            assert_eq!(returned, returns, "{hook}, {deed:?}");
        }
        // Called by a kickoff that fails.
        let returned = meddle(("withdraw_proxy", deed), 0, |unit, built, stage| {
            let staged = unit.stage(built).unwrap();
            stage();
            unit.device().fail_next();
            assert!(staged.kickoff().is_err());
        });
        assert_eq!(returned, returns, "{deed:?}");
    }
}

#[test]
fn a_hook_that_is_called_while_the_thread_unwinds_does_not_end_the_process() {
    for deed in [Deed::Drop, Deed::KickOff, Deed::DropUnwinding] {
        let returned = meddle(("withdraw_proxy", deed), 0, |unit, built, stage| {
            stage();
            let _staged = unit.stage(built).unwrap();
            panic!("told to panic");
        });
        assert!(!returned, "{deed:?}");
    }
}

#[test]
fn hooks_that_are_called_while_nothing_is_locked_may_do_either() {
    for (deed, running) in [(Deed::Drop, 0), (Deed::KickOff, 1)] {
        for hook in ["load", "first_exec", "semaphore_check", "free"] {
            let returned = meddle((hook, deed), running, |unit, built, stage| {
                stage();
                let handle = unit.load(&communicating(), &LoadOptions::default()).unwrap();
                drop(unit.stage(built).unwrap());
                unit.unload(handle, AT_ONCE).unwrap();
            });
            assert!(returned, "{hook}, {deed:?}");
        }
    }
}

/// Collectives whose first execution stages another one, once they have something to stage.
#[derive(Clone, Debug, Default)]
struct Impatient(Arc<Mutex<ToStage>>);

type ToStage = Option<(Unit<MockDevice>, Built)>;

impl Collectives for Impatient {
    fn load(&self, _: &CollectiveModel) -> Result<Box<dyn Context>, CollectiveError> {
        Ok(Box::new(self.clone()))
    }
}

impl Context for Impatient {
    fn first_exec(&self) -> Result<(), CollectiveError> {
        let to_stage = self.0.lock().unwrap().take();
        if let Some((unit, built)) = to_stage {
            drop(unit.stage(&built).unwrap());
        }
        Ok(())
    }

    fn enqueue_proxy(&self, _: Ticket) -> Result<u32, CollectiveError> {
        Ok(0)
    }

    fn withdraw_proxy(&self, _: Ticket) {}

    fn semaphore_check(&self) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn free(&self) {}
}

#[test]
fn a_hook_that_stages_what_waits_for_it_panics_instead() {
    let impatient = Impatient::default();
    let (device, unit) = open(impatient.clone());
    let build = |neff: &Neff| {
        let handle = unit.load(neff, &LoadOptions::default()).unwrap();
        let (inputs, outputs) = tensors(&unit, handle);
        unit.build(handle, &inputs, &outputs).unwrap()
    };
    let (built, other) = (build(&communicating()), build(&communicating()));
    let staged = |built: &Built, from_hook: &Built| {
        *impatient.0.lock().unwrap() = Some((unit.clone(), from_hook.clone()));
        catch_unwind(AssertUnwindSafe(|| drop(unit.stage(built).unwrap())))
    };
    let message = *staged(&built, &built).unwrap_err().downcast::<&str>().unwrap();
    assert_eq!(message, "a hook of the collectives stages an execution that waits for it");
    // What does not wait for it is staged.
    staged(&built, &other).unwrap();
    let running = unit.stage(&built).unwrap().kickoff().unwrap();
    run_both(&device, 0);
    running.wait().unwrap();
}

#[test]
fn the_last_handle_of_another_unit_may_go_in_a_hook() {
    let meddling = Meddling { hook: "enqueue_proxy", deed: Deed::Drop, staged: Arc::default() };
    let (_device, unit) = open(meddling.clone());
    let handle = unit.load(&communicating(), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&unit, handle);
    let built = unit.build(handle, &inputs, &outputs).unwrap();
    let other = Bench::new(&model("gather"));
    let heap = other.heap.clone();
    meddling.staged().push(other.unit.stage(&other.built()).unwrap());
    let device = Arc::clone(&other.device);
    drop(other);
    drop(unit.stage(&built).unwrap());
    assert_eq!(heap.usage().free_bytes, heap.usage().total_bytes);
    Unit::open(device, heap, small()).unwrap();
}
