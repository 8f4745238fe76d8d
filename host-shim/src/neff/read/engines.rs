//! The engines of a program and their static DMA lists.
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

use super::tables::TableReader;
use super::{Source, work};
use crate::neff::bytes::Bytes;
use crate::neff::error::{NeffError, Quoted};
use crate::neff::json::{Json, Node};
use crate::neff::pattern::{DmaCopy, Pattern};
use crate::neff::program::{DmaBlock, DmaOp, EngineProgram, Queue, Var, VarKind, Work, engine_key};

/// What engines refer to.
pub(super) struct Names<'a> {
    pub(super) vars: &'a [Var],
    ids: HashMap<&'a str, VarId>,
    pub(super) queues: &'a [Queue],
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
    tables: &mut TableReader,
) -> Result<EngineProgram, NeffError> {
    let instruction_key = format!("{}_instr", engine_key(engine));
    let Some(settings_name) = definition.get(engine_key(engine))? else {
        tracing::warn!(
            engine = engine_key(engine),
            subgraph = source.folder,
            "engine missing, it stays empty"
        );
        return Ok(EngineProgram {
            engine,
            instructions: Bytes::default(),
            work: Work::Idle,
            blocks: Vec::new(),
        });
    };
    let (settings_member, settings) = source.member(&settings_name)?;
    let place = source.file.member(&settings_member);
    let settings = Json::parse(place, settings, &source.budget.json)?;
    let settings = Node::root(place, &settings);
    tables.add(&settings)?;
    let blocks = match settings.get("dma")? {
        Some(list) => read_blocks(source, &list, engine, names)?,
        None => Vec::new(),
    };
    let named = definition.get(&instruction_key)?;
    let Some(binary_name) = named.or(settings.get("instr")?) else {
        tracing::warn!(engine = engine_key(engine), subgraph = source.folder, "engine without instructions");
        return Ok(EngineProgram { engine, instructions: Bytes::default(), work: Work::Idle, blocks });
    };
    let (binary_member, instructions) = source.member(&binary_name)?;
    let place = source.file.member(&binary_member);
    let work = work::read(place, instructions, &blocks, names)?;
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
    let name = node.get("name")?.map(|name| name.name().map(str::to_owned)).transpose()?;
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
    let to_name = node.need("to")?;
    let to = read_side(node, &to_name, ["to_off", "to_sizes", "to_steps"], block, names)?;
    if let Some(read_only) = names.vars[to.0.0 as usize].kind.read_only() {
        let var_name = Quoted(to_name.text()?);
        return Err(to_name.invalid(format_args!("block {block} copies to {var_name}, which is {read_only}")));
    }
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_core::exec::{RunBlock, SemaphoreWait};
    use sluice_core::mmio::{QueueId, SemaphoreId};

    use super::*;
    use crate::neff::testing::{Container, engine};
    use crate::neff::{NeffFault, ReadOptions};

    const POOL: &str = "sg00/Pool.json";

    fn with(member: &str, pointer: &str, value: Value) -> String {
        Container::small().json(member, pointer, value).refused()
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
    fn what_programs_only_read_is_no_destination() {
        let desc = |to: &str| json!({ "from": "keep", "from_sizes": [4], "from_steps": [1], "to": to, "to_sizes": [4], "to_steps": [1] });
        for (to, want) in [
            ("x", "`x`, which is an input: programs only read it"),
            ("k", "`k`, which is a constant: programs only read it"),
            ("at_x", "`at_x`, which is of addresses: programs only read it"),
            ("all", "`all`, which is of addresses: programs only read it"),
        ] {
            let text = with(POOL, "/dma/0/desc/0", desc(to));
            assert_eq!(text, format!("f: sg00/Pool.json: dma[0].desc[0].to: block 0 copies to {want}"));
        }
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
