//! Appending to a capture, from any thread.
//!
//! One segment is one `writev(2)` of its head and the caller's bytes: nothing is copied and nothing allocated. The
//! checksum of the payload is computed before the lock is taken, so collectors wait for one another only while the
//! kernel copies.

use std::fs::{self, File};
use std::io::{self, BufReader, IoSlice, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zerocopy::{Immutable, IntoBytes};

use super::controls::ControlNote;
use super::folder::{self, RunFolder};
use super::format::{ALIGN_BYTES, FileHeader, HEADER_BYTES, Kind, MAX_PAYLOAD_BYTES, SegmentHead};
use super::payload::{
    BufferHeader, ClockPair, DevicePhaseNote, FreezeEvent, HostPhase, LossNote, Manifest, PayloadHeader,
    Summary, TransitNote, WaitNote,
};
use super::reader::{FileView, ReadError, Reader};

/// What a capture is written to.
pub trait Storage: Write + Send {
    /// Forgets everything behind the first `bytes` bytes and goes on from there.
    fn cut_to(&mut self, bytes: u64) -> io::Result<()>;
}

impl Storage for File {
    fn cut_to(&mut self, bytes: u64) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        self.set_len(bytes)?;
        self.seek(SeekFrom::Start(bytes)).map(drop)
    }
}

/// A capture in memory.
impl Storage for Vec<u8> {
    fn cut_to(&mut self, bytes: u64) -> io::Result<()> {
        self.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(())
    }
}

/// An open capture.
///
/// Blocks: every method waits for the kernel to take the bytes, and for other threads that are appending.
#[derive(Debug)]
pub struct Writer<S = File> {
    state: Mutex<State<S>>,
}

#[derive(Debug)]
struct State<S> {
    storage: S,
    next_sequence: u64,
    whole_bytes: u64,
    /// A failed append could not be cut off: nothing may follow it.
    torn: bool,
}

impl Writer<File> {
    /// Creates the capture `name` in `folder`, in place of all artefacts that an earlier run left there; see the module
    /// text of [`capture`](super) for how.
    pub fn create(folder: &RunFolder, name: &str, header: &FileHeader) -> io::Result<Self> {
        let staged = folder::Staged::create(&folder.path_of(name), 0o600)?;
        let writer = Self::start(staged.file().try_clone()?, header)?;
        folder.clear()?;
        staged.commit()?;
        Ok(writer)
    }

    /// Reads what has been written so far, from the very file: whatever has its name by now.
    pub fn reader(&self) -> Result<Reader<BufReader<FileView>>, ReadError> {
        let file = self.lock().storage.try_clone()?;
        Reader::new(BufReader::with_capacity(1 << 16, FileView::new(file)))
    }

    /// Whether the file is the one that stands at `path`.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            there => Ok(folder::is_same(&there?, &self.lock().storage.metadata()?)),
        }
    }
}

impl<S: Storage> Writer<S> {
    /// Begins a capture on empty storage.
    pub fn start(mut storage: S, header: &FileHeader) -> io::Result<Self> {
        storage.write_all(&header.encode())?;
        let state = State { storage, next_sequence: 0, whole_bytes: HEADER_BYTES as u64, torn: false };
        Ok(Self { state: Mutex::new(state) })
    }

    /// Appends one buffer. When this returns `Ok`, the records survive the death of the process.
    ///
    /// # Errors
    ///
    /// What the kernel says; the capture then still ends with its last whole segment and can be appended to.
    /// `InvalidInput` when `records` is not what `header` states.
    pub fn append_buffer(&self, header: &BufferHeader, records: &[u8]) -> io::Result<()> {
        if header.records_bytes() != records.len() as u64 {
            return Err(invalid(format!(
                "{} records of {} bytes stated, {} bytes given",
                header.records,
                header.record_bytes,
                records.len()
            )));
        }
        self.append(Kind::BUFFER, header.as_bytes(), records)
    }

    /// Appends bytes of a payload; see [`append_buffer`](Writer::append_buffer) for what `Ok` and errors mean.
    pub fn append_payload(&self, header: &PayloadHeader, bytes: &[u8]) -> io::Result<()> {
        self.append(Kind::PAYLOAD, header.as_bytes(), bytes)
    }

    /// Appends freezes that have been released.
    pub fn append_freezes(&self, freezes: &[FreezeEvent]) -> io::Result<()> {
        self.append_items(Kind::FREEZES, freezes)
    }

    /// Appends readings of both clocks.
    pub fn append_clock_pairs(&self, pairs: &[ClockPair]) -> io::Result<()> {
        self.append_items(Kind::CLOCK_PAIRS, pairs)
    }

    /// Appends phases that have ended.
    pub fn append_host_phases(&self, phases: &[HostPhase]) -> io::Result<()> {
        self.append_items(Kind::HOST_PHASES, phases)
    }

    /// Appends what lanes of the device went through.
    pub fn append_device_phases(&self, phases: &[DevicePhaseNote]) -> io::Result<()> {
        self.append_items(Kind::DEVICE_PHASES, phases)
    }

