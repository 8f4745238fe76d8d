//! What `run` and `stress` have in common: a capture that fills while a session records, and its end.
//!
//! ```text
//!  folder locked, proven writable ─► capture created ─► manifest, clocks ─► session … stopped
//!      ─► phases, losses, clocks ─► report ─► summary ─► trace ─► summary that names it ─► report.json
//! ```

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use sluice_core::gate;
use sluice_core::layout::{PoolKind, SubsystemId};
use sluice_core::mem::Clock;
use sluice_host::capture::payload::NO_LANE;
use sluice_host::capture::reader::FileView;
use sluice_host::capture::{
    BufferHeader, ClockPair, ControlNote, Controls, DevicePhaseNote, FileHeader, FreezeEvent, Gate,
    HostPhase, LossCause, LossNote, Manifest, PayloadHeader, Pool, PoolTotals, Reader, RunFolder, RunId,
    Summary, TransitNote, WaitNote, Writer,
};
use sluice_host::device::Device;
use sluice_host::device::status::DeviceStatus;
use sluice_host::dfx::{self, Account, Accounts, BufferMeta, Change, LanePhase, PayloadMeta, Sink};
use sluice_host::export::clock::DeviceTime;
use sluice_host::export::perfetto::{self, Exported};
use sluice_host::export::stall::Late;
use sluice_host::report::units::Many;
use sluice_host::report::{self, Artefacts, Freezes, HighWater, Page, Report};
use sluice_host::verify::Extent;

use crate::interrupt::Interrupt;
use crate::options::Recording;
use crate::output;

/// Times of buffers that are written at once.
const TRANSITS: usize = 512;
/// Readings of both clocks of which the best is kept.
const CLOCK_READINGS: u32 = 32;

/// Notes what the device says of itself at the end, and if it has stopped on its own.
pub(crate) fn note_device<D: Device>(device: &D, report: &mut Report) {
    match DeviceStatus::read(device.memory(), device.map().boot) {
        Ok(status) => report.status = Some(status),
        Err(error) => report.unverified.push(format!("device: {error}")),
    }
    report.wrong.extend(device.fate().map(|fate| format!("the device stopped: {fate}")));
}

/// A capture being written.
pub(crate) struct Capture {
    folder: RunFolder,
    writer: Arc<Writer>,
    started: Instant,
    header: FileHeader,
    time: DeviceTime,
    collected: Arc<Collected>,
    /// Whether records, freezes and waits are written; if not, no capture is left.
    keeps: bool,
    /// What could not be written after the run had begun.
    unwritten: Mutex<Vec<String>>,
}

/// What has reached the capture so far.
#[derive(Default)]
struct Collected {
    records: AtomicU64,
    buffers: Mutex<BTreeMap<Pool, u64>>,
    freezes: Mutex<BTreeMap<SubsystemId, Freezes>>,
    /// What was to be recorded from when on.
    controls: Mutex<Controls>,
    /// Buffers that were written of late; they go into the capture many at once.
    transits: Mutex<Vec<TransitNote>>,
    /// The longest of each phase over all lanes, ns.
    phases: Mutex<BTreeMap<String, u64>>,
}

