//! The variables of a program: the object `var` of a definition.
//!
//! | `type` | kind | keys of its own |
//! |---|---|---|
//! | `input`, `output` | bound by the caller | `size` |
//! | `file` | constant | `size`, `file_name` |
//! | `temporary` | scratch | `size` |
//! | `virtual` | scratch in a shared range | `size`, `backing_variable_off`, `backing_buf` |
//! | `state-buffer` | on chip | |
//! | `pointer` | cell | `size` = 8, `referenced_var_id` |
//! | `dge-table`, `list` | table of addresses, list | `list` |
//!
//! The container facts leave the names of temporaries and lists and the values of `backing_buf` open; those are ours.

use std::collections::HashMap;

use sluice_core::dma::TemplateAddr;
use sluice_core::fmap::VarId;

use super::Source;
use crate::neff::bytes::Bytes;
use crate::neff::constant;
use crate::neff::error::{NeffError, Quoted};
use crate::neff::graph::{TensorForm, read_dtype, read_shape};
use crate::neff::json::Node;
use crate::neff::program::{Backing, Var, VarKind};

/// Most bytes of all variables of a program together, and the coarsest alignment: device addresses have no more bits.
const MAX_BYTES: u64 = 1 << 48;

/// Size of an address in a cell or row.
const ADDRESS_BYTES: u64 = 8;

/// Reads all variables, ordered by var_id. `forms` adds element types and shapes by name.
pub(super) fn read(
    source: &Source<'_>,
    vars: &Node<'_, '_>,
    forms: &HashMap<String, TensorForm>,
) -> Result<Vec<Var>, NeffError> {
    let records = vars.object()?;
    let count = records.len();
    let mut all = records
        .map(|(name, record)| read_one(source, count, name, &record, forms))
        .collect::<Result<Vec<Var>, _>>()?;
    all.sort_by_key(|var| var.id);
    if let Some(misplaced) = all.iter().enumerate().find(|(index, var)| var.id.0 as usize != *index) {
        return Err(vars.invalid(not_dense(&all, misplaced.0)));
    }
    let mut left = MAX_BYTES;
    for var in &all {
        left = left.checked_sub(var.size_bytes).ok_or_else(|| {
            vars.invalid(format_args!(
                "with the {} bytes of {} the variables have more than {MAX_BYTES} bytes",
                var.size_bytes,
                Quoted(&var.name)
            ))
        })?;
    }
    if !all.iter().any(|var| var.kind == VarKind::Output) {
        return Err(vars.invalid("none of the variables is an output"));
    }
    Ok(all)
}

/// What is wrong with the numbers of `sorted`, which are as they should be before `index`.
fn not_dense(sorted: &[Var], index: usize) -> String {
    let highest = sorted.last().map_or(0, |var| var.id.0);
    let distinct = sorted.chunk_by(|a, b| a.id == b.id).count();
    let rule = format!("Unexpected var_ids set! max={highest}, size={distinct}");
    match sorted[..=index].last_chunk() {
        Some([a, b]) if a.id == b.id => {
            format!("{rule}: {} and {} both have {}", Quoted(&a.name), Quoted(&b.name), a.id.0)
        }
        _ => format!("{rule}: none has {index}"),
    }
}

fn read_one(
    source: &Source<'_>,
    count: usize,
    name: &str,
    record: &Node<'_, '_>,
    forms: &HashMap<String, TensorForm>,
) -> Result<Var, NeffError> {
    record.check_key()?;
    let id = read_id(&record.need("var_id")?)?;
    let (kind, size_bytes) = read_kind(source, count, record)?;
    let alignment_bytes = match record.get("alignment")? {
        None => 1,
        Some(node) => match node.at_most(MAX_BYTES)? {
            value if value.is_power_of_two() => value,
            value => return Err(node.invalid(format_args!("{value} is not a power of two"))),
        },
    };
    let form = forms.get(name);
    let dtype = match record.get("dtype")? {
        Some(dtype) => Some(read_dtype(&dtype)?),
        None => form.and_then(|form| form.dtype.clone()),
    };
    let shape = match record.get("shape")? {
        Some(shape) => read_shape(&shape)?,
        None => form.map(|form| form.shape.clone()).unwrap_or_default(),
    };
    Ok(Var { name: name.into(), id, kind, size_bytes, alignment_bytes, dtype, shape })
}

fn read_id(node: &Node<'_, '_>) -> Result<VarId, NeffError> {
    let value = node.u64()?;
    let max = TemplateAddr::MAX_VAR;
    if value > u64::from(max.0) {
        return Err(node.invalid(format_args!("{value} needs more than 19 bits, at most {max}")));
    }
    Ok(VarId(value as u32))
}

