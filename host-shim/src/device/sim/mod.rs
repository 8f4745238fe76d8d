//! The simulated device: the firmware library on threads of this process, on memory that costs nothing until it is touched.
//!
//! ```text
//!   device address   base                                    base + RAM        + registers
//!                     ├────────────── RAM ───────────────────┼── register window ──┼─ boot ─┤
//!   mapping           one anonymous mapping of this process, somewhere else
//!
//!   threads           lane 0 (with the sequencers), lane 1 …      one agent per core
//! ```
//!
//! A thread that has nothing to do sleeps until another wakes it or, to bound what a lost wake-up would cost, a second has
//! passed. Device addresses are never host addresses, so one that was taken for the other is found out.

mod machine;
mod parker;
#[cfg(test)]
mod tests;

use std::io;
use std::panic;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use sluice_aicpu_fw::AgentDelays;
use sluice_aicpu_fw::{Node, Place, StartError, Startup};
use sluice_core::exec::{BOOT_BYTES, BootError, BootShape, CoreIndex, DeviceMap, DeviceRange, LaneIndex};
pub use sluice_core::layout::ArchId;
use sluice_core::mem::{Clock, DevAddr, DeviceMemory};
use sluice_core::mmio::{ControlWord, Engine, RegisterMap, TpbId};

pub use super::mapping::{MappedMemory as SimMemory, Mapping};

use super::mapping;
use super::process::Process;
use super::{Device, Driver};
use crate::neff::Target;
use machine::{Machine, Processor};

/// First device address.
const BASE: DevAddr = DevAddr(0x10_0000_0000);

/// Granularity of the device's parts, in bytes.
const PAGE_BYTES: u64 = 0x1_0000;

/// Stack of a processor. What a lane keeps of 40 cores passes over it when recorders attach; untouched it costs nothing.
const STACK_BYTES: usize = 16 << 20;

/// Above this no address space has room for the RAM, and sums of addresses could overflow.
const MOST_RAM_BYTES: u64 = 1 << 62;

/// What a simulated device is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// Whose counter and wire contract it has.
    pub arch: ArchId,
    /// Whose models it takes. It can run those of any, and [`Target::Any`] says that it does.
    pub target: Target,
    /// TPBs, 1..=8.
    pub tpbs: u32,
    /// Lanes, 1 up to the most of the architecture.
    pub lanes: u32,
    /// Bytes of RAM; only what is touched takes memory of the host.
    pub ram_bytes: u64,
    /// Extra time that agents take.
    pub delays: AgentDelays,
    /// What the free-running counters of its TPBs start from, as after so many executions. They go round at 2^32.
    pub counters_from: u32,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            arch: ArchId::A2a3,
            target: Target::Cayman,
            tpbs: 2,
            lanes: 2,
            ram_bytes: 64 << 30,
            delays: AgentDelays::default(),
            counters_from: 0,
        }
    }
}

