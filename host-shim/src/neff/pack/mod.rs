//! From the text form of a model to a container.
//!
//! ```text
//! spec ──► names become numbers   ──► members ──► container ──► read back by our own reader
//!          content becomes members
//!          waits become instructions
//! ```
//!
//! The reader's rules are not repeated here: what is packed is read back before it is handed out, so a container that
//! the reader refuses is never written.

mod tpb;

use std::collections::HashMap;

use serde_json::{Value, json};

use super::error::{NeffError, Place};
use super::header::Package;
use super::spec::{Spec, VarSpec};
use super::write::{self, Identity};
use super::{Neff, ReadOptions};
use tpb::Tpb;

/// Packs the model that `text` describes; errors call it `name`.
pub fn pack(name: &str, text: &str) -> Result<Vec<u8>, NeffError> {
    pack_as(name, text, Package::Gzip)
}

/// The same, with a choice how the payload is stored.
pub fn pack_as(name: &str, text: &str, package: Package) -> Result<Vec<u8>, NeffError> {
    let place = Place::file(name);
    let spec = Spec::parse(place, text)?;
    let cores = spec.tpb.len();
    let virtual_core_size = spec.model.virtual_core_size.unwrap_or(cores.clamp(1, 2) as u32);
    let cores_requested = cores.div_ceil(virtual_core_size.max(1) as usize);
    let cores_requested = u8::try_from(cores_requested)
        .map_err(|_| place.invalid_key("tpb", format_args!("{cores} physical cores")))?;

    check_before_content(place, &spec)?;
    let top_graph = json_member(&top_graph(place, &spec)?);
    let mut members = Vec::new();
    let mut graphs = Vec::new();
    for (number, tpb) in spec.tpb.iter().enumerate() {
        let folder = format!("sg{number:02}");
        graphs.push(json!({ "name": folder, "definition": format!("{folder}/def.json") }));
        Tpb::new(place, number, tpb, &spec.model.target)?.add_members(&folder, &mut members)?;
    }
    members.push((
        KERNEL_MEMBER.into(),
        json_member(&json!({ "graphs": graphs, "version": "0.5", "target": spec.model.target })),
    ));
    members.push(("neff.json".into(), top_graph));

    let identity = Identity { name: &spec.model.name, virtual_core_size, cores_requested };
    let file = write::container(&identity, package, &members)
        .map_err(|error| place.invalid(format_args!("cannot be put into an archive: {error}")))?;
    drop(members);
    Neff::parse(name, &file, &ReadOptions { verify_hash: true, ..ReadOptions::default() })?;
    Ok(file)
}

/// What the reader would refuse only after constants of any size have been filled, packed and unpacked again.
fn check_before_content(place: Place<'_>, spec: &Spec) -> Result<(), NeffError> {
    let mut constant_bytes = 0u64;
    for (number, tpb) in spec.tpb.iter().enumerate() {
        let key = || format!("tpb[{number}].var");
        if !tpb.var.iter().any(|var| matches!(var, VarSpec::Output(_))) {
            return Err(place.invalid_key(key(), "none of the variables is an output"));
        }
        for var in &tpb.var {
            let VarSpec::File { size, .. } = var else { continue };
            constant_bytes = constant_bytes.saturating_add(*size);
        }
        let limit = ReadOptions::default().max_archive_bytes;
        if constant_bytes > limit {
            let text = format_args!("constants of {constant_bytes} bytes, a container has room for {limit}");
            return Err(place.invalid_key(key(), text));
        }
    }
    Ok(())
}

const KERNEL_MEMBER: &str = "kelf-0.json";