impl Collected {
    fn transits(&self) -> MutexGuard<'_, Vec<TransitNote>> {
        self.transits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buffers(&self) -> MutexGuard<'_, BTreeMap<Pool, u64>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn controls(&self) -> MutexGuard<'_, Controls> {
        self.controls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn freezes(&self) -> MutexGuard<'_, BTreeMap<SubsystemId, Freezes>> {
        self.freezes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Capture {
    /// Proves that the folder can be written, and begins the capture.
    pub(crate) fn begin(options: &Recording, clock: &impl Clock) -> anyhow::Result<Self> {
        let artefacts = [Artefacts::CAPTURE, Artefacts::TRACE, Artefacts::REPORT];
        let folder = RunFolder::prepare(&options.out, &artefacts)?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let header = FileHeader {
            run: RunId::fresh(),
            arch: options.arch,
            clock_hz: clock.frequency_hz(),
            started_unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX),
        };
        let path = folder.path_of(Artefacts::CAPTURE);
        let writer = Writer::create(&folder, Artefacts::CAPTURE, &header)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let started = Instant::now();
        let mut time = DeviceTime::new(header.clock_hz);
        let pair = read_clocks(started, clock);
        time.add(pair);
        writer.append_clock_pairs(&[pair]).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            folder,
            writer: Arc::new(writer),
            started,
            header,
            time,
            collected: Arc::default(),
            keeps: true,
            unwritten: Mutex::default(),
        })
    }

    /// Counts what would be written, and writes nothing but the report.
    pub(crate) fn without_records(self) -> Self {
        Self { keeps: false, ..self }
    }

    /// The run's number.
    pub(crate) fn run(&self) -> u64 {
        self.header.run.0
    }

    /// Host monotonic ns.
    pub(crate) fn now_ns(&self) -> u64 {
        ns_since(self.started)
    }

    /// Host time of a reading of the device counter.
    pub(crate) fn time(&self) -> &DeviceTime {
        &self.time
    }

    /// Says what is about to run.
    pub(crate) fn announce(&self, manifest: &Manifest) -> anyhow::Result<()> {
        let path = self.folder.path_of(Artefacts::CAPTURE);
        self.writer.append_manifest(manifest).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Keeps what went wrong for the report: once there is something to tell, a full disk must not keep it from being told.
    fn note(&self, artefact: &str, written: Result<(), impl std::fmt::Display>) {
        if let Err(error) = written {
            let text = format!("cannot write {}: {error}", self.folder.path_of(artefact).display());
            self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
    }

    /// Where a session's records go.
    pub(crate) fn sink(&self) -> Arc<dyn Sink> {
        let (writer, collected) = (Arc::clone(&self.writer), Arc::clone(&self.collected));
        let (writer, started) = (self.keeps.then_some(writer), self.started);
        Arc::new(CaptureSink { writer, collected, started, time: self.time })
    }

    /// Length of the capture so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// Records in the capture so far.
    pub(crate) fn collected(&self) -> u64 {
        self.collected.records.load(Ordering::Relaxed)
    }

    /// What the host did.
    pub(crate) fn host_phases(&self, phases: &[HostPhase]) {
        self.note(Artefacts::CAPTURE, self.writer.append_host_phases(phases));
    }

    /// Writes the losses of a session and its figures into the report.
    pub(crate) fn account(
        &self,
        accounts: &Accounts,
        extents: &[Extent],
        report: &mut Report,
    ) -> Vec<PoolTotals> {
        if self.keeps {
            let transits = std::mem::take(&mut *self.collected.transits());
            self.note(Artefacts::CAPTURE, self.writer.append_transits(&transits));
        }
        report.phases_ns = self.collected.phases.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut totals = Vec::new();
        for (&subsystem, account) in accounts {
            let extent = extents.iter().find(|extent| extent.subsystem == subsystem).map(noted);
            totals.extend(self.account_of(subsystem, account, extent.unwrap_or_default(), report));
        }
        totals
    }

    fn account_of(
        &self,
        subsystem: SubsystemId,
        account: &Account,
        extent: report::Extent,
        report: &mut Report,
    ) -> Vec<PoolTotals> {
        let noted_ns = self.now_ns();
        let buffers = self.collected.buffers();
        let (mut totals, mut losses) = (Vec::new(), Vec::new());
        for pool in &account.pools {
            let id = Pool { subsystem: subsystem.into(), kind: pool.kind, instance: pool.instance.0 };
            for (cause, records) in lost(&pool.lost).by_cause() {
                if let (Some(cause), 1..) = (LossCause::named(cause), records) {
                    losses.push(LossNote::new(id, None, cause, records, noted_ns));
                }
            }
            totals.push(PoolTotals {
                subsystem: subsystem.name().into(),
                kind: pool.kind.0,
                instance: pool.instance.0,
                produced: pool.produced,
                collected: pool.collected,
                dropped: pool.lost.total(),
                buffers: buffers.get(&id).copied().unwrap_or(0),
            });
        }
        self.note(Artefacts::CAPTURE, self.writer.append_losses(&losses));
        let figures = report::Dfx {
            extent,
            changes: self.collected.controls().changes(subsystem.into()).to_vec(),
            passed_over: account.passed_over,
            produced: account.produced(),
            collected: account.collected(),
            dropped: account.lost().total(),
            lost: lost(&account.lost()),
            buffers: account.buffers.into(),
            switches: account.switches(),
            high_water: HighWater {
                ready: account.ready_high_water.into(),
                free_low: account.free_low_water().into(),
            },
            // As the trace shows them, so that the two can be compared.
            freezes: self.collected.freezes().get(&subsystem).copied().unwrap_or_default(),
            waits: Some(self.waits(&account.waits)),
            late: None,
        };
        report.lossless &= account.is_lossless();
        if account.lanes_missing > 0 {
            let lanes = Many(account.lanes_missing.into(), "lane", "lanes");
            report.wrong.push(format!("{subsystem}: {lanes} did not flush in time"));
        }
        if account.bad_payloads > 0 {
            let payloads = Many(account.bad_payloads, "payload", "payloads");
            report.wrong.push(format!("{subsystem}: {payloads} lay nowhere in the arena"));
        }
        if account.lost_payloads > 0 {
            let payloads = Many(account.lost_payloads, "payload", "payloads");
            report.wrong.push(format!("{subsystem}: {payloads} of lost records are lost too"));
        }
        if account.imbalances > 0 {
            let releases = Many(account.imbalances, "release", "releases");
            report.wrong.push(format!("{subsystem}: buffers did not add up at {releases}"));
        }
        if account.fatal {
            report.wrong.push(format!("{subsystem}: a sequencer of the device could go on no further"));
        }
        report.dfx.insert(subsystem.name().into(), figures);
        totals
    }

    fn waits(&self, waits: &dfx::Waits) -> report::Waits {
        let wait = |count, cycles| report::Wait { count, total_ns: self.span_ns(cycles) };
        let &dfx::Waits { rq, fq, rq_cycles, fq_cycles, unlogged } = waits;
        report::Waits { rq: wait(rq, rq_cycles), fq: wait(fq, fq_cycles), unlogged }
    }

    fn span_ns(&self, cycles: u64) -> u64 {
        let ns = u128::from(cycles) * 1_000_000_000 / u128::from(self.header.clock_hz);
        ns.try_into().unwrap_or(u64::MAX)
    }

    /// A reader of what has been written so far.
    pub(crate) fn reader(&self) -> anyhow::Result<Reader<io::BufReader<FileView>>> {
        let path = self.folder.path_of(Artefacts::CAPTURE);
        let reader = self.writer.reader().with_context(|| format!("cannot read back {}", path.display()))?;
        let found = reader.header().run;
        ensure!(found == self.header.run, "{} has been overwritten: it is of run {found}", path.display());
        Ok(reader)
    }

    /// Ends the capture, writes trace and report, and shows the report. The exit code says whether all was good.
    pub(crate) fn finish(
        self,
        clock: &impl Clock,
        report: Report,
        pools: Vec<PoolTotals>,
        options: &Recording,
        interrupt: &Interrupt,
    ) -> anyhow::Result<ExitCode> {
        let summary = if self.keeps {
            self.conclude_capture(clock, report, pools, interrupt)
        } else {
            self.note(Artefacts::CAPTURE, self.folder.clear());
            Summary { report, pools }
        };
        self.conclude(summary.report, options, interrupt)
    }

    /// Ends the capture and writes the trace.
    fn conclude_capture(
        &self,
        clock: &impl Clock,
        mut report: Report,
        pools: Vec<PoolTotals>,
        interrupt: &Interrupt,
    ) -> Summary {
        let last = read_clocks(self.started, clock);
        self.note(Artefacts::CAPTURE, self.writer.append_clock_pairs(&[last]));
        match self.writer.is_at(&self.folder.path_of(Artefacts::CAPTURE)) {
            Ok(true) => report.artefacts.capture = Some(Artefacts::CAPTURE.into()),
            Ok(false) => self.note(Artefacts::CAPTURE, Err("it was removed or replaced during the run")),
            Err(error) => self.note(Artefacts::CAPTURE, Err(error)),
        }
        // Once before the trace, which takes long and may be cut short, and once with what became of it.
        let mut summary = Summary { report, pools };
        self.append_summary(&mut summary);
        match self.write_trace(interrupt) {
            Ok(exported) => {
                summary.report.artefacts.trace = Some(Artefacts::TRACE.into());
                self.note_late(&exported, &mut summary.report);
            }
            Err(_) if interrupt.is_overdue() => {
                let text = "trace: left out after the signal, `sluice export` makes it from the capture";
                summary.report.unverified.push(text.into());
            }
            Err(error) => self.note(Artefacts::TRACE, Err(format!("{error:#}"))),
        }
        self.append_summary(&mut summary);
        summary
    }

    /// Writes the report and shows it. The exit code says whether all was good.
    fn conclude(
        self,
        mut report: Report,
        options: &Recording,
        interrupt: &Interrupt,
    ) -> anyhow::Result<ExitCode> {
        let report = &mut report;
        self.take_unwritten(report);
        let json = report.to_json();
        let written = self.folder.write(Artefacts::REPORT, |out| io::Write::write_all(out, json.as_bytes()));
        let has_report = written.is_ok();
        self.note(Artefacts::REPORT, written);
        self.take_unwritten(report);
        output::print(&match options.json {
            true => report.to_json(),
            false => Page { report, folder: Some(self.folder.path()), has_report }.to_string(),
        })?;
        Ok(match interrupt.exit_code() {
            Some(code) => code,
            None if report.is_good() => ExitCode::SUCCESS,
            None => ExitCode::FAILURE,
        })
    }
}

impl Capture {
    fn append_summary(&self, summary: &mut Summary) {
        self.take_unwritten(&mut summary.report);
        self.note(Artefacts::CAPTURE, self.writer.append_summary(summary));
    }

    /// Moves what could not be written into the report.
    fn take_unwritten(&self, report: &mut Report) {
        for text in self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if !report.wrong.contains(&text) {
                report.wrong.push(text);
            }
        }
    }

    /// What the trace says of tasks that were seen late.
    fn note_late(&self, exported: &Exported, report: &mut Report) {
        let Some(swimlane) = report.dfx.get_mut(SubsystemId::Swimlane.name()) else { return };
        let Late { tasks, raw_cycles, corrected_cycles } = exported.late;
        let (raw_ns, corrected_ns) = (self.span_ns(raw_cycles), self.span_ns(corrected_cycles));
        swimlane.late = Some(report::Late { tasks, raw_ns, corrected_ns });
        if exported.waits_omitted > 0 {
            let waits = Many(exported.waits_omitted, "wait", "waits");
            report.unverified.push(format!("late tasks: {waits} too many to be held against them"));
        }
    }

    fn write_trace(&self, interrupt: &Interrupt) -> anyhow::Result<Exported> {
        let mut reader = self.reader()?;
        let doing = format!("writing {}", self.folder.path_of(Artefacts::TRACE).display());
        Ok(self
            .folder
            .write(Artefacts::TRACE, |out| perfetto::write(&mut reader, &mut interrupt.guard(out, &doing)))?)
    }
}

