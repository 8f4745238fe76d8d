//! Records as fast as lanes make them, with few buffers, a host that stands still, and signals.

use serde_json::{Value, json};

use crate::{Folder, check, code, command, endless, signal, sluice, text};

/// A workload that would take for ever.
const STRESS: [&str; 6] = ["stress", "--json", "--records", "1000000000000", "--buffers", "1"];

fn stress(folder: &Folder, args: &[&str]) -> Value {
    let output = sluice(&[&["stress", "--json", "--out", folder.out()], args].concat());
    assert_eq!(code(&output), 0, "{}{}", text(&output.stdout), text(&output.stderr));
    let report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report, folder.report());
    report
}

#[test]
fn no_records_end_at_once_with_valid_artefacts() {
    let folder = Folder::new("zero");
    let report = stress(&folder, &["--records", "0"]);
    assert_eq!((&report["lossless"], &report["dfx"]["swimlane"]["produced"]), (&json!(true), &json!(0)));
    let (checked, status) = check(&folder.path("capture.slc"));
    assert_eq!((&checked["complete"], &checked["pools"], status), (&json!(true), &json!([]), 0));
}

#[test]
fn a_million_records_through_one_buffer_per_pool_lose_none() {
    let folder = Folder::new("million");
    let report = stress(&folder, &["--records", "1000000", "--buffers", "1"]);
    let swimlane = &report["dfx"]["swimlane"];
    assert_eq!((&swimlane["collected"], &swimlane["dropped"]), (&json!(1_000_000), &json!(0)));
    let (checked, status) = check(&folder.path("capture.slc"));
    assert_eq!(status, 0, "{checked}");
    let records: u64 =
        checked["pools"].as_array().unwrap().iter().map(|pool| pool["records"].as_u64().unwrap()).sum();
    assert_eq!(records, 1_000_000);
}

#[test]
fn a_host_that_stands_still_costs_a_freeze_and_no_record() {
    for scope in ["all", "lane"] {
        let folder = Folder::new(&format!("pause-{scope}"));
        let args = ["--records", "300000", "--buffers", "1", "--pause-host", "500@5", "--gate-scope", scope];
        let report = stress(&folder, &args);
        let swimlane = &report["dfx"]["swimlane"];
        assert_eq!((&swimlane["collected"], &swimlane["dropped"]), (&json!(300_000), &json!(0)));
        assert!(report["duration_ns"].as_u64().unwrap() >= 500_000_000, "the pause was kept");
        let freezes = swimlane["freezes"]["fq"]["count"].as_u64().unwrap();
        assert_eq!(freezes > 0, scope == "all", "{swimlane}");
        let (checked, status) = check(&folder.path("capture.slc"));
        assert_eq!((checked["freezes"].as_u64().unwrap() > 0, status), (scope == "all", 0));
    }
}

#[test]
fn every_pause_of_a_list_is_kept() {
    let folder = Folder::new("pauses");
    let args = ["--records", "300000", "--buffers", "1", "--pause-host", "200@400,200@5"];
    let report = stress(&folder, &args);
    assert_eq!(report["dfx"]["swimlane"]["collected"], 300_000);
    assert!(report["duration_ns"].as_u64().unwrap() >= 400_000_000, "both were kept");
}

#[test]
fn a_run_that_loses_records_ends_well_only_if_it_may() {
    // Lanes wait ten milliseconds for a host that stands still for longer.
    let args = ["--records", "100000", "--buffers", "1", "--deadline", "10", "--pause-host", "300@0"];
    for (required, status) in [("", 1), ("--require-lossless", 1), ("--require-lossless=false", 0)] {
        let folder = Folder::new(&format!("lossy{required}"));
        let required = (!required.is_empty()).then_some(required);
        let output =
            command().args(["stress", "--out", folder.out()]).args(args).args(required).output().unwrap();
        let page = text(&output.stdout);
        assert_eq!(code(&output), status, "{page}");
        let report = folder.report();
        let swimlane = &report["dfx"]["swimlane"];
        let of = |key: &str| swimlane[key].as_u64().unwrap();
        assert_eq!((&report["lossless"], of("collected") + of("dropped")), (&json!(false), 100_000));
        assert_eq!(swimlane["lost"]["host_gone"], swimlane["dropped"]);
        assert_eq!(report["sequences"]["missing"], swimlane["dropped"], "and no other");
        assert!(page.contains("records by host_gone") && page.contains("RECORDS LOST"), "{page}");
        assert_eq!(report.get("loss_allowed"), (status == 0).then_some(&json!(true)));
        assert_eq!(check(&folder.path("capture.slc")).1, 1, "records are missing whoever allowed it");
    }
}

