//! The DMA queues of a program: the object `dma_queue` of a definition.
//!
//! A queue with static lists gets a ring number, counted in name order: an instruction names the ring by it.

use sluice_core::mmio::{Engine, QueueId, SemaphoreId};

use crate::neff::error::{Bare, NeffError, Quoted};
use crate::neff::json::Node;
use crate::neff::program::{Queue, QueueKind, engine_key};

/// Most queues of a program (KBL facts).
const MAX_QUEUES: usize = 32;

/// Hardware queues behind one logical queue, and completion semaphores of one.
const MAX_QUEUE_SET: u64 = 16;

/// Reads all queues, sorted by name.
pub(super) fn read(queues: &Node<'_, '_>) -> Result<Vec<Queue>, NeffError> {
    let records = queues.object()?;
    if records.len() > MAX_QUEUES {
        return Err(queues.invalid(format_args!("{} queues, at most {MAX_QUEUES}", records.len())));
    }
    let mut rings = (0..QueueId::PROLOGUE.get()).map_while(|ring| QueueId::new(ring).ok());
    let mut all = Vec::with_capacity(records.len());
    for (name, record) in records {
        let mut queue = read_one(name, &record)?;
        if queue.kind != QueueKind::Dynamic {
            queue.ring = Some(rings.next().ok_or_else(|| {
                record.invalid(format_args!("is one more than the {} rings of a model", QueueId::PROLOGUE))
            })?);
        }
        all.push(queue);
    }
    Ok(all)
}

fn read_one(name: &str, record: &Node<'_, '_>) -> Result<Queue, NeffError> {
    record.check_key()?;
    let missing = |key: &str| record.invalid(format_args!("missing <{key}> in {}", Quoted(name)));
    let kind_node = record.get("type")?.ok_or_else(|| missing("type"))?;
    let kind = match kind_node.text()? {
        "in" => QueueKind::In,
        "out" => QueueKind::Out,
        "data" => QueueKind::Data,
        "act_load" => QueueKind::ActLoad,
        "embedding_update" => QueueKind::EmbeddingUpdate,
        "dynamic" => QueueKind::Dynamic,
        other => return Err(kind_node.invalid(format_args!("unknown queue type {}", Quoted(other)))),
    };
    let owner_node = record.get("owner")?.ok_or_else(|| missing("owner"))?;
    let owner_name = owner_node.text()?;
    let owner =
        Engine::ALL.into_iter().find(|&engine| engine_key(engine) == owner_name).ok_or_else(|| {
            owner_node.invalid(format_args!(
                "Invalid owner '{}' for DMA queue {}",
                Bare(owner_name),
                Quoted(name)
            ))
        })?;

    let semaphores = match (record.get("semaphore")?, record.get("semaphore_set")?) {
        (Some(one), None) => vec![read_semaphore(&one)?],
        (None, Some(set)) => {
            let count = set.list()?.len() as u64;
            if !(1..=MAX_QUEUE_SET).contains(&count) {
                return Err(set.invalid(format_args!("{count} semaphores, want 1 to {MAX_QUEUE_SET}")));
            }
            set.list()?.map(|item| read_semaphore(&item)).collect::<Result<_, _>>()?
        }
        (None, None) => return Err(missing("semaphore")),
        (Some(_), Some(_)) => {
            return Err(record.invalid("both semaphore and semaphore_set, want one of them"));
        }
    };

    if let Some(node) = record.get("num_queues")? {
        let hardware_queues = node.u64()?;
        if !(1..=MAX_QUEUE_SET).contains(&hardware_queues) {
            return Err(node.invalid(format_args!("{hardware_queues} queues, want 1 to {MAX_QUEUE_SET}")));
        }
        let single = matches!(kind, QueueKind::In | QueueKind::Out | QueueKind::EmbeddingUpdate);
        if single && hardware_queues > 1 {
            return Err(node.invalid(format_args!(
                "{hardware_queues} queues, but type {} has no queue-set instances",
                Quoted(kind_node.text()?)
            )));
        }
    }
    if let Some(node) = record.get("dynamic_dma")?
        && owner != Engine::Pool
    {
        return Err(node.invalid(format_args!("owner is {}, want `pool`", Quoted(owner_name))));
    }
    Ok(Queue { name: name.into(), kind, owner, semaphores, ring: None })
}

