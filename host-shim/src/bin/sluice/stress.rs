//! `sluice stress`: lanes make up records of any subsystem, as fast as they can or at a rate; none may be lost.

use std::io;
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::exec::{CoreIndex, HostBoot, LaneIndex, Workload, WorkloadKinds};
use sluice_core::layout::SubsystemId;
use sluice_host::capture::{Core, Manifest, Pool, PoolTotals};
use sluice_host::device::Device;
use sluice_host::device::heap::Heap;
use sluice_host::device::qemu::{QemuConfig, QemuDevice};
use sluice_host::device::sim::{SimConfig, SimDevice};
use sluice_host::device::unmapped::Unmapped;
use sluice_host::dfx::{BufferMeta, Freeze, LanePhase, PayloadMeta, Session, Sink, Wait};
use sluice_host::report::units::Many;
use sluice_host::report::{self, Model, Report};
use sluice_host::verify::{Extent, SequenceCheck};

use crate::interrupt::Interrupt;
use crate::options::{DeviceName, Recording, Transport, buffers_of, command_line};
use crate::recording::{Capture, blank_report, recorded};

/// Longest sleep between two looks at the lanes and at the time.
const LOOK: Duration = Duration::from_millis(5);

/// Load the recording with made-up records
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Records that all lanes make together
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    records: u64,
    /// What the records are: subsystems and kinds of pool of the swimlane, with commas. They take turns
    #[arg(long, default_value = "aicpu_task", value_name = "LIST")]
    subsystem: Kinds,
    /// Records per second that all lanes make together, or max for as fast as they can
    #[arg(long, default_value = "max", value_name = "R|max")]
    rate: Rate,
    /// TPBs of the device, of five cores each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8), value_name = "N")]
    tpbs: u32,
    /// Drain and collect nothing for so many milliseconds, so many after the start; several with commas. The
    /// first of one begins when half of the records are collected at the latest, the first of two at a third, and so on
    #[arg(long, value_name = "MS@AT_MS,...", value_delimiter = ',')]
    pause_host: Vec<Pause>,
    /// In a pause the owner of the gates stands still too, and shows no sign of life
    #[arg(long)]
    pause_all: bool,
    /// Write no records, and so no capture and no trace: for loads that are larger than a disk
    #[arg(long)]
    no_capture: bool,
    #[command(flatten)]
    recording: Recording,
}

/// A time in which the host drains and collects nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pause {
    duration: Duration,
    at: Duration,
}

impl FromStr for Pause {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = |text: &str| text.parse().ok().map(Duration::from_millis);
        let (duration, at) =
            text.split_once('@').ok_or_else(|| format!("`{text}` is not of the form MS@AT_MS"))?;
        match (parse(duration), parse(at)) {
            (Some(duration), Some(at)) => Ok(Self { duration, at }),
            _ => Err(format!("`{text}` is not two numbers of milliseconds")),
        }
    }
}

/// How fast records are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rate(Option<NonZeroU64>);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("max", _) => Ok(Self(None)),
            (_, Ok(rate)) => Ok(Self(Some(rate))),
            _ => Err(format!("`{text}` is neither max nor a number of records per second")),
        }
    }
}

/// Kinds of record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kinds(WorkloadKinds);

/// What can be made up, by name; the first of a subsystem under the name of its own stands for all of them.
const KINDS: [(&str, SubsystemId, WorkloadKinds); 8] = [
    ("swimlane", SubsystemId::Swimlane, OF_SWIMLANE),
    ("aicpu_task", SubsystemId::Swimlane, WorkloadKinds::AICPU_TASK),
    ("sched_phase", SubsystemId::Swimlane, WorkloadKinds::SCHED_PHASE),
    ("orch_phase", SubsystemId::Swimlane, WorkloadKinds::ORCH_PHASE),
    ("pmu", SubsystemId::Pmu, WorkloadKinds::PMU),
    ("dep_gen", SubsystemId::DepGen, WorkloadKinds::DEP_GEN),
    ("args_dump", SubsystemId::ArgsDump, WorkloadKinds::ARGS_DUMP),
    ("scope_stats", SubsystemId::ScopeStats, WorkloadKinds::SCOPE_STATS),
];
const OF_SWIMLANE: WorkloadKinds =
    WorkloadKinds::AICPU_TASK.union(WorkloadKinds::SCHED_PHASE).union(WorkloadKinds::ORCH_PHASE);

impl FromStr for Kinds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut kinds = WorkloadKinds::empty();
        for name in text.split(',').map(str::trim) {
            let named = KINDS.iter().filter(|(known, ..)| name == "all" || *known == name);
            let of_name = named.map(|(.., kinds)| *kinds).fold(WorkloadKinds::empty(), WorkloadKinds::union);
            if of_name.is_empty() {
                let known = KINDS.map(|(name, ..)| name).join(", ");
                return Err(format!("no records are made up of `{name}`, only all, {known}"));
            }
            kinds |= of_name;
        }
        Ok(Self(kinds))
    }
}

