//! What a session counted, and whether it adds up.
//!
//! ```text
//!   produced (device) = collected (host) + lost, by cause (device: no buffer, host gone, …; host: copy failed)
//! ```
//!
//! The identity holds per pool once every lane has flushed. What the device says it made and neither side can account for
//! was damaged on the way.

use std::collections::BTreeMap;
use std::mem::offset_of;

use sluice_core::layout::extension::{LaneStatus, PoolStatus};
use sluice_core::layout::{Instance, PoolKind, SubsystemId, scope_stats};
use sluice_core::mem::{DevAddr, Fault, Memory, Word};
use sluice_core::producer::DropCause;

use super::again::again;
use super::collector::{Collected, Tally};
use super::ledger::PoolBuffers;
use super::plan::{Part, Plan};
use super::server::ServerCounts;
use super::waits::Waits;

/// The accounts of a session.
pub type Accounts = BTreeMap<SubsystemId, Account>;

/// Records lost, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// The device waited out its deadline, or the host had detached.
    pub host_gone: u64,
    /// In buffers that an earlier host had taken and not written.
    pub host_crash: u64,
    /// The bytes could not be copied or written.
    pub copy_failed: u64,
    /// The device had no buffer.
    pub no_buffer: u64,
    /// What the other side wrote could not be used.
    pub corrupt: u64,
    /// A core did not finish.
    pub core_busy: u64,
    /// What a core had left belonged to another task.
    pub mismatch: u64,
}

impl Lost {
    /// All causes together.
    pub const fn total(&self) -> u64 {
        let Self { host_gone, host_crash, copy_failed, no_buffer, corrupt, core_busy, mismatch } = *self;
        host_gone + host_crash + copy_failed + no_buffer + corrupt + core_busy + mismatch
    }

    /// Adds another pool's losses.
    pub const fn add(&mut self, other: &Self) {
        self.host_gone += other.host_gone;
        self.host_crash += other.host_crash;
        self.copy_failed += other.copy_failed;
        self.no_buffer += other.no_buffer;
        self.corrupt += other.corrupt;
        self.core_busy += other.core_busy;
        self.mismatch += other.mismatch;
    }
}

/// One pool's account at the end of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolAccount {
    /// Kind.
    pub kind: PoolKind,
    /// Which pool of its kind.
    pub instance: Instance,
    /// Records that the device meant to make; of those that take a chain of slots, every slot.
    pub produced: u64,
    /// Records handed to the sink.
    pub collected: u64,
    /// Records lost, by cause; together with those collected they are those produced.
    pub lost: Lost,
    /// Buffers handed over.
    pub switches: u64,
    /// Fewest buffers that waited when the lane claimed one.
    pub free_low_water: u32,
}

/// Freezes of one gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FreezeStats {
    /// How many.
    pub count: u64,
    /// All together, ns.
    pub total_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
}

impl FreezeStats {
    pub(super) fn note(&mut self, duration_ns: u64) {
        self.count += 1;
        self.total_ns += duration_ns;
        self.max_ns = self.max_ns.max(duration_ns);
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.total_ns += other.total_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// A subsystem's account at the end of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    /// Every pool in use.
    pub pools: Vec<PoolAccount>,
    /// Buffers of all pools.
    pub buffers: u32,
    /// Most entries seen in a ready ring.
    pub ready_high_water: u32,
    /// Freezes of the push gate.
    pub rq: FreezeStats,
    /// Freezes of the pop gate.
    pub fq: FreezeStats,
    /// Signals served without a freeze.
    pub served: u64,
    /// Ready entries refused, and indices out of range.
    pub corrupt_words: u64,
    /// Releases at which ledger, spare lists and queues did not agree.
    pub imbalances: u64,
    /// Items and submits that were not recorded because of sampling or the window.
    pub passed_over: u64,
    /// Payloads that lay nowhere in their arena.
    pub bad_payloads: u64,
    /// Payloads of records that could not be read or written.
    pub lost_payloads: u64,
    /// What lanes waited at the gates.
    pub waits: Waits,
    /// Lanes that did not report flushed in time.
    pub lanes_missing: u32,
    /// A sequencer of the device could go on no further; only ScopeStats says so.
    pub fatal: bool,
}

impl Account {
    /// Records that the device meant to make.
    pub fn produced(&self) -> u64 {
        self.pools.iter().map(|pool| pool.produced).sum()
    }

    /// Records handed to the sink.
    pub fn collected(&self) -> u64 {
        self.pools.iter().map(|pool| pool.collected).sum()
    }

    /// Records lost, by cause.
    pub fn lost(&self) -> Lost {
        let mut lost = Lost::default();
        for pool in &self.pools {
            lost.add(&pool.lost);
        }
        lost
    }

    /// Buffers handed over.
    pub fn switches(&self) -> u64 {
        self.pools.iter().map(|pool| pool.switches).sum()
    }

    /// Fewest buffers that waited in any pool when its lane claimed one.
    pub fn free_low_water(&self) -> u32 {
        self.pools.iter().map(|pool| pool.free_low_water).min().unwrap_or(0)
    }

