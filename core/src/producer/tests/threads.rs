//! The engine on one thread, its host on another, one buffer between them.

use super::*;
use std::thread;

const RECORD_COUNT: u32 = if cfg!(miri) { 200 } else { 200_000 };

#[test]
fn every_record_crosses_between_threads_through_one_buffer() {
    let memory = mapped();
    let host = Host { memory: memory.clone(), ready_entries: 2, free_slots: 2 };
    host.push(0, tiny::buffer(0));
    let served = thread::spawn(move || {
        let mut collected = 0;
        while collected < RECORD_COUNT {
            let Some(entry) = host.drain(0) else {
                thread::yield_now();
                continue;
            };
            for record in host.records(entry.buffer) {
                assert_eq!(record, [collected, !collected, 7, collected]);
                collected += 1;
            }
            GATES.iter().for_each(|&gate| host.clear(gate));
            host.push(0, entry.buffer);
        }
        host
    });
    let mut lane = tiny::attach_lane::<_, Tiny>(&memory, 0, 2, u64::MAX).expect("mapped");
    let mut pool = tiny::attach_pool::<_, Record, _>(&memory, 0, 2).expect("mapped");
    let mut env = Surroundings::new(|_| thread::yield_now());
    for first in 0..RECORD_COUNT {
        lane.append(&mut pool, &[first, !first, 7, first], &mut env).expect("a host that serves");
    }
    assert_eq!(lane.flush(&mut pool, &mut env), SwitchEnd::Switched);
    let host = served.join().expect("every record as it was stored");
    assert_eq!(pool.state().total(), u64::from(RECORD_COUNT));
    assert_eq!(pool.state().dropped_total(), 0);
    assert_eq!(host.word(tiny::pool(0).total_records.expect("a word")), RECORD_COUNT);
}
