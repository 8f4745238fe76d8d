//! The engines of a program: instructions, static DMA lists, and whether the two fit.
//!
//! A definition names two members per engine: its settings with the list `dma`, and its instructions. One of them
//! missing is not an error; such an engine is empty. A block of `dma` has
//!
//! | key | meaning |
//! |---|---|
//! | `queue` or `instance_name` | queue of this engine |
//! | `id` | number of the block |
//! | `name` | readable name, optional |
//! | `op` | `copy` where absent |
//! | `desc` | list of copies: `from` or `from_arr` with one name, `from_off`, `from_sizes`, `from_steps`, and the same with `to` |
//!
//! The container facts leave the names of the offsets, the unit of sizes and steps and the name of a block open;
//! those are ours.

use std::collections::{HashMap, VecDeque};

use sluice_core::dma::TemplateAddr;
use sluice_core::exec::{INSTRUCTION_BYTES, Instruction, InstructionBytes, RunBlock};
use sluice_core::fmap::VarId;
use sluice_core::mmio::Engine;
use zerocopy::FromBytes as _;

use super::Source;
use crate::neff::error::{NeffError, Place, Quoted};
use crate::neff::json::{Json, Node};
use crate::neff::pattern::{DmaCopy, Pattern};
use crate::neff::program::{
    DmaBlock, DmaOp, EngineProgram, Program, Queue, Tables, Var, VarKind, Work, engine_key,
};

/// What engines refer to.
pub(super) struct Names<'a> {
    vars: &'a [Var],
    ids: HashMap<&'a str, VarId>,
    queues: &'a [Queue],
}

impl<'a> Names<'a> {
    pub(super) fn of(vars: &'a [Var], queues: &'a [Queue]) -> Self {
        let ids = vars.iter().map(|var| (var.name.as_str(), var.id)).collect();
        Self { vars, ids, queues }
    }
}

/// Reads one engine of a definition.
pub(super) fn read(
    source: &Source<'_>,
    definition: &Node<'_, '_>,
    engine: Engine,
    names: &Names<'_>,
    tables: &mut Tables,
) -> Result<EngineProgram, NeffError> {
    let instruction_key = format!("{}_instr", engine_key(engine));
    let Some(settings_name) = definition.get(engine_key(engine))? else {
        tracing::warn!(
            engine = engine_key(engine),
            subgraph = source.folder,
            "engine missing, it stays empty"
        );
        return Ok(EngineProgram { engine, instructions: Vec::new(), work: Work::Idle, blocks: Vec::new() });
    };
    let (settings_member, settings) = source.member(&settings_name)?;
    let place = source.file.member(&settings_member);
    let settings = Json::parse(place, settings, &source.budget.json)?;
    let settings = Node::root(place, &settings);
    super::add_tables(&settings, tables)?;
    let blocks = match settings.get("dma")? {
        Some(list) => read_blocks(source, &list, engine, names)?,
        None => Vec::new(),
    };
    let named = definition.get(&instruction_key)?;
    let Some(binary_name) = named.or(settings.get("instr")?) else {
        tracing::warn!(engine = engine_key(engine), subgraph = source.folder, "engine without instructions");
        return Ok(EngineProgram { engine, instructions: Vec::new(), work: Work::Idle, blocks });
    };
    let (binary_member, instructions) = source.member(&binary_name)?;
    let place = source.file.member(&binary_member);
    let work = read_work(place, instructions, &blocks, names)?;
    let instructions = source.keep(&binary_name, instructions)?;
    Ok(EngineProgram { engine, instructions, work, blocks })
}

fn read_blocks(
    source: &Source<'_>,
    list: &Node<'_, '_>,
    engine: Engine,
    names: &Names<'_>,
) -> Result<Vec<DmaBlock>, NeffError> {
    let mut blocks = Vec::with_capacity(list.list()?.len());
    let mut seen: HashMap<u32, usize> = HashMap::new();
    for (index, node) in list.list()?.enumerate() {
        let block = read_block(source, &node, engine, names)?;
        if let Some(first) = seen.insert(block.id, index) {
            return Err(node.invalid(format_args!("block id {} is taken by block {first}", block.id)));
        }
        blocks.push(block);
    }
    Ok(blocks)
}

