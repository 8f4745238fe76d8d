//! A lane: one AICPU thread's loop over the engines it owns.
//!
//! Core `c` belongs to lane `c mod lanes`. One poll gives every engine one step; the lane is idle when none had one to make.
//! A lane that stands at a gate of a recorder stands in the middle of such a step, and all its engines with it.

use heapless::Vec;
use sluice_core::exec::{CoreIndex, LaneIndex};
use sluice_core::mem::DeviceMemory;

use crate::engine::{EngineService, Surroundings};
use crate::node::{StartError, push};
use crate::platform::{Activity, Context, Platform};
use crate::record::Recorder;

/// One lane.
pub(crate) struct LaneService<M: DeviceMemory, const CORES: usize> {
    index: LaneIndex,
    engines: Vec<EngineService<M>, CORES>,
    iteration: u32,
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
        Ok(Self { index, engines, iteration: 0 })
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
}
