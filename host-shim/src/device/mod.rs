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

pub(crate) mod claim;
pub mod copy;
pub mod heap;
#[cfg(any(feature = "sim", feature = "qemu"))]
mod mapping;
pub(crate) mod process;
#[cfg(any(feature = "sim", feature = "qemu"))]
mod progress;
#[cfg(feature = "qemu")]
pub mod qemu;
#[cfg(feature = "sim")]
pub mod sim;
pub mod status;
pub mod unmapped;

use std::time::Duration;

pub use claim::{Driven, Driver};
pub use sluice_core::exec::{DeviceMap, DeviceRange};
use sluice_core::mem::{Clock, CopyMemory, DevAddr, Fault, Memory};
use sluice_core::mmio::TpbId;

use crate::neff::Target;

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

    /// The architecture whose models it takes; [`Target::Any`] takes them all.
    fn target(&self) -> Target;

    /// The device's memory: RAM, register window and boot block.
    fn memory(&self) -> &Self::Mem;

    /// Where things lie.
    fn map(&self) -> DeviceMap;

    /// Who drives its TPBs, as units note it: a [`Driver::nobody`] that the device was made with.
    fn driver(&self) -> &Driver;

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

    /// What became of it, if it is known not to run any more: whoever waits for it waits in vain.
    fn fate(&self) -> Option<String> {
        None
    }

    /// Progress so far: a free-running count that the device raises after it wrote a notification, finished an execution,
    /// published a full buffer or raised contention.
    fn progress(&self) -> u32;

    /// Blocks until [`progress`](Device::progress) differs from `seen` or `timeout` has passed, and returns the count.
    ///
    /// No wake-up is lost when `seen` was read before the caller looked at memory: progress made since then returns at once.
    fn wait_progress(&self, seen: u32, timeout: Duration) -> u32;
}
