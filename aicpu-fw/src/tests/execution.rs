//! What a right program does.

use sluice_core::dma::{CopySpec, RingSize, Swap};
use sluice_core::exec::{ErrorClass, Instruction, SubType};
use sluice_core::mem::{DevAddr, Memory as _, Word};
use sluice_core::mmio::{ControlWord, Engine, QueueId};

use super::bench::{Bench, NO_DELAY, NONE, assert_done, block, bytes, marks, queue, semaphore, with_bench};
use crate::AgentDelays;
use crate::test_host::{TestHost, copy};

#[test]
fn swaps_patch_cells_and_queues_and_programs_move_bytes() {
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let input = bytes(1, 100_000);
        let source = host.place(&input);
        let (middle, target) = (host.alloc(100_000), host.alloc(100_000));
        let cell = host.alloc(8);
        // 65,536 bytes are a length field of 0.
        let first =
            [copy(source, middle, 65_536), copy(source.offset(65_536), middle.offset(65_536), 34_464)];
        let second =
            [copy(middle, target, 65_536), copy(middle.offset(65_536), target.offset(65_536), 34_464)];
        let mut swaps = std::vec::Vec::from([Swap::Pointer { cell, target }]);
        swaps.extend(host.rings(queue(0), &first));
        swaps.extend(host.rings(queue(3), &second));
        let act = host.program(&[block(0, 2, &[], Some(7))]);
        let dve = host.program(&[block(3, 2, &[(7, 1)], None)]);
        let mut batch = host.swap_copies(&swaps);
        batch.extend(host.trigger([NONE, act, NONE, dve, NONE], false));
        host.post(&batch);
        bench.settle();
        assert_eq!(host.control().exec_head_pairs.observe(), 0, "nothing moves before the doorbell");
        host.kick();
        bench.settle();
        assert_done(&mut host);
        assert_eq!(host.read(target, 100_000), input);
        assert_eq!(host.read(cell, 8), target.0.to_le_bytes());
        for engine in Engine::ALL {
            assert_eq!(marks(&host.statuses(engine)), [(SubType::START, 0), (SubType::END, 0)], "{engine}");
        }
        assert_eq!(host.control().exec_head_pairs.observe(), batch.len() as u32);
        assert!(bench.machine.host_wakes.get() > 0);
    });
}

#[test]
fn blocks_start_in_the_order_of_their_semaphores() {
    with_bench(2, AgentDelays { seed: 7, max_cycles: 1_000 }, |bench| {
        let mut host = bench.host(0);
        // Five engines pass a value on; the order of their engine numbers is not the order of the chain.
        let cells: std::vec::Vec<DevAddr> = (0..6).map(|_| host.alloc(64)).collect();
        host.write(cells[0], &bytes(9, 64));
        let mut swaps = std::vec::Vec::new();
        let mut bases = [NONE; Engine::COUNT];
        for (step, engine) in [3, 0, 4, 1, 2].into_iter().enumerate() {
            swaps.extend(host.rings(queue(step as u32), &[copy(cells[step], cells[step + 1], 64)]));
            let step = step as u32;
            let waits: &[(u32, u32)] = if step == 0 { &[] } else { &[(step - 1, 1)] };
            bases[engine] = host.program(&[block(step, 1, waits, Some(step))]);
        }
        for round in 0..3 {
            host.write(cells[5], &[0; 64]);
            let mut batch = host.swap_copies(&swaps);
            batch.extend(host.trigger(bases, false));
            host.post(&batch);
            host.kick();
            bench.settle();
            assert_done(&mut host);
            assert_eq!(host.read(cells[5], 64), bytes(9, 64), "round {round}");
        }
    });
}

#[test]
fn rings_filled_once_serve_every_execution() {
    with_bench(1, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let source = host.place(&bytes(3, 64));
        let target = host.alloc(64);
        // The ring has room for 64 descriptors, so unless it starts afresh the 65th execution fails.
        let swaps = host.rings(queue(1), &[copy(source, target, 64)]);
        let program = host.program(&[block(1, 1, &[], None)]);
        let set_up = host.swap_copies(&swaps);
        host.post(&set_up);
        for _ in 0..100 {
            host.write(target, &[0; 64]);
            let trigger = host.trigger([NONE, NONE, program, NONE, NONE], false);
            host.post(&trigger);
            host.kick();
            bench.settle();
            assert_done(&mut host);
            assert_eq!(host.read(target, 64), bytes(3, 64));
        }
    });
}

