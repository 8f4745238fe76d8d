//! The hooks of collectives: which are called, when, and what becomes of their errors.

use std::sync::{Arc, Mutex};

use sluice_core::exec::{NrtStatus, Ticket};

use super::super::batch::PROLOGUE_PAIRS;
use super::super::mock::{MockDevice, MockTpb, model, tensors, value_of};
use super::*;
use crate::neff::Neff;

/// Collectives that note every call, and fail or panic where they are told to.
#[derive(Clone, Debug, Default)]
struct Noting {
    calls: Arc<Mutex<Vec<String>>>,
    fails: Arc<Mutex<&'static str>>,
    panics: Arc<Mutex<&'static str>>,
}

impl Noting {
    fn note(&self, hook: &'static str, what: String) -> Result<(), CollectiveError> {
        self.calls.lock().unwrap().push(format!("{hook}{what}"));
        let panics = *self.panics.lock().unwrap();
        assert_ne!(panics, hook, "told to panic");
        if *self.fails.lock().unwrap() == hook {
            let status = NrtStatus::NETWORK_PROXY_FAILURE;
            return Err(CollectiveError { hook, reason: "told to fail".into(), status });
        }
        Ok(())
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn fail(&self, hook: &'static str) {
        *self.fails.lock().unwrap() = hook;
    }
}

impl Collectives for Noting {
    fn load(&self, model: &CollectiveModel) -> Result<Box<dyn Context>, CollectiveError> {
        self.note("load", format!(" {} {} {}", model.name, model.first_tpb, model.streams))?;
        Ok(Box::new(self.clone()))
    }
}

impl Context for Noting {
    fn first_exec(&self) -> Result<(), CollectiveError> {
        self.note("first_exec", String::new())
    }

    fn enqueue_proxy(&self, ticket: Ticket) -> Result<u32, CollectiveError> {
        self.note("enqueue_proxy", format!(" {ticket}"))?;
        Ok(7)
    }

    fn withdraw_proxy(&self, ticket: Ticket) {
        let _ = self.note("withdraw_proxy", format!(" {ticket}"));
    }

    fn semaphore_check(&self) -> Result<(), CollectiveError> {
        self.note("semaphore_check", String::new())
    }

