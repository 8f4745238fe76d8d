//! Models, from container to verdict.

use std::path::Path;

use serde_json::json;
use sluice_core::exec::CoreIndex;
use sluice_core::layout::pmu::DEFAULT_EVENT_TYPE;
use sluice_core::layout::{SubsystemId, args_dump};
use sluice_core::mmio::TpbId;
use sluice_core::producer::Control;
use sluice_host::capture::Reader;
use sluice_host::dfx::RECORDED;
use sluice_host::kbl::ArgChoice;
use sluice_host::neff::{Neff, ReadOptions, RunBlock, Work, models, pack};
use sluice_host::verify::records::{ExpectedCore, ExpectedItem};
use sluice_host::verify::{ExpectedRecords, Extent};

use crate::{Folder, check, code, sluice, text};

/// What is recorded unless told otherwise.
fn by_default(subsystem: SubsystemId) -> Extent {
    match subsystem {
        SubsystemId::ArgsDump => Extent::new(subsystem, Control::at_level(args_dump::Level::HYBRID.0)),
        _ => Extent::full(subsystem),
    }
}

/// The records that a model has to give, from its container alone.
fn expected(neff: &Neff, lanes: u32, executions: u64) -> ExpectedRecords {
    let mut cores = Vec::new();
    for (program, tpb) in neff.programs.iter().zip(0..) {
        for engine in &program.engines {
            let core = CoreIndex::of(TpbId::new(tpb).unwrap(), engine.engine);
            let item = |run: &RunBlock| {
                let block = engine.blocks.iter().find(|block| block.id == run.block);
                let copies = block.map_or(&[][..], |block| &block.copies);
                let bytes = copies.iter().map(|copy| copy.from_pattern().len_bytes()).sum();
                ExpectedItem { kernel: run.kernel, pairs: run.pairs, bytes }
            };
            let items = match &engine.work {
                Work::Idle => continue,
                Work::Opaque => vec![ExpectedItem::default()],
                Work::Blocks(runs) => runs.iter().map(item).collect(),
            };
            cores.push(ExpectedCore { core: core.get() as u32, lane: core.lane(lanes).get(), items });
        }
    }
    ExpectedRecords {
        subsystems: RECORDED.iter().copied().map(by_default).collect(),
        cores,
        tpbs: neff.programs.len() as u32,
        executions,
        event_group: DEFAULT_EVENT_TYPE,
        programs: neff.programs.clone(),
        choice: ArgChoice::up_to(4096),
        seed: Some(1),
    }
}

fn builtin(name: &str) -> Neff {
    let container = pack(name, models::builtin(name).unwrap()).unwrap();
    Neff::parse(name, &container, &ReadOptions::default()).unwrap()
}

/// Runs, and holds the capture against the expected set and the report against both.
fn run_and_compare(test: &str, model: &str, neff: &Neff, lanes: u32, executions: u64, more: &[&str]) {
    compare_run(test, model, lanes, &expected(neff, lanes, executions), more);
}

