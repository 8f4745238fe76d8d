//! How much freezes lengthen the tasks that a recording shows, by whom a starving lane stops.
//!
//! ```text
//!   same model, same slow consumer          mean of finish - dispatch
//!     as many buffers as nobody waits for   the baseline
//!     one buffer, gate scope `all`          distortion_all
//!     one buffer, gate scope `lane`         distortion_lane
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use sluice_core::fmap::Direction;
use sluice_core::layout::swimlane::{AicpuTaskRecord, Level};
use sluice_core::layout::{PoolKind, Shape, SubsystemId};
use sluice_core::mem::Clock;
use sluice_host::device::sim::SimConfig;
use sluice_host::dfx::keeper::GateScope;
use sluice_host::dfx::{BufferCounts, BufferMeta, DfxConfig, Freeze, Session, Sink, SubsystemConfig};
use sluice_host::kbl::LoadOptions;
use sluice_host::neff::models;
use zerocopy::FromBytes;

use crate::Figure;
use crate::cores::Cores;
use crate::machine::Machine;
use crate::windows::Effort;

const MODEL: &str = "gather";

/// What a consumer does with each buffer before it takes the next.
const CONSUMED_IN: Duration = Duration::from_millis(20);

const fn executions(effort: Effort) -> u32 {
    match effort {
        Effort::Full => 10_000,
        Effort::Quick => 3_000,
    }
}

/// Adds up how long tasks took, and takes its time.
#[derive(Default)]
struct Slow {
    tasks: AtomicU64,
    cycles: AtomicU64,
    freezes: AtomicU64,
}

impl Sink for Slow {
    fn buffer(&self, meta: &BufferMeta, records: &[u8]) -> io::Result<()> {
        thread::sleep(CONSUMED_IN);
        if meta.kind == PoolKind::AICPU_TASK {
            for record in records.chunks_exact(size_of::<AicpuTaskRecord>()) {
                let record =
                    AicpuTaskRecord::read_from_bytes(record).map_err(|_| io::ErrorKind::InvalidData)?;
                self.tasks.fetch_add(1, Ordering::Relaxed);
                self.cycles
                    .fetch_add(record.finish_time.saturating_sub(record.dispatch_time), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn freeze(&self, _freeze: &Freeze) -> io::Result<()> {
        self.freezes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Nanoseconds that a task took, as recorded, on average.
fn task_ns(effort: Effort, scope: GateScope, buffers: u32) -> anyhow::Result<f64> {
    let machine = Machine::with_lanes(2, 2)?;
    let text = models::builtin(MODEL).context("no such model")?;
    let model = machine.load(MODEL, text, &LoadOptions::default())?;
    let (inputs, outputs) =
        (machine.tensors(model, Direction::Input)?, machine.tensors(model, Direction::Output)?);
    let built = machine.unit.build(model, &inputs, &outputs)?;
    let device = machine.unit.device();
    let shape = Shape::new(SimConfig::default().arch, 2, 10)?;
    let swimlane = SubsystemConfig {
        level: Level::TASK.0,
        buffers: BufferCounts::uniform(buffers),
        ..SubsystemConfig::new(SubsystemId::Swimlane, shape)
    };
    let config = DfxConfig { scope, ..DfxConfig::new(shape) }.with(SubsystemId::Swimlane, swimlane);
    let sink = Arc::new(Slow::default());
    let session = Session::start(device, &machine.heap, config, Arc::clone(&sink) as Arc<dyn Sink>)?;
    for _ in 0..executions(effort) {
        machine.unit.stage(&built)?.kickoff()?.wait()?;
    }
    let accounts = session.stop()?;
    let account = accounts.get(&SubsystemId::Swimlane).context("no account of the swimlane")?;
    anyhow::ensure!(account.is_lossless(), "records were lost: {:?}", account.lost());
    let tasks = sink.tasks.load(Ordering::Relaxed);
    anyhow::ensure!(tasks > 0, "no task was recorded");
    let cycles = sink.cycles.load(Ordering::Relaxed) as f64;
    Ok(cycles * 1e9 / device.frequency_hz() as f64 / tasks as f64)
}

/// The mean duration of a task under each scope.
pub(crate) fn distortion(effort: Effort, _cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    /// More than the executions fill.
    const PLENTY: u32 = 64;
    let undisturbed = task_ns(effort, GateScope::All, PLENTY)?;
    let figure = |name, scope| {
        let value = task_ns(effort, scope, 1)?;
        anyhow::Ok(Figure { name, unit: "ns", value, baseline: ("no_freeze", undisturbed) })
    };
    Ok(vec![figure("distortion_all", GateScope::All)?, figure("distortion_lane", GateScope::Lane)?])
}
