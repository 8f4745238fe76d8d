//! The table of errors (KBL facts, errors by function), row by row: text and status.
//!
//! | row | here |
//! |---|---|
//! | init resources: allocation | what a build keeps on the host is a few collections, and the process ends when it has no memory |
//! | verify sets: count | tensors beyond the contract are accepted and reported |
//! | rings: tensor absent; resolve: no tensor | a build is verified first: every absent tensor is named in one error |
//! | rings: padding | sizes are checked when a template is made: the descriptor limit |
//! | setup: core | a model with more subgraphs than TPBs is not loaded |
//! | setup: lock | a lock whose holder panicked is taken all the same: it guards no half-done change |
//! | request: increment | part of the request, written with it |
//! | after a fatal: any call | only what was queued when it happened; the TPB is set up anew |

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_core::dma::{AddrWord, Barrier, MAX_VRING_DESCRIPTORS};
use sluice_core::exec::{ErrorClass, NrtStatus, SubType};
use sluice_core::fmap::{Direction, VarId};
use sluice_core::mem::testing::Mishap;
use sluice_core::mmio::{ControlWord, Engine, QueueId};

use super::super::contract::{Sets, side_table};
use super::super::mock::{Bench, MockDevice, model, read};
use super::super::registry::HandleCounter;
use super::super::template::TemplateBuilder;
use super::flow::bare;
use super::*;
use crate::device::heap::{Heap, UsageTag};
use crate::neff::testing::Container;
use crate::neff::{CarveOut, Neff, NeffError, ReadOptions, Target};

/// Holds an error against its row.
fn check(error: impl std::fmt::Display, status: NrtStatus, text: &str, expected: NrtStatus) {
    let error = error.to_string();
    assert!(error.contains(text), "{error:?} has no {text:?}");
    assert_eq!(status, expected, "{error}");
}

fn load(neff: &Neff, options: UnitOptions) -> Result<ModelHandle, LoadError> {
    let device = MockDevice::new(2);
    let heap = device.heap();
    Unit::open(device, heap, options).unwrap().load(neff, &LoadOptions::default())
}

#[test]
fn model_add_architecture() {
    let device = MockDevice::of(Target::Mariana, 2);
    let heap = device.heap();
    let unit = Unit::open(device, heap, small()).unwrap();
    let error = unit.load(&model("gather"), &LoadOptions::default()).unwrap_err();
    let text = "Attempting to load an incompatible model! `sg00` is for cayman and the device is mariana";
    check(&error, error.status(), text, NrtStatus::INVALID);
}

#[test]
fn model_add_carve_out() {
    let mut neff = model("gather");
    neff.programs[0].carve_out = Some(CarveOut { offset_bytes: 0, ..CarveOut::EVENT_ACCELERATOR });
    let error = load(&neff, small()).unwrap_err();
    let text = "Failed to verify Event Accel State Buffer carveout";
    check(&error, error.status(), text, NrtStatus::INVALID);
}

#[test]
fn model_add_allocation() {
    let device = MockDevice::new(2);
    let heap = Heap::new(device.heap().alloc(64, 64, UsageTag::Generic).unwrap().at(), 32 << 10);
    let unit = Unit::open(device, heap, small()).unwrap();
    let error = unit.load(&model("gather"), &LoadOptions::default()).unwrap_err();
    check(&error, error.status(), "no room for ", NrtStatus::RESOURCE);
}

#[test]
fn model_add_duplicate_handle() {
    static HANDLES: HandleCounter = HandleCounter(AtomicU32::new(6));
    let device = MockDevice::new(1);
    let heap = device.heap();
    let collectives = Arc::new(LoopBack::default());
    let unit = Unit::open_numbered(device, heap.clone(), collectives, small(), &HANDLES).unwrap();
    let first = unit.load(&model("pointers"), &LoadOptions::default()).unwrap();
    let loaded = heap.usage();
    // The counter has gone round.
    HANDLES.0.store(6, Ordering::Relaxed);
    let error = unit.load(&model("pointers"), &LoadOptions::default()).unwrap_err();
    check(&error, error.status(), "model handle 7 is in use", NrtStatus::INVALID_HANDLE);
    assert_eq!((first.get(), heap.usage()), (7, loaded));
}

