//! Containers with one thing wrong, for the tests of the reader.

use std::collections::BTreeMap;

use serde_json::Value;
use sluice_core::exec::NrtStatus;
use sluice_core::mmio::Engine;

use super::archive::Archive;
use super::error::Place;
use super::header::{HEADER_BYTES, Package};
use super::write::{self, Identity};
use super::{EngineProgram, Neff, NeffError, ReadOptions, pack_as};

/// One core with a variable of most kinds and two engines that depend on each other.
pub(super) const SMALL: &str = r#"
[model]
name = "small"
target = "cayman"

[[tpb]]
var = [
  { name = "x", type = "input", size = 4096, dtype = "float32", shape = [16, 64] },
  { name = "y", type = "output", size = 4096 },
  { name = "keep", type = "virtual", offset = 64, size = 4096 },
  { name = "k", type = "file", size = 5, repeat = "0aFf" },
  { name = "sb", type = "state-buffer" },
  { name = "at_x", type = "pointer", to = "x" },
  { name = "all", type = "dge-table", rows = ["x", "y"] },
]
queue = [
  { name = "q_in", type = "in", owner = "pool", semaphore = 10 },
  { name = "q_dyn", type = "dynamic", owner = "pool", semaphore = 12 },
  { name = "q_out", type = "out", owner = "sp", semaphore = 11 },
]

[[tpb.block]]
queue = "q_in"
signal = 3
copy = [{ from = "x", from_sizes = [64, 32], from_steps = [64, 1], to = "keep" }]

[[tpb.block]]
queue = "q_out"
name = "store"
wait = [{ semaphore = 3, at_least = 1 }]
kernel = 77
copy = [{ from = "keep", to = "y", bytes = 2048 }, { from = "k", to = "y", to_off = 2048, bytes = 5 }]
"#;

/// The members of a container, to be changed and put together again.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    members: BTreeMap<String, Vec<u8>>,
}

impl Container {
    pub(crate) fn packed(spec: &str) -> Self {
        let file = pack_as("spec", spec, Package::Plain).unwrap();
        let payload = &file[HEADER_BYTES..];
        let archive = Archive::open(
            Place::file("f"),
            Package::Plain,
            payload,
            || payload.to_vec().into(),
            &ReadOptions::default(),
        )
        .unwrap();
        let members =
            archive.members().map(|(name, _)| (name.into(), archive.get(name).unwrap().into())).collect();
        Self { members }
    }

    pub(crate) fn small() -> Self {
        Self::packed(SMALL)
    }

    /// Puts `value` where the JSON pointer says; the last part of it may be new.
    pub(crate) fn json(mut self, member: &str, pointer: &str, value: Value) -> Self {
        let bytes = self.members.get_mut(member).unwrap();
        let mut json: Value = serde_json::from_slice(bytes).unwrap();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        match json.pointer_mut(parent).unwrap() {
            Value::Object(object) => drop(object.insert(key.into(), value)),
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
            other => panic!("{pointer} leads into {other}"),
        }
        *bytes = json.to_string().into();
        self
    }

    /// Takes the entry away that the JSON pointer names.
    pub(crate) fn without_json(mut self, member: &str, pointer: &str) -> Self {
        let bytes = self.members.get_mut(member).unwrap();
        let mut json: Value = serde_json::from_slice(bytes).unwrap();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        json.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(key).unwrap();
        *bytes = json.to_string().into();
        self
    }

    pub(crate) fn member(mut self, member: &str, content: impl Into<Vec<u8>>) -> Self {
        self.members.insert(member.into(), content.into());
        self
    }

    pub(crate) fn without(mut self, member: &str) -> Self {
        self.members.remove(member).unwrap();
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let members: Vec<_> = self.members.clone().into_iter().collect();
        let identity = Identity { name: "small", virtual_core_size: 1, cores_requested: 1 };
        write::container(&identity, Package::Plain, &members).unwrap()
    }

    pub(crate) fn parse_with(&self, options: &ReadOptions) -> Result<Neff, NeffError> {
        Neff::parse("f", &self.bytes(), options)
    }

    pub(crate) fn parse(&self) -> Result<Neff, NeffError> {
        self.parse_with(&ReadOptions::default())
    }

    /// The text of the refusal, which has to be one line.
    #[track_caller]
    pub(crate) fn refused(&self) -> String {
        let error = self.parse().unwrap_err();
        assert_eq!(error.status(), NrtStatus::INVALID, "{error}");
        let text = error.to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    }
}

/// One engine of the first program.
pub(super) fn engine(neff: &Neff, engine: Engine) -> &EngineProgram {
    &neff.programs[0].engines[engine.index()]
}
