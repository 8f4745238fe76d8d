//! Models whose subgraphs run on other TPBs than the first ones.

use std::sync::Arc;

use proptest::prelude::*;
use sluice_core::exec::{ErrorClass, ExecRequest, NrtStatus};
use sluice_core::mem::testing::Mishap;
use sluice_core::mmio::ControlWord;
use zerocopy::FromBytes;

use super::super::batch::PROLOGUE_PAIRS;
use super::super::mock::{MockDevice, MockTpb, model, tensors, value_of};
use super::*;
use crate::device::Device;
use crate::neff::Neff;

const TPBS: u32 = 4;

struct Rig {
    device: Arc<MockDevice>,
    unit: Unit<MockDevice>,
    tpbs: [MockTpb; TPBS as usize],
}

impl Rig {
    fn new() -> Self {
        let device = MockDevice::new(TPBS);
        let unit = Unit::open(Arc::clone(&device), device.heap(), small()).unwrap();
        let tpbs = [0, 1, 2, 3].map(|tpb| device.tpb(tpb));
        Self { device, unit, tpbs }
    }

    fn load(&self, neff: &Neff, first: u32) -> Result<ModelHandle, LoadError> {
        let first_tpb = TpbId::new(first).unwrap();
        self.unit.load(neff, &LoadOptions { first_tpb, ..LoadOptions::default() })
    }

    fn built(&self, neff: &Neff, first: u32) -> Built {
        let handle = self.load(neff, first).unwrap();
        let (inputs, outputs) = tensors(&self.unit, handle);
        self.unit.build(handle, &inputs, &outputs).unwrap()
    }

    fn staged(&self, built: &Built) -> Staged<MockDevice> {
        self.unit.stage(built).unwrap()
    }

    fn doorbells(&self) -> [u32; TPBS as usize] {
        self.tpbs.each_ref().map(MockTpb::doorbell)
    }

    fn posted(&self) -> [u32; TPBS as usize] {
        self.tpbs.each_ref().map(MockTpb::posted)
    }
}

/// Which TPBs an execution ran on, and its place there.
fn ran(running: Running<MockDevice>) -> Vec<(u32, u32)> {
    let outcome = running.wait().unwrap();
    outcome.tpbs.iter().map(|tpb| (tpb.tpb.get(), tpb.ordinal.unwrap())).collect()
}

#[test]
fn models_on_tpbs_of_their_own_run_beside_each_other() {
    let rig = Rig::new();
    let [last, both, first] =
        [("pointers", 3), ("gather", 1), ("pointers", 0)].map(|(name, first)| rig.built(&model(name), first));
    let of = |built: &Built| {
        rig.unit.model(built.model()).unwrap().tpbs().map(|tpb| tpb.get()).collect::<Vec<_>>()
    };
    assert_eq!([of(&first), of(&both), of(&last)], [vec![0], vec![1, 2], vec![3]]);
    // Registers that are patched are those of their TPBs.
    for built in [&first, &both, &last] {
        let registers = rig.device.map().registers;
        let slots = rig.unit.patched_slots(built).unwrap();
        let patched = slots.iter().filter_map(|slot| registers.locate(slot.at)).map(|(tpb, _)| tpb.get());
        let mut patched: Vec<_> = patched.collect();
        patched.dedup();
        assert_eq!(patched, of(built));
    }
    let [first, both, last] = [&first, &both, &last].map(|built| rig.staged(built).kickoff().unwrap());
    assert_eq!(rig.doorbells(), [1; 4]);
    // None waits for those before it to run.
    rig.tpbs[3].run(0);
    assert_eq!(ran(last), [(3, 0)]);
    rig.tpbs[1].run(0);
    assert!(both.try_wait().unwrap().is_none());
    rig.tpbs[2].run(0);
    assert_eq!(ran(both), [(1, 0), (2, 0)]);
    rig.tpbs[0].run(0);
    assert_eq!(ran(first), [(0, 0)]);
    assert_eq!(rig.unit.in_flight(), 0);
}

#[test]
fn models_that_begin_too_far_behind_are_refused() {
    let rig = Rig::new();
    let before = rig.unit.heap().usage();
    for first in [3, 4, TpbId::COUNT - 1] {
        let error = rig.load(&model("gather"), first).unwrap_err();
        assert_eq!(error.status(), NrtStatus::LOAD_NOT_ENOUGH_NC);
        assert_eq!(
            error.to_string(),
            format!(
                "model has 2 subgraphs and asks for 1 cores of 2 TPBs from TPB {first} on, the unit has 4 TPBs"
            )
        );
    }
    assert_eq!(rig.unit.heap().usage(), before);
    rig.load(&model("gather"), 2).unwrap();
}