impl Kinds {
    fn subsystems(self) -> impl Iterator<Item = SubsystemId> {
        let made = KINDS.into_iter().filter(move |(.., kinds)| self.0.intersects(*kinds));
        made.map(|(_, subsystem, _)| subsystem)
    }
}

impl Args {
    fn workload(&self) -> Workload {
        let rate_hz = self.rate.0.map_or(0, NonZeroU64::get);
        Workload { records: self.records, kinds: self.subsystem.0, rate_hz }
    }

    fn check(&self) -> Result<(), clap::Error> {
        self.recording.check()?;
        let is_part = |extent: &Extent| extent.sample_every > 1 || extent.window.is_some();
        if self.recording.extents().iter().any(is_part) {
            return Err(clap::Error::raw(
                clap::error::ErrorKind::ArgumentConflict,
                "made-up records belong to no execution: '--sample' and '--window' choose none of them\n",
            ));
        }
        let recorded = &self.recording.dfx.0;
        match self
            .subsystem
            .subsystems()
            .find(|subsystem| !recorded.is_empty() && !recorded.contains(subsystem))
        {
            None => Ok(()),
            Some(subsystem) => Err(clap::Error::raw(
                clap::error::ErrorKind::ArgumentConflict,
                format!("'--subsystem' makes records of `{subsystem}`, which '--dfx' does not record\n"),
            )),
        }
    }
}

/// Looks at the number of every record on its way.
struct Numbered {
    inner: Arc<dyn Sink>,
    check: Arc<SequenceCheck>,
}

impl Sink for Numbered {
    fn buffer(&self, meta: &BufferMeta, records: &[u8]) -> io::Result<()> {
        self.inner.buffer(meta, records)?;
        let pool = Pool { subsystem: meta.subsystem.into(), kind: meta.kind, instance: meta.instance.0 };
        self.check.buffer(pool, records);
        Ok(())
    }

    fn payload(&self, meta: &PayloadMeta, bytes: &[u8]) -> io::Result<()> {
        self.inner.payload(meta, bytes)
    }

    fn freeze(&self, freeze: &Freeze) -> io::Result<()> {
        self.inner.freeze(freeze)
    }

    fn waits(&self, waits: &[Wait]) -> io::Result<()> {
        self.inner.waits(waits)
    }

