//! Where the bytes of a load go: a device, or, for a plan, nowhere.

use sluice_core::mem::{DevAddr, Fault};

use crate::device::Device;

/// Takes bytes at device addresses.
pub(super) trait Sink: Sync {
    /// Puts `bytes` from `to` on.
    fn put(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault>;
}

impl<D: Device> Sink for D {
    fn put(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.write(to, bytes)
    }
}