#[test]
fn exec_rings_of_different_size_go_through_their_laps() {
    with_bench(2, NO_DELAY, |bench| {
        let sizes = (RingSize::new(48).unwrap(), RingSize::MIN);
        let mut host = bench.host_with(0, sizes);
        let trigger = host.trigger([NONE; Engine::COUNT], false);
        let laps = 5 * 48 / trigger.len() as u32;
        for n in 0..laps * 2 {
            host.post(&trigger);
            host.kick();
            bench.settle();
            assert_done(&mut host);
            for engine in Engine::ALL {
                let id = n as u16;
                assert_eq!(marks(&host.statuses(engine)), [(SubType::START, id), (SubType::END, id)]);
            }
        }
    });
}

#[test]
fn several_executions_wait_in_the_ring_for_their_doorbells() {
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let targets: std::vec::Vec<DevAddr> = (0..3).map(|_| host.alloc(4)).collect();
        for &target in &targets {
            let mut batch = host.swap_copies(&[Swap::Pointer { cell: target, target: DevAddr(0x77) }]);
            batch.extend(host.trigger([NONE; Engine::COUNT], false));
            host.post(&batch);
        }
        for done in 1..=3u32 {
            host.kick();
            bench.settle();
            assert_done(&mut host);
            let patched = targets.iter().filter(|target| host.read(**target, 1) == [0x77]).count();
            assert_eq!(patched, done as usize);
        }
    });
}

#[test]
fn a_doorbell_ahead_of_its_pairs_waits_for_them() {
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        host.kick();
        bench.settle();
        assert_eq!(host.control().executions_done.observe(), 0);
        let trigger = host.trigger([NONE; Engine::COUNT], false);
        let (early, late) = trigger.split_at(2);
        host.post(early);
        bench.settle();
        assert_eq!(host.control().exec_head_pairs.observe(), 2);
        host.post(late);
        bench.settle();
        assert_done(&mut host);
    });
}

#[test]
fn the_prologue_runs_before_the_programs() {
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let sequence = host.place(&5u32.to_le_bytes());
        let (seen, read_back) = (host.alloc(4), host.alloc(4));
        let prologue = host.rings(QueueId::PROLOGUE, &[copy(sequence, seen, 4)]);
        let model = host.rings(queue(0), &[copy(seen, read_back, 4)]);
        let mut set_up = host.swap_copies(&prologue);
        set_up.extend(host.swap_copies(&model));
        host.post(&set_up);
        let program = host.program(&[block(0, 1, &[], None)]);
        for n in 5..10u32 {
            host.write(sequence, &n.to_le_bytes());
            let trigger = host.trigger([program, NONE, NONE, NONE, NONE], true);
            host.post(&trigger);
            host.kick();
            bench.settle();
            assert_done(&mut host);
            assert_eq!(host.read(read_back, 4), n.to_le_bytes());
        }
    });
}

#[test]
fn opaque_programs_take_their_time_and_move_nothing() {
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        host.control().set_opaque_engine_cycles(50_000);
        let opaque = host.program(&[Instruction::Opaque { opcode: 0x1042 }]);
        let trigger = host.trigger([opaque, NONE, NONE, NONE, opaque], false);
        host.post(&trigger);
        host.kick();
        bench.settle();
        assert_done(&mut host);
        let spans = Engine::ALL.map(|engine| {
            let [start, end] = host.statuses(engine)[..] else { panic!("two records of {engine}") };
            end.time_cycles() - start.time_cycles()
        });
        assert!(spans[0] >= 50_000 && spans[4] >= 50_000, "{spans:?}");
        assert!(spans[1..4].iter().all(|span| *span < 50_000), "{spans:?}");
    });
}

#[test]
fn tpbs_run_side_by_side_and_registers_of_one_are_not_the_others() {
    with_bench(2, NO_DELAY, |bench| {
        let mut hosts = [bench.host(0), bench.host(1)];
        let mut targets = std::vec::Vec::new();
        for (seed, host) in hosts.iter_mut().enumerate() {
            let source = host.place(&bytes(seed as u8, 512));
            let target = host.alloc(512);
            let swaps = host.rings(queue(2), &[copy(source, target, 512)]);
            let program = host.program(&[block(2, 1, &[], Some(1)), block(2, 0, &[(1, 1)], None)]);
            let mut batch = host.swap_copies(&swaps);
            batch.extend(host.trigger([NONE, NONE, NONE, program, NONE], false));
            host.post(&batch);
            targets.push(target);
        }
        hosts[1].kick();
        bench.settle();
        assert_done(&mut hosts[1]);
        assert_eq!(hosts[1].read(targets[1], 512), bytes(1, 512));
        assert_eq!(hosts[0].control().executions_done.observe(), 0);
        hosts[0].kick();
        bench.settle();
        assert_done(&mut hosts[0]);
        assert_eq!(hosts[0].read(targets[0], 512), bytes(0, 512));
    });
}

