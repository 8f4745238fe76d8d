//! The barriers, with the host's words stored between two looks.

use super::*;
use crate::mem::testing::{BlockMemory, Poke, block};
use crate::mem::{Deadline, Memory};
use crate::producer::tiny::{self, Surroundings};

const BUDGET_CYCLES: u64 = 50;
const BOTH: [Gate; 2] = [Gate::Ready, Gate::Free];

fn memory() -> BlockMemory {
    block(tiny::BASE, tiny::BYTES)
}

fn gates(memory: &BlockMemory) -> Gates<BlockMemory> {
    Gates::attach(memory, tiny::BASE, tiny::GATES, Some(tiny::EXTENSION_GATES)).expect("mapped")
}

fn flag(gate: Gate) -> DevAddr {
    tiny::at(match gate {
        Gate::Ready => tiny::GATES.rq_freeze_active,
        Gate::Free => tiny::GATES.fq_freeze_active,
    })
}

fn signal(gate: Gate) -> DevAddr {
    tiny::at(match gate {
        Gate::Ready => tiny::GATES.rq_contended,
        Gate::Free => tiny::GATES.fq_contended,
    })
}

fn bump_epoch(memory: &impl Memory) {
    let epoch = tiny::EXTENSION_GATES.release_epoch;
    memory.poke(epoch, memory.peek(epoch).wrapping_add(1));
}

/// How a wait ended, and what it cost.
#[derive(PartialEq, Debug)]
struct Ended {
    end: Result<(), Expired>,
    /// Fruitless looks at the push and at the pop gate.
    looks: [u32; 2],
    clock_reads: u32,
}

/// Stands at the barrier of `gate` while `host` acts, for at most the budget.
fn stand(gates: &Gates<BlockMemory>, gate: Gate, host: impl FnMut(u32)) -> Ended {
    let mut env = Surroundings::new(host);
    let mut deadline = Deadline::after(BUDGET_CYCLES);
    let end = match gate {
        Gate::Ready => gates.push_freeze_barrier(&mut deadline, &mut env),
        Gate::Free => gates.pop_freeze_barrier(&mut deadline, &mut env),
    };
    Ended { end, looks: env.parked, clock_reads: env.clock_reads.get() }
}

/// Waits for a release of `gate` while `host` acts, for at most the budget.
fn wait(gates: &Gates<BlockMemory>, gate: Gate, host: impl FnMut(u32)) -> Ended {
    let mut env = Surroundings::new(host);
    let end = gates.wait_for_release(gate, &mut Deadline::after(BUDGET_CYCLES), &mut env);
    Ended { end, looks: env.parked, clock_reads: env.clock_reads.get() }
}

/// So many fruitless looks at `gate`, each with one look at the clock.
fn after(looks: u32, gate: Gate, end: Result<(), Expired>) -> Ended {
    let at = if gate == Gate::Ready { [looks, 0] } else { [0, looks] };
    let clock_reads = if end.is_ok() { looks } else { looks + 1 };
    Ended { end, looks: at, clock_reads }
}

#[test]
fn an_open_gate_is_passed_without_reading_the_clock() {
    let memory = memory();
    for gate in BOTH {
        memory.poke(signal(gate), 1);
        let ended = stand(&gates(&memory), gate, |_| ());
        assert_eq!(ended, after(0, gate, Ok(())), "a signal alone parks nobody");
        memory.poke(signal(gate), 0);
        assert_eq!(wait(&gates(&memory), gate, |_| ()), after(0, gate, Ok(())));
    }
}

#[test]
fn a_shut_gate_holds_until_it_opens() {
    let memory = memory();
    for gate in BOTH {
        memory.poke(flag(gate), 1);
        let ended = stand(&gates(&memory), gate, |round| memory.poke(flag(gate), u32::from(round < 4)));
        assert_eq!(ended, after(5, gate, Ok(())));
    }
}

#[test]
fn a_barrier_minds_only_its_own_gate() {
    let memory = memory();
    for (gate, other) in [(Gate::Ready, Gate::Free), (Gate::Free, Gate::Ready)] {
        memory.poke(flag(other), 1);
        assert_eq!(stand(&gates(&memory), gate, |_| ()), after(0, gate, Ok(())));
        assert_eq!(wait(&gates(&memory), gate, |_| ()), after(0, gate, Ok(())));
        memory.poke(flag(other), 0);
    }
}

