//! `sluice run`: loads a model, executes it while everything is recorded, and verifies what can be verified.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use sluice_core::exec::CoreIndex;
use sluice_core::fmap::Direction;
use sluice_core::layout::SubsystemId;
use sluice_core::mem::DevAddr;
use sluice_core::mmio::TpbId;
use sluice_host::capture::payload::NO_EXECUTION;
use sluice_host::capture::{Core, HostPhase, Manifest, Phase, WorkItem};
use sluice_host::device::Device;
use sluice_host::device::heap::Heap;
use sluice_host::device::qemu::{QemuConfig, QemuDevice};
use sluice_host::device::sim::{SimConfig, SimDevice};
use sluice_host::device::unmapped::Unmapped;
use sluice_host::dfx::Session;
use sluice_host::kbl::{
    self, ArgChoice, Built, LoadError, LoadOptions, Model, ModelHandle, PatchedSlot, TensorSet, Unit,
    UnitOptions, WaitError,
};
use sluice_host::neff::{Neff, ReadOptions, Target, models, pack};
use sluice_host::report::{self, Report};
use sluice_host::verify::content::MAX_FILLED_BYTES;
use sluice_host::verify::records::{ExpectedCore, ExpectedItem};
use sluice_host::verify::{Content, ExpectedRecords, Extent, Origins, Tensor};

use crate::inspect::{refusal, with_status};
use crate::interrupt::Interrupt;
use crate::options::{DeviceName, Recording, Transport, buffers_of, command_line, conflict};
use crate::recording::{Capture, blank_report, note_device, recorded};

/// How long a model may stay in use after its last execution.
const UNLOAD_LIMIT: Duration = Duration::from_secs(5);
/// Largest capture that is still looked through after a signal: a second or two.
const MAX_HURRIED_BYTES: u64 = 256 << 20;
/// Most findings of one kind in the report.
const MAX_FINDINGS: usize = 8;

/// Execute a compiled model, record everything, verify
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compiled model, or the name of a built-in one: gather, pointers
    #[arg(long, default_value = "gather", value_name = "FILE")]
    model: PathBuf,
    /// How often to execute it
    #[arg(long, default_value_t = 100, value_name = "N")]
    executions: u64,
    /// What the contents of tensors follow from
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Architecture whose models the device takes: sunda, cayman, mariana, or * for any; that of the model by default
    #[arg(long, value_name = "NAME")]
    target: Option<Target>,
    #[command(flatten)]
    recording: Recording,
}

