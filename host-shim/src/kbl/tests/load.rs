//! Loading and building: what is placed, what is refused, what is left behind.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_core::dma::Barrier;
use sluice_core::exec::{ExecRequest, NrtStatus};
use sluice_core::fmap::{Direction, VarId};
use sluice_core::mem::DevAddr;
use sluice_core::mmio::{Engine, EventId, Half, QueueId, QueueRegister, TpbId};
use zerocopy::FromBytes;

use super::super::batch::PROLOGUE_PAIRS;
use super::super::mock::{Bench, MockDevice, model, read, refuse_threads, tensors, value_of};
use super::flow::bare;
use super::*;
use crate::device::Device;
use crate::device::heap::UsageTag;
use crate::neff::{Neff, Target, Work, models};

#[test]
fn a_model_leaves_nothing_behind() {
    for name in models::NAMES {
        let neff = model(name);
        let device = MockDevice::new(2);
        let heap = device.heap();
        let start = heap.usage();
        let unit = Unit::open(Arc::clone(&device), heap.clone(), small()).unwrap();
        let open = heap.usage();
        let handle = unit.load(&neff, &LoadOptions::default()).unwrap();
        let (inputs, outputs) = tensors(&unit, handle);
        let built = unit.build(handle, &inputs, &outputs).unwrap();
        drop((built, inputs, outputs));
        unit.unload(handle, AT_ONCE).unwrap();
        assert_eq!(heap.usage(), open, "{name}");
        drop(unit);
        assert_eq!(heap.usage(), start, "{name}");
    }
}

#[test]
fn a_heap_without_room_says_what_for() {
    let (neff, device) = (model("gather"), MockDevice::new(2));
    let heap = device.heap();
    let unit = Unit::open(device, heap.clone(), small()).unwrap();
    let open = heap.usage();
    let mut refused = BTreeSet::new();
    // Blocks of several threads come in any order.
    refuse_threads(true);
    for blocks in 0.. {
        heap.refuse_after(Some(blocks));
        let Err(error) = unit.load(&neff, &LoadOptions::default()) else { break };
        assert_eq!(error.status(), NrtStatus::RESOURCE);
        let text = error.to_string();
        assert!(text.contains("bytes free") && text.contains("NOTIFICATION"), "{text}");
        refused.insert(text.split(" bytes of ").nth(1).unwrap().split(' ').next().unwrap().to_owned());
    }
    let loaded = heap.usage();
    let takes = |tag: &UsageTag| loaded.used_bytes(*tag) > open.used_bytes(*tag);
    let taken: BTreeSet<_> =
        UsageTag::ALL.into_iter().filter(takes).map(|tag| tag.name().to_owned()).collect();
    assert_eq!(refused, taken);
    assert!(taken.contains("SCRATCHPAD_NOT_SHARED"), "{taken:?}");
}

#[test]
fn models_that_do_not_fit_the_unit_are_refused() {
    let gather = model("gather");
    let open = |tpbs, options| {
        let device = MockDevice::new(tpbs);
        let heap = device.heap();
        Unit::open(device, heap, options).unwrap()
    };
    let error = open(1, small()).load(&gather, &LoadOptions::default()).unwrap_err();
    assert_eq!(error.status(), NrtStatus::LOAD_NOT_ENOUGH_NC);
    assert_eq!(
        error.to_string(),
        "model has 2 subgraphs and asks for 1 cores of 2 TPBs, the unit has 1 TPBs"
    );
    let mut greedy = gather.clone();
    greedy.header.cores_requested = u32::MAX;
    let error = open(2, small()).load(&greedy, &LoadOptions::default()).unwrap_err();
    assert_eq!(error.status(), NrtStatus::LOAD_NOT_ENOUGH_NC);
    assert!(error.to_string().contains("asks for 4294967295 cores of 2 TPBs"), "{error}");

    let smallest = UnitOptions { exec_ring: 32, ..small() };
    let error = open(2, smallest).load(&read("bare", &bare(11)), &LoadOptions::default()).unwrap_err();
    assert_eq!(error, LoadError::BatchTooLarge { pairs: 18, limit: 16 });
    assert!(error.to_string().ends_with("at most 16, `exec_ring` has to be 64"), "{error}");
    let enough = UnitOptions { exec_ring: 64, ..small() };
    open(2, enough).load(&read("bare", &bare(11)), &LoadOptions::default()).unwrap();
    let no_time = LoadOptions { timeout: std::time::Duration::ZERO, ..LoadOptions::default() };
    let error = open(2, small()).load(&gather, &no_time).unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.status()),
        ("a timeout of 0: every execution would be late", NrtStatus::INVALID)
    );
}

