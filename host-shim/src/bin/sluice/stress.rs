//! `sluice stress`: lanes make up records as fast as they can; none may be lost.

use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::exec::{CoreIndex, HostBoot, LaneIndex};
use sluice_host::capture::{Core, Manifest};
use sluice_host::device::Device;
use sluice_host::device::heap::Heap;
use sluice_host::device::sim::{SimConfig, SimDevice};
use sluice_host::device::unmapped::Unmapped;
use sluice_host::dfx::Session;
use sluice_host::report::Model;

use crate::interrupt::Interrupt;
use crate::options::{DeviceName, Recording, Transport, command_line};
use crate::recording::{Capture, blank_report, recorded};

/// Longest sleep between two looks at the lanes and at the time.
const LOOK: Duration = Duration::from_millis(5);

/// Load the recording with made-up records
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Records that all lanes make together
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    records: u64,
    /// Drain and collect nothing for so many milliseconds, so many after the start; several with commas. The
    /// first of one begins when half of the records are collected at the latest, the first of two at a third, and so on
    #[arg(long, value_name = "MS@AT_MS,...", value_delimiter = ',')]
    pause_host: Vec<Pause>,
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

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.recording.check()?;
    let interrupt = Interrupt::listen()?;
    let DeviceName::Sim = args.recording.device;
    let config =
        SimConfig { arch: args.recording.arch, tpbs: 1, lanes: args.recording.lanes, ..SimConfig::default() };
    let device = Arc::new(SimDevice::start(config)?);
    match args.recording.transport {
        Transport::Shared => load(args, &device, &interrupt),
        Transport::Copy => load(args, &Arc::new(Unmapped::new(device)), &interrupt),
    }
}

fn load<D: Device>(args: &Args, device: &Arc<D>, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let capture = Capture::begin(&args.recording, &**device)?;
    let mut report = blank_report(&capture, &args.recording, device.name());
    report.model = Model { name: "stress".into(), ..Model::default() };
    let tpbs = device.map().registers.tpbs();
    capture.announce(&manifest(args, tpbs, device.name()))?;
    let ram = device.map().ram;
    let heap = Heap::new(ram.base, ram.bytes);
    let cores = CoreIndex::all(tpbs).count() as u32;
    let mut pools = Vec::new();
    if let Some(config) = args.recording.session(cores, capture.run())? {
        let boot = HostBoot::attach(device.memory(), device.map().boot)?;
        boot.set_workload(args.records)?;
        let started_ns = capture.now_ns();
        let session = Session::start(device, &heap, config, capture.sink())?;
        await_lanes(args, &**device, &session, &boot, &capture, interrupt)?;
        let accounts = session.stop()?;
        report.duration_ns = capture.now_ns() - started_ns;
        pools = capture.account(&accounts, &args.recording.extents(), &mut report);
    }
    report.interrupted = interrupt.has_come();
    capture.finish(&**device, report, pools, &args.recording, interrupt)
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
            session.pause(pause.duration);
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
}
