//! Breadth-first exploration of a [`World`], then the search for runs that are fair and yet get nowhere.
//!
//! A run is fair when every process that can always make a step makes one again and again. A fair run that never serves some
//! lane, or never ends a freeze, shows up as a strongly connected part of the graph, without the edges (or states) that would
//! be the service, in which every process either steps or is at some state unable to.

use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

use indexmap::IndexSet;
use sluice_core::producer::Subsystem;

use super::canonical::canonical;
use super::checks::is_frozen;
use super::layout::LANES;
use super::memory::Shared;
use super::rotation::Core;
use super::scc;
use super::state::{Config, HostProcess, LaneProcess, Past, Process, Role, State, Step};
use super::world::World;
use sluice_host::dfx::attach::AttachState;
use sluice_host::dfx::drain::DrainState;
use sluice_host::dfx::keeper::KeeperState;

/// A broken property and how to get there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The check that noticed.
    pub check: &'static str,
    /// What it noticed.
    pub what: String,
    /// The processes' steps from the start.
    pub trace: Vec<Process>,
    /// The state they lead to.
    pub state: String,
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Report {
    /// States reached.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// The first broken property, if any.
    pub violation: Option<Violation>,
}

type FastMap<K, V> = HashMap<K, V, foldhash::fast::FixedState>;
type FastSet<K> = IndexSet<K, foldhash::fast::FixedState>;

/// Gives equal values equal numbers.
struct Interner<T> {
    numbers: FastMap<Rc<T>, u32>,
    values: Vec<Rc<T>>,
}

impl<T: Eq + Hash> Interner<T> {
    fn new() -> Self {
        Self { numbers: FastMap::default(), values: Vec::new() }
    }

    fn number(&mut self, value: &Rc<T>) -> u32 {
        if let Some(&number) = self.numbers.get(value) {
            return number;
        }
        let number = self.values.len() as u32;
        self.values.push(Rc::clone(value));
        self.numbers.insert(Rc::clone(value), number);
        number
    }

    fn value(&self, number: u32) -> Rc<T> {
        Rc::clone(&self.values[number as usize])
    }
}

/// A state in little space: its parts by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Packed {
    shared: Shared,
    lanes: [u32; LANES],
    host: PackedHost,
    core: Core,
    past: Past,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum PackedHost {
    Down,
    Gone,
    Attaching(u32),
    Up { drain: u32, keeper: u32 },
}

struct Packer {
    lanes: Interner<LaneProcess>,
    attaches: Interner<Role<AttachState>>,
    drains: Interner<Role<DrainState>>,
    keepers: Interner<Role<KeeperState>>,
}

impl Packer {
    fn new() -> Self {
        Self {
            lanes: Interner::new(),
            attaches: Interner::new(),
            drains: Interner::new(),
            keepers: Interner::new(),
        }
    }

    fn pack(&mut self, state: &State) -> Packed {
        let [first, second] = &state.lanes;
        Packed {
            shared: state.shared,
            lanes: [self.lanes.number(first), self.lanes.number(second)],
            host: match &state.host {
                HostProcess::Down => PackedHost::Down,
                HostProcess::Gone => PackedHost::Gone,
                HostProcess::Attaching(scan) => PackedHost::Attaching(self.attaches.number(scan)),
                HostProcess::Up { drain, keeper } => {
                    PackedHost::Up { drain: self.drains.number(drain), keeper: self.keepers.number(keeper) }
                }
            },
            core: state.core,
            past: state.past,
        }
    }

    fn unpack(&self, packed: &Packed) -> State {
        State {
            shared: packed.shared,
            lanes: packed.lanes.map(|number| self.lanes.value(number)),
            host: match packed.host {
                PackedHost::Down => HostProcess::Down,
                PackedHost::Gone => HostProcess::Gone,
                PackedHost::Attaching(number) => HostProcess::Attaching(self.attaches.value(number)),
                PackedHost::Up { drain, keeper } => {
                    HostProcess::Up { drain: self.drains.value(drain), keeper: self.keepers.value(keeper) }
                }
            },
            core: packed.core,
            past: packed.past,
        }
    }
}

/// What the search for unfair runs needs to know of an edge.
#[derive(Clone, Copy)]
pub(super) struct Label(u8);

impl Label {
    const VOLUNTARY: u8 = 1 << 4;

    fn new(step: &Step) -> Self {
        let progress = step.progress.map_or(0, |lane| lane as u8 + 1);
        Self(step.process as u8 | if step.is_voluntary { Self::VOLUNTARY } else { 0 } | progress << 5)
    }

    fn process(self) -> u8 {
        self.0 & 15
    }

    fn is_voluntary(self) -> bool {
        self.0 & Self::VOLUNTARY != 0
    }

    fn is_progress_of(self, lane: usize) -> bool {
        self.0 >> 5 == lane as u8 + 1
    }
}

/// The explored graph, edges by source.
pub(super) struct Graph {
    /// First edge of each state, and one more.
    pub(super) first_edge: Vec<u32>,
    /// Where each edge leads.
    pub(super) targets: Vec<u32>,
    /// What each edge is.
    pub(super) labels: Vec<Label>,
    /// Whether a gate is shut.
    frozen: Vec<bool>,
    /// From where each state was first reached.
    parents: Vec<u32>,
}

impl Graph {
    fn edges(&self, state: usize) -> std::ops::Range<usize> {
        self.first_edge[state] as usize..self.first_edge[state + 1] as usize
    }
}

