//! Executions of the built-in models.

use std::sync::Arc;

use sluice_core::dma::QueueRegisters;
use sluice_core::exec::{NrtStatus, Ticket};
use sluice_core::fmap::Direction;
use sluice_core::mmio::{Engine, Half, QueueId, TpbId};
use sluice_host::device::Device;
use sluice_host::device::sim::{SimConfig, SimDevice};
use sluice_host::kbl::{Built, LoadOptions, TensorSet, Unit, UnitOptions, WaitError};
use sluice_host::neff::{Neff, ReadOptions, pack};

use crate::bench::{Bench, builtin};
use crate::expected;
use crate::random::noise;

/// Checks the outputs of `gather` for the inputs that were filled in.
pub(crate) fn check_gather(bench: &Bench, outputs: &TensorSet, a: &[u8], b: &[u8]) {
    for (name, expected) in ["own0", "own1", "mix"].into_iter().zip(expected::gather(a, b)) {
        let found = bench.read(outputs, name);
        let differing = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!((found.len(), differing), (expected.len(), None), "{name}");
    }
}

#[test]
fn counters_of_the_device_go_round_and_every_byte_arrives() {
    let config = SimConfig { counters_from: u32::MAX - 50, ..SimConfig::default() };
    let device = Arc::new(SimDevice::start(config).unwrap());
    let bench = Bench::on(device, UnitOptions { exec_ring: 64, ..UnitOptions::default() });
    let model = bench.load(&builtin("gather"));
    let (inputs, outputs) = (bench.tensors(model, Direction::Input), bench.tensors(model, Direction::Output));
    let built = bench.unit.build(model, &inputs, &outputs).unwrap();
    for execution in 0..100 {
        let (a, b) = (bench.fill(&inputs, "a", 2 * execution), bench.fill(&inputs, "b", 2 * execution + 1));
        bench.run(&built);
        check_gather(&bench, &outputs, &a, &b);
    }
}

#[test]
fn gather_moves_every_byte_to_its_place() {
    let bench = Bench::new(UnitOptions::default());
    let start = bench.heap.usage();
    let model = bench.load(&builtin("gather"));
    let (inputs, outputs) = (bench.tensors(model, Direction::Input), bench.tensors(model, Direction::Output));
    for execution in 0..100 {
        let a = bench.fill(&inputs, "a", 2 * execution);
        let b = bench.fill(&inputs, "b", 2 * execution + 1);
        bench.run(&bench.unit.build(model, &inputs, &outputs).unwrap());
        check_gather(&bench, &outputs, &a, &b);
    }
    let counts = bench.unit.model(model).unwrap().build_counts();
    assert_eq!((counts.hits, counts.misses, bench.unit.tickets()), (99, 1, 100));
    drop((inputs, outputs));
    bench.unit.unload(model, std::time::Duration::from_secs(60)).unwrap();
    assert_eq!(bench.heap.usage(), start);
    let usage = bench.end();
    assert_eq!(usage.free_bytes, usage.total_bytes);
}

/// A model that copies its input, with as many pointer cells.
fn copying(pointers: usize) -> Neff {
    let cells: String =
        (0..pointers).map(|cell| format!("{{ name = 'p{cell}', type = 'pointer', to = 'x' }},\n")).collect();
    let text = format!(
        "[model]
         name = 'copying'
         target = 'cayman'
         [[tpb]]
         var = [
           {{ name = 'x', type = 'input', size = 64 }},
           {{ name = 'y', type = 'output', size = 64 }},
           {cells}
         ]
         queue = [{{ name = 'q', type = 'in', owner = 'pool', semaphore = 10 }}]
         [[tpb.block]]
         queue = 'q'
         copy = [{{ from = 'x', to = 'y', bytes = 64 }}]
        "
    );
    Neff::parse("copying", &pack("copying", &text).unwrap(), &ReadOptions::default()).unwrap()
}

