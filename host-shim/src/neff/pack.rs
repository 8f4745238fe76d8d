//! From the text form of a model to a container.
//!
//! ```text
//! spec ──► names become numbers   ──► members ──► container ──► read back by our own reader
//!          content becomes members
//!          waits become instructions
//! ```
//!
//! The reader's rules are not repeated here: what is packed is read back before it is handed out, so a container that
//! the reader refuses is never written.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};
use sluice_core::dma::TemplateAddr;
use sluice_core::exec::{Instruction, InstructionBytes, MAX_WAITS, RunBlock};
use sluice_core::fmap::VarId;
use sluice_core::mmio::{Engine, QueueId};

use zerocopy::IntoBytes as _;

use super::constant::array_file;
use super::error::{NeffError, Place, Quoted};
use super::header::Package;
use super::pattern::{DmaCopy, Pattern};
use super::program::{CarveOut, engine_key};
use super::spec::{CopySpec, Spec, TpbSpec, VarSpec, WaitSpec};
use super::write::{self, Identity};
use super::{Neff, ReadOptions};

/// Packs the model that `text` describes; errors call it `name`.
pub fn pack(name: &str, text: &str) -> Result<Vec<u8>, NeffError> {
    pack_as(name, text, Package::Gzip)
}

/// The same, with a choice how the payload is stored.
pub fn pack_as(name: &str, text: &str, package: Package) -> Result<Vec<u8>, NeffError> {
    let place = Place::file(name);
    let spec = Spec::parse(place, text)?;
    let cores = spec.tpb.len();
    let virtual_core_size = spec.model.virtual_core_size.unwrap_or(cores.clamp(1, 2) as u32);
    let cores_requested = cores.div_ceil(virtual_core_size.max(1) as usize);
    let cores_requested = u8::try_from(cores_requested)
        .map_err(|_| place.invalid_key("tpb", format_args!("{cores} physical cores")))?;

    let mut members = Vec::new();
    let mut graphs = Vec::new();
    for (number, tpb) in spec.tpb.iter().enumerate() {
        let folder = format!("sg{number:02}");
        graphs.push(json!({ "name": folder, "definition": format!("{folder}/def.json") }));
        Tpb::new(place, number, tpb, &spec.model.target)?.add_members(&folder, &mut members)?;
    }
    members.push((
        KERNEL_MEMBER.into(),
        json_member(&json!({ "graphs": graphs, "version": "0.5", "target": spec.model.target })),
    ));
    members.push(("neff.json".into(), json_member(&top_graph(place, &spec)?)));

    let identity = Identity { name: &spec.model.name, virtual_core_size, cores_requested };
    let file = write::container(&identity, package, &members)
        .map_err(|error| place.invalid(format_args!("cannot be put into an archive: {error}")))?;
    Neff::parse(name, &file, &ReadOptions { verify_hash: true, ..ReadOptions::default() })?;
    Ok(file)
}

const KERNEL_MEMBER: &str = "kelf-0.json";

/// Base names of the engine members, in engine order.
const ENGINE_MEMBERS: [(Engine, &str); Engine::COUNT] = [
    (Engine::Pe, "PE"),
    (Engine::Act, "Activation"),
    (Engine::Pool, "Pool"),
    (Engine::Dve, "DVE"),
    (Engine::Sp, "SP"),
];

