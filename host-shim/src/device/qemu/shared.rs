//! The memory of a board that another process drives: looked at through the file that the two share, never written.
//!
//! ```text
//!   file, or /proc/PID/fd/N of whoever has it open ──reads──► link block ─► boot block ─► status block
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sluice_core::exec::link::LinkPlace;
use sluice_core::exec::vitals::StatusError;
use sluice_core::mem::{DevAddr, Fault};

use super::SHARED;
use crate::device::copy::{CopiedMemory, Ranges};
use crate::device::mapping::MEMORY_FILE;
use crate::device::status::DeviceStatus;

/// A board's memory that cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The process has no such file open, or is none.
    #[error("process {process} has the memory of no board open")]
    NoBoard {
        /// The process.
        process: u32,
    },
    /// No host has laid the memory out.
    #[error("{} is not the memory of a board: it does not begin with a link block", .path.display())]
    NoLink {
        /// The file.
        path: PathBuf,
    },
    /// The file ends before what the link block names.
    #[error("{} has {bytes} bytes, too few for {fault}", .path.display())]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Bytes that it has.
        bytes: u64,
        /// What was to be read.
        fault: Fault,
    },
    /// There is no status to be read.
    #[error("{}", .path.display())]
    Status {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: StatusError,
    },
}

/// The file, read only.
struct SharedFile(File);

impl Ranges for SharedFile {
    fn read(&self, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
        let outside = Fault::OutOfRange { at: from, bytes: into.len() as u64 };
        let offset = from.0.checked_sub(SHARED.0).ok_or(outside)?;
        self.0.read_exact_at(into, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => outside,
            _ => Fault::Transport { at: from },
        })
    }

    fn write(&self, to: DevAddr, bytes: &[u8]) -> Result<(), Fault> {
        Err(Fault::OutOfRange { at: to, bytes: bytes.len() as u64 })
    }
}

/// What the board says of itself whose memory is the file at `path`.
///
/// # Errors
/// [`SharedError`] says what the file lacks.
pub fn status_in(path: &Path) -> Result<DeviceStatus, SharedError> {
    let refused = |source| SharedError::File { path: path.into(), source };
    let file = File::open(path).map_err(refused)?;
    let bytes = file.metadata().map_err(refused)?.len();
    let memory = CopiedMemory::new(SharedFile(file));
    let of_fault = |fault| match fault {
        Fault::OutOfRange { .. } => SharedError::TooSmall { path: path.into(), bytes, fault },
        _ => SharedError::Status { path: path.into(), error: fault.into() },
    };
    let place = LinkPlace::read(&memory, SHARED).map_err(of_fault)?;
    let place = place.ok_or_else(|| SharedError::NoLink { path: path.into() })?;
    DeviceStatus::read(&memory, place.boot).map_err(|error| match error {
        StatusError::Fault(fault) => of_fault(fault),
        error => SharedError::Status { path: path.into(), error },
    })
}

/// The files that `process`, a host or QEMU itself, has open as memory of boards.
///
/// # Errors
/// [`SharedError`] when there is none, or no such process.
pub fn files_of(process: u32) -> Result<Vec<PathBuf>, SharedError> {
    let folder = PathBuf::from(format!("/proc/{process}/fd"));
    let entries = fs::read_dir(&folder).map_err(|source| SharedError::File { path: folder, source })?;
    let name = format!("/memfd:{MEMORY_FILE}");
    let is_memory =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with(&name));
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_memory).collect();
    files.sort();
    if files.is_empty() { Err(SharedError::NoBoard { process }) } else { Ok(files) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::mapping;
    use sluice_core::exec::vitals::{
        BUILD_BYTES, DeviceVitals, LaneVitals, ProcessorState, ProcessorVitals, STATUS_BYTES,
        STATUS_PROCESSORS, StatusHead,
    };
    use sluice_core::exec::{DeviceRange, status_block};
    use sluice_core::gate::Gate;
    use sluice_core::layout::SubsystemId;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_board_is_looked_at_through_the_file_of_another_process() {
        let boot = SHARED.offset(0x1_0000);
        let bytes = status_block(boot).0 - SHARED.0 + STATUS_BYTES;
        let file = mapping::memory_file(bytes).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let error = status_in(&path).unwrap_err();
        assert!(matches!(error, SharedError::NoLink { .. }), "{error}");

        let memory = mapping::map_file(SHARED, bytes, &file).unwrap();
        let ram = DeviceRange { base: SHARED, bytes: 0 };
        let place = LinkPlace { processors: 2, ram, registers: SHARED, boot };
        place.write(&memory, SHARED).unwrap();
        let error = status_in(&path).unwrap_err();
        assert!(
            matches!(error, SharedError::Status { error: StatusError::Absent { found: 0 }, .. }),
            "{error}"
        );

        let block = status_block(boot);
        let mut build = [0; BUILD_BYTES];
        build[..3].copy_from_slice(b"1.2");
        let head = StatusHead { lanes: 1, processors: 2, frequency_hz: 1_000, build };
        DeviceVitals::begin(&memory, block, &head).unwrap();
        let mut lane = LaneVitals::begin(&memory, block, 0, 0).unwrap();
        let processor = ProcessorVitals::begin(&memory, block, 0).unwrap();
        processor.show(ProcessorState::RUNNING);
        lane.park(Gate::Ready, Some(SubsystemId::Pmu), 4_000);
        lane.stay(6_000);
        ProcessorVitals::fault(&memory, block, 1, "out of luck").unwrap();
        assert!(
            files_of(std::process::id())
                .unwrap()
                .iter()
                .any(|file| file.ends_with(path.file_name().unwrap()))
        );
        let status = status_in(&path).unwrap();
        assert_eq!((&*status.phase, &*status.build), ("faulted", "1.2"));
        let parked = status.lanes[0].parked.as_ref().unwrap();
        assert_eq!((&*parked.gate, parked.subsystem.as_deref()), ("rq", Some("pmu")));
        assert_eq!((parked.since_cycles, parked.lasted_ns), (4_000, 2_000_000_000));
        assert_eq!(status.faults().collect::<Vec<_>>(), [(1, "out of luck")]);

        // A block whose last entry lies behind the end of the file.
        let boot = boot.offset(0x200);
        LinkPlace { boot, ..place }.write(&memory, SHARED).unwrap();
        let head = StatusHead { processors: STATUS_PROCESSORS, ..head };
        DeviceVitals::begin(&memory, status_block(boot), &head).unwrap();
        let error = status_in(&path).unwrap_err();
        assert!(matches!(error, SharedError::TooSmall { bytes: had, .. } if had == bytes), "{error}");
    }
}
