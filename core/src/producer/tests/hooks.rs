//! What a kind of pool adds: called at its place in a switch, and only there.

use super::*;
use crate::mem::testing::Double;
use crate::producer::tiny::Marked;

fn pool<M: Memory>(memory: &M) -> (Lane<M, Tiny>, Pool<M, Marked, Tiny>) {
    let lane = tiny::attach_lane(memory, 0, 2, LIMIT_CYCLES).expect("mapped");
    (lane, tiny::attach_pool(memory, 0, 2).expect("mapped"))
}

fn host<M: Memory>(memory: &M) -> Host<M> {
    Host { memory: memory.clone(), ready_entries: 2, free_slots: 2 }
}

#[test]
fn a_hook_runs_after_the_last_wait_and_before_the_host_can_see_the_buffer() {
    let memory = Double::new(tiny::BASE, tiny::BYTES);
    let host = host(&memory);
    let (mut lane, mut pool) = pool(&memory);
    let mut env = Surroundings::new(|_| ());
    host.push(0, tiny::buffer(0));
    lane.append(&mut pool, &[1; 4], &mut env).expect("a buffer waits");
    (0..2).for_each(|_| pool.hooks().mark());
    host.set_shut(Gate::Ready, true);
    let mut switch = lane.begin_switch();
    for _ in 0..3 {
        assert_eq!(lane.poll_switch(&mut pool, &mut switch, &env), Progress::Waiting(Gate::Ready));
        assert_eq!(memory.peek(tiny::marks(0)), 0, "nothing is published yet");
    }
    host.set_shut(Gate::Ready, false);
    memory.take_log();
    assert_eq!(lane.poll_switch(&mut pool, &mut switch, &env), Progress::Moved);
    let stores = memory.take_log();
    let place = |at| stores.iter().position(|store| store.at() == at).expect("stored");
    assert!(place(tiny::marks(0)) < place(tiny::at(tiny::ring(0).tail)));
    assert_eq!(memory.peek(tiny::marks(0)), 2);
}

#[test]
fn a_buffer_that_is_given_up_takes_along_what_a_hook_kept_for_it() {
    let memory = mapped();
    let host = host(&memory);
    let (mut lane, mut pool) = pool(&memory);
    let mut env = Surroundings::new(|_| ());
    (0..2).for_each(|buffer| host.push(0, tiny::buffer(buffer)));
    lane.append(&mut pool, &[1; 4], &mut env).expect("a buffer waits");
    assert_eq!(lane.flush(&mut pool, &mut env), SwitchEnd::Switched, "which fills the ring");
    lane.append(&mut pool, &[2; 4], &mut env).expect("a buffer waits");
    pool.hooks().mark();
    assert_eq!(lane.flush(&mut pool, &mut env), SwitchEnd::Kept { dropped: 1 });
    host.drain(0).expect("published");
    lane.append(&mut pool, &[3; 4], &mut env).expect("the buffer is still there");
    assert_eq!(lane.flush(&mut pool, &mut env), SwitchEnd::Switched);
    assert_eq!(memory.peek(tiny::marks(0)), 0);
}

#[test]
fn a_claimed_buffer_is_prepared_before_a_core_can_see_it() {
    let memory = Double::new(tiny::BASE, tiny::BYTES);
    let host = host(&memory);
    let (mut lane, mut pool) = pool(&memory);
    let mut env = Surroundings::new(|_| ());
    let last = tiny::buffer(0).offset(32);
    memory.poke(last, 7);
    host.push(0, tiny::buffer(0));
    memory.take_log();
    lane.append(&mut pool, &[1; 4], &mut env).expect("a buffer waits");
    let stores = memory.take_log();
    let place = |at| stores.iter().position(|store| store.at() == at).expect("stored");
    assert!(place(last) < place(tiny::at(tiny::pool(0).current_ptr)));
    assert_eq!(memory.peek(last), 0);
}
