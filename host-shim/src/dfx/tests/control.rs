//! What lanes are told to record, before a run and in it.

use std::mem::offset_of;
use std::sync::Arc;

use sluice_core::layout::SubsystemId;
use sluice_core::layout::extension::{LaneStatus, Service, WindowUnit, service};
use sluice_core::mem::testing::Poke;
use sluice_core::producer::{Control, RecordWindow, Span};

use super::stage::{Hand, Kept, Played, config};
use super::stopping::until;
use crate::dfx::{DfxConfig, Session, SessionError, SubsystemConfig};

const SUBSYSTEM: SubsystemId = SubsystemId::Pmu;

struct Bench {
    device: Arc<Played>,
    hand: Hand,
    session: Session<Played>,
}

impl Bench {
    fn new() -> Self {
        let config = config(&[SUBSYSTEM], 1);
        let window = RecordWindow::Executions(Span { from: 7, to: 1 << 40 });
        let pmu =
            SubsystemConfig { sample_every: 3, window, ..SubsystemConfig::new(SUBSYSTEM, config.shape) };
        // The silent lanes of these tests cost a deadline each.
        let config = DfxConfig { deadline_cycles: Some(1_000_000), ..config }.with(SUBSYSTEM, pmu);
        let device = Played::new(config.shape.lanes());
        let shape = config.shape;
        let session = Session::start(&device, &device.heap(), config, Arc::new(Kept::default())).unwrap();
        let hand = Hand::attach(&device, SUBSYSTEM, shape);
        Self { device, hand, session }
    }

    fn word(&self, offset: usize) -> u32 {
        self.hand.extension_word(service(SUBSYSTEM) + offset)
    }

    /// Level, sample, unit and window, and the number of all of it.
    fn told(&self) -> [u32; 8] {
        let (start, stop) = (offset_of!(Service, window_start), offset_of!(Service, window_stop));
        [
            offset_of!(Service, level),
            offset_of!(Service, sample_every),
            offset_of!(Service, window_unit),
            start,
            start + 4,
            stop,
            stop + 4,
            offset_of!(Service, control_seq),
        ]
        .map(|offset| self.word(offset))
    }

    fn follow(&self, lane: u32, sequence: u32) {
        let seen = self.hand.line(lane, offset_of!(LaneStatus, control_seen));
        self.device.memory_block().poke(seen, sequence);
    }
}

#[test]
fn lanes_are_told_before_they_attach() {
    let bench = Bench::new();
    assert_eq!(bench.told(), [1, 3, WindowUnit::EXECUTIONS.0, 7, 0, 0, 1 << 8, 1]);
    bench.hand.flush();
    bench.session.stop().unwrap();
}

#[test]
fn what_lanes_have_not_followed_is_not_changed_under_them() {
    let mut bench = Bench::new();
    let off = Control::at_level(0);
    assert!(matches!(bench.session.set(SubsystemId::DepGen, &off), Err(SessionError::NotOn(_))));
    // Lane 1 has not looked yet.
    bench.follow(0, 1);
    let before = bench.told();
    let refused = bench.session.set(SUBSYSTEM, &off).unwrap_err();
    assert!(matches!(refused, SessionError::NotFollowed { lanes: 1, .. }), "{refused}");
    assert_eq!(bench.told(), before);
    bench.follow(1, 1);
    // Both have now, but are slow to follow the next.
    let refused = bench.session.set(SUBSYSTEM, &off).unwrap_err();
    assert!(matches!(refused, SessionError::NotFollowed { lanes: 2, .. }), "{refused}");
    assert_eq!(bench.told(), [0, 1, WindowUnit::NONE.0, 0, 0, 0, 0, 2]);
    (0..2).for_each(|lane| bench.follow(lane, 2));
    std::thread::scope(|scope| {
        let (device, hand) = (&bench.device, &bench.hand);
        scope.spawn(move || {
            let seen = |lane| hand.line(lane, offset_of!(LaneStatus, control_seen));
            let sequence = || hand.extension_word(service(SUBSYSTEM) + offset_of!(Service, control_seq));
            until("a third change", || sequence() == 3);
            (0..2).for_each(|lane| device.memory_block().poke(seen(lane), 3));
        });
        let sampled = Control { sample_every: 9, ..Control::at_level(1) };
        bench.session.set(SUBSYSTEM, &sampled).unwrap();
    });
    assert_eq!(bench.told()[..2], [1, 9]);
    bench.hand.flush();
    bench.session.stop().unwrap();
}
