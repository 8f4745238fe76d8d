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

use std::collections::HashMap;

use sluice_core::dma::TemplateAddr;
use sluice_core::fmap::VarId;
use sluice_core::mmio::Engine;

use super::Source;
use crate::neff::error::{NeffError, Place, Quoted};
use crate::neff::isa::{self, INSTRUCTION_BYTES, Instruction, RunBlock};
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
    /// Descriptor pairs that the program may still have.
    pairs_left: u64,
    max_pairs: u64,
}

impl<'a> Names<'a> {
    pub(super) fn of(vars: &'a [Var], queues: &'a [Queue], max_pairs: u64) -> Self {
        let ids = vars.iter().map(|var| (var.name.as_str(), var.id)).collect();
        Self { vars, ids, queues, pairs_left: max_pairs, max_pairs }
    }
}

/// Reads one engine of a definition.
pub(super) fn read(
    source: &Source<'_>,
    definition: &Node<'_, '_>,
    engine: Engine,
    names: &mut Names<'_>,
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
    let settings = Json::parse(place, settings, source.json_limits)?;
    let settings = Node::root(place, &settings);
    super::add_tables(&settings, tables)?;
    let blocks = match settings.get("dma")? {
        Some(list) => read_blocks(&list, engine, names)?,
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
    Ok(EngineProgram { engine, instructions: instructions.to_vec(), work, blocks })
}

fn read_blocks(
    list: &Node<'_, '_>,
    engine: Engine,
    names: &mut Names<'_>,
) -> Result<Vec<DmaBlock>, NeffError> {
    let mut blocks = Vec::with_capacity(list.list()?.len());
    let mut seen: HashMap<u32, usize> = HashMap::new();
    for (index, node) in list.list()?.enumerate() {
        let block = read_block(&node, engine, names)?;
        if let Some(first) = seen.insert(block.id, index) {
            return Err(node.invalid(format_args!("block id {} is taken by block {first}", block.id)));
        }
        blocks.push(block);
    }
    Ok(blocks)
}

fn read_block(node: &Node<'_, '_>, engine: Engine, names: &mut Names<'_>) -> Result<DmaBlock, NeffError> {
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
        let more = copy.pairs_up_to(names.pairs_left).ok_or_else(|| {
            node.invalid(format_args!(
                "with block {id} the program has more than {} descriptor pairs, the limit",
                names.max_pairs
            ))
        })?;
        names.pairs_left -= more;
        pairs += more;
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
    let (instructions, rest) = binary.as_chunks::<INSTRUCTION_BYTES>();
    if !rest.is_empty() {
        return Err(place.invalid(format_args!(
            "{} bytes, not a multiple of instructions of {INSTRUCTION_BYTES}",
            binary.len()
        )));
    }
    match instructions.first() {
        None => return Ok(Work::Idle),
        Some(first) if !isa::is_ours(first) => return Ok(Work::Opaque),
        Some(_) => {}
    }
    let mut runs = Vec::new();
    let mut unrun: Vec<std::collections::VecDeque<&DmaBlock>> = vec![Default::default(); names.queues.len()];
    for block in blocks {
        unrun[block.queue].push_back(block);
    }
    for (number, raw) in instructions.iter().enumerate() {
        let invalid = |text: String| place.invalid_key(format!("instruction {number}"), text);
        match Instruction::decode(raw).map_err(invalid)? {
            Instruction::Run(run) => {
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
                && run.waits.iter().all(|wait| semaphores[wait.semaphore.get() as usize] >= wait.value)
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
        let wait = run.waits.iter().find(|wait| semaphores[wait.semaphore.get() as usize] < wait.value)?;
        Some((engine, run, wait))
    });
    match stuck {
        Some((engine, run, wait)) => Err(file.member(member).invalid_key(
            engine_key(engine),
            format_args!(
                "block {} waits for semaphore {} to reach {}, it only gets to {}",
                run.block,
                wait.semaphore,
                wait.value,
                semaphores[wait.semaphore.get() as usize]
            ),
        )),
        None => Ok(()),
    }
}
