//! The device's side of the gates on the board.

use sluice_core::gate::{Expired, Gate, Gates};
use sluice_core::mem::{Deadline, DevAddr, Fault};

use crate::board::Shared;
use crate::harness::{Failure, Outcome, Test, check, check_eq};
use crate::host::{EXTENSION, REGION, REGION_AT, Waiting, peek, poke};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "gate: an open gate is passed without a wait", run: open_gate },
    Test { name: "gate: a shut gate parks until its flag is cleared", run: shut_gate },
    Test { name: "gate: a release is seen even when the gate was shut again", run: epoch },
    Test { name: "gate: each signal is its own word, and only ever 1", run: signals },
    Test { name: "gate: a release ends the wait that a signal began", run: wait_for_release },
    Test { name: "gate: a wait without a host ends at its deadline", run: expiry },
    Test { name: "gate: a host that detached is not waited for", run: detached },
    Test { name: "gate: words outside the shared memory are refused", run: out_of_range },
];

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        cortex_m_semihosting::hprintln!("  {}", fault);
        Self { line: 0 }
    }
}

impl From<Expired> for Failure {
    fn from(expired: Expired) -> Self {
        cortex_m_semihosting::hprintln!("  {}", expired);
        Self { line: 0 }
    }
}

/// Longer than any wait that a host ends here.
const PATIENCE: u64 = 1_000;

fn gates(shared: &Shared) -> Result<Gates<Shared>, Failure> {
    Ok(Gates::attach(shared, REGION_AT, REGION.gates(), Some(EXTENSION))?)
}

fn gate_word(offset: usize) -> DevAddr {
    REGION_AT.offset(offset as u64)
}

fn flag(gate: Gate) -> DevAddr {
    gate_word(match gate {
        Gate::Ready => REGION.gates().rq_freeze_active,
        Gate::Free => REGION.gates().fq_freeze_active,
    })
}

fn barrier(gates: &Gates<Shared>, gate: Gate, env: &mut Waiting<impl FnMut(u32)>) -> Result<(), Expired> {
    let mut deadline = Deadline::after(PATIENCE);
    match gate {
        Gate::Ready => gates.push_freeze_barrier(&mut deadline, env),
        Gate::Free => gates.pop_freeze_barrier(&mut deadline, env),
    }
}

fn open_gate(shared: &Shared) -> Outcome {
    let gates = gates(shared)?;
    let mut env = Waiting::with(|_| {});
    for gate in [Gate::Ready, Gate::Free] {
        barrier(&gates, gate, &mut env)?;
    }
    check_eq!(env.parked, [0, 0]);
    Ok(())
}

fn shut_gate(shared: &Shared) -> Outcome {
    let gates = gates(shared)?;
    for gate in [Gate::Ready, Gate::Free] {
        poke(shared, flag(gate), 1);
        let mut env = Waiting::with(|round| {
            if round == 4 {
                poke(shared, flag(gate), 0);
            }
        });
        barrier(&gates, gate, &mut env)?;
        check_eq!(env.parked[gate as usize], 5);
        check_eq!(env.parked[1 - gate as usize], 0);
    }
    Ok(())
}

fn epoch(shared: &Shared) -> Outcome {
    let gates = gates(shared)?;
    poke(shared, EXTENSION.release_epoch, u32::MAX);
    poke(shared, flag(Gate::Ready), 1);
    let mut env = Waiting::with(|round| {
        if round == 2 {
            // Released and shut again between two looks; the epoch wraps.
            poke(shared, EXTENSION.release_epoch, 0);
        }
    });
    barrier(&gates, Gate::Ready, &mut env)?;
    check_eq!(env.parked, [3, 0]);
    check!(gates.is_shut(Gate::Ready));
    Ok(())
}

fn signals(shared: &Shared) -> Outcome {
    let gates = gates(shared)?;
    let offsets = REGION.gates();
    let all = || {
        [offsets.rq_freeze_active, offsets.rq_contended, offsets.fq_freeze_active, offsets.fq_contended]
            .map(|offset| peek(shared, gate_word(offset)))
    };
    gates.mark_rq_contended();
    check_eq!(all(), [0, 1, 0, 0]);
    gates.mark_fq_contended();
    gates.mark_fq_contended();
    check_eq!(all(), [0, 1, 0, 1]);
    check!(gates.is_contended(Gate::Ready) && gates.is_contended(Gate::Free));
    check!(!gates.is_shut(Gate::Ready) && !gates.is_shut(Gate::Free));
    Ok(())
}

fn wait_for_release(shared: &Shared) -> Outcome {
    let gates = gates(shared)?;
    gates.mark_fq_contended();
    let signal = gate_word(REGION.gates().fq_contended);
    let mut env = Waiting::with(|round| match round {
        1 => poke(shared, flag(Gate::Free), 1),
        2 => poke(shared, signal, 0),
        5 => poke(shared, flag(Gate::Free), 0),
        _ => {}
    });
    gates.wait_for_release(Gate::Free, &mut Deadline::after(PATIENCE), &mut env)?;
    check_eq!(env.parked, [0, 6]);
    Ok(())
}

fn expiry(shared: &Shared) -> Outcome {
    let gates = gates(shared)?;
    poke(shared, flag(Gate::Free), 1);
    let mut env = Waiting::with(|_| {});
    check_eq!(barrier(&gates, Gate::Free, &mut env), Err(Expired { gate: Gate::Free }));
    check_eq!(u64::from(env.parked[Gate::Free as usize]), PATIENCE);
    Ok(())
}

fn detached(shared: &Shared) -> Outcome {
    let gates = gates(shared)?;
    poke(shared, flag(Gate::Ready), 1);
    poke(shared, EXTENSION.host_detached, 1);
    let mut env = Waiting::with(|_| {});
    check_eq!(barrier(&gates, Gate::Ready, &mut env), Err(Expired { gate: Gate::Ready }));
    check_eq!(env.parked, [0, 0]);
    Ok(())
}

fn out_of_range(shared: &Shared) -> Outcome {
    // The same low 32 bits as the shared memory: only an address that keeps its upper half tells them apart.
    let low = DevAddr(REGION_AT.0 & 0xffff_ffff);
    check!(matches!(
        Gates::attach(shared, low, REGION.gates(), None).err(),
        Some(Fault::OutOfRange { at, bytes: 4 }) if at.0 >> 32 == 0
    ));
    check!(matches!(
        Gates::attach(shared, REGION_AT.offset(2), REGION.gates(), None).err(),
        Some(Fault::Misaligned { align: 4, .. })
    ));
    Ok(())
}
