//! The members of one physical core: definition, engine settings, instructions, constants.
//!
//! Names become numbers here: variables by their place in the spec, rings by the name order of the queues that have one,
//! blocks by their place among the blocks of the core.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use sluice_core::dma::TemplateAddr;
use sluice_core::exec::{Instruction, InstructionBytes, MAX_WAITS, RunBlock};
use sluice_core::fmap::VarId;
use sluice_core::mmio::{Engine, QueueId};
use zerocopy::IntoBytes as _;

use super::json_member;
use crate::neff::constant::array_file;
use crate::neff::error::{NeffError, Place, Quoted};
use crate::neff::pattern::{DmaCopy, Pattern};
use crate::neff::program::{CarveOut, engine_key};
use crate::neff::spec::{CopySpec, TpbSpec, VarSpec, WaitSpec};

/// Base names of the engine members, in engine order.
const ENGINE_MEMBERS: [(Engine, &str); Engine::COUNT] = [
    (Engine::Pe, "PE"),
    (Engine::Act, "Activation"),
    (Engine::Pool, "Pool"),
    (Engine::Dve, "DVE"),
    (Engine::Sp, "SP"),
];

/// One physical core of the spec, with its names resolved.
pub(super) struct Tpb<'a> {
    place: Place<'a>,
    number: usize,
    spec: &'a TpbSpec,
    target: &'a str,
    ids: HashMap<&'a str, VarId>,
    /// Name → owner and ring number.
    queues: HashMap<&'a str, (&'a str, Option<QueueId>)>,
}

/// What one engine gets.
#[derive(Default)]
struct EngineMembers {
    blocks: Vec<Value>,
    instructions: Vec<u8>,
}

impl<'a> Tpb<'a> {
    /// Gives the variables and queues of `spec` their numbers.
    pub(super) fn new(
        place: Place<'a>,
        number: usize,
        spec: &'a TpbSpec,
        target: &'a str,
    ) -> Result<Self, NeffError> {
        let key = |list, name| format!("tpb[{number}].{list}.{name}");
        let mut ids = HashMap::new();
        for (index, var) in spec.var.iter().enumerate() {
            if index > TemplateAddr::MAX_VAR.0 as usize {
                return Err(place.invalid_key(
                    key("var", var.name()),
                    format_args!("variable {index}, at most {} fit", TemplateAddr::MAX_VAR),
                ));
            }
            let id = VarId(index as u32);
            if ids.insert(var.name(), id).is_some() {
                return Err(place.invalid_key(key("var", var.name()), "appears twice"));
            }
        }
        // Rings are numbered in name order over the queues that have one.
        let mut by_name: Vec<_> = spec.queue.iter().collect();
        by_name.sort_by(|a, b| a.name.cmp(&b.name));
        let mut queues = HashMap::new();
        let mut rings = (0..QueueId::COUNT).map_while(|ring| QueueId::new(ring).ok());
        for queue in by_name {
            let ring = if queue.kind == "dynamic" { None } else { rings.next() };
            if queues.insert(queue.name.as_str(), (queue.owner.as_str(), ring)).is_some() {
                return Err(place.invalid_key(key("queue", &queue.name), "appears twice"));
            }
        }
        Ok(Self { place, number, spec, target, ids, queues })
    }

    fn key(&self, rest: &str) -> String {
        format!("tpb[{}].{rest}", self.number)
    }

    fn id(&self, key: &str, name: &str) -> Result<VarId, NeffError> {
        self.ids.get(name).copied().ok_or_else(|| {
            self.place.invalid_key(self.key(key), format_args!("no variable {}", Quoted(name)))
        })
    }

