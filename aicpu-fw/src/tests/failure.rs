//! What a wrong descriptor or program does: wrong bytes or an error record, never more.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use sluice_core::dma::{CopySpec, RingSize, Swap};
use sluice_core::exec::vitals::{DevicePhase, ProcessorState, StatusReader, TEXT_BYTES};
use sluice_core::exec::{ErrorClass, Instruction, status_block};
use sluice_core::mem::{CopyMemory, DevAddr, Memory as _, Word};
use sluice_core::mmio::{ControlWord, Engine, Half, QueueId, QueueRegister};

use super::bench::{
    BOOT, Bench, Memory, NO_DELAY, NONE, RAM, assert_done, block, marks, queue, semaphore, with_bench,
};
use crate::test_host::{TestHost, copy};

/// Errors as engine, queue and class.
fn errors(host: &mut TestHost<Memory<'_>>) -> Vec<(u8, u16, ErrorClass)> {
    host.errors().iter().map(|error| (error.tag(), error.custom_id(), error.error_class())).collect()
}

/// Runs one execution of `bases` after `swaps`.
fn execute(
    bench: &mut Bench<'_>,
    host: &mut TestHost<Memory<'_>>,
    swaps: &[Swap],
    bases: [DevAddr; Engine::COUNT],
) {
    let mut batch = host.swap_copies(swaps);
    batch.extend(host.trigger(bases, false));
    host.post(&batch);
    host.kick();
    bench.settle();
}

/// Runs ACT with one block of `pairs` pairs on queue 4, whose rings hold `copies` and were then changed by `damage`; POOL
/// waits for ACT. Returns the errors.
fn failing(
    copies: &[CopySpec],
    pairs: u32,
    damage: impl FnOnce(&TestHost<Memory<'_>>, [DevAddr; 2]),
) -> Vec<(u8, u16, ErrorClass)> {
    let mut seen = Vec::new();
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let rings = host.rings(queue(4), copies);
        let bases = rings.map(|ring| match ring {
            Swap::QueueBase { base, .. } => base,
            _ => panic!("rings are queue bases"),
        });
        damage(&host, bases);
        let target = host.alloc(4);
        let mark = host.place(&[6; 4]);
        let dependent = host.rings(queue(5), &[copy(mark, target, 4)]);
        let act = host.program(&[block(4, pairs, &[], Some(9))]);
        let pool = host.program(&[block(5, 1, &[(9, 1)], None)]);
        execute(bench, &mut host, &[rings, dependent].concat(), [NONE, act, pool, NONE, NONE]);
        seen = errors(&mut host);
        assert_eq!(host.control().executions_done.observe(), 1, "a failed execution is over");
        assert_eq!(marks(&host.statuses(Engine::Act)).len(), 1, "no end of an engine that failed");
        assert_eq!(host.read(target, 4), [0; 4], "what depends on it did not run");
        for engine in Engine::ALL {
            host.statuses(engine);
        }
        // The next execution is none the worse for it.
        let act = host.program(&[block(5, 1, &[], None)]);
        execute(bench, &mut host, &dependent, [NONE, act, NONE, NONE, NONE]);
        assert_done(&mut host);
        assert_eq!(host.read(target, 4), [6; 4]);
    });
    seen
}

const ACT: u8 = Engine::Act as u8;

/// A copy inside RAM that does no harm.
fn harmless() -> CopySpec {
    let last = RAM.base.offset(RAM.bytes - 64);
    copy(last, last, 64)
}

#[test]
fn a_descriptor_of_another_lap_stops_the_queue() {
    for half in 0..2 {
        let seen = failing(&[harmless(), harmless()], 2, |host, bases| {
            // Ring id 2 where 1 is expected, in the second descriptor.
            let at = bases[half].offset(16 + 3);
            let control = host.read(at, 1)[0];
            host.write(at, &[control & !3 | 2]);
        });
        assert_eq!(seen, [(ACT, 4, ErrorClass::PHASE_MISMATCH)]);
    }
}