/// Holds a run against what is expected of it. Returns the folder and what was shown.
fn compare_run(
    test: &str,
    model: &str,
    lanes: u32,
    expected: &ExpectedRecords,
    more: &[&str],
) -> (Folder, String) {
    let folder = Folder::new(test);
    let executions = expected.executions;
    let (lanes_text, executions_text) = (lanes.to_string(), executions.to_string());
    let args = ["run", "--model", model, "--lanes", &lanes_text, "--executions", &executions_text, "--out"];
    let output = sluice(&[&args[..], &[folder.out()], more].concat());
    assert_eq!(code(&output), 0, "{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(folder.names(), ["capture.slc", "report.json", "trace.pftrace"]);

    let capture = folder.path("capture.slc");
    let mut reader = Reader::open(&capture).unwrap();
    let arch = reader.header().arch;
    let compared = expected.check(&mut reader).unwrap();
    assert_eq!(compared.findings, [""; 0]);
    let counts: Vec<u64> = RECORDED.iter().map(|&subsystem| expected.count(subsystem, arch)).collect();
    let count = counts.iter().sum();
    assert_eq!((compared.found, compared.expected), (count, count));

    let report = folder.report();
    assert_eq!(report["lossless"], true);
    assert_eq!(report["swaps_verified"], true);
    assert_eq!(report["model"]["executions"], executions);
    assert_eq!(report["model"]["tpbs"], expected.programs.len());
    for (subsystem, count) in RECORDED.iter().zip(counts) {
        let figures = &report["dfx"][subsystem.name()];
        assert_eq!((&figures["produced"], &figures["collected"]), (&json!(count), &json!(count)));
        assert_eq!(figures["dropped"], 0, "{subsystem}");
    }
    assert_eq!(report["kbl"]["tickets"], executions);
    assert_eq!(report["kbl"]["build_hits"], executions.saturating_sub(1));
    assert_eq!(report["kbl"]["build_misses"], executions.min(1));
    assert_eq!(check(&capture).1, 0);
    let page = text(&output.stdout).to_owned();
    (folder, page)
}

#[test]
fn levels_that_change_between_executions_are_followed_noted_and_verified() {
    let neff = builtin("gather");
    let level = |subsystem: SubsystemId, name: &str| {
        let (_, level) = subsystem.levels().find(|(known, _)| *known == name).unwrap();
        Control::at_level(level)
    };
    let extent = |subsystem: SubsystemId, first: &str, changes: &[(u64, &str)]| Extent {
        changes: changes.iter().map(|&(from, name)| (from, level(subsystem, name))).collect(),
        ..Extent::new(subsystem, level(subsystem, first))
    };
    let mut expected = expected(&neff, 2, 11);
    expected.subsystems = vec![
        extent(SubsystemId::Swimlane, "full", &[(3, "off"), (5, "task")]),
        extent(SubsystemId::Pmu, "off", &[(5, "on"), (8, "off"), (9, "on")]),
        extent(SubsystemId::DepGen, "on", &[(1, "off"), (10, "on")]),
        extent(SubsystemId::ArgsDump, "hybrid", &[(2, "full"), (4, "partial"), (7, "off"), (8, "hybrid")]),
        extent(SubsystemId::ScopeStats, "off", &[(0, "on"), (6, "off")]),
    ];
    let at = "--level=pmu=off,scope_stats=off --at=0:scope_stats=on --at=1:dep_gen=off --at=2:args_dump=full \
              --at=4:args_dump=partial --at=3:swimlane=off --at=5:swimlane=task,pmu=on --at=6:scope_stats=off \
              --at=7:args_dump=off --at=8:args_dump=hybrid,pmu=off --at=9:pmu=on --at=10:dep_gen=on";
    for arch in ["a2a3", "a5"] {
        let more: Vec<_> = at.split_whitespace().chain(["--arch", arch]).collect();
        let (folder, page) = compare_run(&format!("changes-{arch}"), "gather", 2, &expected, &more);
        let report = folder.report();
        for Extent { subsystem, first, changes } in &expected.subsystems {
            let figures = &report["dfx"][subsystem.name()];
            assert_eq!(figures["level"].as_str(), subsystem.level_name(first.level));
            let noted: Vec<_> = figures["changes"].as_array().unwrap().iter().collect();
            assert_eq!(noted.len(), changes.len(), "{subsystem}");
            let mut before_ns = 0;
            for (index, (noted, (_, control))) in noted.into_iter().zip(changes).enumerate() {
                assert_eq!(noted["number"], index + 2);
                assert_eq!(noted["level"].as_str(), subsystem.level_name(control.level));
                let [told, followed] = ["told_ns", "followed_ns"].map(|key| noted[key].as_u64().unwrap());
                assert!(before_ns <= told && told <= followed, "{subsystem}");
                before_ns = followed;
            }
        }
        assert!(page.contains("\nchanged     args_dump: full, from "), "{page}");
        let again = sluice(&["report", "--json", folder.out()]);
        let again: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!(again["dfx"]["swimlane"]["changes"], report["dfx"]["swimlane"]["changes"]);
    }
    let late = sluice(&["run", "--executions", "3", "--at", "3:pmu=off"]);
    let refusal = "'--at' is about execution 3, of 3 counted from 0";
    assert!(code(&late) == 2 && text(&late.stderr).contains(refusal), "{}", text(&late.stderr));
    let output = sluice(&["run", "--dfx", "pmu", "--at", "1:swimlane=off"]);
    let refusal = "'--at' changes the level of `swimlane`, which '--dfx' does not record";
    assert!(code(&output) == 2 && text(&output.stderr).contains(refusal), "{}", text(&output.stderr));
}

#[test]
fn the_device_takes_models_of_its_own_architecture() {
    let run = |test: &str, target: &[&str]| {
        let folder = Folder::new(test);
        let output = sluice(&[&["run", "--executions", "1", "--out", folder.out()], target].concat());
        (code(&output), text(&output.stderr).to_owned(), folder)
    };
    let (status, stderr, _) = run("target_other", &["--target", "sunda"]);
    let refusal = "Attempting to load an incompatible model! `sg00` is for cayman and the device is sunda";
    assert!(status == 1 && stderr.contains(refusal), "{status}: {stderr}");
    for (test, target, takes) in [
        ("target_own", &[][..], "cayman"),
        ("target_name", &["--target", "v3"], "cayman"),
        ("target_any", &["--target", "*"], "*"),
    ] {
        let (status, stderr, folder) = run(test, target);
        assert_eq!(status, 0, "{stderr}");
        assert_eq!(folder.report()["target"], takes);
    }
    let (status, stderr, _) = run("target_none", &["--target", "trn9"]);
    assert!(status == 2 && stderr.contains("`trn9` is no architecture"), "{status}: {stderr}");
}

#[test]
fn gather_gives_the_bytes_and_records_that_its_text_says() {
    let neff = builtin("gather");
    run_and_compare("gather", "gather", &neff, 2, 40, &[]);
    run_and_compare("gather-lane", "gather", &neff, 3, 10, &["--gate-scope", "lane", "--buffers", "1"]);
}

#[test]
fn one_core_buffer_is_enough() {
    // A core has two items per execution, and its buffer room for 1,024.
    let neff = builtin("gather");
    for (arch, scope) in [("a2a3", "all"), ("a5", "lane")] {
        let more = ["--buffers", "aicore_task=1", "--arch", arch, "--gate-scope", scope];
        run_and_compare(&format!("core-{arch}"), "gather", &neff, 2, 1300, &more);
    }
}

#[test]
fn pointers_are_patched_on_the_other_architecture_too() {
    run_and_compare("pointers", "pointers", &builtin("pointers"), 5, 25, &["--arch", "a5"]);
}

#[test]
fn outputs_are_compared_in_every_execution() {
    let folder = Folder::new("outputs");
    let output = sluice(&["run", "--executions", "7", "--json", "--out", folder.out()]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report, folder.report());
    assert_eq!(report["outputs_verified"], true);
    assert_eq!(report["verified"]["outputs"], 7 * 3);
    assert_eq!(report["verified"]["output_bytes"], 7 * (233_472 + 32_768 + 81_921));
    assert_eq!(report["model"]["items_executed"], 7 * 10);
    let names = |list: &str| -> Vec<_> {
        report["model"][list].as_array().unwrap().iter().map(|tensor| tensor["name"].clone()).collect()
    };
    assert_eq!(
        (names("inputs"), names("outputs")),
        (vec![json!("a"), json!("b")], vec![json!("own0"), json!("mix"), json!("own1")])
    );
}

#[test]
fn tensors_lie_where_the_model_needs_them() {
    let folder = Folder::new("aligned");
    let spec = r#"model = { name = "aligned", target = "cayman" }
        tpb = [{ var = [
            { name = "x", type = "input", size = 64 },
            { name = "y", type = "input", size = 64, alignment = 1048576 },
            { name = "z", type = "output", size = 64 },
        ] }]"#;
    let model = folder.path("aligned.neff");
    std::fs::write(&model, pack("aligned", spec).unwrap()).unwrap();
    let model = model.to_str().unwrap();
    let output = sluice(&["run", "--model", model, "--executions", "2", "--out", folder.out()]);
    assert_eq!(code(&output), 0, "{}{}", text(&output.stdout), text(&output.stderr));
    let y = folder.report()["model"]["inputs"][1].clone();
    assert_eq!((&y["name"], y["pa"].as_u64().unwrap() % (1 << 20)), (&json!("y"), 0));
    let shown = sluice(&["inspect", model]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("y (var 1), 64 bytes aligned to 1048576"), "{shown}");
    assert!(shown.contains("bind input y (var 1), 64 bytes or more, at a multiple of 1048576"), "{shown}");
}

#[test]
fn bytes_that_blocks_write_unordered_are_named_and_not_wrong() {
    let folder = Folder::new("race");
    let spec = r#"model = { name = "race", target = "cayman" }
        [[tpb]]
        var = [
            { name = "a", type = "input", size = 65536 },
            { name = "b", type = "input", size = 65536 },
            { name = "y", type = "output", size = 65600 },
        ]
        queue = [
            { name = "q", type = "in", owner = "pool", semaphore = 10 },
            { name = "r", type = "out", owner = "sp", semaphore = 11 },
        ]
        [[tpb.block]]
        queue = "q"
        copy = [{ from = "a", to = "y", bytes = 65536 }, { from = "a", to = "y", to_off = 65536, bytes = 64 }]
        [[tpb.block]]
        queue = "r"
        copy = [{ from = "b", to = "y", bytes = 65536 }]"#;
    let model = folder.path("race.neff");
    std::fs::write(&model, pack("race", spec).unwrap()).unwrap();
    let output =
        sluice(&["run", "--model", model.to_str().unwrap(), "--executions", "20", "--out", folder.out()]);
    assert_eq!(code(&output), 0, "{}{}", text(&output.stdout), text(&output.stderr));
    let report = folder.report();
    assert_eq!(
        report["unverified"],
        json!(["outputs: `y`: 65536 bytes are not verifiable: two blocks touch them unordered, \
                block 0 of engine POOL of sg00 and block 1 of engine SP of sg00"])
    );
    assert_eq!(report["verified"]["output_bytes"], 20 * 64);
}

#[test]
fn a_model_gets_the_tpbs_that_its_header_asks_for() {
    let folder = Folder::new("cores");
    let spec = r#"model = { name = "half", target = "cayman", virtual_core_size = 2 }
        tpb = [{ var = [{ name = "y", type = "output", size = 64 }] }]"#;
    let model = folder.path("half.neff");
    std::fs::write(&model, pack("half", spec).unwrap()).unwrap();
    let output =
        sluice(&["run", "--model", model.to_str().unwrap(), "--executions", "1", "--out", folder.out()]);
    assert_eq!(code(&output), 0, "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn a_real_model_is_run_and_what_was_not_executed_is_said() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/matmul_small.neff");
    if !model.is_file() {
        eprintln!("SKIPPED: {} is missing", model.display());
        return;
    }
    let neff = Neff::open(&model, &ReadOptions::default()).unwrap();
    run_and_compare("real", model.to_str().unwrap(), &neff, 2, 100, &[]);
    let folder = Folder::new("real-report");
    let output =
        sluice(&["run", "--model", model.to_str().unwrap(), "--executions", "3", "--out", folder.out()]);
    let report = folder.report();
    assert_eq!((&report["outputs_verified"], &report["swaps_verified"]), (&json!(false), &json!(true)));
    assert_eq!(
        (&report["model"]["items_executed"], &report["model"]["items_opaque"]),
        (&json!(0), &json!(30))
    );
    assert_eq!(report["model"]["inputs"][0]["name"], "x");
    assert_eq!(report["model"]["outputs"][0]["name"], "output0");
    let page = text(&output.stdout);
    assert!(
        page.contains("unverified  outputs: sg00: the program of engine PE cannot be interpreted"),
        "{page}"
    );
    assert!(page.ends_with("result      nothing lost, all that could be verified was right\n"), "{page}");
}

#[test]
fn no_execution_gives_valid_and_empty_artefacts() {
    let folder = Folder::new("none");
    let output = sluice(&["run", "--executions", "0", "--out", folder.out()]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let report = folder.report();
    assert_eq!(report["dfx"]["swimlane"]["produced"], 0);
    assert_eq!((&report["outputs_verified"], &report["swaps_verified"]), (&json!(false), &json!(false)));
    let page = text(&output.stdout);
    assert!(page.ends_with("result      nothing lost, nothing to verify\n"), "{page}");
    assert_eq!(check(&folder.path("capture.slc")).1, 0);
    assert!(std::fs::metadata(folder.path("trace.pftrace")).unwrap().len() > 0);
}

#[test]
fn a_run_without_recording_still_verifies() {
    let folder = Folder::new("off");
    let output = sluice(&["run", "--executions", "2", "--dfx", "", "--out", folder.out()]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("records     none: profiling was off"));
    assert_eq!(folder.report()["dfx"], json!({}));
}

#[test]
fn arenas_that_no_device_has_room_for_are_refused_with_what_there_is() {
    let folder = Folder::new("arenas");
    for arena in ["99999999999999", "9223372036854775808", "18446744073709551615"] {
        let output = sluice(&["run", "--arena", arena, "--executions", "1", "--out", folder.out()]);
        let said = text(&output.stderr);
        assert!(code(&output) == 1 && said.contains("bytes of device memory"), "{said}");
    }
}

#[test]
fn refusals_come_before_the_run_and_say_why() {
    let folder = Folder::new("refused");
    let refused = |args: &[&str]| {
        let output = sluice(&[&["run"], args].concat());
        assert_ne!(code(&output), 0);
        assert_eq!(text(&output.stdout), "");
        text(&output.stderr).to_owned()
    };
    std::fs::write(folder.path("file"), "").unwrap();
    let below_a_file = folder.path("file/out");
    assert!(
        refused(&["--out", below_a_file.to_str().unwrap()]).starts_with("sluice: cannot make output folder ")
    );
    let proc = refused(&["--out", "/proc/self"]);
    assert!(proc.starts_with("sluice: cannot write to output folder /proc/self: "), "{proc}");
    assert!(
        refused(&["--device", "card"])
            .contains("this build has no device `card`, only `sim` and `qemu-aarch64`")
    );
    assert!(refused(&["--dfx", "lanes"]).contains("`lanes`: unknown subsystem"));
    let levels = refused(&["--level", "args_dump=most"]);
    assert!(
        levels.contains("args_dump has no level `most`, known are off, partial, full, hybrid"),
        "{levels}"
    );
    let events = refused(&["--pmu-events", "3", "--out", folder.out()]);
    assert!(events.contains("cores of a2a3 have the groups 1 (arithmetic), 2 (pipe), 4 ("), "{events}");
    let threads = refused(&["--collectors", "257", "--out", folder.out()]);
    assert!(threads.contains("need 1 to 256 threads, got 257"), "{threads}");
    let tensors = refused(&["--dump", "output,own2", "--out", folder.out()]);
    assert!(tensors.contains("the model has no tensor `own2`, it has a, b, own0, mix, own1"), "{tensors}");
    let missing = refused(&["--model", "absent.neff", "--out", folder.out()]);
    assert!(missing.contains("absent.neff"), "{missing}");
    for lanes in ["0", "5", "99"] {
        let output = sluice(&["run", "--lanes", lanes, "--out", folder.out()]);
        let want = format!("need 1 to 4 lanes, got {lanes}");
        assert_eq!(
            (code(&output), text(&output.stderr).contains(&want)),
            (2, true),
            "{}",
            text(&output.stderr)
        );
    }
    std::fs::write(folder.path("model.toml"), models::builtin("gather").unwrap()).unwrap();
    let spec = refused(&["--model", folder.path("model.toml").to_str().unwrap(), "--out", folder.out()]);
    assert!(spec.contains("is that the text of a model? `sluice pack` makes a container of it"), "{spec}");
    std::fs::remove_file(folder.path("model.toml")).unwrap();
    assert_eq!(folder.names(), ["file"]);
}

#[test]
fn a_disk_that_fills_up_loses_counted_records_and_is_named() {
    let folder = Folder::new("full");
    // The shell's unit is 1024 bytes; ignoring the signal turns the limit into an error of the write.
    let limited = format!(
        "trap '' XFSZ; ulimit -f 60; exec '{}' run --executions 100 --dfx swimlane --out '{}'",
        env!("CARGO_BIN_EXE_sluice"),
        folder.out()
    );
    let output = std::process::Command::new("bash").args(["-c", &limited]).output().unwrap();
    assert_eq!(code(&output), 1, "{}", text(&output.stderr));
    let page = text(&output.stdout);
    for artefact in ["capture.slc", "trace.pftrace"] {
        assert!(page.contains(&format!("cannot write {}", folder.path(artefact).display())), "{page}");
    }
    let swimlane = &folder.report()["dfx"]["swimlane"];
    let of = |key: &str| swimlane[key].as_u64().unwrap();
    assert!(of("collected") > 0 && of("dropped") > 0, "{page}");
    assert_eq!(
        (of("collected") + of("dropped"), &swimlane["lost"]["copy_failed"]),
        (4200, &swimlane["dropped"])
    );
}

#[test]
fn a_model_that_does_not_fit_the_device_is_refused_with_its_status() {
    let folder = Folder::new("does-not-fit");
    let refused = |name: &str, container: &[u8]| {
        let model = folder.path(name);
        std::fs::write(&model, container).unwrap();
        let output = sluice(&["run", "--model", model.to_str().unwrap(), "--out", folder.out()]);
        assert_eq!(code(&output), 1);
        let said = text(&output.stderr);
        assert_eq!(said.lines().count(), 1, "{said}");
        said.replace(&format!("sluice: {}: ", model.display()), "")
    };
    let with_output = |size: u64| {
        format!(
            r#"model = {{ name = "large", target = "cayman" }}
               tpb = [{{ var = [{{ name = "y", type = "output", size = {size} }}] }}]"#
        )
    };
    let large = pack("large", &with_output(1 << 40)).unwrap();
    let said = refused("large.neff", &large);
    assert!(said.starts_with("tensor `y` of 1099511627776 bytes: no room for 1099511627776 bytes"), "{said}");
    assert!(said.ends_with("(status 4, RESOURCE)\n"), "{said}");

    let tpb = r#"{ var = [{ name = "y", type = "output", size = 64 }] }"#;
    let many = format!(
        r#"model = {{ name = "many", target = "cayman" }}
        tpb = [{}]"#,
        [tpb; 9].join(", ")
    );
    assert_eq!(
        refused("many.neff", &pack("many", &many).unwrap()),
        "cannot load the model: model has 9 subgraphs and asks for 5 cores of 2 TPBs, the unit has 8 TPBs \
         (status 9, LOAD_NOT_ENOUGH_NC)\n"
    );

    let mut greedy = pack("greedy", &with_output(64)).unwrap();
    greedy[0x1DC..0x1E0].copy_from_slice(&64u32.to_le_bytes());
    assert_eq!(
        refused("greedy.neff", &greedy),
        "cannot load the model: model has 1 subgraphs and asks for 64 cores of 1 TPBs, the unit has 8 TPBs \
         (status 9, LOAD_NOT_ENOUGH_NC)\n"
    );
}
