//! What builds cost: nothing for tensors as before, and otherwise as much as there is to write.

use allocation_counter::measure;
use sluice_core::dma::{RingSize, SwapEncoder};

use super::super::mock::{Bench, model, read};
use super::*;

#[test]
fn a_hit_allocates_nothing_and_writes_nothing() {
    let bench = Bench::new(&model("gather"));
    assert!(!bench.built().was_hit());
    let used = bench.heap.usage();
    bench.device.fail_after(0);
    let mut hits = Vec::with_capacity(8);
    let allocations = measure(|| hits.extend((0..8).map(|_| bench.built())));
    assert!(hits.iter().all(Built::was_hit));
    assert_eq!((allocations.count_total, bench.heap.usage()), (0, used));
    assert_eq!(measure(|| hits.clear()).count_total, 0);
}

/// One queue that copies `rows` rows, each a descriptor of its own.
fn rows(rows: u32) -> String {
    format!(
        "[model]
         name = 'rows'
         target = 'cayman'
         [[tpb]]
         var = [
           {{ name = 'x', type = 'input', size = {both} }},
           {{ name = 'y', type = 'output', size = {bytes} }},
         ]
         queue = [{{ name = 'q', type = 'in', owner = 'pool', semaphore = 10 }}]
         [[tpb.block]]
         queue = 'q'
         copy = [{{ from = 'x', from_sizes = [{rows}, 64], from_steps = [128, 1], to = 'y' }}]
        ",
        bytes = 64 * rows,
        both = 128 * rows,
    )
}

#[test]
fn a_miss_writes_its_rings_and_its_swaps_once_and_allocates_as_often_whatever_their_size() {
    // The ring of the queue and of the prologue, the base of each half of both.
    let swaps_bytes = 2 * 2 * SwapEncoder::BLOB_STRIDE_BYTES;
    let counts = [100, 1000, 10_000].map(|count| {
        let bench = Bench::new(&read("rows", &rows(count)));
        let before = bench.device.written_bytes();
        let allocations = measure(|| assert!(!bench.built().was_hit()));
        let ring_bytes = RingSize::linear(count).unwrap().bytes();
        assert_eq!(bench.device.written_bytes() - before, 2 * ring_bytes + swaps_bytes);
        allocations.count_total
    });
    assert_eq!(counts, [counts[0]; 3]);
}