#[test]
fn ten_thousand_executions_fit_the_smallest_rings_of_different_size() {
    let rings = UnitOptions { exec_ring: 32, exec_ring_rx: Some(64), depth: 4, ..UnitOptions::default() };
    let bench = Bench::new(rings);
    // Batches of 9 to 16 pairs: ring ends fall everywhere inside them, and the longest are all that the TX ring takes.
    let models: Vec<_> = (0..=7)
        .map(|pointers| {
            let model = bench.load(&copying(pointers));
            let [inputs, outputs] =
                [Direction::Input, Direction::Output].map(|side| bench.tensors(model, side));
            let built = bench.unit.build(model, &inputs, &outputs).unwrap();
            (built, inputs, outputs)
        })
        .collect();
    let mut random = noise(1, 10_000).into_iter();
    for execution in 0..10_000 {
        let longest = execution % 10 == 0;
        let chosen = if longest { 7 } else { usize::from(random.next().unwrap()) % models.len() };
        let (built, inputs, outputs) = &models[chosen];
        let x = bench.fill(inputs, "x", execution);
        let staged = bench.unit.stage(built).unwrap();
        assert_eq!(staged.ticket(), Ticket(execution));
        if longest {
            let posted = bench.unit.tickets();
            assert_eq!(bench.unit.stage(&models[0].0).unwrap_err().status(), NrtStatus::QUEUE_FULL);
            assert_eq!((bench.unit.tickets(), bench.unit.in_flight()), (posted, 1));
        }
        staged.kickoff().unwrap().wait().unwrap();
        assert!(bench.read(outputs, "y") == x, "execution {execution}");
    }
    assert_eq!((bench.unit.tickets(), bench.unit.rearms()), (10_000, 0));
    let refused = bench.unit.load(&copying(8), &LoadOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("takes 17 exec-queue descriptors"), "{refused}");
}

#[test]
fn executions_queue_up_and_end_in_order() {
    let bench = Bench::new(UnitOptions { depth: 16, ..UnitOptions::default() });
    let model = bench.load(&builtin("gather"));
    let (inputs, outputs) = (bench.tensors(model, Direction::Input), bench.tensors(model, Direction::Output));
    let (a, b) = (bench.fill(&inputs, "a", 1), bench.fill(&inputs, "b", 2));
    let built = bench.unit.build(model, &inputs, &outputs).unwrap();
    for round in 0..10 {
        let staged: Vec<_> = (0..16).map(|_| bench.unit.stage(&built).unwrap()).collect();
        assert_eq!(bench.unit.stage(&built).unwrap_err().status(), NrtStatus::QUEUE_FULL);
        let running: Vec<_> = staged.into_iter().map(|staged| staged.kickoff().unwrap()).collect();
        let mut last_end = 0;
        for (place, running) in running.into_iter().enumerate() {
            let outcome = running.wait().unwrap();
            assert_eq!(outcome.ticket, Ticket(16 * round + place as u64));
            for tpb in &outcome.tpbs {
                assert!(tpb.engines.iter().all(|times| times.start_cycles <= times.end_cycles));
            }
            let ends = outcome.tpbs[0].engines.iter().filter_map(|times| times.end_cycles);
            let end = ends.max().unwrap();
            assert!(end > last_end);
            last_end = end;
        }
    }
    check_gather(&bench, &outputs, &a, &b);
}

#[test]
fn threads_share_a_unit() {
    let bench = Bench::new(UnitOptions { depth: 4, ..UnitOptions::default() });
    let models = [bench.load(&builtin("pointers")), bench.load(&builtin("pointers"))];
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (bench, model) = (&bench, models[thread as usize % 2]);
            scope.spawn(move || {
                let inputs = bench.tensors(model, Direction::Input);
                let outputs = bench.tensors(model, Direction::Output);
                for execution in 0..50 {
                    let x = bench.fill(&inputs, "x", thread << 32 | execution);
                    let y = bench.fill(&inputs, "y", thread << 32 | execution | 1 << 31);
                    let built = bench.unit.build(model, &inputs, &outputs).unwrap();
                    bench.unit.stage(&built).unwrap().kickoff().unwrap().wait().unwrap();
                    assert_eq!(bench.read(&outputs, "z"), expected::pointers(&x, &y));
                }
            });
        }
    });
    assert_eq!(bench.unit.tickets(), 200);
}

