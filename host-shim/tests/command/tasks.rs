//! Records of what items are: what they wait for, what they take and give.

use sluice_core::layout::SubsystemId;
use sluice_host::capture::segment::Segment;
use sluice_host::capture::{Kind, Reader};
use sluice_host::neff::{Neff, ReadOptions, models, pack};
use sluice_host::verify::{ExpectedRecords, Extent};

use crate::{Folder, check, code, sluice, text};

/// Runs a model and holds what `subsystem` has recorded against what its text says.
fn run_and_compare(test: &str, subsystem: SubsystemId, spec: &str, executions: u64, more: &[&str]) {
    let folder = Folder::new(test);
    let container = pack(test, spec).unwrap();
    let neff = Neff::parse(test, &container, &ReadOptions::default()).unwrap();
    let model = folder.path("model.neff");
    std::fs::write(&model, container).unwrap();
    let times = executions.to_string();
    let args = ["run", "--model", model.to_str().unwrap(), "--executions", &times, "--out", folder.out()];
    let output =
        sluice(&[&args[..], &["--dfx", subsystem.name(), "--level", "args_dump=full"], more].concat());
    assert_eq!(code(&output), 0, "{}{}", text(&output.stdout), text(&output.stderr));

    let expected = ExpectedRecords {
        subsystems: vec![Extent::full(subsystem)],
        tpbs: neff.programs.len() as u32,
        executions,
        programs: neff.programs,
        seed: Some(1),
        ..ExpectedRecords::default()
    };
    let capture = folder.path("capture.slc");
    let compared = expected.check(&mut Reader::open(&capture).unwrap()).unwrap();
    assert_eq!(compared.findings, [""; 0]);
    assert!(compared.expected > 0 && compared.found == compared.expected);
    let others = ExpectedRecords { seed: Some(2), ..expected };
    let of_others = others.check(&mut Reader::open(&capture).unwrap()).unwrap();
    assert_eq!(of_others.is_right(), subsystem != SubsystemId::ArgsDump, "bytes are compared");
    let report = folder.report();
    let figures = &report["dfx"][subsystem.name()];
    assert_eq!((&report["lossless"], &report["swaps_verified"]), (&true.into(), &true.into()));
    for key in ["produced", "collected"] {
        assert_eq!(figures[key], compared.expected, "{key}");
    }
    assert_eq!(report["verified"]["records"], compared.expected);
    assert_eq!(check(&capture).1, 0);
}

/// Figures of a run of the built-in model that records so: args_dump's and swimlane's records, and bytes of arguments.
fn recorded(test: &str, more: &[&str]) -> (u64, u64, u64) {
    let folder = Folder::new(test);
    let args = ["run", "--executions", "4", "--out", folder.out(), "--dfx", "args_dump,swimlane"];
    let output = sluice(&[&args[..], more].concat());
    assert_eq!(code(&output), 0, "{}{}", text(&output.stdout), text(&output.stderr));
    let report = folder.report();
    let produced = |subsystem: &str| report["dfx"][subsystem]["produced"].as_u64().unwrap_or(0);
    assert_eq!(report["verified"]["records"], produced("args_dump") + produced("swimlane"));
    let mut reader = Reader::open(&folder.path("capture.slc")).unwrap();
    let mut bytes = 0;
    while let Some(segment) = reader.read_of(|kind| kind == Kind::PAYLOAD).unwrap() {
        if let Segment::Payload(_, piece) = segment {
            bytes += piece.len() as u64;
        }
    }
    (produced("args_dump"), produced("swimlane"), bytes)
}

#[test]
fn levels_and_choices_say_what_is_recorded() {
    // Per execution 15 arguments, 10 items, 2 submits.
    let per_execution = |what: &str, more: &[&str]| {
        let (args, swimlane, bytes) = recorded(&format!("level-{what}"), more);
        (args / 4, swimlane / 4, bytes / 4)
    };
    let small = 4096 + 2 * 1024;
    assert_eq!(per_execution("default", &[]), (15, 42, small));
    assert_eq!(per_execution("partial", &["--level", "args_dump=partial,swimlane=sched"]), (3, 40, small));
    let by_name = ["--level", "args_dump=partial,swimlane=task", "--dump", "mix"];
    assert_eq!(per_execution("name", &by_name), (2, 20, 2 * 16384));
    let by_role = ["--level", "swimlane=core", "--dump", "input"];
    assert_eq!(per_execution("role", &by_role), (15, 10, 32768 + 65536 + 2 * 131_072 + 1024 + 15360));
    assert_eq!(per_execution("none", &["--dump", "none"]), (15, 42, 0));
    assert_eq!(per_execution("off", &["--level", "args_dump=off", "--arch", "a5"]), (0, 42, 0));
}

