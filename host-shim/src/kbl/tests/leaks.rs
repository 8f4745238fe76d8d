//! Nothing leaks, whichever step fails: each block of device memory is refused once and each write fails once, in a load, a
//! build, a staging and a kickoff.
//!
//! | after each failure | seen by |
//! |---|---|
//! | device memory is used as before, tag by tag | [`Heap::usage`](crate::device::heap::Heap::usage) |
//! | host memory is used as before, in bytes and in allocations | a counting allocator |
//! | nothing is in line, and no ticket is out | the unit |
//! | the same again, without a failure, succeeds | |
//!
//! The counting allocator looks at one thread, so loads are refused threads of their own but where threads are the point.
//!
//! Host memory is not refused: a collection of the standard library that gets none ends the process. What the numbers of a
//! container may ask for is bounded before it is allocated instead: values, constants and descriptors by the reader's limits,
//! contract tables by what the host can reserve, and every ring by device memory, which comes first.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;

use allocation_counter::measure;

use super::super::mock::{MockDevice, read, refuse_threads, tensors};
use super::*;
use crate::device::heap::Heap;
use crate::neff::Neff;

/// A model whose every program has everything that takes device memory or is patched.
fn everything(tpbs: u32) -> Neff {
    let tpb = r#"
        [[tpb]]
        var = [
            { name = "x", type = "input", size = 256 },
            { name = "y", type = "output", size = 256 },
            { name = "own", type = "temporary", size = 64 },
            { name = "shared", type = "virtual", offset = 0, size = 256, backing = "shared" },
            { name = "ones", type = "file", size = 64, repeat = "01" },
            { name = "at_x", type = "pointer", to = "x" },
            { name = "at_own", type = "pointer", to = "own" },
            { name = "all", type = "dge-table", rows = ["x", "y", "ones"] },
        ]
        queue = [
            { name = "in", type = "in", owner = "pool", semaphore = 10 },
            { name = "out", type = "out", owner = "sp", semaphore = 11 },
            { name = "data", type = "data", owner = "act", semaphore = 12 },
        ]
        block = [
            { queue = "in", name = "load", signal = 0, copy = [{ from = "x", to = "shared", bytes = 256 }] },
            { queue = "data", name = "constant", copy = [{ from = "ones", to = "own", bytes = 64 }] },
            { queue = "out", name = "store", wait = [{ semaphore = 0, at_least = 1 }], copy = [
                { from = "shared", to = "y", bytes = 256 },
            ] },
        ]
    "#;
    let text = format!("model = {{ name = 'all', target = 'cayman' }}\n{}", tpb.repeat(tpbs as usize));
    read("all", &text)
}

/// What fails.
#[derive(Clone, Copy, Debug)]
enum Failing {
    /// One block of device memory.
    Block,
    /// One write.
    Write,
    /// One write and all after it, until the call has returned.
    WritesFromThere,
}

struct Rig {
    neff: Neff,
    device: Arc<MockDevice>,
    heap: Heap,
    unit: Unit<MockDevice>,
    /// Whether all is done on one thread, so that what it allocates can be counted.
    counted: bool,
    /// Executions that the device has run.
    executions: Cell<u32>,
}

impl Rig {
    fn new(tpbs: u32) -> Self {
        let device = MockDevice::new(tpbs);
        let heap = device.heap();
        // A log of phases grows.
        let options = UnitOptions { phase_log: 0, ..small() };
        let unit = Unit::open(Arc::clone(&device), heap.clone(), options).unwrap();
        Self { neff: everything(tpbs), device, heap, unit, counted: true, executions: Cell::new(0) }
    }

    /// Caches keep nothing: what a build that succeeded leaves there would look like a leak here.
    fn load(&self) -> Result<ModelHandle, LoadError> {
        let options = LoadOptions { ring_cache: 0, build_cache: 0, ..LoadOptions::default() };
        self.unit.load(&self.neff, &options)
    }

    fn unload(&self, model: ModelHandle) {
        self.unit.unload(model, AT_ONCE).unwrap();
    }

    /// A model, sets for it, and their build.
    fn built(&self) -> (ModelHandle, (TensorSet, TensorSet), Built) {
        let model = self.load().unwrap();
        let (inputs, outputs) = tensors(&self.unit, model);
        let built = self.unit.build(model, &inputs, &outputs).unwrap();
        (model, (inputs, outputs), built)
    }

