//! Who drives the TPBs of a device: one unit at a time.
//!
//! ```text
//!   free ──claim──► driven ──dropped────► free
//!                     └─────left running──► for ever
//! ```
//!
//! A unit counts on from where the sequencers stand, so that a second one beside it would make both wrong.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::Device;

const FREE: u8 = 0;
const DRIVEN: u8 = 1;
const LEFT_RUNNING: u8 = 2;

/// What a device knows of the unit that drives its TPBs. Each device has one, and otherwise leaves it alone.
#[derive(Debug)]
pub struct Driver {
    state: AtomicU8,
    device: DeviceId,
}

/// Tells devices of this process apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceId(u64);

impl Driver {
    /// That of a device that nobody drives.
    pub fn nobody() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { state: AtomicU8::new(FREE), device: DeviceId(NEXT.fetch_add(1, Ordering::Relaxed)) }
    }

    /// Whose it is.
    pub(crate) fn device(&self) -> DeviceId {
        self.device
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self::nobody()
    }
}

/// TPBs that can't be driven.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Driven {
    /// Another unit has not ended.
    #[error("the device's TPBs are in use by another unit")]
    Now,
    /// A unit has ended and what it started has not.
    #[error(
        "the device's TPBs may still run what an earlier unit started; that needs the device to be made anew"
    )]
    LeftRunning,
}

/// The right to drive the TPBs of a device. Dropping it lets others.
pub(crate) struct Claim<D: Device>(Arc<D>);

impl<D: Device> Claim<D> {
    /// The claim, unless another has it.
    pub(crate) fn of(device: &Arc<D>) -> Result<Self, Driven> {
        let state = &device.driver().state;
        match state.compare_exchange(FREE, DRIVEN, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Self(Arc::clone(device))),
            Err(LEFT_RUNNING) => Err(Driven::LeftRunning),
            Err(_) => Err(Driven::Now),
        }
    }

    /// Ends the claim with the TPBs at work.
    pub(crate) fn leave_running(self) {
        self.0.driver().state.store(LEFT_RUNNING, Ordering::Relaxed);
        std::mem::forget(self);
    }
}

impl<D: Device> Drop for Claim<D> {
    fn drop(&mut self) {
        self.0.driver().state.store(FREE, Ordering::Release);
    }
}

impl<D: Device> fmt::Debug for Claim<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.0.name()).finish()
    }
}
