//! From the members of a subgraph to a checked [`Program`].

mod engines;
mod queues;
mod tables;
mod vars;
mod work;

use std::cell::RefCell;
use std::collections::HashSet;

use sluice_core::mmio::Engine;

use super::archive::Archive;
use super::error::{NeffError, Place};
use super::graph::{Graph, Subgraph, named_member};
use super::json::{Json, Node};
use super::program::{CarveOut, Program};
use super::{Budget, Bytes};
use tables::TableReader;

/// Where the members of one subgraph come from.
struct Source<'a> {
    file: Place<'a>,
    archive: &'a Archive,
    /// Folder of the definition with its slash, or empty.
    folder: &'a str,
    budget: &'a Budget,
    /// Full names of the members that were asked for.
    already_read: RefCell<HashSet<String>>,
}

impl<'a> Source<'a> {
    /// The member that `node` names, relative to the folder: full name and content.
    fn member(&self, node: &Node<'_, '_>) -> Result<(String, &'a [u8]), NeffError> {
        let (name, content) = named_member(node, self.folder, self.archive)?;
        self.already_read.borrow_mut().insert(name.clone());
        Ok((name, content))
    }

    /// `content`, which `node` names, to stay. Many may name the same member, and a device holds it once for each, so all
    /// are bounded together.
    fn keep(&self, node: &Node<'_, '_>, content: &[u8]) -> Result<Bytes, NeffError> {
        self.budget.content_bytes.take(content.len() as u64).map_err(|limit| {
            node.invalid(format_args!("with it constants and instructions exceed {limit} bytes, the limit"))
        })?;
        Ok(self.archive.share(content))
    }
}

/// Reads the program of `subgraph`.
pub(super) fn read_program(
    file: Place<'_>,
    archive: &Archive,
    subgraph: &Subgraph<'_>,
    graph: &Graph<'_>,
    budget: &Budget,
) -> Result<Program, NeffError> {
    let (member, content) = &subgraph.definition;
    let place = file.member(member);
    let json = Json::parse(place, content, &budget.json)?;
    let definition = Node::root(place, &json);
    let folder = member.rfind('/').map_or("", |slash| &member[..=slash]);
    let source = Source { file, archive, folder, budget, already_read: RefCell::default() };

    let vars = vars::read(&source, &definition.need("var")?, &graph.tensors)?;
    let queues = match definition.get("dma_queue")? {
        Some(queues) => queues::read(&queues)?,
        None => Vec::new(),
    };
    let names = engines::Names::of(&vars, &queues);
    let mut tables = TableReader::default();
    tables.add(&definition)?;
    let mut engine = |kind| engines::read(&source, &definition, kind, &names, &mut tables);
    let engines = [
        engine(Engine::Pe)?,
        engine(Engine::Act)?,
        engine(Engine::Pool)?,
        engine(Engine::Dve)?,
        engine(Engine::Sp)?,
    ];
    let program = Program {
        name: subgraph.name.clone(),
        target: graph.target,
        engines,
        carve_out: read_carve_out(&definition)?,
        tables: tables.finish(&source, member)?,
        vars,
        queues,
    };
    work::check_all_can_start(file, member, &program)?;
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

#[cfg(test)]
mod tests {
    use crate::neff::CarveOut;
    use crate::neff::testing::Container;

    #[test]
    fn a_carve_out_is_read_where_there_is_one() {
        let carve_out = |container: Container| container.parse().unwrap().programs[0].carve_out;
        assert_eq!(carve_out(Container::small()), Some(CarveOut::EVENT_ACCELERATOR));
        let bare = Container::small().without_json("sg00/def.json", "/runtime_statebuffer_reservation");
        assert_eq!(carve_out(bare), None);
    }

    #[test]
    fn missing_members_are_named_with_the_key_that_names_them() {
        for (member, want) in [
            (
                "sg00/def.json",
                "f: kelf-0.json: graphs[0].definition: no member `sg00/def.json` in the archive",
            ),
            ("sg00/Pool.json", "f: sg00/def.json: pool: no member `sg00/Pool.json` in the archive"),
            ("sg00/Pool.bin", "f: sg00/def.json: pool_instr: no member `sg00/Pool.bin` in the archive"),
            (
                "sg00/const_3.npy",
                "f: sg00/def.json: var.k.file_name: no member `sg00/const_3.npy` in the archive",
            ),
        ] {
            assert_eq!(Container::small().without(member).refused(), want);
        }
    }
}
