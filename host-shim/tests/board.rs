//! The firmware's own image on an emulated board, against the live host. `SLUICE_VIRT_IMAGE` names the image.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice_host::capture::Reader;
use sluice_host::device::qemu::{QemuConfig, QemuDevice, QemuError};

const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");

fn image() -> PathBuf {
    std::env::var_os("SLUICE_VIRT_IMAGE").expect("the image: run `cargo xtask test --only qemu`").into()
}

/// A folder for one test's artefacts, emptied.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("board").join(name);
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn sluice(command: &str, name: &str, arguments: &str) -> Output {
    sluice_command(command, name, arguments).output().expect("the command starts")
}

fn sluice_command(command: &str, name: &str, arguments: &str) -> Command {
    let mut sluice = Command::new(SLUICE);
    sluice.args([command, "--device", "qemu-aarch64", "--json", "--firmware"]).arg(image());
    sluice.arg("--out").arg(folder(name)).args(arguments.split_whitespace());
    sluice
}

/// Looks again and again until there is something; for a minute.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn report(command: &str, name: &str, arguments: &str) -> Value {
    let output = sluice(command, name, arguments);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {}\n{words}", output.status);
    serde_json::from_slice(&output.stdout).expect("a report")
}

#[test]
fn a_board_executes_models_and_records_all_of_it() {
    for (number, arguments) in
        ["--lanes 1", "--lanes 4 --buffers 1", "--arch a5 --lanes 2 --transport copy"].iter().enumerate()
    {
        let report = report("run", &format!("run-{number}"), &format!("--executions 10 {arguments}"));
        for key in ["lossless", "outputs_verified", "swaps_verified"] {
            assert_eq!(report[key], true, "{arguments}: {key}");
        }
        assert_eq!(report["model"]["executions"], 10);
        for processor in report["status"]["processors"].as_array().expect("processors") {
            let used = processor["stack"]["used_bytes"].as_u64();
            assert!(used > Some(0) && used < processor["stack"]["bytes"].as_u64(), "{processor}");
        }
        assert_eq!(report["status"]["phase"], "ready", "{arguments}");
        let lanes = report["status"]["lanes"].as_array().expect("lanes");
        assert!(lanes.iter().all(|lane| lane["dropped"] == 0 && lane.get("parked").is_none()), "{lanes:?}");
        let subsystems = report["dfx"].as_object().expect("subsystems");
        assert_eq!(subsystems.len(), 5, "{arguments}");
        for (name, figures) in subsystems {
            assert!(figures["collected"].as_u64() > Some(0), "{arguments}: {name}");
            assert_eq!(figures["collected"], figures["produced"], "{arguments}: {name}");
        }
    }
}

#[test]
fn a_board_loses_nothing_to_a_host_that_stands_still() {
    let report = report(
        "stress",
        "stress",
        "--lanes 2 --buffers 1 --dfx swimlane --records 200000 --pause-host 300@86400000",
    );
    assert_eq!(report["lossless"], true);
    assert_eq!(report["dfx"]["swimlane"]["collected"], 200_000);
    let longest = report["dfx"]["swimlane"]["freezes"]["fq"]["max_ns"].as_u64();
    // It begins once the lanes have filled what they had when the pause began.
    assert!(longest >= Some(200_000_000), "the freeze takes most of the pause, got {longest:?}");
}

#[test]
fn a_board_makes_up_arguments_with_bytes_chains_and_records_of_cores() {
    for device in ["--arch a2a3 --transport shared", "--arch a5 --transport copy"] {
        let kinds = "--subsystem args_dump,dep_gen,aicore_task --payload-bytes 3000 --chain 4";
        let load = "--lanes 2 --buffers 1 --arena 16384 --records 6000 --pause-host 100@5";
        let report = report("stress", "made-up", &format!("{kinds} {load} {device}"));
        assert_eq!(report["lossless"], true, "{device}");
        let sequences = &report["sequences"];
        assert_eq!((&sequences["missing"], &sequences["repeated"]), (&0.into(), &0.into()), "{device}");
        assert_eq!(sequences["records"], 6000, "{device}");
        let (payloads, chains) = (&report["payloads"], &report["chains"]);
        assert!(payloads["count"].as_u64() > Some(0), "{device}: {payloads}");
        assert_eq!((&payloads["wrong"], &payloads["missing"]), (&0.into(), &0.into()), "{device}");
        assert!(chains["links"].as_u64() > Some(0) && chains["torn"] == 0, "{device}: {chains}");
    }
}

#[test]
fn a_board_that_cannot_start_is_given_up_with_the_reason() {
    let config = QemuConfig { start_bound: Duration::from_secs(3), ..QemuConfig::new(image(), 2) };
    let refused = |config: &QemuConfig| QemuDevice::start(config).err().expect("no device");
    let error = refused(&QemuConfig { qemu: "no-such-emulator".into(), ..config.clone() });
    assert!(
        matches!(error, QemuError::Spawn { .. }) && error.to_string().contains("no-such-emulator"),
        "{error}"
    );
    let error = refused(&QemuConfig { image: "no-such-image".into(), ..config.clone() });
    assert!(matches!(error, QemuError::Spawn { .. }), "{error}");
    let error = refused(&QemuConfig { processors: 1, ..config.clone() });
    assert_eq!(error.to_string(), "need 2 to 8 processors, got 1");
    let error = refused(&QemuConfig { ram_bytes: 8 << 30, ..config.clone() });
    assert!(matches!(error, QemuError::Map { .. }), "{error}");
    // The image has room for fewer TPBs than a device may have: the first processor to say so does, of sequencers or cores.
    let error = refused(&QemuConfig { tpbs: 8, ..config.clone() });
    assert!(error.to_string().contains("it has room for"), "{error}");
    // Words that are no program: nothing ever becomes ready.
    let junk = folder("junk").with_extension("bin");
    std::fs::create_dir_all(junk.parent().expect("a folder")).expect("a folder");
    std::fs::write(&junk, [0; 4096]).expect("a file");
    let error = refused(&QemuConfig { image: junk, ..config });
    assert!(matches!(error, QemuError::NotReady { ready: 0, .. } | QemuError::Ended(_)), "{error}");
}

