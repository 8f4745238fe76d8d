//! Buffers on their way: from free queue through a lane and a ready ring to the host and back, beside a freeze, a scan, the
//! end of a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::thread;
use sluice_core::mem::{DevAddr, LongPeer, Memory, Peer};
use sluice_core::producer::{Rules, tiny};
use sluice_host::dfx::attach::Attach;
use sluice_host::dfx::drain::Drained;
use sluice_host::dfx::keeper::{GateScope, Kept, Shut};
use sluice_host::dfx::ledger::BufferId;
use sluice_host::dfx::release::Unconditional;

use crate::memory::Weakened;
use crate::stage::{Line, Patience, Stage, Whole};
use crate::{POOL, RING, explore};

/// One lane fills its only buffer twice; the host collects both records and gives the buffer back in between.
fn one_buffer_goes_round(weakened: Option<Weakened>) {
    explore(None, move || {
        let stage = Stage::new(weakened, 1, 1);
        let mut worker = stage.worker::<Whole>(0);
        let mut host = stage.host(GateScope::Lane);
        host.serve();
        worker.claim();
        worker.fill(7);
        let lane = thread::spawn(move || {
            worker.switch();
            worker.fill(8);
            worker.flush();
        });
        host.serve_until(|host| host.collected.len() == 2);
        assert_eq!(host.collected, [7, 8]);
        lane.join().expect("the lane's own assertions");
    });
}