    fn free(&self) {
        let _ = self.note("free", String::new());
    }
}

/// `gather`, whose two programs have one and two streams.
pub(super) fn communicating() -> Neff {
    let mut neff = model("gather");
    for (program, streams) in neff.programs.iter_mut().zip([1, 2]) {
        program.tables.collective_streams = streams;
    }
    neff
}

pub(super) fn open(collectives: impl Collectives + 'static) -> (Arc<MockDevice>, Unit<MockDevice>) {
    let device = MockDevice::new(2);
    let heap = device.heap();
    let unit = Unit::open_with(Arc::clone(&device), heap, Arc::new(collectives), small()).unwrap();
    (device, unit)
}

pub(super) fn run_both(device: &Arc<MockDevice>, ordinal: u32) {
    (0..2).for_each(|tpb| device.tpb(tpb).run(ordinal));
}

#[test]
fn hooks_are_called_in_the_order_of_a_models_life() {
    let noting = Noting::default();
    let (device, unit) = open(noting.clone());
    let handle = unit.load(&communicating(), &LoadOptions::default()).unwrap();
    assert_eq!(noting.taken(), ["load gather 0 3"]);
    let (inputs, outputs) = tensors(&unit, handle);
    let built = unit.build(handle, &inputs, &outputs).unwrap();
    for ordinal in 0..2 {
        let running = unit.stage(&built).unwrap().kickoff().unwrap();
        // The request of each TPB carries the increment.
        for tpb in [0, 1].map(|tpb| device.tpb(tpb)) {
            assert_eq!(increment(&device, &tpb), 7);
        }
        run_both(&device, ordinal);
        running.wait().unwrap();
    }
    assert_eq!(noting.taken(), ["first_exec", "enqueue_proxy 0", "enqueue_proxy 1"]);
    drop(unit.stage(&built).unwrap());
    assert_eq!(noting.taken(), ["enqueue_proxy 2", "withdraw_proxy 2"]);
    unit.unload(handle, AT_ONCE).unwrap();
    assert_eq!(noting.taken(), ["semaphore_check", "free"]);
}

fn increment(device: &MockDevice, tpb: &MockTpb) -> u32 {
    let copies = tpb.consume();
    let (_, bytes) = value_of(device, &copies[copies.len() - PROLOGUE_PAIRS]);
    u32::from_le_bytes(*bytes.last_chunk().unwrap())
}

#[test]
fn a_model_that_does_not_communicate_calls_nothing() {
    let noting = Noting::default();
    let (device, unit) = open(noting.clone());
    let handle = unit.load(&model("gather"), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&unit, handle);
    let running = unit.stage(&unit.build(handle, &inputs, &outputs).unwrap()).unwrap().kickoff().unwrap();
    assert_eq!(increment(&device, &device.tpb(0)), 0);
    run_both(&device, 0);
    running.wait().unwrap();
    unit.unload(handle, AT_ONCE).unwrap();
    assert_eq!(noting.taken(), [""; 0]);
}

#[test]
fn a_hook_that_fails_leaves_nothing_half_done() {
    let noting = Noting::default();
    let (device, unit) = open(noting.clone());
    let empty = unit.heap().usage();
    noting.fail("load");
    let error = unit.load(&communicating(), &LoadOptions::default()).unwrap_err();
    assert_eq!(error.status(), NrtStatus::NETWORK_PROXY_FAILURE);
    assert_eq!(error.to_string(), "load of the collectives: told to fail");
    assert_eq!(unit.heap().usage(), empty);
    assert_eq!(noting.taken(), ["load gather 0 3"], "nothing to free");

    noting.fail("");
    let handle = unit.load(&communicating(), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&unit, handle);
    let built = unit.build(handle, &inputs, &outputs).unwrap();
    noting.taken();
    for (hook, calls) in
        [("first_exec", &["first_exec"][..]), ("enqueue_proxy", &["first_exec", "enqueue_proxy 0"][..])]
    {
        noting.fail(hook);
        assert_eq!(unit.stage(&built).unwrap_err().status(), NrtStatus::NETWORK_PROXY_FAILURE);
        assert_eq!(noting.taken(), calls);
        assert_eq!((unit.in_flight(), unit.tickets(), device.tpb(0).posted()), (0, 0, 0));
    }
    noting.fail("");
    device.fail_after(1);
    assert_eq!(unit.stage(&built).unwrap_err().status(), NrtStatus::FAILURE);
    device.fail_after(u32::MAX);
    assert_eq!(noting.taken(), ["enqueue_proxy 0", "withdraw_proxy 0"]);

    noting.fail("semaphore_check");
    let error = unit.unload(handle, AT_ONCE).unwrap_err();
    assert_eq!(error.to_string(), "semaphore_check of the collectives: told to fail");
    assert_eq!(noting.taken(), ["semaphore_check", "free"]);
    assert!(unit.model(handle).is_err(), "it is gone all the same");
}

#[test]
fn executions_that_are_not_started_withdraw_their_tasks() {
    let noting = Noting::default();
    let (device, unit) = open(noting.clone());
    let handle = unit.load(&communicating(), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&unit, handle);
    let built = unit.build(handle, &inputs, &outputs).unwrap();
    let staged = unit.stage(&built).unwrap();
    noting.taken();
    device.fail_next();
    assert!(staged.kickoff().is_err());
    assert_eq!(noting.taken(), ["withdraw_proxy 0"]);
}

#[test]
fn contexts_are_freed_with_their_unit() {
    let loop_back = LoopBack::default();
    let (_, unit) = open(loop_back.clone());
    for loaded in 1..=2 {
        unit.load(&communicating(), &LoadOptions::default()).unwrap();
        assert_eq!(loop_back.contexts(), loaded);
    }
    drop(unit);
    assert_eq!(loop_back.contexts(), 0);
}

#[test]
fn what_is_looped_back_comes_back_at_once_or_when_it_is_delivered() {
    for (loop_back, holds) in [(LoopBack::default(), false), (LoopBack::holding(), true)] {
        let (device, unit) = open(loop_back.clone());
        let handle = unit.load(&communicating(), &LoadOptions::default()).unwrap();
        let (inputs, outputs) = tensors(&unit, handle);
        let built = unit.build(handle, &inputs, &outputs).unwrap();
        for ordinal in 0..3 {
            let running = unit.stage(&built).unwrap().kickoff().unwrap();
            drop(unit.stage(&built).unwrap());
            run_both(&device, ordinal);
            running.wait().unwrap();
        }
        if holds {
            assert_eq!((loop_back.delivered(), loop_back.deliver(), loop_back.delivered()), (0, 9, 9));
            let running = unit.stage(&built).unwrap().kickoff().unwrap();
            run_both(&device, 3);
            running.wait().unwrap();
        }
        let removed = unit.unload(handle, AT_ONCE);
        assert_eq!(removed.is_err(), holds);
        if let Err(error) = removed {
            assert_eq!(error.status(), NrtStatus::EXEC_HW_ERR_COLLECTIVES);
            assert!(error.to_string().ends_with("3 messages have not come back"), "{error}");
        }
        assert_eq!(loop_back.contexts(), 0);
    }
}

#[test]
fn a_communicating_model_is_given_up_with_its_tpb() {
    let loop_back = LoopBack::holding();
    let (device, unit) = open(loop_back.clone());
    let handle = unit.load(&communicating(), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&unit, handle);
    let built = unit.build(handle, &inputs, &outputs).unwrap();
    let running = unit.stage(&built).unwrap().kickoff().unwrap();
    let staged = unit.stage(&built).unwrap();
    device.tpb(0).stop_at_bad_pair(sluice_core::exec::ErrorClass::DMA_ABORT);
    device.tpb(1).stop_at_bad_pair(sluice_core::exec::ErrorClass::DMA_ABORT);
    assert!(running.wait().is_err());
    assert!(staged.kickoff().is_err());
    // That of the execution that was started is the proxy's to end.
    assert_eq!(loop_back.deliver(), 3);
    unit.unload(handle, AT_ONCE).unwrap();
}

#[test]
fn a_hook_that_panics_leaves_tickets_and_executions_in_step() {
    let noting = Noting::default();
    let (device, unit) = open(noting.clone());
    let handle = unit.load(&communicating(), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&unit, handle);
    let built = unit.build(handle, &inputs, &outputs).unwrap();
    let panics = |hook: &'static str, call: &mut dyn FnMut()| {
        *noting.panics.lock().unwrap() = hook;
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err(), "{hook}");
        *noting.panics.lock().unwrap() = "";
    };
    let run = |ordinal: u32| {
        let running = unit.stage(&built).unwrap().kickoff().unwrap();
        run_both(&device, ordinal);
        assert_eq!(running.wait().unwrap().ticket, Ticket(ordinal.into()));
    };
    panics("enqueue_proxy", &mut || drop(unit.stage(&built)));
    assert_eq!((unit.tickets(), unit.in_flight(), device.tpb(0).posted()), (0, 0, 0));
    run(0);
    // Of two that are staged the first is dropped: it does not run, and the second does.
    let [dropped, behind] = [(); 2].map(|()| unit.stage(&built).unwrap());
    let mut dropped = Some(dropped);
    panics("withdraw_proxy", &mut || drop(dropped.take()));
    let behind = behind.kickoff().unwrap();
    let moving = device.tpb(0).consume().iter().filter(|copy| copy.source != copy.destination).count();
    run_both(&device, 1);
    behind.wait().unwrap();
    let running = unit.stage(&built).unwrap().kickoff().unwrap();
    assert_eq!(device.tpb(0).consume().len(), moving, "one batch moves something");
    run_both(&device, 2);
    assert_eq!(running.wait().unwrap().ticket, Ticket(3));
}

