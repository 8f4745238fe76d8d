//! A server and its collector without threads, step by step, for any subsystem.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sluice_core::gate::Gate;
use sluice_core::layout::extension::LaneActivity;
use sluice_core::layout::{Instance, Lane, PoolKind, SubsystemId};
use tracing::span;

use super::stage::{Hand, Kept, Played, config};
use crate::device::Device;
use crate::dfx::account::{Account, Lost};
use crate::dfx::arena::PayloadsUnderWay;
use crate::dfx::collector::{Collector, Source};
use crate::dfx::ledger::BufferId;
use crate::dfx::plan::Plan;
use crate::dfx::server::{Outlet, Server, ToCollect};
use crate::dfx::service::{Orders, Serve};
use crate::dfx::{DfxConfig, Discard, Pipe, Sink, Wait, WaitPipe};

/// One subsystem with everything that serves it.
pub(super) struct Show {
    pub(super) device: Arc<Played>,
    pub(super) plan: Plan,
    pipes: Arc<[WaitPipe<ToCollect>]>,
    server: Server<Played>,
    pub(super) collector: Collector<<Played as Device>::Mem>,
    pub(super) hand: Hand,
}

/// Turns are the test's.
struct Nobody;

impl Serve for Nobody {
    fn try_turn(&self, _is_paused: bool) -> bool {
        false
    }

    fn leave(&self) {}
}

impl Show {
    pub(super) fn of(subsystem: SubsystemId, buffers: u32, sink: Arc<dyn Sink>) -> Self {
        Self::with(&config(&[subsystem], buffers), sink)
    }

    fn with(config: &DfxConfig, sink: Arc<dyn Sink>) -> Self {
        let device = Played::new(config.shape.lanes());
        let memory = device.memory();
        let plan = Plan::new(config, memory, &device.heap()).expect("memory for a session");
        let part = &plan.parts()[0];
        let directory = || Arc::clone(&part.directory);
        let pipes: Arc<[_]> = [WaitPipe::with_capacity(64)].into();
        let returned = Arc::new(WaitPipe::with_capacity(64));
        let source = Source {
            subsystem: part.subsystem,
            region: part.region,
            directory: directory(),
            returned: Arc::clone(&returned),
            arenas: part.arenas(),
            payloads: Arc::new(PayloadsUnderWay::new(config.shape.lanes() as usize)),
            waits: Arc::new(WaitPipe::with_capacity(64)),
        };
        let (collectors, payloads) = (Arc::clone(&pipes), Arc::clone(&source.payloads));
        let waits = Arc::clone(&source.waits);
        let outlet = Outlet { part: 0, directory: directory(), collectors, payloads, waits };
        let orders = Arc::new(Orders::new());
        let server =
            Server::attach(memory, &plan, part, config, outlet, returned, orders).expect("mapped memory");
        let collector =
            Collector::new(memory.clone(), [source].into(), Arc::clone(&pipes), 0, sink, Arc::new(Nobody));
        let recorders = plan.recorders();
        let region = recorders.region(part.subsystem).expect("a subsystem that records");
        let hand = Hand::over(&device, part.subsystem, config.shape, region, recorders.extension);
        Self { device, plan, pipes, server, collector, hand }
    }

    pub(super) fn turn(&mut self) {
        self.server.turn(&self.device, false);
    }

    /// Collects all that was drained.
    pub(super) fn collect(&mut self) {
        while let Some(item) = self.pipes[0].pop() {
            self.collector.take(item);
        }
        self.collector.hand_on_waits(1);
    }

    pub(super) fn account(&self) -> Account {
        let part = &self.plan.parts()[0];
        let (counts, collected) = (self.server.counts(), &self.collector.collected[0]);
        Account::of(self.device.memory(), &self.plan, part, counts, collected, 0).expect("mapped memory")
    }
}

#[test]
fn every_subsystem_is_served_alike() {
    for subsystem in SubsystemId::ALL {
        let kept = Arc::new(Kept::default());
        let mut show = Show::of(subsystem, 1, Arc::clone(&kept) as _);
        for sequence in 0..3 {
            show.hand.fill(1, 0, sequence, 5 + sequence);
            assert_eq!(show.hand.queued(0), 0);
            show.turn();
            show.collect();
            show.turn();
            assert_eq!(show.hand.queued(0), 1, "{subsystem}: back in its queue");
        }
        let account = show.account();
        assert_eq!((account.produced(), account.collected()), (18, 18), "{subsystem}");
        assert!(account.is_lossless(), "{subsystem}: {account:?}");
        assert_eq!(kept.records()[&subsystem], 18);
        let buffers = kept.buffers.lock().unwrap();
        let record_bytes = show.hand.region.arrays()[0].buffer.record_bytes;
        assert!(buffers.iter().all(|(meta, bytes)| bytes.len() == meta.count as usize * record_bytes));
    }
}

