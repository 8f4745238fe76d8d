//! What cores count.

use sluice_core::layout::ArchId;
use sluice_core::layout::pmu_events::{Counted, event_group, event_groups};
use sluice_core::mem::DevAddr;
use sluice_core::mmio::{Counts, Engine, LaneCounters};

use super::bench::{NO_DELAY, NONE, assert_done, block, bytes, queue, with_bench};
use crate::test_host::copy;

#[test]
fn cores_count_each_of_their_items_while_they_are_told_to() {
    with_bench(1, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let source = host.place(&bytes(5, 4096));
        let target = host.alloc(4096);
        let copies = [copy(source, target, 4096), copy(source, target, 96)];
        let swaps = host.rings(queue(2), &copies);
        let program = host.program(&[block(2, 2, &[], None)]);
        let set_up = host.swap_copies(&swaps);
        host.post(&set_up);
        let [idle, busy] = [Engine::Pe, Engine::Act]
            .map(|engine| LaneCounters::attach(&bench.memory, host.registers(), engine).unwrap());
        let mut run = || {
            let trigger = host.trigger([NONE, program, NONE, NONE, NONE], false);
            host.post(&trigger);
            host.kick();
            bench.settle();
            assert_done(&mut host);
        };
        run();
        assert_eq!(busy.read(), Counts::default());
        for group in event_groups(ArchId::A2a3) {
            let controls = [&idle, &busy].map(|counters| counters.start(group.events, DevAddr::NULL));
            // Counters do not add up over items.
            for _ in 0..2 {
                run();
                let counts = busy.read();
                assert!(counts.total_cycles > 0);
                for (slot, count) in counts.events.into_iter().enumerate() {
                    let event = group.events.iter().find(|event| event.slot == slot);
                    let expected = match event.map_or(Counted::Nothing, |event| event.agent) {
                        Counted::Cycles => counts.total_cycles as u32,
                        Counted::Pairs => 2,
                        Counted::Bytes => 4096 + 96,
                        Counted::Items => 1,
                        Counted::Nothing => 0,
                    };
                    assert_eq!(count, expected, "{} {slot}", group.name);
                }
            }
            assert_eq!(idle.read(), Counts::default());
            [&idle, &busy]
                .into_iter()
                .zip(controls)
                .for_each(|(counters, control)| counters.restore(control));
        }
        let last = busy.read();
        run();
        assert_eq!(busy.read(), last, "they are off again");
        assert!(event_group(ArchId::A2a3, 0).is_none());
    });
}
