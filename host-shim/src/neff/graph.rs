//! The top of a container: which subgraphs it has, and what the graph knows about its tensors.
//!
//! ```text
//! neff.json ── node with a kernel ──► kelf-N.json ── graphs[] ──► sgNN/def.json, one per physical core
//!     └─ attrs: shape and element type of every tensor
//! ```

use std::collections::HashMap;

use super::archive::{Archive, plain_path};
use super::error::{NeffError, Place, Quoted};
use super::json::{Json, JsonBudget, Node};
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

/// What the top of the container says.
#[derive(Debug)]
pub(super) struct Graph<'a> {
    pub(super) target: Target,
    pub(super) subgraphs: Vec<Subgraph<'a>>,
    /// By tensor name; the first head counts where a name repeats.
    pub(super) tensors: HashMap<String, TensorForm>,
}

/// Where a subgraph is described.
#[derive(Debug)]
pub(super) struct Subgraph<'a> {
    pub(super) name: String,
    /// Member with the definition, and its content.
    pub(super) definition: (String, &'a [u8]),
}

/// Finds and reads the top graph and its kernel.
pub(super) fn read<'a>(
    file: Place<'_>,
    archive: &'a Archive,
    budget: &JsonBudget,
) -> Result<Graph<'a>, NeffError> {
    let (member, bytes) = TOP_MEMBERS
        .into_iter()
        .find_map(|member| archive.get(member).map(|bytes| (member, bytes)))
        .ok_or_else(|| {
            file.invalid(format_args!("no member {} or {} in the archive", TOP_MEMBERS[0], TOP_MEMBERS[1]))
        })?;
    let place = file.member(member);
    let json = Json::parse(place, bytes, budget)?;
    let root = Node::root(place, &json);
    let nodes = root.need("nodes")?;

    let mut kernel = None;
    for node in nodes.list()? {
        let Some(attrs) = node.get("attrs")? else { continue };
        let Some(kelf) = attrs.get("kelf")? else { continue };
        let named = named_member(&kelf, "", archive)?;
        if let Some((first, _)) = kernel.replace(named) {
            return Err(kelf.invalid(format_args!(
                "second kernel {} next to {}, supported is one",
                Quoted(kelf.text()?),
                Quoted(&first)
            )));
        }
    }
    let (kernel, content) = kernel.ok_or_else(|| nodes.invalid("no node has a kernel"))?;
    let tensors = read_tensors(&root)?;
    let (target, subgraphs) = read_kernel(file.member(&kernel), content, archive, budget)?;
    Ok(Graph { target, subgraphs, tensors })
}