/// A simulated device that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// No address space for its memory.
    #[error("cannot map {bytes} bytes of device memory")]
    Map {
        /// Bytes asked for.
        bytes: u64,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// No device is like that.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The firmware does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// No thread for a processor.
    #[error("cannot start processor {processor} of {processors}")]
    Spawn {
        /// Which one.
        processor: u32,
        /// How many are needed.
        processors: u32,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// A device in this process. Dropping it stops its threads: they end their present round, recorders are not flushed. A fork
/// of the process has none of the threads, and nothing to stop.
#[derive(Debug)]
pub struct SimDevice {
    process: Process,
    machine: Arc<Machine>,
    memory: SimMemory,
    map: DeviceMap,
    target: Target,
    driver: Driver,
    threads: Vec<JoinHandle<()>>,
}

impl SimDevice {
    /// Makes a device and starts its firmware.
    ///
    /// # Errors
    /// [`SimError`] when the system refuses memory or threads, or the configuration is none.
    pub fn start(config: SimConfig) -> Result<Self, SimError> {
        let SimConfig { arch, target, tpbs, lanes, ram_bytes, delays, counters_from } = config;
        let shape = BootShape { arch, tpbs, lanes }.check()?;
        let refused = |source| SimError::Map { bytes: ram_bytes, source };
        if ram_bytes > MOST_RAM_BYTES {
            return Err(refused(io::ErrorKind::OutOfMemory.into()));
        }
        let ram = DeviceRange { base: BASE, bytes: ram_bytes.next_multiple_of(PAGE_BYTES) };
        let registers =
            RegisterMap::new(BASE.offset(ram.bytes), tpbs).map_err(|_| BootError::Tpbs { asked: tpbs })?;
        let boot = registers.base().offset(registers.bytes());
        let bytes = ram.bytes + registers.bytes() + BOOT_BYTES.next_multiple_of(PAGE_BYTES);
        let memory = mapping::map(BASE, bytes).map_err(refused)?;
        shape.write(&memory, boot)?;
        let counters = [ControlWord::ExecHeadPairs, ControlWord::ExecutionsDone, ControlWord::ErrNqTail];
        let counters = counters.into_iter().chain(Engine::ALL.map(ControlWord::NqTail));
        for registers in (0..tpbs).filter_map(|tpb| registers.tpb(TpbId::new(tpb).ok()?).ok()) {
            for word in counters.clone() {
                memory.publish(registers.control_word(word), counters_from).map_err(BootError::Fault)?;
            }
        }

        let processors = lanes + tpbs * Engine::COUNT as u32;
        let mut device = Self {
            process: Process::this(),
            machine: Arc::new(Machine::new(arch, processors)),
            memory,
            map: DeviceMap { ram, registers, boot, lanes },
            target,
            driver: Driver::nobody(),
            threads: Vec::new(),
        };
        let startup = Arc::new(Startup::new());
        for id in 0..processors {
            // When this fails, dropping the device ends the threads that were started.
            let thread = device.spawn(id, &startup, delays)?;
            device.threads.push(thread);
        }
        Ok(device)
    }

    fn spawn(
        &self,
        id: u32,
        startup: &Arc<Startup>,
        delays: AgentDelays,
    ) -> Result<JoinHandle<()>, SimError> {
        let DeviceMap { ram, registers, boot, lanes } = self.map;
        let place = Place { ram, registers: registers.base(), boot };
        let processor = Processor { machine: self.machine.clone(), memory: self.memory.clone(), place, id };
        if id < lanes {
            self.run::<1, { TpbId::COUNT as usize }, { CoreIndex::COUNT }>(
                format!("sluice-lane-{id}"),
                processor,
                startup,
                delays,
            )
        } else {
            self.run::<0, 0, 1>(format!("sluice-core-{}", id - lanes), processor, startup, delays)
        }
    }

    fn run<const LANES: usize, const TPBS: usize, const CORES: usize>(
        &self,
        name: String,
        processor: Processor,
        startup: &Arc<Startup>,
        delays: AgentDelays,
    ) -> Result<JoinHandle<()>, SimError> {
        let (machine, id) = (self.machine.clone(), processor.id);
        let startup = Arc::clone(startup);
        let (started, starts) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || {
            match Node::<_, LANES, TPBS, CORES>::start(processor, &startup, delays) {
                Ok(mut node) => {
                    // Nobody hears of it when the device is given up meanwhile; it is closed then.
                    let _ = started.send(Ok(()));
                    node.run(|| !machine.is_closing());
                }
                Err(error) => _ = started.send(Err(error)),
            }
        });
        let processors = self.machine.processors();
        let thread = thread.map_err(|source| SimError::Spawn { processor: id, processors, source })?;
        match starts.recv() {
            Ok(started) => Ok(started.map(|()| thread)?),
            Err(mpsc::RecvError) => match thread.join() {
                Err(panicked) => panic::resume_unwind(panicked),
                Ok(()) => unreachable!("a thread that did not panic has told how it started"),
            },
        }
    }

    /// Processors of the device: one per lane and one per core.
    pub fn processors(&self) -> usize {
        self.machine.processors() as usize
    }

    /// Processors that sleep now.
    pub fn asleep(&self) -> usize {
        self.machine.asleep()
    }

    /// Times that processors went to sleep since the start.
    pub fn sleeps(&self) -> u64 {
        self.machine.sleeps()
    }
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        self.machine.close();
        for thread in self.threads.drain(..) {
            let name = thread.thread().name().map(str::to_owned);
            if thread.join().is_err() {
                tracing::error!(thread = name, "simulated firmware panicked");
            }
        }
    }
}

impl Clock for SimDevice {
    fn now_cycles(&self) -> u64 {
        self.machine.now_cycles()
    }

    fn frequency_hz(&self) -> u64 {
        self.machine.frequency_hz()
    }
}

impl Device for SimDevice {
    type Mem = SimMemory;

    fn name(&self) -> &'static str {
        "sim"
    }

    fn target(&self) -> Target {
        self.target
    }

    fn memory(&self) -> &SimMemory {
        &self.memory
    }

    fn map(&self) -> DeviceMap {
        self.map
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn ring_doorbell(&self, tpb: TpbId) {
        if self.map.registers.tpb(tpb).is_ok() {
            self.machine.wake(LaneIndex::SEQUENCER.get());
        }
    }

    fn wake_lanes(&self) {
        (0..self.map.lanes).for_each(|lane| self.machine.wake(lane));
    }

    fn progress(&self) -> u32 {
        self.machine.progress.get()
    }

    fn wait_progress(&self, seen: u32, timeout: Duration) -> u32 {
        self.machine.progress.wait(seen, timeout)
    }
}
