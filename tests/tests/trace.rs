//! Traces of whole runs, decoded by bindings made from the viewer's own schema.
//!
//! The command writes a run's trace and report into a folder; what the trace shows must be what the report counts and what
//! the model asks for. The command is the one that stands beside this test's own build.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use perfetto_protos::debug_annotation::debug_annotation;
use perfetto_protos::trace::Trace;
use perfetto_protos::track_descriptor::TrackDescriptor;
use perfetto_protos::track_event::track_event::Type;
use protobuf::Message;
use serde_json::Value;

/// A slice as a viewer would draw it.
#[derive(Clone, PartialEq, Debug)]
struct Slice {
    name: String,
    start_ns: u64,
    end_ns: u64,
    /// Names of its arguments, and the values of those that are numbers.
    arguments: BTreeMap<String, Option<u64>>,
}

/// Tracks by their path, each with its slices in order.
type Tracks = BTreeMap<String, Vec<Slice>>;

fn command() -> PathBuf {
    let mut at = std::env::current_exe().expect("a path of this test");
    at.pop();
    at.pop();
    let command = at.join("sluice");
    assert!(command.exists(), "{} is to be built first: `cargo xtask test --only trace`", command.display());
    command
}

/// Runs the command with its artefacts in a folder of that name; returns the trace and the report.
fn run(name: &str, arguments: &[&str]) -> (Tracks, Value) {
    let folder = std::env::temp_dir().join(format!("sluice-trace-{name}-{}", std::process::id()));
    let output = Command::new(command()).args(arguments).arg("--out").arg(&folder).output().expect("started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tracks = decode(&folder.join("trace.pftrace"));
    let report = std::fs::read(folder.join("report.json")).expect("a report");
    std::fs::remove_dir_all(&folder).expect("removed");
    (tracks, serde_json::from_slice(&report).expect("a report in JSON"))
}

fn decode(path: &Path) -> Tracks {
    let trace = Trace::parse_from_bytes(&std::fs::read(path).expect("a trace")).expect("a whole trace");
    assert!(trace.special_fields.unknown_fields().iter().next().is_none());
    let mut names = HashMap::new();
    let mut argument_names = HashMap::new();
    let mut descriptors: HashMap<u64, TrackDescriptor> = HashMap::new();
    let mut open: HashMap<u64, Vec<Slice>> = HashMap::new();
    let mut tracks = Tracks::new();
    for packet in &trace.packet {
        assert!(packet.special_fields.unknown_fields().iter().next().is_none(), "{packet:?}");
        for entry in &packet.interned_data.event_names {
            assert_eq!(names.insert(entry.iid(), entry.name().to_owned()), None, "a number names one event");
        }
        for entry in &packet.interned_data.debug_annotation_names {
            assert_eq!(argument_names.insert(entry.iid(), entry.name().to_owned()), None);
        }
        if packet.has_track_descriptor() {
            let descriptor = packet.track_descriptor();
            assert_eq!(descriptors.insert(descriptor.uuid(), descriptor.clone()).map(|d| d.uuid()), None);
        }
        if !packet.has_track_event() {
            continue;
        }
        let event = packet.track_event();
        let path = path_of(&descriptors, event.track_uuid());
        match event.type_() {
            Type::TYPE_SLICE_BEGIN => {
                let argument = |a: &perfetto_protos::debug_annotation::DebugAnnotation| {
                    let name = match &a.name_field {
                        Some(debug_annotation::Name_field::NameIid(iid)) => argument_names[iid].clone(),
                        other => panic!("an argument named by {other:?}"),
                    };
                    (name, a.has_uint_value().then(|| a.uint_value()))
                };
                open.entry(event.track_uuid()).or_default().push(Slice {
                    name: names[&event.name_iid()].clone(),
                    start_ns: packet.timestamp(),
                    end_ns: 0,
                    arguments: event.debug_annotations.iter().map(argument).collect(),
                });
            }
            Type::TYPE_SLICE_END => {
                let mut slice =
                    open.get_mut(&event.track_uuid()).and_then(Vec::pop).expect("a slice that is open");
                slice.end_ns = packet.timestamp();
                assert!(slice.start_ns <= slice.end_ns, "{slice:?}");
                tracks.entry(path).or_default().push(slice);
            }
            Type::TYPE_INSTANT => assert!(names.contains_key(&event.name_iid())),
            other => panic!("an event of type {other:?}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "every slice has an end");
    for (path, slices) in &tracks {
        assert!(slices.is_sorted_by(|a, b| a.end_ns <= b.start_ns), "slices of {path} follow each other");
    }
    tracks
}

/// Names from the outermost track to this one. A track is described before anything stands on it.
fn path_of(descriptors: &HashMap<u64, TrackDescriptor>, uuid: u64) -> String {
    let descriptor = &descriptors[&uuid];
    let name = [descriptor.name(), descriptor.process.process_name(), descriptor.thread.thread_name()]
        .into_iter()
        .find(|name| !name.is_empty())
        .expect("a name");
    if descriptor.has_parent_uuid() {
        format!("{}/{name}", path_of(descriptors, descriptor.parent_uuid()))
    } else {
        name.to_owned()
    }
}

/// How often each name stands on the tracks whose path contains `part`.
fn counts<'a>(tracks: &'a Tracks, part: &str) -> BTreeMap<&'a str, u64> {
    let mut counts = BTreeMap::new();
    for slice in tracks.iter().filter(|(path, _)| path.contains(part)).flat_map(|(_, slices)| slices) {
        *counts.entry(slice.name.as_str()).or_default() += 1;
    }
    counts
}

/// Whether slices on the track come from records.
fn is_of_records(path: &str) -> bool {
    let beside = [" phases", " scopes", " waits"];
    !path.starts_with("host") && !beside.iter().any(|what| path.contains(what))
}

#[test]
fn a_model_shows_every_task_on_its_core_and_every_phase_of_the_host() {
    const EXECUTIONS: u64 = 20;
    let (tracks, report) = run("model", &["run", "--executions", &EXECUTIONS.to_string()]);
    assert_eq!(report["lossless"], Value::Bool(true));
    let total: u64 = tracks.iter().filter(|(path, _)| is_of_records(path)).map(|(_, s)| s.len() as u64).sum();
    let subsystems = report["dfx"].as_object().expect("figures by subsystem").iter();
    // What tasks wait for is shown as arrows, and what they take and give at their slices; scopes stand on tracks of their own.
    let beside = ["scope_stats", "dep_gen", "args_dump"];
    let of_its_own = subsystems.filter(|(name, _)| !beside.contains(&name.as_str()));
    let collected: u64 = of_its_own.filter_map(|(_, figures)| figures["collected"].as_u64()).sum();
    assert_eq!(collected, total, "one slice per record");
    let takes = |slice: &&Slice| slice.arguments.contains_key("takes_before_dispatch");
    assert!(tracks.values().flatten().filter(takes).count() > 0, "tasks say what they take");
    let scopes: Vec<_> = tracks.iter().filter(|(path, _)| path.ends_with(" scopes")).collect();
    assert_eq!(scopes.len(), 2, "one for each subgraph");
    for (path, slices) in scopes {
        assert_eq!(slices.len() as u64, EXECUTIONS, "{path}");
        assert!(slices.iter().all(|slice| slice.arguments["begin_tasks"] == Some(1)), "{path}");
    }

    // Every block of the model is one task of an execution, under its own name: as its lane and as its core saw it.
    let blocks = [
        ("TPB0 POOL", ["gather_column", "gather_rows"]),
        ("TPB0 ACT", ["repeat_ones", "mix_even"]),
        ("TPB0 SP", ["store_gathered", "copy_whole"]),
        ("TPB1 POOL", ["spread_rows", "pick_words"]),
        ("TPB1 DVE", ["store_odd_length", "mix_odd"]),
    ];
    for (core, tasks) in blocks {
        for what in ["", " kernel", " counters"] {
            let path = format!("/cores/{core}{what}");
            let of_core: Tracks = tracks.clone().into_iter().filter(|(at, _)| at.ends_with(&path)).collect();
            assert_eq!(counts(&of_core, ""), tasks.map(|task| (task, EXECUTIONS)).into(), "{path}");
            for slice in of_core.values().flatten() {
                assert!(slice.arguments["bytes"].is_some_and(|bytes| bytes > 0), "{slice:?}");
                assert!(
                    slice.arguments.contains_key("execution")
                        && (slice.end_ns > slice.start_ns || what == " kernel"),
                    "{slice:?}"
                );
                let icache_requests = slice.arguments.get("icache_req");
                assert_eq!(
                    icache_requests,
                    (what == " counters").then_some(&Some(1)),
                    "one per item: {slice:?}"
                );
            }
        }
    }
    let shown = counts(&tracks, "/cores/").values().sum::<u64>();
    assert_eq!(shown, 3 * 10 * EXECUTIONS, "each task as lane and core saw it, and with its counts");
    for lane in ["lanes/lane 0", "lanes/lane 1"] {
        assert!(!counts(&tracks, lane).is_empty(), "{lane} shows what it did");
        let phases = counts(&tracks, &format!("{lane} phases"));
        assert_eq!(phases.get("run_wall"), Some(&1), "{lane}: {phases:?}");
    }
    assert_eq!(
        counts(&tracks, "orchestrator").values().sum::<u64>(),
        2 * EXECUTIONS,
        "one for each subgraph"
    );

    let host = counts(&tracks, "host/");
    for phase in ["build", "stage", "kickoff", "wait", "verify"] {
        assert_eq!(host.get(phase), Some(&EXECUTIONS), "{phase}");
    }
    let host_tracks: BTreeSet<_> = tracks.keys().filter(|path| path.starts_with("host/")).collect();
    assert_eq!(host_tracks.len(), 1, "phases of one thread follow each other: {host_tracks:?}");
}

#[test]
fn a_pause_of_the_host_shows_as_a_freeze_as_long_as_the_report_says() {
    let arguments = ["stress", "--records", "200000", "--buffers", "1", "--pause-host", "300@50"];
    let (tracks, report) = run("freeze", &arguments);
    assert_eq!(report["lossless"], Value::Bool(true));
    let freezes: Vec<_> =
        tracks.iter().filter(|(path, _)| path.contains("/freezes/")).flat_map(|(_, slices)| slices).collect();
    let said = &report["dfx"]["swimlane"]["freezes"];
    let of =
        |key: &str| said["rq"][key].as_u64().expect("a number") + said["fq"][key].as_u64().expect("a number");
    assert_eq!(of("count"), freezes.len() as u64);
    assert_eq!(of("total_ns"), freezes.iter().map(|freeze| freeze.end_ns - freeze.start_ns).sum::<u64>());
    let longest = freezes.iter().map(|freeze| freeze.end_ns - freeze.start_ns).max();
    assert_eq!(longest, said["rq"]["max_ns"].as_u64().max(said["fq"]["max_ns"].as_u64()));
    assert!(longest >= Some(250_000_000), "the pause is in it: {longest:?} ns");
    assert!(freezes.iter().all(|freeze| freeze.arguments.contains_key("lanes_parked")));

    // Lanes stood still in it, and what they looked at next had long been done.
    let on = |part: &str| -> Vec<_> {
        tracks.iter().filter(|(path, _)| path.contains(part)).flat_map(|(_, slices)| slices).collect()
    };
    let waited = |key: &str| -> u64 {
        let subsystems = report["dfx"].as_object().expect("figures by subsystem").values();
        let gates = subsystems.flat_map(|figures| ["rq", "fq"].map(|gate| &figures["waits"][gate][key]));
        gates.map(|figure| figure.as_u64().expect("a number")).sum()
    };
    let waits = on(" waits");
    assert_eq!(waited("count"), waits.len() as u64);
    assert_eq!(waited("total_ns"), waits.iter().map(|wait| wait.end_ns - wait.start_ns).sum::<u64>());
    let late = &report["dfx"]["swimlane"]["late"];
    let number = |task: &Slice, key: &str| task.arguments[key].expect("a number");
    let tasks = on("/cores/").into_iter().filter(|task| task.arguments.contains_key("late"));
    let (mut count, mut stalled_cycles) = (0, 0);
    for task in tasks {
        count += 1;
        stalled_cycles += number(task, "raw_cycles") - number(task, "corrected_cycles");
    }
    assert!(count > 0 && late["tasks"] == count, "{count} tasks are marked of {late}");
    let of = |key: &str| late[key].as_u64().expect("a number");
    // 50 MHz.
    assert_eq!(of("raw_ns") - of("corrected_ns"), stalled_cycles * 20);
    assert!(stalled_cycles * 20 >= 250_000_000, "the pause is taken out: {late}");
}