impl Args {
    fn check(&self) -> Result<(), clap::Error> {
        self.recording.check()?;
        match self.recording.at.iter().find(|change| change.execution >= self.executions) {
            None => Ok(()),
            Some(change) => {
                let (from, executions) = (change.execution, self.executions);
                Err(conflict(format_args!(
                    "'--at' is about execution {from}, of {executions} counted from 0"
                )))
            }
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.check()?;
    let neff = open(&args.model)?;
    check_choice(&args.recording.dump.0, &neff)?;
    let interrupt = Interrupt::listen()?;
    let tpbs = tpbs_of(&neff).map_err(|error| {
        let model = args.model.display();
        refusal(format_args!("{model}: cannot load the model: {error}"), error.status())
    })?;
    let Recording { arch, lanes, transport, .. } = args.recording;
    let of_model = neff.programs.first().map_or(Target::Any, |program| program.target);
    let target = args.target.unwrap_or(of_model);
    match args.recording.device {
        DeviceName::Sim => {
            let config = SimConfig { arch, target, tpbs, lanes, ..SimConfig::default() };
            execute_on(args, &neff, Arc::new(SimDevice::start(config)?), transport, &interrupt)
        }
        DeviceName::QemuAarch64 => {
            let config = QemuConfig::new(args.recording.firmware.clone(), lanes);
            let device = QemuDevice::start(&QemuConfig { arch, target, tpbs, ..config })?;
            execute_on(args, &neff, Arc::new(device), transport, &interrupt)
        }
    }
}

fn execute_on<D: Device>(
    args: &Args,
    neff: &Neff,
    device: Arc<D>,
    transport: Transport,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    match transport {
        Transport::Shared => execute(args, neff, device, interrupt),
        Transport::Copy => execute(args, neff, Arc::new(Unmapped::new(device)), interrupt),
    }
}

/// Makes sure that the model has the tensors that were chosen.
fn check_choice(choice: &ArgChoice, neff: &Neff) -> anyhow::Result<()> {
    let tensors = Origins::tensors_of(&neff.programs);
    let is_known = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
    if let Some(unknown) = choice.tensors().find(|name| !is_known(name)) {
        let known: Vec<_> = tensors.iter().map(|tensor| &*tensor.name).collect();
        bail!("--dump: the model has no tensor `{unknown}`, it has {}", known.join(", "));
    }
    Ok(())
}

/// As many TPBs as the model asks for.
fn tpbs_of(neff: &Neff) -> Result<u32, LoadError> {
    let (subgraphs, have) = (neff.programs.len(), TpbId::COUNT as usize);
    let (cores, tpbs_per_core) = (neff.header.cores_requested, neff.header.virtual_core_size);
    match (subgraphs as u64).max(u64::from(cores) * u64::from(tpbs_per_core)) {
        tpbs if tpbs <= have as u64 => Ok(tpbs as u32),
        _ => {
            let first_tpb = TpbId::FIRST;
            Err(LoadError::NotEnoughCores { subgraphs, cores, tpbs_per_core, first_tpb, have })
        }
    }
}

/// Reads a container; a name of a built-in model stands for it where there is no such file.
fn open(model: &std::path::Path) -> anyhow::Result<Neff> {
    let options = ReadOptions::default();
    match model.to_str().and_then(|name| Some((name, models::builtin(name)?))) {
        Some((name, text)) if !model.exists() => {
            let container = pack(name, text).map_err(with_status)?;
            Neff::parse(name, &container, &options).map_err(with_status)
        }
        _ => Neff::open(model, &options).map_err(with_status),
    }
}

fn execute<D: Device>(
    args: &Args,
    neff: &Neff,
    device: Arc<D>,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    let capture = Capture::begin(&args.recording, &*device)?;
    let mut report = blank_report(&capture, &args.recording, device.name());
    report.target = device.target().name().into();
    let ram = device.map().ram;
    let heap = Heap::new(ram.base, ram.bytes);
    let unit = Unit::open(Arc::clone(&device), heap.clone(), UnitOptions::default())?;
    let reads_tasks = args.recording.extents().iter().any(|extent| extent.subsystem.reads_tasks());
    let task_table = reads_tasks.then(|| args.recording.dump.0.clone());
    let load_options = LoadOptions { task_table, ..LoadOptions::default() };
    let handle = unit.load(neff, &load_options).map_err(|error| {
        let model = args.model.display();
        refusal(format_args!("{model}: cannot load the model: {error}"), error.status())
    })?;
    let held = unit.model(handle)?;
    let cores = CoreIndex::all(device.map().registers.tpbs()).count() as u32;
    let config = args.recording.session(cores, capture.run())?;
    let event_group = config.as_ref().filter(|_| records(args, SubsystemId::Pmu));
    let event_group = event_group.map_or(0, |config| config.event_group);
    let buffers = config.as_ref().map(buffers_of).unwrap_or_default();
    capture.announce(&Manifest { buffers, ..manifest(args, &held, device.name(), event_group) })?;
    let mut session =
        config.map(|config| Session::start(&device, &heap, config, capture.sink())).transpose()?;

    let extents = args.recording.extents();
    let started_ns = capture.now_ns();
    let mut bench = Bench::new(args, neff, &unit, handle, &capture)?;
    while bench.executions < args.executions && !interrupt.has_come() && !bench.failed {
        if let Some(session) = &mut session
            && let Err(error) = change_levels(session, &extents, bench.executions)
        {
            bench.fail(&error);
            break;
        }
        bench.execute()?;
    }
    let (executions, phases) = bench.conclude(&held, &mut report);
    report.interrupted = interrupt.has_come();
    let accounts = session.map(Session::stop).transpose()?;
    report.duration_ns = capture.now_ns() - started_ns;

    report.kbl.tickets = unit.tickets();
    let counts = held.build_counts();
    (report.kbl.build_hits, report.kbl.build_misses) = (counts.hits, counts.misses);
    let (spans, omitted) = unit.phases().take();
    if omitted > 0 {
        report.unverified.push(format!("host phases: {omitted} of them were not kept for the trace"));
    }
    let mut own: Vec<_> = spans.iter().map(|span| as_phase(span, &capture)).chain(phases).collect();
    // In order of time, so that a reader sees which overlap and which follow each other.
    own.sort_by_key(|phase| phase.start_ns);
    capture.host_phases(&own);
    let mut pools = Vec::new();
    if let Some(accounts) = accounts {
        pools = capture.account(&accounts, &extents, &mut report);
        let expected = ExpectedRecords {
            subsystems: extents,
            cores: expected_cores(&held, args.recording.lanes),
            tpbs: report.model.tpbs,
            executions,
            event_group,
            programs: neff.programs.clone(),
            choice: args.recording.dump.0.clone(),
            seed: Some(args.seed),
        };
        check_passed_over(&expected, &mut report);
        if interrupt.has_come() && capture.bytes() > MAX_HURRIED_BYTES {
            report.unverified.push("records: interrupted, `sluice check` looks at them".into());
        } else if report.loss_allowed && !report.lossless {
            report
                .unverified
                .push("records: with some of them lost they do not make the set of the model".into());
        } else {
            match capture.reader().and_then(|mut reader| Ok(expected.check(&mut reader)?)) {
                Ok(check) => {
                    report.verified.records = check.found;
                    report.wrong.extend(check.findings.into_iter().take(MAX_FINDINGS));
                }
                Err(error) => report.wrong.push(format!("cannot compare the records: {error:#}")),
            }
        }
    }
    note_device(&*device, &mut report);
    drop(held);
    // Of a device that has gone: what was recorded is there all the same.
    if let Err(error) = unit.unload(handle, UNLOAD_LIMIT) {
        report.wrong.push(format!("cannot unload the model: {error}"));
    }
    if let Err(error) = unit.close(UNLOAD_LIMIT) {
        report.wrong.push(format!("cannot close the unit: {error}"));
    }
    capture.finish(&*device, report, pools, &args.recording, interrupt)
}

fn records(args: &Args, subsystem: SubsystemId) -> bool {
    args.recording.extents().iter().any(|extent| extent.subsystem == subsystem)
}

/// Has the session record what is wanted from `execution` on, which has not begun.
fn change_levels<D: Device>(
    session: &mut Session<D>,
    extents: &[Extent],
    execution: u64,
) -> anyhow::Result<()> {
    for extent in extents {
        for (_, control) in extent.changes.iter().filter(|(from, _)| *from == execution) {
            session.set(extent.subsystem, control)?;
        }
    }
    Ok(())
}

/// Holds against the executions that were not to be recorded what the device says that it passed over.
fn check_passed_over(expected: &ExpectedRecords, report: &mut Report) {
    let items: usize = expected.cores.iter().map(|core| core.items.len()).sum();
    let (items, submits) = (items as u64, u64::from(expected.tpbs));
    for extent in &expected.subsystems {
        let each = match extent.subsystem {
            SubsystemId::Swimlane => items + submits,
            SubsystemId::Pmu | SubsystemId::ArgsDump => items,
            SubsystemId::DepGen | SubsystemId::ScopeStats => submits,
        };
        let wanted = extent.passed_over(expected.executions) * each;
        let found = report.dfx.get(extent.subsystem.name()).map_or(0, |figures| figures.passed_over);
        if found != wanted {
            let subsystem = extent.subsystem;
            report.wrong.push(format!(
                "{subsystem}: {found} items and submits were passed over, {wanted} were to be"
            ));
        }
    }
}

/// The cores with work, and how much.
fn expected_cores(model: &Model, lanes: u32) -> Vec<ExpectedCore> {
    let mut cores: Vec<ExpectedCore> = Vec::new();
    for item in model.work_items() {
        let core = item.core.get() as u32;
        let expected = ExpectedItem { kernel: item.kernel, pairs: item.pairs, bytes: item.bytes };
        match cores.iter_mut().find(|known| known.core == core) {
            Some(known) => known.items.push(expected),
            None => {
                let lane = item.core.lane(lanes).get();
                cores.push(ExpectedCore { core, lane, items: vec![expected] });
            }
        }
    }
    cores
}

fn manifest(args: &Args, model: &Model, device: &str, event_group: u32) -> Manifest {
    let lanes = args.recording.lanes;
    let core = |core: CoreIndex| Core {
        name: format!("TPB{} {}", core.tpb(), core.engine()),
        lane: core.lane(lanes).get(),
        items: model.work_items().filter(|item| item.core == core).map(as_item).collect(),
    };
    let tpbs = model.tpbs().len() as u32;
    Manifest {
        device: device.into(),
        lanes,
        gate_scope: args.recording.gate_scope.name().into(),
        options: command_line(),
        model: model.name().into(),
        tpbs,
        executions: args.executions,
        event_group,
        recorded: recorded(&args.recording.extents()),
        has_scopes: records(args, SubsystemId::ScopeStats),
        cores: CoreIndex::all(tpbs).map(core).collect(),
        ..Manifest::default()
    }
}

fn as_item(item: &kbl::WorkItem) -> WorkItem {
    let is_known = item.queue.is_some();
    WorkItem {
        name: item.name.clone(),
        block: item.block,
        queue: item.queue.as_ref().map(|(_, queue)| queue.get()),
        bytes: is_known.then_some(item.bytes),
        pairs: is_known.then_some(item.pairs.into()),
        args: item.args.clone(),
    }
}

fn as_phase(span: &kbl::Span, capture: &Capture) -> HostPhase {
    HostPhase {
        start_ns: capture.time().ns_of_device_ns(span.start_ns),
        end_ns: capture.time().ns_of_device_ns(span.end_ns),
        execution: span.ticket.unwrap_or(NO_EXECUTION),
        thread: std::process::id(),
        phase: Phase::named(span.phase.name()),
    }
}

/// Executes a model again and again and looks at what comes of it.
struct Bench<'a, D: Device> {
    unit: &'a Unit<D>,
    handle: ModelHandle,
    capture: &'a Capture,
    content: Content,
    tensors: Vec<(Tensor, kbl::Tensor)>,
    inputs: TensorSet,
    outputs: TensorSet,
    origins: Option<Origins>,
    /// By tensor.
    comparable_bytes: Vec<u64>,
    /// What the filled part of each tensor holds before an execution.
    before: Vec<Vec<u8>>,
    after: Vec<u8>,
    slots: Vec<PatchedSlot>,
    executions: u64,
    failed: bool,
    phases: Vec<HostPhase>,
    timeouts: u64,
    verified: report::Verified,
    wrong_outputs: Findings,
    wrong_swaps: Findings,
    errors: Findings,
    unverified: Vec<String>,
}

/// A list that stops growing.
#[derive(Default)]
struct Findings {
    texts: Vec<String>,
    more: u64,
}

impl Findings {
    fn add(&mut self, text: impl FnOnce() -> String) {
        if self.texts.len() < MAX_FINDINGS {
            self.texts.push(text());
        } else {
            self.more += 1;
        }
    }

