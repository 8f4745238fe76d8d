//! A node: all services of one processor, polled in turn.
//!
//! ```text
//!   round:  recorder follows the boot block ─► made-up records ─► engines ─► agents ─► tell the host
//!                                                                 └─ lane 0: between two polls of the sequencers
//!   nothing done in a whole round ─► wait until woken, or until an agent's time has come
//! ```
//!
//! Which services a processor has follows from the placement; a machine with one processor has one node
//! with all of them.

use core::fmt;

use heapless::Vec;
use sluice_core::exec::vitals::{
    BUILD_BYTES, DevicePhase, DeviceVitals, ProcessorState, ProcessorVitals, StatusHead,
};
use sluice_core::exec::{BootError, BootShape, CoreIndex, DeviceMap, LaneIndex, status_block};
use sluice_core::layout::ArchId;
use sluice_core::mem::{DeviceMemory, Fault};
use sluice_core::mmio::{RegisterMap, TpbId};
use spin::Once;

use crate::agent::{Agent, AgentDelays};
use crate::lane::LaneService;
use crate::platform::{Activity, Context, Placement, Platform};
use crate::record::Recorder;
use crate::sequencer::Sequencer;
use crate::workload::Workload;

/// A processor that never sleeps says every so many rounds how much stack it uses.
const ROUNDS_PER_STACK: u32 = 256;

/// Longest sleep of a processor that has nothing to do. Wake-ups end it; it only bounds what a lost one would cost.
const IDLE_SECONDS: u64 = 1;

/// Name of this build: what the environment of the compiler says, or the version.
const BUILD: [u8; BUILD_BYTES] = {
    let name = match option_env!("SLUICE_BUILD_ID") {
        Some(name) => name.as_bytes(),
        None => env!("CARGO_PKG_VERSION").as_bytes(),
    };
    let mut build = [0; BUILD_BYTES];
    let mut at = 0;
    while at < name.len() && at < BUILD_BYTES {
        build[at] = name[at];
        at += 1;
    }
    build
};

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

/// A processor cannot take its services.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    /// The boot block, or the device that it describes.
    Boot(BootError),
    /// More services than the node was built for.
    TooMany {
        /// Which.
        what: &'static str,
        /// How many it has room for.
        room: usize,
    },
}

impl From<BootError> for StartError {
    fn from(error: BootError) -> Self {
        Self::Boot(error)
    }
}

impl From<Fault> for StartError {
    fn from(fault: Fault) -> Self {
        Self::Boot(BootError::Fault(fault))
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boot(error) => error.fmt(f),
            Self::TooMany { what, room } => {
                write!(f, "a processor was given more {what} than the {room} it has room for")
            }
        }
    }
}

impl core::error::Error for StartError {}

struct Lane<M: DeviceMemory, const CORES: usize> {
    service: LaneService<M, CORES>,
    record: Recorder<M, CORES>,
    workload: Workload<M, CORES>,
}

/// The services of one processor: room for `LANES` lanes, `TPBS` sequencers, `CORES` agents and as many cores per lane.
pub struct Node<P: Platform, const LANES: usize, const TPBS: usize, const CORES: usize> {
    cx: Context<P>,
    vitals: ProcessorVitals<P::Memory>,
    lanes: Vec<Lane<P::Memory, CORES>, LANES>,
    sequencers: Vec<Sequencer<P::Memory>, TPBS>,
    agents: Vec<Agent<P::Memory>, CORES>,
}

impl<P: Platform, const LANES: usize, const TPBS: usize, const CORES: usize> Node<P, LANES, TPBS, CORES> {
    /// The services that fall to `platform`'s processor. Its agents take `delays` longer.
    ///
    /// # Errors
    /// [`StartError`] when the boot block does not describe a device, when the device does not fit its memory, or when this
    /// node has too little room.
    pub fn start(platform: P, startup: &Startup, delays: AgentDelays) -> Result<Self, StartError> {
        let (map, arch) = startup.device(&platform)?;
        let processor = platform.core_id();
        let placement = Placement::new(map.lanes, platform.processors());
        let mut cx = Context::new(platform, map, arch);
        let block = status_block(map.boot);
        let vitals = ProcessorVitals::begin(cx.memory(), block, processor)?;
        let head = StatusHead {
            lanes: map.lanes,
            processors: cx.platform().processors(),
            frequency_hz: cx.platform().frequency_hz(),
            build: BUILD,
        };
        if processor == 0 {
            let device = DeviceVitals::begin(cx.memory(), block, &head)?;
            cx.speak_for(device);
        }
        let mut node = Self { cx, vitals, lanes: Vec::new(), sequencers: Vec::new(), agents: Vec::new() };
        let lanes = (0..map.lanes).filter_map(LaneIndex::new);
        for lane in lanes.filter(|lane| placement.lane(*lane) == processor) {
            let service = LaneService::attach(&node.cx, lane)?;
            let record = Recorder::attach(&node.cx, lane)?;
            let workload = Workload::attach(&node.cx, lane)?;
            push(&mut node.lanes, Lane { service, record, workload }, "lanes")?;
        }
        let tpbs = (0..map.registers.tpbs()).filter_map(|tpb| TpbId::new(tpb).ok());
        for tpb in tpbs.filter(|_| placement.lane(LaneIndex::SEQUENCER) == processor) {
            let Ok(registers) = map.registers.tpb(tpb) else { continue };
            let sequencer = Sequencer::attach(node.cx.memory(), tpb, registers)?;
            push(&mut node.sequencers, sequencer, "sequencers")?;
        }
        for core in CoreIndex::all(map.registers.tpbs()).filter(|core| placement.agent(*core) == processor) {
            let Ok(registers) = map.registers.tpb(core.tpb()) else { continue };
            let agent = Agent::attach(node.cx.memory(), arch, core, registers, delays)?;
            push(&mut node.agents, agent, "agents")?;
        }
        node.begin_rounds();
        Ok(node)
    }