fn json_member(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// The graph of the whole model: its inputs, one kernel, its outputs.
fn top_graph(place: Place<'_>, spec: &Spec) -> Result<Value, NeffError> {
    let mut inputs = Vec::new();
    let mut outputs = Vec::new();
    let mut known: HashMap<&str, (usize, &VarSpec)> = HashMap::new();
    for (number, tpb) in spec.tpb.iter().enumerate() {
        for var in &tpb.var {
            let (list, tensor) = match var {
                VarSpec::Input(tensor) => (&mut inputs, tensor),
                VarSpec::Output(tensor) => (&mut outputs, tensor),
                _ => continue,
            };
            match known.get(tensor.name.as_str()) {
                None => list.push(tensor),
                Some((core, first)) if *core != number && same_tensor(first, var) => {}
                Some((first, _)) if *first == number => {
                    return Err(
                        place.invalid_key(format!("tpb[{number}].var.{}", tensor.name), "appears twice")
                    );
                }
                Some((first, _)) => {
                    return Err(place.invalid_key(
                        format!("tpb[{number}].var.{}", tensor.name),
                        format_args!("differs in type, size or form from the one of tpb[{first}]"),
                    ));
                }
            }
            known.entry(&tensor.name).or_insert((number, var));
        }
    }
    let tensors = || inputs.iter().chain(&outputs);
    let mut nodes: Vec<Value> = inputs
        .iter()
        .map(|input| {
            json!({ "op": "null", "name": input.name, "inputs": [], "output_names": [input.name], "is_param": "0" })
        })
        .collect();
    nodes.push(json!({
        "op": "tvm_op",
        "name": "sg_core",
        "attrs": {
            "func_name": "__kelf",
            "flatten_data": "0",
            "kelf": KERNEL_MEMBER,
            "num_inputs": inputs.len().to_string(),
            "num_outputs": outputs.len().to_string(),
        },
        "inputs": (0..inputs.len()).map(|row| [row, 0, 0]).collect::<Vec<_>>(),
        "output_names": outputs.iter().map(|output| &output.name).collect::<Vec<_>>(),
    }));
    let shapes: Vec<Vec<u64>> =
        tensors().map(|tensor| tensor.shape.clone().unwrap_or_else(|| vec![tensor.size])).collect();
    let dtypes: Vec<&str> = tensors().map(|tensor| tensor.dtype.as_deref().unwrap_or("uint8")).collect();
    let storage: Vec<usize> = (0..tensors().count()).collect();
    let mut rows: Vec<usize> = (0..=inputs.len()).collect();
    rows.push(inputs.len() + outputs.len());
    Ok(json!({
        "nodes": nodes,
        "arg_nodes": (0..inputs.len()).collect::<Vec<_>>(),
        "heads": (0..outputs.len()).map(|head| [inputs.len(), head, 0]).collect::<Vec<_>>(),
        "node_row_ptr": rows,
        "attrs": {
            "shape": ["list_shape", shapes],
            "dltype": ["list_str", dtypes],
            "storage_id": ["list_int", storage],
        },
    }))
}

fn same_tensor(a: &VarSpec, b: &VarSpec) -> bool {
    match (a, b) {
        (VarSpec::Input(a), VarSpec::Input(b)) | (VarSpec::Output(a), VarSpec::Output(b)) => {
            (a.size, &a.dtype, &a.shape) == (b.size, &b.dtype, &b.shape)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::mmio::Engine;

    use super::*;
    use crate::neff::testing::SMALL;
    use crate::neff::{Program, VarKind};

    fn program(text: &str) -> Program {
        Neff::parse("f", &pack("f", text).unwrap(), &ReadOptions::default()).unwrap().programs.remove(0)
    }

    #[track_caller]
    fn refused(text: &str) -> String {
        let text = pack("f", text).unwrap_err().to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    }

    /// A model that copies once, with `copy` as the text of the copies.
    fn copying(copy: &str) -> String {
        format!(
            r#"
            model = {{ name = "m", target = "cayman" }}
            [[tpb]]
            var = [
              {{ name = "x", type = "input", size = 1048576 }},
              {{ name = "y", type = "output", size = 1048576 }},
            ]
            queue = [{{ name = "q", type = "in", owner = "act", semaphore = 1 }}]
            [[tpb.block]]
            queue = "q"
            name = "only"
            copy = [{copy}]
            "#
        )
    }

    #[test]
    fn packing_twice_gives_the_same_bytes_in_both_packages() {
        let gzip = pack("f", SMALL).unwrap();
        assert_eq!(gzip, pack("g", SMALL).unwrap());
        assert_eq!((gzip.len() - 1024) % 10_240, 0);
        let plain = pack_as("f", SMALL, Package::Plain).unwrap();
        let parse = |bytes: &[u8]| Neff::parse("f", bytes, &ReadOptions::default()).unwrap();
        let (gzip, plain) = (parse(&gzip), parse(&plain));
        assert_eq!((&gzip.programs, &gzip.members), (&plain.programs, &plain.members));
        assert_eq!((gzip.header.package, plain.header.package), (Package::Gzip, Package::Plain));
    }

    #[test]
    fn a_transfer_of_no_bytes_is_refused_and_names_its_block() {
        let of = |bytes: u64| format!("{{ from = 'x', to = 'y', to_off = 8192, bytes = {bytes} }}");
        let text = refused(&copying(&[of(4096), of(0), of(4096)].join(",")));
        assert_eq!(text, "f: tpb[0].block[0] `only`: copy from `x` to `y` has 0 bytes");
        let sizes = "{ from = 'x', from_sizes = [4, 0], from_steps = [4, 1], to = 'y' }";
        assert_eq!(refused(&copying(sizes)), "f: tpb[0].block[0] `only`: copy from `x` to `y` has 0 bytes");
    }

    #[test]
    fn pairs_are_one_per_64_kib() {
        for (bytes, pairs) in [(1, 1), (65_536, 1), (65_537, 2), (131_072, 2), (131_073, 3)] {
            let text = copying(&format!("{{ from = 'x', to = 'y', bytes = {bytes} }}"));
            assert_eq!(program(&text).engines[Engine::Act.index()].blocks[0].pairs, pairs, "{bytes} bytes");
        }
    }

    #[test]
    fn a_side_without_sizes_is_contiguous() {
        let text = copying("{ from = 'x', from_sizes = [4, 3], from_steps = [8, 1], to = 'y', to_off = 5 }");
        let blocks = program(&text).engines[Engine::Act.index()].blocks.clone();
        let transfers: Vec<_> = blocks[0].copies[0]
            .transfers()
            .map(|t| (t.from_offset_bytes, t.to_offset_bytes, t.len_bytes))
            .collect();
        assert_eq!(transfers, [(0, 5, 3), (8, 8, 3), (16, 11, 3), (24, 14, 3)]);
    }

    #[test]
    fn copies_that_make_no_sense_are_refused() {
        for (copy, want) in [
            ("{ from = 'x', to = 'y' }", "copy to `y` has neither bytes nor sizes"),
            (
                "{ from = 'x', to = 'x', bytes = 4 }",
                "copies to `x`, which is an input: programs only read it",
            ),
            ("{ from = 'x', to = 'z', bytes = 4 }", "no variable `z`"),
            ("{ from = 'x', from_sizes = [4], to = 'y' }", "`x`: sizes and steps belong together"),
            (
                "{ from = 'x', from_sizes = [4], from_steps = [1], to = 'y', bytes = 5 }",
                "`x`: sizes [4] make 4 bytes, the copy has 5",
            ),
        ] {
            assert_eq!(refused(&copying(copy)), format!("f: tpb[0].block[0] `only`: {want}"));
        }
        assert_eq!(
            refused(&copying("{ from = 'x', from_off = 1048573, to = 'y', bytes = 4 }")),
            "f: sg00/Activation.json: dma[0].desc[0].from: block 0 reaches byte 1048577 of `x`, which has 1048576 to reach"
        );
    }

    #[test]
    fn text_errors_name_the_line() {
        let line = |text: &str, want: &str| {
            let error = refused(text);
            assert!(error.starts_with(want), "{error}");
        };
        line("model = {", "f: line 1: ");
        line(&SMALL.replace("signal = 3", "signals = 3"), "f: line 24: unknown field `signals`");
        line(&SMALL.replace("signal = 3", "signal = 300"), "f: line 24: no semaphore 300: there are 256");
        line(&SMALL.replace("size = 4096 }", "size = -1 }"), "f: line ");
        line(&SMALL.replace("\"pointer\"", "\"pionter\""), "f: line ");
        line("[model]\nname = \"m\"\ntarget = \"cayman\"", "f: line 1: missing field `tpb`");
    }

    #[test]
    fn names_that_do_not_resolve_are_refused() {
        for (from, to, want) in [
            ("to = \"x\" }", "to = \"w\" }", "f: tpb[0].var.at_x.to: no variable `w`"),
            ("rows = [\"x\"", "rows = [\"w\"", "f: tpb[0].var.all.rows: no variable `w`"),
            ("name = \"keep\"", "name = \"x\"", "f: tpb[0].var.x: appears twice"),
            ("name = \"q_out\"", "name = \"q_in\"", "f: tpb[0].queue.q_in: appears twice"),
            ("queue = \"q_in\"", "queue = \"q\"", "f: tpb[0].block[0] `unnamed`: no queue `q`"),
            (
                "queue = \"q_in\"",
                "queue = \"q_dyn\"",
                "f: tpb[0].block[0] `unnamed`: queue `q_dyn` is dynamic",
            ),
            (
                "repeat = \"0aFf\"",
                "repeat = \"0a0\"",
                "f: tpb[0].var.k.repeat: `0a0`: want pairs of hexadecimal digits",
            ),
            ("repeat = \"0aFf\"", "repeat = \"0g\"", "f: tpb[0].var.k.repeat: `0g`: want hexadecimal digits"),
            ("target = \"cayman\"", "target = \"trn9\"", "f: kelf-0.json: target: Invalid target = `trn9`"),
            (
                "owner = \"sp\"",
                "owner = \"ps\"",
                "f: sg00/def.json: dma_queue.q_out.owner: Invalid owner 'ps' for DMA queue `q_out`",
            ),
        ] {
            assert_eq!(refused(&SMALL.replacen(from, to, 1)), want);
        }
        let five = "[{ semaphore = 3, at_least = 1 }]";
        let waits = format!("[{}]", ["{ semaphore = 3, at_least = 1 }"; 5].join(", "));
        assert_eq!(
            refused(&SMALL.replacen(five, &waits, 1)),
            "f: tpb[0].block[1] `store`: waits for 5 semaphores, at most 4"
        );
    }

    #[test]
    fn constants_are_not_filled_for_a_model_that_is_refused() {
        let spec = |vars: &str| {
            format!(
                "model = {{ name = \"m\", target = \"cayman\" }}\ntpb = [{{ var = [\n\
                 {{ name = \"k\", type = \"file\", size = 900_000_000, repeat = \"01\" }},\n{vars}] }}]"
            )
        };
        let allocated = |text: &str, want: &str| {
            let info = allocation_counter::measure(|| assert_eq!(refused(text), want));
            assert!(info.bytes_max < 1 << 20, "{} bytes for {want}", info.bytes_max);
        };
        allocated(&spec(""), "f: tpb[0].var: none of the variables is an output");
        let more = "{ name = \"y\", type = \"output\", size = 8 },\n\
                    { name = \"l\", type = \"file\", size = 900_000_000, repeat = \"01\" }";
        let want = "f: tpb[0].var: constants of 1800000000 bytes, a container has room for 1073741824";
        allocated(&spec(more), want);
    }

    #[test]
    fn cores_share_tensors_of_the_same_form_only() {
        let tpb = |size: u64| {
            format!(
                "[[tpb]]\nvar = [{{ name = 'x', type = 'input', size = {size} }}, {{ name = 'y', type = 'output', size = 4 }}]\n"
            )
        };
        let model = |tpbs: &[String]| format!("model = {{ name = 'm', target = '*' }}\n{}", tpbs.concat());
        let neff = Neff::parse("f", &pack("f", &model(&[tpb(8), tpb(8)])).unwrap(), &ReadOptions::default());
        let neff = neff.unwrap();
        assert_eq!(
            (neff.programs.len(), neff.header.virtual_core_size, neff.header.cores_requested),
            (2, 2, 1)
        );
        assert!(neff.programs.iter().all(|program| program.carve_out.is_none()));
        assert_eq!(
            refused(&model(&[tpb(8), tpb(9)])),
            "f: tpb[1].var.x: differs in type, size or form from the one of tpb[0]"
        );
        let both = "{ name = 'x', type = 'input', size = 8 }, { name = 'x', type = 'output', size = 8 }";
        assert_eq!(
            refused(&model(&[format!("[[tpb]]\nvar = [{both}]\n")])),
            "f: tpb[0].var.x: appears twice"
        );
        assert_eq!(
            refused("tpb = []\nmodel = { name = 'm', target = '*' }"),
            "f: kelf-0.json: graphs: 0 subgraphs, want 1 to 64"
        );
    }

    #[test]
    fn constants_come_back() {
        let constant = program(SMALL).var_named("k").unwrap().kind.clone();
        assert_eq!(constant, VarKind::File { content: vec![0x0A, 0xFF, 0x0A, 0xFF, 0x0A].into() });
    }
}