/// The error of a container that is broken by `edit`.
fn refused(edit: impl FnOnce(Container) -> Container) -> NeffError {
    edit(Container::small()).parse().unwrap_err()
}

#[test]
fn model_add_bad_target() {
    let error = refused(|neff| neff.json("kelf-0.json", "/target", serde_json::json!("tpu")));
    check(&error, error.status(), "Invalid target = `tpu`", NrtStatus::INVALID);
}

#[test]
fn fmap_set_allocation() {
    let error = side_table(1 << 60).unwrap_err();
    let text = "Failed to allocate fmap_t for 1152921504606846976 variables";
    check(&error, error.status(), text, NrtStatus::RESOURCE);
}

#[test]
fn verify_sets_missing_too_small_and_count() {
    let bench = Bench::new(&model("pointers"));
    let mut inputs = TensorSet::with_capacity(4);
    inputs.add("x", Tensor::allocate(&bench.heap, 8191).unwrap()).unwrap();
    inputs.add("more", Tensor::allocate(&bench.heap, 64).unwrap()).unwrap();
    let error = bench.unit.build(bench.model, &inputs, &bench.outputs).unwrap_err();
    let text = "input `x` needs 8192 bytes, got 8191; input `y` is missing, need 4096 bytes";
    check(&error, error.status(), text, NrtStatus::INVALID);
    for name in ["x", "y"] {
        inputs.add(name, bench.inputs.get(name).unwrap().clone()).unwrap();
    }
    let built = bench.unit.build(bench.model, &inputs, &bench.outputs).unwrap();
    assert_eq!(built.extra_tensors(), [(Direction::Input, "more".to_owned())]);
}

#[test]
fn build_bad_model() {
    let bench = Bench::new(&model("pointers"));
    bench.unit.unload(bench.model, AT_ONCE).unwrap();
    let error = bench.unit.build(bench.model, &bench.inputs, &bench.outputs).unwrap_err();
    check(&error, error.status(), "Invalid model ", NrtStatus::INVALID_HANDLE);
}