#[test]
fn a_device_takes_models_of_its_own_architecture_and_of_none_in_particular() {
    let gather = models::builtin("gather").unwrap();
    let targets = [Target::Sunda, Target::Cayman, Target::Mariana, Target::Any];
    for (of_device, of_model) in targets.into_iter().flat_map(|of| targets.map(|target| (of, target))) {
        let device = MockDevice::of(of_device, 2);
        let heap = device.heap();
        let unit = Unit::open(device, heap.clone(), small()).unwrap();
        let open = heap.usage();
        let neff = read("gather", &gather.replace("cayman", of_model.name()));
        let loaded = unit.load(&neff, &LoadOptions::default());
        if of_device == of_model || [of_device, of_model].contains(&Target::Any) {
            loaded.unwrap();
        } else {
            let (program, target, device) = ("sg00".into(), of_model, of_device);
            assert_eq!(loaded, Err(LoadError::Incompatible { program, target, device }));
            assert_eq!(heap.usage(), open);
        }
    }
}

#[test]
fn a_program_that_was_changed_against_the_rules_is_refused() {
    let device = MockDevice::new(1);
    let heap = device.heap();
    let unit = Unit::open(device, heap.clone(), small()).unwrap();
    let open = heap.usage();
    let mut neff = model("pointers");
    neff.programs[0].vars[2].id = VarId(9);
    let error = unit.load(&neff, &LoadOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "`sg00`: variable `z`: has number 9 and place 2");
    assert_eq!((error.status(), heap.usage()), (NrtStatus::INVALID, open));
}

#[test]
fn sizes_out_of_range_are_refused() {
    let open = |options| {
        let device = MockDevice::new(1);
        let heap = device.heap();
        Unit::open(device, heap, options).unwrap_err().to_string()
    };
    let with_ring = |exec_ring| open(UnitOptions { exec_ring, ..small() });
    for descriptors in [0, 16, 40, 48, 1 << 24, u32::MAX] {
        let text = format!("exec ring of {descriptors} descriptors, want a power of two from 32 to 8388608");
        assert_eq!(with_ring(descriptors), text);
    }
    let with_depth = |depth| open(UnitOptions { depth, ..small() });
    assert_eq!(with_depth(0), "0 executions in flight, want 1 to 1024");
    assert_eq!(with_depth(1025), "1025 executions in flight, want 1 to 1024");
}

#[test]
fn every_tensor_that_is_missing_or_small_is_named_once() {
    let bench = Bench::new(&model("gather"));
    let (mut inputs, outputs) = (TensorSet::with_capacity(4), TensorSet::with_capacity(4));
    inputs.add("a", Tensor::allocate(&bench.heap, 4096).unwrap()).unwrap();
    let error = bench.unit.build(bench.model, &inputs, &outputs).unwrap_err();
    assert_eq!(error.status(), NrtStatus::INVALID);
    assert_eq!(
        error.to_string(),
        "input `a` needs 131072 bytes, got 4096; input `b` is missing, need 131072 bytes; \
         output `own0` is missing, need 233472 bytes; output `mix` is missing, need 32768 bytes; \
         output `own1` is missing, need 81921 bytes"
    );
}

