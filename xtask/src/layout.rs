//! `cargo xtask layout`: the wire contract as JSON, taken from the types themselves.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Map, Value, json};
use sluice_core::layout::{ArchId, Description, contract};

/// Prints the wire contract of one architecture as JSON.
///
/// `{structure: {size, align, fields: {name: {offset, size}}}}`, all in bytes, with the names of the wire. Members of a
/// union are listed with their path.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// a2a3 or a5.
    #[arg(long)]
    arch: ArchId,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut text = serde_json::to_string_pretty(&to_json(args.arch))?;
    text.push('\n');
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        result => result.context("cannot print the layout")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn to_json(arch: ArchId) -> Value {
    let structures =
        contract(arch).iter().map(|structure| (structure.name.to_owned(), structure_to_json(structure)));
    Value::Object(structures.collect())
}

fn structure_to_json(structure: &Description) -> Value {
    let fields: Map<String, Value> = structure
        .fields()
        .map(|field| (field.name.to_owned(), json!({"offset": field.offset, "size": field.size})))
        .collect();
    json!({"size": structure.size, "align": structure.align, "fields": fields})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;
    use std::env;
    use std::fs::File;
    use std::path::PathBuf;

    /// The reference layout, or `None` with a visible note where its folder is absent. CI must have it.
    fn reference() -> Option<Value> {
        let shared =
            env::var_os("SLUICE_SHARED").map_or_else(|| workspace::root().join("../shared"), PathBuf::from);
        let path = shared.join("reference/dfx-layout.json");
        match File::open(&path) {
            Ok(file) => {
                Some(serde_json::from_reader(io::BufReader::new(file)).expect("the reference is JSON"))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                assert_ne!(env::var("CI").as_deref(), Ok("true"), "{} is missing", path.display());
                // Past the harness's capture, so that the skip shows.
                writeln!(io::stderr(), "skipped: no {} to compare with", path.display()).unwrap();
                None
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }

    #[test]
    fn the_contract_is_the_reference() {
        let Some(reference) = reference() else { return };
        for arch in ArchId::ALL {
            let (ours, theirs) = (to_json(arch), &reference[arch.name()]);
            let (ours, theirs) = (ours.as_object().unwrap(), theirs.as_object().unwrap());
            assert!(ours.keys().eq(theirs.keys()), "{arch}: {:?}\n{:?}", ours.keys(), theirs.keys());
            for (name, structure) in ours {
                assert_eq!(structure, &theirs[name], "{arch} {name}");
            }
        }
    }

    #[test]
    fn no_structure_is_listed_twice() {
        for arch in ArchId::ALL {
            assert_eq!(to_json(arch).as_object().unwrap().len(), contract(arch).len());
        }
    }
}
