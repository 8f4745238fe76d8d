//! The top of a container: which subgraphs it has, and what the graph knows about its tensors.
//!
//! ```text
//! neff.json ── node with a kernel ──► kelf-N.json ── graphs[] ──► sgNN/def.json, one per physical core
//!     └─ attrs: shape and element type of every tensor
//! ```

use std::collections::HashMap;

use super::archive::Archive;
use super::error::{NeffError, Place, Quoted};
use super::json::{Json, JsonLimits, Node};
use super::pattern::MAX_DIMS;
use super::program::Target;

/// Names of the top graph, newest first.
const TOP_MEMBERS: [&str; 2] = ["neff.json", "kelp.json"];

/// Most subgraphs of a kernel; more cores than any device has.
const MAX_SUBGRAPHS: usize = 64;

/// Longest element type; a longer one is fatal to the reference.
pub(super) const MAX_DTYPE_BYTES: usize = 15;

/// Element type and shape of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TensorForm {
    pub(super) dtype: Option<String>,
    pub(super) shape: Vec<u64>,
}

/// What the top graph says.
#[derive(Debug)]
pub(super) struct TopGraph {
    /// Member that describes the kernel.
    pub(super) kernel: String,
    /// By tensor name; the first head counts where a name repeats.
    pub(super) tensors: HashMap<String, TensorForm>,
}

/// A kernel: its subgraphs and what they are compiled for.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) target: Target,
    pub(super) subgraphs: Vec<Subgraph>,
}

/// Where a subgraph is described.
#[derive(Debug)]
pub(super) struct Subgraph {
    pub(super) name: String,
    /// Member with the definition.
    pub(super) definition: String,
}

/// Finds and reads the top graph.
pub(super) fn read_top(
    file: Place<'_>,
    archive: &Archive<'_>,
    limits: JsonLimits,
) -> Result<TopGraph, NeffError> {
    let (member, bytes) = TOP_MEMBERS
        .into_iter()
        .find_map(|member| archive.get(member).map(|bytes| (member, bytes)))
        .ok_or_else(|| {
            file.invalid(format_args!("no member {} or {} in the archive", TOP_MEMBERS[0], TOP_MEMBERS[1]))
        })?;
    let place = file.member(member);
    let json = Json::parse(place, bytes, limits)?;
    let root = Node::root(place, &json);
    let nodes = root.need("nodes")?;

    let mut kernel: Option<&str> = None;
    for node in nodes.list()? {
        let Some(attrs) = node.get("attrs")? else { continue };
        let Some(kelf) = attrs.get("kelf")? else { continue };
        let name = kelf.text()?;
        if let Some(first) = kernel {
            return Err(kelf.invalid(format_args!(
                "second kernel {} next to {}, supported is one",
                Quoted(name),
                Quoted(first)
            )));
        }
        kernel = Some(name);
    }
    let kernel = kernel.ok_or_else(|| nodes.invalid("no node has a kernel"))?;
    Ok(TopGraph { kernel: kernel.into(), tensors: read_tensors(&root)? })
}

/// Joins the tagged lists in `attrs` with the tensor names of the nodes, by row.
fn read_tensors(root: &Node<'_, '_>) -> Result<HashMap<String, TensorForm>, NeffError> {
    let mut forms: Vec<TensorForm> = Vec::new();
    if let Some(attrs) = root.get("attrs")? {
        each_tagged(&attrs, "shape", |_, shape| {
            forms.push(TensorForm { dtype: None, shape: read_shape(shape)? });
            Ok(())
        })?;
        each_tagged(&attrs, "dltype", |row, dtype| {
            if row == forms.len() {
                forms.push(TensorForm::default());
            }
            forms[row].dtype = Some(read_dtype(dtype)?);
            Ok(())
        })?;
    }
    let mut tensors = HashMap::new();
    let mut forms = forms.into_iter();
    let nodes = root.need("nodes")?;
    for node in nodes.list()? {
        let Some(names) = node.get("output_names")? else { continue };
        for name in names.list()? {
            let form = forms.next().unwrap_or_default();
            tensors.entry(name.text()?.to_owned()).or_insert(form);
        }
    }
    Ok(tensors)
}

/// Visits the items of `["tag", [item, …]]`, where the key is there.
fn each_tagged(
    attrs: &Node<'_, '_>,
    key: &str,
    mut visit: impl FnMut(usize, &Node<'_, '_>) -> Result<(), NeffError>,
) -> Result<(), NeffError> {
    let Some(pair) = attrs.get(key)? else { return Ok(()) };
    let list = pair.list()?.nth(1).ok_or_else(|| pair.invalid("expected a tag and a list"))?;
    list.list()?.enumerate().try_for_each(|(row, item)| visit(row, &item))
}

/// A shape, with the limits that the reference is fatal about.
pub(super) fn read_shape(shape: &Node<'_, '_>) -> Result<Vec<u64>, NeffError> {
    let dims = shape.list()?.len();
    if dims > MAX_DIMS {
        return Err(shape.invalid(format_args!("{dims} dimensions, at most {MAX_DIMS}")));
    }
    let shape_of = shape.numbers()?;
    if shape_of.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)).is_none() {
        return Err(shape.invalid(format_args!("{shape_of:?} has more than 2^64 elements")));
    }
    Ok(shape_of)
}

/// An element type, with the limit that the reference is fatal about.
pub(super) fn read_dtype(dtype: &Node<'_, '_>) -> Result<String, NeffError> {
    let name = dtype.text()?;
    if name.len() > MAX_DTYPE_BYTES {
        return Err(dtype.invalid(format_args!(
            "{} has {} bytes, at most {MAX_DTYPE_BYTES}",
            Quoted(name),
            name.len()
        )));
    }
    Ok(name.into())
}

/// Reads the list of subgraphs.
pub(super) fn read_kernel(place: Place<'_>, bytes: &[u8], limits: JsonLimits) -> Result<Kernel, NeffError> {
    let json = Json::parse(place, bytes, limits)?;
    let root = Node::root(place, &json);
    let target = root.need("target")?;
    let target = match target.text()? {
        "sunda" | "v2" => Target::Sunda,
        "cayman" | "v3" => Target::Cayman,
        "mariana" | "v4" => Target::Mariana,
        "*" => Target::Any,
        other => return Err(target.invalid(format_args!("Invalid target = {}", Quoted(other)))),
    };
    let graphs = root.need("graphs")?;
    let count = graphs.list()?.len();
    if !(1..=MAX_SUBGRAPHS).contains(&count) {
        return Err(graphs.invalid(format_args!("{count} subgraphs, want 1 to {MAX_SUBGRAPHS}")));
    }
    let subgraphs = graphs.list()?.map(|graph| {
        Ok(Subgraph {
            name: graph.need("name")?.text()?.into(),
            definition: graph.need("definition")?.text()?.into(),
        })
    });
    Ok(Kernel { target, subgraphs: subgraphs.collect::<Result<_, NeffError>>()? })
}
