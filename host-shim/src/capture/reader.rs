//! Walking through a capture, damaged or not.
//!
//! ```text
//!  read head ── sound? ── yes ── payload fits the file? ── checksum right? ── yes ── deliver
//!     ▲           │ no                   │ no                   │ no
//!     │           ▼                      ▼                      ▼
//!     └── 8 bytes on, look for sync   torn tail: end      note, pass over
//! ```
//!
//! What can be read is delivered, the rest becomes a [`Damage`] with offset and cause. Memory is one payload, grown
//! by bytes that were really there and never by a length that the file states.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use zerocopy::FromBytes;

use super::damage::{Damage, DamageCause};
use super::format::{ALIGN_BYTES, FileHeader, HEAD_BYTES, HEADER_BYTES, HeaderError, Kind, SegmentHead};
use super::segment::{Content, Segment};

/// Most damages kept; more are only counted.
pub const MAX_DAMAGES: usize = 64;

/// Why bytes cannot be read as a capture at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// They are no capture, or none this version reads.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

/// Why a file cannot be read as a capture at all.
#[derive(Debug, thiserror::Error)]
#[error("cannot read capture {}: {error}", path.display())]
pub struct OpenError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub error: ReadError,
}

/// An open file with a place of its own to read at, so that a writer of the same file is not disturbed.
#[derive(Debug)]
pub struct FileView {
    file: File,
    offset: u64,
}

impl FileView {
    /// At the start of `file`.
    pub fn new(file: File) -> Self {
        Self { file, offset: 0 }
    }
}

impl Read for FileView {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read_at(bytes, self.offset)?;
        self.offset += got as u64;
        Ok(got)
    }
}

impl Seek for FileView {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let offset = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.offset.checked_add_signed(by),
        };
        self.offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.offset)
    }
}

/// Reads a capture segment by segment.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    header: FileHeader,
    file_bytes: u64,
    offset: u64,
    expected_sequence: u64,
    payload: Vec<u8>,
    damages: Vec<Damage>,
    damage_count: u64,
}

impl Reader<BufReader<File>> {
    /// Opens a capture file.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let open = || Self::new(BufReader::with_capacity(1 << 16, File::open(path)?));
        open().map_err(|error| OpenError { path: path.into(), error })
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the header of a capture, from the start of `source`.
    pub fn new(mut source: R) -> Result<Self, ReadError> {
        let file_bytes = source.seek(SeekFrom::End(0))?;
        source.rewind()?;
        let mut bytes = [0; HEADER_BYTES];
        let got = read_up_to(&mut source, &mut bytes)?;
        Ok(Self {
            source,
            header: FileHeader::decode(&bytes[..got])?,
            file_bytes,
            offset: HEADER_BYTES as u64,
            expected_sequence: 0,
            payload: Vec::new(),
            damages: Vec::new(),
            damage_count: 0,
        })
    }

    /// What the start of the file says.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The first [`MAX_DAMAGES`] damages met so far, in file order.
    pub fn damages(&self) -> &[Damage] {
        &self.damages
    }

    /// Damages met so far, those not kept included.
    pub fn damage_count(&self) -> u64 {
        self.damage_count
    }

    /// Bytes of the file that have been passed.
    pub fn position_bytes(&self) -> u64 {
        self.offset
    }

    /// Starts again behind the header; damages are forgotten.
    pub fn rewind(&mut self) -> io::Result<()> {
        self.offset = HEADER_BYTES as u64;
        self.source.seek(SeekFrom::Start(self.offset))?;
        self.expected_sequence = 0;
        self.damages.clear();
        self.damage_count = 0;
        Ok(())
    }

