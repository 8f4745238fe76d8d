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
use crate::neff::constant;
use crate::neff::error::{NeffError, Quoted};
use crate::neff::graph::{TensorForm, read_dtype, read_shape};
use crate::neff::json::Node;
use crate::neff::program::{Backing, Var, VarKind};

/// Longest variable name; the I/O contract has 256 bytes with the end mark.
const MAX_NAME_BYTES: usize = 255;

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
    check_name(name)
        .map_err(|rule| record.invalid(format_args!("variable name {}: {rule}", Quoted(name))))?;
    let id = read_id(&record.need("var_id")?)?;
    let (kind, size_bytes) = read_kind(source, count, record)?;
    let alignment_bytes = match record.get("alignment")? {
        None => 1,
        Some(node) => match node.u64()? {
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

/// The rule that a variable name breaks, if it does.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("is empty".into());
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(format!("has {} bytes, at most {MAX_NAME_BYTES}", name.len()));
    }
    // A NUL would end the name early in the I/O contract, a line break would break every report.
    if name.chars().any(char::is_control) {
        return Err("has a control character".into());
    }
    Ok(())
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
    let needed_size = || record.need("size")?.u64();
    let kind = record.need("type")?;
    Ok(match kind.text()? {
        "input" => (VarKind::Input, needed_size()?),
        "output" => (VarKind::Output, needed_size()?),
        "temporary" => (VarKind::Temporary, needed_size()?),
        "file" => {
            let size = needed_size()?;
            (VarKind::File { content: read_constant(source, record, size)? }, size)
        }
        "virtual" => {
            let size = needed_size()?;
            let offset = record.need("backing_variable_off")?;
            let offset_bytes = offset.u64()?;
            if offset_bytes.checked_add(size).is_none() {
                return Err(offset.invalid(format_args!("{offset_bytes} plus size {size} overflows 64 bits")));
            }
            (VarKind::Virtual { offset_bytes, backing: read_backing(record)? }, size)
        }
        "state-buffer" => {
            let size = record.get("size")?.map(|size| size.u64()).transpose()?;
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

fn read_constant(source: &Source<'_>, record: &Node<'_, '_>, size: u64) -> Result<Vec<u8>, NeffError> {
    let file_name = record.need("file_name")?;
    let content = constant::data(source.member(&file_name)?.1).map_err(|rule| file_name.invalid(rule))?;
    if content.len() as u64 != size {
        return Err(file_name.invalid(format_args!(
            "{} has {} bytes of data, the variable has {size}",
            Quoted(file_name.text()?),
            content.len()
        )));
    }
    Ok(content.to_vec())
}
