//! From the members of a subgraph to a checked [`Program`].

mod engines;
mod queues;
mod vars;
mod work;

use sluice_core::mmio::Engine;

use super::archive::Archive;
use super::error::{NeffError, Place};
use super::graph::{Graph, Subgraph, named_member};
use super::json::{Json, Node};
use super::program::{CarveOut, Program, Tables};
use super::{Budget, Bytes};

/// Where the members of one subgraph come from.
struct Source<'a> {
    file: Place<'a>,
    archive: &'a Archive,
    /// Folder of the definition with its slash, or empty.
    folder: &'a str,
    budget: &'a Budget,
}

impl<'a> Source<'a> {
    /// The member that `node` names, relative to the folder: full name and content.
    fn member(&self, node: &Node<'_, '_>) -> Result<(String, &'a [u8]), NeffError> {
        named_member(node, self.folder, self.archive)
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
    let source = Source { file, archive, folder, budget };

    let vars = vars::read(&source, &definition.need("var")?, &graph.tensors)?;
    let queues = match definition.get("dma_queue")? {
        Some(queues) => queues::read(&queues)?,
        None => Vec::new(),
    };
    let names = engines::Names::of(&vars, &queues);
    let mut tables = Tables::default();
    add_tables(&definition, &mut tables)?;
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
        tables,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::neff::testing::Container;
    use crate::neff::{CarveOut, Tables};

    #[test]
    fn tables_and_carve_out_are_found_wherever_compilers_put_them() {
        let neff = Container::small()
            .json("sg00/def.json", "/activation_function_sets", json!(["a"]))
            .json("sg00/Activation.json", "/activation_function_sets", json!(["b"]))
            .json("sg00/DVE.json", "/dve_tables", json!([{}, {}]))
            .json("sg00/def.json", "/cc_streams", json!({ "num_streams": 3 }))
            .json("sg00/def.json", "/fp8_conversion_config", json!({}))
            .parse()
            .unwrap();
        let program = &neff.programs[0];
        assert_eq!(
            program.tables,
            Tables {
                activation_function_sets: vec!["a".into(), "b".into()],
                dve_tables: 2,
                collective_streams: 3,
                fp8_conversion: true,
            }
        );
        assert_eq!(program.carve_out, Some(CarveOut::EVENT_ACCELERATOR));
        let bare = Container::small().without_json("sg00/def.json", "/runtime_statebuffer_reservation");
        assert_eq!(bare.parse().unwrap().programs[0].carve_out, None);
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
