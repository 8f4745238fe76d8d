//! A node: all services of one processor, polled in turn.
//!
//! ```text
//!   round:  recorder follows the boot block ─► made-up records ─► sequencers (lane 0) ─► engines ─► agents ─► tell the host
//!   nothing done in a whole round ─► wait until woken, or until an agent's time has come
//! ```
//!
//! Which services a processor has follows from the placement; a machine with one processor has one node
//! with all of them.

use heapless::Vec;
use sluice_core::exec::{BootError, BootShape, CoreIndex, DeviceMap, LaneIndex};
use sluice_core::layout::ArchId;
use sluice_core::mmio::{RegisterMap, TpbId};
use spin::Once;

use crate::agent::{Agent, AgentDelays};
use crate::lane::LaneService;
use crate::platform::{Activity, Context, Placement, Platform};
use crate::record::Recorder;
use crate::sequencer::Sequencer;
use crate::workload::Workload;

/// Most lanes of any architecture.
const MAX_LANES: usize = {
    let (a2a3, a5) = (ArchId::A2a3.facts().lanes, ArchId::A5.facts().lanes);
    if a2a3 > a5 { a2a3 } else { a5 }
};

/// Longest sleep of a processor that has nothing to do. Wake-ups end it; it only bounds what a lost one would cost.
const IDLE_SECONDS: u64 = 1;

/// What the processors of one device agree on at start-up: the first to come reads the boot block for all.
#[derive(Debug, Default)]
pub struct Startup {
    device: Once<Result<(DeviceMap, ArchId), BootError>>,
}

impl Startup {
    /// Nothing read yet.
    pub const fn new() -> Self {
        Self { device: Once::new() }
    }

    fn device<P: Platform>(&self, platform: &P) -> Result<(DeviceMap, ArchId), BootError> {
        *self.device.call_once(|| {
            let place = platform.place();
            let shape = BootShape::read(platform.memory(), place.boot)?;
            let registers = RegisterMap::new(place.registers, shape.tpbs)
                .map_err(|_| BootError::Tpbs { asked: shape.tpbs })?;
            Ok((DeviceMap { ram: place.ram, registers, boot: place.boot, lanes: shape.lanes }, shape.arch))
        })
    }
}

struct Lane<P: Platform> {
    service: LaneService<P::Memory>,
    record: Recorder<P::Memory>,
    workload: Workload<P::Memory>,
}

/// The services of one processor.
pub struct Node<P: Platform> {
    cx: Context<P>,
    lanes: Vec<Lane<P>, MAX_LANES>,
    sequencers: Vec<Sequencer<P::Memory>, { TpbId::COUNT as usize }>,
    agents: Vec<Agent<P::Memory>, { CoreIndex::COUNT }>,
}

impl<P: Platform> Node<P> {
    /// The services that fall to `platform`'s processor. Its agents take `delays` longer.
    ///
    /// # Errors
    /// [`BootError`] when the boot block does not describe a device, or the device does not fit its memory.
    pub fn start(platform: P, startup: &Startup, delays: AgentDelays) -> Result<Self, BootError> {
        let (map, arch) = startup.device(&platform)?;
        let processor = platform.core_id();
        let placement = Placement::new(map.lanes, platform.processors());
        let cx = Context::new(platform, map, arch);
        let mut node = Self { cx, lanes: Vec::new(), sequencers: Vec::new(), agents: Vec::new() };
        let lanes = (0..map.lanes).filter_map(LaneIndex::new);
        for lane in lanes.filter(|lane| placement.lane(*lane) == processor) {
            node.add_lane(lane)?;
        }
        for core in CoreIndex::all(map.registers.tpbs()).filter(|core| placement.agent(*core) == processor) {
            let Ok(registers) = map.registers.tpb(core.tpb()) else { continue };
            // The list has room for every core of a device.
            let _ = node.agents.push(Agent::attach(node.cx.memory(), core, registers, delays)?);
        }
        Ok(node)
    }

    fn add_lane(&mut self, lane: LaneIndex) -> Result<(), BootError> {
        let service = LaneService::attach(&self.cx, lane)?;
        let record = Recorder::attach(&self.cx, lane)?;
        let workload = Workload::attach(&self.cx, lane)?;
        // The list has room for every lane of an architecture, the other for every TPB of a device.
        let _ = self.lanes.push(Lane { service, record, workload });
        if lane == LaneIndex::SEQUENCER {
            for tpb in (0..self.cx.map().registers.tpbs()).filter_map(|tpb| TpbId::new(tpb).ok()) {
                let Ok(registers) = self.cx.map().registers.tpb(tpb) else { continue };
                let _ = self.sequencers.push(Sequencer::attach(self.cx.memory(), tpb, registers)?);
            }
        }
        Ok(())
    }

    /// One round: every service does what it can do now. Never blocks, but for recording.
    pub fn poll(&mut self) -> Activity {
        let Self { cx, lanes, sequencers, agents } = self;
        let mut activity = Activity::Idle;
        for Lane { service, record, workload } in lanes {
            record.sync(cx);
            activity = activity.and(workload.poll(cx, record));
            if service.index() == LaneIndex::SEQUENCER {
                for sequencer in sequencers.iter_mut() {
                    activity = activity.and(sequencer.poll(cx, record));
                }
            }
            activity = activity.and(service.poll(cx, record));
        }
        for agent in agents {
            activity = activity.and(agent.poll(cx));
        }
        cx.tell_host();
        activity
    }

    /// Runs the processor while `keep_on` says so; it is asked once per round. Sleeps while there is nothing to do.
    pub fn run(&mut self, mut keep_on: impl FnMut() -> bool) {
        while keep_on() {
            let idle_cycles = self.cx.platform().frequency_hz() * IDLE_SECONDS;
            match self.poll() {
                Activity::Busy => {}
                Activity::Idle => self.cx.platform().wait(idle_cycles),
                Activity::Until(at_cycles) => {
                    let platform = self.cx.platform();
                    let left_cycles = at_cycles.saturating_sub(platform.now_cycles());
                    platform.wait(left_cycles.min(idle_cycles));
                }
            }
        }
    }
}