    fn run(&self, running: Running<MockDevice>) {
        let ordinal = self.executions.replace(self.executions.get() + 1);
        for tpb in 0..self.neff.programs.len() as u32 {
            self.device.tpb(tpb).run(ordinal);
        }
        running.wait().unwrap();
    }

    fn arm(&self, failing: Failing, after: u32) {
        match failing {
            Failing::Block => drop(self.heap.refuse_after(Some(after))),
            Failing::Write => self.device.fail_one_after(after),
            Failing::WritesFromThere => self.device.fail_after(after),
        }
    }

    fn disarm(&self) {
        self.heap.refuse_after(None);
        self.device.fail_one_after(u32::MAX);
        self.device.fail_after(u32::MAX);
    }

    /// Calls `step` with the first thing that it does failing, then with the second, and so on until none is left to fail;
    /// returns how many there were. `step` calls what it is given once failures are to begin; `end` ends what it made.
    fn fail_each<T, E: Debug>(
        &self,
        failing: Failing,
        step: impl Fn(&dyn Fn()) -> Result<T, E>,
        end: impl Fn(T),
    ) -> u32 {
        // What is kept for good, such as the room of the line, is there from now on.
        end(step(&|| ()).unwrap());
        let before = self.heap.usage();
        let mut failures = 0;
        loop {
            let what = format!("{failing:?} {failures}");
            let mut failed = false;
            let all = measure(|| {
                let failure = measure(|| {
                    let made = step(&|| self.arm(failing, failures));
                    self.disarm();
                    match made {
                        Ok(made) => end(made),
                        Err(_) => failed = true,
                    }
                });
                assert_eq!(self.heap.usage(), before, "{what}");
                assert_eq!(self.unit.in_flight(), 0, "{what}");
                if self.counted {
                    // Not zero: a failed kickoff forgets what ran before, which the next one notes down again.
                    assert!(failure.count_current <= 0 && failure.bytes_current <= 0, "{what}: {failure:?}");
                }
                end(step(&|| ()).unwrap());
            });
            if self.counted {
                assert_eq!((all.count_current, all.bytes_current), (0, 0), "{what}");
            }
            assert_eq!(self.heap.usage(), before, "{what}, and once more");
            if !failed {
                return failures;
            }
            failures += 1;
        }
    }
}

#[test]
fn an_opening_that_fails_anywhere_leaks_nothing() {
    for tpbs in [1, 2] {
        // A device that has no unit yet.
        let device = MockDevice::new(tpbs);
        let rig = Rig { heap: device.heap(), device, ..Rig::new(tpbs) };
        let step = |begin: &dyn Fn()| {
            begin();
            let options = UnitOptions { phase_log: 0, ..small() };
            Unit::open(Arc::clone(&rig.device), rig.heap.clone(), options)
        };
        for failing in [Failing::Block, Failing::Write, Failing::WritesFromThere] {
            let failures = rig.fail_each(failing, step, drop);
            assert!(failures >= tpbs, "{failures}");
        }
    }
}

#[test]
fn a_load_that_fails_anywhere_leaks_nothing() {
    for (tpbs, threads) in [(1, false), (2, false), (2, true)] {
        let rig = Rig { counted: !threads, ..Rig::new(tpbs) };
        refuse_threads(!threads);
        let step = |begin: &dyn Fn()| {
            begin();
            rig.load()
        };
        let end = |model| rig.unload(model);
        // Scratchpads, constants, cells, rings of the constant queue and the prologue, three programs; shared scratchpad.
        assert_eq!(rig.fail_each(Failing::Block, step, end), 10 * tpbs + 1);
        let writes = rig.fail_each(Failing::Write, step, end);
        assert!(writes > 8 * tpbs, "{writes}");
        assert_eq!(rig.fail_each(Failing::WritesFromThere, step, end), writes);
    }
}