/// The member that `node` names, relative to `folder`: full name and content.
pub(super) fn named_member<'a>(
    node: &Node<'_, '_>,
    folder: &str,
    archive: &'a Archive,
) -> Result<(String, &'a [u8]), NeffError> {
    let name = node.text()?;
    let full = plain_path(name)
        .map(|name| format!("{folder}{name}"))
        .map_err(|rule| node.invalid(format_args!("{}: {rule}", Quoted(name))))?;
    match archive.get(&full) {
        Some(content) => Ok((full, content)),
        None => Err(node.invalid(format_args!("no member {} in the archive", Quoted(&full)))),
    }
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

/// Reads the list of subgraphs and what they are compiled for.
fn read_kernel<'a>(
    place: Place<'_>,
    bytes: &[u8],
    archive: &'a Archive,
    budget: &JsonBudget,
) -> Result<(Target, Vec<Subgraph<'a>>), NeffError> {
    let json = Json::parse(place, bytes, budget)?;
    let root = Node::root(place, &json);
    let target = root.need("target")?;
    let name = target.text()?;
    let invalid = |_| target.invalid(format_args!("Invalid target = {}", Quoted(name)));
    let target: Target = name.parse().map_err(invalid)?;
    let graphs = root.need("graphs")?;
    let count = graphs.list()?.len();
    if !(1..=MAX_SUBGRAPHS).contains(&count) {
        return Err(graphs.invalid(format_args!("{count} subgraphs, want 1 to {MAX_SUBGRAPHS}")));
    }
    let subgraphs = graphs.list()?.map(|graph| {
        Ok(Subgraph {
            name: graph.need("name")?.name()?.into(),
            definition: named_member(&graph.need("definition")?, "", archive)?,
        })
    });
    Ok((target, subgraphs.collect::<Result<_, NeffError>>()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::neff::testing::Container;

    const TOP: &str = "neff.json";
    const KERNEL: &str = "kelf-0.json";

    #[test]
    fn targets_have_two_names_each() {
        for (name, target) in [
            ("sunda", Target::Sunda),
            ("v2", Target::Sunda),
            ("cayman", Target::Cayman),
            ("v3", Target::Cayman),
            ("mariana", Target::Mariana),
            ("v4", Target::Mariana),
            ("*", Target::Any),
        ] {
            let neff = Container::small().json(KERNEL, "/target", json!(name)).parse().unwrap();
            assert_eq!(neff.programs[0].target, target);
        }
        assert_eq!(
            Container::small().json(KERNEL, "/target", json!("v1")).refused(),
            "f: kelf-0.json: target: Invalid target = `v1`"
        );
    }

    #[test]
    fn the_old_name_of_the_top_graph_is_known() {
        let json = json!({ "nodes": [{ "attrs": { "kelf": KERNEL } }] }).to_string();
        let old = Container::small().without(TOP).member("kelp.json", json);
        assert!(old.parse().is_ok());
        assert_eq!(
            Container::small().without(TOP).refused(),
            "f: no member neff.json or kelp.json in the archive"
        );
    }

    #[test]
    fn output_names_may_repeat() {
        let top = json!({
            "nodes": [{ "attrs": { "kelf": KERNEL }, "output_names": ["y", "y"] }],
            "attrs": { "shape": ["list_shape", [[8], [16]]], "dltype": ["list_str", ["int8", "int16", "int32"]] },
        });
        let neff = Container::small().member(TOP, top.to_string()).parse().unwrap();
        let y = neff.programs[0].var_named("y").unwrap();
        assert_eq!((y.dtype.as_deref(), y.shape.as_slice()), (Some("int8"), &[8][..]));
    }

    #[test]
    fn graphs_that_break_a_rule_are_named() {
        let node = |kernel: &str| json!({ "attrs": { "kelf": kernel } });
        for (member, pointer, value, want) in [
            (TOP, "/nodes", json!([]), "neff.json: nodes: no node has a kernel"),
            (TOP, "/nodes", json!(7), "neff.json: nodes: 7, expected a list"),
            (
                TOP,
                "/nodes",
                json!([node(KERNEL), node("neff.json")]),
                "neff.json: nodes[1].attrs.kelf: second kernel `neff.json` next to `kelf-0.json`, supported is one",
            ),
            (
                TOP,
                "/nodes",
                json!([node("../a")]),
                "neff.json: nodes[0].attrs.kelf: `../a`: a path that leaves its folder",
            ),
            (TOP, "/attrs/shape", json!(["list_shape"]), "neff.json: attrs.shape: expected a tag and a list"),
            (
                TOP,
                "/attrs/shape",
                json!(["list_shape", [[1, 1, 1, 1, 1, 1, 1, 1, 1]]]),
                "neff.json: attrs.shape[1][0]: 9 dimensions, at most 8",
            ),
            (KERNEL, "/graphs", json!([]), "kelf-0.json: graphs: 0 subgraphs, want 1 to 64"),
            (KERNEL, "/graphs/0", json!({ "name": "a" }), "kelf-0.json: graphs[0]: missing key `definition`"),
        ] {
            assert_eq!(Container::small().json(member, pointer, value).refused(), format!("f: {want}"));
        }
    }
}