fn read_block(
    source: &Source<'_>,
    node: &Node<'_, '_>,
    engine: Engine,
    names: &Names<'_>,
) -> Result<DmaBlock, NeffError> {
    let queue = match node.get("queue")? {
        Some(queue) => read_queue(&queue, engine, names)?,
        None => read_queue(&node.need("instance_name")?, engine, names)?,
    };
    let id = node.need("id")?.at_most(u32::MAX.into())? as u32;
    let op = match node.get("op")? {
        None => DmaOp::Copy,
        Some(op) => match op.text()? {
            "copy" => DmaOp::Copy,
            "fma" => DmaOp::Fma,
            "add" => DmaOp::Add,
            "min" => DmaOp::Min,
            "max" => DmaOp::Max,
            "transpose" => DmaOp::Transpose,
            other => return Err(op.invalid(format_args!("unknown operation {}", Quoted(other)))),
        },
    };
    let name = node.get("name")?.map(|name| name.text().map(str::to_owned)).transpose()?;
    let desc = node.need("desc")?;
    if desc.list()?.len() == 0 {
        return Err(desc.invalid(format_args!("block {id} moves nothing")));
    }
    let mut copies = Vec::with_capacity(desc.list()?.len());
    let mut pairs = 0;
    for node in desc.list()? {
        let copy = read_copy(&node, id, names)?;
        let left = source.budget.pairs.left();
        let more = copy.pairs_up_to(left).and_then(|more| source.budget.pairs.take(more).ok().map(|()| more));
        pairs += more.ok_or_else(|| {
            node.invalid(format_args!(
                "with block {id} the container has more than {} descriptor pairs, the limit",
                source.budget.pairs.limit()
            ))
        })?;
        copies.push(copy);
    }
    let pairs = u32::try_from(pairs)
        .map_err(|_| desc.invalid(format_args!("block {id} has {pairs} descriptor pairs")))?;
    Ok(DmaBlock { id, name, queue, op, copies, pairs })
}

fn read_queue(node: &Node<'_, '_>, engine: Engine, names: &Names<'_>) -> Result<usize, NeffError> {
    let name = node.text()?;
    let index = names
        .queues
        .binary_search_by(|queue| queue.name.as_str().cmp(name))
        .map_err(|_| node.invalid(format_args!("no queue {}", Quoted(name))))?;
    let queue = &names.queues[index];
    if queue.owner != engine {
        return Err(node.invalid(format_args!(
            "queue {} belongs to {}, not to {}",
            Quoted(name),
            engine_key(queue.owner),
            engine_key(engine)
        )));
    }
    if queue.ring.is_none() {
        return Err(node.invalid(format_args!("queue {} is dynamic and has no static lists", Quoted(name))));
    }
    Ok(index)
}

fn read_copy(node: &Node<'_, '_>, block: u32, names: &Names<'_>) -> Result<DmaCopy, NeffError> {
    let from = match (node.get("from")?, node.get("from_arr")?) {
        (Some(name), None) => read_side(node, &name, ["from_off", "from_sizes", "from_steps"], block, names)?,
        (None, Some(list)) if list.list()?.len() == 1 => {
            // One source has the same meaning in either form.
            let name = list.list()?.next().ok_or_else(|| list.invalid("is empty"))?;
            read_side(node, &name, ["from_off", "from_sizes", "from_steps"], block, names)?
        }
        (None, Some(list)) => {
            return Err(list.invalid(format_args!("{} sources, supported is one", list.list()?.len())));
        }
        _ => return Err(node.invalid("want one of the keys `from` and `from_arr`")),
    };
    let to = read_side(node, &node.need("to")?, ["to_off", "to_sizes", "to_steps"], block, names)?;
    DmaCopy::new(from.0, from.1, to.0, to.1)
        .map_err(|error| node.invalid(format_args!("block {block}: {error}")))
}

