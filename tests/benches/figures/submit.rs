//! An execution of a model that does nothing: what staging, kicking off and waiting cost by themselves.

use std::thread;
use std::time::Duration;

use anyhow::Context;
use sluice_core::fmap::Direction;
use sluice_host::kbl::{LoadOptions, TensorSet};

use crate::cores::{Cores, pin};
use crate::machine::Machine;
use crate::windows::{Effort, median_ns};
use crate::{Figure, pingpong};

const MODEL: &str = "
    [model]
    name = 'empty'
    target = 'cayman'
    [[tpb]]
    var = [{ name = 'y', type = 'output', size = 64 }]
";

/// Executions of a window, and round trips, which take about as long.
const HOT: u32 = 500;
const ROUND_TRIPS: u32 = 10 * HOT;
const COLD: u32 = 10;

/// Long enough that every thread of the device sleeps.
const PAUSE: Duration = Duration::from_millis(5);

/// Nanoseconds of an execution, the median: right behind the one before, and after a pause. The host has one core, the
/// device the other.
pub(crate) fn empty(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    let [host, device] = cores.two()?;
    pin(device)?;
    let machine = Machine::start(1)?;
    pin(host)?;
    let model = machine.load("empty", MODEL, &LoadOptions::default())?;
    let outputs = machine.tensors(model, Direction::Output)?;
    let built = machine.unit.build(model, &TensorSet::new(), &outputs)?;
    let mut failed = 0;
    let mut submit = || {
        let running = machine.unit.stage(&built).ok().and_then(|staged| staged.kickoff().ok());
        failed += u32::from(running.is_none_or(|running| running.wait().is_err()));
    };

    let mut pairs = Vec::new();
    for _ in 0..effort.windows() {
        let round_trip_ns = pingpong::with(device, |round_trip| median_ns(ROUND_TRIPS, || {}, round_trip))?;
        pairs.push((median_ns(HOT, || {}, &mut submit), round_trip_ns));
    }
    let (hot, baseline) = middle(pairs).context("no windows")?;
    let mut cold = f64::INFINITY;
    for _ in 0..effort.windows().div_ceil(10) {
        cold = cold.min(median_ns(COLD, || thread::sleep(PAUSE), &mut submit));
    }
    anyhow::ensure!(failed == 0, "{failed} executions failed");
    let figure = |name, value| Figure { name, unit: "ns", value, baseline: ("flag_ping_pong", baseline) };
    Ok(vec![figure("submit_empty", hot), figure("submit_empty_cold", cold)])
}

/// The pair of a value and its baseline with the ratio in the middle. A virtual processor's host moves it: whether both share
/// a core or sit apart changes either side several times over, so only windows next to each other are comparable.
fn middle(mut pairs: Vec<(f64, f64)>) -> Option<(f64, f64)> {
    pairs.sort_by(|(a, base_a), (b, base_b)| (a / base_a).total_cmp(&(b / base_b)));
    pairs.get(pairs.len() / 2).copied()
}