#[test]
fn build_allocation_rings_and_swaps() {
    let bench = Bench::new(&model("pointers"));
    // Everything that is free, in pieces of the size of half a ring, and crumbs.
    let all = |bytes, align_bytes| {
        let next = || bench.heap.alloc(bytes, align_bytes, UsageTag::Tensor).ok();
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    let (mut taken, _crumbs) = (all(1 << 10, 256), all(64, 64));
    let build = || bench.unit.build(bench.model, &bench.inputs, &bench.outputs);
    let error = build().map(drop).unwrap_err();
    let text = "Failed to allocate dynamic_ring_set: no room for 1024 bytes of DMA_RING_IO aligned to 256: ";
    check(&error, error.status(), text, NrtStatus::RESOURCE);
    // Two halves of two queues find room, the swap data does not.
    taken.truncate(taken.len() - 4);
    let error = build().map(drop).unwrap_err();
    let text = "Failed to build ioq switching descriptors: no room for ";
    check(&error, error.status(), text, NrtStatus::RESOURCE);
    drop(taken);
    build().unwrap();
}

#[test]
fn build_rings_and_swaps_pass_the_status_of_the_device_on() {
    let bench = Bench::new(&model("pointers"));
    let build = || bench.unit.build(bench.model, &bench.inputs, &bench.outputs);
    bench.device.fail_after(0);
    let error = build().unwrap_err();
    check(&error, error.status(), "Failed to build dma rings for io: transport", NrtStatus::FAILURE);
    // Four halves are written before the swap data.
    bench.device.fail_after(4);
    let error = build().unwrap_err();
    let text = "Failed to build ioq switching descriptors: transport";
    check(&error, error.status(), text, NrtStatus::FAILURE);
}

#[test]
fn rings_too_many() {
    let text = "Descriptor limit reached: 16777201 descriptors, at most 16777200";
    // In one transfer.
    let mut template = TemplateBuilder::new();
    let bytes = (u64::from(MAX_VRING_DESCRIPTORS) << 16) + 1;
    let error = template.transfer(AddrWord(0), AddrWord(0), bytes, Barrier::None).unwrap_err();
    check(&error, error.status(), text, NrtStatus::QUEUE_FULL);
    // In many, each of a byte. The container is put together by hand, for no packer makes it; its program is a foreign one.
    let bytes = MAX_VRING_DESCRIPTORS + 1;
    let spec = format!(
        "model = {{ name = 'm', target = 'cayman' }}
         [[tpb]]
         var = [
           {{ name = 'x', type = 'input', size = {} }},
           {{ name = 'y', type = 'output', size = {bytes} }},
         ]
         queue = [{{ name = 'q', type = 'in', owner = 'pool', semaphore = 10 }}]
         [[tpb.block]]
         queue = 'q'
         copy = [{{ from = 'x', from_sizes = [2, 1], from_steps = [2, 1], to = 'y' }}]
        ",
        2 * bytes
    );
    let copy = |key: &str| format!("/dma/0/desc/0/{key}");
    let container = Container::packed(&spec)
        .json("sg00/Pool.json", &copy("from_sizes"), serde_json::json!([bytes, 1]))
        .json("sg00/Pool.json", &copy("to_sizes"), serde_json::json!([bytes]))
        .member("sg00/Pool.bin", [0xC0; 64]);
    let options = ReadOptions { max_pairs: u64::MAX, ..ReadOptions::default() };
    let neff = container.parse_with(&options).unwrap();
    let error = load(&neff, small()).unwrap_err();
    check(&error, error.status(), text, NrtStatus::QUEUE_FULL);
}

#[test]
fn resolve_no_map_entry_and_no_tensor() {
    let bench = Bench::new(&model("pointers"));
    let mut inputs = TensorSet::with_capacity(2);
    inputs.add("x", bench.inputs.get("x").unwrap().clone()).unwrap();
    let (some, all) = (inputs.snapshot(), bench.outputs.snapshot());
    let sets = Sets { inputs: (&inputs, &some), outputs: (&bench.outputs, &all) };
    let model = bench.unit.model(bench.model).unwrap();
    let image = &model.images()[0].1;
    // The build itself refuses a join with offenders.
    let mut offenders = Vec::new();
    let bindings = image.contract().join(sets, &bench.heap, &mut offenders);
    assert_eq!(offenders.len(), 1);
    let error = image.rings(&*bench.device, &bench.heap, &bindings).unwrap_err();
    check(&error, error.status(), "Failed to find fmap for tensor y", NrtStatus::FAILURE);
    assert!(image.contract().place(&bindings, VarId(0)).is_ok());
    let error = image.contract().place(&bindings, VarId(9)).unwrap_err();
    check(&error, error.status(), "Failed to find io name for mr 9", NrtStatus::FAILURE);
}

#[test]
fn address_not_placed() {
    let spec = r#"model = { name = "m", target = "cayman" }
        tpb = [{ var = [
            { name = "y", type = "output", size = 64 },
            { name = "SB", type = "state-buffer" },
            { name = "p", type = "pointer", to = "SB" },
        ] }]"#;
    let error = load(&read("m", spec), small()).unwrap_err();
    check(&error, error.status(), "Variable SB is not staged in HBM", NrtStatus::FAILURE);
}

#[test]
fn setup_core() {
    let device = MockDevice::new(1);
    let heap = device.heap();
    let unit = Unit::open(device, heap, small()).unwrap();
    let error = unit.load(&model("gather"), &LoadOptions::default()).unwrap_err();
    check(&error, error.status(), "the unit has 1 TPBs", NrtStatus::LOAD_NOT_ENOUGH_NC);
}

#[test]
fn setup_lock() {
    let bench = Bench::new(&model("pointers"));
    let (built, unit) = (bench.built(), bench.unit.clone());
    // Whoever holds the line's lock panics.
    let panicked = std::thread::spawn(move || unit.with_line_locked(|| panic!("told to"))).join();
    assert!(panicked.is_err());
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    bench.device.tpb(0).run(0);
    running.wait().unwrap();
}

#[test]
fn setup_model() {
    let bench = Bench::new(&model("pointers"));
    let built = bench.built();
    bench.unit.unload(bench.model, AT_ONCE).unwrap();
    let error = bench.unit.stage(&built).unwrap_err();
    check(&error, error.status(), "Invalid model ", NrtStatus::INVALID_HANDLE);
}

#[test]
fn setup_request_and_closed() {
    let bench = Bench::with(&read("bare", &bare(9)), UnitOptions { exec_ring: 32, ..small() }, 30);
    let built = bench.built();
    let staged = bench.unit.stage(&built).unwrap();
    let error = bench.unit.stage(&built).unwrap_err();
    let text = "Failed to add execution request: TPB 0: ";
    check(&error, error.status(), text, NrtStatus::QUEUE_FULL);
    drop(staged);
    bench.device.fail_after(0);
    let error = bench.unit.stage(&built).unwrap_err();
    check(&error, error.status(), "transport failed", NrtStatus::FAILURE);
    bench.device.fail_after(u32::MAX);
    bench.unit.close(AT_ONCE).unwrap();
    let error = bench.unit.stage(&built).unwrap_err();
    check(&error, error.status(), "the unit is closed", NrtStatus::CLOSED);
}

#[test]
fn request_copies() {
    let bench = Bench::new(&model("pointers"));
    let staged = bench.unit.stage(&bench.built()).unwrap();
    bench.device.fail_next();
    let error = staged.kickoff().unwrap_err();
    let text = "Unable to copy execution request to device: transport failed";
    check(&error, error.status(), text, NrtStatus::FAILURE);
}

#[test]
fn request_does_not_fit() {
    let error = load(&read("bare", &bare(10)), UnitOptions { exec_ring: 32, ..small() }).unwrap_err();
    let text =
        "Cannot copy the descriptors in template to the ring: an execution takes 17 exec-queue descriptors";
    check(&error, error.status(), text, NrtStatus::FAILURE);
}

#[test]
fn kickoff_doorbell() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let staged = bench.unit.stage(&built).unwrap();
    tpb.fail(ControlWord::Doorbell, Mishap::Refused);
    let error = staged.kickoff().unwrap_err();
    check(&error, error.status(), "Failed to post inference request, err: transport", NrtStatus::FAILURE);
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    tpb.run(0);
    running.wait().unwrap();
}

