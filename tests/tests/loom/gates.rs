//! Gates: what a host does in a freeze is seen after it, a lane that stands at a gate stands there by right, and no lane
//! that starves is forgotten.

use loom::thread;
use sluice_core::gate::Gate;
use sluice_core::mem::{Deadline, DevAddr, Memory, Own};
use sluice_core::producer::{HostSigns, LaneState, Latch, Progress, Rules, Subsystem, tiny};
use sluice_host::dfx::GateControl;

use crate::explore;
use crate::memory::{LoomMemory, Weakened};
use crate::stage::{Patience, Stage, Whole, buffer, read, record};

const FLAG: DevAddr = tiny::at(tiny::GATES.fq_freeze_active);
const SIGNAL: DevAddr = tiny::at(tiny::GATES.fq_contended);
const EPOCH: DevAddr = tiny::EXTENSION_GATES.release_epoch;
const HEARTBEAT: DevAddr = tiny::EXTENSION_GATES.host_heartbeat;

/// Waits for a signal, shuts the pop gate and takes the signal.
fn open_freeze(gates: &GateControl<LoomMemory>, patience: &mut Patience) {
    while !gates.is_raised(Gate::Free).expect("no fault") {
        patience.wait();
    }
    gates.set_shut(Gate::Free, true).expect("no fault");
    gates.consume(Gate::Free).expect("no fault");
}

/// A lane raises and waits for a release; the host, in the freeze that follows, overwrites what the lane then reads.
fn a_release(weakened: Option<Weakened>) {
    explore(None, move || {
        let stage = Stage::new(weakened, 1, 1);
        let worker = stage.worker::<Whole>(0);
        let (memory, gates) = (stage.memory.clone(), stage.gates());
        let lane = thread::spawn(move || {
            let gates = worker.lane.gates();
            gates.mark_fq_contended();
            let mut env = Patience::default();
            gates.wait_for_release(Gate::Free, &mut Deadline::after(u64::MAX), &mut env).expect("in time");
            read(&memory, buffer(0, 0))
        });
        open_freeze(&gates, &mut Patience::default());
        record(&stage.memory, buffer(0, 0), 9);
        gates.bump_epoch().expect("no fault");
        gates.set_shut(Gate::Free, false).expect("no fault");
        assert_eq!(lane.join().expect("the lane's own assertions"), 9);
    });
}

