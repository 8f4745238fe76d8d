//! `sluice stress`: lanes make up records of any subsystem, as fast as they can or at a rate; none may be lost.

mod check;

use std::num::NonZeroU64;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::exec::{
    CoreIndex, HostBoot, Instruction, InstructionBytes, LaneIndex, RunBlock, Workload, WorkloadKinds,
};
use sluice_core::layout::extension::LINE_BYTES;
use sluice_core::layout::{SubsystemId, args_dump, dep_gen};
use sluice_core::mem::{CopyMemory, DevAddr};
use sluice_core::mmio::QueueId;
use sluice_host::capture::{Core, Manifest};
use sluice_host::device::Device;
use sluice_host::device::heap::{DeviceBlock, Heap, UsageTag};
use sluice_host::device::qemu::{QemuConfig, QemuDevice};
use sluice_host::device::sim::{SimConfig, SimDevice};
use sluice_host::device::unmapped::Unmapped;
use sluice_host::dfx::Session;
use sluice_host::report::Model;
use sluice_host::report::units::Many;
use sluice_host::verify::{Extent, made_up};
use zerocopy::IntoBytes;

use self::check::{Checked, Checks};
use crate::interrupt::Interrupt;
use crate::options::{DeviceName, Recording, Transport, buffers_of, command_line, conflict};
use crate::recording::{Capture, blank_report, note_device, recorded};

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
    /// Bytes of each argument, of which every one is compared
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    payload_bytes: u32,
    /// Slots of the longest chain of dependencies; tasks take from one to so many in turns
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=dep_gen::RECORDS as i64), value_name = "N")]
    chain: u32,
    /// TPBs of the device, of five cores each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8), value_name = "N")]
    tpbs: u32,
    /// Drain and collect nothing for so many milliseconds, so many after the start; several with commas. The
    /// first of one begins when half of the records are collected at the latest, the first of two at a third, and so on
    #[arg(long, value_name = "MS@AT_MS,...", value_delimiter = ',')]
    pause_host: Vec<Pause>,
    /// In a pause the owner of the gates stands still too, and shows no sign of life
    #[arg(long, requires = "pause_host")]
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
const KINDS: [(&str, SubsystemId, WorkloadKinds); 9] = [
    ("swimlane", SubsystemId::Swimlane, OF_SWIMLANE),
    ("aicpu_task", SubsystemId::Swimlane, WorkloadKinds::AICPU_TASK),
    ("aicore_task", SubsystemId::Swimlane, WorkloadKinds::AICORE_TASK),
    ("sched_phase", SubsystemId::Swimlane, WorkloadKinds::SCHED_PHASE),
    ("orch_phase", SubsystemId::Swimlane, WorkloadKinds::ORCH_PHASE),
    ("pmu", SubsystemId::Pmu, WorkloadKinds::PMU),
    ("dep_gen", SubsystemId::DepGen, WorkloadKinds::DEP_GEN),
    ("args_dump", SubsystemId::ArgsDump, WorkloadKinds::ARGS_DUMP),
    ("scope_stats", SubsystemId::ScopeStats, WorkloadKinds::SCOPE_STATS),
];
const OF_SWIMLANE: WorkloadKinds = WorkloadKinds::AICPU_TASK
    .union(WorkloadKinds::AICORE_TASK)
    .union(WorkloadKinds::SCHED_PHASE)
    .union(WorkloadKinds::ORCH_PHASE);

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
    /// What lanes are to make up, and the device memory that they do it with.
    fn workload<M: CopyMemory>(
        &self,
        memory: &M,
        heap: &Heap,
    ) -> anyhow::Result<(Workload, Vec<DeviceBlock>)> {
        let mut workload = Workload {
            records: self.records,
            kinds: self.subsystem.0,
            rate_hz: self.rate.0.map_or(0, NonZeroU64::get),
            chain: self.chain,
            payload_bytes: self.payload_bytes,
            ..Workload::NONE
        };
        let mut blocks = Vec::new();
        let mut place = |bytes: &[u8]| -> anyhow::Result<DevAddr> {
            let block = heap.alloc(bytes.len() as u64, LINE_BYTES as u64, UsageTag::Generic)?;
            memory.write_bytes(block.at(), bytes)?;
            blocks.push(block);
            Ok(blocks[blocks.len() - 1].at())
        };
        if workload.payload_bytes > 0 {
            workload.payload_source = place(&made_up::source(&workload))?;
        }
        if workload.kinds.contains(WorkloadKinds::AICORE_TASK) {
            workload.core_item = place(nothing_to_do()?.as_bytes())?;
        }
        Ok((workload, blocks))
    }

    fn check(&self) -> Result<(), clap::Error> {
        self.recording.check()?;
        let is_part = |extent: &Extent| extent.first.selects() || !extent.changes.is_empty();
        if self.recording.extents().iter().any(is_part) {
            return Err(conflict(
                "made-up records belong to no execution: '--sample', '--window' and '--at' choose none of them",
            ));
        }
        let arena_bytes = self.recording.arena.map_or(args_dump::DEFAULT_ARENA_BYTES, NonZeroU64::get);
        let needless = |option: &str, kind: &str| {
            format!("'{option}' is about records of `{kind}`, of which '--subsystem' makes none")
        };
        let refused = if self.payload_bytes > 0 && !self.subsystem.0.contains(WorkloadKinds::ARGS_DUMP) {
            Some(needless("--payload-bytes", "args_dump"))
        } else if self.chain > 1 && !self.subsystem.0.contains(WorkloadKinds::DEP_GEN) {
            Some(needless("--chain", "dep_gen"))
        } else if u64::from(self.payload_bytes) > arena_bytes {
            Some(format!(
                "arguments of {} bytes do not fit an arena of {arena_bytes}: raise '--arena'",
                self.payload_bytes
            ))
        } else {
            None
        };
        if let Some(text) = refused {
            return Err(conflict(text));
        }
        let recorded = self.recording.extents();
        let is_recorded = |of: &SubsystemId| recorded.iter().any(|extent| extent.subsystem == *of);
        match self.subsystem.subsystems().find(|subsystem| !is_recorded(subsystem)) {
            None => Ok(()),
            Some(subsystem) => {
                let is_off = self.recording.dfx.0.contains(&subsystem);
                let why = if is_off { "'--level' turns off" } else { "'--dfx' does not record" };
                Err(conflict(format_args!("'--subsystem' makes records of `{subsystem}`, which {why}")))
            }
        }
    }
}

