//! The folder of a run: one run at a time, nothing of another run in it, and a run that survives its loss.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use serde_json::{Value, json};

use crate::{Folder, check, code, command, endless, signal, sluice, text};

/// A model that would be executed for ever.
const RUN: [&str; 4] = ["run", "--json", "--executions", "1000000000"];
const ARTEFACTS: [&str; 3] = ["capture.slc", "report.json", "trace.pftrace"];

#[test]
fn a_second_run_is_refused_while_the_first_lives_and_not_after_its_death() {
    let folder = Folder::new("two-runs");
    let mut first = endless(&folder, &RUN);
    let second = ["run", "--executions", "1", "--out", folder.out()];
    let output = sluice(&second);
    let refusal = format!("sluice: output folder {} is in use by another run\n", folder.out());
    assert_eq!((code(&output), text(&output.stderr), text(&output.stdout)), (1, refusal.as_str(), ""));
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(folder.names(), ["capture.slc"]);
    assert_eq!(code(&sluice(&second)), 0);
    assert_eq!(folder.names(), ARTEFACTS);
}

#[test]
fn nothing_of_an_earlier_run_stays_beside_a_new_capture() {
    let folder = Folder::new("stale");
    assert_eq!(code(&sluice(&["run", "--executions", "1", "--out", folder.out()])), 0);
    assert_eq!(folder.names(), ARTEFACTS);
    fs::write(folder.path(".trace.pftrace.1-2"), "left by a run that was killed").unwrap();
    let mut child = endless(&folder, &RUN);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(folder.names(), ["capture.slc"]);
}

#[test]
fn a_run_whose_files_vanish_still_says_what_it_counted() {
    let vanish = |folder: &Folder, what: &str| match what {
        "" => fs::remove_dir_all(&folder.0).unwrap(),
        file => fs::remove_file(folder.path(file)).unwrap(),
    };
    for (what, written) in [("capture.slc", json!({"trace": "trace.pftrace"})), ("", json!({}))] {
        let folder = Folder::new(&format!("vanish-{what}"));
        let child = endless(&folder, &RUN);
        vanish(&folder, what);
        signal(&child, "-INT");
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 130);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let subsystems = report["dfx"].as_object().unwrap().values();
        let collected: u64 = subsystems.map(|figures| figures["collected"].as_u64().unwrap()).sum();
        assert_eq!((&report["lossless"], &report["artefacts"]), (&json!(true), &written));
        assert_eq!(report["verified"]["records"], collected);
        let wrong: Vec<_> = report["wrong"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let gone = format!(
            "cannot write {}: it was removed or replaced during the run",
            folder.path("capture.slc").display()
        );
        assert!(wrong.contains(&gone.as_str()), "{wrong:?}");
        assert_eq!(wrong.len(), if what.is_empty() { 3 } else { 1 }, "{wrong:?}");
    }
}

#[test]
fn names_that_are_no_text_and_names_with_control_characters_are_names() {
    let folder = Folder::new("bytes");
    for name in [&b"p\xff"[..], b"line\nbreak"] {
        let out = folder.0.join(OsStr::from_bytes(name));
        for what in ["run", "stress"] {
            let count = if what == "run" { "--executions" } else { "--records" };
            let output = command().args([what, count, "10", "--out"]).arg(&out).output().unwrap();
            assert_eq!((code(&output), text(&output.stderr)), (0, ""), "{what}");
            let page = text(&output.stdout);
            assert!(
                page.contains("p\u{fffd}/report.json") || page.contains("line\\nbreak/report.json"),
                "{page}"
            );
        }
        assert_eq!(check(&out.join("capture.slc")).1, 0);
    }
    let absent = command().args(["run", "--model"]).arg(OsStr::from_bytes(b"g\xff.neff")).output().unwrap();
    assert_eq!((code(&absent), text(&absent.stderr).lines().count()), (1, 1), "{}", text(&absent.stderr));
}

#[test]
fn a_summary_names_only_what_was_written() {
    let folder = Folder::new("named");
    fs::write(folder.path("trace.pftrace"), "of an earlier run").unwrap();
    // The shell's unit is 1024 bytes; ignoring the signal turns the limit into an error of the write.
    let limited = format!(
        "trap '' XFSZ; ulimit -f 280; exec '{}' run --executions 100 --dfx swimlane --out '{}'",
        env!("CARGO_BIN_EXE_sluice"),
        folder.out()
    );
    let output = std::process::Command::new("bash").args(["-c", &limited]).output().unwrap();
    let page = text(&output.stdout);
    assert_eq!(code(&output), 1, "{page}");
    assert_eq!(folder.names(), ["capture.slc", "report.json"], "{page}");
    assert!(!page.contains("open in ui.perfetto.dev"), "{page}");
    assert_eq!(folder.report()["artefacts"], json!({"capture": "capture.slc"}));
    let shown = sluice(&["report", "--json", folder.path("capture.slc").to_str().unwrap()]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["artefacts"], json!({"capture": "capture.slc"}));
}
