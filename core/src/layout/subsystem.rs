//! The five subsystems that record, and the mask that enables them.

use bitflags::bitflags;
use core::fmt;
use core::str::FromStr;

use super::{args_dump, swimlane};

/// A subsystem. The order is that of the extension block and of every report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SubsystemId {
    /// Who ran what, when.
    Swimlane,
    /// Hardware counters per task.
    Pmu,
    /// Dependencies between tasks.
    DepGen,
    /// Arguments of tasks, with the bytes of tensors.
    ArgsDump,
    /// Occupancy of rings and heaps per scope.
    ScopeStats,
}

/// Number of subsystems.
pub const SUBSYSTEMS: usize = SubsystemId::ALL.len();

impl SubsystemId {
    /// All, in order of [`index`](Self::index).
    pub const ALL: [Self; 5] = [Self::Swimlane, Self::Pmu, Self::DepGen, Self::ArgsDump, Self::ScopeStats];

    /// Position in tables of all subsystems.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Name in commands, reports and artefacts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Swimlane => "swimlane",
            Self::Pmu => "pmu",
            Self::DepGen => "dep_gen",
            Self::ArgsDump => "args_dump",
            Self::ScopeStats => "scope_stats",
        }
    }

    /// Name of one of its levels; the levels of a subsystem are numbered from 0, which is off.
    #[must_use]
    pub const fn level_name(self, level: u32) -> Option<&'static str> {
        match (self, level) {
            (Self::Swimlane, _) => swimlane::Level(level).name(),
            (Self::ArgsDump, _) => args_dump::Level(level).name(),
            (_, 0) => Some("off"),
            (_, 1) => Some("on"),
            _ => None,
        }
    }

    /// The level that records most.
    #[must_use]
    pub const fn full_level(self) -> u32 {
        match self {
            Self::Swimlane => swimlane::Level::FULL.0,
            Self::ArgsDump => args_dump::Level::FULL.0,
            Self::Pmu | Self::DepGen | Self::ScopeStats => 1,
        }
    }

    /// Its levels by name.
    pub fn levels(self) -> impl Iterator<Item = (&'static str, u32)> {
        (0..).map_while(move |level| Some((self.level_name(level)?, level)))
    }

    /// Whether it tells of what items are, so that executions have to name their task table.
    #[must_use]
    pub const fn reads_tasks(self) -> bool {
        matches!(self, Self::DepGen | Self::ArgsDump)
    }

    /// The bit that enables it.
    #[must_use]
    pub const fn enable_bit(self) -> EnableMask {
        match self {
            Self::Swimlane => EnableMask::SWIMLANE,
            Self::Pmu => EnableMask::PMU,
            Self::DepGen => EnableMask::DEP_GEN,
            Self::ArgsDump => EnableMask::ARGS_DUMP,
            Self::ScopeStats => EnableMask::SCOPE_STATS,
        }
    }
}

impl fmt::Display for SubsystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSubsystem;

impl fmt::Display for UnknownSubsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown subsystem, expected swimlane, pmu, dep_gen, args_dump or scope_stats")
    }
}

impl core::error::Error for UnknownSubsystem {}

impl FromStr for SubsystemId {
    type Err = UnknownSubsystem;

    /// Accepts the names and the older `l2_swimlane` and `tensor_dump`.
    fn from_str(text: &str) -> Result<Self, UnknownSubsystem> {
        match text {
            "l2_swimlane" => Ok(Self::Swimlane),
            "tensor_dump" => Ok(Self::ArgsDump),
            _ => Self::ALL.into_iter().find(|subsystem| subsystem.name() == text).ok_or(UnknownSubsystem),
        }
    }
}

bitflags! {
    /// Which subsystems record (wire contract, enable mask of the kernel arguments). Unknown bits are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct EnableMask: u32 {
        /// [`SubsystemId::ArgsDump`].
        const ARGS_DUMP = 1;
        /// [`SubsystemId::Swimlane`].
        const SWIMLANE = 2;
        /// [`SubsystemId::Pmu`].
        const PMU = 4;
        /// [`SubsystemId::DepGen`].
        const DEP_GEN = 8;
        /// [`SubsystemId::ScopeStats`].
        const SCOPE_STATS = 16;
        /// Bits of later versions.
        const _ = !0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn names_parse_back_and_old_ones_are_understood() {
        for (index, subsystem) in SubsystemId::ALL.into_iter().enumerate() {
            assert_eq!(subsystem.index(), index);
            assert_eq!(subsystem.to_string().parse(), Ok(subsystem));
        }
        assert_eq!("l2_swimlane".parse(), Ok(SubsystemId::Swimlane));
        assert_eq!("tensor_dump".parse(), Ok(SubsystemId::ArgsDump));
        assert_eq!("".parse::<SubsystemId>(), Err(UnknownSubsystem));
    }

    #[test]
    fn every_subsystem_has_a_bit_of_its_own_and_unknown_bits_survive() {
        let all = SubsystemId::ALL.iter().fold(EnableMask::empty(), |mask, subsystem| {
            assert!(!mask.intersects(subsystem.enable_bit()));
            mask | subsystem.enable_bit()
        });
        assert_eq!(all.bits(), 31);
        assert_eq!(EnableMask::from_bits_retain(0x102).bits(), 0x102);
        assert!(EnableMask::from_bits_retain(0x102).contains(EnableMask::SWIMLANE));
    }

    #[test]
    fn levels_have_names_from_off_on() {
        for subsystem in SubsystemId::ALL {
            assert_eq!(subsystem.levels().next(), Some(("off", 0)));
            assert!(subsystem.level_name(subsystem.full_level()).is_some());
            assert_eq!(subsystem.level_name(5), None);
        }
        assert!(SubsystemId::ArgsDump.levels().eq([("off", 0), ("partial", 1), ("full", 2), ("hybrid", 3)]));
        assert!(SubsystemId::Pmu.levels().eq([("off", 0), ("on", 1)]));
    }
}