    /// Appends waits that have ended.
    pub fn append_waits(&self, waits: &[WaitNote]) -> io::Result<()> {
        self.append_items(Kind::WAITS, waits)
    }

    /// Appends what became of buffers.
    pub fn append_transits(&self, transits: &[TransitNote]) -> io::Result<()> {
        self.append_items(Kind::TRANSITS, transits)
    }

    /// Appends what is to be recorded from when on.
    pub fn append_controls(&self, controls: &[ControlNote]) -> io::Result<()> {
        self.append_items(Kind::CONTROLS, controls)
    }

    /// Appends losses.
    pub fn append_losses(&self, losses: &[LossNote]) -> io::Result<()> {
        self.append_items(Kind::LOSSES, losses)
    }

    /// Appends the manifest.
    pub fn append_manifest(&self, manifest: &Manifest) -> io::Result<()> {
        self.append(Kind::MANIFEST, &[], &serde_json::to_vec(manifest)?)
    }

    /// Appends the summary; of several the last one counts.
    pub fn append_summary(&self, summary: &Summary) -> io::Result<()> {
        self.append(Kind::END, &[], &serde_json::to_vec(summary)?)
    }

    /// Bytes of the header and all whole segments.
    pub fn bytes(&self) -> u64 {
        self.lock().whole_bytes
    }