/// A var_id that has to belong to one of `count` variables.
fn read_reference(node: &Node<'_, '_>, count: usize) -> Result<VarId, NeffError> {
    let id = read_id(node)?;
    if id.0 as usize >= count {
        return Err(node.invalid(format_args!("no variable has var_id {}, there are {count}", id.0)));
    }
    Ok(id)
}

fn read_references(record: &Node<'_, '_>, count: usize) -> Result<Vec<VarId>, NeffError> {
    record.need("list")?.list()?.map(|item| read_reference(&item, count)).collect()
}

fn read_kind(source: &Source<'_>, count: usize, record: &Node<'_, '_>) -> Result<(VarKind, u64), NeffError> {
    let needed_size = || record.need("size")?.at_most(MAX_BYTES);
    // No tensor is that short: nothing could be bound.
    let bound_size = || match needed_size()? {
        0 => Err(record.need("size")?.invalid("0 bytes, and a tensor to bind has at least 1")),
        size => Ok(size),
    };
    let kind = record.need("type")?;
    Ok(match kind.text()? {
        "input" => (VarKind::Input, bound_size()?),
        "output" => (VarKind::Output, bound_size()?),
        "temporary" => (VarKind::Temporary, needed_size()?),
        "file" => {
            let size = needed_size()?;
            (VarKind::File { content: read_constant(source, record, size)? }, size)
        }
        "virtual" => {
            let size = needed_size()?;
            let offset = record.need("backing_variable_off")?;
            let offset_bytes = offset.at_most(MAX_BYTES - size)?;
            (VarKind::Virtual { offset_bytes, backing: read_backing(record)? }, size)
        }
        "state-buffer" => {
            let size = record.get("size")?.map(|size| size.at_most(MAX_BYTES)).transpose()?;
            (VarKind::StateBuffer, size.unwrap_or(0))
        }
        "pointer" => {
            let size = record.need("size")?;
            if size.u64()? != ADDRESS_BYTES {
                return Err(
                    size.invalid(format_args!("{} bytes for a pointer, want {ADDRESS_BYTES}", size.u64()?))
                );
            }
            let target = read_reference(&record.need("referenced_var_id")?, count)?;
            (VarKind::Pointer { target }, ADDRESS_BYTES)
        }
        "dge-table" => {
            let rows = read_references(record, count)?;
            let size = rows.len() as u64 * ADDRESS_BYTES;
            (VarKind::PointerTable { rows }, size)
        }
        "list" => (VarKind::List { ids: read_references(record, count)? }, 0),
        other => return Err(kind.invalid(format_args!("unknown variable type {}", Quoted(other)))),
    })
}

fn read_backing(record: &Node<'_, '_>) -> Result<Backing, NeffError> {
    let Some(node) = record.get("backing_buf")? else { return Ok(Backing::Local) };
    match node.text()? {
        "local" => Ok(Backing::Local),
        "shared" => Ok(Backing::Shared),
        "sharded" => Ok(Backing::Sharded),
        "main" => Ok(Backing::Main),
        other => Err(node.invalid(format_args!("unknown backing buffer {}", Quoted(other)))),
    }
}