#[test]
fn extra_tensors_are_accepted_and_reported() {
    let mut bench = Bench::new(&model("gather"));
    let spare = Tensor::allocate(&bench.heap, 64).unwrap();
    // Wanted by one program only, so not by the other, and yet not extra.
    assert!(bench.built().extra_tensors().is_empty());
    bench.inputs.add("spare", spare.clone()).unwrap();
    bench.outputs.add("a", spare).unwrap();
    let extra: Vec<_> = bench.built().extra_tensors().to_vec();
    assert_eq!(extra, [(Direction::Input, "spare".into()), (Direction::Output, "a".into())]);
}

#[test]
fn an_unchanged_set_hits_and_every_change_misses() {
    let mut bench = Bench::new(&model("pointers"));
    let counts = |bench: &Bench| bench.unit.model(bench.model).unwrap().build_counts();
    assert!(!bench.built().was_hit());
    let before = bench.heap.usage();
    for _ in 0..9 {
        assert!(bench.built().was_hit());
    }
    assert_eq!(counts(&bench), BuildCounts { hits: 9, misses: 1 });
    assert_eq!(bench.heap.usage(), before);

    // The same tensor under the same name is a change all the same; its ring is found by address.
    let rings = |bench: &Bench| bench.heap.usage().used_bytes(UsageTag::DmaRingIo);
    let (same, rings_before) = (bench.inputs.get("x").unwrap().clone(), rings(&bench));
    bench.inputs.add("x", same.clone()).unwrap();
    assert!(!bench.built().was_hit());
    assert_eq!(rings(&bench), rings_before);

    let other = Tensor::allocate(&bench.heap, same.size_bytes()).unwrap();
    same.attach(&other);
    let moved = bench.built();
    assert!(!moved.was_hit());
    assert!(rings(&bench) > rings_before);
    // There and back again, and to where it is already.
    let rings_moved = rings(&bench);
    same.attach(&same.slice(0, 4096).unwrap());
    same.attach(&other);
    assert!(!bench.built().was_hit());
    same.attach(&other);
    assert!(!bench.built().was_hit());
    assert!(bench.built().was_hit());
    assert_eq!(rings(&bench), rings_moved);
    let bound = bench.unit.bound(&moved).unwrap();
    let names: Vec<_> = bound.iter().map(|bound| (&*bound.wanted.name, bound.wanted.var.0)).collect();
    assert_eq!(names, [("x", 0), ("y", 1), ("z", 2)]);
    assert_eq!((bound[0].at, bound[0].size_bytes), (other.at(), 8192));

    // Another set, although it holds the same tensors.
    let mut again = TensorSet::with_capacity(4);
    for name in ["x", "y"] {
        again.add(name, bench.inputs.get(name).unwrap().clone()).unwrap();
    }
    assert!(!bench.unit.build(bench.model, &again, &bench.outputs).unwrap().was_hit());
    assert_eq!(counts(&bench), BuildCounts { hits: 10, misses: 6 });
}

#[test]
fn caches_keep_no_more_than_their_capacity() {
    let neff = model("pointers");
    let device = MockDevice::new(1);
    let heap = device.heap();
    let unit = Unit::open(device, heap.clone(), small()).unwrap();
    let options = LoadOptions { ring_cache: 2, build_cache: 1, ..LoadOptions::default() };
    let handle = unit.load(&neff, &options).unwrap();
    let mut used = Vec::new();
    for _ in 0..5 {
        let (inputs, outputs) = tensors(&unit, handle);
        drop(unit.build(handle, &inputs, &outputs).unwrap());
        used.push(heap.usage().used_bytes(UsageTag::DmaRingIo));
        // Kept until the end, so that the next tensors lie elsewhere.
        std::mem::forget((inputs, outputs));
    }
    assert_eq!(used[1], 2 * used[0]);
    assert!(used[2..].iter().all(|&bytes| bytes == used[1]), "{used:?}");
}

