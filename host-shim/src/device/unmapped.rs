//! A device whose memory is reached by ranges: a mapped one seen as if it were not, or one behind a transport of its own.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use sluice_core::exec::DeviceMap;
use sluice_core::mem::{Clock, CopyMemory, DevAddr, Fault, Memory, Words};
use sluice_core::mmio::TpbId;
use zerocopy::IntoBytes;

use super::copy::{CopiedMemory, Ranges};
use super::{Device, Driver};
use crate::neff::Target;

/// Ranges up to a line, of whole words, are control words that the device may be writing; longer ones are payload, which one
/// side owns.
const MOST_WORDS: usize = 16;

/// The memory of a mapped device, range by range.
#[derive(Debug)]
pub struct MappedRanges<D>(Arc<D>);

impl<D> MappedRanges<D> {
    /// The memory of `device`.
    pub fn new(device: Arc<D>) -> Self {
        Self(device)
    }
}

impl<D: Device> Ranges for MappedRanges<D> {
    fn read(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        match whole_words(from, into.len()) {
            Some(count) => {
                let words = self.0.memory().words(from, count as u32)?;
                let mut read = [0u32; MOST_WORDS];
                for (index, word) in (0..).zip(&mut read[..count]) {
                    *word = words.get(index).to_le();
                }
                into.copy_from_slice(read[..count].as_bytes());
            }
            None => self.0.memory().read_bytes(from, into)?,
        }
        // Partner of the device's release stores: later calls read nothing older.
        fence(Ordering::Acquire);
        Ok(())
    }

    fn write(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        // Partner of the device's acquire loads: whoever finds this write finds the earlier ones.
        fence(Ordering::Release);
        let Some(count) = whole_words(to, bytes.len()) else { return self.0.memory().write_bytes(to, bytes) };
        let words = self.0.memory().words(to, count as u32)?;
        let mut written = [0u32; MOST_WORDS];
        written[..count].as_mut_bytes().copy_from_slice(bytes);
        for (index, word) in (0..).zip(&written[..count]) {
            words.set(index, u32::from_le(*word));
        }
        Ok(())
    }
}

fn whole_words(at: DevAddr, bytes: usize) -> Option<usize> {
    let count = bytes / size_of::<u32>();
    let whole = at.0.is_multiple_of(4) && bytes.is_multiple_of(4) && (1..=MOST_WORDS).contains(&count);
    whole.then_some(count)
}

/// A device whose memory is reached by ranges only, and all else as that of the device behind it.
#[derive(Debug)]
pub struct Unmapped<D, R = MappedRanges<D>> {
    device: Arc<D>,
    memory: CopiedMemory<R>,
}

impl<D: Device> Unmapped<D> {
    /// `device`, without its mapping.
    pub fn new(device: Arc<D>) -> Self {
        let ranges = MappedRanges::new(Arc::clone(&device));
        Self::over(device, ranges)
    }
}

impl<D: Device, R: Ranges> Unmapped<D, R> {
    /// `device`, its memory reached through `ranges`.
    pub fn over(device: Arc<D>, ranges: R) -> Self {
        Self { device, memory: CopiedMemory::new(ranges) }
    }
}

impl<D: Device, R: Ranges> Clock for Unmapped<D, R> {
    fn now_cycles(&self) -> u64 {
        self.device.now_cycles()
    }

    fn frequency_hz(&self) -> u64 {
        self.device.frequency_hz()
    }
}

impl<D: Device, R: Ranges> Device for Unmapped<D, R> {
    type Mem = CopiedMemory<R>;

    fn name(&self) -> &'static str {
        self.device.name()
    }

    fn target(&self) -> Target {
        self.device.target()
    }

    fn memory(&self) -> &Self::Mem {
        &self.memory
    }

    fn map(&self) -> DeviceMap {
        self.device.map()
    }

    fn driver(&self) -> &Driver {
        self.device.driver()
    }

    fn ring_doorbell(&self, tpb: TpbId) {
        self.device.ring_doorbell(tpb);
    }

    fn wake_lanes(&self) {
        self.device.wake_lanes();
    }

    fn fate(&self) -> Option<String> {
        self.device.fate()
    }

    fn progress(&self) -> u32 {
        self.device.progress()
    }

    fn wait_progress(&self, seen: u32, timeout: Duration) -> u32 {
        self.device.wait_progress(seen, timeout)
    }
}
