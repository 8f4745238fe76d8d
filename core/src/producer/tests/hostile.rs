//! Words of the other side that cannot be.

use super::*;

#[test]
fn a_ring_index_outside_the_ring_stops_publication_until_it_is_one_again() {
    for head in [2, 3, u32::MAX] {
        let mut bench = bench().with_full_buffer(true);
        bench.host.set_word(tiny::ring(0).head, head);
        let before = bench.host.word(tiny::ring(0).tail);
        let mut switch = bench.lane.begin_switch();
        for _ in 0..2 {
            assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready));
            assert!(bench.host.is_contended(Gate::Ready));
        }
        assert_eq!(bench.host.word(tiny::ring(0).tail), before);
        bench.host.set_word(tiny::ring(0).head, 1);
        bench.host.set_word(tiny::ring(0).head, before);
        assert_eq!(bench.poll(&mut switch), Progress::Moved);
    }
}

#[test]
fn an_own_ring_index_that_was_overwritten_publishes_nothing() {
    for tail in [2, u32::MAX] {
        let mut bench = bench().with_full_buffer(true);
        bench.host.set_word(tiny::ring(0).tail, tail);
        let mut switch = bench.lane.begin_switch();
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready));
        assert_eq!(bench.pool.state().count, RECORDS, "{tail}: the buffer is still the lane's");
    }
}

#[test]
fn a_queue_counter_further_than_its_slots_gives_nothing() {
    for tail in [3, 4, u32::MAX] {
        let mut bench = bench();
        bench.host.push(0, tiny::buffer(0));
        bench.host.set_word(tiny::pool(0).free_tail, tail);
        let mut switch = bench.lane.begin_claim();
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free));
        assert!(bench.host.is_contended(Gate::Free));
        assert_eq!(bench.host.word(tiny::pool(0).free_head), 0);
        bench.host.set_word(tiny::pool(0).free_tail, 1);
        assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched));
    }
}

#[test]
fn an_address_that_is_no_buffer_is_stepped_over() {
    let useless = [
        DevAddr::NULL,
        DevAddr(tiny::BASE.0 - 64),
        tiny::at(tiny::BYTES as usize),
        tiny::at(tiny::BYTES as usize - 60),
        DevAddr(u64::MAX - 3),
        tiny::buffer(0).offset(2),
    ];
    for address in useless {
        let mut bench = bench();
        bench.host.push(0, address);
        bench.host.push(0, tiny::buffer(1));
        let mut switch = bench.lane.begin_claim();
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Free), "{address}");
        assert_eq!(bench.host.current(0), DevAddr::NULL);
        assert_eq!(bench.host.waiting(0), 1, "{address}: its slot is free again");
        assert_eq!(bench.poll(&mut switch), Progress::Done(SwitchEnd::Switched), "{address}");
        assert_eq!(bench.pool.state().buffer, tiny::buffer(1));
    }
}

#[test]
fn any_flag_but_zero_shuts_a_gate() {
    for value in [1, 2, 0x8000_0000, u32::MAX] {
        let mut bench = bench().with_full_buffer(true);
        bench.host.set_word(flag(Gate::Ready), value);
        let mut switch = bench.lane.begin_switch();
        assert_eq!(bench.poll(&mut switch), Progress::Waiting(Gate::Ready));
        assert_eq!(bench.host.published(0), 0);
    }
}

#[test]
fn places_outside_the_memory_are_refused() {
    let memory = block(tiny::BASE, 0xd00);
    assert!(tiny::attach_lane::<_, Tiny>(&memory, 3, 4, 0).is_ok());
    assert!(tiny::attach_lane::<_, Tiny>(&memory, 4, 4, 0).is_err());
    assert!(tiny::attach_pool::<_, Record, Tiny>(&memory, 7, 4).is_ok());
    assert!(tiny::attach_pool::<_, Record, Tiny>(&memory, 8, 4).is_err());
}