#[test]
fn what_a_host_does_in_a_freeze_is_seen_after_it() {
    a_release(None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_flag_opened_without_order_is_reported() {
    a_release(Some(Weakened::Stores(FLAG)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_flag_loaded_without_order_is_reported() {
    a_release(Some(Weakened::Loads(FLAG)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_epoch_moved_without_order_is_reported() {
    a_release(Some(Weakened::Stores(EPOCH)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_epoch_loaded_without_order_is_reported() {
    a_release(Some(Weakened::Loads(EPOCH)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_signal_taken_without_order_is_reported() {
    a_release(Some(Weakened::Stores(SIGNAL)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_signal_found_taken_without_order_is_reported() {
    a_release(Some(Weakened::Loads(SIGNAL)));
}

/// A freeze of the push gate has ended and one of the pop gate begins while a lane arrives there. The release that it did
/// not wait for must not let it through.
fn an_arrival(weakened: Option<Weakened>) {
    explore(None, move || {
        let stage = Stage::new(weakened, 1, 1);
        let (worker, gates) = (stage.worker::<Whole>(0), stage.gates());
        let lane = thread::spawn(move || {
            let gates = worker.lane.gates();
            if let Some(parked) = gates.arrive(Gate::Free) {
                assert!(!gates.may_leave(Gate::Free, parked), "left a freeze that goes on");
            }
        });
        gates.bump_epoch().expect("no fault");
        gates.set_shut(Gate::Free, true).expect("no fault");
        lane.join().expect("the lane's own assertions");
    });
}

#[test]
fn a_lane_stays_in_the_freeze_in_which_it_arrives() {
    an_arrival(None);
}

#[test]
#[should_panic(expected = "left a freeze that goes on")]
fn a_flag_shut_without_order_is_reported() {
    an_arrival(Some(Weakened::Stores(FLAG)));
}

#[test]
#[should_panic(expected = "left a freeze that goes on")]
fn a_flag_found_shut_without_order_is_reported() {
    an_arrival(Some(Weakened::Loads(FLAG)));
}

/// A host shuts the pop gate and shows life while a lane that has given it up looks for a buffer.
fn a_return(weakened: Option<Weakened>) {
    explore(None, move || {
        let stage = Stage::new(weakened, 1, 1);
        let (mut worker, gates) = (stage.worker::<Whole>(0), stage.gates());
        let heartbeat = Own::new(stage.memory.word(HEARTBEAT).expect("a word"));
        let signs = HostSigns {
            gates: worker.lane.gates().signs(0),
            ring_head: 0,
            pool: stage.pool_name(0),
            queue_tail: 0,
        };
        worker.lane.restore(LaneState { latch: Latch::with(Some(signs)), ..LaneState::default() });
        let lane = thread::spawn(move || {
            let mut switch = worker.lane.begin_claim();
            let progress = worker.lane.poll_switch(&mut worker.pool, &mut switch, &worker.env);
            if progress == Progress::Moved {
                assert!(!worker.lane.state().latch.is_set());
                let progress = worker.lane.poll_switch(&mut worker.pool, &mut switch, &worker.env);
                assert_eq!(progress, Progress::Waiting(Gate::Free));
                assert!(switch.parked().is_some(), "passed the gate of a host that lives");
            }
        });
        gates.set_shut(Gate::Free, true).expect("no fault");
        heartbeat.publish(1);
        lane.join().expect("the lane's own assertions");
    });
}

#[test]
fn a_lane_that_finds_its_host_back_finds_the_gate_shut() {
    a_return(None);
}

#[test]
#[should_panic(expected = "passed the gate of a host that lives")]
fn a_heartbeat_without_order_is_reported() {
    a_return(Some(Weakened::Stores(HEARTBEAT)));
}

#[test]
#[should_panic(expected = "passed the gate of a host that lives")]
fn a_heartbeat_loaded_without_order_is_reported() {
    a_return(Some(Weakened::Loads(HEARTBEAT)));
}

/// A lane that raises once per wait instead of on every look.
struct RaisesOnce;

impl Subsystem for RaisesOnce {
    const RULES: Rules = Rules { raise_by_level: false, ..Rules::ALL };
}

/// Two lanes starve; the host acts on signals alone and has one buffer per freeze, so that one freeze ends with a queue
/// still empty, its signal taken. At most one preemption in a run.
fn starving_lanes<S: Subsystem + 'static>() {
    explore(Some(1), || {
        let stage = Stage::new(None, 2, 1);
        let workers = [0, 1].map(|lane| stage.worker::<S>(lane));
        let (gates, queues) = (stage.gates(), stage.queues());
        let lanes = workers.map(|mut worker| thread::spawn(move || worker.claim()));
        let mut patience = Patience::default();
        for (queue, pool) in queues.iter().zip(0..) {
            open_freeze(&gates, &mut patience);
            queue.push(queue.tail(), buffer(pool, 0)).expect("no fault");
            gates.consume(Gate::Free).expect("no fault");
            gates.bump_epoch().expect("no fault");
            gates.set_shut(Gate::Free, false).expect("no fault");
        }
        for lane in lanes {
            lane.join().expect("the lane's own assertions");
        }
    });
}

#[test]
fn a_signal_that_was_taken_in_vain_is_raised_again() {
    starving_lanes::<Whole>();
}

#[test]
#[should_panic(expected = "asleep for ever")]
fn a_lane_that_raises_once_sleeps_for_ever() {
    starving_lanes::<RaisesOnce>();
}