#[test]
fn a_program_can_raise_semaphores_by_descriptors() {
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let two = host.place(&2u32.to_le_bytes());
        let register = host.registers().semaphore(semaphore(200));
        let marker = host.place(&[8; 4]);
        let target = host.alloc(4);
        let mut swaps = host.rings(queue(0), &[copy(two, register, 4)]).to_vec();
        swaps.extend(host.rings(queue(1), &[copy(marker, target, 4)]));
        let pe = host.program(&[block(1, 1, &[(200, 2)], None)]);
        let sp = host.program(&[block(0, 1, &[], None)]);
        for _ in 0..2 {
            let mut batch = host.swap_copies(&swaps);
            batch.extend(host.trigger([pe, NONE, NONE, NONE, sp], false));
            host.post(&batch);
            host.kick();
            bench.settle();
            assert_done(&mut host);
            assert_eq!(host.read(target, 4), [8; 4]);
            let value = bench.memory.word(register).unwrap().load_acquire();
            assert_eq!(value, 2, "semaphores start at zero in every execution");
        }
    });
}

#[test]
fn a_full_notification_queue_keeps_what_it_has_and_counts_the_rest() {
    with_bench(2, NO_DELAY, |bench| {
        let mut host = bench.host(0);
        let trigger = host.trigger([NONE; Engine::COUNT], false);
        // 4,096 bytes hold 256 records, two per execution.
        for _ in 0..130 {
            host.post(&trigger);
            host.kick();
            bench.settle();
        }
        let lost = |word| bench.memory.word(host.registers().control_word(word)).unwrap().load_acquire();
        assert_eq!(Engine::ALL.map(|engine| lost(ControlWord::NqLost(engine))), [4; Engine::COUNT]);
        assert_eq!(lost(ControlWord::ErrNqLost), 0);
        let kept = marks(&host.statuses(Engine::Pool));
        assert_eq!(kept.len(), 256);
        assert_eq!((kept[0], kept[255]), ((SubType::START, 0), (SubType::END, 127)));
        host.post(&trigger);
        host.kick();
        bench.settle();
        assert_eq!(marks(&host.statuses(Engine::Pool)), [(SubType::START, 130), (SubType::END, 130)]);
    });
}

#[test]
fn a_stop_word_lets_the_present_execution_end_and_counts_those_behind_it_unrun() {
    with_bench(2, NO_DELAY, |bench: &mut Bench<'_>| {
        let mut host = bench.host(0);
        host.control().set_opaque_engine_cycles(1_000);
        let opaque = host.program(&[Instruction::Opaque { opcode: 0 }]);
        let trigger: std::vec::Vec<CopySpec> = host.trigger([opaque, NONE, NONE, NONE, NONE], false);
        for _ in 0..3 {
            host.post(&trigger);
            host.kick();
        }
        while host.statuses(Engine::Pe).is_empty() {
            let _ = bench.node.poll();
        }
        host.control().stop.publish(1);
        bench.settle();
        assert_eq!(host.control().executions_done.observe(), 3);
        assert_eq!(marks(&host.statuses(Engine::Act)), [(SubType::START, 0), (SubType::END, 0)]);
        host.kick();
        bench.settle();
        assert_eq!(host.control().executions_done.observe(), 4);
    });
}

#[test]
fn an_execution_that_waits_for_ever_ends_when_the_host_gives_it_up() {
    with_bench(2, NO_DELAY, |bench: &mut Bench<'_>| {
        let mut host = bench.host(0);
        let cells = [host.alloc(64), host.alloc(64)];
        let batch = |host: &mut TestHost<_>, waits: &[(u32, u32)]| {
            let swaps = host.rings(queue(1), &[copy(cells[0], cells[1], 64)]);
            let stuck = host.program(&[block(1, 1, waits, None)]);
            let mut batch = host.swap_copies(&swaps);
            batch.extend(host.trigger([NONE, NONE, stuck, NONE, NONE], false));
            host.post(&batch);
            host.kick();
        };
        batch(&mut host, &[(9, 1)]);
        batch(&mut host, &[]);
        bench.settle();
        assert_eq!(host.control().executions_done.observe(), 0);
        // The count of another execution gives up nothing.
        host.control().given_up.publish(2);
        bench.settle();
        assert_eq!(host.control().executions_done.observe(), 0);
        host.control().given_up.publish(1);
        bench.settle();
        let errors = host.errors();
        assert_eq!((errors.len(), errors[0].tag(), errors[0].error_class()), (1, 2, ErrorClass::GIVEN_UP));
        assert!(!errors[0].is_stop());
        assert_eq!(host.control().executions_done.observe(), 2, "the one behind it has run");
        let said = marks(&host.statuses(Engine::Pool));
        assert_eq!(said, [(SubType::START, 0), (SubType::START, 1), (SubType::END, 1)]);
    });
}