#[test]
fn wait_ticket() {
    let bench = Bench::with(&model("pointers"), small(), 0);
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    let error = running.wait().unwrap_err();
    check(&error, error.status(), "execution 0 not done after 0 us timeout", NrtStatus::TIMEOUT);
}

#[test]
fn wait_device_that_has_stopped() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let [first, second] = [(); 2].map(|()| bench.unit.stage(&built).unwrap().kickoff().unwrap());
    tpb.run(0);
    bench.device.stop("out of luck");
    // What it had done by then counts.
    first.wait().unwrap();
    let error = second.wait().unwrap_err();
    let text = "execution 1 not done, the device stopped: out of luck";
    check(&error, error.status(), text, NrtStatus::FAILURE);
}

#[test]
fn wait_device() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let classes = [
        (ErrorClass::GIVEN_UP, 5),
        (ErrorClass::NUMERIC, 1003),
        (ErrorClass::BAD_INSTRUCTION, 1004),
        (ErrorClass::OUT_OF_BOUNDS, 1006),
        (ErrorClass::COLLECTIVE, 1200),
        (ErrorClass::MEMORY, 1201),
        (ErrorClass::CORE, 1202),
        (ErrorClass::DMA_ABORT, 1203),
        (ErrorClass::REPAIRABLE_MEMORY, 1205),
        (ErrorClass::NETWORK_PROXY, 1206),
    ];
    for ((class, status), ordinal) in classes.into_iter().zip(0..) {
        let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
        tpb.consume();
        tpb.notify_all(ordinal, SubType::START);
        tpb.report(Engine::Act, QueueId::new(3).unwrap(), class);
        tpb.finish(ordinal);
        let error = running.wait().unwrap_err();
        check(&error, error.status(), class.name(), NrtStatus(status));
    }
    let running = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    tpb.consume();
    tpb.chatter(Engine::Act, 33);
    tpb.finish(classes.len() as u32);
    let error = running.wait().unwrap_err();
    check(&error, error.status(), "a notification queue ran over", NrtStatus(1204));
}