/// Explores all states of `config` under the rules of `S`, up to `limit` states.
pub fn explore<S: Subsystem>(config: Config, limit: usize) -> Report {
    let mut world = World::<S>::new(config);
    let mut packer = Packer::new();
    let mut states: FastSet<Packed> = FastSet::default();
    let mut graph = Graph {
        first_edge: Vec::new(),
        targets: Vec::new(),
        labels: Vec::new(),
        frozen: Vec::new(),
        parents: Vec::new(),
    };
    // What a dead host has shut stays shut until another comes.
    let waits_for_release =
        |state: &State| is_frozen(state) && !(config.arena_places > 0 && state.host == HostProcess::Down);
    let initial = canonical(world.initial());
    graph.frozen.push(waits_for_release(&initial));
    graph.parents.push(u32::MAX);
    states.insert(packer.pack(&initial));
    let mut steps = Vec::new();
    let mut next = 0;
    while next < states.len() {
        let state = packer.unpack(&states[next]);
        graph.first_edge.push(graph.targets.len() as u32);
        for process in Process::ALL {
            steps.clear();
            world.steps(&state, process, &mut steps);
            for step in steps.drain(..) {
                let label = Label::new(&step);
                if let Some(what) = step.violation {
                    let check = check_of(&what);
                    let mut found = trace(&graph, next, Some(process), check, what);
                    found.state = format!("{:#?}", step.state);
                    let violation = Some(found);
                    return Report { states: states.len(), steps: graph.targets.len(), violation };
                }
                let reached = canonical(step.state);
                let is_frozen = waits_for_release(&reached);
                let (number, is_new) = states.insert_full(packer.pack(&reached));
                if is_new {
                    graph.frozen.push(is_frozen);
                    graph.parents.push(next as u32);
                }
                graph.targets.push(number as u32);
                graph.labels.push(label);
            }
        }
        next += 1;
        assert!(states.len() <= limit, "more than {limit} states; the model is not as small as was thought");
    }
    graph.first_edge.push(graph.targets.len() as u32);
    let violation =
        find_starved_lane(&graph).or_else(|| find_endless_freeze(&graph)).map(|(number, mut found)| {
            found.state = format!("{:#?}", packer.unpack(&states[number]));
            found
        });
    Report { states: states.len(), steps: graph.targets.len(), violation }
}

fn check_of(what: &str) -> &'static str {
    if what.starts_with("double ownership") || what.contains("writes into") || what.contains("copies buffer")
    {
        "ownership"
    } else if what.starts_with("lost buffer") {
        "lost buffer"
    } else if what.contains("lost a record") {
        "loss"
    } else if what.contains("passes a shut gate") {
        "common mode"
    } else if what.starts_with("a release") {
        "release"
    } else if what.starts_with("a signal") {
        "order"
    } else if what.starts_with("arena") {
        "arena"
    } else if what.starts_with("evidence") {
        "evidence"
    } else if what.starts_with("records") {
        "records"
    } else if what.starts_with("a stop") {
        "stop"
    } else {
        "consistency"
    }
}

fn trace(graph: &Graph, state: usize, last: Option<Process>, check: &'static str, what: String) -> Violation {
    let mut trace: Vec<Process> = last.into_iter().collect();
    let mut here = state;
    while graph.parents[here] != u32::MAX {
        let parent = graph.parents[here] as usize;
        let edge = graph.edges(parent).find(|&edge| graph.targets[edge] as usize == here);
        trace.extend(edge.map(|edge| Process::ALL[usize::from(graph.labels[edge].process())]));
        here = parent;
    }
    trace.reverse();
    Violation { check, what, trace, state: String::new() }
}

/// A fair run in which some lane asks for service and never gets it.
fn find_starved_lane(graph: &Graph) -> Option<(usize, Violation)> {
    (0..LANES).find_map(|lane| {
        // While the lane rests, its only edge is voluntary; such states are not waits.
        let asks = |state: usize| {
            graph.edges(state).any(|edge| {
                usize::from(graph.labels[edge].process()) == lane && !graph.labels[edge].is_voluntary()
            })
        };
        let state = fair_part(graph, asks, |label| !label.is_progress_of(lane))?;
        let what = format!("lane {lane} sleeps for ever in a fair run");
        Some((state, trace(graph, state, None, "starvation", what)))
    })
}

/// A fair run in which a gate, once shut, never opens.
fn find_endless_freeze(graph: &Graph) -> Option<(usize, Violation)> {
    let state = fair_part(graph, |state| graph.frozen[state], |_| true)?;
    let what = "a freeze never ends in a fair run".into();
    Some((state, trace(graph, state, None, "endless freeze", what)))
}

/// A state of a strongly connected part, among `states` and `edges`, in which a fair run can stay.
fn fair_part(graph: &Graph, states: impl Fn(usize) -> bool, edges: impl Fn(Label) -> bool) -> Option<usize> {
    let parts = scc::components(graph, &states, |edge| edges(graph.labels[edge]));
    // Per part: which processes step inside it, and which are somewhere in it unable to step.
    let mut steps_inside = vec![0u16; parts.count];
    let mut is_unable = vec![0u16; parts.count];
    let mut member = vec![usize::MAX; parts.count];
    for state in 0..graph.parents.len() {
        let Some(part) = parts.of[state] else { continue };
        member[part as usize] = state;
        let mut able = 0u16;
        for edge in graph.edges(state) {
            let label = graph.labels[edge];
            if label.is_voluntary() {
                continue;
            }
            able |= 1 << label.process();
            let inside = edges(label) && parts.of[graph.targets[edge] as usize] == Some(part);
            if inside {
                steps_inside[part as usize] |= 1 << label.process();
            }
        }
        is_unable[part as usize] |= !able;
    }
    let fair = Process::FAIR.iter().fold(0u16, |mask, &process| mask | 1 << process as u8);
    (0..parts.count)
        .find(|&part| steps_inside[part] != 0 && (steps_inside[part] | is_unable[part]) & fair == fair)
        .map(|part| member[part])
}
