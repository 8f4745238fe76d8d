//! What an engine does: its instructions, checked against its blocks.
//!
//! A program whose first instruction is not one of ours is opaque and stays unchecked. One of ours runs every block of
//! the engine once, on each queue in the order of the blocks, because that is the order of the descriptors in the ring.

use std::collections::VecDeque;

use sluice_core::exec::{INSTRUCTION_BYTES, Instruction, InstructionBytes, RunBlock};
use sluice_core::mmio::{Engine, SemaphoreId};
use zerocopy::FromBytes as _;

use super::engines::Names;
use crate::neff::error::{NeffError, Place, Quoted};
use crate::neff::program::{DmaBlock, DmaOp, Program, VarKind, Work, engine_key};

/// Decides what the instructions are, and checks ours against the blocks.
pub(super) fn read(
    place: Place<'_>,
    binary: &[u8],
    blocks: &[DmaBlock],
    names: &Names<'_>,
) -> Result<Work, NeffError> {
    let instructions = <[InstructionBytes]>::ref_from_bytes(binary).map_err(|_| {
        place.invalid(format_args!(
            "{} bytes, not a multiple of instructions of {INSTRUCTION_BYTES}",
            binary.len()
        ))
    })?;
    let Some(first) = instructions.first() else { return Ok(Work::Idle) };
    if matches!(first.decode(), Ok(Instruction::Opaque { .. })) {
        return Ok(Work::Opaque);
    }
    let mut runs = Vec::new();
    let mut unrun: Vec<VecDeque<&DmaBlock>> = vec![VecDeque::new(); names.queues.len()];
    for block in blocks {
        unrun[block.queue].push_back(block);
    }
    for (number, instruction) in instructions.iter().enumerate() {
        let invalid = |text: String| place.invalid_key(format!("instruction {number}"), text);
        match instruction.decode().map_err(|error| invalid(error.to_string()))? {
            Instruction::RunBlock(run) => {
                let next = names
                    .queues
                    .iter()
                    .position(|queue| queue.ring == Some(run.queue))
                    .and_then(|queue| unrun[queue].pop_front());
                check_run(&run, next, names).map_err(invalid)?;
                runs.push(run);
            }
            Instruction::Halt if number + 1 == instructions.len() => {
                if let Some(block) = unrun.iter().find_map(|queue| queue.front()) {
                    return Err(invalid(format!("halts before block {} has run", block.id)));
                }
                return Ok(Work::Blocks(runs));
            }
            Instruction::Halt => return Err(invalid("halts before the last instruction".into())),
            Instruction::Opaque { opcode } => {
                return Err(invalid(format!("unknown opcode {opcode:#06x} in a program of known ones")));
            }
        }
    }
    Err(place.invalid("the last instruction is not a halt"))
}

/// Checks an instruction against the block that comes next on its queue.
fn check_run(run: &RunBlock, next: Option<&DmaBlock>, names: &Names<'_>) -> Result<(), String> {
    let Some(block) = next.filter(|block| block.id == run.block) else {
        return Err(format!("block {} does not come next on ring {}", run.block, run.queue));
    };
    if block.pairs != run.pairs {
        return Err(format!("{} descriptor pairs, but block {} has {}", run.pairs, block.id, block.pairs));
    }
    if block.op != DmaOp::Copy {
        return Err(format!("block {} is {:?}, only copies can be run", block.id, block.op));
    }
    let on_chip = block
        .copies
        .iter()
        .flat_map(|copy| [copy.from(), copy.to()])
        .find(|id| names.vars[id.0 as usize].kind == VarKind::StateBuffer);
    match on_chip {
        Some(id) => Err(format!(
            "block {} uses {}, which is not in device memory",
            block.id,
            Quoted(&names.vars[id.0 as usize].name)
        )),
        None => Ok(()),
    }
}