fn read_side(
    node: &Node<'_, '_>,
    name: &Node<'_, '_>,
    [offset, sizes, steps]: [&str; 3],
    block: u32,
    names: &Names<'_>,
) -> Result<(VarId, Pattern), NeffError> {
    let var_name = name.text()?;
    let id = *names
        .ids
        .get(var_name)
        .ok_or_else(|| name.invalid(format_args!("block {block}: no variable {}", Quoted(var_name))))?;
    let offset = node.get(offset)?.map_or(Ok(0), |offset| offset.u64())?;
    let sizes = node.need(sizes)?;
    let pattern =
        Pattern::new(offset, &sizes.numbers()?, &node.need(steps)?.numbers()?).map_err(|error| {
            sizes.invalid(format_args!("block {block}, variable {}: {error}", Quoted(var_name)))
        })?;
    let var = &names.vars[id.0 as usize];
    let limit = match var.kind {
        VarKind::List { .. } => 0,
        // On chip; its own layout decides.
        VarKind::StateBuffer => u64::MAX,
        _ => var.size_bytes.min(TemplateAddr::SPAN_BYTES),
    };
    if pattern.end_bytes() > limit {
        return Err(name.invalid(format_args!(
            "block {block} reaches byte {} of {}, which has {limit} to reach",
            pattern.end_bytes(),
            Quoted(var_name)
        )));
    }
    Ok((id, pattern))
}

