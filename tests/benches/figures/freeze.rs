//! What a freeze costs a lane that stands at a gate: from the signal that it starves to its next record.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use sluice_core::layout::swimlane::{AicpuTaskRecord, Level};
use sluice_core::layout::{ArchId, Shape, SubsystemId};
use sluice_core::producer::Records;
use sluice_core::producer::swimlane::AicpuTasks;
use sluice_host::dfx::{BufferCounts, DfxConfig, Discard, Session, SubsystemConfig};
use zerocopy::FromZeros;

use crate::bare::{BareDevice, BareLane};
use crate::cores::{Cores, pin};
use crate::windows::{Effort, median_ns};
use crate::{Figure, pingpong};

/// Long enough that the host sleeps.
const PAUSE: Duration = Duration::from_millis(5);
const COLD: u32 = 20;
const ROUND_TRIPS: u32 = 5_000;

/// Nanoseconds, the median: with the buffer before a moment ago, and after a pause.
pub(crate) fn round_trip(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    let [host, lane_core] = cores.two()?;
    let shape = Shape::new(ArchId::A2a3, 1, 1)?;
    let buffers = BufferCounts::uniform(1);
    let config = DfxConfig::new(shape).with(
        SubsystemId::Swimlane,
        SubsystemConfig {
            level: Level::TASK.0,
            buffers,
            ..SubsystemConfig::new(SubsystemId::Swimlane, shape)
        },
    );
    let device = Arc::new(BareDevice::new()?);
    pin(host)?;
    let session = Session::start(&device, &device.heap(), config, Arc::new(Discard))?;
    let (done, is_done) = std::sync::mpsc::channel();
    let figures = thread::scope(|scope| {
        let lane = scope.spawn(|| {
            pin(lane_core)?;
            let mut lane = BareLane::attach(&device, shape)?;
            let hot = freezes(&mut lane, 100 * effort.windows(), Duration::ZERO);
            let cold = freezes(&mut lane, COLD, PAUSE);
            done.send(()).context("nobody stops the session")?;
            lane.finish()?;
            anyhow::Ok((hot, cold))
        });
        is_done.recv().context("the lane did not come to its end")?;
        session.stop()?;
        lane.join().map_err(|_| anyhow::anyhow!("the lane panicked"))?
    })?;
    let (hot, cold) = (figures.0.context("no freeze")?, figures.1.context("no freeze")?);
    let baseline = pingpong::with(lane_core, |round_trip| median_ns(ROUND_TRIPS, || {}, round_trip))?;
    let figure = |name, value| Figure { name, unit: "ns", value, baseline: ("flag_ping_pong", baseline) };
    Ok(vec![figure("freeze_round_trip", hot), figure("freeze_round_trip_cold", cold)])
}

/// The median of `count` freezes, each `pause` behind the one before.
fn freezes(lane: &mut BareLane<'_>, count: u32, pause: Duration) -> Option<f64> {
    let record = AicpuTaskRecord::new_zeroed();
    let mut took = Vec::with_capacity(count as usize);
    for _ in 0..count {
        thread::sleep(pause);
        lane.env.parked = None;
        // The last of these fills the only buffer; the next finds none.
        for _ in 0..=AicpuTasks::LAYOUT.capacity {
            lane.record(0, &record);
            if let Some(parked) = lane.env.parked.take() {
                took.push(parked.elapsed().as_nanos() as u64);
            }
        }
    }
    took.sort_unstable();
    took.get(took.len() / 2).map(|&median| median as f64)
}
