//! How many threads a session takes. A process of its own, so that all threads in it are known.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_core::exec::CoreIndex;
use sluice_core::layout::{ArchId, Shape, SubsystemId};
use sluice_host::device::Device;
use sluice_host::device::heap::Heap;
use sluice_host::device::sim::{SimConfig, SimDevice};
use sluice_host::dfx::{DfxConfig, Discard, Session, SubsystemConfig};

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("the system's list of threads").count()
}

#[test]
fn all_subsystems_together_take_three_threads_at_most() {
    let device = Arc::new(SimDevice::start(SimConfig::default()).expect("a simulated device"));
    let ram = device.map().ram;
    let heap = Heap::new(ram.base, ram.bytes);
    let cores = CoreIndex::all(device.map().registers.tpbs()).count() as u32;
    let shape = Shape::new(ArchId::A2a3, device.map().lanes, cores).expect("a shape of the architecture");
    // Lanes of a firmware that does not know a subsystem never say that they are done: wait for them a moment only.
    let config = DfxConfig { deadline_cycles: Some(1), ..DfxConfig::new(shape) };
    let config = SubsystemId::ALL
        .into_iter()
        .fold(config, |config, subsystem| config.with(subsystem, SubsystemConfig::new(subsystem, shape)));
    let collectors = NonZeroU32::new(4).expect("not zero");
    for (config, most) in [(config.clone(), 3), (DfxConfig { collectors, ..config }, 5)] {
        let before = threads();
        let session = Session::start(&device, &heap, config, Arc::new(Discard)).expect("a session");
        let own = threads() - before;
        assert!((2..=most).contains(&own), "{own} threads");
        let accounts = session.stop().expect("accounts");
        assert!(accounts.keys().copied().eq(SubsystemId::ALL));
        // The system goes on listing a thread that was joined for a moment.
        let patience = Instant::now() + Duration::from_secs(10);
        while threads() != before {
            assert!(Instant::now() < patience, "a stop ends them all: {} of {before} left", threads());
            std::thread::yield_now();
        }
    }
}
