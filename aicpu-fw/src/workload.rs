//! Records without work: a lane makes up tasks of its cores and records them, to load the recording and nothing else.
//!
//! The host asks for a number of records in the boot block before it attaches recorders; the lanes share it evenly. They go
//! through the same recorder as those of real tasks, so buffers, gates and losses behave as in a run.

use sluice_core::exec::{CoreIndex, LaneBoot, LaneIndex};
use sluice_core::mem::{DeviceMemory, Fault};

use crate::platform::{Activity, Context, Platform};
use crate::record::{Finish, Recorder};

/// Records made per round, so that the rest of the lane's loop is never far away.
const BATCH: u64 = 256;

/// One lane's share of the workload.
pub(crate) struct Workload<M: DeviceMemory> {
    lane: LaneIndex,
    boot: LaneBoot<M>,
    generation: Option<u32>,
    left: u64,
    made: u64,
}

impl<M: DeviceMemory> Workload<M> {
    /// The share of `lane`, nothing so far.
    ///
    /// # Errors
    /// [`Fault`] when the boot block lies outside device memory.
    pub(crate) fn attach<P: Platform<Memory = M>>(cx: &Context<P>, lane: LaneIndex) -> Result<Self, Fault> {
        let boot = LaneBoot::attach(cx.memory(), cx.map().boot)?;
        Ok(Self { lane, boot, generation: None, left: 0, made: 0 })
    }

    /// Makes up to a batch of records. Called when the recorders follow the same generation.
    pub(crate) fn poll<P: Platform<Memory = M>, const CORES: usize>(
        &mut self,
        cx: &Context<P>,
        record: &mut Recorder<M, CORES>,
    ) -> Activity {
        let generation = self.boot.generation();
        if generation != self.generation {
            self.generation = generation;
            self.left = if generation.is_some() { self.share(cx) } else { 0 };
            if self.left == 0 {
                self.conclude(cx);
            }
        }
        if self.left == 0 {
            return Activity::Idle;
        }
        if self.boot.workload_stopped() {
            self.left = 0;
        }
        let cores = CoreIndex::all(cx.map().registers.tpbs());
        let own = cores.filter(|core| core.lane(cx.map().lanes) == self.lane).cycle();
        let batch = self.left.min(BATCH);
        let mut dispatch_cycles = record.item_clock(cx);
        for core in own.take(batch as usize) {
            let finish_cycles = record.item_clock(cx);
            self.made += 1;
            // Tokens of a core count up; their gaps are the lane's other cores.
            let token = self.made as u32;
            // One that is made up counts as an execution of its own.
            let picked = record.pick(cx, token.wrapping_sub(1));
            let finish = Finish {
                core,
                token,
                kernel: 0,
                item: None,
                iteration: 0,
                dispatch_cycles,
                finish_cycles,
                picked,
            };
            record.finished(cx, &finish);
            dispatch_cycles = finish_cycles;
        }
        self.left -= batch;
        if self.left == 0 {
            self.conclude(cx);
        }
        Activity::Busy
    }

    /// The records that fall to this lane; the first lanes make the remainder.
    fn share<P: Platform<Memory = M>>(&self, cx: &Context<P>) -> u64 {
        let lanes = u64::from(cx.map().lanes.max(1));
        let records = self.boot.workload().unwrap_or(0);
        records / lanes + u64::from(u64::from(self.lane.get()) < records % lanes)
    }

    fn conclude<P: Platform<Memory = M>>(&self, cx: &Context<P>) {
        if let Some(generation) = self.generation {
            // A host that cannot be told has lost its memory, and asks no more.
            let _ = self.boot.show_workload_made(self.lane, generation);
            cx.note_host_news();
        }
    }
}