    /// The next segment, `None` at the end.
    ///
    /// # Errors
    ///
    /// Only what the system says about reading; damage in the file is noted and passed over.
    pub fn read(&mut self) -> io::Result<Option<Segment<'_>>> {
        self.read_of(|_| true)
    }

    /// The next segment of a kind that `wanted` accepts; others are passed over without a look at their payload.
    pub fn read_of(&mut self, wanted: impl Fn(Kind) -> bool) -> io::Result<Option<Segment<'_>>> {
        loop {
            let start = self.offset;
            let Some(head) = self.next_head()? else { return Ok(None) };
            let stated = u64::from(head.payload_bytes);
            if !wanted(head.kind) {
                self.pass(stated + head.padding_bytes() as u64)?;
                continue;
            }
            self.payload.clear();
            let got = self.source.by_ref().take(stated).read_to_end(&mut self.payload)? as u64;
            self.offset += got;
            if let Some(missing @ 1..) = stated.checked_sub(got) {
                // The file shrank while it was being read.
                self.note(start, self.offset - start, DamageCause::Torn { missing });
                return Ok(None);
            }
            self.pass(head.padding_bytes() as u64)?;
            let (sequence, kind) = (head.sequence, head.kind);
            if crc32fast::hash(&self.payload) != head.payload_checksum {
                self.note(start, self.offset - start, DamageCause::Checksum { sequence, kind });
                continue;
            }
            match Content::of(kind, &self.payload) {
                Ok(content) => return Ok(Some(content.with(&self.payload))),
                Err(reason) => {
                    let cause = DamageCause::Malformed { sequence, kind, reason };
                    self.note(start, self.offset - start, cause);
                }
            }
        }
    }

    /// Finds the next head whose payload lies inside the file.
    fn next_head(&mut self) -> io::Result<Option<SegmentHead>> {
        let mut bytes = [0; HEAD_BYTES];
        let mut lost_since = None;
        let mut have = 0;
        loop {
            let got = read_up_to(&mut self.source, &mut bytes[have..])?;
            have += got;
            self.offset += got as u64;
            if have < HEAD_BYTES {
                let start = self.offset - have as u64;
                if let Some(since) = lost_since {
                    self.note(since, self.offset - since, DamageCause::NoSegment);
                } else if have > 0 {
                    self.note(start, have as u64, DamageCause::Torn { missing: (HEAD_BYTES - have) as u64 });
                }
                return Ok(None);
            }
            let start = self.offset - HEAD_BYTES as u64;
            let head = SegmentHead::read_from_bytes(&bytes).expect("a head is that long");
            if !head.is_sound() {
                lost_since.get_or_insert(start);
                bytes.copy_within(ALIGN_BYTES.., 0);
                have = HEAD_BYTES - ALIGN_BYTES;
                continue;
            }
            if let Some(since) = lost_since.take() {
                self.note(since, start - since, DamageCause::NoSegment);
            }
            let (stated, limit) = (head.payload_bytes, head.kind.max_payload_bytes());
            if stated as usize > limit {
                self.note(start, HEAD_BYTES as u64, DamageCause::TooLong { stated, limit });
                have = 0;
                continue;
            }
            let there = self.file_bytes.saturating_sub(self.offset);
            if let Some(missing @ 1..) = u64::from(head.payload_bytes).checked_sub(there) {
                self.note(start, HEAD_BYTES as u64 + there, DamageCause::Torn { missing });
                self.pass(there)?;
                return Ok(None);
            }
            let (expected, found) = (self.expected_sequence, head.sequence);
            if expected != found {
                self.note(start, 0, DamageCause::Sequence { expected, found });
            }
            self.expected_sequence = found.saturating_add(1);
            return Ok(Some(head));
        }
    }

    /// Passes over bytes, as many of them as the file has.
    fn pass(&mut self, bytes: u64) -> io::Result<()> {
        let bytes = bytes.min(self.file_bytes.saturating_sub(self.offset));
        self.source.seek_relative(bytes as i64)?;
        self.offset += bytes;
        Ok(())
    }

    fn note(&mut self, offset: u64, bytes: u64, cause: DamageCause) {
        self.damage_count += 1;
        if self.damages.len() < MAX_DAMAGES {
            self.damages.push(Damage { offset, bytes, cause });
        }
    }
}