/// An instruction that moves nothing and signals nobody.
fn nothing_to_do() -> anyhow::Result<InstructionBytes> {
    let queue = QueueId::new(0)?;
    let block = RunBlock { queue, block: 0, pairs: 0, waits: Default::default(), signal: None, kernel: 0 };
    Ok(InstructionBytes::encode(&Instruction::RunBlock(block)))
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
        let (workload, _blocks) = args.workload(device.memory(), &heap)?;
        boot.set_workload(&workload)?;
        let started_ns = capture.now_ns();
        let checks = Arc::new(Checks::new(&workload));
        let sink = Checked { inner: capture.sink(), checks: Arc::clone(&checks) };
        let session = Session::start(device, &heap, config, Arc::new(sink))?;
        await_lanes(args, &**device, &session, &boot, &capture, interrupt)?;
        let accounts = session.stop()?;
        report.duration_ns = capture.now_ns() - started_ns;
        pools = capture.account(&accounts, &args.recording.extents(), &mut report);
        checks.note(&pools, &mut report);
    }
    report.interrupted = interrupt.has_come();
    note_device(&**device, &mut report);
    capture.finish(&**device, report, pools, &args.recording, interrupt)
}

/// Waits until every lane has made its share, and keeps the appointed pauses. A signal ends the workload, and so does the end of
/// the device.
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
            let left = pauses.count() as u64;
            if left > 0 {
                eprintln!("sluice: {} not made: all records were before", Many(left, "pause", "pauses"));
            }
            return Ok(());
        }
        if device.fate().is_some() {
            session.resume();
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
        let refused = "tensors".parse::<Kinds>().unwrap_err();
        assert!(refused.starts_with("no records are made up of `tensors`, only all, swimlane, aicpu_task"));
        let of = |text: &str| text.parse::<Kinds>().unwrap().subsystems().collect::<Vec<_>>();
        assert!(of("pmu").iter().eq([&SubsystemId::Pmu]));
        assert!(of("orch_phase").iter().all(|subsystem| *subsystem == SubsystemId::Swimlane));
    }
}
