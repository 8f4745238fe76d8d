//! What the explored world is made of: what is explored, whole states, who can make a step, and steps.

use std::rc::Rc;

use sluice_core::producer::{LaneState, PoolState, Switch};
use sluice_host::dfx::attach::AttachState;
use sluice_host::dfx::drain::DrainState;
use sluice_host::dfx::keeper::{GateScope, KeeperState};

use super::arena::Payloads;
use super::layout::LANES;
use super::memory::{Grain, Logged, Shared};
use super::rotation::{Core, Items};

/// What is explored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Buffers of each lane's pool.
    pub buffers: [usize; LANES],
    /// Whether the host may crash once. Where records have payloads it stays away then: nothing in an arena says which of them
    /// it had, so a host that comes after it begins with an arena of its own.
    pub crash: bool,
    /// Whom a starving lane stops.
    pub scope: GateScope,
    /// Whether the drain refills queues beside the keeper: the omission of the one-refiller rule.
    pub second_refiller: bool,
    /// How much of a poll one step makes.
    pub grain: Grain,
    /// Lanes that record; the others rest for ever.
    pub lanes: usize,
    /// Whether a core writes the records of the first lane, the only one then.
    pub core: bool,
    /// Places of the arena in which the records of the first lane, the only one then, have payloads; 0 without.
    pub arena_places: u8,
    /// Whether the host may leave in good order.
    pub stop: bool,
    /// Whether one access of the host over the transport may fail, made or not. Only by polls.
    pub faults: bool,
    /// Whether it is noted which rings were seen empty in a freeze.
    pub watch_rings: bool,
    /// What the collector, which is played here, does wrong.
    pub collector: Collecting,
    /// Whether the keeper takes back and refills only while a gate is shut, as a host does that acts on signals alone.
    pub signals_only: bool,
}

/// How the collector treats a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Collecting {
    /// Copies it, then returns it, whatever became of the copy.
    #[default]
    InOrder,
    /// Returns it before it copies it.
    ReturnedFirst,
    /// Acknowledges its payloads before it copies them.
    AcknowledgedFirst,
    /// Does not return one that could not be copied.
    KeptOnFailure,
}

/// What has happened that no shared word tells.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Past {
    /// The host has crashed.
    pub crashed: bool,
    /// The transport has failed.
    pub faulted: bool,
    /// The lanes were asked to record no more.
    pub stopping: bool,
    /// By lane: its ring was seen empty in the present freeze.
    pub drained: u8,
    /// The buffer that was returned or acknowledged and is being copied, and one more.
    pub copying: u8,
    /// Token of the last record of a core that was copied.
    pub delivered: u8,
}

/// A lane between two steps.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LaneProcess {
    /// Shipped state of its pool.
    pub pool: PoolState,
    /// Shipped state of the lane.
    pub lane: LaneState,
    /// The switch under way; none while it rests.
    pub switch: Option<Switch>,
    /// What it has given to a core.
    pub items: Items,
    /// What it has put into its arena.
    pub payloads: Payloads,
    /// Accesses of the unfinished poll.
    pub log: Vec<Logged>,
}

/// A role of the host between two steps.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Role<T> {
    /// Its shipped state.
    pub state: T,
    /// Accesses of its unfinished poll.
    pub log: Vec<Logged>,
}

impl<T> Role<T> {
    /// A role between two polls.
    pub fn new(state: T) -> Rc<Self> {
        Rc::new(Self { state, log: Vec::new() })
    }
}

/// The host between two steps.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HostProcess {
    /// Dead.
    Down,
    /// Left in good order.
    Gone,
    /// Scanning.
    Attaching(Rc<Role<AttachState>>),
    /// Serving.
    Up {
        /// The drain.
        drain: Rc<Role<DrainState>>,
        /// The keeper.
        keeper: Rc<Role<KeeperState>>,
    },
}

/// A whole state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// Words and owners.
    pub shared: Shared,
    /// The lanes.
    pub lanes: [Rc<LaneProcess>; LANES],
    /// The core.
    pub core: Core,
    /// The host.
    pub host: HostProcess,
    /// What has happened.
    pub past: Past,
}

/// Who can make a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Process {
    /// The first lane.
    Lane0,
    /// The second lane.
    Lane1,
    /// The drain.
    Drain,
    /// The collector.
    Collector,
    /// The keeper; while attaching, the scan.
    Keeper,
    /// Starts a new host after a crash.
    Restart,
    /// Kills the host. Nobody waits for it.
    Crash,
    /// Asks the lanes to end, and leaves when they have or their time is over.
    Stop,
    /// Runs items and leaves their records.
    Core,
}

impl Process {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Lane0,
        Self::Lane1,
        Self::Drain,
        Self::Collector,
        Self::Keeper,
        Self::Restart,
        Self::Crash,
        Self::Stop,
        Self::Core,
    ];

    /// Those that run on for as long as they can; the others act when they like.
    pub const FAIR: [Self; 7] =
        [Self::Lane0, Self::Lane1, Self::Drain, Self::Collector, Self::Keeper, Self::Restart, Self::Core];
}

/// A step from one state to another.
#[derive(Clone, Debug)]
pub struct Step {
    /// Who made it.
    pub process: Process,
    /// Whether the process may also leave it: a resting lane that starts, a late clock, a crash.
    pub is_voluntary: bool,
    /// The lane that completed a switch by it.
    pub progress: Option<usize>,
    /// Where it leads.
    pub state: State,
    /// A broken invariant.
    pub violation: Option<String>,
}