    /// Adds the members of the core, all in `folder`.
    pub(super) fn add_members(
        &self,
        folder: &str,
        members: &mut Vec<(String, Vec<u8>)>,
    ) -> Result<(), NeffError> {
        let mut vars = Map::new();
        let mut constants = Vec::new();
        for var in &self.spec.var {
            let id = self.id("var", var.name())?;
            let mut record = self.var_record(var)?;
            record["var_id"] = id.0.into();
            if let VarSpec::File { name, size, repeat } = var {
                let file_name = format!("const_{}.npy", id.0);
                record["file_name"] = file_name.as_str().into();
                constants.push((format!("{folder}/{file_name}"), name, *size, repeat));
            }
            vars.insert(var.name().into(), record);
        }
        let mut queues = Map::new();
        for queue in &self.spec.queue {
            queues.insert(
                queue.name.clone(),
                json!({
                    "type": queue.kind,
                    "owner": queue.owner,
                    "semaphore": queue.semaphore.0.get(),
                    "num_queues": 1,
                    "fabric_path": "main",
                }),
            );
        }
        let mut definition =
            json!({ "name": "definition", "version": "0.6", "var": vars, "dma_queue": queues });
        if self.target == "cayman" {
            let carve_out = CarveOut::EVENT_ACCELERATOR;
            definition["runtime_statebuffer_reservation"] = json!([{
                "type": "evtaccel",
                "base_partition": carve_out.base_partition,
                "partitions": carve_out.partitions,
                "offset": carve_out.offset_bytes,
                "size": carve_out.size_bytes,
            }]);
        }
        let engines = self.engines()?;
        for (engine, base) in ENGINE_MEMBERS {
            let (settings, binary) = (format!("{base}.json"), format!("{base}.bin"));
            definition[engine_key(engine)] = settings.as_str().into();
            definition[format!("{}_instr", engine_key(engine))] = binary.as_str().into();
            let (blocks, instructions) = engines
                .get(engine_key(engine))
                .map(|members| (members.blocks.as_slice(), members.instructions.clone()))
                .unwrap_or_default();
            members.push((
                format!("{folder}/{settings}"),
                json_member(&json!({ "name": settings, "instr": binary, "dma": blocks })),
            ));
            members.push((format!("{folder}/{binary}"), instructions));
        }
        members.push((format!("{folder}/def.json"), json_member(&definition)));
        // Last, when nothing else is left to be refused here: they may be large.
        for (member, name, size, repeat) in constants {
            members.push((member, array_file(&self.content(name, size, repeat)?)));
        }
        Ok(())
    }

    /// The record of a variable, without its number.
    fn var_record(&self, var: &VarSpec) -> Result<Value, NeffError> {
        let key = |field: &str| format!("var.{}.{field}", var.name());
        Ok(match var {
            VarSpec::Input(tensor) | VarSpec::Output(tensor) | VarSpec::Temporary(tensor) => {
                let kind = match var {
                    VarSpec::Input(_) => "input",
                    VarSpec::Output(_) => "output",
                    _ => "temporary",
                };
                let mut record = json!({ "type": kind, "size": tensor.size });
                let optional = [
                    ("alignment", tensor.alignment.map(Value::from)),
                    ("dtype", tensor.dtype.clone().map(Value::from)),
                    ("shape", tensor.shape.clone().map(Value::from)),
                ];
                for (key, value) in optional {
                    if let Some(value) = value {
                        record[key] = value;
                    }
                }
                record
            }
            VarSpec::Virtual { size, offset, backing, .. } => json!({
                "type": "virtual",
                "size": size,
                "backing_variable_off": offset,
                "backing_buf": backing.as_deref().unwrap_or("local"),
            }),
            VarSpec::File { size, .. } => json!({ "type": "file", "size": size, "fabric_path": "main" }),
            VarSpec::StateBuffer { .. } => json!({ "type": "state-buffer" }),
            VarSpec::Pointer { to, .. } => json!({
                "type": "pointer",
                "size": 8,
                "referenced_var_id": self.id(&key("to"), to)?.0,
            }),
            VarSpec::DgeTable { rows, .. } => {
                let ids = rows.iter().map(|row| self.id(&key("rows"), row).map(|id| id.0));
                json!({ "type": "dge-table", "list": ids.collect::<Result<Vec<_>, _>>()? })
            }
        })
    }

    /// The bytes of a constant.
    fn content(&self, name: &str, size: u64, repeat: &str) -> Result<Vec<u8>, NeffError> {
        let invalid = |text: &str| {
            let key = self.key(&format!("var.{name}.repeat"));
            self.place.invalid_key(key, format_args!("{}: {text}", Quoted(repeat)))
        };
        let digit = |digit: &u8| char::from(*digit).to_digit(16);
        let (pairs, rest) = repeat.as_bytes().as_chunks::<2>();
        if pairs.is_empty() || !rest.is_empty() {
            return Err(invalid("want pairs of hexadecimal digits"));
        }
        let unit = pairs
            .iter()
            .map(|[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8))
            .collect::<Option<Vec<u8>>>()
            .ok_or_else(|| invalid("want hexadecimal digits"))?;
        Ok(unit.into_iter().cycle().take(size as usize).collect())
    }