#[test]
fn payload_crosses_both_ways_without_a_race() {
    one_buffer_goes_round(None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_publication_without_order_is_reported() {
    one_buffer_goes_round(Some(Weakened::Stores(tiny::at(RING.tail))));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_publication_found_without_order_is_reported() {
    one_buffer_goes_round(Some(Weakened::Loads(tiny::at(RING.tail))));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_refill_without_order_is_reported() {
    one_buffer_goes_round(Some(Weakened::Stores(tiny::at(POOL.free_tail))));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_refill_found_without_order_is_reported() {
    one_buffer_goes_round(Some(Weakened::Loads(tiny::at(POOL.free_tail))));
}

/// Two lanes with one buffer each publish and claim it again, through gates that the host shuts and opens. At most one
/// preemption in a run.
#[test]
fn two_lanes_pass_a_freeze() {
    let opened = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&opened);
    explore(Some(1), move || {
        let stage = Stage::new(None, 2, 1);
        let mut workers = [0, 1].map(|lane| stage.worker::<Whole>(lane));
        let mut host = stage.host(GateScope::All);
        host.serve();
        for (worker, value) in workers.iter_mut().zip([7, 8]) {
            worker.claim();
            worker.fill(value);
        }
        let lanes = workers.map(|mut worker| thread::spawn(move || worker.switch()));
        host.serve_until(|host| host.collected.len() == 2 && host.is_at_rest());
        host.collected.sort_unstable();
        assert_eq!(host.collected, [7, 8]);
        for lane in lanes {
            lane.join().expect("the lane's own assertions");
        }
        seen.fetch_add(host.opened, Ordering::Relaxed);
    });
    assert!(opened.load(Ordering::Relaxed) > 0, "some lane starved before it was served");
}

/// A core looks for its buffer while its lane publishes that and claims the next. It goes by the sequence.
fn core_beside_a_switch(weakened: Option<Weakened>) {
    explore(None, move || {
        let stage = Stage::new(weakened, 1, 2);
        let mut worker = stage.worker::<Whole>(0);
        stage.host(GateScope::All).serve();
        worker.claim();
        worker.fill(7);
        let first = worker.pool.state().buffer;
        let sequence = Peer::new(stage.memory.word(tiny::at(POOL.current_seq)).expect("a word"));
        let current = LongPeer::at(&stage.memory, tiny::at(POOL.current_ptr)).expect("a word");
        let lane = thread::spawn(move || worker.switch());
        if sequence.observe() == 1 {
            let found = current.try_observe().expect("no fault");
            assert!(found != first && !found.is_null(), "the buffer of an earlier sequence");
        }
        lane.join().expect("the lane's own assertions");
    });
}

#[test]
fn a_core_that_goes_by_the_sequence_finds_the_buffer() {
    core_beside_a_switch(None);
}

#[test]
#[should_panic(expected = "the buffer of an earlier sequence")]
fn a_sequence_without_order_is_reported() {
    core_beside_a_switch(Some(Weakened::Stores(tiny::at(POOL.current_seq))));
}

#[test]
#[should_panic(expected = "the buffer of an earlier sequence")]
fn a_sequence_found_without_order_is_reported() {
    core_beside_a_switch(Some(Weakened::Loads(tiny::at(POOL.current_seq))));
}

/// A host attaches while a lane publishes the first of two buffers and claims the second.
fn scan_beside_a_switch(weakened: Option<Weakened>) {
    explore(None, move || {
        let stage = Stage::new(weakened, 1, 2);
        let mut worker = stage.worker::<Whole>(0);
        stage.host(GateScope::All).serve();
        worker.claim();
        worker.fill(7);
        let mut attach = Attach::new(Arc::clone(&stage.directory), Rules::ALL);
        let lane = stage.scan(|views| {
            let lane = thread::spawn(move || worker.switch());
            let found = attach.run(views).expect("no fault");
            assert_eq!(found.host, [], "the lane holds both");
            lane
        });
        lane.join().expect("the lane's own assertions");
    });
}

#[test]
fn a_scan_misses_no_buffer_of_a_lane_that_switches() {
    scan_beside_a_switch(None);
}

#[test]
#[should_panic(expected = "the lane holds both")]
fn a_claim_without_order_is_reported() {
    scan_beside_a_switch(Some(Weakened::Stores(tiny::at(POOL.free_head))));
}

#[test]
#[should_panic(expected = "the lane holds both")]
fn a_claim_found_without_order_is_reported() {
    scan_beside_a_switch(Some(Weakened::Loads(tiny::at(POOL.free_head))));
}

#[test]
#[should_panic(expected = "the lane holds both")]
fn the_low_half_of_a_current_pointer_without_order_is_reported() {
    scan_beside_a_switch(Some(Weakened::Stores(tiny::at(POOL.current_ptr))));
}

#[test]
#[should_panic(expected = "the lane holds both")]
fn the_high_half_of_a_current_pointer_without_order_is_reported() {
    scan_beside_a_switch(Some(Weakened::Stores(tiny::at(POOL.current_ptr + 4))));
}

/// Drain and keeper on threads of their own: a freeze is on, one buffer waits in the ring. The keeper must see it there or
/// as the host's, and never release in between.
fn drain_beside_a_keeper(weakened: Option<Weakened>) {
    explore(None, move || {
        let stage = Stage::new(weakened, 1, 1);
        let mut worker = stage.worker::<Whole>(0);
        stage.host(GateScope::All).serve();
        worker.claim();
        worker.fill(7);
        worker.flush();
        let mut drain = stage.drain();
        let mut keeper = stage.keeper(GateScope::All, &[], Shut { ready: true, free: false });
        let drained = thread::spawn(move || {
            let (collect, returned) = (Line::default(), Line::default());
            assert!(matches!(drain.poll(&collect, &returned), Ok(Drained::Buffer(_))));
        });
        let event = |kept| assert_ne!(kept, Kept::Released, "the host could still give a buffer");
        keeper.round(&Line::default(), &mut Unconditional, event).expect("no fault");
        drained.join().expect("the drain's own assertions");
    });
}

#[test]
fn a_freeze_does_not_end_between_ring_and_host() {
    drain_beside_a_keeper(None);
}

#[test]
#[should_panic(expected = "the host could still give a buffer")]
fn a_slot_given_back_without_order_is_reported() {
    drain_beside_a_keeper(Some(Weakened::Stores(tiny::at(RING.head))));
}

#[test]
#[should_panic(expected = "the host could still give a buffer")]
fn a_slot_found_given_back_without_order_is_reported() {
    drain_beside_a_keeper(Some(Weakened::Loads(tiny::at(RING.head))));
}

/// A buffer goes from a keeper through a lane to a drain, each on its own thread; the drain knows that it was given.
fn keeper_lane_drain(weakened: Option<Weakened>) {
    explore(None, move || {
        let stage = Stage::new(weakened, 1, 1);
        let mut worker = stage.worker::<Whole>(0);
        let mut keeper = stage.keeper(GateScope::Lane, &[0], Shut::default());
        let mut drain = stage.drain();
        let lane = thread::spawn(move || {
            worker.claim();
            worker.fill(7);
            worker.flush();
        });
        let drained = thread::spawn(move || {
            let (collect, returned) = (Line::default(), Line::<BufferId>::default());
            let mut patience = Patience::default();
            loop {
                match drain.poll(&collect, &returned).expect("no fault") {
                    Drained::Nothing => patience.wait(),
                    Drained::Buffer(_) => break,
                    drained => panic!("not taken: {drained:?}"),
                }
            }
        });
        keeper.round(&Line::default(), &mut Unconditional, |_| ()).expect("no fault");
        lane.join().expect("the lane's own assertions");
        drained.join().expect("the drain's own assertions");
    });
}

#[test]
fn a_drain_takes_what_the_keeper_gave() {
    keeper_lane_drain(None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_hand_over_without_order_is_reported() {
    keeper_lane_drain(Some(Weakened::Stores(tiny::at(POOL.free_tail))));
}

/// The word in which a lane says that it has flushed.
const FLUSHED: DevAddr = tiny::lane_status(0, 8);

/// A lane publishes its last buffer and says that it has flushed; a host that finds it so drains once more.
fn a_flush(weakened: Option<Weakened>) {
    explore(None, move || {
        let stage = Stage::new(weakened, 1, 1);
        let mut worker = stage.worker::<Whole>(0);
        let mut host = stage.host(GateScope::Lane);
        host.serve();
        worker.claim();
        worker.fill(7);
        let flushed = Peer::new(stage.memory.word(FLUSHED).expect("a word"));
        let lane = thread::spawn(move || {
            worker.flush();
            worker.lane.show_flushed();
        });
        let mut patience = Patience::default();
        while flushed.observe() == 0 {
            patience.wait();
        }
        host.serve();
        assert_eq!(host.collected, [7], "collected when the lane has flushed");
        lane.join().expect("the lane's own assertions");
    });
}

#[test]
fn a_lane_that_has_flushed_has_published() {
    a_flush(None);
}

#[test]
#[should_panic(expected = "collected when the lane has flushed")]
fn a_flush_shown_without_order_is_reported() {
    a_flush(Some(Weakened::Stores(FLUSHED)));
}

#[test]
#[should_panic(expected = "collected when the lane has flushed")]
fn a_flush_found_without_order_is_reported() {
    a_flush(Some(Weakened::Loads(FLUSHED)));
}
