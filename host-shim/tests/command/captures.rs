//! Captures after the run: checked, exported, reported, damaged.

use std::process::{Command, Stdio};

use crate::{Folder, check, code, sluice, text};

fn recorded(test: &str) -> Folder {
    let folder = Folder::new(test);
    let output = sluice(&["run", "--executions", "3", "--out", folder.out()]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    folder
}

#[test]
fn the_report_comes_back_out_of_the_capture() {
    let folder = recorded("report");
    let capture = folder.path("capture.slc");
    let shown = sluice(&["report", "--json", capture.to_str().unwrap()]);
    assert_eq!(text(&shown.stdout), std::fs::read_to_string(folder.path("report.json")).unwrap());
    let page = sluice(&["report", capture.to_str().unwrap()]);
    assert!(text(&page.stdout).starts_with("gather on sim a2a3, gate scope all, run "));
}

#[test]
fn exporting_again_gives_the_same_trace() {
    let folder = recorded("export");
    let (capture, again) = (folder.path("capture.slc"), folder.path("again.pftrace"));
    let args = ["export", capture.to_str().unwrap(), "--format", "perfetto", "-o", again.to_str().unwrap()];
    assert_eq!(code(&sluice(&args)), 0);
    assert_eq!(std::fs::read(again).unwrap(), std::fs::read(folder.path("trace.pftrace")).unwrap());
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let folder = recorded("pipe");
    let capture = folder.path("capture.slc");
    let capture = capture.to_str().unwrap();
    for args in [&["report", capture][..], &["report", "--json", capture], &["check", capture]] {
        // The read end is closed before the first byte is written.
        let mut child = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((code(&output), text(&output.stderr)), (0, ""), "{args:?}");
    }
}

#[test]
fn a_flipped_bit_is_named_by_its_place() {
    let folder = recorded("flipped");
    let capture = folder.path("capture.slc");
    let mut bytes = std::fs::read(&capture).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&capture, bytes).unwrap();
    let (checked, status) = check(&capture);
    assert_eq!((&checked["damages"], status), (&serde_json::json!(1), 1));
    assert!(checked["findings"][0].as_str().unwrap().starts_with("byte "), "{checked}");
}

#[test]
fn what_is_no_capture_is_refused_in_one_line() {
    let folder = Folder::new("foreign");
    let (empty, foreign) = (folder.path("empty"), folder.path("foreign"));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&foreign, [7; 4096]).unwrap();
    for (path, why) in [
        (&empty, "not a capture: need 64 header bytes, got 0"),
        (&foreign, "not a capture: begins with [07, 07"),
        (&folder.path("absent"), "No such file"),
        (&folder.0, "Is a directory"),
    ] {
        for command in ["check", "report"] {
            let output = sluice(&[command, path.to_str().unwrap()]);
            let said = text(&output.stderr);
            assert_eq!(code(&output), 1);
            assert!(said.contains(why) && said.lines().count() == 1, "{said}");
        }
    }
}