    /// Blocks and instructions by engine.
    fn engines(&self) -> Result<HashMap<&'a str, EngineMembers>, NeffError> {
        let mut engines: HashMap<&str, EngineMembers> = HashMap::new();
        for (number, block) in self.spec.block.iter().enumerate() {
            let label = block.name.as_deref().unwrap_or("unnamed");
            let key = format!("block[{number}] {}", Quoted(label));
            let invalid = |text: String| self.place.invalid_key(self.key(&key), text);
            let Some(&(owner, ring)) = self.queues.get(block.queue.as_str()) else {
                return Err(invalid(format!("no queue {}", Quoted(&block.queue))));
            };
            let Some(ring) = ring else {
                return Err(invalid(format!("queue {} is dynamic", Quoted(&block.queue))));
            };
            let mut pairs = 0;
            let mut desc = Vec::new();
            for copy in &block.copy {
                let to = &self.spec.var[self.id(&key, &copy.to)?.0 as usize];
                if let Some(read_only) = to.read_only() {
                    return Err(invalid(format!("copies to {}, which is {read_only}", Quoted(&copy.to))));
                }
                let (record, copied) = self.copy(&key, copy)?;
                pairs += copied
                    .pairs_up_to(u32::MAX.into())
                    .ok_or_else(|| invalid("has more than 2^32 descriptor pairs".into()))?;
                desc.push(record);
            }
            if block.wait.len() > MAX_WAITS {
                return Err(invalid(format!(
                    "waits for {} semaphores, at most {MAX_WAITS}",
                    block.wait.len()
                )));
            }
            let id = number as u32;
            let run = RunBlock {
                queue: ring,
                block: id,
                pairs: u32::try_from(pairs).map_err(|_| invalid(format!("has {pairs} descriptor pairs")))?,
                waits: block.wait.iter().map(WaitSpec::wait).collect(),
                signal: block.signal.map(|signal| signal.0),
                kernel: block.kernel.unwrap_or(id),
            };
            let engine = engines.entry(owner).or_default();
            let mut record = json!({ "queue": block.queue, "id": id, "op": "copy", "desc": desc });
            if let Some(name) = &block.name {
                record["name"] = name.as_str().into();
            }
            engine.blocks.push(record);
            engine.instructions.extend(InstructionBytes::encode(&Instruction::RunBlock(run)).as_bytes());
        }
        for engine in engines.values_mut() {
            engine.instructions.extend(InstructionBytes::encode(&Instruction::Halt).as_bytes());
        }
        Ok(engines)
    }

    fn copy(&self, block: &str, copy: &CopySpec) -> Result<(Value, DmaCopy), NeffError> {
        let invalid = |text: String| self.place.invalid_key(self.key(block), text);
        let total = |sizes: &Option<Vec<u64>>| {
            sizes.as_ref().and_then(|sizes| sizes.iter().try_fold(1u64, |all, &size| all.checked_mul(size)))
        };
        let bytes =
            copy.bytes.or_else(|| total(&copy.from_sizes)).or_else(|| total(&copy.to_sizes)).ok_or_else(
                || invalid(format!("copy to {} has neither bytes nor sizes", Quoted(&copy.to))),
            )?;
        if bytes == 0 {
            return Err(invalid(format!(
                "copy from {} to {} has 0 bytes",
                Quoted(&copy.from),
                Quoted(&copy.to)
            )));
        }
        let side = |name: &str, offset, sizes: &Option<Vec<u64>>, steps: &Option<Vec<u64>>| {
            let (sizes, steps) = match (sizes, steps) {
                (Some(sizes), Some(steps)) => (sizes.clone(), steps.clone()),
                (None, None) => (vec![bytes], vec![1]),
                _ => return Err(invalid(format!("{}: sizes and steps belong together", Quoted(name)))),
            };
            let pattern = Pattern::new(offset, &sizes, &steps)
                .map_err(|error| invalid(format!("{}: {error}", Quoted(name))))?;
            if pattern.len_bytes() != bytes {
                return Err(invalid(format!(
                    "{}: sizes {sizes:?} make {} bytes, the copy has {bytes}",
                    Quoted(name),
                    pattern.len_bytes()
                )));
            }
            Ok((sizes, steps, pattern))
        };
        let from = side(&copy.from, copy.from_off, &copy.from_sizes, &copy.from_steps)?;
        let to = side(&copy.to, copy.to_off, &copy.to_sizes, &copy.to_steps)?;
        let record = json!({
            "from": copy.from, "from_off": copy.from_off, "from_sizes": from.0, "from_steps": from.1,
            "to": copy.to, "to_off": copy.to_off, "to_sizes": to.0, "to_steps": to.1,
        });
        let copied = DmaCopy::new(self.id(block, &copy.from)?, from.2, self.id(block, &copy.to)?, to.2)
            .map_err(|error| invalid(error.to_string()))?;
        Ok((record, copied))
    }
}