#[test]
fn traces_say_what_tasks_wait_for_take_and_give() {
    let folder = Folder::new("annotated");
    let output = sluice(&["run", "--executions", "2", "--out", folder.out()]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let trace = std::fs::read(folder.path("trace.pftrace")).unwrap();
    for said in [
        "gather_column (TPB0 POOL), gather_rows (TPB0 POOL)",
        "takes_before_dispatch",
        "a: uint8[256, 128], 0 bytes recorded",
        "gives_after_completion",
        "own1: uint8[1024], 1024 bytes recorded; own1: uint8[15360], 0 bytes recorded",
    ] {
        assert!(trace.windows(said.len()).any(|bytes| bytes == said.as_bytes()), "{said}");
    }
}

#[test]
fn what_is_sampled_out_is_counted_apart() {
    for (arch, transport) in [("a2a3", "shared"), ("a5", "copy")] {
        let folder = Folder::new(&format!("sampled-{arch}"));
        let args = ["run", "--executions", "20", "--arch", arch, "--transport", transport, "--lanes", "3"];
        let select = ["--window", "3..15", "--sample", "2,pmu=5,dep_gen=1", "--buffers", "1"];
        let more = ["--pmu-events", "memory", "--out", folder.out()];
        let output = sluice(&[&args[..], &select, &more].concat());
        assert_eq!(code(&output), 0, "{}{}", text(&output.stdout), text(&output.stderr));
        let report = folder.report();
        // Of the executions 3 to 14: 3, 5 .. 13; 3, 8 and 13; all twelve. An execution has 10 items and 2 submits.
        for (subsystem, produced, passed_over) in [
            ("swimlane", 6 * 42, 14 * 12),
            ("pmu", 3 * 10, 17 * 10),
            ("dep_gen", 12 * 10, 8 * 2),
            ("args_dump", 6 * 15, 14 * 10),
            ("scope_stats", 6 * 28, 14 * 2),
        ] {
            let figures = &report["dfx"][subsystem];
            assert_eq!(figures["produced"], produced, "{subsystem}");
            assert_eq!(figures["passed_over"], passed_over, "{subsystem}");
            assert_eq!(figures["window"], serde_json::json!([3, 15]));
        }
        assert_eq!(report["dfx"]["pmu"]["sampled_every"], 5);
        let said = text(&output.stdout);
        let line =
            "pmu: on, one execution in 5, executions 3 to 15, the last one excluded; 170 items and submits";
        assert!(said.contains(line), "{said}");
        let trace = std::fs::read(folder.path("trace.pftrace")).unwrap();
        let declared = b"swimlane full, one execution in 2, executions 3 to 15";
        assert!(trace.windows(declared.len()).any(|bytes| bytes == declared));
        assert_eq!(check(&folder.path("capture.slc")).1, 0);
    }
}

/// An item that waits for 300 others, and those for each other.
fn many_signals() -> String {
    let block = |queue: &str, wait: &str, signal: &str| {
        format!(
            "[[tpb.block]]\nqueue = \"{queue}\"\nwait = [{wait}]\n{signal}\n\
             copy = [{{ from = \"x\", to = \"y\", bytes = 64 }}]\n"
        )
    };
    let signals = block("p", "", "signal = 1").repeat(300);
    format!(
        r#"
        [model]
        name = "many"
        target = "cayman"
        [[tpb]]
        var = [{{ name = "x", type = "input", size = 64 }}, {{ name = "y", type = "output", size = 64 }}]
        queue = [
          {{ name = "p", type = "in", owner = "pool", semaphore = 10 }},
          {{ name = "s", type = "out", owner = "sp", semaphore = 11 }},
        ]
        {signals}
        {}
        "#,
        block("s", "{ semaphore = 1, at_least = 300 }", "")
    )
}

#[test]
fn every_item_says_what_it_waits_for() {
    let gather = models::builtin("gather").unwrap();
    run_and_compare("deps", SubsystemId::DepGen, gather, 30, &[]);
    run_and_compare("deps-a5", SubsystemId::DepGen, gather, 30, &["--arch", "a5", "--lanes", "5"]);
}

#[test]
fn chains_of_dependencies_are_whole_with_one_buffer() {
    let one = ["--buffers", "dep_gen=1"];
    run_and_compare("chains", SubsystemId::DepGen, &many_signals(), 12, &one);
    run_and_compare("chains-a5", SubsystemId::DepGen, &many_signals(), 12, &["--arch", "a5", one[0], one[1]]);
}

#[test]
fn every_argument_is_recorded_with_its_bytes() {
    for model in ["gather", "pointers"] {
        let spec = models::builtin(model).unwrap();
        run_and_compare(&format!("args-{model}"), SubsystemId::ArgsDump, spec, 6, &[]);
        let more = ["--arch", "a5", "--lanes", "5", "--gate-scope", "lane"];
        run_and_compare(&format!("args-a5-{model}"), SubsystemId::ArgsDump, spec, 6, &more);
    }
}

#[test]
fn an_arena_that_wraps_loses_nothing() {
    // A few payloads of the model fill it, and every buffer is handed over when it is full.
    let more = ["--arena", "262144", "--buffers", "args_dump=1"];
    let gather = models::builtin("gather").unwrap();
    run_and_compare("arena", SubsystemId::ArgsDump, gather, 12, &more);
    run_and_compare(
        "arena-collectors",
        SubsystemId::ArgsDump,
        gather,
        12,
        &[&more[..], &["--collectors", "2"]].concat(),
    );
}

#[test]
fn tasks_beyond_any_size_of_a_table_have_their_arguments_recorded() {
    // 301 items in each of 120 executions.
    run_and_compare("args-many", SubsystemId::ArgsDump, &many_signals(), 120, &["--buffers", "args_dump=1"]);
}
