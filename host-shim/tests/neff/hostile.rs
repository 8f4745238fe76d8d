//! Containers made to do harm.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use sluice_core::exec::NrtStatus;
use sluice_host::neff::{HEADER_BYTES, Neff, NeffError, Package, ReadOptions, models, pack_as};

use crate::real_model;

/// A container of version 2 around any payload.
fn container(payload: &[u8]) -> Vec<u8> {
    let mut bytes = pack_as("gather", models::builtin("gather").unwrap(), Package::Gzip).unwrap();
    bytes.truncate(HEADER_BYTES);
    bytes[0x10..0x18].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend(payload);
    bytes
}

fn gzip(content: &mut dyn std::io::Read) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    std::io::copy(content, &mut encoder).unwrap();
    encoder.finish().unwrap()
}

/// An archive with the given members.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in members {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn refused(bytes: &[u8]) -> NeffError {
    let error = Neff::parse("hostile", bytes, &ReadOptions::default()).unwrap_err();
    assert!(!error.to_string().contains('\n'));
    error
}

/// A model whose only subgraph has this definition.
fn with_definition(definition: &[u8]) -> Vec<u8> {
    container(&gzip(
        &mut archive(&[
            ("neff.json", br#"{"nodes": [{"attrs": {"kelf": "kelf-0.json"}}]}"#),
            (
                "kelf-0.json",
                br#"{"graphs": [{"name": "sg00", "definition": "def.json"}], "target": "cayman"}"#,
            ),
            ("def.json", definition),
        ])
        .as_slice(),
    ))
}

#[test]
fn a_million_variables_are_refused_by_their_number() {
    let mut definition = b"{\"var\":{".to_vec();
    for id in 0..1_000_000 {
        write!(definition, "\"v{id}\":{{\"type\":\"output\",\"size\":1,\"var_id\":{id}}},").unwrap();
    }
    definition.pop();
    definition.extend(b"}}");
    let error = refused(&with_definition(&definition));
    assert_eq!(error.to_string(), "hostile: def.json: var: more than 524288 entries");
    assert_eq!(error.status(), NrtStatus::INVALID);
}

#[test]
fn deep_nesting_is_refused() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{{\"var\":{}1{}}}", open.repeat(1_000_000), close.repeat(1_000_000));
        let text = refused(&with_definition(deep.as_bytes())).to_string();
        assert!(
            text.starts_with("hostile: def.json: var") && text.ends_with("nested deeper than 32"),
            "{text}"
        );
    }
}

#[test]
fn a_bomb_is_refused_without_room_for_it() {
    let bomb = container(&gzip(&mut std::io::Read::take(std::io::repeat(0), (1 << 30) + 1)));
    let text = refused(&bomb).to_string();
    assert_eq!(text, "hostile: the archive has more than 1073741824 bytes unpacked, the limit");
}

#[test]
fn an_archive_without_members_has_no_graph() {
    let text = refused(&container(&gzip(&mut archive(&[]).as_slice()))).to_string();
    assert_eq!(text, "hostile: no member neff.json or kelp.json in the archive");
}

#[test]
fn many_subgraphs_of_one_member_share_one_budget() {
    let graph = r#"{"name": "sg", "definition": "def.json"}"#;
    let kernel = format!("{{\"graphs\": [{}], \"target\": \"*\"}}", [graph; 64].join(","));
    let list = vec!["0"; 200_000].join(",");
    let definition = format!(
        r#"{{"var": {{"y": {{"type": "output", "size": 1, "var_id": 0}},
            "t": {{"type": "dge-table", "list": [{list}], "var_id": 1}}}}}}"#
    );
    let bytes = container(&gzip(
        &mut archive(&[
            ("neff.json", br#"{"nodes": [{"attrs": {"kelf": "kelf-0.json"}}]}"#),
            ("kelf-0.json", kernel.as_bytes()),
            ("def.json", definition.as_bytes()),
        ])
        .as_slice(),
    ));
    let text = refused(&bytes).to_string();
    assert!(text.ends_with("more than 8388608 values in the JSON of the container, the limit"), "{text}");
}

#[test]
fn unknown_features_of_a_real_model_are_named() {
    let Some(path) = real_model::path() else { return };
    let original = std::fs::read(path).unwrap();
    for bit in [26, 27, 62, 63] {
        let mut bytes = original.clone();
        bytes[0x220 + bit / 8] |= 1 << (bit % 8);
        let parsed = Neff::parse("real", &bytes, &ReadOptions::default());
        if bit == 26 || bit == 63 {
            assert_eq!(parsed.unwrap().programs.len(), 2);
        } else {
            let error = parsed.unwrap_err();
            assert_eq!(error.status(), NrtStatus::UNSUPPORTED_NEFF_VERSION);
            assert_eq!(
                error.to_string(),
                format!("real: features: feature bit {bit} set, supported mask 0x8000000007ffffff")
            );
        }
    }
}