/// Collectives whose hooks ask the unit something, once they have one.
#[derive(Clone, Debug, Default)]
struct Asking(Arc<Mutex<Option<Unit<MockDevice>>>>);

impl Asking {
    fn ask(&self) {
        let unit = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        unit.as_ref().map(Unit::in_flight);
    }
}

impl Collectives for Asking {
    fn load(&self, _: &CollectiveModel) -> Result<Box<dyn Context>, CollectiveError> {
        Ok(Box::new(self.clone()))
    }
}

impl Context for Asking {
    fn first_exec(&self) -> Result<(), CollectiveError> {
        self.ask();
        Ok(())
    }

    fn enqueue_proxy(&self, _: Ticket) -> Result<u32, CollectiveError> {
        self.ask();
        Ok(0)
    }

    fn withdraw_proxy(&self, _: Ticket) {}

    fn semaphore_check(&self) -> Result<(), CollectiveError> {
        self.ask();
        Ok(())
    }

    fn free(&self) {}
}

#[test]
fn a_hook_that_would_wait_for_itself_panics_instead() {
    let asking = Asking::default();
    let (_device, unit) = open(asking.clone());
    let handle = unit.load(&communicating(), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&unit, handle);
    let built = unit.build(handle, &inputs, &outputs).unwrap();
    let set = |unit| *asking.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = unit;
    set(Some(unit.clone()));
    let staged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unit.stage(&built)));
    let message = *staged.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!(message, "a hook of the collectives calls the unit that waits for it");
    set(None);
    drop(unit.stage(&built).unwrap());
    // This one is called while nothing is locked.
    set(Some(unit.clone()));
    unit.unload(handle, AT_ONCE).unwrap();
    set(None);
}

#[test]
fn nothing_is_made_ready_on_a_unit_that_is_closed() {
    let noting = Noting::default();
    let (_, unit) = open(noting.clone());
    let handle = unit.load(&communicating(), &LoadOptions::default()).unwrap();
    let (inputs, outputs) = tensors(&unit, handle);
    let built = unit.build(handle, &inputs, &outputs).unwrap();
    unit.close(AT_ONCE).unwrap();
    noting.taken();
    assert_eq!(unit.stage(&built).unwrap_err().status(), NrtStatus::CLOSED);
    assert_eq!(noting.taken(), [""; 0]);
}