/// Fills `bytes` as far as the source goes.
fn read_up_to(source: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match source.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;
    use sluice_core::layout::device_phase::DevicePhase;
    use sluice_core::layout::extension::WindowUnit;
    use zerocopy::IntoBytes;

    use super::super::controls::{ControlNote, ControlStage};
    use super::super::payload::{
        BufferHeader, ClockPair, DevicePhaseNote, FreezeEvent, Gate, HostPhase, LossCause, LossNote,
        Manifest, Phase, Subsystem, Summary, TransitNote, WaitNote,
    };
    use super::super::writer::tests::{HEADER, POOL};
    use super::super::writer::{Storage, Writer};
    use super::*;
    use crate::report::Report;

    const CONTROL: ControlNote = ControlNote {
        subsystem: Subsystem::PMU,
        number: 2,
        stage: ControlStage::FOLLOWED,
        level: 1,
        sample_every: 3,
        window_unit: WindowUnit::EXECUTIONS,
        window_start: 4,
        window_stop: 5,
        host_ns: 6,
        device_cycles: 7,
    };

    /// Every kind of segment, the buffers among them in between.
    fn sample() -> Vec<u8> {
        let writer = Writer::start(Vec::new(), &HEADER).unwrap();
        let manifest = Manifest { device: "sim".into(), lanes: 2, ..Manifest::default() };
        writer.append_manifest(&manifest).unwrap();
        for seq in 0..3 {
            writer.append_buffer(&BufferHeader::new(POOL, seq, 5, 32), &[seq as u8; 160]).unwrap();
        }
        let pair = ClockPair { device_cycles: 1, host_ns: 20, uncertainty_ns: 1 };
        writer.append_clock_pairs(&[pair]).unwrap();
        let phase = HostPhase { start_ns: 1, end_ns: 2, execution: 0, thread: 1, phase: Phase::new("wait") };
        writer.append_host_phases(&[phase]).unwrap();
        let phase = DevicePhaseNote { lane: 0, phase: DevicePhase::RUN_WALL, start_cycles: 1, end_cycles: 2 };
        writer.append_device_phases(&[phase]).unwrap();
        let wait = WaitNote {
            subsystem: Subsystem::SWIMLANE,
            lane: 0,
            gate: Gate::FREE,
            kind: POOL.kind,
            instance: 0,
            gave_up: 0,
            begin_cycles: 1,
            end_cycles: 2,
        };
        writer.append_waits(&[wait]).unwrap();
        writer.append_transits(&[TransitNote::new(POOL, 0, 1, 2)]).unwrap();
        writer.append_controls(&[CONTROL; 2]).unwrap();
        writer.append_losses(&[LossNote::new(POOL, Some(3), LossCause::CORRUPT, 5, 9)]).unwrap();
        writer.append_summary(&Summary { report: Report::default(), pools: Vec::new() }).unwrap();
        writer.into_storage()
    }

    fn open(bytes: &[u8]) -> Reader<Cursor<&[u8]>> {
        Reader::new(Cursor::new(bytes)).unwrap()
    }

    /// What is delivered: kinds by name, buffers by sequence number.
    fn walk(reader: &mut Reader<Cursor<&[u8]>>) -> Vec<String> {
        let mut seen = Vec::new();
        while let Some(segment) = reader.read().unwrap() {
            seen.push(match segment {
                Segment::Manifest(manifest) => manifest.device.clone(),
                Segment::Buffer(header, records) => {
                    assert_eq!(records, [header.buffer_seq as u8; 160]);
                    format!("{}", header.buffer_seq)
                }
                Segment::Payload(header, bytes) => format!("{} + {}", header.offset_bytes, bytes.len()),
                Segment::Freezes(items) => format!("{} freezes", items.len()),
                Segment::ClockPairs(items) => format!("{} pairs", items.len()),
                Segment::HostPhases(items) => format!("{} phases", items.len()),
                Segment::DevicePhases(items) => format!("{} device phases", items.len()),
                Segment::Waits(items) => format!("{} waits", items.len()),
                Segment::Transits(items) => format!("{} transits", items.len()),
                Segment::Controls(items) => {
                    assert!(items.clone().eq([CONTROL; 2]));
                    format!("{} controls", items.len())
                }
                Segment::Losses(items) => format!("{} losses", items.len()),
                Segment::End(_) => "end".into(),
                Segment::Unknown(kind) => kind.to_string(),
            });
        }
        seen
    }

    const WHOLE: [&str; 12] = [
        "sim",
        "0",
        "1",
        "2",
        "1 pairs",
        "1 phases",
        "1 device phases",
        "1 waits",
        "1 transits",
        "2 controls",
        "1 losses",
        "end",
    ];

    /// Where segments begin, and the end.
    fn starts(bytes: &[u8]) -> Vec<usize> {
        let mut at = HEADER_BYTES;
        let mut starts = vec![at];
        while at < bytes.len() {
            let (head, _) = SegmentHead::read_from_prefix(&bytes[at..]).unwrap();
            at += HEAD_BYTES + head.payload_bytes as usize + head.padding_bytes();
            starts.push(at);
        }
        starts
    }

    #[test]
    fn a_whole_capture_is_delivered_twice_the_same() {
        let bytes = sample();
        let mut reader = open(&bytes);
        assert_eq!(*reader.header(), HEADER);
        assert_eq!(walk(&mut reader), WHOLE);
        assert_eq!(reader.position_bytes(), bytes.len() as u64);
        reader.rewind().unwrap();
        assert_eq!(walk(&mut reader), WHOLE);
        assert_eq!(reader.damages(), []);
    }

    #[test]
    fn unwanted_kinds_are_passed_over() {
        let bytes = sample();
        let mut reader = open(&bytes);
        let pairs = reader.read_of(|kind| kind == Kind::CLOCK_PAIRS).unwrap();
        assert!(matches!(pairs, Some(Segment::ClockPairs(_))));
        assert!(reader.read_of(|kind| kind == Kind::CLOCK_PAIRS).unwrap().is_none());
        assert_eq!((reader.position_bytes(), reader.damages()), (bytes.len() as u64, &[][..]));
    }

    #[test]
    fn a_capture_cut_anywhere_is_read_up_to_its_last_whole_segment() {
        let bytes = sample();
        let starts = starts(&bytes);
        for length in HEADER_BYTES..bytes.len() {
            let mut reader = open(&bytes[..length]);
            let seen = walk(&mut reader);
            let whole = (1..starts.len())
                .filter(|&i| {
                    let head = SegmentHead::read_from_prefix(&bytes[starts[i - 1]..]).unwrap().0;
                    starts[i] - head.padding_bytes() <= length
                })
                .count();
            assert_eq!(seen, WHOLE[..whole], "cut at {length}");
            let torn = length > starts[whole];
            assert_eq!(reader.damage_count(), u64::from(torn), "cut at {length}: {:?}", reader.damages());
            if torn {
                assert_eq!(reader.damages()[0].offset, starts[whole] as u64);
                assert!(matches!(reader.damages()[0].cause, DamageCause::Torn { missing: 1.. }));
            }
        }
    }

    #[test]
    fn damage_costs_the_segment_it_hits_and_is_named() {
        let bytes = sample();
        let starts = starts(&bytes);
        for (hit, expected) in [
            (starts[2] + 1, "no sound segment head, 224 bytes passed over"),
            (starts[2] + HEAD_BYTES + 40, "segment 2 (buffer): checksum is wrong, 224 bytes passed over"),
        ] {
            let mut damaged = bytes.clone();
            damaged[hit] ^= 0x10;
            let mut reader = open(&damaged);
            assert_eq!(
                walk(&mut reader),
                [
                    "sim",
                    "0",
                    "2",
                    "1 pairs",
                    "1 phases",
                    "1 device phases",
                    "1 waits",
                    "1 transits",
                    "2 controls",
                    "1 losses",
                    "end"
                ]
            );
            assert_eq!(reader.damages()[0].to_string(), format!("byte {}: {expected}", starts[2]));
        }
    }

    #[test]
    fn missing_and_repeated_segments_are_noted() {
        let bytes = sample();
        let starts = starts(&bytes);
        let (without, twice) = (
            [&bytes[..starts[1]], &bytes[starts[2]..]].concat(),
            [&bytes[..starts[2]], &bytes[starts[1]..]].concat(),
        );
        let text = |bytes: &[u8]| {
            let mut reader = open(bytes);
            walk(&mut reader);
            reader.damages().iter().map(Damage::to_string).collect::<Vec<_>>()
        };
        assert_eq!(text(&without), [format!("byte {}: segment 2 where 1 should stand", starts[1])]);
        assert_eq!(text(&twice), [format!("byte {}: segment 1 where 2 should stand", starts[2])]);
    }

    /// A capture of one segment that says what it is told to say.
    fn forged(kind: Kind, payload_bytes: u32, payload: &[u8]) -> Vec<u8> {
        let head = SegmentHead::new(kind, 0, payload_bytes, crc32fast::hash(payload));
        let mut bytes = [&HEADER.encode()[..], head.as_bytes(), payload].concat();
        bytes.resize(bytes.len().next_multiple_of(ALIGN_BYTES), 0);
        bytes
    }

    #[test]
    fn payloads_that_make_no_sense_are_named() {
        let says = |kind, payload: &[u8]| {
            let bytes = forged(kind, payload.len() as u32, payload);
            let mut reader = open(&bytes);
            assert_eq!(walk(&mut reader), [""; 0]);
            reader.damages()[0].to_string()
        };
        assert_eq!(
            says(Kind::FREEZES, &[0; 41]),
            "byte 64: segment 0 (freezes): 41 bytes are no whole number of 40-byte items"
        );
        assert_eq!(
            says(Kind::FREEZES_0, &[0; 40]),
            "byte 64: segment 0 (freezes): 40 bytes are no whole number of 32-byte items"
        );
        assert_eq!(
            says(Kind::BUFFER, &[0; 5]),
            "byte 64: segment 0 (buffer): 5 bytes are too few for a buffer header"
        );
        let header = BufferHeader::new(POOL, 0, u32::MAX, u32::MAX);
        assert_eq!(
            says(Kind::BUFFER, header.as_bytes()),
            "byte 64: segment 0 (buffer): 4294967295 records of 4294967295 bytes stated, 0 bytes are there"
        );
        assert!(says(Kind::MANIFEST, b"[").contains("segment 0 (manifest): "));
        assert!(says(Kind::MANIFEST, &[b'['; 100_000]).contains("segment 0 (manifest): "));
    }

    #[test]
    fn freezes_of_the_first_minor_version_are_read() {
        let event = |opened_ns| FreezeEvent {
            subsystem: Subsystem::PMU,
            gate: Gate::FREE,
            opened_by: 1,
            lanes_parked: 2,
            opened_ns,
            released_ns: 9,
            buffers_drained: 0,
        };
        let events = [event(3), event(5)];
        let old: Vec<u8> =
            events.iter().flat_map(|event| &event.as_bytes()[..FreezeEvent::BYTES_0]).copied().collect();
        let capture = forged(Kind::FREEZES_0, old.len() as u32, &old);
        let mut reader = open(&capture);
        let Some(Segment::Freezes(found)) = reader.read().unwrap() else { panic!("a segment of freezes") };
        assert_eq!(found.len(), 2);
        assert_eq!(found.collect::<Vec<_>>(), events);
    }

    #[test]
    fn a_stated_length_allocates_nothing() {
        for kind in [Kind::BUFFER, Kind::END, Kind(99)] {
            let limit = kind.max_payload_bytes();
            for stated in [limit as u32 + 1, u32::MAX] {
                let huge = forged(kind, stated, &[]);
                let mut reader = open(&huge);
                assert_eq!(walk(&mut reader), [""; 0]);
                assert_eq!(reader.damages()[0].cause, DamageCause::TooLong { stated, limit });
            }
            let long = forged(kind, limit as u32, &[1; 100]);
            let mut reader = open(&long);
            assert_eq!(walk(&mut reader), [""; 0]);
            assert!(matches!(reader.damages()[0].cause, DamageCause::Torn { .. }));
            assert_eq!(reader.payload.capacity(), 0);
        }
    }

    #[test]
    fn kinds_of_a_later_version_are_delivered_as_unknown() {
        let mut reader_bytes = forged(Kind(99), 3, b"new");
        let mut reader = open(&reader_bytes);
        assert_eq!(walk(&mut reader), ["kind 99"]);
        assert_eq!(reader.damages(), []);
        reader_bytes.cut_to(64).unwrap();
        assert_eq!(walk(&mut open(&reader_bytes)), [""; 0]);
    }

    proptest! {
        #[test]
        fn any_damage_is_survived(
            hits in prop::collection::vec((0usize..2000, any::<u8>()), 1..12),
            cut in 0usize..2000,
            noise in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = sample();
            for (at, value) in hits {
                let at = HEADER_BYTES + at % (bytes.len() - HEADER_BYTES);
                bytes[at] = value;
            }
            let cut = HEADER_BYTES + cut % (bytes.len() - HEADER_BYTES);
            bytes.splice(cut..cut, noise);
            let mut reader = open(&bytes);
            let mut segments = 0;
            while reader.read().unwrap().is_some() {
                segments += 1;
            }
            prop_assert!(segments <= WHOLE.len());
            prop_assert!(reader.damages().len() <= MAX_DAMAGES);
            prop_assert_eq!(reader.position_bytes(), bytes.len() as u64);
        }

        #[test]
        fn any_bytes_at_all_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Reader::new(Cursor::new(&bytes)).is_err());
            let framed = [&HEADER.encode()[..], &bytes].concat();
            let mut reader = open(&framed);
            prop_assert!(reader.read().unwrap().is_none());
        }
    }
}
