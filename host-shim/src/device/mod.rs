//! The device as the host sees it: its memory, its doorbell, its clock.
//!
//! ```text
//!   host                                   device
//!   ──────────────────────────────────────────────────────────────
//!   store TpbControl.doorbell (release)
//!   ring_doorbell(tpb) ──── wake ────────► sequencer of that TPB
//!                                          … runs, writes notifications …
//!   wait_progress(seen) ◄── progress ───── count + 1
//!   store a gate flag, refill, attach
//!   wake_lanes() ────────── wake ────────► every lane
//! ```
//!
//! Everything both sides know of each other stands in device memory. The calls here carry no data: they only end a
//! sleep early, and a sleeper that missed none of them looks at memory again anyway within its bound.

pub mod heap;

use std::fmt;
use std::time::Duration;

use sluice_core::mem::{Clock, CopyMemory, DevAddr, Fault, Memory};
use sluice_core::mmio::{RegisterMap, TpbId};

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
    /// Memory for tensors, rings, programs and record buffers. All of it is the host's to hand out.
    pub ram: DeviceRange,
    /// The register window, and with it how many TPBs there are.
    pub registers: RegisterMap,
    /// The boot block, through which the host tells the firmware where profiling regions lie.
    pub boot: DevAddr,
    /// Lanes of the firmware, at least 1.
    pub lanes: u32,
}

/// Memory of a device that threads of the host share.
pub trait SharedMemory:
    CopyMemory
    + Memory<Word: Send + Sync + 'static, Words: Send + Sync + 'static, Window: Send + 'static>
    + Send
    + Sync
    + 'static
{
}

impl<M> SharedMemory for M where
    M: CopyMemory
        + Memory<Word: Send + Sync + 'static, Words: Send + Sync + 'static, Window: Send + 'static>
        + Send
        + Sync
        + 'static
{
}

/// One device. Its [`Clock`] is the counter that the device stamps records with, in the device's own cycles.
///
/// All calls may be made from any thread at any time. None but [`wait_progress`](Device::wait_progress) blocks.
pub trait Device: Clock + Send + Sync + 'static {
    /// How the host reaches device memory.
    type Mem: SharedMemory;

    /// What kind of device this is, as reports name it: `sim`, `qemu-aarch64`, …
    fn name(&self) -> &'static str;

    /// The device's memory: RAM, register window and boot block.
    fn memory(&self) -> &Self::Mem;

    /// Where things lie.
    fn map(&self) -> DeviceMap;

    /// Copies device memory from `from` on into `into`.
    ///
    /// # Errors
    /// A range that is not mapped, or a transport that failed. `into` may then be half written.
    fn read(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        self.memory().read_bytes(from, into)
    }

    /// Copies `bytes` into device memory from `to` on.
    ///
    /// # Errors
    /// A range that is not mapped, or a transport that failed. The range may then be half written.
    fn write(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.memory().write_bytes(to, bytes)
    }

    /// Wakes the sequencer of `tpb`. Call it after the doorbell word was stored; a call for a TPB that the device does not
    /// have does nothing.
    fn ring_doorbell(&self, tpb: TpbId);

    /// Wakes every lane, asleep or parked at a gate. Call it after a store that lanes wait for: a gate flag, a free queue,
    /// a generation of the boot block.
    fn wake_lanes(&self);

    /// Progress so far: a free-running count that the device raises after it wrote a notification, finished an execution,
    /// published a full buffer or raised contention.
    fn progress(&self) -> u32;

    /// Blocks until [`progress`](Device::progress) differs from `seen` or `timeout` has passed, and returns the count.
    ///
    /// No wake-up is lost when `seen` was read before the caller looked at memory: progress made since then returns at once.
    fn wait_progress(&self, seen: u32, timeout: Duration) -> u32;
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
}
