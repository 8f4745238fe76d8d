//! An execution that takes long: what waiting for it costs.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use sluice_core::fmap::Direction;
use sluice_host::kbl::LoadOptions;

use crate::Figure;
use crate::cores::Cores;
use crate::machine::Machine;
use crate::windows::Effort;

const MODEL: &str = "
    [model]
    name = 'long'
    target = 'cayman'
    [[tpb]]
    var = [{ name = 'x', type = 'input', size = 64 }, { name = 'y', type = 'output', size = 64 }]
    queue = [{ name = 'q', type = 'in', owner = 'pool', semaphore = 10 }]
    [[tpb.block]]
    queue = 'q'
    copy = [{ from = 'x', to = 'y', bytes = 64 }]
";

/// Most cycles that the one item of an execution takes longer: two seconds.
const DELAY_CYCLES: u64 = 100_000_000;

/// Nanoseconds of processor time that the whole process, simulated device included, takes during a wait, and how long the
/// waits were. The mean of all, because what a wait burns when it begins weighs less the longer it is.
pub(crate) fn long(effort: Effort, _: &Cores) -> anyhow::Result<Vec<Figure>> {
    let machine = Machine::with_delays(1, DELAY_CYCLES)?;
    let model = machine.load("long", MODEL, &LoadOptions::default())?;
    let (inputs, outputs) =
        (machine.tensors(model, Direction::Input)?, machine.tensors(model, Direction::Output)?);
    let built = machine.unit.build(model, &inputs, &outputs)?;
    let waits = effort.windows().div_ceil(15);
    let [mut burnt, mut elapsed] = [0.0; 2];
    for _ in 0..waits {
        let running = machine.unit.stage(&built)?.kickoff()?;
        let (processor, started) = (processor_ns(), Instant::now());
        running.wait()?;
        elapsed += started.elapsed().as_nanos() as f64;
        burnt += processor_ns() - processor;
    }
    let per_wait = |sum: f64| sum / f64::from(waits);
    let baseline = ("elapsed", per_wait(elapsed));
    Ok(vec![Figure { name: "wait_long", unit: "ns", value: per_wait(burnt), baseline }])
}

/// Processor time of this process so far, in nanoseconds.
fn processor_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
