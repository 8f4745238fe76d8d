//! `report.json`: what a run did, in figures other tools rely on.
//!
//! Keys only grow. A key stands for something that is built and was measured: what is not built is absent, never
//! zero. Times are nanoseconds, sizes bytes. The same shape comes from `sluice run`, `sluice stress --json` and
//! `sluice report`.

mod summary;
pub mod units;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sluice_core::layout::SubsystemId;
use sluice_core::producer::{Control, RecordWindow};

pub use crate::device::status::DeviceStatus;
pub use summary::Page;

/// The whole report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Back-end, such as `sim`.
    pub device: String,
    /// `a2a3` or `a5`.
    pub arch: String,
    /// Architecture whose models the device takes, `*` for any; absent where no model ran.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// Every record that was produced stands in the capture.
    pub lossless: bool,
    /// Whether records may be lost without the run being called a failure.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub loss_allowed: bool,
    /// Every output of every execution was compared and was right, and there was one.
    pub outputs_verified: bool,
    /// Every patched pointer, table row and queue base was read back and was right, and there was one.
    pub swaps_verified: bool,
    /// Whether the run was stopped before its end.
    pub interrupted: bool,
    /// Whether the run died: what it would have counted at its end is unknown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub broken_off: bool,
    /// What could not be verified and why, for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unverified: Vec<String>,
    /// What was found to be wrong, the first of each kind, for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<String>,
    /// The run's number, the same in every artefact.
    pub run: u64,
    /// From load to removal, nanoseconds.
    pub duration_ns: u64,
    /// What ran.
    pub model: Model,
    /// Comparisons made.
    pub verified: Verified,
    /// The compute-resource build.
    pub kbl: Kbl,
    /// `all` or `lane`.
    pub gate_scope: String,
    /// By name of the subsystem, those that were on.
    pub dfx: BTreeMap<String, Dfx>,
    /// Numbers of made-up records; absent where records have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<Sequences>,
    /// Bytes of made-up arguments; absent where they have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payloads: Option<Payloads>,
    /// Chains of made-up dependencies; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chains: Option<Chains>,
    /// Phases of the device by name, those that occurred: the longest over all lanes, nanoseconds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub phases_ns: BTreeMap<String, u64>,
    /// What the device last said of itself; absent if it said nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<DeviceStatus>,
    /// What this run has written into its folder.
    pub artefacts: Artefacts,
}

/// What ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Model {
    /// Name of the model or workload.
    pub name: String,
    /// What the program reads.
    pub inputs: Vec<Tensor>,
    /// What the program writes.
    pub outputs: Vec<Tensor>,
    /// Physical cores, one subgraph each.
    pub tpbs: u32,
    /// Executions that were finished.
    pub executions: u64,
    /// Work items whose bytes the device moved, over all executions.
    pub items_executed: u64,
    /// Work items of programs that the device could not interpret, over all executions: they took time and moved
    /// nothing.
    pub items_opaque: u64,
}

/// A bound tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tensor {
    /// The name it is bound by.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// TPB of the first subgraph that has it.
    pub tpb: u32,
    /// The compiler's number of it in that subgraph.
    pub var_id: u32,
    /// Device address it was bound to.
    pub pa: u64,
}

/// Comparisons made, over all executions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verified {
    /// Output bytes compared.
    pub output_bytes: u64,
    /// Outputs compared.
    pub outputs: u64,
    /// Pointers, table rows and queue bases read back and compared.
    pub swaps: u64,
    /// Records of the capture compared with the set that the model has to give.
    pub records: u64,
}

/// Figures of the compute-resource build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kbl {
    /// Builds served from the cache.
    pub build_hits: u64,
    /// Builds that wrote descriptors.
    pub build_misses: u64,
    /// Executions staged.
    pub tickets: u64,
    /// Waits that ended without a completion.
    pub timeouts: u64,
}

/// How much of a run a subsystem was to record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Extent {
    /// Its level, by name.
    pub level: String,
    /// Every how many executions one was recorded.
    pub sampled_every: u32,
    /// The first execution that was recorded, and the first behind it that was not; absent if all were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<[u64; 2]>,
    /// The first tick of the device's counter that was recorded, and the first behind it that was not; absent if all were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_cycles: Option<[u64; 2]>,
}

impl Default for Extent {
    fn default() -> Self {
        Self { level: String::new(), sampled_every: 1, window: None, window_cycles: None }
    }
}