/// How much a subsystem records at the beginning, as reports have it.
fn noted(extent: &Extent) -> report::Extent {
    report::Extent::of(Some(extent.subsystem), &extent.first)
}

/// How much each subsystem records, as manifests have it.
pub(crate) fn recorded(extents: &[Extent]) -> BTreeMap<String, report::Extent> {
    extents.iter().map(|extent| (extent.subsystem.name().into(), noted(extent))).collect()
}

/// The report of a run that has not begun: nothing lost, nothing wrong, nothing verified.
pub(crate) fn blank_report(capture: &Capture, options: &Recording, device: &str) -> Report {
    Report {
        device: device.into(),
        arch: options.arch.name().into(),
        gate_scope: options.gate_scope.name().into(),
        run: capture.run(),
        lossless: true,
        loss_allowed: !options.require_lossless,
        ..Report::default()
    }
}

fn lost(lost: &dfx::Lost) -> report::Lost {
    let &dfx::Lost { host_gone, host_crash, copy_failed, no_buffer, corrupt, core_busy, mismatch } = lost;
    report::Lost { host_gone, host_crash, copy_failed, no_buffer, corrupt, core_busy, mismatch }
}

fn as_gate(gate: gate::Gate) -> Gate {
    match gate {
        gate::Gate::Ready => Gate::READY,
        gate::Gate::Free => Gate::FREE,
    }
}

