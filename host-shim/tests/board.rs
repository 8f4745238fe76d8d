//! The firmware's own image on an emulated board, against the live host. `SLUICE_VIRT_IMAGE` names the image.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
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
    let mut sluice = Command::new(SLUICE);
    sluice.args([command, "--device", "qemu-aarch64", "--json", "--firmware"]).arg(image());
    sluice.arg("--out").arg(folder(name)).args(arguments.split_whitespace());
    sluice.output().expect("the command starts")
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
