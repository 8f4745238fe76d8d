//! Captures after the run: checked, exported, reported, damaged.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use sluice_host::capture::Kind;
use sluice_host::capture::format::{HEAD_BYTES, HEADER_BYTES, SegmentHead};
use zerocopy::FromBytes as _;

use crate::{Folder, check, code, command, sluice, text};

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
    let of_folder = sluice(&["report", "--json", folder.out()]);
    assert_eq!(text(&of_folder.stdout), text(&shown.stdout));
    assert_eq!(code(&sluice(&["check", folder.out()])), 0);
    let page = sluice(&["report", capture.to_str().unwrap()]);
    assert!(text(&page.stdout).starts_with("gather on sim a2a3 as cayman, gate scope all, run "));
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
fn a_capture_is_not_written_over_by_its_export() {
    let folder = recorded("over");
    let (capture, link) = (folder.path("capture.slc"), folder.path("link"));
    let before = std::fs::read(&capture).unwrap();
    std::fs::hard_link(&capture, &link).unwrap();
    for output in [&capture, &link] {
        let exported = sluice(&["export", folder.out(), "-o", output.to_str().unwrap()]);
        let said = text(&exported.stderr);
        assert!(code(&exported) == 1 && said.contains("is the capture itself"), "{said}");
    }
    assert!(std::fs::read(&capture).unwrap() == before);
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
    let planned = sluice(&["plan", folder.out()]);
    assert!(code(&planned) == 1 && text(&planned.stderr).contains(": byte "), "{}", text(&planned.stderr));
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
        (&folder.0, "capture.slc: No such file"),
    ] {
        for command in ["check", "report"] {
            let output = sluice(&[command, path.to_str().unwrap()]);
            let said = text(&output.stderr);
            assert_eq!(code(&output), 1);
            assert!(said.contains(why) && said.lines().count() == 1, "{said}");
        }
    }
}

/// Zeroes the whole segment of every buffer.
fn wipe(capture: &Path) {
    let mut bytes = std::fs::read(capture).unwrap();
    let mut at = HEADER_BYTES;
    while let Some(head) = bytes.get(at..at + HEAD_BYTES) {
        let head = SegmentHead::read_from_bytes(head).unwrap();
        let end = at + HEAD_BYTES + head.payload_bytes as usize + head.padding_bytes();
        if head.kind == Kind::BUFFER {
            bytes[at..end].fill(0);
        }
        at = end;
    }
    std::fs::write(capture, bytes).unwrap();
}

#[test]
fn a_capture_without_its_records_is_neither_lossless_nor_right() {
    let folder = recorded("wiped");
    let (capture, trace) = (folder.path("capture.slc"), folder.path("again.pftrace"));
    wipe(&capture);
    let capture = capture.to_str().unwrap();
    let shown = sluice(&["report", "--json", capture]);
    let report: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!((code(&shown), &report["lossless"]), (1, &Value::from(false)));
    let page = sluice(&["report", capture]);
    let said = text(&page.stdout);
    assert_eq!(code(&page), 1);
    assert!(said.contains("wrong       capture: byte "), "{said}");
    assert!(said.contains("0 records in 0 buffers here, the run counted"), "{said}");
    assert!(said.ends_with("result      RECORDS LOST, NOT all right\n"), "{said}");
    let (checked, status) = check(Path::new(capture));
    assert_eq!((&checked["lossless"], status), (&Value::from(false), 1));
    let exported = sluice(&["export", capture, "-o", trace.to_str().unwrap()]);
    assert_eq!(code(&exported), 1);
    assert!(text(&exported.stderr).contains("here, the run counted"));
    assert!(trace.metadata().unwrap().len() > 0, "what is there is exported");
}

#[test]
fn standard_output_that_is_full_is_named() {
    let folder = recorded("stdout");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let capture = folder.path("capture.slc");
    let output = command().args(["check", capture.to_str().unwrap()]).stdout(full).output().unwrap();
    assert_eq!(code(&output), 1);
    let said = text(&output.stderr);
    assert!(said.starts_with("sluice: cannot write to standard output: No space left"), "{said}");
}