#[test]
fn halves_of_different_length_are_refused() {
    let seen = failing(&[harmless()], 1, |host, bases| host.write(bases[1], &[60]));
    assert_eq!(seen, [(ACT, 4, ErrorClass::DMA_ABORT)]);
}

#[test]
fn addresses_outside_memory_are_out_of_bounds() {
    let (inside, end) = (RAM.base, RAM.base.offset(RAM.bytes));
    let before = DevAddr(RAM.base.0 - 32);
    let cases = [
        copy(end, inside, 4),
        copy(before, inside, 64),
        copy(inside, before, 64),
        copy(inside, DevAddr::NULL, 4),
        copy(inside, BOOT, 4),
        copy(DevAddr(u64::MAX - 3), inside, 64),
        copy(inside, DevAddr(u64::MAX - 3), 64),
    ];
    for case in cases {
        assert_eq!(failing(&[case], 1, |_, _| ()), [(ACT, 4, ErrorClass::OUT_OF_BOUNDS)], "{case:?}");
    }
    // Past the end of RAM lie the registers, which are no place for bytes.
    let across = copy(inside, DevAddr(end.0 - 32), 64);
    assert_eq!(failing(&[across], 1, |_, _| ()), [(ACT, 4, ErrorClass::OUT_OF_BOUNDS)]);
}

#[test]
fn registers_that_are_not_for_descriptors_stay_as_they_are() {
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let registers = host.registers();
        let refused = 0x1234_5678u32;
        let value = host.place(&refused.to_le_bytes());
        let bank = |half, queue: QueueId, register| registers.queue_bank(half, queue).register(register);
        let targets = [
            bank(Half::Tx, QueueId::EXEC, QueueRegister::TailIncrement),
            bank(Half::Rx, QueueId::EXEC, QueueRegister::BaseLow),
            bank(Half::Tx, queue(0), QueueRegister::HeadPointer),
            bank(Half::Tx, queue(0), QueueRegister::TailPointer),
            bank(Half::Rx, queue(0), QueueRegister::Lap),
            registers.control_word(ControlWord::Doorbell),
            registers.control_word(ControlWord::ExecutionsDone),
            registers.mailbox(Engine::Pe),
            registers.firmware(),
            registers.tasks().offset(8),
            registers.semaphore(semaphore(255)).offset(4),
        ];
        for target in targets {
            let rings = host.rings(queue(4), &[copy(value, target, 4)]);
            // HALT never comes: the block before it fails.
            let dve = host.program(&[block(4, 1, &[], None)]);
            let kicked = host.kicked();
            execute(bench, &mut host, &rings, [NONE, NONE, NONE, dve, NONE]);
            assert_eq!(errors(&mut host), [(3, 4, ErrorClass::DMA_ABORT)], "{target}");
            assert_eq!(host.control().executions_done.observe(), kicked + 1);
            assert_ne!(bench.memory.word(target).unwrap().load_acquire(), refused, "{target}");
            for engine in Engine::ALL {
                host.statuses(engine);
            }
        }
        // Half a register is no register.
        let event = registers.event(sluice_core::mmio::EventId::new(9).unwrap());
        for (target, len) in [(event, 2), (event.offset(2), 4)] {
            let rings = host.rings(queue(4), &[copy(value, target, len)]);
            let dve = host.program(&[block(4, 1, &[], None)]);
            execute(bench, &mut host, &rings, [NONE, NONE, NONE, dve, NONE]);
            assert_eq!(errors(&mut host), [(3, 4, ErrorClass::DMA_ABORT)]);
        }
        assert_eq!(bench.memory.word(event).unwrap().load_acquire(), 0);
    });
}

