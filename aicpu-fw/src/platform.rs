//! What firmware needs from the machine it runs on, and how its services call each other.
//!
//! ```text
//!   processor 0            processor 1            processors 2 …
//!   lane 0, sequencers     lane 1                 agents
//!        └──────── wake(processor) ends the sleep of another ────────┘
//! ```
//!
//! With fewer processors than services several share one and are polled in turn; nothing else changes.

use core::cell::Cell;

use sluice_core::exec::vitals::{DevicePhase, DeviceVitals, StackUse};
use sluice_core::exec::{CoreIndex, DeviceMap, DeviceRange, ErrorClass, LaneIndex};
use sluice_core::gate::Gate;
use sluice_core::layout::ArchId;
use sluice_core::mem::{Clock, DevAddr, DeviceMemory};

/// Where a device keeps its parts; how many of each there are stands in the boot block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Memory that descriptors, programs and rings may lie in.
    pub ram: DeviceRange,
    /// The register window. Reads zero when the firmware starts.
    pub registers: DevAddr,
    /// The boot block.
    pub boot: DevAddr,
}

/// One processor of the machine that firmware runs on. Its [`Clock`] is the counter that records are stamped with.
pub trait Platform: Clock {
    /// How services reach device memory.
    type Memory: DeviceMemory;

    /// Device memory.
    fn memory(&self) -> &Self::Memory;

    /// Where things lie.
    fn place(&self) -> Place;

    /// Which processor this is, from 0.
    fn core_id(&self) -> u32;

    /// How many processors run firmware, at least 1.
    fn processors(&self) -> u32;

    /// Blocks this processor until it is woken or about `bound_cycles` have passed; may return earlier. A wake-up since the
    /// last wait ends it at once, so none is lost between a look at memory and the wait. A processor that looks for wake-ups
    /// before it sleeps asks `has_news` meanwhile, which only looks at memory: what a wake-up is to tell is often there first.
    fn wait(&self, bound_cycles: u64, has_news: impl Fn() -> bool);

    /// Ends the wait of `processor`, or its next one.
    fn wake(&self, processor: u32);

    /// Tells the host that the device made progress.
    fn wake_host(&self);

    /// Called on every fruitless look of a lane that stands at a gate of a subsystem, so that a no-progress watchdog does not
    /// take it for dead.
    fn note_parked(&self, lane: LaneIndex, gate: Gate);

    /// How much of this processor's stack was ever in use; `None` where nobody measures it. Asked often: who measures it
    /// does so now and then, and repeats what is known in between.
    fn stack(&self) -> Option<StackUse>;
}

/// What a poll of a service came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Activity {
    /// Something was done; poll again.
    Busy,
    /// Nothing to do before the clock reads so many cycles, or someone wakes this processor.
    Until(u64),
    /// Nothing to do before someone wakes this processor.
    Idle,
}

impl Activity {
    /// What two services that share a processor come to.
    #[inline]
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Busy, _) | (_, Self::Busy) => Self::Busy,
            (Self::Until(a), Self::Until(b)) => Self::Until(a.min(b)),
            (Self::Until(at), Self::Idle) | (Self::Idle, Self::Until(at)) => Self::Until(at),
            (Self::Idle, Self::Idle) => Self::Idle,
        }
    }
}

/// Which processor runs which service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placement {
    lanes: u32,
    processors: u32,
}

impl Placement {
    /// Lanes come first; agents get the processors that are left, or share with the lanes.
    pub(crate) const fn new(lanes: u32, processors: u32) -> Self {
        Self { lanes, processors: if processors == 0 { 1 } else { processors } }
    }

    /// The processor of a lane.
    pub(crate) const fn lane(&self, lane: LaneIndex) -> u32 {
        lane.get() % self.processors
    }

    /// The processor of a core's agent.
    pub(crate) const fn agent(&self, core: CoreIndex) -> u32 {
        match self.processors.checked_sub(self.lanes) {
            None | Some(0) => self.lane(core.lane(self.lanes)),
            Some(spare) => self.lanes + core.get() as u32 % spare,
        }
    }
}