fn ns_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Reads both clocks at one instant, as nearly as can be: the device's between two readings of the host's.
fn read_clocks(started: Instant, clock: &impl Clock) -> ClockPair {
    let reading = || {
        let before_ns = ns_since(started);
        let device_cycles = clock.now_cycles();
        let half_ns = (ns_since(started) - before_ns).div_ceil(2);
        ClockPair { device_cycles, host_ns: before_ns + half_ns, uncertainty_ns: half_ns }
    };
    let first = reading();
    (1..CLOCK_READINGS)
        .map(|_| reading())
        .fold(first, |best, pair| if pair.uncertainty_ns < best.uncertainty_ns { pair } else { best })
}

/// Puts records and freezes of a session into a capture.
struct CaptureSink {
    /// None where nothing is kept.
    writer: Option<Arc<Writer>>,
    collected: Arc<Collected>,
    started: Instant,
    time: DeviceTime,
}

impl CaptureSink {
    fn note_transit(&self, writer: &Writer, transit: TransitNote) -> io::Result<()> {
        let mut transits = self.collected.transits();
        transits.push(transit);
        if transits.len() < TRANSITS {
            return Ok(());
        }
        let written = writer.append_transits(&transits);
        transits.clear();
        written
    }
}

impl Sink for CaptureSink {
    fn buffer(&self, meta: &BufferMeta, records: &[u8]) -> io::Result<()> {
        let pool = Pool { subsystem: meta.subsystem.into(), kind: meta.kind, instance: meta.instance.0 };
        if let Some(writer) = &self.writer {
            let record_bytes = records.len().checked_div(meta.count as usize).unwrap_or(0);
            let header = BufferHeader::new(pool, meta.sequence, meta.count, record_bytes as u32);
            writer.append_buffer(&header, records)?;
            let drained_ns = meta.drained.saturating_duration_since(self.started).as_nanos() as u64;
            let transit = TransitNote::new(pool, meta.sequence, drained_ns, ns_since(self.started));
            // The records are safe: without these times a plan lacks evidence, and nothing else.
            if let Err(error) = self.note_transit(writer, transit) {
                tracing::warn!("times of buffers not recorded: {error}");
            }
        }
        *self.collected.buffers().entry(pool).or_default() += 1;
        self.collected.records.fetch_add(meta.count.into(), Ordering::Relaxed);
        Ok(())
    }