#[test]
fn capacities_without_bound_are_taken() {
    let device = MockDevice::new(1);
    let heap = device.heap();
    let unit = Unit::open(device, heap, UnitOptions { phase_log: usize::MAX, ..small() }).unwrap();
    let options = LoadOptions { ring_cache: usize::MAX, build_cache: usize::MAX, ..LoadOptions::default() };
    let model = unit.load(&model("pointers"), &options).unwrap();
    let (inputs, outputs) = tensors(&unit, model);
    let build = || unit.build(model, &inputs, &outputs).unwrap().was_hit();
    assert_eq!([build(), build()], [false, true]);
    assert_eq!(unit.phases().take().0.len(), 3);
}

#[test]
fn constant_pointers_are_written_at_load_and_bound_ones_in_the_swap_list() {
    let bench = Bench::new(&model("pointers"));
    let built = bench.built();
    let slots = bench.unit.patched_slots(&built).unwrap();
    let at =
        |what: &str| slots.iter().find(|slot| slot.what.ends_with(what)).map(|slot| (slot.at, slot.expected));
    let place = |set: &TensorSet, name: &str| set.get(name).unwrap().at().0;
    let (x, y, z) = (place(&bench.inputs, "x"), place(&bench.inputs, "y"), place(&bench.outputs, "z"));
    assert_eq!(at("pointer at_x").map(|(_, value)| value), Some(x));
    assert_eq!(at("pointer at_z").map(|(_, value)| value), Some(z));
    assert_eq!(at("pointer at_keep"), None);
    let rows: Vec<_> = (0..3).map(|row| at(&format!("pointer table all, row {row}")).unwrap()).collect();
    assert_eq!(rows.iter().map(|&(_, value)| value).collect::<Vec<_>>(), [x, y, z]);
    assert_eq!(at("pointer table all, row 3"), None);
    assert_eq!((rows[1].0, rows[2].0), (rows[0].0.offset(8), rows[0].0.offset(16)));

    // Row 3 and the cell that follows the one of z point to scratch memory since the load.
    let read_pointer = |at: DevAddr| {
        let mut bytes = [0; 8];
        bench.device.read(at, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    };
    let keep = read_pointer(rows[0].0.offset(24));
    assert!(bench.device.map().ram.contains(DevAddr(keep), 4096));
    assert_eq!(read_pointer(at("pointer at_z").unwrap().0.offset(8)), keep);
    assert_eq!(read_pointer(rows[0].0), 0);
}

#[test]
fn a_batch_is_the_swap_list_then_the_prologue() {
    let gather = models::builtin("gather").unwrap();
    // A strong-ordered write ends the swap list where there is one.
    for (target, barrier) in [("cayman", Barrier::Sow), ("mariana", Barrier::Sow), ("sunda", Barrier::Dmb)] {
        check_batch(&read("gather", &gather.replace("cayman", target)), barrier);
    }
}

fn check_batch(neff: &Neff, ends_swaps: Barrier) {
    let bench = Bench::new(neff);
    let built = bench.built();
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    let slots = bench.unit.patched_slots(&built).unwrap();
    for tpb in 0..2 {
        let copies = bench.device.tpb(tpb).consume();
        let (swaps, prologue) = copies.split_at(copies.len() - PROLOGUE_PAIRS);
        let name = format!("TPB {tpb}: ");
        let mut expected = slots.iter().filter(|slot| slot.what.starts_with(&name));
        for copy in swaps {
            let (mut at, bytes) = value_of(&bench.device, copy);
            let mut left = &bytes[..];
            // A queue base is one copy that writes three registers.
            while !left.is_empty() {
                let slot = expected.next().unwrap();
                let (written, rest) = left.split_at(slot.bytes as usize);
                assert_eq!(at, slot.at, "{}", slot.what);
                assert_eq!(written, &slot.expected.to_le_bytes()[..slot.bytes as usize], "{}", slot.what);
                (at, left) = (at.offset(slot.bytes.into()), rest);
            }
        }
        assert_eq!(expected.next(), None);
        assert!(swaps[..swaps.len() - 1].iter().all(|copy| copy.barrier == Barrier::None));
        assert_eq!(swaps.last().unwrap().barrier, ends_swaps);

        let registers = bench.device.map().registers.tpb(TpbId::new(tpb).unwrap()).unwrap();
        let tail =
            |half| registers.queue_bank(half, QueueId::PROLOGUE).register(QueueRegister::TailIncrement);
        let values: Vec<_> = prologue.iter().map(|copy| value_of(&bench.device, copy)).collect();
        let one = 1u32.to_le_bytes().to_vec();
        assert_eq!(values[0].0, registers.request());
        let (request, increment) = ExecRequest::read_from_prefix(&values[0].1).unwrap();
        assert!(request.flags().do_model_switch && request.flags().load_act_dve_tables);
        assert_eq!(increment, [0; 4]);
        assert_eq!(values[1].1, (running.ticket().0 as u32).to_le_bytes());
        assert_eq!(values[2], (tail(Half::Rx), one.clone()));
        assert_eq!(values[3], (tail(Half::Tx), one.clone()));
        assert_eq!(values[4], (registers.event(EventId::START), one));
        // Request and rings are complete before the prologue's queue starts, and this before the engines do.
        let barriers: Vec<_> = prologue.iter().map(|copy| copy.barrier).collect();
        assert_eq!(barriers, [Barrier::None, Barrier::None, Barrier::Dmb, Barrier::None, Barrier::Dmb]);

        // An engine without a program has no address, the others have the one of their instructions.
        let model = bench.unit.model(bench.model).unwrap();
        let engines = model.engines().filter(|engine| engine.core.tpb().get() == tpb);
        for engine in engines {
            let idle = engine.executability == Executability::Idle;
            assert_eq!(request.base(engine.core.engine()).is_null(), idle, "{}", engine.core);
        }
    }
}

#[test]
fn work_items_name_what_engines_do() {
    let bench = Bench::new(&model("gather"));
    let model = bench.unit.model(bench.model).unwrap();
    let items: Vec<_> = model
        .work_items()
        .map(|item| format!("{} {} {} {} B", item.core, item.ordinal, item.name, item.bytes))
        .collect();
    assert!(items.contains(&"0.POOL 2 gather_rows 65536 B".into()), "{items:#?}");
    assert!(items.contains(&"1.DVE 1 store_odd_length 65537 B".into()), "{items:#?}");
    let odd = model.work_items().find(|item| item.name == "store_odd_length").unwrap();
    assert_eq!((odd.pairs, odd.queue.as_ref().map(|(name, _)| &**name)), (2, Some("q_out")));
}

#[test]
fn a_program_of_foreign_instructions_is_said_to_be_opaque() {
    let text = r#"
[model]
name = "tiny"
target = "cayman"

[[tpb]]
var = [
  { name = "x", type = "input", size = 64 },
  { name = "y", type = "output", size = 64 },
]
queue = [{ name = "q", type = "in", owner = "act", semaphore = 1 }]

[[tpb.block]]
queue = "q"
copy = [{ from = "x", to = "y", bytes = 64 }]
"#;
    let mut neff = read("tiny", text);
    let act = &mut neff.programs[0].engines[Engine::Act.index()];
    act.work = Work::Opaque;
    act.instructions = vec![0xC0; 128].into();
    let bench = Bench::new(&neff);
    let model = bench.unit.model(bench.model).unwrap();
    let engines: Vec<_> = model.engines().map(|engine| (engine.executability, engine.instructions)).collect();
    assert_eq!(engines[1], (Executability::Opaque, 2));
    assert!([0, 2, 3, 4].iter().all(|&idle| engines[idle] == (Executability::Idle, 0)), "{engines:?}");
    let items: Vec<_> =
        model.work_items().map(|item| (item.core.to_string(), item.block, item.pairs)).collect();
    assert_eq!(items, [("0.ACT".into(), 0, 0)]);
}