/// What all services of one processor share.
pub(crate) struct Context<P: Platform> {
    platform: P,
    map: DeviceMap,
    arch: ArchId,
    placement: Placement,
    host_news: Cell<bool>,
    /// Failures so far, and the last one.
    errors: Cell<(u32, ErrorClass)>,
    /// What the device says of itself, on the processor that speaks for it.
    device: Option<DeviceVitals<P::Memory>>,
}

impl<P: Platform> Context<P> {
    /// Services of `platform` on a device that is laid out as `map` says.
    pub(crate) fn new(platform: P, map: DeviceMap, arch: ArchId) -> Self {
        let placement = Placement::new(map.lanes, platform.processors());
        Self {
            platform,
            map,
            arch,
            placement,
            host_news: Cell::new(false),
            errors: Cell::new((0, ErrorClass(0))),
            device: None,
        }
    }

    /// The machine.
    pub(crate) fn platform(&self) -> &P {
        &self.platform
    }

    /// Device memory.
    pub(crate) fn memory(&self) -> &P::Memory {
        self.platform.memory()
    }

    /// Where things lie.
    pub(crate) fn map(&self) -> &DeviceMap {
        &self.map
    }

    /// Whose wire contract profiling follows.
    pub(crate) fn arch(&self) -> ArchId {
        self.arch
    }

    /// The counter.
    pub(crate) fn now_cycles(&self) -> u64 {
        self.platform.now_cycles()
    }

    /// Wakes every lane. A TPB has at least as many engines as there are lanes, so what concerns one TPB concerns them all.
    pub(crate) fn wake_lanes(&self) {
        for lane in (0..self.map.lanes).filter_map(LaneIndex::new) {
            self.wake(self.placement.lane(lane));
        }
    }

    /// Wakes one lane.
    pub(crate) fn wake_lane(&self, lane: LaneIndex) {
        self.wake(self.placement.lane(lane));
    }

    /// Wakes the agent of `core`.
    pub(crate) fn wake_agent(&self, core: CoreIndex) {
        self.wake(self.placement.agent(core));
    }

    /// Services of this processor need no wake-up: they are polled again after any of them did something.
    fn wake(&self, processor: u32) {
        if processor != self.platform.core_id() {
            self.platform.wake(processor);
        }
    }

    /// Has this processor speak for the device.
    pub(crate) fn speak_for(&mut self, device: DeviceVitals<P::Memory>) {
        self.device = Some(device);
    }

    /// Says how far the device is, if this processor speaks for it.
    #[inline]
    pub(crate) fn show_phase(&self, phase: DevicePhase) {
        if let Some(device) = &self.device {
            device.show(phase);
        }
    }

    /// Notes that something failed by `class`, for whoever looks at the status block.
    #[cold]
    pub(crate) fn note_error(&self, class: ErrorClass) {
        self.errors.set((self.errors.get().0.wrapping_add(1), class));
    }

    /// Failures so far, and the last one.
    pub(crate) fn errors(&self) -> (u32, ErrorClass) {
        self.errors.get()
    }

    /// Notes that the host should look; it is told once per round of polls.
    pub(crate) fn note_host_news(&self) {
        self.host_news.set(true);
    }

    /// Tells the host if there is something to tell.
    pub(crate) fn tell_host(&self) {
        if self.host_news.take() {
            self.platform.wake_host();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activities_combine_to_the_most_urgent() {
        use Activity::{Busy, Idle, Until};
        assert_eq!(Until(7).and(Until(5)), Until(5));
        assert_eq!(Idle.and(Until(5)), Until(5));
        assert_eq!(Until(5).and(Idle), Until(5));
        assert_eq!(Idle.and(Idle), Idle);
        assert_eq!(Busy.and(Until(1)).and(Idle), Busy);
        assert_eq!(Idle.and(Busy), Busy);
    }

    #[test]
    fn agents_take_the_processors_that_lanes_leave() {
        let agents = |placement: Placement| CoreIndex::all(1).map(move |core| placement.agent(core));
        assert!(agents(Placement::new(2, 7)).eq([2, 3, 4, 5, 6]));
        assert!(agents(Placement::new(2, 4)).eq([2, 3, 2, 3, 2]));
        assert!(agents(Placement::new(2, 2)).eq([0, 1, 0, 1, 0]));
        assert!(agents(Placement::new(2, 1)).eq([0; 5]));
        assert!(agents(Placement::new(2, 0)).eq([0; 5]));
    }
}