#[test]
fn every_wait_of_a_lane_is_in_the_capture() {
    let folder = Folder::new("waits");
    let args = ["--records", "300000", "--buffers", "1", "--pause-host", "200@5", "--dfx", "swimlane"];
    let report = stress(&folder, &args);
    let waits = &report["dfx"]["swimlane"]["waits"];
    let of = |gate: &str, key: &str| waits[gate][key].as_u64().unwrap();
    assert!(of("fq", "count") + of("rq", "count") > 0 && waits["unlogged"] == 0, "{waits}");
    assert!(of("fq", "total_ns") + of("rq", "total_ns") >= 190_000_000, "the pause was waited out: {waits}");
}

#[test]
fn records_of_any_subsystem_are_made_up_and_come_once() {
    let all = ["swimlane", "pmu", "scope_stats", "dep_gen", "args_dump"];
    for (arch, transport) in [("a2a3", "shared"), ("a5", "copy")] {
        for (name, recorded) in
            [("all", &all[..]), ("sched_phase,pmu", &all[..2]), ("scope_stats,dep_gen,args_dump", &all[2..])]
        {
            let folder = Folder::new(&format!("kinds-{arch}-{}", name.len()));
            let args = ["--records", "30000", "--subsystem", name, "--buffers", "1"];
            let report = stress(&folder, &[&args[..], &["--arch", arch, "--transport", transport]].concat());
            let collected = |name: &str| report["dfx"][name]["collected"].as_u64().unwrap();
            assert_eq!(all.iter().map(|name| collected(name)).sum::<u64>(), 30_000, "{report}");
            assert!(all.iter().all(|name| (collected(name) > 0) == recorded.contains(name)), "{report}");
            assert_eq!(report["sequences"], json!({"records": 30_000, "missing": 0, "repeated": 0}));
        }
    }
}

/// Both architectures, both transports.
const DEVICES: [(&str, &str); 4] = [("a2a3", "shared"), ("a2a3", "copy"), ("a5", "shared"), ("a5", "copy")];

#[test]
fn arguments_of_many_laps_of_an_arena_come_with_their_own_bytes() {
    for (arch, transport) in DEVICES {
        let folder = Folder::new(&format!("payloads-{arch}-{transport}"));
        // Four and a half arguments to a lap, and more laps than records to a buffer.
        let args = ["--subsystem", "args_dump", "--records", "4000", "--payload-bytes", "14500"];
        let place = ["--arena", "65536", "--buffers", "1", "--pause-host", "100@5"];
        let report =
            stress(&folder, &[&args[..], &place, &["--arch", arch, "--transport", transport]].concat());
        let payloads = json!({"count": 4_000, "bytes": 58_000_000, "wrong": 0, "missing": 0});
        assert_eq!((&report["payloads"], &report["lossless"]), (&payloads, &json!(true)));
        assert_eq!(report["sequences"], json!({"records": 4_000, "missing": 0, "repeated": 0}));
        let switches = report["dfx"]["args_dump"]["switches"].as_u64().unwrap();
        assert!(switches >= 900, "each lap is published before the next: {switches}");
        assert_eq!(check(&folder.path("capture.slc")).1, 0);
    }
}

#[test]
fn chains_of_dependencies_never_span_buffers() {
    for (arch, transport) in DEVICES {
        let folder = Folder::new(&format!("chains-{arch}-{transport}"));
        let args = ["--subsystem", "dep_gen", "--records", "3000", "--chain", "5", "--buffers", "1"];
        let device = ["--arch", arch, "--transport", transport, "--pause-host", "100@5"];
        let report = stress(&folder, &[&args[..], &device].concat());
        // Tasks 1 to 3,000 take 1 + n mod 5 slots.
        assert_eq!(report["chains"], json!({"tasks": 3_000, "links": 6_000, "torn": 0}));
        assert_eq!(
            (&report["dfx"]["dep_gen"]["collected"], &report["lossless"]),
            (&json!(9_000), &json!(true))
        );
        assert_eq!(report["sequences"], json!({"records": 3_000, "missing": 0, "repeated": 0}));
        assert_eq!(check(&folder.path("capture.slc")).1, 0);
    }
}

#[test]
fn cores_that_share_one_buffer_each_leave_every_record() {
    for (arch, transport) in DEVICES {
        for buffers in ["1", "2"] {
            let folder = Folder::new(&format!("cores-{arch}-{transport}-{buffers}"));
            let args = ["--subsystem", "aicore_task", "--records", "20000", "--buffers", buffers];
            let device = ["--arch", arch, "--transport", transport, "--pause-host", "100@5"];
            let report = stress(&folder, &[&args[..], &device].concat());
            let swimlane = &report["dfx"]["swimlane"];
            assert_eq!((&swimlane["collected"], &report["lossless"]), (&json!(20_000), &json!(true)));
            assert_eq!(report["sequences"], json!({"records": 20_000, "missing": 0, "repeated": 0}));
            let others = ["pmu", "dep_gen", "args_dump", "scope_stats"];
            assert!(others.iter().all(|other| report["dfx"][other]["produced"] == 0), "{report}");
            let (checked, status) = check(&folder.path("capture.slc"));
            assert_eq!((checked["pools"].as_array().unwrap().len(), status), (5, 0), "each core its own");
        }
    }
}

