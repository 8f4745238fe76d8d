//! Whole sessions with their threads, on a device whose lanes the test plays: all subsystems at once, and stops that are not
//! let end by themselves.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use sluice_core::gate::Gate;
use sluice_core::layout::SubsystemId;
use sluice_core::layout::extension::LaneActivity;

use super::stage::{Hand, Kept, Played, config};
use crate::device::heap::Heap;
use crate::dfx::{BufferMeta, DfxConfig, Freeze, PlanError, Session, SessionError, Sink};

/// Looks again and again until `met`, for as long as a run on a busy machine may take.
pub(super) fn until(what: &str, mut met: impl FnMut() -> bool) {
    assert!(
        (0..10_000).any(|_| met() || {
            std::thread::sleep(Duration::from_millis(1));
            false
        }),
        "{what}"
    );
}

#[test]
fn one_session_serves_all_subsystems_together() {
    let kept = Arc::new(Kept::default());
    let config = config(&SubsystemId::ALL, 1);
    let device = Played::new(config.shape.lanes());
    let session =
        Session::start(&device, &device.heap(), config.clone(), Arc::clone(&kept) as _).expect("a session");
    let hands = SubsystemId::ALL.map(|subsystem| Hand::attach(&device, subsystem, config.shape));
    for sequence in 0..50 {
        for hand in &hands {
            until("a buffer comes back", || hand.queued(0) == 1);
            hand.fill(sequence % 2, 0, sequence, 2);
        }
    }
    hands.iter().for_each(Hand::flush);
    let accounts = session.stop().expect("accounts");
    assert_eq!(accounts.len(), SubsystemId::ALL.len());
    for (subsystem, account) in accounts {
        assert_eq!((account.collected(), account.switches()), (100, 50), "{subsystem}");
        assert!(account.is_lossless(), "{subsystem}: {account:?}");
        assert_eq!(kept.records()[&subsystem], 100);
    }
    assert!(hands.iter().all(Hand::is_host_detached));
    let buffers = kept.buffers.lock().unwrap();
    for subsystem in SubsystemId::ALL {
        let own = buffers.iter().filter(|(meta, _)| meta.subsystem == subsystem);
        assert!(own.map(|(meta, _)| meta.sequence).eq(0..50), "{subsystem}: in order");
    }
}

#[test]
fn a_session_without_room_says_how_much_it_needs() {
    let config = config(&SubsystemId::ALL, 100);
    let device = Played::new(config.shape.lanes());
    let heap = device.heap();
    let free = heap.usage().free_bytes;
    let Err(SessionError::Plan(PlanError::Memory { needed_bytes, free_bytes, .. })) =
        Session::start(&device, &heap, config, Arc::new(Kept::default()))
    else {
        panic!("the memory is not enough for that");
    };
    assert_eq!(free_bytes, free);
    assert!(needed_bytes > free, "{needed_bytes} bytes of {free}");
    assert_eq!(heap.usage().free_bytes, free, "nothing stays allocated");
}

/// A sink that keeps the first buffer until it is let go.
#[derive(Default)]
struct Stuck {
    is_let_go: Mutex<bool>,
    let_go: Condvar,
    is_entered: AtomicBool,
}

impl Stuck {
    fn let_go(&self) {
        *self.is_let_go.lock().unwrap() = true;
        self.let_go.notify_all();
    }
}

impl Sink for Stuck {
    fn buffer(&self, _meta: &BufferMeta, _records: &[u8]) -> io::Result<()> {
        self.is_entered.store(true, Ordering::Release);
        let is_let_go = self.is_let_go.lock().unwrap();
        drop(self.let_go.wait_while(is_let_go, |is_let_go| !*is_let_go).unwrap());
        Ok(())
    }

    fn freeze(&self, _freeze: &Freeze) -> io::Result<()> {
        Ok(())
    }
}

/// A session of one subsystem whose sink has taken a buffer and does not return.
fn stuck(device: &Arc<Played>, heap: &Heap) -> (Session<Played>, Hand, Arc<Stuck>) {
    let config = DfxConfig {
        deadline_cycles: Some(1),
        linger: Duration::from_millis(50),
        ..config(&[SubsystemId::Swimlane], 1)
    };
    let sink = Arc::new(Stuck::default());
    let session = Session::start(device, heap, config.clone(), Arc::clone(&sink) as _).expect("a session");
    let hand = Hand::attach(device, SubsystemId::Swimlane, config.shape);
    hand.fill(0, 0, 0, 1);
    until("the sink has the buffer", || sink.is_entered.load(Ordering::Acquire));
    (session, hand, sink)
}

#[test]
fn a_stop_ends_although_the_sink_never_returns() {
    let device = Played::new(2);
    let (session, hand, sink) = stuck(&device, &device.heap());
    hand.flush();
    let Err(SessionError::Stuck { role: "collecting", .. }) = session.stop() else {
        panic!("the sink still has a buffer");
    };
    assert!(hand.is_host_detached());
    sink.let_go();
}

#[test]
fn a_stop_in_a_freeze_lets_every_lane_go() {
    let device = Played::new(2);
    let (session, hand, sink) = stuck(&device, &device.heap());
    for (lane, gate, state) in
        [(0, Gate::Free, LaneActivity::FREE_GATE), (1, Gate::Ready, LaneActivity::READY_GATE)]
    {
        hand.show(lane, state, 1);
        hand.raise(gate);
        until("the gate is shut", || hand.is_shut(gate));
    }
    let stopped = session.stop();
    assert!(stopped.is_err(), "its sink is stuck");
    assert!(!hand.is_shut(Gate::Free) && !hand.is_shut(Gate::Ready));
    assert!(hand.is_host_detached(), "one that parks later goes at once");
    sink.let_go();
}

#[test]
fn a_pause_takes_nothing_and_lasts_as_long_as_its_freeze() {
    let kept = Arc::new(Kept::default());
    let config = config(&[SubsystemId::DepGen], 1);
    let device = Played::new(config.shape.lanes());
    let session =
        Session::start(&device, &device.heap(), config.clone(), Arc::clone(&kept) as _).expect("a session");
    let hand = Hand::attach(&device, SubsystemId::DepGen, config.shape);
    session.pause(Duration::from_secs(3600));
    hand.fill(0, 0, 0, 1);
    hand.raise(Gate::Free);
    until("the gate is shut", || hand.is_shut(Gate::Free));
    let beats = hand.heartbeat();
    until("many turns are over", || hand.heartbeat().wrapping_sub(beats) > 20);
    assert!(hand.is_shut(Gate::Free) && kept.records().is_empty());
    session.resume();
    until("the freeze is over", || !hand.is_shut(Gate::Free));
    session.pause(Duration::from_secs(3600));
    hand.flush();
    let account = session.stop().expect("accounts").remove(&SubsystemId::DepGen).expect("dep_gen recorded");
    assert_eq!((account.collected(), account.is_lossless()), (1, true), "a stop ends a pause");
}