#[test]
fn a_buffer_that_cannot_be_copied_is_counted_acknowledged_and_recycled() {
    for (failures, lost) in [(2, 0), (3, 7), (4, 7)] {
        let kept = Arc::new(Kept::default());
        let mut show = Show::of(SubsystemId::Swimlane, 1, Arc::clone(&kept) as _);
        show.hand.fill(0, 0, 0, 7);
        show.turn();
        show.device.fail_reads(failures);
        show.collect();
        show.device.fail_reads(0);
        show.turn();
        assert_eq!(show.hand.queued(0), 1, "recycled after {failures} failures");
        let account = show.account();
        assert_eq!(account.lost(), Lost { copy_failed: lost, ..Lost::default() });
        assert_eq!((account.produced(), account.collected()), (7, 7 - lost));
        show.hand.fill(0, 0, 1, 4);
        show.turn();
        show.collect();
        assert_eq!(kept.records()[&SubsystemId::Swimlane], 11 - lost as u32, "the next one is collected");
    }
}

#[test]
fn every_buffer_comes_back_whatever_the_collector_does() {
    let kept = Arc::new(Kept::default());
    let mut show = Show::of(SubsystemId::DepGen, 3, Arc::clone(&kept) as _);
    let capacity = show.hand.region.arrays()[0].buffer.capacity;
    type Mishap<'a> = &'a dyn Fn(&Show);
    let mishaps: [(Mishap<'_>, u32); 5] = [
        (&|_| kept.refusals.store(2, Ordering::Relaxed), 1),
        (&|_| kept.refusals.store(3, Ordering::Relaxed), 1),
        (&|show| show.device.fail_reads(3), 1),
        (&|_| (), u32::MAX),
        (&|_| (), capacity + 1),
    ];
    for (sequence, (mishap, count)) in (0..).zip(mishaps) {
        show.hand.fill(1, 0, sequence, count);
        show.turn();
        mishap(&show);
        show.collect();
        show.turn();
        assert_eq!(show.hand.queued(0), 3, "after mishap {sequence}");
    }
    let account = show.account();
    assert_eq!(account.collected(), 1);
    assert_eq!(account.lost().copy_failed, 2);
    assert_eq!(account.lost().corrupt, account.produced() - 3, "what two counts out of range stood for");
}

#[test]
fn collecting_a_buffer_allocates_nothing() {
    let mut show = Show::of(SubsystemId::Pmu, 2, Arc::new(Discard));
    for sequence in 0..4 {
        show.hand.fill(0, 0, sequence, 100);
        let measured = allocation_counter::measure(|| {
            show.turn();
            show.collect();
            show.turn();
        });
        assert_eq!(measured.count_total, 0, "buffer {sequence}");
    }
    assert_eq!(show.account().collected(), 400);
}

/// Opens a freeze that lasts: one buffer of pool 0 is drained and not collected.
fn freeze(show: &mut Show, gate: Gate) {
    show.hand.fill(0, 0, 0, 1);
    show.hand.raise(gate);
    show.turn();
    assert!(show.hand.is_shut(gate));
}

#[test]
fn a_freeze_tells_who_opened_it_who_stood_there_and_what_was_drained() {
    let kept = Arc::new(Kept::default());
    let mut show = Show::of(SubsystemId::Swimlane, 2, Arc::clone(&kept) as _);
    show.hand.show(1, LaneActivity::FREE_GATE, 90);
    freeze(&mut show, Gate::Free);
    // A peer parks later, publishes before that, and both are gone when the gate is open again.
    show.hand.show(0, LaneActivity::READY_GATE, 40);
    show.hand.fill(0, 1, 0, 1);
    show.turn();
    show.hand.show(0, LaneActivity::FREE_GATE, 95);
    show.turn();
    show.hand.show(0, LaneActivity::RUNNING, 95);
    show.collect();
    show.hand.show(1, LaneActivity::RUNNING, 90);
    show.turn();
    assert!(!show.hand.is_shut(Gate::Free));
    show.collect();
    let freezes = kept.freezes.lock().unwrap();
    let [freeze] = freezes[..] else { panic!("{freezes:?}") };
    assert_eq!((freeze.subsystem, freeze.gate), (SubsystemId::Swimlane, Gate::Free));
    assert_eq!((freeze.opened_by, freeze.lanes_parked), (Some(Lane(1)), 2));
    assert_eq!(freeze.buffers_drained, 1, "one was drained before the gate was shut");
    assert!(freeze.opened_cycles < freeze.released_cycles && freeze.opened_ns < freeze.released_ns);
}

#[test]
fn each_gate_has_a_freeze_of_its_own() {
    let kept = Arc::new(Kept::default());
    let mut show = Show::of(SubsystemId::ScopeStats, 2, Arc::clone(&kept) as _);
    show.hand.show(1, LaneActivity::FREE_GATE, 20);
    freeze(&mut show, Gate::Free);
    show.hand.show(0, LaneActivity::READY_GATE, 30);
    show.hand.raise(Gate::Ready);
    show.turn();
    show.collect();
    show.turn();
    show.collect();
    let freezes = kept.freezes.lock().unwrap();
    let of = |gate| freezes.iter().find(|freeze| freeze.gate == gate).expect("a freeze of each gate");
    assert_eq!(freezes.len(), 2);
    assert_eq!(of(Gate::Free).opened_by, Some(Lane(1)));
    assert_eq!(of(Gate::Ready).opened_by, Some(Lane(0)));
    assert!(of(Gate::Free).opened_cycles < of(Gate::Ready).opened_cycles);
    assert_eq!((show.account().rq.count, show.account().fq.count), (1, 1));
}

#[test]
fn buffers_that_do_not_add_up_at_a_release_are_counted_and_the_release_goes_on() {
    let mut show = Show::of(SubsystemId::DepGen, 1, Arc::new(Discard));
    assert!(show.account().is_lossless());
    freeze(&mut show, Gate::Free);
    // The queue now looks full of buffers, and the only one lies with the collector.
    show.hand.disturb_head(0, -4);
    show.turn();
    assert!(!show.hand.is_shut(Gate::Free), "a full queue is at its limit");
    show.collect();
    let account = show.account();
    assert_eq!((account.collected(), account.lost().total()), (account.produced(), 0));
    assert_eq!((account.imbalances, account.is_lossless()), (1, false));
}

#[test]
fn a_signal_raised_in_a_freeze_opens_no_needless_one() {
    let kept = Arc::new(Kept::default());
    let mut show = Show::of(SubsystemId::ArgsDump, 2, Arc::clone(&kept) as _);
    freeze(&mut show, Gate::Free);
    show.hand.raise(Gate::Free);
    show.hand.raise(Gate::Ready);
    show.collect();
    for _ in 0..4 {
        show.turn();
        show.collect();
    }
    let of = |gate| kept.freezes.lock().unwrap().iter().filter(|freeze| freeze.gate == gate).count();
    assert_eq!((of(Gate::Free), of(Gate::Ready)), (1, 1), "each in the first round");
    assert!(!show.hand.is_shut(Gate::Ready) && !show.hand.is_shut(Gate::Free));
}

#[test]
fn a_busy_peer_does_not_postpone_a_release() {
    for gate in [Gate::Free, Gate::Ready] {
        let mut show = Show::of(SubsystemId::Pmu, 2, Arc::new(Discard));
        let mut filling = show.hand.claim(1);
        for sequence in 0..10 {
            freeze(&mut show, gate);
            // The peer goes on as far as gates let it.
            let mut turns = 0;
            while show.hand.is_shut(gate) {
                if !show.hand.is_shut(Gate::Ready)
                    && let Some(buffer) = filling.take()
                {
                    show.hand.publish(1, 1, buffer, sequence, 1);
                }
                if !show.hand.is_shut(Gate::Free) && filling.is_none() {
                    filling = show.hand.claim(1);
                }
                show.collect();
                show.turn();
                turns += 1;
                assert!(turns <= 3, "freeze {sequence} of {gate:?} goes on");
            }
            show.collect();
            show.turn();
        }
    }
}

/// Says that a test is over, whatever its end.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn buffers_are_looked_up_while_the_keeper_serves() {
    let mut show = Show::of(SubsystemId::Swimlane, 2, Arc::new(Discard));
    let directory = Arc::clone(&show.plan.parts()[0].directory);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for buffer in (0..directory.buffers()).map(BufferId) {
                        assert_eq!(directory.find(directory.address(buffer)), Some(buffer));
                        let pool = directory.pool(directory.pool_of(buffer));
                        assert!(pool.buffers.contains(&buffer.0));
                    }
                }
            });
        }
        for sequence in 0..200 {
            show.hand.fill(0, 0, sequence, 1);
            show.turn();
            show.collect();
            show.turn();
        }
        drop(over);
    });
    assert_eq!(show.account().collected(), 200);
}