fn read_constant(source: &Source<'_>, record: &Node<'_, '_>, size: u64) -> Result<Bytes, NeffError> {
    let file_name = record.need("file_name")?;
    let content = constant::data(source.member(&file_name)?.1).map_err(|rule| file_name.invalid(rule))?;
    if content.len() as u64 != size {
        return Err(file_name.invalid(format_args!(
            "{} has {} bytes of data, the variable has {size}",
            Quoted(file_name.text()?),
            content.len()
        )));
    }
    source.keep(&file_name, content)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::neff::testing::Container;

    const DEF: &str = "sg00/def.json";

    #[test]
    fn every_kind_arrives_with_its_numbers() {
        let neff = Container::small().parse().unwrap();
        let program = &neff.programs[0];
        let kinds: Vec<_> =
            program.vars.iter().map(|var| (var.name.as_str(), &var.kind, var.size_bytes)).collect();
        let rows = vec![VarId(0), VarId(1)];
        assert_eq!(
            kinds,
            [
                ("x", &VarKind::Input, 4096),
                ("y", &VarKind::Output, 4096),
                ("keep", &VarKind::Virtual { offset_bytes: 64, backing: Backing::Local }, 4096),
                ("k", &VarKind::File { content: vec![10, 255, 10, 255, 10].into() }, 5),
                ("sb", &VarKind::StateBuffer, 0),
                ("at_x", &VarKind::Pointer { target: VarId(0) }, 8),
                ("all", &VarKind::PointerTable { rows }, 16),
            ]
        );
        assert!(program.vars.iter().enumerate().all(|(place, var)| var.id.0 as usize == place));
        let x = program.var_named("x").unwrap();
        assert_eq!((x.dtype.as_deref(), x.shape.as_slice()), (Some("float32"), &[16, 64][..]));
    }

    #[test]
    fn form_of_the_top_graph_fills_in() {
        let neff = Container::small()
            .without_json(DEF, "/var/x/dtype")
            .without_json(DEF, "/var/x/shape")
            .parse()
            .unwrap();
        let x = neff.programs[0].var_named("x").unwrap();
        assert_eq!((x.dtype.as_deref(), x.shape.as_slice()), (Some("float32"), &[16, 64][..]));
    }

    /// The refusal after setting a key of a variable.
    fn with(var: &str, key: &str, value: serde_json::Value) -> String {
        Container::small().json(DEF, &format!("/var/{var}/{key}"), value).refused()
    }

    #[test]
    fn var_ids_have_to_be_dense_and_short() {
        assert_eq!(
            with("all", "var_id", json!(8)),
            "f: sg00/def.json: var: Unexpected var_ids set! max=8, size=7: none has 6"
        );
        assert_eq!(
            with("all", "var_id", json!(2)),
            "f: sg00/def.json: var: Unexpected var_ids set! max=5, size=6: `all` and `keep` both have 2"
        );
        assert_eq!(
            with("all", "var_id", json!(1 << 19)),
            "f: sg00/def.json: var.all.var_id: 524288 needs more than 19 bits, at most 524287"
        );
        assert_eq!(
            with("all", "var_id", json!(524_287)),
            "f: sg00/def.json: var: Unexpected var_ids set! max=524287, size=7: none has 6"
        );
        for value in [json!(-1), json!(1.5), json!("1"), json!(null)] {
            assert!(with("all", "var_id", value).starts_with("f: sg00/def.json: var.all"));
        }
    }

    #[test]
    fn names_have_1_to_255_bytes_without_control_characters() {
        let named = |name: &str| {
            let var = json!({ "type": "temporary", "size": 1, "var_id": 7 });
            Container::small().json(DEF, &format!("/var/{name}"), var)
        };
        for len in [1, 254, 255] {
            assert_eq!(named(&"n".repeat(len)).parse().unwrap().programs[0].vars[7].name.len(), len);
        }
        for len in [256, 300] {
            let text = named(&"n".repeat(len)).refused();
            assert!(text.ends_with(&format!("has {len} bytes, at most 255")), "{text}");
        }
        let text = named(&"é".repeat(128)).refused();
        assert!(text.ends_with("has 256 bytes, at most 255"), "{text}");
        assert!(named("").refused().ends_with(": name `` is empty"));
        for name in ["a\0b", "a\nb", "\u{7f}"] {
            let text = named(name).refused();
            assert!(text.ends_with("has a control character"), "{text}");
        }
    }

    #[test]
    fn values_that_break_a_rule_are_named() {
        for (var, key, value, want) in [
            ("x", "type", json!("tensor"), "var.x.type: unknown variable type `tensor`"),
            ("x", "size", json!(0), "var.x.size: 0 bytes, and a tensor to bind has at least 1"),
            ("y", "size", json!(0), "var.y.size: 0 bytes, and a tensor to bind has at least 1"),
            ("x", "size", json!(-4), "var.x.size: -4, expected an unsigned 64-bit number"),
            ("x", "size", json!(1e30), "var.x.size: 1e30, expected an unsigned 64-bit number"),
            ("x", "size", json!(-1.5), "var.x.size: -1.5, expected an unsigned 64-bit number"),
            ("x", "size", json!(-0.0), "var.x.size: -0.0, expected an unsigned 64-bit number"),
            ("x", "size", json!(64.0), "var.x.size: 64.0, expected an unsigned 64-bit number"),
            ("x", "alignment", json!(3), "var.x.alignment: 3 is not a power of two"),
            ("x", "alignment", json!(0), "var.x.alignment: 0 is not a power of two"),
            ("x", "shape", json!([1, 1, 1, 1, 1, 1, 1, 1, 1]), "var.x.shape: 9 dimensions, at most 8"),
            (
                "x",
                "shape",
                json!([4294967296u64, 4294967296u64]),
                "var.x.shape: [4294967296, 4294967296] has more than 2^64 elements",
            ),
            (
                "x",
                "dtype",
                json!("float32_and_more"),
                "var.x.dtype: `float32_and_more` has 16 bytes, at most 15",
            ),
            ("at_x", "size", json!(4), "var.at_x.size: 4 bytes for a pointer, want 8"),
            (
                "at_x",
                "referenced_var_id",
                json!(7),
                "var.at_x.referenced_var_id: no variable has var_id 7, there are 7",
            ),
            ("all", "list", json!([0, 7]), "var.all.list[1]: no variable has var_id 7, there are 7"),
            (
                "all",
                "list",
                json!([1048576]),
                "var.all.list[0]: 1048576 needs more than 19 bits, at most 524287",
            ),
            ("keep", "backing_buf", json!("cloud"), "var.keep.backing_buf: unknown backing buffer `cloud`"),
            (
                "keep",
                "backing_variable_off",
                json!(u64::MAX),
                "var.keep.backing_variable_off: 18446744073709551615 is more than 281474976706560",
            ),
            ("k", "file_name", json!("../k"), "var.k.file_name: `../k`: a path that leaves its folder"),
            ("k", "file_name", json!("/etc/passwd"), "var.k.file_name: `/etc/passwd`: an absolute path"),
            ("k", "file_name", json!("other"), "var.k.file_name: no member `sg00/other` in the archive"),
            ("k", "size", json!(6), "var.k.file_name: `const_3.npy` has 5 bytes of data, the variable has 6"),
        ] {
            assert_eq!(with(var, key, value), format!("f: sg00/def.json: {want}"));
        }
    }

    #[test]
    fn sizes_stay_within_device_addresses() {
        const LIMIT: u64 = 1 << 48;
        for (var, key) in [("x", "size"), ("y", "size"), ("x", "alignment"), ("sb", "size"), ("k", "size")] {
            for value in [LIMIT + 1, 1 << 63, u64::MAX] {
                assert_eq!(
                    with(var, key, json!(value)),
                    format!("f: sg00/def.json: var.{var}.{key}: {value} is more than {LIMIT}")
                );
            }
        }
        assert_eq!(
            with("y", "size", json!(LIMIT - 1)),
            format!(
                "f: sg00/def.json: var: with the {} bytes of `y` the variables have more than {LIMIT} bytes",
                LIMIT - 1
            )
        );
    }

    #[test]
    fn large_sizes_and_8_dimensions_load() {
        let neff = Container::small()
            .json(DEF, "/var/x/size", json!(1u64 << 47))
            .json(DEF, "/var/x/shape", json!([1, 1, 1, 1, 1, 1, 1, 4]))
            .json(DEF, "/var/x/dtype", json!("exactly15bytes_"))
            .parse()
            .unwrap();
        assert_eq!(neff.programs[0].vars[0].size_bytes, 1 << 47);
    }

    #[test]
    fn missing_keys_are_named() {
        for (var, key) in [
            ("x", "type"),
            ("x", "size"),
            ("x", "var_id"),
            ("k", "file_name"),
            ("keep", "backing_variable_off"),
            ("at_x", "size"),
            ("at_x", "referenced_var_id"),
            ("all", "list"),
        ] {
            assert_eq!(
                Container::small().without_json(DEF, &format!("/var/{var}/{key}")).refused(),
                format!("f: sg00/def.json: var.{var}: missing key `{key}`")
            );
        }
    }

    #[test]
    fn a_program_needs_an_output() {
        assert_eq!(
            with("y", "type", json!("input")),
            "f: sg00/def.json: var: none of the variables is an output"
        );
        assert_eq!(
            Container::small().json(DEF, "/var", json!({})).refused(),
            "f: sg00/def.json: var: none of the variables is an output"
        );
    }

    #[test]
    fn constants_named_many_times_do_not_multiply_memory() {
        let mut container = Container::small().member("sg00/big", vec![1; 100_000]);
        for id in 7..30 {
            let var = json!({ "type": "file", "size": 100_000, "file_name": "big", "var_id": id });
            container = container.json(DEF, &format!("/var/big{id}"), var);
        }
        let options = crate::neff::ReadOptions { max_archive_bytes: 1 << 20, ..Default::default() };
        let text = container.parse_with(&options).unwrap_err().to_string();
        assert!(
            text.ends_with("file_name: with it constants and instructions exceed 1048576 bytes, the limit"),
            "{text}"
        );
        assert!(container.parse().is_ok());
    }
}
