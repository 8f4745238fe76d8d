//! `sluice pack` and `sluice inspect` as a person calls them.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sluice-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn sluice(folder: &Folder, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).current_dir(&folder.0).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn what_is_packed_can_be_inspected() {
    let folder = Folder::new("pack");
    for package in [&[][..], &["--plain"]] {
        let pack = [&["pack", "gather", "-o", "gather.neff"], package].concat();
        assert!(sluice(&folder, &pack).status.success());
        let shown = sluice(&folder, &["inspect", "gather.neff", "--verify-hash"]);
        assert!(shown.status.success());
        assert!(
            text(&shown.stdout)
                .contains("block 0 gather_column on q_in: 32768 bytes in 256 descriptor pairs")
        );
        let json = sluice(&folder, &["inspect", "gather.neff", "--json"]);
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(json["subgraphs"][0]["vars"][0]["name"], "a");
        assert_eq!(json["subgraphs"][1]["engines"][0]["blocks"][1]["pairs"], 257);
        let gather = &json["build"]["tpbs"][0];
        assert_eq!(gather["contract"][2]["name"], "own0");
        let ring = &gather["rings"][1];
        assert_eq!((&ring["queue"], &ring["dynamic"]), (&"q_in".into(), &true.into()));
        // 256 + 128 pairs; a linear ring has 16 more slots.
        assert_eq!((&ring["descriptors"], &ring["allocated"]), (&384.into(), &400.into()));
        assert_eq!(ring["bytes"], 2 * 16 * 400);
        assert_eq!(json["build"]["tensor_bytes"].as_object().unwrap().keys().collect::<Vec<_>>(), ["TENSOR"]);
        assert!(json["build"]["load_bytes"]["INSTR_POOL"].as_u64().unwrap() > 0);
        let ring_bytes = |tpb: &serde_json::Value| -> u64 {
            let rings = tpb["rings"].as_array().unwrap().iter().filter(|ring| ring["dynamic"] == true);
            rings.map(|ring| ring["bytes"].as_u64().unwrap()).sum()
        };
        let ring_bytes: u64 = json["build"]["tpbs"].as_array().unwrap().iter().map(ring_bytes).sum();
        let built = json["build"]["build_bytes"].as_object().unwrap();
        let of_rings = built.iter().filter(|(tag, _)| tag.starts_with("DMA_RING"));
        assert_eq!(of_rings.map(|(_, bytes)| bytes.as_u64().unwrap()).sum::<u64>(), ring_bytes);
        assert!(built["GENERIC"].as_u64().unwrap() > 0);
        assert_eq!(json["refused"], serde_json::Value::Null);
    }
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn every_pointer_is_shown_with_its_target_and_when_it_is_written() {
    let folder = Folder::new("inspect-pointers");
    assert!(sluice(&folder, &["pack", "pointers", "-o", "p.neff"]).status.success());
    let json = sluice(&folder, &["inspect", "p.neff", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let pointers: Vec<_> = json["build"]["tpbs"][0]["pointers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| {
            (
                p["owner"].as_str().unwrap(),
                p["row"].as_u64(),
                p["target"].as_str().unwrap(),
                p["patched"] == true,
            )
        })
        .collect();
    assert_eq!(
        pointers,
        [
            ("at_x", None, "x", true),
            ("at_z", None, "z", true),
            ("at_keep", None, "keep", false),
            ("all", Some(0), "x", true),
            ("all", Some(1), "y", true),
            ("all", Some(2), "z", true),
            ("all", Some(3), "keep", false),
        ]
    );
}

#[test]
fn a_model_that_no_device_could_load_is_shown_and_is_a_failure() {
    let folder = Folder::new("inspect-refused");
    let var = r#"[{ name = "y", type = "output", size = 1 }]"#;
    let spec =
        format!("[model]\nname = \"many\"\ntarget = \"*\"\n{}", format!("[[tpb]]\nvar = {var}\n").repeat(9));
    std::fs::write(folder.0.join("many.toml"), spec).unwrap();
    let packed = sluice(&folder, &["pack", "many.toml", "-o", "many.neff"]);
    assert!(packed.status.success(), "{}", text(&packed.stderr));
    for json in [&[][..], &["--json"]] {
        let shown = sluice(&folder, &[&["inspect", "many.neff"], json].concat());
        assert_eq!(shown.status.code(), Some(1));
        assert!(text(&shown.stdout).contains("sg08") && text(&shown.stdout).contains("9 subgraphs"));
        let reason = text(&shown.stderr);
        assert!(reason.starts_with("sluice: many.neff: cannot be loaded: model has 9 subgraphs"), "{reason}");
        assert!(reason.ends_with("(status 9, LOAD_NOT_ENOUGH_NC)\n"), "{reason}");
    }
}

#[test]
fn refusals_are_one_line_with_the_status() {
    let folder = Folder::new("refuse");
    assert!(sluice(&folder, &["pack", "pointers", "-o", "p.neff"]).status.success());
    let mut bytes = std::fs::read(folder.0.join("p.neff")).unwrap();
    bytes[0x220 + 3] |= 1 << 3;
    std::fs::write(folder.0.join("p.neff"), bytes).unwrap();
    let refused = sluice(&folder, &["inspect", "p.neff"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        text(&refused.stderr),
        "sluice: p.neff: features: feature bit 27 set, supported mask 0x8000000007ffffff \
         (status 10, UNSUPPORTED_NEFF_VERSION)\n"
    );
    std::fs::write(folder.0.join("bad.toml"), "[model]\nname = 1\n").unwrap();
    let refused = sluice(&folder, &["pack", "bad.toml", "-o", "bad.neff"]);
    assert!(text(&refused.stderr).starts_with("sluice: bad.toml: line 2: "), "{}", text(&refused.stderr));
    assert!(!folder.0.join("bad.neff").exists());
    let refused = sluice(&folder, &["inspect", "none.neff"]);
    assert!(text(&refused.stderr).starts_with("sluice: none.neff: "));
    assert_eq!(text(&refused.stderr).lines().count(), 1);
}

#[test]
fn a_reader_that_stops_early_is_no_error() {
    let folder = Folder::new("pipe");
    let vars: Vec<_> = (0..1000)
        .map(|i| format!("{{ name = \"a_rather_long_name_of_an_input_{i}\", type = \"input\", size = 64 }}"))
        .collect();
    let spec = format!(
        "[model]\nname = \"wide\"\ntarget = \"*\"\n[[tpb]]\nvar = [{}, {{ name = \"y\", type = \"output\", size = 1 }}]\n",
        vars.join(",\n")
    );
    std::fs::write(folder.0.join("wide.toml"), spec).unwrap();
    assert!(sluice(&folder, &["pack", "wide.toml", "-o", "wide.neff"]).status.success());
    for json in [&[][..], &["--json"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args([&["inspect", "wide.neff"], json].concat())
            .current_dir(&folder.0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // More is printed than a pipe holds, so the command meets the closed end.
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    }
}

#[test]
fn a_model_does_not_overwrite_its_own_text() {
    let folder = Folder::new("pack-self");
    let gather = sluice_host::neff::models::builtin("gather").unwrap();
    std::fs::write(folder.0.join("model.toml"), gather).unwrap();
    std::fs::hard_link(folder.0.join("model.toml"), folder.0.join("same.neff")).unwrap();
    for output in ["model.toml", "./model.toml", "same.neff"] {
        let refused = sluice(&folder, &["pack", "model.toml", "-o", output]);
        assert_eq!(
            (refused.status.code(), text(&refused.stderr)),
            (Some(1), format!("sluice: {output}: the model would overwrite its own text\n").as_str())
        );
    }
    assert_eq!(std::fs::read_to_string(folder.0.join("model.toml")).unwrap(), gather);
}
