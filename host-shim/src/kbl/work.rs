//! What the engines of a loaded model do in one execution, for reports and traces.

use std::collections::HashMap;

use sluice_core::exec::{CoreIndex, INSTRUCTION_BYTES};
use sluice_core::mmio::{QueueId, TpbId};

use super::contract::Contract;
use super::tasks::tensors_of;
use crate::neff::{DmaBlock, Program, RunBlock, Work};

/// What the simulated side of a device can do with an engine's program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Executability {
    /// The engine has no program.
    Idle,
    /// Every block of the program is carried out.
    Executed,
    /// The instructions are not ours: the engine completes after a set time and nothing is carried out.
    Opaque,
}

/// One engine of a loaded model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineReport {
    /// Its place on the device.
    pub core: CoreIndex,
    /// Instructions of 64 bytes.
    pub instructions: usize,
    /// What is carried out.
    pub executability: Executability,
}

/// One block that an engine runs per execution. An opaque program is one item without a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkItem {
    /// Where it runs.
    pub core: CoreIndex,
    /// Its place in the engine's program, from 1.
    pub ordinal: u32,
    /// Name of the block, or what stands for one.
    pub name: String,
    /// Number of the block; 0 for an opaque program.
    pub block: u32,
    /// Name and number of the queue; `None` for an opaque program.
    pub queue: Option<(String, QueueId)>,
    /// Number of the kernel.
    pub kernel: u32,
    /// Descriptor pairs.
    pub pairs: u32,
    /// Bytes that it moves.
    pub bytes: u64,
    /// Of the parts of inputs and outputs that it touches the names of the tensors, in the order of its arguments.
    pub args: Vec<String>,
}

impl EngineReport {
    pub(super) fn of(program: &Program, tpb: TpbId) -> Vec<Self> {
        let report = |engine: &crate::neff::EngineProgram| Self {
            core: CoreIndex::of(tpb, engine.engine),
            instructions: engine.instructions.len() / INSTRUCTION_BYTES,
            executability: match engine.work {
                Work::Idle => Executability::Idle,
                Work::Opaque => Executability::Opaque,
                Work::Blocks(_) => Executability::Executed,
            },
        };
        program.engines.iter().map(report).collect()
    }
}

impl WorkItem {
    /// The items of a program, engine by engine in program order.
    pub(super) fn of(program: &Program, contract: &Contract, tpb: TpbId) -> Vec<Self> {
        let mut items = Vec::new();
        for engine in &program.engines {
            let core = CoreIndex::of(tpb, engine.engine);
            let blocks: HashMap<u32, &DmaBlock> =
                engine.blocks.iter().map(|block| (block.id, block)).collect();
            match &engine.work {
                Work::Idle => {}
                Work::Opaque => items.push(Self::opaque(core, tensors_of(program, contract, None))),
                Work::Blocks(runs) => items.extend(runs.iter().zip(1..).map(|(run, ordinal)| {
                    let block = blocks.get(&run.block).copied();
                    let args = block.map(|block| tensors_of(program, contract, Some(block)));
                    Self { args: args.unwrap_or_default(), ..Self::block(program, core, ordinal, run, block) }
                })),
            }
        }
        items
    }

    fn opaque(core: CoreIndex, args: Vec<String>) -> Self {
        Self {
            core,
            ordinal: 1,
            name: "opaque program".into(),
            block: 0,
            queue: None,
            kernel: 0,
            pairs: 0,
            bytes: 0,
            args,
        }
    }

    fn block(
        program: &Program,
        core: CoreIndex,
        ordinal: u32,
        run: &RunBlock,
        block: Option<&DmaBlock>,
    ) -> Self {
        let name = block.and_then(|block| block.name.clone());
        let copies = block.map_or(&[][..], |block| &block.copies);
        Self {
            core,
            ordinal,
            name: name.unwrap_or_else(|| format!("block {}", run.block)),
            block: run.block,
            queue: block.map(|block| (program.queues[block.queue].name.clone(), run.queue)),
            kernel: run.kernel,
            pairs: run.pairs,
            bytes: copies.iter().map(|copy| copy.from_pattern().len_bytes()).sum(),
            args: Vec::new(),
        }
    }
}
