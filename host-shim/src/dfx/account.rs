//! What a session counted, and whether it adds up.

use sluice_core::layout::{Instance, PoolKind};

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
}

impl Lost {
    /// All causes together.
    pub const fn total(&self) -> u64 {
        self.host_gone + self.host_crash + self.copy_failed + self.no_buffer + self.corrupt + self.core_busy
    }

    /// Adds another pool's losses.
    pub const fn add(&mut self, other: &Self) {
        self.host_gone += other.host_gone;
        self.host_crash += other.host_crash;
        self.copy_failed += other.copy_failed;
        self.no_buffer += other.no_buffer;
        self.corrupt += other.corrupt;
        self.core_busy += other.core_busy;
    }
}

/// One pool's account at the end of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolAccount {
    /// Kind.
    pub kind: PoolKind,
    /// Which pool of its kind.
    pub instance: Instance,
    /// Records that the device meant to make.
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
    /// Lanes that did not report flushed in time.
    pub lanes_missing: u32,
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
            && self.pools.iter().all(|pool| pool.lost.total() == 0 && pool.collected == pool.produced)
    }
}
