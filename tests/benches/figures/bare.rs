//! A device of which one thread plays the only lane, record by record, with nothing of the firmware around it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use sluice_core::exec::{BOOT_BYTES, BootShape, DeviceMap, DeviceRange, LaneBoot, LaneIndex};
use sluice_core::gate::{Gate, WaitEnv};
use sluice_core::layout::extension::LaneActivity;
use sluice_core::layout::swimlane::AicpuTaskRecord;
use sluice_core::layout::{self, ArchId, Instance, Shape, SubsystemId};
use sluice_core::mem::{Clock, DevAddr, Lent, Line, Mapped, Relax, Slab};
use sluice_core::mmio::{RegisterMap, TpbId};
use sluice_core::producer::swimlane::{AicpuTasks, Swimlane};
use sluice_core::producer::{Attachment, Lane, Pool, answer};
use sluice_host::device::heap::Heap;
use sluice_host::device::{Device, Driver};
use sluice_host::neff::Target;

pub(crate) type Ram = Mapped<Slab<Lent<'static>>>;

const BASE: DevAddr = DevAddr(0x10_0000_0000);
const RAM_BYTES: u64 = 32 << 20;

/// How long a lane waits for a session to begin or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The device.
pub(crate) struct BareDevice {
    memory: Ram,
    map: DeviceMap,
    driver: Driver,
    start: Instant,
    progress: AtomicU32,
    waiters: AtomicU32,
    lock: Mutex<()>,
    moved: Condvar,
}

impl BareDevice {
    /// A device with one lane. Its memory is never given back.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let registers = RegisterMap::new(BASE.offset(RAM_BYTES), 1)?;
        let boot = registers.base().offset(registers.bytes().next_multiple_of(64));
        let bytes = boot.0 + BOOT_BYTES - BASE.0;
        let lines = vec![Line::ZERO; bytes.div_ceil(64) as usize].leak();
        let memory = Mapped::new(Slab::over(lines, BASE));
        BootShape { arch: ArchId::A2a3, tpbs: 1, lanes: 1 }.write(&memory, boot)?;
        Ok(Self {
            memory,
            map: DeviceMap { ram: DeviceRange { base: BASE, bytes: RAM_BYTES }, registers, boot, lanes: 1 },
            driver: Driver::nobody(),
            start: Instant::now(),
            progress: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            lock: Mutex::new(()),
            moved: Condvar::new(),
        })
    }

    /// All of its memory.
    pub(crate) fn heap(&self) -> Heap {
        Heap::new(self.map.ram.base, self.map.ram.bytes)
    }

    /// Memory behind what a session of few buffers takes.
    pub(crate) fn spare(&self) -> DevAddr {
        self.map.ram.base.offset(RAM_BYTES / 2)
    }

    fn raise(&self) {
        self.progress.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.moved.notify_all();
        }
    }
}

impl Clock for BareDevice {
    fn now_cycles(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn frequency_hz(&self) -> u64 {
        1_000_000_000
    }
}

impl Device for BareDevice {
    type Mem = Ram;

    fn name(&self) -> &'static str {
        "bare"
    }

    fn target(&self) -> Target {
        Target::Any
    }

    fn memory(&self) -> &Ram {
        &self.memory
    }

    fn map(&self) -> DeviceMap {
        self.map
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn ring_doorbell(&self, _tpb: TpbId) {}

    fn wake_lanes(&self) {}

    fn progress(&self) -> u32 {
        self.progress.load(Ordering::SeqCst)
    }

    fn wait_progress(&self, seen: u32, timeout: Duration) -> u32 {
        if self.progress() == seen {
            let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiters.fetch_add(1, Ordering::SeqCst);
            let waited = self.moved.wait_timeout_while(guard, timeout, |()| self.progress() == seen);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            self.waiters.fetch_sub(1, Ordering::SeqCst);
        }
        self.progress()
    }
}

/// How the lane waits: on a core of its own, so it only looks.
pub(crate) struct Looking<'a> {
    device: &'a BareDevice,
    /// When it first looked in vain at the present gate.
    pub(crate) parked: Option<Instant>,
}

impl Clock for Looking<'_> {
    fn now_cycles(&self) -> u64 {
        self.device.now_cycles()
    }

    fn frequency_hz(&self) -> u64 {
        self.device.frequency_hz()
    }
}

impl Relax for Looking<'_> {
    fn relax(&mut self, round: u32) {
        if round == 0 {
            self.parked = Some(Instant::now());
            self.device.raise();
        }
        std::hint::spin_loop();
    }
}

impl WaitEnv for Looking<'_> {
    fn note_parked(&mut self, _gate: Gate) {}
}

/// The lane of a [`BareDevice`], attached to a session's swimlane.
pub(crate) struct BareLane<'a> {
    lane: Lane<Ram, Swimlane>,
    /// One pool of tasks per core.
    pub(crate) pools: Vec<Pool<Ram, AicpuTasks, Swimlane>>,
    pub(crate) env: Looking<'a>,
    boot: LaneBoot<Ram>,
    told: u32,
}

impl<'a> BareLane<'a> {
    /// Waits for the session and attaches to it.
    pub(crate) fn attach(device: &'a BareDevice, shape: Shape) -> anyhow::Result<Self> {
        let boot = LaneBoot::attach(&device.memory, device.map.boot)?;
        wait_until(|| boot.generation().is_some()).context("no session began")?;
        let recorders = boot.recorders()?;
        answer(&device.memory, recorders.extension, shape)?;
        let region = recorders.region(SubsystemId::Swimlane).context("a session without swimlane")?;
        let attachment =
            Attachment::open(&device.memory, SubsystemId::Swimlane, region, recorders.extension, shape)?;
        let pools = (0..shape.cores()).map(|core| attachment.pool(&device.memory, Instance(core)));
        let pools = pools.collect::<Result<Vec<_>, _>>()?;
        let lane = attachment.lane(&device.memory, layout::Lane(LaneIndex::SEQUENCER.get()))?;
        lane.show(LaneActivity::RUNNING);
        Ok(Self { lane, pools, env: Looking { device, parked: None }, boot, told: 0 })
    }

    /// Records one task of core `core`, of those that there are.
    #[inline]
    pub(crate) fn record(&mut self, core: usize, record: &AicpuTaskRecord) {
        let _ = self.lane.append(&mut self.pools[core], record, &mut self.env);
    }

    /// Tells the host if buffers were published since the last call.
    #[inline]
    pub(crate) fn tell(&mut self) {
        let tail = self.lane.ready_tail();
        if tail != self.told {
            self.told = tail;
            self.env.device.raise();
        }
    }

    /// Waits for the end of the session and publishes what is left.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        wait_until(|| self.boot.generation().is_none()).context("the session did not end")?;
        for pool in &mut self.pools {
            let _ = self.lane.flush(pool, &mut self.env);
        }
        self.lane.show(LaneActivity::FLUSHED);
        self.lane.show_flushed();
        self.env.device.raise();
        Ok(())
    }
}

fn wait_until(mut is_so: impl FnMut() -> bool) -> Option<()> {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > PATIENCE {
            return None;
        }
        std::hint::spin_loop();
    }
    Some(())
}