/// Counts what is said.
struct Lines(Arc<AtomicU32>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, _metadata: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, _event: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

/// How many lines `course` says.
fn lines(course: impl FnOnce()) -> u32 {
    let lines = Arc::new(AtomicU32::new(0));
    tracing::subscriber::with_default(Lines(Arc::clone(&lines)), course);
    lines.load(Ordering::Relaxed)
}

#[test]
fn a_thousand_freezes_say_nothing() {
    let mut show = Show::of(SubsystemId::Swimlane, 1, Arc::new(Discard));
    let said = lines(|| {
        for _ in 0..1000 {
            freeze(&mut show, Gate::Free);
            show.collect();
            show.turn();
            show.collect();
        }
    });
    assert_eq!((said, show.account().fq.count), (0, 1000));
}

#[test]
fn a_device_that_repeats_its_nonsense_is_named_twice() {
    let mut show = Show::of(SubsystemId::Swimlane, 1, Arc::new(Discard));
    let buffer = show.hand.claim(0).expect("a buffer in the queue");
    let said = lines(|| {
        for sequence in 0..101 {
            show.hand.publish(0, 0, buffer, sequence, 0);
            show.turn();
        }
    });
    assert_eq!((said, show.account().corrupt_words), (2, 100), "all but the first are double publications");
}

/// A wait of `lane` for pool 0, as a lane logs it.
fn wait(lane: u32, begin_cycles: u64, end_cycles: u64) -> Wait {
    Wait {
        subsystem: SubsystemId::Swimlane,
        lane: Lane(lane),
        gate: Gate::Free,
        kind: PoolKind::AICPU_TASK,
        instance: Instance(0),
        begin_cycles,
        end_cycles,
        gave_up: false,
    }
}

#[test]
fn every_wait_that_is_logged_is_handed_on_once_and_in_order() {
    let kept = Arc::new(Kept::default());
    let mut show = Show::of(SubsystemId::Swimlane, 1, Arc::clone(&kept) as _);
    let waits: Vec<_> = (0..200).map(|number| wait(number % 2, u64::MAX - number as u64, u64::MAX)).collect();
    for waits in waits.chunks(50) {
        waits.iter().for_each(|wait| assert!(show.hand.log(wait)));
        show.turn();
        show.collect();
    }
    let of = |waits: &[Wait], lane| -> Vec<_> {
        waits.iter().filter(|wait| wait.lane == Lane(lane)).copied().collect()
    };
    let kept = kept.waits.lock().unwrap();
    assert_eq!(kept.len(), 200);
    assert!((0..2).all(|lane| of(&kept, lane) == of(&waits, lane)));
    let sum = show.account().waits;
    assert_eq!((sum.fq, sum.rq, sum.unlogged), (200, 0, 0));
    assert_eq!((sum.fq_cycles, sum.rq_cycles), (199 * 200 / 2, 0));
}

#[test]
fn waits_that_find_no_room_in_the_log_are_counted() {
    let kept = Arc::new(Kept::default());
    let mut show = Show::of(SubsystemId::Swimlane, 1, Arc::clone(&kept) as _);
    let logged = (0..70).filter(|&number| show.hand.log(&wait(0, number, number + 1))).count();
    assert_eq!(logged, 64);
    show.turn();
    show.collect();
    assert!(show.hand.log(&wait(0, 70, 71)), "the slots are the lane's again");
    show.turn();
    show.collect();
    assert_eq!(kept.waits.lock().unwrap().len(), 65);
    let sum = show.account().waits;
    assert_eq!((sum.fq, sum.fq_cycles, sum.unlogged), (71, 71, 6));
}

#[test]
fn a_log_that_is_nonsense_is_named_and_read_on_from_where_it_stands() {
    let kept = Arc::new(Kept::default());
    let mut show = Show::of(SubsystemId::Swimlane, 1, Arc::clone(&kept) as _);
    show.hand.disturb_log(0, 1000);
    show.turn();
    assert!(show.hand.log(&wait(0, 5, 4)), "an end before its beginning");
    assert!(show.hand.log(&wait(0, 5, 6)));
    show.turn();
    show.collect();
    assert_eq!(*kept.waits.lock().unwrap(), [wait(0, 5, 6)]);
    assert_eq!(show.account().corrupt_words, 2);
}