    fn are_none(&self) -> bool {
        self.texts.is_empty()
    }

    fn into_texts(self) -> impl Iterator<Item = String> {
        let more = (self.more > 0).then(|| format!("and {} more of this kind", self.more));
        self.texts.into_iter().chain(more)
    }
}

impl<'a, D: Device> Bench<'a, D> {
    fn new(
        args: &Args,
        neff: &Neff,
        unit: &'a Unit<D>,
        handle: ModelHandle,
        capture: &'a Capture,
    ) -> anyhow::Result<Self> {
        let mut unverified = Vec::new();
        let origins = match Origins::of(&neff.programs) {
            Ok(origins) => {
                unverified.extend(origins.unordered().iter().map(|bytes| format!("outputs: {bytes}")));
                Some(origins)
            }
            Err(why) => {
                unverified.push(format!("outputs: {why}"));
                None
            }
        };
        let tensors = Origins::tensors_of(&neff.programs);
        let comparable =
            |tensor| origins.as_ref().map_or(0, |origins| origins.comparable_bytes(tensor) as u64);
        let comparable_bytes = (0..tensors.len()).map(comparable).collect();
        let room_for = |is_output| {
            let wanted = tensors.iter().filter(|tensor| tensor.is_output == is_output).count();
            TensorSet::with_capacity(wanted.max(TensorSet::DEFAULT_CAPACITY))
        };
        let mut bench = Self {
            unit,
            handle,
            capture,
            content: Content::new(args.seed),
            tensors: Vec::new(),
            inputs: room_for(false),
            outputs: room_for(true),
            comparable_bytes,
            origins,
            before: Vec::new(),
            after: Vec::new(),
            slots: Vec::new(),
            executions: 0,
            failed: false,
            phases: Vec::new(),
            timeouts: 0,
            verified: report::Verified::default(),
            wrong_outputs: Findings::default(),
            wrong_swaps: Findings::default(),
            errors: Findings::default(),
            unverified,
        };
        for tensor in tensors {
            let refused = |error: &dyn Display, status| {
                let (model, Tensor { name, size_bytes, .. }) = (args.model.display(), &tensor);
                refusal(format_args!("{model}: tensor `{name}` of {size_bytes} bytes: {error}"), status)
            };
            let bound = kbl::Tensor::allocate_aligned(unit.heap(), tensor.size_bytes, tensor.align_bytes)
                .map_err(|error| refused(&error, error.status()))?;
            let set = if tensor.is_output { &mut bench.outputs } else { &mut bench.inputs };
            set.add(&tensor.name, bound.clone()).map_err(|error| refused(&error, error.status()))?;
            bench.before.push(vec![0; tensor.size_bytes.min(MAX_FILLED_BYTES) as usize]);
            bench.tensors.push((tensor, bound));
        }
        Ok(bench)
    }

