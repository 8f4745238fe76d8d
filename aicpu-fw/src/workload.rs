//! Records without work: a lane makes up records of any subsystem, to load the recording and nothing else.
//!
//! The host says in the boot block, before it attaches recorders, how many, of which kinds and how fast; the lanes share them
//! evenly. They go through the same recorders as those of real tasks, so buffers, gates and losses behave as in a run.
//!
//! ```text
//!   batch 0: kind a   batch 1: kind b   batch 2: kind a …      kinds take turns, and in a batch the pools of the kind
//!   core 0  1  2  0  1  2 …
//!   number 1  1  1  2  2  2 …                                  each pool's own count, from 1: it stands in every record
//! ```
//!
//! Records of cores are made by cores: the lane gives them items that belong to no execution, one at a time each, and goes on to the
//! next batch when all of this one are given.
//!
//! The clock is read once per batch. What a batch records happened, so it says, since the batch before: its times are spread
//! evenly over that.

use core::num::NonZeroU64;

use heapless::Vec;
use sluice_core::exec::{CoreIndex, LaneBoot, LaneIndex, Workload as Wanted, WorkloadKinds};
use sluice_core::mem::{DeviceMemory, Fault};

use crate::lane::LaneService;
use crate::platform::{Activity, Context, Platform};
use crate::record::{Batch, Recorder, Turn};

/// Records made per round, so that the rest of the lane's loop is never far away.
const BATCH: u64 = 256;
/// Batches per second at a rate that is low enough.
const PACE_HZ: u64 = 1000;
/// Kinds of record, those without a name included.
const KINDS: usize = WorkloadKinds::all().bits().count_ones() as usize;

/// One lane's share of the workload.
pub(crate) struct Workload<M: DeviceMemory, const CORES: usize> {
    lane: LaneIndex,
    boot: LaneBoot<M>,
    generation: Option<u32>,
    wanted: Wanted,
    /// Whether the host is still to hear that all is made.
    is_owed: bool,
    left: u64,
    /// Items of the present batch that cores are still to be given.
    items_left: u64,
    /// The kinds that this lane makes, and where each stands.
    kinds: Vec<(WorkloadKinds, Turn), KINDS>,
    /// Whose turn it is.
    next: usize,
    cores: Vec<CoreIndex, CORES>,
    pace: Option<Pace>,
    /// Until when there are records.
    until_cycles: u64,
}

/// A rate.
#[derive(Clone, Copy, Debug)]
struct Pace {
    batch: u64,
    cycles: u64,
    due_cycles: u64,
}

impl Pace {
    /// For `share` of the `wanted` records, of which all together are to come at the wanted rate.
    fn new(wanted: &Wanted, share: u64, hz: u64, now_cycles: u64) -> Option<Self> {
        let (rate, records) = (NonZeroU64::new(wanted.rate_hz)?, u128::from(wanted.records));
        let own_rate = u128::from(rate.get()) * u128::from(share) / records.max(1);
        let batch = u64::try_from(own_rate / u128::from(PACE_HZ)).unwrap_or(BATCH).clamp(1, BATCH);
        let per_record = u128::from(rate.get()) * u128::from(share).max(1);
        let cycles = u128::from(batch) * u128::from(hz) * records / per_record;
        Some(Self { batch, cycles: u64::try_from(cycles).unwrap_or(u64::MAX), due_cycles: now_cycles })
    }

    /// The next batch is due when this one has lasted its time. What was waited at a gate is not made up for.
    fn advance(&mut self, now_cycles: u64) {
        let late = now_cycles.saturating_sub(self.due_cycles) > self.cycles;
        let from = if late { now_cycles } else { self.due_cycles };
        self.due_cycles = from.saturating_add(self.cycles);
    }
}

impl<M: DeviceMemory, const CORES: usize> Workload<M, CORES> {
    /// The share of `lane`, nothing so far.
    ///
    /// # Errors
    /// [`Fault`] when the boot block lies outside device memory.
    pub(crate) fn attach<P: Platform<Memory = M>>(cx: &Context<P>, lane: LaneIndex) -> Result<Self, Fault> {
        let boot = LaneBoot::attach(cx.memory(), cx.map().boot)?;
        let cores = CoreIndex::all(cx.map().registers.tpbs());
        Ok(Self {
            lane,
            boot,
            generation: None,
            wanted: Wanted::NONE,
            is_owed: false,
            left: 0,
            items_left: 0,
            kinds: Vec::new(),
            next: 0,
            cores: cores.filter(|core| core.lane(cx.map().lanes) == lane).take(CORES).collect(),
            pace: None,
            until_cycles: 0,
        })
    }