    fn phases(&self, phases: &[LanePhase]) -> io::Result<()> {
        self.inner.phases(phases)
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.check()?;
    let interrupt = Interrupt::listen()?;
    let Recording { arch, lanes, .. } = args.recording;
    let tpbs = args.tpbs;
    match args.recording.device {
        DeviceName::Sim => {
            let config = SimConfig { arch, tpbs, lanes, ..SimConfig::default() };
            load_on(args, Arc::new(SimDevice::start(config)?), &interrupt)
        }
        DeviceName::QemuAarch64 => {
            let config = QemuConfig::new(args.recording.firmware.clone(), lanes);
            load_on(args, Arc::new(QemuDevice::start(&QemuConfig { arch, tpbs, ..config })?), &interrupt)
        }
    }
}

fn load_on<D: Device>(args: &Args, device: Arc<D>, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    match args.recording.transport {
        Transport::Shared => load(args, &device, interrupt),
        Transport::Copy => load(args, &Arc::new(Unmapped::new(device)), interrupt),
    }
}

fn load<D: Device>(args: &Args, device: &Arc<D>, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let capture = Capture::begin(&args.recording, &**device)?;
    let capture = if args.no_capture { capture.without_records() } else { capture };
    let mut report = blank_report(&capture, &args.recording, device.name());
    report.model = Model { name: "stress".into(), ..Model::default() };
    let tpbs = device.map().registers.tpbs();
    let cores = CoreIndex::all(tpbs).count() as u32;
    let config = args.recording.session(cores, capture.run())?;
    let buffers = config.as_ref().map(buffers_of).unwrap_or_default();
    capture.announce(&Manifest { buffers, ..manifest(args, tpbs, device.name()) })?;
    let ram = device.map().ram;
    let heap = Heap::new(ram.base, ram.bytes);
    let mut pools = Vec::new();
    if let Some(config) = config {
        let boot = HostBoot::attach(device.memory(), device.map().boot)?;
        boot.set_workload(&args.workload())?;
        let started_ns = capture.now_ns();
        let check = Arc::new(SequenceCheck::default());
        let sink = Numbered { inner: capture.sink(), check: Arc::clone(&check) };
        let session = Session::start(device, &heap, config, Arc::new(sink))?;
        await_lanes(args, &**device, &session, &boot, &capture, interrupt)?;
        let accounts = session.stop()?;
        report.duration_ns = capture.now_ns() - started_ns;
        pools = capture.account(&accounts, &args.recording.extents(), &mut report);
        note_sequences(&check, &pools, &mut report);
    }
    report.interrupted = interrupt.has_come();
    capture.finish(&**device, report, pools, &args.recording, interrupt)
}

/// Writes into the report whether the records of each pool came once and in order.
fn note_sequences(check: &SequenceCheck, pools: &[PoolTotals], report: &mut Report) {
    let mut all = report::Sequences::default();
    for totals in pools {
        let Some(pool) = totals.pool() else { continue };
        let found = check.of(pool, totals.produced);
        all.records += found.records;
        all.missing += found.missing;
        all.repeated += found.repeated;
        // What is counted as lost is said elsewhere.
        let unexplained = found.missing.saturating_sub(totals.dropped);
        if unexplained > 0 {
            let records = Many(unexplained, "record is", "records are");
            report.wrong.push(format!("{pool}: {records} missing and not counted as lost"));
        }
        if found.repeated > 0 {
            let records = Many(found.repeated, "record", "records");
            report.wrong.push(format!("{pool}: {records} came twice or out of order"));
        }
    }
    report.sequences = Some(all);
}

/// Waits until every lane has made its share, and keeps the appointed pauses. A signal ends the workload.
fn await_lanes<D: Device>(
    args: &Args,
    device: &D,
    session: &Session<D>,
    boot: &HostBoot<D::Mem>,
    capture: &Capture,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let started = std::time::Instant::now();
    let mut pauses = args.pause_host.clone();
    pauses.sort_by_key(|pause| pause.at);
    let parts = pauses.len() as u64 + 1;
    let mut pauses = (1..).zip(pauses).peekable();
    loop {
        let seen = device.progress();
        let is_due = |&(number, pause): &(u64, Pause)| {
            let share = args.records / parts * number;
            started.elapsed() >= pause.at || (share > 0 && capture.collected() >= share)
        };
        if let Some((_, pause)) = pauses.next_if(is_due) {
            if args.pause_all {
                session.stand_still(pause.duration);
            } else {
                session.pause(pause.duration);
            }
        }
        if interrupt.has_come() {
            boot.stop_workload()?;
            session.resume();
            return Ok(());
        }
        let lanes = (0..args.recording.lanes).filter_map(LaneIndex::new);
        let made = lanes.map(|lane| boot.workload_made(lane)).collect::<Result<Vec<_>, _>>()?;
        if made.into_iter().all(|made| made) {
            return Ok(());
        }
        device.wait_progress(seen, LOOK);
    }
}

fn manifest(args: &Args, tpbs: u32, device: &str) -> Manifest {
    let lanes = args.recording.lanes;
    let core = |core: CoreIndex| Core {
        name: format!("TPB{} {}", core.tpb(), core.engine()),
        lane: core.lane(lanes).get(),
        items: Vec::new(),
    };
    Manifest {
        device: device.into(),
        lanes,
        gate_scope: args.recording.gate_scope.name().into(),
        options: command_line(),
        model: "stress".into(),
        recorded: recorded(&args.recording.extents()),
        cores: CoreIndex::all(tpbs).map(core).collect(),
        ..Manifest::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_a_length_and_a_time() {
        let ms = Duration::from_millis;
        assert_eq!("2000@100".parse(), Ok(Pause { duration: ms(2000), at: ms(100) }));
        assert_eq!("5".parse::<Pause>().unwrap_err(), "`5` is not of the form MS@AT_MS");
        assert_eq!("1s@5".parse::<Pause>().unwrap_err(), "`1s@5` is not two numbers of milliseconds");
    }

    #[test]
    fn a_rate_is_a_number_or_as_fast_as_can_be() {
        assert_eq!("max".parse(), Ok(Rate(None)));
        assert_eq!("5000".parse(), Ok(Rate(NonZeroU64::new(5000))));
        for text in ["0", "-1", "fast"] {
            let refused = format!("`{text}` is neither max nor a number of records per second");
            assert_eq!(text.parse::<Rate>(), Err(refused));
        }
    }

    #[test]
    fn records_are_named_by_subsystem_or_kind_of_pool() {
        use WorkloadKinds as K;
        assert_eq!("aicpu_task, pmu".parse(), Ok(Kinds(K::AICPU_TASK | K::PMU)));
        assert_eq!("swimlane".parse(), Ok(Kinds(OF_SWIMLANE)));
        let all: Kinds = "all".parse().unwrap();
        assert_eq!(all.0, WorkloadKinds::all());
        let refused = "aicore_task".parse::<Kinds>().unwrap_err();
        assert!(
            refused.starts_with("no records are made up of `aicore_task`, only all, swimlane, aicpu_task")
        );
        let of = |text: &str| text.parse::<Kinds>().unwrap().subsystems().collect::<Vec<_>>();
        assert!(of("pmu").iter().eq([&SubsystemId::Pmu]));
        assert!(of("orch_phase").iter().all(|subsystem| *subsystem == SubsystemId::Swimlane));
    }
}
