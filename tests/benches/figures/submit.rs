//! An execution of a model that does nothing: what staging, kicking off and waiting cost by themselves.

use std::thread;
use std::time::Duration;

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

/// Executions, or round trips, of a window.
const HOT: u32 = 500;
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

    let [mut baseline, mut hot, mut cold] = [f64::INFINITY; 3];
    for _ in 0..effort.windows() {
        let round_trip_ns = pingpong::with(device, |round_trip| median_ns(HOT, || {}, round_trip))?;
        baseline = baseline.min(round_trip_ns);
        hot = hot.min(median_ns(HOT, || {}, &mut submit));
    }
    for _ in 0..effort.windows().div_ceil(10) {
        cold = cold.min(median_ns(COLD, || thread::sleep(PAUSE), &mut submit));
    }
    anyhow::ensure!(failed == 0, "{failed} executions failed");
    let figure = |name, value| Figure { name, unit: "ns", value, baseline: ("flag_ping_pong", baseline) };
    Ok(vec![figure("submit_empty", hot), figure("submit_empty_cold", cold)])
}