    fn phases(&self, phases: &[LanePhase]) -> io::Result<()> {
        let note = |phase: &LanePhase| DevicePhaseNote {
            lane: phase.lane.0,
            phase: phase.phase,
            start_cycles: phase.start_cycles,
            end_cycles: phase.end_cycles,
        };
        if let Some(writer) = &self.writer {
            writer.append_device_phases(&phases.iter().map(note).collect::<Vec<_>>())?;
        }
        let duration_ns = |phase: &LanePhase| {
            self.time.ns(phase.end_cycles).saturating_sub(self.time.ns(phase.start_cycles))
        };
        let mut longest = self.collected.phases.lock().unwrap_or_else(PoisonError::into_inner);
        for phase in phases {
            let name = phase.phase.name().unwrap_or("unknown").to_owned();
            let longest_ns: &mut u64 = longest.entry(name).or_default();
            *longest_ns = duration_ns(phase).max(*longest_ns);
        }
        Ok(())
    }

    fn change(&self, change: &Change) -> io::Result<()> {
        let note = ControlNote::new(change, ns_since(self.started));
        if let Some(writer) = &self.writer {
            writer.append_controls(&[note])?;
        }
        // In order, for they come from one thread.
        self.collected.controls().add(&note);
        Ok(())
    }

    fn payload(&self, meta: &PayloadMeta, bytes: &[u8]) -> io::Result<()> {
        let subsystem = SubsystemId::ArgsDump.into();
        let pool = Pool { subsystem, kind: PoolKind::SOLE, instance: meta.lane.0 };
        match &self.writer {
            Some(writer) => writer.append_payload(&PayloadHeader::new(pool, meta), bytes),
            None => Ok(()),
        }
    }

    fn waits(&self, waits: &[dfx::Wait]) -> io::Result<()> {
        let note = |wait: &dfx::Wait| WaitNote {
            subsystem: wait.subsystem.into(),
            lane: wait.lane.0,
            gate: as_gate(wait.gate),
            kind: wait.kind,
            instance: wait.instance.0,
            gave_up: wait.gave_up.into(),
            begin_cycles: wait.begin_cycles,
            end_cycles: wait.end_cycles,
        };
        match &self.writer {
            Some(writer) => writer.append_waits(&waits.iter().map(note).collect::<Vec<_>>()),
            None => Ok(()),
        }
    }

    fn freeze(&self, freeze: &dfx::Freeze) -> io::Result<()> {
        let event = FreezeEvent {
            subsystem: freeze.subsystem.into(),
            gate: as_gate(freeze.gate),
            opened_by: freeze.opened_by.map_or(NO_LANE, |lane| lane.0),
            lanes_parked: freeze.lanes_parked,
            opened_ns: self.time.ns(freeze.opened_cycles),
            released_ns: self.time.ns(freeze.released_cycles),
            buffers_drained: freeze.buffers_drained,
        };
        if let Some(writer) = &self.writer {
            writer.append_freezes(&[event])?;
        }
        let mut freezes = self.collected.freezes();
        let freezes = freezes.entry(freeze.subsystem).or_default();
        let of_gate = if event.gate == Gate::READY { &mut freezes.rq } else { &mut freezes.fq };
        of_gate.add(event.released_ns.saturating_sub(event.opened_ns));
        Ok(())
    }
}