    /// One execution, from contents to verdict.
    fn execute(&mut self) -> anyhow::Result<()> {
        let execution = self.executions;
        let built = self.unit.build(self.handle, &self.inputs, &self.outputs)?;
        if !built.was_hit() {
            self.slots = self.unit.patched_slots(&built)?;
        }
        let started_ns = self.capture.now_ns();
        self.prepare(execution)?;
        self.note(Phase::new("prepare"), execution, started_ns);
        if let Err(error) = self.submit(&built) {
            self.fail(&error);
            return Ok(());
        }
        self.executions += 1;
        let started_ns = self.capture.now_ns();
        self.verify(execution)?;
        self.note(Phase::new("verify"), execution, started_ns);
        Ok(())
    }

    /// No further execution makes sense.
    fn fail(&mut self, error: &anyhow::Error) {
        let execution = self.executions;
        self.failed = true;
        self.errors.add(|| format!("execution {execution}: {error:#}"));
    }

    /// New contents for all tensors, and something else than what belongs there into every slot in memory that the
    /// execution is to patch.
    fn prepare(&mut self, execution: u64) -> anyhow::Result<()> {
        let device = &**self.unit.device();
        for (number, ((_, bound), before)) in self.tensors.iter().zip(&mut self.before).enumerate() {
            self.content.fill(number, execution, before);
            bound.write(device, 0, before)?;
        }
        let ram = device.map().ram;
        let is_memory = |at: DevAddr| (ram.base..ram.base.offset(ram.bytes)).contains(&at);
        for slot in self.slots.iter().filter(|slot| is_memory(slot.at)) {
            device.write(slot.at, &(!slot.expected).to_le_bytes()[..slot.bytes as usize])?;
        }
        Ok(())
    }

