//! Records of several slots: in one buffer each, counted once, overflow counted beside them.

use super::*;
use crate::producer::{AppendError, DropCause};
use proptest::prelude::*;

/// Appends a chain whose slots hold its number and their place.
fn append(bench: &mut MappedBench, number: u32, slots: u32) -> Result<(), AppendError> {
    bench.lane.append_chain(&mut bench.pool, slots, &mut bench.env, |place, slot| {
        assert!(slot.write(0, &number.to_le_bytes()) && slot.write(4, &place.to_le_bytes()));
    })
}

/// Number and place of all slots that a buffer holds.
fn slots(bench: &MappedBench, buffer: DevAddr) -> Vec<(u32, u32)> {
    bench.host.records(buffer).iter().map(|slot| (slot[0], slot[1])).collect()
}

fn overflow(bench: &MappedBench) -> u32 {
    bench.host.word(tiny::pool(0).overflow_records.expect("a word"))
}

#[test]
fn a_chain_that_does_not_fit_goes_whole_into_the_next_buffer() {
    let mut bench: MappedBench = Bench::sized(mapped(), 4, 4);
    (0..3).for_each(|buffer| bench.host.push(0, tiny::buffer(buffer)));
    append(&mut bench, 1, 1).expect("the first claims");
    append(&mut bench, 2, 1).expect("room for it");
    assert_eq!(bench.host.published(0), 0);
    append(&mut bench, 3, 2).expect("behind a switch");
    let first = bench.host.drain(0).expect("published although not full");
    assert_eq!(slots(&bench, first.buffer), [(1, 0), (2, 0)]);
    assert_eq!(slots(&bench, tiny::buffer(1)), [(3, 0), (3, 1)]);
    assert_eq!((bench.pool.state().total(), overflow(&bench)), (3, 1));
    append(&mut bench, 4, 1).expect("the last slot");
    let second = bench.host.drain(0).expect("a full buffer does not wait for the next record");
    assert_eq!(slots(&bench, second.buffer), [(3, 0), (3, 1), (4, 0)]);
    assert_eq!(bench.pool.state().buffer, tiny::buffer(2));
    assert_eq!(bench.env.clock_reads.get(), 0);
}

#[test]
fn a_chain_that_no_buffer_holds_is_counted_and_nothing_of_it_stored() {
    let mut bench = bench();
    bench.claim(tiny::buffer(0));
    let lost = Err(AppendError { cause: DropCause::NoBuffer });
    for slots in [0, RECORDS + 1, u32::MAX] {
        assert_eq!(append(&mut bench, 0, slots), lost);
    }
    assert_eq!((bench.pool.state().total(), bench.pool.state().count, overflow(&bench)), (3, 0, 0));
    assert_eq!(bench.pool.state().dropped[DropCause::NoBuffer.index()], 3);
    assert_eq!(bench.lane.state().dropped, 3);
    assert_eq!(bench.host.published(0), 0);
}

#[test]
fn a_slot_keeps_to_itself() {
    let mut bench = bench();
    bench.claim(tiny::buffer(0));
    let filled = bench.lane.append_chain(&mut bench.pool, 2, &mut bench.env, |_, slot| {
        assert!(slot.write(12, &[1; 4]) && slot.write(16, &[]));
        assert!(!slot.write(13, &[2; 4]) && !slot.write(0, &[3; 17]) && !slot.write(u32::MAX, &[4; 2]));
    });
    filled.expect("room for it");
    assert_eq!(bench.host.records(tiny::buffer(0)), [[0, 0, 0, 0x0101_0101]; 2]);
}

#[test]
fn a_chain_survives_the_buffer_that_was_given_up_for_it() {
    let mut bench = bench().with_full_buffer(false);
    bench.host.detach();
    append(&mut bench, 9, 2).expect("the buffer was given up, and has room again");
    let state = bench.pool.state();
    assert_eq!((state.count, state.dropped[DropCause::HostGone.index()]), (2, u64::from(RECORDS)));
    let mut bench = super::bench();
    bench.host.detach();
    assert_eq!(append(&mut bench, 9, 2), Err(AppendError { cause: DropCause::HostGone }));
    assert_eq!((bench.pool.state().dropped_total(), overflow(&bench)), (1, 0));
}

proptest! {
    /// Chains arrive whole and in order, or are counted: slots collected and lost are records and overflow.
    #[test]
    fn slots_add_up(chains in prop::collection::vec((0..5_u32, any::<bool>()), 1..60)) {
        let mut bench: MappedBench = Bench::sized(mapped(), 2, 2);
        let mut collected: Vec<(u32, u32)> = Vec::new();
        let mut free: Vec<_> = (0..3).map(tiny::buffer).collect();
        for (number, (length, is_served)) in (0..).zip(&chains) {
            if *is_served {
                for entry in bench.host.drain_all(0) {
                    collected.extend(slots(&bench, entry.buffer));
                    free.push(entry.buffer);
                }
                while bench.host.waiting(0) < 2 && let Some(buffer) = free.pop() {
                    bench.host.push(0, buffer);
                }
            }
            let _ = append(&mut bench, number, *length);
        }
        let _ = bench.lane.flush(&mut bench.pool, &mut bench.env);
        for entry in bench.host.drain_all(0) {
            collected.extend(slots(&bench, entry.buffer));
        }
        let state = bench.pool.state();
        let (kept, lost) = (collected.len() as u64, state.dropped_total());
        prop_assert_eq!(kept + u64::from(state.count) + lost, state.total() + state.overflow);
        let mut rest = &collected[..];
        let mut last = None;
        while let [(number, 0), ..] = *rest {
            let whole: Vec<_> = (0..chains[number as usize].0).map(|place| (number, place)).collect();
            prop_assert!(rest.starts_with(&whole) && last < Some(number));
            last = Some(number);
            rest = &rest[whole.len()..];
        }
        prop_assert!(rest.is_empty());
    }
}