#[test]
fn a_stop_record_stops_behind_what_was_queued_before_it() {
    with_bench(2, NO_DELAY, |bench: &mut Bench<'_>| {
        let mut host = bench.host(0);
        let trigger = host.trigger([NONE; Engine::COUNT], false);
        let stop = host.registers().control_word(ControlWord::Stop);
        let one = host.place(&1u32.to_le_bytes());
        host.post(&trigger);
        host.kick();
        host.post(&[copy(one, stop, 4)]);
        host.kick();
        host.post(&trigger);
        host.kick();
        bench.settle();
        assert_eq!(host.control().executions_done.observe(), 2);
        assert_eq!(marks(&host.statuses(Engine::Pool)), [(SubType::START, 0), (SubType::END, 0)]);
        assert_eq!(host.control().stop.get(), 0, "the word is the host's");

        let mut again = bench.host(0);
        let trigger = again.trigger([NONE; Engine::COUNT], false);
        again.post(&trigger);
        again.kick();
        bench.settle();
        assert_eq!(again.control().executions_done.observe(), 3);
    });
}

#[test]
fn counters_go_round_and_every_execution_runs() {
    with_bench(2, NO_DELAY, |bench: &mut Bench<'_>| {
        let registers = bench.map.registers.tpb(sluice_core::mmio::TpbId::FIRST).unwrap();
        for word in [ControlWord::ExecHeadPairs, ControlWord::ExecutionsDone] {
            bench.memory.word(registers.control_word(word)).unwrap().store_release(u32::MAX - 50);
        }
        bench.restart();
        let mut host = bench.host(0);
        let (first, target) = (host.kicked(), host.alloc(4));
        assert_eq!(first, u32::MAX - 50);
        let one = host.place(&1u32.to_le_bytes());
        let swaps = host.rings(queue(2), &[copy(one, target, 4)]);
        let dve = host.program(&[block(2, 1, &[], None)]);
        let trigger = host.trigger([NONE, NONE, NONE, dve, NONE], false);
        for execution in 0..100 {
            let mut batch = host.swap_copies(&swaps);
            batch.extend_from_slice(&trigger);
            host.write(target, &[0; 4]);
            host.post(&batch);
            host.kick();
            bench.settle();
            assert_done(&mut host);
            assert_eq!(host.read(target, 4), [1, 0, 0, 0]);
            let id = first.wrapping_add(execution) as u16;
            for engine in Engine::ALL {
                assert_eq!(marks(&host.statuses(engine)), [(SubType::START, id), (SubType::END, id)]);
            }
        }
        assert_eq!(host.control().executions_done.observe(), 49);
        assert!(host.control().exec_head_pairs.observe() < u32::MAX / 2, "these have gone round too");
    });
}

#[test]
fn an_execution_that_was_given_up_is_not_taken_for_one_a_round_later() {
    with_bench(2, NO_DELAY, |bench: &mut Bench<'_>| {
        let mut host = bench.host(0);
        let stuck = host.program(&[block(1, 0, &[(9, 1)], None)]);
        let batch = host.trigger([stuck, NONE, NONE, NONE, NONE], false);
        host.post(&batch);
        host.kick();
        bench.settle();
        host.control().given_up.publish(1);
        bench.settle();
        assert_eq!(host.errors().len(), 1);
        // The counts of later executions, until they have gone once round.
        let done = host.registers().control_word(ControlWord::ExecutionsDone);
        for ordinal in [4, 0] {
            bench.memory.word(done).unwrap().store_release(ordinal);
            bench.restart();
            let mut host = bench.host(0);
            let batch = host.trigger([NONE; Engine::COUNT], false);
            host.post(&batch);
            host.kick();
            bench.settle();
            assert_done(&mut host);
            let id = ordinal as u16;
            assert_eq!(marks(&host.statuses(Engine::Pe)), [(SubType::START, id), (SubType::END, id)]);
        }
    });
}