impl Extent {
    /// What `control` asks for, of a subsystem that may be unknown.
    pub fn of(subsystem: Option<SubsystemId>, control: &Control) -> Self {
        let level = subsystem.and_then(|subsystem| subsystem.level_name(control.level));
        let (window, window_cycles) = match control.window {
            RecordWindow::Whole => (None, None),
            RecordWindow::Executions(span) => (Some([span.from, span.to]), None),
            RecordWindow::Cycles(span) => (None, Some([span.from, span.to])),
        };
        let level = level.unwrap_or("unknown").into();
        Self { level, sampled_every: control.sample_every, window, window_cycles }
    }

    /// Whether something was passed over.
    pub fn is_partial(&self) -> bool {
        self.sampled_every > 1 || self.window.is_some() || self.window_cycles.is_some()
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.level)?;
        if self.sampled_every > 1 {
            write!(f, ", one execution in {}", self.sampled_every)?;
        }
        match self.window {
            Some([from, u64::MAX]) => write!(f, ", executions from {from}"),
            Some([from, to]) => write!(f, ", executions {from} to {to}, the last one excluded"),
            None => Ok(()),
        }?;
        match self.window_cycles {
            Some([from, u64::MAX]) => write!(f, ", from tick {from}"),
            Some([from, to]) => write!(f, ", ticks {from} to {to}, the last one excluded"),
            None => Ok(()),
        }
    }
}

/// Another level, sample or window, from some time of a run on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// Its number; what the run began with has 1.
    pub number: u32,
    /// When lanes were told, host monotonic nanoseconds.
    pub told_ns: u64,
    /// When all of them had followed; absent if they have not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub followed_ns: Option<u64>,
    /// What was to be recorded from then on.
    #[serde(flatten)]
    pub extent: Extent,
}

/// Figures of one profiling subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dfx {
    /// How much was to be recorded at the beginning.
    #[serde(flatten)]
    pub extent: Extent,
    /// What was to be recorded from later times on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// Work items and submits that were not recorded because of sampling or the window; they are not among those produced.
    pub passed_over: u64,
    /// Attempts to record, by the device's account.
    pub produced: u64,
    /// Records that reached the capture.
    pub collected: u64,
    /// Records lost, all causes.
    pub dropped: u64,
    /// Records lost, by cause.
    pub lost: Lost,
    /// Buffers that go round, over all pools.
    pub buffers: u64,
    /// Buffers that the device handed over.
    pub switches: u64,
    /// How close it came.
    pub high_water: HighWater,
    /// Gates that were shut, and for how long.
    pub freezes: Freezes,
    /// What lanes waited, at shut gates or at open ones; absent where they did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// Tasks whose completion was seen late because their lane waited; absent where no task was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,
}

/// Records lost, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lost {
    /// The lane's deadline passed without a host that serves it.
    pub host_gone: u64,
    /// The buffer was in the hands of a host that died.
    pub host_crash: u64,
    /// Copying the buffer failed.
    pub copy_failed: u64,
    /// The device never had a buffer for the record.
    pub no_buffer: u64,
    /// The device's words about the buffer made no sense.
    pub corrupt: u64,
    /// A core still held the buffer when it was given up.
    pub core_busy: u64,
    /// What a core had left belonged to another task.
    pub mismatch: u64,
}

impl Lost {
    /// Name and count of each cause.
    pub fn by_cause(&self) -> [(&'static str, u64); 7] {
        [
            ("host_gone", self.host_gone),
            ("host_crash", self.host_crash),
            ("copy_failed", self.copy_failed),
            ("no_buffer", self.no_buffer),
            ("corrupt", self.corrupt),
            ("core_busy", self.core_busy),
            ("mismatch", self.mismatch),
        ]
    }

    /// Adds records lost by the cause of that name; an unknown cause counts as `corrupt`.
    pub fn add(&mut self, cause: &str, records: u64) {
        let count = match cause {
            "host_gone" => &mut self.host_gone,
            "host_crash" => &mut self.host_crash,
            "copy_failed" => &mut self.copy_failed,
            "no_buffer" => &mut self.no_buffer,
            "core_busy" => &mut self.core_busy,
            "mismatch" => &mut self.mismatch,
            _ => &mut self.corrupt,
        };
        *count += records;
    }

    /// All causes.
    pub fn total(&self) -> u64 {
        self.by_cause().iter().map(|(_, count)| count).sum()
    }
}

/// How close a subsystem came to its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HighWater {
    /// Most entries seen in one ready ring.
    pub ready: u64,
    /// Fewest empty buffers seen in one free queue.
    pub free_low: u64,
}

