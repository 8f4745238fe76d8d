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
