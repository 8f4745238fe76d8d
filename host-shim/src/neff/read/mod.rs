//! From the members of a subgraph to a checked [`Program`].

mod engines;
mod queues;
mod vars;

use std::collections::HashMap;

use sluice_core::mmio::Engine;

use super::ReadOptions;
use super::archive::{Archive, plain_path};
use super::error::{NeffError, Place, Quoted};
use super::graph::{Subgraph, TensorForm};
use super::json::{Json, JsonLimits, Node};
use super::program::{CarveOut, Program, Tables, Target};

/// Where the members of one subgraph come from.
struct Source<'a> {
    file: Place<'a>,
    archive: &'a Archive<'a>,
    /// Folder of the definition with its slash, or empty.
    folder: &'a str,
    json_limits: JsonLimits,
}

impl<'a> Source<'a> {
    /// The member that `node` names, relative to the folder: full name and content.
    fn member(&self, node: &Node<'_, '_>) -> Result<(String, &'a [u8]), NeffError> {
        let name = node.text()?;
        let full = plain_path(name)
            .map(|name| format!("{}{name}", self.folder))
            .map_err(|rule| node.invalid(format_args!("{}: {rule}", Quoted(name))))?;
        match self.archive.get(&full) {
            Some(content) => Ok((full, content)),
            None => Err(node.invalid(format_args!("no member {} in the archive", Quoted(&full)))),
        }
    }
}

/// Reads the program of `subgraph`.
pub(super) fn read_program(
    file: Place<'_>,
    archive: &Archive<'_>,
    subgraph: &Subgraph,
    target: Target,
    forms: &HashMap<String, TensorForm>,
    options: &ReadOptions,
) -> Result<Program, NeffError> {
    let member = subgraph.definition.as_str();
    let content = archive
        .get(member)
        .ok_or_else(|| file.invalid(format_args!("no member {} in the archive", Quoted(member))))?;
    let place = file.member(member);
    let json_limits = options.json_limits();
    let json = Json::parse(place, content, json_limits)?;
    let definition = Node::root(place, &json);
    let folder = member.rfind('/').map_or("", |slash| &member[..=slash]);
    let source = Source { file, archive, folder, json_limits };

    let vars = vars::read(&source, &definition.need("var")?, forms)?;
    let queues = match definition.get("dma_queue")? {
        Some(queues) => queues::read(&queues)?,
        None => Vec::new(),
    };
    let mut names = engines::Names::of(&vars, &queues, options.max_pairs);
    let mut tables = Tables::default();
    add_tables(&definition, &mut tables)?;
    let mut engine = |kind| engines::read(&source, &definition, kind, &mut names, &mut tables);
    let engines = [
        engine(Engine::Pe)?,
        engine(Engine::Act)?,
        engine(Engine::Pool)?,
        engine(Engine::Dve)?,
        engine(Engine::Sp)?,
    ];
    let program = Program {
        name: subgraph.name.clone(),
        target,
        engines,
        carve_out: read_carve_out(&definition)?,
        tables,
        vars,
        queues,
    };
    engines::check_all_can_start(file, member, &program)?;
    Ok(program)
}

fn read_carve_out(definition: &Node<'_, '_>) -> Result<Option<CarveOut>, NeffError> {
    let Some(reservations) = definition.get("runtime_statebuffer_reservation")? else { return Ok(None) };
    for reservation in reservations.list()? {
        if reservation.need("type")?.text()? == "evtaccel" {
            return Ok(Some(CarveOut {
                base_partition: reservation.need("base_partition")?.u64()?,
                partitions: reservation.need("partitions")?.u64()?,
                offset_bytes: reservation.need("offset")?.u64()?,
                size_bytes: reservation.need("size")?.u64()?,
            }));
        }
    }
    Ok(None)
}

/// Adds what a definition or the settings of an engine say about tables; compilers put them in either.
fn add_tables(node: &Node<'_, '_>, tables: &mut Tables) -> Result<(), NeffError> {
    if let Some(sets) = node.get("activation_function_sets")? {
        for set in sets.list()? {
            tables.activation_function_sets.push(set.text()?.to_owned());
        }
    }
    if let Some(dve_tables) = node.get("dve_tables")? {
        tables.dve_tables += dve_tables.list()?.len();
    }
    if let Some(streams) = node.get("cc_streams")?
        && let Some(count) = streams.get("num_streams")?
    {
        tables.collective_streams = count.u64()?;
    }
    tables.fp8_conversion |= node.get("fp8_conversion_config")?.is_some();
    Ok(())
}