/// Freezes of the two gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Freezes {
    /// Push gate: a ready ring was full.
    pub rq: Freeze,
    /// Pop gate: a free queue was empty.
    pub fq: Freeze,
}

/// Numbers of made-up records, by which every one of them is known, over all pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sequences {
    /// Records whose number was looked at.
    pub records: u64,
    /// Numbers that never came.
    pub missing: u64,
    /// Records whose number had come before, or out of order.
    pub repeated: u64,
}

/// Arguments with bytes, each held against what it has to hold, over all lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Payloads {
    /// Those that came whole.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those with other bytes than theirs.
    pub wrong: u64,
    /// Records without the bytes of their argument.
    pub missing: u64,
}

/// Tasks with chains of dependencies, each held against what it has to wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Chains {
    /// Tasks that came with all of their chain.
    pub tasks: u64,
    /// Slots that their chains took beside.
    pub links: u64,
    /// Chains that are not whole, or not the task's.
    pub torn: u64,
}

/// Waits of lanes, all lanes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waits {
    /// For room in a ready ring.
    pub rq: Wait,
    /// For an empty buffer.
    pub fq: Wait,
    /// Waits that are not in the capture one by one, because the log of their lane was full.
    pub unlogged: u64,
}

/// Waits at one gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wait {
    /// How many.
    pub count: u64,
    /// Together, nanoseconds.
    pub total_ns: u64,
}

/// Tasks whose completion was seen late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Late {
    /// How many.
    pub tasks: u64,
    /// Their durations as recorded, nanoseconds.
    pub raw_ns: u64,
    /// Their durations without the waits that lie in them, nanoseconds.
    pub corrected_ns: u64,
}

/// Freezes of one gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Freeze {
    /// How many.
    pub count: u64,
    /// Together, nanoseconds.
    pub total_ns: u64,
    /// The longest, nanoseconds.
    pub max_ns: u64,
}

impl Freeze {
    /// Adds a freeze of `duration_ns`.
    pub fn add(&mut self, duration_ns: u64) {
        self.count += 1;
        self.total_ns += duration_ns;
        self.max_ns = self.max_ns.max(duration_ns);
    }
}

/// File names in the run's folder; absent when the run could not write the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Artefacts {
    /// Opens in Perfetto.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Everything that was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<String>,
}

impl Artefacts {
    /// Name of the trace.
    pub const TRACE: &'static str = "trace.pftrace";
    /// Name of the capture.
    pub const CAPTURE: &'static str = "capture.slc";
    /// Name of the report itself.
    pub const REPORT: &'static str = "report.json";
}

impl Report {
    /// Nothing was lost, unless that was allowed, and all that could be verified was right; the exit status of a run
    /// follows it.
    pub fn is_good(&self) -> bool {
        (self.lossless || self.loss_allowed) && self.wrong.is_empty()
    }

    /// The report as the text of `report.json`, with a final newline. Of a run that broke off it has only the keys whose
    /// values are known.
    pub fn to_json(&self) -> String {
        let json = if self.broken_off {
            serde_json::to_value(self)
                .map(known_of_broken_off)
                .and_then(|known| serde_json::to_string_pretty(&known))
        } else {
            serde_json::to_string_pretty(self)
        };
        let mut text = json.expect("a report has only text keys");
        text.push('\n');
        text
    }
}