/// Refuses a program whose blocks wait for something that never happens.
///
/// Semaphores only grow during an execution, so running whatever can run finds out, in any order.
pub(super) fn check_all_can_start(file: Place<'_>, member: &str, program: &Program) -> Result<(), NeffError> {
    let mut semaphores = [0u32; SemaphoreId::COUNT as usize];
    let mut pending: Vec<(Engine, &[RunBlock])> = program
        .engines
        .iter()
        .filter_map(|engine| match &engine.work {
            Work::Blocks(runs) => Some((engine.engine, runs.as_slice())),
            Work::Idle | Work::Opaque => None,
        })
        .collect();
    loop {
        let mut progress = false;
        for (_, runs) in &mut pending {
            while let [run, rest @ ..] = *runs
                && run.waits.iter().all(|wait| semaphores[wait.semaphore.get() as usize] >= wait.at_least)
            {
                if let Some(signal) = run.signal {
                    semaphores[signal.get() as usize] += 1;
                }
                *runs = rest;
                progress = true;
            }
        }
        if !progress {
            break;
        }
    }
    let stuck = pending.iter().find_map(|&(engine, runs)| {
        let run = runs.first()?;
        let wait = run.waits.iter().find(|wait| semaphores[wait.semaphore.get() as usize] < wait.at_least)?;
        Some((engine, run, wait))
    });
    match stuck {
        Some((engine, run, wait)) => Err(file.member(member).invalid_key(
            engine_key(engine),
            format_args!(
                "block {} waits for semaphore {} to reach {}, it only gets to {}",
                run.block,
                wait.semaphore,
                wait.at_least,
                semaphores[wait.semaphore.get() as usize]
            ),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::neff::testing::{Container, engine};

    const SP: &str = "sg00/SP.json";

    #[test]
    fn foreign_instructions_are_opaque_and_need_no_order() {
        let mut foreign = vec![0; 128];
        foreign[..2].copy_from_slice(&[0xB1, 0x10]);
        let neff = Container::small().member("sg00/PE.bin", foreign).parse().unwrap();
        assert_eq!(engine(&neff, Engine::Pe).work, Work::Opaque);
        assert_eq!(
            Container::small().member("sg00/PE.bin", vec![0xB1; 65]).refused(),
            "f: sg00/PE.bin: 65 bytes, not a multiple of instructions of 64"
        );
    }

    #[test]
    fn instructions_have_to_fit_the_blocks() {
        let sp_blocks = |edit: &dyn Fn(&mut Value)| {
            let settings = Container::small();
            let mut block = json!({
                "queue": "q_out", "id": 1, "desc": [
                    { "from": "keep", "from_sizes": [2048], "from_steps": [1], "to": "y", "to_sizes": [2048], "to_steps": [1] },
                    { "from": "k", "from_sizes": [5], "from_steps": [1], "to": "y", "to_off": 2048, "to_sizes": [5], "to_steps": [1] },
                ],
            });
            edit(&mut block);
            settings.json(SP, "/dma/0", block)
        };
        assert!(sp_blocks(&|_| ()).parse().is_ok());
        let refused = |edit: &dyn Fn(&mut Value)| sp_blocks(edit).refused();
        assert_eq!(
            refused(&|block| block["id"] = json!(9)),
            "f: sg00/SP.bin: instruction 0: block 1 does not come next on ring 1"
        );
        assert_eq!(
            refused(&|block| drop(block["desc"].as_array_mut().unwrap().pop())),
            "f: sg00/SP.bin: instruction 0: 2 descriptor pairs, but block 1 has 1"
        );
        assert_eq!(
            refused(&|block| block["op"] = json!("add")),
            "f: sg00/SP.bin: instruction 0: block 1 is Add, only copies can be run"
        );
        assert_eq!(
            refused(&|block| block["desc"][1]["from"] = json!("sb")),
            "f: sg00/SP.bin: instruction 0: block 1 uses `sb`, which is not in device memory"
        );
    }

    #[test]
    fn programs_have_to_be_complete() {
        let binary = engine(&Container::small().parse().unwrap(), Engine::Sp).instructions.to_vec();
        let (run, halt) = binary.split_at(64);
        let refused =
            |instructions: Vec<u8>| Container::small().member("sg00/SP.bin", instructions).refused();
        assert_eq!(refused(run.to_vec()), "f: sg00/SP.bin: the last instruction is not a halt");
        assert_eq!(refused(halt.to_vec()), "f: sg00/SP.bin: instruction 0: halts before block 1 has run");
        assert_eq!(
            refused([halt, run].concat()),
            "f: sg00/SP.bin: instruction 0: halts before the last instruction"
        );
        assert_eq!(
            refused([run, run, halt].concat()),
            "f: sg00/SP.bin: instruction 1: block 1 does not come next on ring 1"
        );
        let foreign = [0xB1; 64];
        assert_eq!(
            refused([run, &foreign[..], halt].concat()),
            "f: sg00/SP.bin: instruction 1: unknown opcode 0xb1b1 in a program of known ones"
        );
    }

    #[test]
    fn waits_that_never_end_are_refused() {
        let mut binary = engine(&Container::small().parse().unwrap(), Engine::Sp).instructions.to_vec();
        binary[20] = 2;
        assert_eq!(
            Container::small().member("sg00/SP.bin", binary).refused(),
            "f: sg00/def.json: sp: block 1 waits for semaphore 3 to reach 2, it only gets to 1"
        );
    }
}