    /// Makes up to a batch of records. Called when the recorders follow the same generation.
    pub(crate) fn poll<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
        record: &mut Recorder<M, CORES>,
        lane: &mut LaneService<M, CORES>,
    ) -> Activity {
        let generation = self.boot.generation();
        if generation != self.generation {
            self.generation = generation;
            self.begin(cx);
        }
        if !self.is_owed {
            return Activity::Idle;
        }
        if self.boot.workload_stopped() {
            (self.left, self.items_left) = (0, 0);
        }
        if self.items_left > 0 {
            let (made, activity) = lane.make_up(cx, record, self.wanted.core_item, self.items_left);
            self.items_left -= made;
            return if made > 0 { Activity::Busy } else { activity };
        }
        if self.left == 0 {
            return self.conclude(cx, lane);
        }
        let now_cycles = cx.now_cycles();
        let mut most = BATCH;
        if let Some(pace) = &mut self.pace {
            if now_cycles < pace.due_cycles {
                return Activity::Until(pace.due_cycles);
            }
            pace.advance(now_cycles);
            most = pace.batch;
        }
        let records = self.left.min(most);
        let since_cycles = core::mem::replace(&mut self.until_cycles, now_cycles);
        if let Some((kind, turn)) = self.kinds.get_mut(self.next) {
            if *kind == WorkloadKinds::AICORE_TASK {
                self.items_left = records;
            } else {
                let cores = if is_of_cores(*kind) { &self.cores[..] } else { &[] };
                let spread = since_cycles..now_cycles;
                record.make_up(cx, &mut Batch::new(&self.wanted, *kind, records, cores, turn, spread));
            }
        }
        self.next = (self.next + 1) % self.kinds.len().max(1);
        self.left -= records;
        Activity::Busy
    }

    /// Takes up what the host wants of this lane; the first lanes make the remainder.
    fn begin<P: Platform<Memory = M>>(&mut self, cx: &Context<P>) {
        let wanted = match (self.generation, self.boot.workload()) {
            (Some(_), Ok(wanted)) => wanted,
            _ => Wanted::NONE,
        };
        let of_all = wanted.kinds.difference(WorkloadKinds::OF_SEQUENCERS);
        let is_sequencer = self.lane == LaneIndex::SEQUENCER;
        let own = if is_sequencer { wanted.kinds } else { of_all };
        let has_pool = |kind: WorkloadKinds| {
            let has_item = kind != WorkloadKinds::AICORE_TASK || !wanted.core_item.is_null();
            has_item && (!is_of_cores(kind) || !self.cores.is_empty())
        };
        let known = own.intersection(WorkloadKinds::all()).iter();
        self.kinds = known.filter(|&kind| has_pool(kind)).map(|kind| (kind, Turn::default())).collect();
        self.next = 0;
        let lanes = if of_all.is_empty() { 1 } else { u64::from(cx.map().lanes.max(1)) };
        let share = match self.kinds.is_empty() {
            true => 0,
            false => wanted.records / lanes + u64::from(u64::from(self.lane.get()) < wanted.records % lanes),
        };
        (self.wanted, self.left, self.items_left) = (wanted, share, 0);
        self.is_owed = self.generation.is_some();
        self.until_cycles = cx.now_cycles();
        self.pace = Pace::new(&wanted, share, cx.platform().frequency_hz(), self.until_cycles);
    }

    /// Tells the host, once cores have finished what they were given.
    fn conclude<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
        lane: &LaneService<M, CORES>,
    ) -> Activity {
        if lane.has_made_up_items() {
            return Activity::Idle;
        }
        self.is_owed = false;
        if let Some(generation) = self.generation {
            // A host that cannot be told has lost its memory, and asks no more.
            let _ = self.boot.show_workload_made(self.lane, generation);
            cx.note_host_news();
        }
        Activity::Busy
    }
}

/// Whether each core has a pool of the kind.
const fn is_of_cores(kind: WorkloadKinds) -> bool {
    kind.intersects(WorkloadKinds::AICPU_TASK.union(WorkloadKinds::PMU).union(WorkloadKinds::AICORE_TASK))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u64 = 50_000_000;

    fn pace(rate_hz: u64, records: u64, share: u64) -> (u64, u64) {
        let wanted = Wanted { rate_hz, ..Wanted::tasks(records) };
        let pace = Pace::new(&wanted, share, HZ, 0).expect("a rate");
        (pace.batch, pace.cycles)
    }

    #[test]
    fn batches_keep_the_rate_of_the_lanes_share() {
        assert!(Pace::new(&Wanted::tasks(100), 50, HZ, 0).is_none(), "as fast as can be");
        // 100,000 a second on each of two lanes: a hundred every millisecond.
        assert_eq!(pace(200_000, 1_000_000, 500_000), (100, HZ / 1000));
        assert_eq!(pace(10_000_000, 1000, 1000), (256, HZ * 256 / 10_000_000));
        assert_eq!(pace(1, 1000, 250), (1, HZ * 4), "one in four seconds");
        assert_eq!(pace(1, 0, 0).0, 1);
        assert_eq!(pace(u64::MAX, u64::MAX, u64::MAX).0, 256);
    }

    #[test]
    fn what_a_wait_has_cost_is_not_made_up_for() {
        let mut pace = Pace { batch: 1, cycles: 100, due_cycles: 1000 };
        pace.advance(1010);
        assert_eq!(pace.due_cycles, 1100, "a little late is caught up with");
        pace.advance(5000);
        assert_eq!(pace.due_cycles, 5100);
    }
}