#[test]
fn blocks_that_no_queue_can_run_are_refused() {
    // Rings for one copy have 64 slots.
    assert_eq!(failing(&[harmless()], 65, |_, _| ()), [(ACT, 4, ErrorClass::DMA_ABORT)]);
    // Descriptors behind the last one are zero: their ring id is not that of the first lap.
    assert_eq!(failing(&[harmless()], 2, |_, _| ()), [(ACT, 4, ErrorClass::PHASE_MISMATCH)]);
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let never_set_up = host.program(&[block(7, 1, &[], None)]);
        execute(bench, &mut host, &[], [NONE, NONE, NONE, NONE, never_set_up]);
        assert_eq!(errors(&mut host), [(4, 7, ErrorClass::DMA_ABORT)]);
    });
}

#[test]
fn a_processor_says_what_failed_last_and_how_far_the_device_is() {
    with_bench(1, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let reader = StatusReader::new(bench.memory.clone(), status_block(BOOT));
        let mut text = [0; TEXT_BYTES];
        assert_eq!(reader.head().unwrap().lanes, 1);
        assert_eq!(reader.phase(), Ok(DevicePhase::READY));
        let before = reader.processor(0, &mut text).unwrap();
        assert_eq!((before.state, before.last_error), (ProcessorState::RUNNING, None));
        // An item that waits for what nobody signals keeps the execution under way.
        let endless = host.program(&[block(0, 0, &[(3, 1)], None)]);
        let wrong = host.program(&[block(QueueId::EXEC.get(), 1, &[], None)]);
        for (base, phase, errors) in [(wrong, DevicePhase::READY, 1), (endless, DevicePhase::EXECUTING, 1)] {
            let trigger = host.trigger([base, NONE, NONE, NONE, NONE], false);
            host.post(&trigger);
            host.kick();
            bench.settle();
            assert_eq!(reader.phase(), Ok(phase));
            let after = reader.processor(0, &mut text).unwrap();
            assert_eq!((after.errors, after.last_error), (errors, Some(ErrorClass::BAD_INSTRUCTION)));
            assert_ne!(after.beat, before.beat);
        }
    });
}

#[test]
fn programs_that_cannot_be_read_are_refused() {
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let bad_queue = host.program(&[block(QueueId::EXEC.get(), 1, &[], None)]);
        let late_opaque = host.program(&[block(0, 0, &[], None), Instruction::Opaque { opcode: 5 }]);
        let outside = RAM.base.offset(RAM.bytes - 32);
        for (base, class) in [
            (bad_queue, ErrorClass::BAD_INSTRUCTION),
            (late_opaque, ErrorClass::BAD_INSTRUCTION),
            (outside, ErrorClass::OUT_OF_BOUNDS),
            (DevAddr(u64::MAX), ErrorClass::OUT_OF_BOUNDS),
        ] {
            execute(bench, &mut host, &[], [base, NONE, NONE, NONE, NONE]);
            assert_eq!(errors(&mut host), [(0, 15, class)]);
        }
        assert_eq!(host.control().executions_done.observe(), 4);
    });
}

#[test]
fn a_bad_pair_in_the_exec_ring_stops_the_tpb_until_it_is_set_up_again() {
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let cell = host.alloc(8);
        let bad = copy(cell, DevAddr::NULL, 8);
        let trigger = host.trigger([NONE; Engine::COUNT], false);
        host.post(&[bad]);
        host.post(&trigger);
        host.kick();
        bench.settle();
        assert_eq!(errors(&mut host), [(4, 15, ErrorClass::OUT_OF_BOUNDS)]);
        host.kick();
        bench.settle();
        assert_eq!(errors(&mut host), [], "it says so once");
        assert_eq!(host.control().exec_head_pairs.observe(), 0);
        assert_eq!(host.control().executions_done.observe(), 0);

        // The sequencer may see nothing between the set-up and the next doorbell.
        let mut again = bench.host(0);
        let trigger = again.trigger([NONE; Engine::COUNT], false);
        for _ in 0..20 {
            again.post(&trigger);
            again.kick();
            bench.settle();
            assert_done(&mut again);
        }
    });
}