fn read_semaphore(node: &Node<'_, '_>) -> Result<SemaphoreId, NeffError> {
    let number = node.at_most(u32::MAX.into())? as u32;
    SemaphoreId::new(number).map_err(|error| node.invalid(error))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::neff::testing::Container;

    const DEF: &str = "sg00/def.json";

    fn with(key: &str, value: Value) -> String {
        Container::small().json(DEF, &format!("/dma_queue/q_in/{key}"), value).refused()
    }

    #[test]
    fn queues_come_in_name_order_and_dynamic_ones_have_no_ring() {
        let neff = Container::small().parse().unwrap();
        let queues: Vec<_> = neff.programs[0]
            .queues
            .iter()
            .map(|queue| (queue.name.as_str(), queue.kind, queue.owner, queue.ring.map(QueueId::get)))
            .collect();
        assert_eq!(
            queues,
            [
                ("q_dyn", QueueKind::Dynamic, Engine::Pool, None),
                ("q_in", QueueKind::In, Engine::Pool, Some(0)),
                ("q_out", QueueKind::Out, Engine::Sp, Some(1)),
            ]
        );
    }

    #[test]
    fn missing_keys_have_the_words_of_the_reference() {
        for key in ["type", "owner", "semaphore"] {
            assert_eq!(
                Container::small().without_json(DEF, &format!("/dma_queue/q_in/{key}")).refused(),
                format!("f: sg00/def.json: dma_queue.q_in: missing <{key}> in `q_in`")
            );
        }
    }

    #[test]
    fn values_that_break_a_rule_are_named() {
        let set = |count: u64| Value::from((0..count).collect::<Vec<_>>());
        for (key, value, want) in [
            ("type", json!("outward"), "q_in.type: unknown queue type `outward`"),
            ("owner", json!("gpsimd"), "q_in.owner: Invalid owner 'gpsimd' for DMA queue `q_in`"),
            ("semaphore", json!(256), "q_in.semaphore: no semaphore 256: there are 256"),
            ("semaphore", json!(1u64 << 40), "q_in.semaphore: 1099511627776 is more than 4294967295"),
            ("semaphore_set", set(2), "q_in: both semaphore and semaphore_set, want one of them"),
            ("num_queues", json!(0), "q_in.num_queues: 0 queues, want 1 to 16"),
            ("num_queues", json!(17), "q_in.num_queues: 17 queues, want 1 to 16"),
            ("num_queues", json!(2), "q_in.num_queues: 2 queues, but type `in` has no queue-set instances"),
        ] {
            assert_eq!(with(key, value), format!("f: sg00/def.json: dma_queue.{want}"));
        }
        for count in [0, 17] {
            let container = Container::small().without_json(DEF, "/dma_queue/q_in/semaphore").json(
                DEF,
                "/dma_queue/q_in/semaphore_set",
                set(count),
            );
            assert_eq!(
                container.refused(),
                format!("f: sg00/def.json: dma_queue.q_in.semaphore_set: {count} semaphores, want 1 to 16")
            );
        }
        let scratch = json!({ "SB_scratch_partition_offset": 0, "SB_scratch_partition_size": 16384 });
        assert_eq!(
            Container::small().json(DEF, "/dma_queue/q_out/dynamic_dma", scratch.clone()).refused(),
            "f: sg00/def.json: dma_queue.q_out.dynamic_dma: owner is `sp`, want `pool`"
        );
        assert!(Container::small().json(DEF, "/dma_queue/q_dyn/dynamic_dma", scratch).parse().is_ok());
    }

    #[test]
    fn rings_and_queues_are_limited() {
        let add = |count: usize, kind: &str| {
            (0..count).fold(Container::small(), |container, number| {
                let queue = json!({ "type": kind, "owner": "act", "semaphore_set": [1, 2], "num_queues": 2 });
                container.json(DEF, &format!("/dma_queue/r{number:02}"), queue)
            })
        };
        assert!(add(12, "data").parse().is_ok());
        assert_eq!(
            add(13, "data").refused(),
            "f: sg00/def.json: dma_queue.r12: is one more than the 14 rings of a model"
        );
        assert!(add(29, "dynamic").parse().is_ok());
        assert_eq!(add(30, "dynamic").refused(), "f: sg00/def.json: dma_queue: 33 queues, at most 32");
    }
}