#[test]
fn unload_state() {
    let bench = Bench::new(&model("pointers"));
    let running = bench.unit.stage(&bench.built()).unwrap().kickoff().unwrap();
    let error = bench.unit.unload(bench.model, AT_ONCE).unwrap_err();
    check(&error, error.status(), "must be stopped before unloading", NrtStatus::INVALID);
    bench.device.tpb(0).run(0);
    running.wait().unwrap();
}

#[test]
fn after_a_fatal() {
    let bench = Bench::new(&model("pointers"));
    let (built, tpb) = (bench.built(), bench.device.tpb(0));
    let [first, second] = [(); 2].map(|()| bench.unit.stage(&built).unwrap().kickoff().unwrap());
    tpb.stop_at_bad_pair(ErrorClass::DMA_ABORT);
    assert!(first.wait().is_err());
    let error = second.wait().unwrap_err();
    check(&error, error.status(), "its sequencer stopped", NrtStatus::EXEC_UNIT_UNRECOVERABLE);
    let third = bench.unit.stage(&built).unwrap().kickoff().unwrap();
    tpb.run(0);
    third.wait().unwrap();
}

#[test]
fn neff_version_sizes_and_hash() {
    let whole = Container::small().bytes();
    let parse = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        edit(&mut bytes);
        let options = crate::neff::ReadOptions { verify_hash: true, ..Default::default() };
        Neff::parse("f", &bytes, &options).unwrap_err()
    };
    let error = parse(&|bytes| bytes[0] = 3);
    check(&error, error.status(), "package version 3", NrtStatus::UNSUPPORTED_NEFF_VERSION);
    let error = parse(&|bytes| bytes[0x223] |= 1 << 3);
    check(&error, error.status(), "feature bit 27", NrtStatus::UNSUPPORTED_NEFF_VERSION);
    let error = parse(&|bytes| bytes[0x10..0x18].copy_from_slice(&u64::MAX.to_le_bytes()));
    check(&error, error.status(), "data_size: 18446744073709551615 bytes", NrtStatus::INVALID);
    let error = parse(&|bytes| bytes.truncate(1023));
    check(&error, error.status(), "1023 bytes, a container has at least 1024", NrtStatus::INVALID);
    let error = parse(&|bytes| bytes[0xAC] ^= 1);
    check(&error, error.status(), "f: hash: ", NrtStatus::INVALID);
}

#[test]
fn neff_var_ids_queues_and_cores() {
    let json = |path: &str, value| refused(|neff| neff.json("sg00/def.json", path, value));
    let error = json("/var/all/var_id", serde_json::json!(8));
    check(&error, error.status(), "Unexpected var_ids set! max=8, size=7", NrtStatus::INVALID);
    let error = json("/dma_queue/q_in/owner", serde_json::json!("gpu"));
    let text = "Invalid owner 'gpu' for DMA queue `q_in`";
    check(&error, error.status(), text, NrtStatus::INVALID);
    let error = refused(|neff| neff.without_json("sg00/def.json", "/dma_queue/q_in/type"));
    check(&error, error.status(), "missing <type> in `q_in`", NrtStatus::INVALID);
    let mut greedy = model("pointers");
    greedy.header.cores_requested = 3;
    let error = load(&greedy, small()).unwrap_err();
    check(&error, error.status(), "asks for 3 cores", NrtStatus::LOAD_NOT_ENOUGH_NC);
}