    /// Whether every record made was collected, nothing more, and every lane reported.
    pub fn is_lossless(&self) -> bool {
        self.lanes_missing == 0
            && self.imbalances == 0
            && self.pools.iter().all(|pool| pool.lost.total() == 0 && pool.collected == pool.produced)
    }
}

impl Account {
    /// Adds up what device and host counted of one subsystem.
    ///
    /// # Errors
    /// [`Fault`] when the device's figures cannot be read.
    pub(super) fn of<M: Memory>(
        memory: &M,
        plan: &Plan,
        part: &Part,
        counts: ServerCounts,
        collected: &Collected,
        lanes_missing: u32,
    ) -> Result<Self, Fault> {
        let pools = part.directory.pools().iter().zip(&collected.pools);
        let pools = pools.map(|(pool, tally)| PoolAccount::of(memory, plan, part, pool, tally));
        let mut ready_high_water = 0;
        for lane in 0..part.region.shape().lanes() {
            let at = plan.lane_word(part.subsystem, lane, offset_of!(LaneStatus, ready_high_water))?;
            ready_high_water = ready_high_water.max(again(|| memory.word(at)?.try_load())?);
        }
        Ok(Self {
            pools: pools.collect::<Result<_, _>>()?,
            buffers: part.directory.buffers(),
            ready_high_water,
            rq: collected.rq,
            fq: collected.fq,
            served: counts.served,
            corrupt_words: counts.corrupt_words,
            imbalances: counts.imbalances,
            passed_over: passed_over(memory, plan, part)?,
            bad_payloads: collected.pools.iter().map(|tally| tally.bad_payloads).sum(),
            lost_payloads: collected.pools.iter().map(|tally| tally.lost_payloads).sum(),
            waits: Waits::of(memory, plan, part.subsystem, part.region.shape().lanes())?,
            lanes_missing,
            fatal: is_fatal(memory, part)?,
        })
    }
}

/// What lanes passed over of `part`: each counts it at one of its pools.
fn passed_over<M: Memory>(memory: &M, plan: &Plan, part: &Part) -> Result<u64, Fault> {
    let read = |at: DevAddr| again(|| memory.word(at)?.try_load());
    part.directory.pools().iter().try_fold(0u64, |sum, pool| {
        let offset = offset_of!(PoolStatus, passed_over);
        let Some(at) = plan.pool_word(part, pool.kind, pool.instance, offset) else { return Ok(sum) };
        Ok(sum.saturating_add(DevAddr::join(read(at)?, read(at.offset(4))?).0))
    })
}

/// Whether the region of `part` has a word for fatal errors, and it is set.
fn is_fatal<M: Memory>(memory: &M, part: &Part) -> Result<bool, Fault> {
    if part.subsystem != SubsystemId::ScopeStats {
        return Ok(false);
    }
    let word = scope_stats::header_words(part.region.shape().arch()).fatal_latched;
    let at = part.region_block.at().offset(word as u64);
    Ok(again(|| memory.word(at)?.try_load())? != 0)
}

impl PoolAccount {
    fn of<M: Memory>(
        memory: &M,
        plan: &Plan,
        part: &Part,
        pool: &PoolBuffers,
        tally: &Tally,
    ) -> Result<Self, Fault> {
        let (kind, instance) = (pool.kind, pool.instance);
        let read = |at: DevAddr| again(|| memory.word(at)?.try_load());
        let own = |offset: usize| plan.pool_word(part, kind, instance, offset).map_or(Ok(0), read);
        let cause = |cause: DropCause| {
            let at = offset_of!(PoolStatus, drops) + cause.index() * size_of::<u64>();
            Ok::<_, Fault>(DevAddr::join(own(at)?, own(at + 4)?).0)
        };
        let mut lost = Lost {
            host_gone: cause(DropCause::HostGone)?,
            no_buffer: cause(DropCause::NoBuffer)?,
            corrupt: cause(DropCause::Corrupt)?,
            core_busy: cause(DropCause::CoreBusy)?,
            mismatch: cause(DropCause::Mismatch)?,
            copy_failed: tally.copy_failed,
            host_crash: 0,
        };
        let on_the_wire = part.region.pool(kind, instance).and_then(|offsets| offsets.total_records);
        let low = match on_the_wire {
            Some(offset) => read(part.region_block.at().offset(offset as u64))?,
            None => own(offset_of!(PoolStatus, total_records_lo))?,
        };
        let attempts = DevAddr::join(low, own(offset_of!(PoolStatus, total_records_hi))?).0;
        let produced = attempts.saturating_add(overflow(memory, plan, part, pool)?);
        let unaccounted = produced.saturating_sub(tally.collected + lost.total());
        let uncounted = unaccounted.min(tally.uncounted);
        lost.copy_failed += uncounted;
        lost.corrupt += unaccounted - uncounted;
        Ok(Self {
            kind,
            instance,
            produced,
            collected: tally.collected,
            lost,
            switches: tally.buffers,
            free_low_water: own(offset_of!(PoolStatus, free_low_water))?,
        })
    }
}

/// Slots that chains took beyond one per record.
fn overflow<M: Memory>(memory: &M, plan: &Plan, part: &Part, pool: &PoolBuffers) -> Result<u64, Fault> {
    let (kind, instance) = (pool.kind, pool.instance);
    let Some(offset) = part.region.pool(kind, instance).and_then(|offsets| offsets.overflow_records) else {
        return Ok(0);
    };
    let read = |at: DevAddr| again(|| memory.word(at)?.try_load());
    let high = plan.pool_word(part, kind, instance, offset_of!(PoolStatus, overflow_records_hi));
    let high = high.map_or(Ok(0), read)?;
    Ok(DevAddr::join(read(part.region_block.at().offset(offset as u64))?, high).0)
}