#[test]
fn a_wait_that_can_not_end_times_out_and_names_the_engine() {
    let text = r#"
[model]
name = "stuck"
target = "cayman"

[[tpb]]
var = [
  { name = "x", type = "input", size = 64 },
  { name = "y", type = "output", size = 64 },
]
queue = [{ name = "q", type = "in", owner = "dve", semaphore = 1 }]

[[tpb.block]]
queue = "q"
copy = [{ from = "x", to = "y", bytes = 64 }]
"#;
    let bench = Bench::new(UnitOptions::default());
    let mut neff = Neff::parse("stuck", &pack("stuck", text).unwrap(), &ReadOptions::default()).unwrap();
    // A container that waits for what never comes is not read, so the wait is put in afterwards: one, for semaphore 7 to
    // reach 1.
    let instructions = &mut neff.programs[0].engines[Engine::Dve.index()].instructions;
    let mut program = instructions.to_vec();
    program[12] = 1;
    program[16..24].copy_from_slice(&[7, 0, 0, 0, 1, 0, 0, 0]);
    *instructions = program.into();
    let options = LoadOptions { timeout: std::time::Duration::from_secs(1), ..LoadOptions::default() };
    let model = bench.unit.load(&neff, &options).unwrap();
    let (inputs, outputs) = (bench.tensors(model, Direction::Input), bench.tensors(model, Direction::Output));
    let built = bench.unit.build(model, &inputs, &outputs).unwrap();
    let error = bench.unit.stage(&built).unwrap().kickoff().unwrap().wait().unwrap_err();
    assert_eq!(error.status(), NrtStatus::TIMEOUT);
    assert!(matches!(error, WaitError::Timeout(_)));
    let text = error.to_string();
    assert!(text.contains("TPB 0, engine DVE in END_PENDING, last notification sub-type 2, id 0"), "{text}");
    assert!(text.contains("the device was told to cut it short"), "{text}");

    // It is, and what comes after it runs.
    let good = bench.load(&builtin("pointers"));
    let (inputs, outputs) = (bench.tensors(good, Direction::Input), bench.tensors(good, Direction::Output));
    let (x, y) = (bench.fill(&inputs, "x", 1), bench.fill(&inputs, "y", 2));
    bench.run(&bench.unit.build(good, &inputs, &outputs).unwrap());
    assert_eq!(bench.read(&outputs, "z"), expected::pointers(&x, &y));
    bench.unit.unload(model, std::time::Duration::from_secs(60)).unwrap();
}

#[test]
fn a_tpb_whose_exec_ring_was_damaged_runs_what_is_staged_later() {
    let bench = Bench::new(UnitOptions { exec_ring: 128, ..UnitOptions::default() });
    let model = bench.load(&builtin("gather"));
    let (inputs, outputs) = (bench.tensors(model, Direction::Input), bench.tensors(model, Direction::Output));
    let (a, b) = (bench.fill(&inputs, "a", 1), bench.fill(&inputs, "b", 2));
    let built = bench.unit.build(model, &inputs, &outputs).unwrap();
    for round in 1..=20 {
        // The ring runs from its start after each set-up: the first descriptor is the next batch's.
        let [first, second] = [(); 2].map(|()| bench.unit.stage(&built).unwrap());
        let tpb = TpbId::new(round as u32 % 2).unwrap();
        let bank = bench.device.map().registers.tpb(tpb).unwrap().queue_bank(Half::Tx, QueueId::EXEC);
        let ring = QueueRegisters::attach(bench.device.memory(), bank).unwrap();
        let position = ring.position(ring.ring().unwrap().size).slot().index;
        let at = ring.ring().unwrap().base.offset(16 * u64::from(position));
        bench.device.write(at, &[0xFF; 16]).unwrap();
        let first = first.kickoff().unwrap();
        let second = second.kickoff();
        assert_eq!(first.wait().unwrap_err().status(), NrtStatus::EXEC_HW_ERR_DMA_ABORT);
        // It ended with the first, or was started on one TPB and is lost on the other.
        let status = match second {
            Err(error) => error.status(),
            Ok(second) => second.wait().unwrap_err().status(),
        };
        assert_eq!(status, NrtStatus::EXEC_UNIT_UNRECOVERABLE);
        assert_eq!(bench.unit.rearms(), round);
        bench.run(&built);
        check_gather(&bench, &outputs, &a, &b);
    }
    bench.unit.close(std::time::Duration::from_secs(60)).unwrap();
}