    fn submit(&mut self, built: &Built) -> anyhow::Result<()> {
        let outcome = self.unit.stage(built)?.kickoff()?.wait();
        if matches!(outcome, Err(WaitError::Timeout(_))) {
            self.timeouts += 1;
        }
        outcome?;
        Ok(())
    }

    fn verify(&mut self, execution: u64) -> anyhow::Result<()> {
        let device = &**self.unit.device();
        for slot in &self.slots {
            let found = slot.read_back(device)?;
            self.verified.swaps += 1;
            if found != slot.expected {
                let PatchedSlot { what, at, expected, .. } = slot;
                self.wrong_swaps.add(|| {
                    format!("execution {execution}: {what} at {at} holds {found:#x}, expected {expected:#x}")
                });
            }
        }
        let Some(origins) = &self.origins else { return Ok(()) };
        for (number, (tensor, bound)) in self.tensors.iter().enumerate().filter(|(_, (t, _))| t.is_output) {
            self.after.resize(tensor.size_bytes as usize, 0);
            bound.read(device, 0, &mut self.after)?;
            self.verified.outputs += u64::from(self.comparable_bytes[number] > 0);
            self.verified.output_bytes += self.comparable_bytes[number];
            if let Some(difference) = origins.first_difference(number, &self.before, &self.after) {
                self.wrong_outputs.add(|| {
                    format!(
                        "execution {execution}: `{}` differs first at byte {}: {:#04x}, expected {:#04x}",
                        tensor.name, difference.offset, difference.found, difference.expected
                    )
                });
            }
        }
        Ok(())
    }