    /// All services are there.
    fn begin_rounds(&self) {
        self.lanes.iter().for_each(|lane| lane.record.begin_rounds());
        self.note_stack();
        self.vitals.show(ProcessorState::RUNNING);
        self.note_phase();
    }

    fn note_phase(&self) {
        let is_executing = self.sequencers.iter().any(Sequencer::is_executing);
        self.cx.show_phase(if is_executing { DevicePhase::EXECUTING } else { DevicePhase::READY });
    }

    fn note_stack(&self) {
        if let Some(stack) = self.cx.platform().stack() {
            self.vitals.note_stack(stack);
        }
    }

    /// One round: every service does what it can do now. Never blocks, but for recording.
    pub fn poll(&mut self) -> Activity {
        let Self { cx, vitals, lanes, sequencers, agents, .. } = self;
        vitals.beat();
        let mut activity = Activity::Idle;
        for Lane { service, record, workload } in lanes {
            activity = activity.and(record.sync(cx));
            activity = activity.and(workload.poll(cx, record, service));
            if service.index() != LaneIndex::SEQUENCER {
                activity = activity.and(service.poll(cx, record));
                continue;
            }
            // Sequencers on both sides of the engines: what they start begins in the same round, and what these end is done.
            activity = activity.and(poll_all(sequencers, cx, record));
            let served = service.poll(cx, record);
            activity = activity.and(served);
            if served == Activity::Busy {
                activity = activity.and(poll_all(sequencers, cx, record));
            }
        }
        for agent in agents {
            activity = activity.and(agent.poll(cx));
        }
        let (errors, last_error) = cx.errors();
        vitals.note_errors(errors, last_error);
        cx.tell_host();
        self.note_phase();
        if self.vitals.beats().is_multiple_of(ROUNDS_PER_STACK) {
            self.note_stack();
        }
        activity
    }

    /// Runs the processor while `keep_on` says so; it is asked once per round. Sleeps while there is nothing to do.
    pub fn run(&mut self, mut keep_on: impl FnMut() -> bool) {
        while keep_on() {
            let idle_cycles = self.cx.platform().frequency_hz() * IDLE_SECONDS;
            match self.poll() {
                Activity::Busy => {}
                Activity::Idle => self.wait(idle_cycles),
                Activity::Until(at_cycles) => {
                    let left_cycles = at_cycles.saturating_sub(self.cx.now_cycles());
                    self.wait(left_cycles.min(idle_cycles));
                }
            }
        }
        self.vitals.show(ProcessorState::STOPPED);
        self.cx.show_phase(DevicePhase::STOPPED);
    }

    fn wait(&self, bound_cycles: u64) {
        self.note_stack();
        self.vitals.show(ProcessorState::ASLEEP);
        self.cx.platform().wait(bound_cycles, || self.sequencers.iter().any(Sequencer::has_news));
        self.vitals.show(ProcessorState::RUNNING);
    }
}

fn poll_all<P: Platform, const CORES: usize>(
    sequencers: &mut [Sequencer<P::Memory>],
    cx: &Context<P>,
    record: &mut Recorder<P::Memory, CORES>,
) -> Activity {
    sequencers.iter_mut().fold(Activity::Idle, |activity, sequencer| activity.and(sequencer.poll(cx, record)))
}

/// Puts `item` into a list of services.
pub(crate) fn push<T, const ROOM: usize>(
    list: &mut Vec<T, ROOM>,
    item: T,
    what: &'static str,
) -> Result<(), StartError> {
    list.push(item).map_err(|_| StartError::TooMany { what, room: ROOM })
}