#[test]
fn the_other_tpb_runs_on() {
    with_bench(2, NO_DELAY, |bench| {
        let (mut broken, mut whole) = (bench.host(0), bench.host(1));
        let bad = copy(DevAddr::NULL, RAM.base, 8);
        broken.post(&[bad]);
        broken.kick();
        let trigger = whole.trigger([NONE; Engine::COUNT], false);
        whole.post(&trigger);
        whole.kick();
        bench.settle();
        assert_done(&mut whole);
        assert_eq!(errors(&mut broken).len(), 1);
    });
}

/// Addresses at which something lies, a little off, or anywhere.
fn address() -> impl Strategy<Value = u64> {
    const EDGES: &[u64] = &[RAM.base.0, RAM.base.0 + RAM.bytes, RAM.base.0 + RAM.bytes + 0x4_0000, 0];
    let near =
        (prop::sample::select(EDGES), -70_000i64..70_000).prop_map(|(at, by)| at.wrapping_add_signed(by));
    let registers = (0u64..0x4_6000).prop_map(|offset| RAM.base.0 + RAM.bytes + (offset & !3));
    let ram = (0..RAM.bytes).prop_map(|offset| RAM.base.0 + offset);
    prop_oneof![near, registers, ram, any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a ring and a program hold: the execution ends, host words and boot block stay the host's.
    #[test]
    fn hostile_rings_and_programs_harm_nothing(
        pairs in prop::collection::vec((any::<u16>(), 0u8..8, address(), address(), any::<u32>()), 1..24),
        queues in prop::collection::vec((0u32..16, 0u32..70), 1..6),
    ) {
        with_bench(2, NO_DELAY, |bench| {
            let mut host = bench.host_with(1, (RingSize::MIN, RingSize::MIN));
            let mut swaps = Vec::new();
            for on in 0..15 {
                swaps.extend(host.rings(queue(on), &[harmless()]));
            }
            for swap in &swaps {
                let Swap::QueueBase { base, .. } = swap else { continue };
                for (slot, (len, flags, from, to, meta)) in pairs.iter().enumerate() {
                    // Mostly whole plain copies of the first lap.
                    let control = u32::from(*len) | 0x0D00_0000 ^ u32::from(flags >> 2) << 30;
                    let meta = if flags & 3 == 0 { *meta } else { 0x0108_0003 };
                    let address = if slot % 2 == 0 { from } else { to };
                    let mut bytes = [0; 16];
                    bytes[..4].copy_from_slice(&control.to_le_bytes());
                    bytes[4..8].copy_from_slice(&meta.to_le_bytes());
                    bytes[8..].copy_from_slice(&address.to_le_bytes());
                    host.write(base.offset(slot as u64 * 16), &bytes);
                }
            }
            // Descriptors may well overwrite the exec ring of their own TPB, but not this one's words.
            let witness = bench.host_with(0, (RingSize::MIN, RingSize::MIN));
            let program: Vec<Instruction> = queues.iter().map(|(on, pairs)| block(*on, *pairs, &[], None)).collect();
            let base = host.program(&program);
            let boot = bench.map.boot;
            let boot_bytes = status_block(boot).0 - boot.0;
            let mut before = vec![0; boot_bytes as usize];
            bench.memory.read_bytes(boot, &mut before).unwrap();
            for swap in &swaps {
                let batch = host.swap_copies(&[*swap]);
                host.post(&batch);
                host.control().doorbell.publish(1);
                bench.settle();
            }
            let trigger = host.trigger([base; Engine::COUNT], false);
            host.post(&trigger);
            bench.settle();
            let mut after = vec![0; boot_bytes as usize];
            bench.memory.read_bytes(boot, &mut after).unwrap();
            assert_eq!(before, after);
            assert_eq!(host.control().executions_done.observe(), 1);
            assert_eq!(witness.control().executions_done.observe(), 0);
            assert_eq!(witness.control().exec_head_pairs.observe(), 0);
        });
    }
}
