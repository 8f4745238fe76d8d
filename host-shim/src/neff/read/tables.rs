//! Tables of a program: what its definition and the settings of its engines say of them, and a digest of what they hold.
//!
//! What tables hold is not interpreted, and compilers name the members that hold it in ways of their own. So the digest takes
//! in rather too much than too little: equal digests mean equal tables, and a model with another one has its tables loaded.
//!
//! | in the digest | not in it |
//! |---|---|
//! | what stands under the keys that speak of tables | |
//! | members in the folder of the definition, names and contents | the definition, settings of engines, instructions, constants; what no device needs |

use std::fmt::{self, Write};

use sha2::{Digest, Sha256};

use super::Source;
use crate::neff::archive::BLOCK_BYTES;
use crate::neff::error::NeffError;
use crate::neff::json::Node;
use crate::neff::program::Tables;

/// The keys that speak of tables.
const KEYS: [&str; 3] = ["activation_function_sets", "dve_tables", "fp8_conversion_config"];

/// Collects what a program says of its tables.
#[derive(Default)]
pub(super) struct TableReader {
    tables: Tables,
    digest: Digester,
}

/// A digest that takes text.
#[derive(Default)]
struct Digester(Sha256);

impl Digester {
    /// Takes in `bytes` and where they end.
    fn add(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}

impl Write for Digester {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

impl TableReader {
    /// Adds what a definition or the settings of an engine say; compilers put it in either.
    pub(super) fn add(&mut self, node: &Node<'_, '_>) -> Result<(), NeffError> {
        let tables = &mut self.tables;
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
        for key in KEYS {
            if let Some(value) = node.get(key)? {
                // Keys of objects are in order, and a digest takes everything.
                let _ = write!(self.digest, "{key}:{:?};", value.json());
            }
        }
        Ok(())
    }

    /// The tables, once everything that `source` is read for otherwise has been.
    pub(super) fn finish(mut self, source: &Source<'_>, definition: &str) -> Result<Tables, NeffError> {
        let already_read = source.already_read.borrow();
        for (name, content) in source.archive.under(source.folder) {
            let file = &name[source.folder.len()..];
            let is_other = name == definition || already_read.contains(name);
            let takes = !(is_other || file.contains('/') || is_needless(file));
            let bytes = BLOCK_BYTES + if takes { content.len() as u64 } else { 0 };
            source.budget.table_bytes.take(bytes).map_err(|limit| {
                let rule = format_args!("tables in its folder exceed {limit} bytes, the limit");
                source.file.member(definition).invalid(rule)
            })?;
            if takes {
                self.digest.add(file.as_bytes());
                self.digest.add(content);
            }
        }
        self.tables.digest = self.digest.0.finalize().into();
        Ok(self.tables)
    }
}

/// Whether no device needs a member of that name (NEFF container facts, payload).
fn is_needless(file: &str) -> bool {
    ["hlo_stats.json", "info.json", "tensor_map.json"].contains(&file) || file.starts_with("debug_info")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::neff::testing::Container;
    use crate::neff::{ReadOptions, Tables};

    fn tables(container: &Container) -> Tables {
        container.parse().unwrap().programs[0].tables.clone()
    }

    #[test]
    fn tables_are_found_wherever_compilers_put_them() {
        let tables = tables(
            &Container::small()
                .json("sg00/def.json", "/activation_function_sets", json!(["a"]))
                .json("sg00/Activation.json", "/activation_function_sets", json!(["b"]))
                .json("sg00/DVE.json", "/dve_tables", json!([{}, {}]))
                .json("sg00/def.json", "/cc_streams", json!({ "num_streams": 3 }))
                .json("sg00/def.json", "/fp8_conversion_config", json!({})),
        );
        assert_eq!(
            tables,
            Tables {
                activation_function_sets: vec!["a".into(), "b".into()],
                dve_tables: 2,
                collective_streams: 3,
                fp8_conversion: true,
                digest: tables.digest,
            }
        );
    }

    #[test]
    fn a_digest_tells_tables_apart_by_what_they_hold() {
        let with = |edit: fn(Container) -> Container| {
            let container = Container::small()
                .member("sg00/act_info.json", "{}")
                .member("sg00/default_act_table.bin", [1, 2])
                .json("sg00/def.json", "/activation_function_sets", json!(["a"]))
                .json("sg00/DVE.json", "/dve_tables", json!([{ "rows": 2 }]));
            tables(&edit(container)).digest
        };
        let same = with(|container| container);
        let others: [fn(Container) -> Container; 6] = [
            |all| all.member("sg00/default_act_table.bin", [1, 3]),
            |all| all.member("sg00/default_act_table.bin", [1, 2, 0]),
            |all| all.without("sg00/act_info.json").member("sg00/act_info", "{}"),
            |all| all.member("sg00/one_more.bin", ""),
            |all| all.json("sg00/DVE.json", "/dve_tables/0/rows", json!(3)),
            |all| all.json("sg00/def.json", "/activation_function_sets", json!(["b"])),
        ];
        for (number, other) in others.into_iter().enumerate() {
            assert_ne!(with(other), same, "{number}");
        }
        let equal: [fn(Container) -> Container; 4] = [
            |all| all.member("sg00/debug_info.bin", "lines"),
            |all| all.member("elsewhere.bin", "of another subgraph"),
            |all| all.json("sg00/def.json", "/var/keep/size", json!(8192)),
            |all| all.json("sg00/def.json", "/cc_streams", json!({ "num_streams": 3 })),
        ];
        for (number, other) in equal.into_iter().enumerate() {
            assert_eq!(with(other), same, "{number}");
        }
    }

    #[test]
    fn tables_are_bounded_over_all_subgraphs_that_share_them() {
        let subgraph = json!({ "name": "sg00", "definition": "sg00/def.json" });
        let other = json!({ "name": "sg01", "definition": "sg00/def.json" });
        let twice = Container::small().member("sg00/table.bin", vec![0; 1 << 20]).json(
            "kelf-0.json",
            "/graphs",
            json!([subgraph, other]),
        );
        let parse = |max_archive_bytes| {
            twice.parse_with(&ReadOptions { max_archive_bytes, ..Default::default() }).map(drop)
        };
        parse(4 << 20).unwrap();
        let error = parse(2 << 20).unwrap_err();
        assert_eq!(
            error.to_string(),
            "f: sg00/def.json: tables in its folder exceed 2097152 bytes, the limit"
        );
    }
}