#[test]
fn what_is_not_started_leaves_other_tpbs_alone() {
    let rig = Rig::new();
    let (both, one) = (rig.built(&model("gather"), 1), rig.built(&model("pointers"), 2));
    let (dropped, behind) = (rig.staged(&both), rig.staged(&one));
    let posted = rig.posted();
    assert!(posted[0] == 0 && posted[1] > 0 && posted[2] > posted[1] && posted[3] == 0, "{posted:?}");
    drop(dropped);
    // On the one it is taken back, on the other overwritten.
    assert_eq!(rig.posted(), [0, 0, posted[2], 0]);
    let behind = behind.kickoff().unwrap();
    rig.tpbs[2].run(0);
    assert_eq!(ran(behind), [(2, 0)]);

    let failed = rig.staged(&both);
    rig.tpbs[2].fail(ControlWord::Doorbell, Mishap::Refused);
    assert_eq!(failed.kickoff().unwrap_err().tpb.get(), 2);
    assert_eq!(rig.doorbells(), [0, 1, 1, 0]);
    rig.tpbs[1].run(0);
    // A write that fails takes back what was written before.
    let posted = rig.posted();
    for writes in 0..4 {
        rig.device.fail_one_after(writes);
        assert!(rig.unit.stage(&both).is_err(), "{writes}");
        assert_eq!(rig.posted(), posted, "{writes}");
    }
    for tpb in 1..3 {
        rig.tpbs[tpb].fail(ControlWord::ExecPostedPairs, Mishap::AnswerLost);
        assert!(rig.unit.stage(&both).is_err(), "{tpb}");
        assert_eq!(rig.posted(), posted, "{tpb}");
    }
    let running = rig.staged(&both).kickoff().unwrap();
    rig.tpbs[1].run(1);
    rig.tpbs[2].run(1);
    assert_eq!(ran(running), [(1, 1), (2, 1)]);
}

#[test]
fn a_tpb_that_stops_stops_only_what_runs_there() {
    let rig = Rig::new();
    let (both, one) = (rig.built(&model("gather"), 2), rig.built(&model("pointers"), 0));
    let [lost, fine] = [&both, &one].map(|built| rig.staged(built).kickoff().unwrap());
    rig.tpbs[3].stop_at_bad_pair(ErrorClass::PHASE_MISMATCH);
    rig.tpbs[2].run(0);
    assert!(lost.wait().is_err());
    rig.tpbs[0].run(0);
    assert_eq!(ran(fine), [(0, 0)]);
    let running = rig.staged(&both).kickoff().unwrap();
    assert_eq!(rig.unit.rearms(), 1);
    rig.tpbs[2].run(1);
    rig.tpbs[3].run(0);
    assert_eq!(ran(running), [(2, 1), (3, 0)]);
}

#[test]
fn the_first_request_of_each_tpb_loads_everything() {
    let rig = Rig::new();
    let [first, second] = [0, 1].map(|first| rig.built(&model("pointers"), first));
    let flags = |built: &Built, tpb: usize, ordinal| {
        let running = rig.staged(built).kickoff().unwrap();
        let copies = rig.tpbs[tpb].consume();
        let request = &copies[copies.len() - PROLOGUE_PAIRS];
        let flags = ExecRequest::read_from_prefix(&value_of(&rig.device, request).1).unwrap().0.flags();
        rig.tpbs[tpb].run(ordinal);
        running.wait().unwrap();
        [flags.do_model_switch, flags.reload_seq_config, flags.load_act_dve_tables]
    };
    assert_eq!(flags(&first, 0, 0), [true; 3]);
    // Its tables are those that the other TPB has.
    assert_eq!(flags(&second, 1, 0), [true; 3]);
    assert_eq!(flags(&second, 1, 1), [false, true, false]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn models_on_any_tpbs_keep_their_rings_in_step(choices in prop::collection::vec(0usize..9, 0..80)) {
        let rig = Rig::new();
        let models = [("pointers", 0), ("pointers", 2), ("gather", 0), ("gather", 1), ("gather", 2)];
        let models = models.map(|(name, first)| rig.built(&model(name), first));
        let (mut staged, mut running, mut done) = (Vec::new(), Vec::new(), [0; TPBS as usize]);
        for choice in choices.into_iter().chain([5; 8]) {
            match (choice, models.get(choice)) {
                (_, Some(built)) => match rig.unit.stage(built) {
                    Ok(more) => staged.push(more),
                    Err(error) => prop_assert_eq!(error.status(), NrtStatus::QUEUE_FULL),
                },
                // The first is kicked off or dropped, or the last.
                (5, _) if !staged.is_empty() => running.push(staged.remove(0).kickoff().unwrap()),
                (6, _) if !staged.is_empty() => drop(staged.remove(0)),
                (7, _) => running.extend(staged.pop().map(|staged| staged.kickoff().unwrap())),
                (8, _) => drop(staged.pop()),
                _ => {}
            }
            if !staged.is_empty() {
                continue;
            }
            let kicked = rig.doorbells();
            for (place, tpb) in rig.tpbs.iter().enumerate() {
                // Whatever was dropped moves nothing.
                let copies = tpb.consume();
                let registers = rig.device.map().registers.tpb(TpbId::new(place as u32).unwrap()).unwrap();
                let request = registers.request().into();
                let requests = copies.iter().filter(|copy| copy.destination == request).count();
                prop_assert_eq!(requests as u32, kicked[place] - done[place]);
                (done[place]..kicked[place]).for_each(|ordinal| tpb.run(ordinal));
            }
            done = kicked;
            for running in running.drain(..) {
                ran(running);
            }
            prop_assert_eq!(rig.unit.in_flight(), 0);
        }
        prop_assert!(staged.is_empty() && running.is_empty());
    }
}