#[test]
fn a_stack_that_overflows_is_named() {
    let image = std::env::var_os("SLUICE_OVERFLOW_IMAGE").expect("run `cargo xtask test --only qemu`").into();
    let config = QemuConfig { start_bound: Duration::from_secs(60), ..QemuConfig::new(image, 3) };
    let error = QemuDevice::start(&config).err().expect("no device");
    let words = error.to_string();
    assert!(matches!(error, QemuError::Stopped(_)), "{words}");
    assert!(words.contains("processor 2: ") && words.contains("stack of processor 2 overflowed"), "{words}");
}

#[test]
fn an_emulator_that_is_none_or_too_old_is_refused_by_its_version() {
    use std::os::unix::fs::PermissionsExt;
    let script = folder("emulator").with_extension("sh");
    std::fs::create_dir_all(script.parent().expect("a folder")).expect("a folder");
    let refused = |says: &str| {
        std::fs::write(&script, format!("#!/bin/sh\necho '{says}'\n")).expect("a file");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("a file");
        QemuDevice::start(&QemuConfig { qemu: script.clone(), ..QemuConfig::new(image(), 1) })
            .err()
            .expect("no device")
    };
    let error = refused("QEMU emulator version 4.2.1 (Debian 1:4.2-3)");
    assert!(error.to_string().ends_with("is QEMU 4.2.1 (Debian 1:4.2-3), need 7.0 or newer"), "{error}");
    let error = refused("hello");
    assert!(matches!(error, QemuError::NotQemu { .. }), "{error}");
}

/// A command that drives a board, and is looked at from here.
struct Driven(Child);

impl Driven {
    fn start(command: &str, name: &str, arguments: &str) -> Self {
        let mut command = sluice_command(command, name, arguments);
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts"))
    }

    /// What its board says of itself, if there is one.
    fn status(&self) -> Option<Value> {
        let output = Command::new(SLUICE).args(["status", "--json", &self.0.id().to_string()]).output();
        let boards: Value = serde_json::from_slice(&output.expect("the command starts").stdout).ok()?;
        Some(boards[0]["status"].clone())
    }

    /// The board's own process, its only child.
    fn board(&self) -> String {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.0.id()));
        let children = children.expect("a running process");
        children.split_whitespace().next().expect("a board").into()
    }

    /// Ends the board, and waits for the report of that.
    fn end_board(mut self) -> Value {
        assert!(Command::new("kill").args(["-9", &self.board()]).status().expect("kill").success());
        wait_for("end of the command", || self.0.try_wait().expect("a child"));
        let output = self.0.wait_with_output().expect("a child");
        assert!(!output.status.success());
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        let wrong = report["wrong"].to_string();
        assert!(wrong.contains("the device stopped: signal: 9 (SIGKILL)"), "{wrong}");
        report
    }
}

#[test]
fn another_process_sees_what_a_board_does_and_what_became_of_it() {
    let arguments =
        "--lanes 2 --buffers 1 --dfx swimlane --records 1000000000000 --rate 200000 --deadline 2000";
    let run = Driven::start("stress", "killed", arguments);
    // Lanes that make records have waited for a host with one buffer of each kind before long.
    let status = wait_for("waits of both lanes", || {
        let status = run.status()?;
        let lanes = status["lanes"].as_array()?;
        lanes.iter().all(|lane| lane["stalls"].as_u64() > Some(0)).then_some(status)
    });
    assert_eq!((&status["phase"], &status["frequency_hz"]), (&"ready".into(), &62_500_000.into()));
    assert_eq!(status["processors"].as_array().map(Vec::len), Some(3));
    let seen = Command::new(SLUICE).args(["status", &run.board()]).output().expect("the command starts");
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(seen.contains("lane 1 ") && seen.contains("of stack used"), "{seen}");

    let report = run.end_board();
    assert_eq!(report["lossless"], false);
    assert_eq!(report["status"]["lanes"].as_array().map(Vec::len), Some(2), "its last words are kept");
    // What was drained is there, and the capture can be read.
    let collected = report["dfx"]["swimlane"]["collected"].as_u64();
    assert!(collected > Some(0), "{report}");
    let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("board/killed/capture.slc");
    let mut reader = Reader::open(&capture).expect("a capture");
    let mut segments = 0;
    while reader.read().expect("a capture").is_some() {
        segments += 1;
    }
    assert!(segments > 0 && reader.damage_count() == 0, "{:?}", reader.damages());
}

#[test]
fn executions_do_not_wait_for_a_board_that_has_gone() {
    let run = Driven::start("run", "gone", "--executions 1000000 --dfx scope_stats");
    wait_for("execution", || run.status()?["phase"].as_str().filter(|phase| *phase == "executing").map(drop));
    let report = run.end_board();
    assert!(report["wrong"].to_string().contains("not done, the device stopped: "), "{report}");
    assert_eq!(report["kbl"]["timeouts"], 0);
}