#[test]
fn a_stop_lets_everything_queued_before_it_run() {
    let bench = Bench::new(UnitOptions { depth: 16, ..UnitOptions::default() });
    let model = bench.load(&builtin("pointers"));
    let (inputs, outputs) = (bench.tensors(model, Direction::Input), bench.tensors(model, Direction::Output));
    let built = bench.unit.build(model, &inputs, &outputs).unwrap();
    let running: Vec<_> = (0..16).map(|_| bench.unit.stage(&built).unwrap().kickoff().unwrap()).collect();
    bench.unit.close(std::time::Duration::from_secs(60)).unwrap();
    assert_eq!(bench.unit.stage(&built).unwrap_err().status(), NrtStatus::CLOSED);
    running.into_iter().for_each(|running| drop(running.wait().unwrap()));

    let Bench { device, heap, unit } = bench;
    drop((built, unit));
    let unit = Unit::open(Arc::clone(&device), heap.clone(), UnitOptions::default()).unwrap();
    let bench = Bench { device, heap, unit };
    let model = bench.load(&builtin("pointers"));
    bench.run(&bench.unit.build(model, &inputs, &outputs).unwrap());
}

#[test]
fn models_run_where_they_were_loaded_also_where_they_share_a_tpb() {
    let config = SimConfig { tpbs: 4, ..SimConfig::default() };
    let bench = Bench::on(Arc::new(SimDevice::start(config).unwrap()), UnitOptions::default());
    let models = [2, 1, 0].map(|first| {
        let options = LoadOptions { first_tpb: TpbId::new(first).unwrap(), ..LoadOptions::default() };
        let model = bench.unit.load(&builtin("gather"), &options).unwrap();
        let (inputs, outputs) =
            (bench.tensors(model, Direction::Input), bench.tensors(model, Direction::Output));
        (first, bench.unit.build(model, &inputs, &outputs).unwrap(), inputs, outputs)
    });
    for execution in 0..20 {
        let running = models.each_ref().map(|(first, built, inputs, _)| {
            let seed = 8 * execution + 2 * u64::from(*first);
            let filled = [("a", seed), ("b", seed + 1)].map(|(name, seed)| bench.fill(inputs, name, seed));
            (filled, bench.unit.stage(built).unwrap().kickoff().unwrap())
        });
        for ((first, built, _, outputs), ([a, b], running)) in models.iter().zip(running) {
            let outcome = running.wait().unwrap();
            let tpbs: Vec<_> = outcome.tpbs.iter().map(|tpb| tpb.tpb.get()).collect();
            assert_eq!(tpbs, [*first, first + 1]);
            check_gather(&bench, outputs, &a, &b);
            // Registers of a shared TPB are those of whatever ran there last.
            if *first == 0 {
                for slot in bench.unit.patched_slots(built).unwrap().iter().filter(|slot| slot.bytes == 8) {
                    assert_eq!(slot.read_back(&*bench.device).unwrap(), slot.expected, "{}", slot.what);
                }
            }
        }
    }
}

/// An execution of its model takes half a second, on an engine that the device can't interpret.
fn slow(bench: &Bench) -> Built {
    let mut neff = copying(0);
    let opaque = &mut neff.programs[0].engines[Engine::Act.index()].instructions;
    *opaque = vec![0xEE; 64].into();
    let model = bench.load(&neff);
    let [inputs, outputs] = [Direction::Input, Direction::Output].map(|side| bench.tensors(model, side));
    bench.unit.build(model, &inputs, &outputs).unwrap()
}

#[test]
fn a_close_that_was_too_early_can_be_made_again() {
    let half_a_second = std::time::Duration::from_millis(500);
    let (at_once, long) = (std::time::Duration::ZERO, std::time::Duration::from_secs(60));
    for (kicked_off, staged) in [(1, 0), (2, 0), (1, 1), (0, 1)] {
        let bench = Bench::new(UnitOptions { opaque_engine_time: half_a_second, ..UnitOptions::default() });
        let built = slow(&bench);
        let stage = || bench.unit.stage(&built).unwrap();
        let running: Vec<_> = (0..kicked_off).map(|_| stage().kickoff().unwrap()).collect();
        let staged: Vec<_> = (0..staged).map(|_| stage()).collect();
        assert!(bench.unit.close(at_once).is_err());
        for (place, running) in running.into_iter().enumerate() {
            let status = running.wait().map_or_else(|error| error.status(), |_| NrtStatus::SUCCESS);
            // The first may have begun by the time the close was over.
            assert!(status == NrtStatus::CLOSED || place == 0 && status == NrtStatus::SUCCESS, "{status:?}");
        }
        for staged in staged {
            assert_eq!(staged.kickoff().unwrap_err().status(), NrtStatus::CLOSED);
        }
        drop(built);
        bench.unit.close(long).unwrap();
        let usage = bench.end();
        assert_eq!(usage.free_bytes, usage.total_bytes);
    }
}