fn json_member(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// The graph of the whole model: its inputs, one kernel, its outputs.
fn top_graph(place: Place<'_>, spec: &Spec) -> Result<Value, NeffError> {
    let mut inputs = Vec::new();
    let mut outputs = Vec::new();
    let mut known: HashMap<&str, (usize, &VarSpec)> = HashMap::new();
    for (number, tpb) in spec.tpb.iter().enumerate() {
        for var in &tpb.var {
            let (list, tensor) = match var {
                VarSpec::Input(tensor) => (&mut inputs, tensor),
                VarSpec::Output(tensor) => (&mut outputs, tensor),
                _ => continue,
            };
            match known.get(tensor.name.as_str()) {
                None => list.push(tensor),
                Some((_, first)) if same_tensor(first, var) => {}
                Some((first, _)) => {
                    return Err(place.invalid_key(
                        format!("tpb[{number}].var.{}", tensor.name),
                        format_args!("differs in type, size or form from the one of tpb[{first}]"),
                    ));
                }
            }
            known.entry(&tensor.name).or_insert((number, var));
        }
    }
    let tensors = || inputs.iter().chain(&outputs);
    let mut nodes: Vec<Value> = inputs
        .iter()
        .map(|input| {
            json!({ "op": "null", "name": input.name, "inputs": [], "output_names": [input.name], "is_param": "0" })
        })
        .collect();
    nodes.push(json!({
        "op": "tvm_op",
        "name": "sg_core",
        "attrs": {
            "func_name": "__kelf",
            "flatten_data": "0",
            "kelf": KERNEL_MEMBER,
            "num_inputs": inputs.len().to_string(),
            "num_outputs": outputs.len().to_string(),
        },
        "inputs": (0..inputs.len()).map(|row| [row, 0, 0]).collect::<Vec<_>>(),
        "output_names": outputs.iter().map(|output| &output.name).collect::<Vec<_>>(),
    }));
    let shapes: Vec<Vec<u64>> =
        tensors().map(|tensor| tensor.shape.clone().unwrap_or_else(|| vec![tensor.size])).collect();
    let dtypes: Vec<&str> = tensors().map(|tensor| tensor.dtype.as_deref().unwrap_or("uint8")).collect();
    let storage: Vec<usize> = (0..tensors().count()).collect();
    let mut rows: Vec<usize> = (0..=inputs.len()).collect();
    rows.push(inputs.len() + outputs.len());
    Ok(json!({
        "nodes": nodes,
        "arg_nodes": (0..inputs.len()).collect::<Vec<_>>(),
        "heads": (0..outputs.len()).map(|head| [inputs.len(), head, 0]).collect::<Vec<_>>(),
        "node_row_ptr": rows,
        "attrs": {
            "shape": ["list_shape", shapes],
            "dltype": ["list_str", dtypes],
            "storage_id": ["list_int", storage],
        },
    }))
}

fn same_tensor(a: &VarSpec, b: &VarSpec) -> bool {
    match (a, b) {
        (VarSpec::Input(a), VarSpec::Input(b)) | (VarSpec::Output(a), VarSpec::Output(b)) => {
            (a.size, &a.dtype, &a.shape) == (b.size, &b.dtype, &b.shape)
        }
        _ => false,
    }
}

/// One physical core of the spec, with its names resolved.
struct Tpb<'a> {
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
    fn new(place: Place<'a>, number: usize, spec: &'a TpbSpec, target: &'a str) -> Result<Self, NeffError> {
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

    fn add_members(&self, folder: &str, members: &mut Vec<(String, Vec<u8>)>) -> Result<(), NeffError> {
        let mut vars = Map::new();
        for var in &self.spec.var {
            let id = self.id("var", var.name())?;
            let mut record = self.var_record(var)?;
            record["var_id"] = id.0.into();
            if let VarSpec::File { name, size, repeat } = var {
                let file_name = format!("const_{}.npy", id.0);
                record["file_name"] = file_name.as_str().into();
                members
                    .push((format!("{folder}/{file_name}"), array_file(&self.content(name, *size, repeat)?)));
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
        let limit = ReadOptions::default().max_archive_bytes;
        if size > limit {
            return Err(invalid(&format!("{size} bytes are more than the {limit} of a container")));
        }
        Ok(unit.into_iter().cycle().take(size as usize).collect())
    }

    /// Blocks and instructions by engine.
    fn engines(&self) -> Result<HashMap<&'a str, EngineMembers>, NeffError> {
        let mut engines: HashMap<&str, EngineMembers> = HashMap::new();
        let constant: HashSet<&str> = self
            .spec
            .var
            .iter()
            .filter(|var| {
                !matches!(var, VarSpec::Output(_) | VarSpec::Temporary(_) | VarSpec::Virtual { .. })
            })
            .map(VarSpec::name)
            .collect();
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
                if constant.contains(copy.to.as_str()) {
                    return Err(invalid(format!("copies to {}, which is not written", Quoted(&copy.to))));
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
