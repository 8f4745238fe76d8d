//! Other tensors, slices, large ones, and tensors in other roles.

use sluice_core::fmap::Direction;
use sluice_host::kbl::{Tensor, TensorSet, UnitOptions};

use crate::bench::{Bench, builtin};
use crate::expected;
use crate::flow::check_gather;
use crate::random::{Dice, noise};

#[test]
fn tensors_bound_anew_at_random_are_used_from_the_next_execution_on() {
    let bench = Bench::new(UnitOptions::default());
    let model = bench.load(&builtin("pointers"));
    let mut dice = Dice(2026);
    // Slices of one storage, apart and of odd places, so that the same addresses come back now and then.
    let storage = Tensor::allocate(&bench.heap, 1 << 20).unwrap();
    let slices: Vec<Tensor> =
        (0..12).map(|place| storage.slice(place * 20_000 + place % 7, 12_288 + place).unwrap()).collect();
    let (mut inputs, mut outputs) = (TensorSet::with_capacity(2), TensorSet::with_capacity(1));
    let mut bound = [0, 1, 2];
    let mut misses = 0;
    for execution in 0..300 {
        let moved = execution == 0 || dice.roll(3) > 0;
        if moved {
            let first = dice.roll(12) as usize;
            bound =
                [first, (first + 1 + dice.roll(5) as usize) % 12, (first + 6 + dice.roll(6) as usize) % 12];
            inputs.add("x", slices[bound[0]].clone()).unwrap();
            inputs.add("y", slices[bound[1]].clone()).unwrap();
            outputs.add("z", slices[bound[2]].clone()).unwrap();
            misses += 1;
        }
        let (x, y) = (bench.fill(&inputs, "x", execution), bench.fill(&inputs, "y", execution + 1000));
        let built = bench.unit.build(model, &inputs, &outputs).unwrap();
        assert_eq!(built.was_hit(), !moved);
        bench.run(&built);
        let z = bench.read(&outputs, "z");
        assert_eq!(
            z[..12_288],
            expected::pointers(&x[..8192], &y[..4096]),
            "execution {execution}: {bound:?}"
        );
    }
    assert_eq!(bench.unit.model(model).unwrap().build_counts().misses, misses);
}

#[test]
fn a_tensor_of_gigabytes_costs_what_is_touched_of_it() {
    let bench = Bench::new(UnitOptions::default());
    let model = bench.load(&builtin("gather"));
    let mut inputs = bench.tensors(model, Direction::Input);
    let outputs = bench.tensors(model, Direction::Output);
    let large = Tensor::allocate(&bench.heap, (4 << 30) + 131_072).unwrap();
    assert!(large.size_bytes() > u64::from(u32::MAX));
    let (a, b) = (noise(3, 131_072), bench.fill(&inputs, "b", 4));

    // Larger than the contract asks for, and used from its start.
    inputs.add("a", large.clone()).unwrap();
    large.write(&*bench.device, 0, &a).unwrap();
    bench.run(&bench.unit.build(model, &inputs, &outputs).unwrap());
    check_gather(&bench, &outputs, &a, &b);

    // A slice that begins where 32 bits end.
    let a = noise(5, 131_072);
    inputs.add("a", large.slice(4 << 30, 131_072).unwrap()).unwrap();
    large.write(&*bench.device, 4 << 30, &a).unwrap();
    bench.run(&bench.unit.build(model, &inputs, &outputs).unwrap());
    check_gather(&bench, &outputs, &a, &b);
}

#[test]
fn an_output_becomes_the_next_input() {
    let bench = Bench::new(UnitOptions::default());
    let model = bench.load(&builtin("pointers"));
    let y = Tensor::allocate(&bench.heap, 4096).unwrap();
    let [even, odd] = [(); 2].map(|()| Tensor::allocate(&bench.heap, 12_288).unwrap());
    let (mut inputs, mut outputs) = (TensorSet::with_capacity(2), TensorSet::with_capacity(1));
    inputs.add("y", y.clone()).unwrap();
    y.write(&*bench.device, 0, &noise(9, 4096)).unwrap();
    let mut state = noise(8, 12_288);
    even.write(&*bench.device, 0, &state).unwrap();
    for round in 0..20 {
        let (from, to) = if round % 2 == 0 { (&even, &odd) } else { (&odd, &even) };
        inputs.add("x", from.clone()).unwrap();
        outputs.add("z", to.clone()).unwrap();
        bench.run(&bench.unit.build(model, &inputs, &outputs).unwrap());
        state = expected::pointers(&state[..8192], &noise(9, 4096));
        assert_eq!(bench.read(&outputs, "z"), state, "round {round}");
    }
}

#[test]
fn an_attached_tensor_is_used_without_touching_its_sets() {
    let bench = Bench::new(UnitOptions::default());
    let model = bench.load(&builtin("pointers"));
    let (inputs, outputs) = (bench.tensors(model, Direction::Input), bench.tensors(model, Direction::Output));
    let (x, y) = (bench.fill(&inputs, "x", 1), bench.fill(&inputs, "y", 2));
    bench.run(&bench.unit.build(model, &inputs, &outputs).unwrap());
    assert_eq!(bench.read(&outputs, "z"), expected::pointers(&x, &y));

    let other = Tensor::allocate(&bench.heap, 8192).unwrap();
    let moved = noise(3, 8192);
    other.write(&*bench.device, 0, &moved).unwrap();
    inputs.get("x").unwrap().attach(&other);
    let built = bench.unit.build(model, &inputs, &outputs).unwrap();
    assert!(!built.was_hit());
    bench.run(&built);
    assert_eq!(bench.read(&outputs, "z"), expected::pointers(&moved, &y));
}