#[test]
fn a_rate_holds_for_items_of_cores_and_for_arguments_with_bytes() {
    let folder = Folder::new("rates");
    let args = ["--records", "3000", "--rate", "20000", "--subsystem", "aicore_task,dep_gen,args_dump"];
    let report = stress(&folder, &[&args[..], &["--chain", "3", "--payload-bytes", "4096"]].concat());
    assert_eq!(report["sequences"], json!({"records": 3_000, "missing": 0, "repeated": 0}));
    assert!(report["duration_ns"].as_u64().unwrap() >= 140_000_000, "a seventh of a second: {report}");
    let counted = report["payloads"]["count"].as_u64().unwrap();
    assert!(counted > 0 && report["payloads"]["missing"] == 0 && report["chains"]["torn"] == 0, "{report}");
    let page = sluice(&["report", folder.out()]);
    assert!(text(&page.stdout).contains("numbers"), "{page:?}");
}

#[test]
fn a_rate_is_kept_on_the_clock_of_the_device() {
    let folder = Folder::new("rate");
    let report = stress(&folder, &["--records", "4000", "--rate", "20000", "--subsystem", "swimlane"]);
    assert_eq!(report["sequences"]["records"], 4_000);
    assert!(report["duration_ns"].as_u64().unwrap() >= 190_000_000, "a fifth of a second: {report}");
}

#[test]
fn without_a_capture_everything_is_counted_and_only_the_report_is_left() {
    let folder = Folder::new("nothing-kept");
    let args = ["--records", "300000", "--buffers", "1", "--no-capture", "--pause-all"];
    let report = stress(&folder, &[&args[..], &["--pause-host", "100@5,100@200"]].concat());
    assert_eq!(
        (&report["dfx"]["swimlane"]["collected"], &report["lossless"]),
        (&json!(300_000), &json!(true))
    );
    assert_eq!(report["sequences"], json!({"records": 300_000, "missing": 0, "repeated": 0}));
    assert!(report["dfx"]["swimlane"]["switches"].as_u64().unwrap() >= 292, "{report}");
    assert_eq!((&report["artefacts"], folder.names()), (&json!({}), vec!["report.json".to_owned()]));
}

#[test]
fn ten_standstills_with_one_buffer_per_pool_lose_and_double_nothing() {
    let folder = Folder::new("standstills");
    // Each begins when its share of the records is collected.
    let pauses = ["20@3600000"; 10].join(",");
    let args =
        ["--records", "1000000", "--buffers", "1", "--no-capture", "--pause-all", "--pause-host", &pauses];
    let report = stress(&folder, &args);
    let swimlane = &report["dfx"]["swimlane"];
    assert_eq!((&swimlane["collected"], &swimlane["dropped"]), (&json!(1_000_000), &json!(0)));
    assert_eq!(report["sequences"], json!({"records": 1_000_000, "missing": 0, "repeated": 0}));
    assert!(report["duration_ns"].as_u64().unwrap() >= 200_000_000, "every one was kept");
    let waits = &swimlane["waits"];
    let waited: u64 = ["rq", "fq"].iter().map(|gate| waits[gate]["total_ns"].as_u64().unwrap()).sum();
    assert!(waited >= 150_000_000, "lanes waited in them: {waits}");
}

#[test]
fn ten_times_the_records_take_no_more_memory() {
    let peak_bytes = |records: &str| {
        let folder = Folder::new(&format!("memory-{records}"));
        let args = ["stress", "--no-capture", "--records", records, "--out", folder.out()];
        let mut child = command().args(args).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let status = format!("/proc/{}/status", child.id());
        let mut most = 0_u64;
        while child.try_wait().unwrap().is_none() {
            let peak = std::fs::read_to_string(&status).unwrap_or_default();
            let peak = peak.lines().find_map(|line| line.strip_prefix("VmHWM:")).map(str::trim);
            let peak = peak.and_then(|peak| peak.strip_suffix(" kB")).and_then(|peak| peak.parse().ok());
            most = most.max(peak.unwrap_or(0));
            std::thread::yield_now();
        }
        assert!(child.wait().unwrap().success());
        most << 10
    };
    let (few, many) = (peak_bytes("1000000"), peak_bytes("10000000"));
    assert!(few > 0 && many < few + (4 << 20), "{few} bytes for a million records, {many} for ten");
}