#[test]
fn a_build_that_fails_anywhere_leaks_nothing() {
    for tpbs in [1, 2] {
        let rig = Rig::new(tpbs);
        let model = rig.load().unwrap();
        let (inputs, outputs) = tensors(&rig.unit, model);
        let step = |begin: &dyn Fn()| {
            begin();
            rig.unit.build(model, &inputs, &outputs)
        };
        // Two halves of two rings, and the swap data.
        for failing in [Failing::Block, Failing::Write, Failing::WritesFromThere] {
            assert_eq!(rig.fail_each(failing, step, drop), 5 * tpbs);
        }
    }
}

#[test]
fn a_build_that_fails_anywhere_leaves_caches_as_they_were() {
    for tpbs in [1, 2] {
        let rig = Rig::new(tpbs);
        let options = LoadOptions { ring_cache: 2, build_cache: 0, ..LoadOptions::default() };
        let model = rig.unit.load(&rig.neff, &options).unwrap();
        let [first, second, third] = [(); 3].map(|()| tensors(&rig.unit, model));
        let build = |(inputs, outputs): &(TensorSet, TensorSet)| rig.unit.build(model, inputs, outputs);
        let written = |sets| {
            let before = rig.device.written_bytes();
            drop(build(sets).unwrap());
            rig.device.written_bytes() - before
        };
        let [anew, again] = [(); 2].map(|()| written(&first));
        assert!(again < anew, "without rings");
        for failing in [Failing::Block, Failing::Write, Failing::WritesFromThere] {
            let fails = |sets, step| {
                let before = rig.heap.usage();
                rig.arm(failing, step);
                let failed = build(sets).is_err();
                rig.disarm();
                assert!(!failed || rig.heap.usage() == before, "{failing:?} {step}");
                failed
            };
            // As many as take device memory: two halves of two rings, and the swap data.
            for step in 0..5 * tpbs {
                written(&first);
                written(&second);
                // Its rings are found, and are used no more recently because of that.
                assert!(fails(&first, step % tpbs) && fails(&third, step));
                assert_eq!(written(&third), anew, "{failing:?} {step}");
                assert_eq!(written(&second), again, "{failing:?} {step}");
                assert_eq!(written(&first), anew, "{failing:?} {step}");
            }
            assert!(!fails(&third, 5 * tpbs));
        }
    }
}

#[test]
fn a_staging_that_fails_anywhere_leaks_nothing() {
    for tpbs in [1, 2] {
        let rig = Rig::new(tpbs);
        let (_model, _sets, built) = rig.built();
        let step = |begin: &dyn Fn()| {
            begin();
            rig.unit.stage(&built)
        };
        let end = |staged: Staged<_>| rig.run(staged.kickoff().unwrap());
        assert_eq!(rig.fail_each(Failing::Block, step, end), 0);
        // Two halves each, in two pieces where the ring wraps.
        for failing in [Failing::Write, Failing::WritesFromThere] {
            let writes = rig.fail_each(failing, step, end);
            assert!((2 * tpbs..=4 * tpbs).contains(&writes), "{writes}");
        }
    }
}

#[test]
fn a_kickoff_that_fails_anywhere_leaks_nothing() {
    for tpbs in [1, 2] {
        let rig = Rig::new(tpbs);
        let (_model, _sets, built) = rig.built();
        let step = |begin: &dyn Fn()| {
            let staged = rig.unit.stage(&built).unwrap();
            begin();
            staged.kickoff()
        };
        let end = |running| rig.run(running);
        assert_eq!(rig.fail_each(Failing::Block, step, end), 0);
        assert_eq!(rig.fail_each(Failing::Write, step, end), tpbs);
        assert_eq!(rig.fail_each(Failing::WritesFromThere, step, end), tpbs);
    }
}

#[test]
fn what_caches_keep_goes_with_the_model() {
    for tpbs in [1, 2] {
        let rig = Rig::new(tpbs);
        refuse_threads(true);
        let life = || {
            let model = rig.unit.load(&rig.neff, &LoadOptions::default()).unwrap();
            let (inputs, outputs) = tensors(&rig.unit, model);
            for failures in 0.. {
                rig.device.fail_one_after(failures);
                if rig.unit.build(model, &inputs, &outputs).is_ok() {
                    break;
                }
            }
            rig.disarm();
            rig.unload(model);
        };
        life();
        let before = rig.heap.usage();
        let host = measure(life);
        assert_eq!(rig.heap.usage(), before);
        assert_eq!((host.count_current, host.bytes_current), (0, 0));
    }
}