    /// What was written to.
    pub fn into_storage(self) -> S {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).storage
    }

    /// As many items per segment as fit; no segment when there are none.
    fn append_items<T: IntoBytes + Immutable>(&self, kind: Kind, items: &[T]) -> io::Result<()> {
        items
            .chunks(MAX_PAYLOAD_BYTES / size_of::<T>())
            .try_for_each(|chunk| self.append(kind, &[], chunk.as_bytes()))
    }

    fn append(&self, kind: Kind, front: &[u8], rest: &[u8]) -> io::Result<()> {
        let payload_bytes = front.len() + rest.len();
        let limit = kind.max_payload_bytes();
        if payload_bytes > limit {
            return Err(invalid(format!("{kind} segment of {payload_bytes} bytes, at most {limit}")));
        }
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(front);
        checksum.update(rest);
        let checksum = checksum.finalize();
        self.lock().append(kind, front, rest, checksum)
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        // A thread that panicked while appending left whole segments or a torn mark, both fit to go on from.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Storage> State<S> {
    fn append(&mut self, kind: Kind, front: &[u8], rest: &[u8], checksum: u32) -> io::Result<()> {
        if self.torn {
            return Err(io::Error::other(format!(
                "the capture is torn at byte {}: an append failed and could not be undone",
                self.whole_bytes
            )));
        }
        let head = SegmentHead::new(kind, self.next_sequence, (front.len() + rest.len()) as u32, checksum);
        let padding = [0; ALIGN_BYTES];
        let mut slices = [
            IoSlice::new(head.as_bytes()),
            IoSlice::new(front),
            IoSlice::new(rest),
            IoSlice::new(&padding[..head.padding_bytes()]),
        ];
        let segment_bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        self.torn = true;
        match write_all_vectored(&mut self.storage, &mut slices) {
            Ok(()) => {
                self.torn = false;
                self.next_sequence += 1;
                self.whole_bytes += segment_bytes as u64;
                Ok(())
            }
            Err(error) => {
                self.torn = self.storage.cut_to(self.whole_bytes).is_err();
                Err(error)
            }
        }
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn write_all_vectored(out: &mut impl Write, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match out.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use sluice_core::layout::{ArchId, PoolKind};

    use super::super::format::RunId;
    use super::super::payload::{Pool, Subsystem};
    use super::super::reader::Reader;
    use super::super::segment::Segment;
    use super::*;

    pub(crate) const HEADER: FileHeader =
        FileHeader { run: RunId(7), arch: ArchId::A2a3, clock_hz: 50_000_000, started_unix_ns: 1 };

    pub(crate) const POOL: Pool =
        Pool { subsystem: Subsystem::SWIMLANE, kind: PoolKind::AICPU_TASK, instance: 2 };

    /// Storage of limited room that takes a few bytes at a time and is interrupted in between.
    #[derive(Debug, Default)]
    struct Small {
        bytes: Vec<u8>,
        room: usize,
        calls: usize,
        cut_fails: bool,
    }

    impl Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            if self.calls.is_multiple_of(3) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let taken = bytes.len().min(self.room - self.bytes.len()).min(11);
            if taken == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Storage for Small {
        fn cut_to(&mut self, bytes: u64) -> io::Result<()> {
            if self.cut_fails {
                return Err(io::ErrorKind::Other.into());
            }
            self.bytes.truncate(bytes as usize);
            Ok(())
        }
    }

    fn small(room: usize) -> Writer<Small> {
        Writer::start(Small { room, ..Small::default() }, &HEADER).unwrap()
    }

    fn buffers(bytes: &[u8]) -> Vec<(BufferHeader, Vec<u8>)> {
        let mut reader = Reader::new(io::Cursor::new(bytes)).unwrap();
        let mut found = Vec::new();
        while let Some(segment) = reader.read().unwrap() {
            let Segment::Buffer(header, records) = segment else { panic!("{segment:?}") };
            found.push((header, records.to_vec()));
        }
        assert_eq!(reader.damages(), []);
        found
    }

    #[test]
    fn short_and_interrupted_writes_make_whole_segments() {
        let writer = small(10_000);
        let written: Vec<_> = (0..9)
            .map(|seq| (BufferHeader::new(POOL, seq, seq, 3), vec![seq as u8; 3 * seq as usize]))
            .collect();
        for (header, records) in &written {
            writer.append_buffer(header, records).unwrap();
        }
        let bytes = writer.into_storage().bytes;
        assert_eq!(buffers(&bytes), written);
    }

    #[test]
    fn a_full_disk_leaves_whole_segments_and_a_usable_writer() {
        let writer = small(400);
        let header = BufferHeader::new(POOL, 0, 2, 32);
        let mut whole = 0;
        while writer.append_buffer(&header, &[5; 64]).is_ok() {
            whole += 1;
        }
        let error = writer.append_buffer(&header, &[5; 64]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let stored_bytes = writer.lock().storage.bytes.len();
        assert_eq!(stored_bytes as u64, writer.bytes());
        writer.lock().storage.room = 4000;
        writer.append_buffer(&header, &[6; 64]).unwrap();
        let bytes = writer.into_storage().bytes;
        assert_eq!(buffers(&bytes).len(), whole + 1);
    }

    #[test]
    fn nothing_follows_a_tear_that_could_not_be_undone() {
        let writer = small(150);
        let header = BufferHeader::new(POOL, 0, 2, 32);
        writer.lock().storage.cut_fails = true;
        assert_eq!(writer.append_buffer(&header, &[0; 64]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        writer.lock().storage.room = 4000;
        let error = writer.append_buffer(&header, &[0; 64]).unwrap_err();
        assert!(error.to_string().contains("torn at byte 64"), "{error}");
    }

    #[test]
    fn a_capture_is_read_back_from_its_file_whatever_becomes_of_the_name() {
        let path = std::env::temp_dir().join(format!("sluice-writer-{}", std::process::id()));
        let folder = RunFolder::prepare(&path, &["capture", "trace"]).unwrap();
        fs::write(folder.path_of("trace"), "of an earlier run").unwrap();
        let writer = Writer::create(&folder, "capture", &HEADER).unwrap();
        assert!(!folder.path_of("trace").exists());
        let capture = folder.path_of("capture");
        assert!(writer.is_at(&capture).unwrap());
        let header = BufferHeader::new(POOL, 0, 1, 32);
        writer.append_buffer(&header, &[1; 32]).unwrap();
        fs::remove_file(&capture).unwrap();
        assert!(!writer.is_at(&capture).unwrap());
        fs::write(&capture, "another's").unwrap();
        assert!(!writer.is_at(&capture).unwrap());
        for records in 1..=2 {
            let mut reader = writer.reader().unwrap();
            for _ in 0..records {
                assert!(matches!(reader.read().unwrap(), Some(Segment::Buffer(..))));
            }
            assert!(reader.read().unwrap().is_none());
            assert_eq!(reader.damages(), []);
            // Reading moves nothing for the writer.
            let header = BufferHeader::new(POOL, records, 1, 32);
            writer.append_buffer(&header, &[2; 32]).unwrap();
        }
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn what_does_not_fit_a_segment_is_refused() {
        let writer = small(400);
        let error = writer.append_buffer(&BufferHeader::new(POOL, 0, 2, 32), &[0; 63]).unwrap_err();
        assert_eq!(error.to_string(), "2 records of 32 bytes stated, 63 bytes given");
        let header = BufferHeader::new(POOL, 0, MAX_PAYLOAD_BYTES as u32, 1);
        let error = writer.append_buffer(&header, &vec![0; MAX_PAYLOAD_BYTES]).unwrap_err();
        assert_eq!(error.to_string(), "buffer segment of 16777248 bytes, at most 16777216");
    }

    #[test]
    fn long_lists_are_split_and_empty_ones_leave_nothing() {
        let writer = Writer::start(Vec::new(), &HEADER).unwrap();
        writer.append_clock_pairs(&[]).unwrap();
        assert_eq!(writer.bytes(), HEADER_BYTES as u64);
        let per_segment = MAX_PAYLOAD_BYTES / size_of::<ClockPair>();
        let pair = ClockPair { device_cycles: 1, host_ns: 2, uncertainty_ns: 3 };
        writer.append_clock_pairs(&vec![pair; per_segment + 1]).unwrap();
        let bytes = writer.into_storage();
        let mut reader = Reader::new(io::Cursor::new(&bytes)).unwrap();
        let mut counts = Vec::new();
        while let Some(Segment::ClockPairs(pairs)) = reader.read().unwrap() {
            counts.push(pairs.len());
        }
        assert_eq!(counts, [per_segment, 1]);
    }
}