#[test]
fn waits_end_at_the_budget_and_not_before() {
    let memory = memory();
    for gate in BOTH {
        memory.poke(flag(gate), 1);
        let expired = after(BUDGET_CYCLES as u32, gate, Err(Expired { gate }));
        assert_eq!(stand(&gates(&memory), gate, |_| ()), expired);
        assert_eq!(wait(&gates(&memory), gate, |_| ()), expired);
    }
}

#[test]
fn a_deadline_that_has_begun_goes_on() {
    let memory = memory();
    memory.poke(flag(Gate::Free), 1);
    let mut env = Surroundings::new(|_| ());
    let mut deadline = Deadline::after(BUDGET_CYCLES);
    assert!(!deadline.expired(&env));
    env.now_cycles.set(BUDGET_CYCLES - 10);
    let end = gates(&memory).pop_freeze_barrier(&mut deadline, &mut env);
    assert_eq!((end, env.parked), (Err(Expired { gate: Gate::Free }), [0, 10]));
}

#[test]
fn a_release_ends_a_wait_although_the_gate_was_shut_again() {
    let memory = memory();
    for gate in BOTH {
        memory.poke(flag(gate), 1);
        memory.poke(signal(gate), 1);
        let release = |round| {
            if round == 2 {
                bump_epoch(&memory)
            }
        };
        assert_eq!(stand(&gates(&memory), gate, release), after(3, gate, Ok(())));
        assert_eq!(wait(&gates(&memory), gate, release), after(3, gate, Ok(())));
    }
}

#[test]
fn a_wait_for_release_needs_the_signal_taken_and_the_freeze_over() {
    let memory = memory();
    for gate in BOTH {
        memory.poke(signal(gate), 1);
        // The host's own order: it shuts the gate before it takes the signal.
        let ended = wait(&gates(&memory), gate, |round| match round {
            1 => memory.poke(flag(gate), 1),
            2 => memory.poke(signal(gate), 0),
            4 => memory.poke(flag(gate), 0),
            _ => (),
        });
        assert_eq!(ended, after(5, gate, Ok(())));
        // Served without a freeze.
        memory.poke(signal(gate), 1);
        let ended = wait(&gates(&memory), gate, |_| memory.poke(signal(gate), 0));
        assert_eq!(ended, after(1, gate, Ok(())));
    }
}

#[test]
fn a_host_that_detached_is_not_waited_for() {
    let memory = memory();
    for gate in BOTH {
        memory.poke(flag(gate), 1);
        let detach = |_| memory.poke(tiny::EXTENSION_GATES.host_detached, 1);
        let ended = stand(&gates(&memory), gate, detach);
        assert_eq!((ended.end, ended.looks.iter().sum()), (Err(Expired { gate }), 1));
        let ended = wait(&gates(&memory), gate, |_| ());
        assert_eq!((ended.end, ended.looks), (Err(Expired { gate }), [0; 2]));
        memory.poke(tiny::EXTENSION_GATES.host_detached, 0);
    }
}

#[test]
fn a_peer_without_an_extension_block_is_waited_for_by_its_flag_alone() {
    let memory = memory();
    let gates = Gates::attach(&memory, tiny::BASE, tiny::GATES, None).expect("mapped");
    memory.poke(tiny::EXTENSION_GATES.host_detached, 1);
    memory.poke(flag(Gate::Ready), 1);
    let ended = stand(&gates, Gate::Ready, |round| {
        bump_epoch(&memory);
        memory.poke(flag(Gate::Ready), u32::from(round < 6));
    });
    assert_eq!(ended, after(7, Gate::Ready, Ok(())));
    assert_eq!(gates.epoch(), 0);
    assert!(!gates.is_detached());
}

#[test]
fn signals_are_words_of_their_own() {
    let memory = memory();
    let gates = gates(&memory);
    gates.mark_rq_contended();
    assert_eq!(BOTH.map(|gate| gates.is_contended(gate)), [true, false]);
    memory.poke(signal(Gate::Ready), 0);
    gates.mark_fq_contended();
    assert_eq!(BOTH.map(|gate| memory.peek(signal(gate))), [0, 1]);
    assert_eq!(BOTH.map(|gate| gates.is_shut(gate)), [false; 2]);
}

#[test]
fn words_outside_the_memory_are_refused() {
    let memory = block(tiny::BASE, 64);
    assert!(Gates::attach(&memory, tiny::BASE, tiny::GATES, None).is_ok());
    assert!(Gates::attach(&memory, tiny::BASE, tiny::GATES, Some(tiny::EXTENSION_GATES)).is_err());
    assert!(Gates::attach(&memory, tiny::at(64), tiny::GATES, None).is_err());
}
