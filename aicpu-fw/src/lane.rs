//! A lane: one AICPU thread's loop over the engines it owns.
//!
//! Core `c` belongs to lane `c mod lanes`. One poll gives every engine one step; the lane is idle when none had one to make.
//! A lane that stands at a gate of a recorder stands in the middle of such a step, and all its engines with it.

use heapless::Vec;
use sluice_core::exec::{CoreIndex, LaneIndex};
use sluice_core::mem::{DevAddr, DeviceMemory};

use crate::engine::{EngineService, Surroundings};
use crate::node::{StartError, push};
use crate::platform::{Activity, Context, Platform};
use crate::record::Recorder;

/// One lane.
pub(crate) struct LaneService<M: DeviceMemory, const CORES: usize> {
    index: LaneIndex,
    engines: Vec<EngineService<M>, CORES>,
    iteration: u32,
    /// Which engine is given the next item that is made up.
    next_made_up: usize,
}

impl<M: DeviceMemory, const CORES: usize> LaneService<M, CORES> {
    /// Lane `index` with the engines it owns on this device.
    ///
    /// # Errors
    /// [`StartError`] when registers lie outside device memory, or there are more cores than there is room for.
    pub(crate) fn attach<P: Platform<Memory = M>>(
        cx: &Context<P>,
        index: LaneIndex,
    ) -> Result<Self, StartError> {
        let map = cx.map();
        let mut engines = Vec::new();
        for core in CoreIndex::all(map.registers.tpbs()).filter(|core| core.lane(map.lanes) == index) {
            let Ok(registers) = map.registers.tpb(core.tpb()) else { continue };
            push(&mut engines, EngineService::attach(cx.memory(), core, registers)?, "cores")?;
        }
        Ok(Self { index, engines, iteration: 0, next_made_up: 0 })
    }

    /// Which lane this is.
    pub(crate) fn index(&self) -> LaneIndex {
        self.index
    }

    /// Gives every engine one step. Never blocks, but for recording.
    pub(crate) fn poll<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
        record: &mut Recorder<M, CORES>,
    ) -> Activity {
        self.iteration = self.iteration.wrapping_add(1);
        let mut lane = Surroundings::new(cx, record, self.iteration);
        self.engines.iter_mut().fold(Activity::Idle, |activity, engine| activity.and(engine.poll(&mut lane)))
    }

    /// Gives engines that have nothing to do an item that belongs to no execution, at most so many of them and in turns. How
    /// many were given one, and what the others need.
    pub(crate) fn make_up<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
        record: &mut Recorder<M, CORES>,
        instruction: DevAddr,
        most: u64,
    ) -> (u64, Activity) {
        let mut lane = Surroundings::new(cx, record, self.iteration);
        let (mut made, mut activity) = (0, Activity::Idle);
        for _ in 0..self.engines.len() {
            let engine = self.next_made_up % self.engines.len();
            if made >= most {
                break;
            }
            self.next_made_up = engine + 1;
            match self.engines[engine].make_up(&mut lane, instruction) {
                Ok(()) => made += 1,
                Err(needed) => activity = activity.and(needed),
            }
        }
        (made, activity)
    }

    /// Whether a core has an item that belongs to no execution.
    pub(crate) fn has_made_up_items(&self) -> bool {
        self.engines.iter().any(EngineService::has_made_up_item)
    }
}
