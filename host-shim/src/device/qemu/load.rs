//! Images for a board with a boot stub: staged in the shared memory, which is cleared before and after.
//!
//! ```text
//!   host                                      board
//!   staged ─► asked                     ────► stub: checks, copies, starts
//!   ready? ◄────────────────────────────────  image: its services
//!   wanted back ────────────────────────────► image: processors off, the first back in the stub
//!   clears everything ◄────────────────────── stub: waiting
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use sluice_core::exec::loader::{Answer, HostLoader, LOADER_BYTES, LOADER_OFFSET, Staged};
use sluice_core::mem::{CopyMemory, DevAddr};

use super::{LINK_BYTES, MappedMemory, PAGE_BYTES, QemuDevice, QemuError, SHARED, mapping};

impl QemuDevice {
    /// Stops the firmware and has the boot stub start `image` in its place; nothing of what the other left in the shared memory
    /// is there any more when it begins. Sessions and models of the device have ended before.
    ///
    /// # Errors
    /// [`QemuError`]; the board is gone then.
    pub fn reload(mut self, image: &Path) -> Result<Self, QemuError> {
        let bound = self.plan.bound;
        if !self.plan.has_stub {
            return Err(QemuError::NoStub { after: Duration::ZERO });
        }
        let loader = HostLoader::attach(&self.memory, SHARED)?;
        let begun = loader.waiting();
        loader.ask_back();
        self.ring();
        self.wait_for_stub(&loader, begun, bound)?;
        clear(&self.memory, self.plan.bytes)
            .map_err(|source| QemuError::Map { bytes: self.plan.bytes, source })?;
        self.plan.lay_out(&self.memory)?;
        self.to_device = super::Ringer::to_device(&self.memory, SHARED)?;
        self.load(image, begun)?;
        self.take_up()?;
        Ok(self)
    }

    /// Has the stub start `image`, once it has begun to wait more often than `begun` times.
    pub(super) fn load(&self, image: &Path, begun: u32) -> Result<(), QemuError> {
        let bytes =
            std::fs::read(image).map_err(|source| QemuError::Image { image: image.to_path_buf(), source })?;
        let loader = HostLoader::attach(&self.memory, SHARED)?;
        self.wait_for_stub(&loader, begun, self.plan.bound)?;
        let at = self.map.ram.base;
        self.memory.write_bytes(at, &bytes)?;
        loader.ask(Staged { at: at.0, bytes: bytes.len() as u64 })?;
        let started = Instant::now();
        let answer = loop {
            if let Some(answer) = loader.answer()? {
                break answer;
            }
            self.pause(started, self.plan.bound)?;
        };
        // The image finds memory as it would without a stub.
        self.memory.write_bytes(at, &vec![0; bytes.len()])?;
        match answer {
            Answer::Starts => Ok(()),
            Answer::Refused(bad) => Err(QemuError::Refused { image: image.to_path_buf(), bad }),
            Answer::Unknown { code } => Err(QemuError::RefusedByCode { code }),
        }
    }

    fn wait_for_stub(
        &self,
        loader: &HostLoader<MappedMemory>,
        begun: u32,
        bound: Duration,
    ) -> Result<(), QemuError> {
        let started = Instant::now();
        while loader.waiting() == begun {
            self.pause(started, bound)?;
        }
        Ok(())
    }

    /// One round of a wait for the stub, which rings no bell.
    fn pause(&self, started: Instant, bound: Duration) -> Result<(), QemuError> {
        if let Some(how) = self.board.ended() {
            return Err(QemuError::Ended(how));
        }
        let after = started.elapsed();
        if after >= bound {
            return Err(QemuError::NoStub { after });
        }
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }
}

/// Clears `bytes` bytes of shared memory, all but the loader block.
fn clear(memory: &MappedMemory, bytes: u64) -> std::io::Result<()> {
    let failed = |_| std::io::ErrorKind::InvalidInput;
    let behind = SHARED.offset(LOADER_OFFSET + LOADER_BYTES);
    let zero = |at: DevAddr, bytes: u64| memory.write_bytes(at, &vec![0; bytes as usize]).map_err(failed);
    zero(SHARED, LOADER_OFFSET)?;
    zero(behind, PAGE_BYTES - LOADER_OFFSET - LOADER_BYTES)?;
    mapping::discard(memory, SHARED.offset(PAGE_BYTES), bytes - PAGE_BYTES)
}

const _: () = assert!(LINK_BYTES <= LOADER_OFFSET && LOADER_OFFSET + LOADER_BYTES <= PAGE_BYTES);