    fn note(&mut self, phase: Phase, execution: u64, start_ns: u64) {
        let end_ns = self.capture.now_ns();
        self.phases.push(HostPhase { start_ns, end_ns, execution, thread: std::process::id(), phase });
    }

    /// Writes what was found into the report; returns the executions that came to their end and the host's phases.
    fn conclude(self, model: &Model, report: &mut Report) -> (u64, Vec<HostPhase>) {
        report.model = report_model(model, &self.tensors, self.executions);
        report.verified = self.verified;
        report.kbl.timeouts = self.timeouts;
        report.outputs_verified = self.verified.outputs > 0 && self.wrong_outputs.are_none();
        report.swaps_verified = self.verified.swaps > 0 && self.wrong_swaps.are_none();
        for findings in [self.errors, self.wrong_outputs, self.wrong_swaps] {
            report.wrong.extend(findings.into_texts());
        }
        report.unverified.extend(self.unverified);
        (self.executions, self.phases)
    }
}

fn report_model(model: &Model, tensors: &[(Tensor, kbl::Tensor)], executions: u64) -> report::Model {
    let bound_at: HashMap<_, _> =
        tensors.iter().map(|(t, bound)| ((t.name.as_str(), t.is_output), bound.at().0)).collect();
    let of = |direction: Direction| {
        let is_output = direction == Direction::Output;
        let names = model.names(direction);
        let tensor = |wanted: &kbl::Wanted| report::Tensor {
            name: wanted.name.clone(),
            size: wanted.size_bytes,
            tpb: wanted.tpb.get(),
            var_id: wanted.var.0,
            pa: bound_at.get(&(wanted.name.as_str(), is_output)).copied().unwrap_or(0),
        };
        names.iter().map(tensor).collect()
    };
    let opaque = model.work_items().filter(|item| item.queue.is_none()).count() as u64;
    let items = model.work_items().count() as u64;
    report::Model {
        name: model.name().into(),
        inputs: of(Direction::Input),
        outputs: of(Direction::Output),
        tpbs: model.tpbs().len() as u32,
        executions,
        items_executed: (items - opaque) * executions,
        items_opaque: opaque * executions,
    }
}
