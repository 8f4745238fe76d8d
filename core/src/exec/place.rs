//! Where something runs: the compute cores of a device, the lanes that serve them, and where a device keeps its parts.
//!
//! ```text
//!   TPB 0                     TPB 1
//!   PE  ACT POOL DVE SP       PE  ACT POOL DVE SP
//!   0   1   2    3   4        5   6   7    8   9      core index = TPB · 5 + engine
//!   0   1   0    1   0        1   0   1    0   1      lane = core index mod lanes (here 2)
//! ```

use core::fmt;

use crate::mem::DevAddr;
use crate::mmio::{Engine, RegisterMap, TpbId};

/// A compute core of a device: one engine of one TPB. Per-core pools of records are indexed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreIndex(u8);

impl CoreIndex {
    /// Cores of a device with all its TPBs.
    pub const COUNT: usize = TpbId::COUNT as usize * Engine::COUNT;

    /// The core that `engine` of `tpb` is.
    pub const fn of(tpb: TpbId, engine: Engine) -> Self {
        Self(tpb.get() as u8 * Engine::COUNT as u8 + engine as u8)
    }

    /// The cores of a device with `tpbs` TPBs.
    pub fn all(tpbs: u32) -> impl DoubleEndedIterator<Item = Self> + Clone {
        (0..tpbs.min(TpbId::COUNT) as u8 * Engine::COUNT as u8).map(Self)
    }

    /// The number, 0..=39.
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// Its TPB.
    pub const fn tpb(self) -> TpbId {
        match TpbId::new(self.0 as u32 / Engine::COUNT as u32) {
            Ok(tpb) => tpb,
            Err(_) => unreachable!(),
        }
    }

    /// Its engine.
    pub const fn engine(self) -> Engine {
        Engine::ALL[self.0 as usize % Engine::COUNT]
    }

    /// The lane that serves it when there are `lanes` of them. With no lane at all, lane 0.
    pub const fn lane(self, lanes: u32) -> LaneIndex {
        match (self.0 as u32).checked_rem(lanes) {
            Some(lane) => LaneIndex(lane as u8),
            None => LaneIndex::SEQUENCER,
        }
    }
}

impl fmt::Display for CoreIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.tpb(), self.engine())
    }
}

/// An AICPU thread of the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneIndex(u8);

impl LaneIndex {
    /// The lane that also runs the sequencers.
    pub const SEQUENCER: Self = Self(0);
    /// Most lanes that can have work: one per core.
    pub const COUNT: u32 = CoreIndex::COUNT as u32;

    /// Lane `index`; `None` from [`COUNT`](LaneIndex::COUNT) on.
    pub const fn new(index: u32) -> Option<Self> {
        if index < Self::COUNT { Some(Self(index as u8)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for LaneIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A contiguous range of device addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceRange {
    /// First address.
    pub base: DevAddr,
    /// Length in bytes.
    pub bytes: u64,
}

impl DeviceRange {
    /// Whether `bytes` bytes at `at` lie inside.
    pub fn contains(&self, at: DevAddr, bytes: u64) -> bool {
        at.0.checked_sub(self.base.0)
            .and_then(|offset| offset.checked_add(bytes))
            .is_some_and(|end| end <= self.bytes)
    }
}

impl fmt::Display for DeviceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.bytes, self.base)
    }
}

/// Where things lie on a device, and how many of each it has. Fixed while the device lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceMap {
    /// Memory for tensors, rings, programs and record buffers. All of it is the host's to hand out, and all that
    /// descriptors can reach besides registers.
    pub ram: DeviceRange,
    /// The register window, and with it how many TPBs there are.
    pub registers: RegisterMap,
    /// The boot block, through which the host tells the firmware where profiling regions lie.
    pub boot: DevAddr,
    /// Lanes of the firmware, at least 1.
    pub lanes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_they_end() {
        let range = DeviceRange { base: DevAddr(0x1000), bytes: 0x100 };
        assert!(range.contains(DevAddr(0x1000), 0x100));
        assert!(range.contains(DevAddr(0x1100), 0));
        assert!(!range.contains(DevAddr(0x1000), 0x101));
        assert!(!range.contains(DevAddr(0xFFF), 1));
        assert!(!range.contains(DevAddr(0x10F0), u64::MAX));
    }

    #[test]
    fn every_core_has_one_place_and_every_place_one_core() {
        let mut cores = CoreIndex::all(TpbId::COUNT);
        for tpb in (0..TpbId::COUNT).map(|tpb| TpbId::new(tpb).unwrap()) {
            for engine in Engine::ALL {
                let core = cores.next().unwrap();
                assert_eq!((core.tpb(), core.engine()), (tpb, engine));
                assert_eq!(CoreIndex::of(tpb, engine), core);
            }
        }
        assert_eq!(cores.next(), None);
        assert_eq!(CoreIndex::all(u32::MAX).count(), CoreIndex::COUNT);
        assert_eq!(LaneIndex::new(40), None);
    }

    #[test]
    fn cores_are_dealt_round_the_lanes() {
        let lanes = |count| CoreIndex::all(2).map(move |core| core.lane(count).get());
        assert!(lanes(2).eq([0, 1, 0, 1, 0, 1, 0, 1, 0, 1]));
        assert!(lanes(1).eq([0; 10]));
        assert!(lanes(0).eq([0; 10]));
    }
}
