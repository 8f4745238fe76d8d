//! The two architectures: what differs between `a2a3` and `a5`, known at compile time ([`Arch`]) or chosen at
//! run time ([`ArchId`]), with one set of figures ([`Facts`]) behind both.

use core::fmt;
use core::str::FromStr;

/// Figures of one architecture (wire contract, constants).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Most lanes (AICPU threads); every header has this many ready rings, live or not.
    pub lanes: usize,
    /// Most compute cores.
    pub max_cores: usize,
    /// Ticks per second of the counter that stamps records and bounds waits.
    pub clock_hz: u64,
    /// Entries in a swimlane ready ring; one stays free, so it holds one fewer.
    pub swimlane_ready_entries: usize,
    /// Entries in a PMU ready ring.
    pub pmu_ready_entries: usize,
    /// Entries in an ArgsDump ready ring.
    pub args_dump_ready_entries: usize,
    /// Event counters in a PMU record.
    pub pmu_counters: usize,
}

/// Seconds that one buffer switch may wait before the lane counts a loss instead.
pub const DEFAULT_DEADLINE_SECONDS: u64 = 30;

/// Time an operation may run before its core counts as lost.
pub const OPERATION_TIMEOUT_US: u64 = 45_000_000;

/// Time without progress after which the device's scheduler gives up. Shorter than the deadline: a parked lane
/// must tell the scheduler that it is parked.
pub const SCHEDULER_NO_PROGRESS_MS: u64 = 10_000;

/// Time the host waits for the device's stream to finish.
pub const STREAM_SYNC_TIMEOUT_MS: u64 = 50_000;

const CORES_PER_BLOCK: usize = 3;

const fn facts(lanes: usize, blocks: usize, clock_hz: u64, pmu_counters: usize) -> Facts {
    let max_cores = blocks * CORES_PER_BLOCK;
    Facts {
        lanes,
        max_cores,
        clock_hz,
        // The contract sizes ready rings by fixed multiples that do not follow the number of buffers in use.
        swimlane_ready_entries: max_cores * 8 + 2 * lanes * 16 + max_cores * 4,
        pmu_ready_entries: max_cores * 2,
        args_dump_ready_entries: lanes * 16,
        pmu_counters,
    }
}

const FACTS_A2A3: Facts = facts(4, 24, 50_000_000, 8);
const FACTS_A5: Facts = facts(5, 36, 1_000_000_000, 10);

impl Facts {
    /// The deadline of one buffer switch unless the session sets another, in ticks of the counter.
    #[must_use]
    pub const fn default_deadline_cycles(&self) -> u64 {
        DEFAULT_DEADLINE_SECONDS * self.clock_hz
    }

    /// Time an operation may run before its core counts as lost, in ticks of the counter.
    #[must_use]
    pub const fn operation_timeout_cycles(&self) -> u64 {
        OPERATION_TIMEOUT_US * (self.clock_hz / 1_000_000)
    }
}

/// An architecture chosen at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ArchId {
    /// 4 lanes, 72 cores, 50 MHz counter.
    A2a3,
    /// 5 lanes, 108 cores, 1 GHz counter.
    A5,
}

impl ArchId {
    /// Both, in the order of the wire contract.
    pub const ALL: [Self; 2] = [Self::A2a3, Self::A5];

    /// The figures of this architecture.
    #[must_use]
    pub const fn facts(self) -> &'static Facts {
        match self {
            Self::A2a3 => &FACTS_A2A3,
            Self::A5 => &FACTS_A5,
        }
    }

    /// `a2a3` or `a5`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A2a3 => "a2a3",
            Self::A5 => "a5",
        }
    }

    /// The first value on a2a3, the second on a5.
    #[must_use]
    pub const fn pick(self, a2a3: usize, a5: usize) -> usize {
        match self {
            Self::A2a3 => a2a3,
            Self::A5 => a5,
        }
    }
}

impl fmt::Display for ArchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownArch;

impl fmt::Display for UnknownArch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown architecture, expected a2a3 or a5")
    }
}

impl core::error::Error for UnknownArch {}

impl FromStr for ArchId {
    type Err = UnknownArch;

    fn from_str(text: &str) -> Result<Self, UnknownArch> {
        Self::ALL.into_iter().find(|arch| arch.name() == text).ok_or(UnknownArch)
    }
}

/// An architecture known at compile time: what firmware is built for.
pub trait Arch: Copy + fmt::Debug + Send + Sync + 'static {
    /// The same architecture as a value.
    const ID: ArchId;
    /// Its figures.
    const FACTS: Facts = *Self::ID.facts();
}

/// 4 lanes, 72 cores, 50 MHz counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct A2a3;

/// 5 lanes, 108 cores, 1 GHz counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct A5;

impl Arch for A2a3 {
    const ID: ArchId = ArchId::A2a3;
}

impl Arch for A5 {
    const ID: ArchId = ArchId::A5;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn figures_are_those_of_the_contract() {
        let figures = |arch: ArchId| {
            let f = arch.facts();
            (f.lanes, f.max_cores, f.swimlane_ready_entries, f.pmu_ready_entries, f.args_dump_ready_entries)
        };
        assert_eq!(figures(ArchId::A2a3), (4, 72, 992, 144, 64));
        assert_eq!(figures(ArchId::A5), (5, 108, 1456, 216, 80));
        assert_eq!(A2a3::FACTS.default_deadline_cycles(), 1_500_000_000);
        assert_eq!(A5::FACTS.default_deadline_cycles(), 30_000_000_000);
        assert_eq!(A2a3::FACTS.operation_timeout_cycles(), 45 * 50_000_000);
    }

    #[test]
    fn names_parse_back() {
        for arch in ArchId::ALL {
            assert_eq!(arch.to_string().parse(), Ok(arch));
        }
        assert_eq!("A5".parse::<ArchId>(), Err(UnknownArch));
    }
}