/// Leaves out what a run counts only at its end.
fn known_of_broken_off(mut report: serde_json::Value) -> serde_json::Value {
    fn keep(value: &mut serde_json::Value, known: &[&str]) {
        if let Some(object) = value.as_object_mut() {
            object.retain(|key, _| known.contains(&key.as_str()));
        }
    }
    keep(&mut report["model"], &["name", "tpbs"]);
    for subsystem in report["dfx"].as_object_mut().into_iter().flat_map(|dfx| dfx.values_mut()) {
        keep(subsystem, &["collected"]);
    }
    let known = [
        "device",
        "arch",
        "lossless",
        "interrupted",
        "broken_off",
        "wrong",
        "run",
        "model",
        "gate_scope",
        "dfx",
    ];
    keep(&mut report, &known);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_those_that_other_tools_rely_on() {
        let artefacts =
            Artefacts { trace: Some(Artefacts::TRACE.into()), capture: Some(Artefacts::CAPTURE.into()) };
        let swimlane = Dfx { waits: Some(Waits::default()), late: Some(Late::default()), ..Dfx::default() };
        let dfx = [("swimlane".to_owned(), swimlane)].into();
        let phases_ns = [("run_wall".to_owned(), 1)].into();
        let sequences = Some(Sequences::default());
        let (payloads, chains) = (Some(Payloads::default()), Some(Chains::default()));
        let report = Report { dfx, artefacts, phases_ns, sequences, payloads, chains, ..Report::default() };
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        for path in [
            "/device",
            "/arch",
            "/lossless",
            "/outputs_verified",
            "/swaps_verified",
            "/model/name",
            "/model/inputs",
            "/model/outputs",
            "/model/tpbs",
            "/model/executions",
            "/kbl/build_hits",
            "/kbl/build_misses",
            "/kbl/tickets",
            "/kbl/timeouts",
            "/dfx/swimlane/level",
            "/dfx/swimlane/sampled_every",
            "/dfx/swimlane/passed_over",
            "/dfx/swimlane/produced",
            "/dfx/swimlane/collected",
            "/dfx/swimlane/dropped",
            "/dfx/swimlane/lost/host_gone",
            "/dfx/swimlane/lost/host_crash",
            "/dfx/swimlane/lost/copy_failed",
            "/dfx/swimlane/lost/no_buffer",
            "/dfx/swimlane/lost/corrupt",
            "/dfx/swimlane/lost/core_busy",
            "/dfx/swimlane/lost/mismatch",
            "/dfx/swimlane/buffers",
            "/dfx/swimlane/switches",
            "/dfx/swimlane/high_water/ready",
            "/dfx/swimlane/high_water/free_low",
            "/dfx/swimlane/freezes/rq/count",
            "/dfx/swimlane/freezes/rq/total_ns",
            "/dfx/swimlane/freezes/fq/max_ns",
            "/dfx/swimlane/waits/rq/count",
            "/dfx/swimlane/waits/fq/total_ns",
            "/dfx/swimlane/waits/unlogged",
            "/dfx/swimlane/late/tasks",
            "/dfx/swimlane/late/raw_ns",
            "/dfx/swimlane/late/corrected_ns",
            "/sequences/records",
            "/sequences/missing",
            "/sequences/repeated",
            "/payloads/count",
            "/payloads/bytes",
            "/payloads/wrong",
            "/payloads/missing",
            "/chains/tasks",
            "/chains/links",
            "/chains/torn",
            "/phases_ns/run_wall",
            "/artefacts/trace",
            "/artefacts/capture",
        ] {
            assert!(json.pointer(path).is_some(), "{path}");
        }
        assert_eq!(json["artefacts"]["trace"], "trace.pftrace");
        assert!(json.pointer("/dfx/pmu").is_none());
        assert_eq!(serde_json::to_value(Artefacts::default()).unwrap(), serde_json::json!({}));
        let tensor = serde_json::to_value(Tensor::default()).unwrap();
        assert_eq!(tensor, serde_json::json!({"name": "", "size": 0, "tpb": 0, "var_id": 0, "pa": 0}));
    }

    #[test]
    fn what_a_dead_run_did_not_count_is_absent_and_not_zero() {
        let dfx = [("swimlane".to_owned(), Dfx { collected: 5, ..Dfx::default() })].into();
        let report = Report { broken_off: true, dfx, ..Report::default() };
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["dfx"]["swimlane"], serde_json::json!({"collected": 5}));
        assert_eq!((&json["lossless"], &json["broken_off"]), (&false.into(), &true.into()));
        for absent in ["outputs_verified", "kbl", "verified", "duration_ns"] {
            assert!(json.get(absent).is_none(), "{absent}");
        }
    }

    #[test]
    fn a_loss_is_a_failure_unless_it_was_allowed() {
        let lossy = Report { lossless: false, ..Report::default() };
        assert!(!lossy.is_good() && !lossy.to_json().contains("loss_allowed"));
        let allowed = Report { loss_allowed: true, ..lossy };
        assert!(allowed.is_good() && allowed.to_json().contains("\"lossless\": false"));
        assert!(!Report { wrong: vec!["x".into()], ..allowed }.is_good(), "anything else is still wrong");
    }

    #[test]
    fn a_report_reads_back() {
        let report = Report { run: 1 << 52, wrong: vec!["x".into()], ..Report::default() };
        assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
    }

    #[test]
    fn every_cause_has_its_own_count() {
        let mut lost = Lost::default();
        for (i, (cause, _)) in Lost::default().by_cause().into_iter().enumerate() {
            lost.add(cause, 1 << i);
        }
        assert_eq!(lost.by_cause().map(|(_, count)| count), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(lost.total(), 127);
    }
}