/// Decides what the instructions are, and checks ours against the blocks.
fn read_work(
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
    let mut semaphores = [0u32; 256];
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
    use sluice_core::exec::SemaphoreWait;
    use sluice_core::mmio::{QueueId, SemaphoreId};

    use super::*;
    use crate::neff::testing::Container;
    use crate::neff::{Neff, NeffFault, ReadOptions};

    const POOL: &str = "sg00/Pool.json";
    const SP: &str = "sg00/SP.json";

    fn engine(neff: &Neff, engine: Engine) -> &EngineProgram {
        &neff.programs[0].engines[engine.index()]
    }

    #[test]
    fn blocks_and_instructions_arrive_as_packed() {
        let neff = Container::small().parse().unwrap();
        let sp = engine(&neff, Engine::Sp);
        let block = &sp.blocks[0];
        assert_eq!(
            (block.id, block.name.as_deref(), block.op, block.pairs),
            (1, Some("store"), DmaOp::Copy, 2)
        );
        assert_eq!(neff.programs[0].queues[block.queue].name, "q_out");
        let semaphore = SemaphoreId::new(3).unwrap();
        assert_eq!(
            sp.work,
            Work::Blocks(vec![RunBlock {
                queue: QueueId::new(1).unwrap(),
                block: 1,
                pairs: 2,
                waits: [SemaphoreWait { semaphore, at_least: 1 }].into_iter().collect(),
                signal: None,
                kernel: 77,
            }])
        );
        let pool = engine(&neff, Engine::Pool);
        assert_eq!(pool.blocks[0].copies[0].transfers().count(), 64);
        assert_eq!((engine(&neff, Engine::Pe).work.clone(), pool.instructions.len()), (Work::Idle, 128));
    }

    #[test]
    fn a_missing_engine_stays_empty() {
        let neff = Container::small().without_json("sg00/def.json", "/dve").parse().unwrap();
        assert_eq!(engine(&neff, Engine::Dve).work, Work::Idle);
        let neff = Container::small().without_json("sg00/def.json", "/dve_instr").parse().unwrap();
        assert_eq!(engine(&neff, Engine::Dve).work, Work::Idle, "named by the settings as well");
    }

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

    fn with(member: &str, pointer: &str, value: Value) -> String {
        Container::small().json(member, pointer, value).refused()
    }

    #[test]
    fn blocks_that_break_a_rule_are_named() {
        let last = 1u64 << 63;
        for (pointer, value, want) in [
            ("/dma/0/queue", json!("q_none"), "dma[0].queue: no queue `q_none`"),
            ("/dma/0/queue", json!("q_out"), "dma[0].queue: queue `q_out` belongs to sp, not to pool"),
            (
                "/dma/0/queue",
                json!("q_dyn"),
                "dma[0].queue: queue `q_dyn` is dynamic and has no static lists",
            ),
            ("/dma/0/id", json!(1u64 << 32), "dma[0].id: 4294967296 is more than 4294967295"),
            ("/dma/0/op", json!("xor"), "dma[0].op: unknown operation `xor`"),
            ("/dma/0/desc", json!([]), "dma[0].desc: block 0 moves nothing"),
            ("/dma/0/desc/0/from", json!("none"), "dma[0].desc[0].from: block 0: no variable `none`"),
            (
                "/dma/0/desc/0/from_arr",
                json!(["x"]),
                "dma[0].desc[0]: want one of the keys `from` and `from_arr`",
            ),
            (
                "/dma/0/desc/0/from_sizes",
                json!([64, 0]),
                "dma[0].desc[0].from_sizes: block 0, variable `x`: dimension 1 has size 0, a transfer of 0 bytes",
            ),
            (
                "/dma/0/desc/0/from_steps",
                json!([64]),
                "dma[0].desc[0].from_sizes: block 0, variable `x`: 2 sizes but 1 steps",
            ),
            (
                "/dma/0/desc/0/from_steps",
                json!([last, last]),
                "dma[0].desc[0].from_sizes: block 0, variable `x`: its length or last offset overflows 64 bits",
            ),
            (
                "/dma/0/desc/0/from_sizes",
                json!([64, 31]),
                "dma[0].desc[0]: block 0: source pattern has 1984 bytes, destination pattern 2048",
            ),
            (
                "/dma/0/desc/0/from_off",
                json!(33),
                "dma[0].desc[0].from: block 0 reaches byte 4097 of `x`, which has 4096 to reach",
            ),
            (
                "/dma/0/desc/0/to_off",
                json!(u64::MAX - 2048),
                "dma[0].desc[0].to: block 0 reaches byte 18446744073709551615 of `keep`, which has 4096 to reach",
            ),
        ] {
            assert_eq!(with(POOL, pointer, value), format!("f: sg00/Pool.json: {want}"));
        }
        let two = Container::small().without_json(POOL, "/dma/0/desc/0/from");
        assert_eq!(
            two.clone().json(POOL, "/dma/0/desc/0/from_arr", json!(["x", "k"])).refused(),
            "f: sg00/Pool.json: dma[0].desc[0].from_arr: 2 sources, supported is one"
        );
        assert!(two.json(POOL, "/dma/0/desc/0/from_arr", json!(["x"])).parse().is_ok());
    }

    #[test]
    fn offsets_that_no_template_can_carry_are_refused() {
        let far = json!([1u64 << 36]);
        let text = Container::small()
            .json("sg00/def.json", "/var/x/size", json!(1u64 << 40))
            .json(POOL, "/dma/0/desc/0/from_off", far[0].clone())
            .refused();
        assert!(text.contains("of `x`, which has 68719476736 to reach"), "{text}");
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
        let binary = engine(&Container::small().parse().unwrap(), Engine::Sp).instructions.clone();
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
        let mut binary = engine(&Container::small().parse().unwrap(), Engine::Sp).instructions.clone();
        binary[20] = 2;
        assert_eq!(
            Container::small().member("sg00/SP.bin", binary).refused(),
            "f: sg00/def.json: sp: block 1 waits for semaphore 3 to reach 2, it only gets to 1"
        );
    }

    #[test]
    fn block_ids_are_unique_in_their_engine() {
        let desc = json!([{ "from": "x", "from_sizes": [1], "from_steps": [1], "to": "keep", "to_sizes": [1], "to_steps": [1] }]);
        let block = |id: u32| json!({ "queue": "q_in", "id": id, "desc": desc });
        assert_eq!(
            with(POOL, "/dma", json!([block(4), block(4)])),
            "f: sg00/Pool.json: dma[1]: block id 4 is taken by block 0"
        );
    }

    #[test]
    fn the_number_of_descriptor_pairs_is_bounded() {
        let parse =
            |max_pairs| Container::small().parse_with(&ReadOptions { max_pairs, ..ReadOptions::default() });
        assert!(parse(66).is_ok());
        let error = parse(65).unwrap_err();
        assert_eq!(
            error.to_string(),
            "f: sg00/SP.json: dma[0].desc[1]: with block 1 the container has more than 65 descriptor pairs, the limit"
        );
        assert!(matches!(error.fault(), NeffFault::Invalid(_)));
        assert_eq!((error.member(), error.key()), (Some("sg00/SP.json"), Some("dma[0].desc[1]")));
    }
}