#[test]
fn records_of_a_subsystem_that_is_off_are_refused() {
    let output = sluice(&["stress", "--subsystem", "pmu", "--dfx", "swimlane"]);
    assert_eq!(code(&output), 2);
    assert!(text(&output.stderr).contains("makes records of `pmu`, which '--dfx' does not record"));
    let output = sluice(&["stress", "--subsystem", "pmu", "--level", "pmu=off"]);
    assert!(code(&output) == 2 && text(&output.stderr).contains("of `pmu`, which '--level' turns off"));
    for (args, reason) in [
        (&["--sample", "2"][..], "made-up records belong to no execution"),
        (&["--at", "5:swimlane=off"], "made-up records belong to no execution"),
        (&["--payload-bytes", "5"], "'--payload-bytes' is about records of `args_dump`"),
        (&["--chain", "2", "--subsystem", "pmu"], "'--chain' is about records of `dep_gen`"),
        (
            &["--payload-bytes", "4097", "--subsystem", "args_dump", "--arena", "4096"],
            "arguments of 4097 bytes do not fit an arena of 4096: raise '--arena'",
        ),
        (&["--chain", "1025", "--subsystem", "dep_gen"], "1025 is not in 1..=1024"),
    ] {
        let output = sluice(&[&["stress"], args].concat());
        assert_eq!(code(&output), 2);
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
}

#[test]
fn the_buffers_of_a_plan_keep_the_gates_open_where_one_did_not() {
    let load = ["--records", "60000", "--rate", "200000", "--pause-host", "60@60,60@180"];
    let starved = Folder::new("starved");
    let report = stress(&starved, &[&load[..], &["--buffers", "1"]].concat());
    let freezes = |report: &Value| report["dfx"]["swimlane"]["freezes"]["fq"]["count"].as_u64().unwrap();
    assert!(freezes(&report) >= 2, "{report}");
    let planned = sluice(&["plan", "--json", starved.out()]);
    assert_eq!(code(&planned), 0, "{}", text(&planned.stderr));
    let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
    let kind = &plan["kinds"][0];
    assert_eq!((&kind["pool"], &kind["had"], &kind["pools"]), (&json!("aicpu_task"), &json!(1), &json!(5)));
    let recommended = kind["recommended"].as_u64().unwrap();
    // 60 ms of 40,000 records a second and pool are two buffers and a half.
    assert!((3..60).contains(&recommended), "{plan}");
    assert_eq!((&plan["freezes"], &plan["freezes_avoided"]), (&json!(freezes(&report)), &plan["freezes"]));
    let page = sluice(&["plan", starved.out()]);
    assert!(text(&page.stdout).ends_with(&format!("use: --buffers aicpu_task={recommended}\n")), "{page:?}");

    let served = Folder::new("served");
    let buffers = plan["buffers"].as_str().unwrap();
    let report_then = stress(&served, &[&load[..], &["--buffers", buffers]].concat());
    assert!(freezes(&report_then) < freezes(&report), "{report_then}");
}

#[test]
fn signals_stop_the_workload_with_whole_artefacts() {
    for (name, status) in [("-INT", 130), ("-TERM", 143)] {
        let folder = Folder::new(&format!("signal{name}"));
        let child = endless(&folder, &STRESS);
        signal(&child, name);
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), status);
        let report = folder.report();
        let swimlane = &report["dfx"]["swimlane"];
        assert_eq!((&report["interrupted"], &report["lossless"]), (&json!(true), &json!(true)));
        assert_eq!(swimlane["produced"], swimlane["collected"]);
        assert_eq!(check(&folder.path("capture.slc")).1, 0);
        assert_eq!(folder.names(), ["capture.slc", "report.json", "trace.pftrace"]);
    }
}

#[test]
fn a_killed_run_leaves_a_capture_that_is_read_up_to_its_end() {
    let folder = Folder::new("killed");
    let mut child = endless(&folder, &STRESS);
    child.kill().unwrap();
    child.wait().unwrap();
    let capture = folder.path("capture.slc");
    let (checked, status) = check(&capture);
    assert_eq!((&checked["complete"], status), (&json!(false), 1));
    let findings = checked["findings"].as_array().unwrap();
    assert!(findings.contains(&json!("no summary: the run did not come to its end")), "{checked}");
    assert!(!checked["pools"].as_array().unwrap().is_empty());
    let shown = sluice(&["report", "--json", capture.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!((&report["lossless"], &report["interrupted"]), (&json!(false), &json!(true)));
    let swimlane = report["dfx"]["swimlane"].as_object().unwrap();
    assert!(swimlane["collected"].as_u64().unwrap() > 0 && swimlane.len() == 1, "what is unknown is absent");
    assert_eq!(code(&shown), 1);
}
