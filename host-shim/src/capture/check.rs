//! Counting a capture and holding the count against what the run itself said.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek};

use sluice_core::layout::{self, ArchId, BufferLayout, Shape, args_dump};

use super::chains::chains;
use super::controls::Controls;
use super::damage::Damage;
use super::dedup::{Seen, Verdict};
use super::format::FileHeader;
use super::payload::{BufferHeader, Items, Manifest, Pool, PoolTotals, Subsystem, Summary};
use super::reader::Reader;
use super::segment::Segment;
use crate::report::units::Many;
use crate::report::{Dfx, Lost, Model, Report};

/// Most findings listed; more are only counted.
const MAX_FINDINGS: usize = 64;
/// Most buffers whose payloads may stand before them at once.
const MAX_OPEN_PAYLOADS: usize = 1 << 16;

/// What stands in a capture.
#[derive(Debug)]
pub struct Census {
    /// The file header.
    pub header: FileHeader,
    /// The first manifest.
    pub manifest: Option<Manifest>,
    /// The last summary; absent when the run did not come to its end.
    pub summary: Option<Summary>,
    /// Records and buffers of each pool, duplicates left out.
    pub pools: BTreeMap<Pool, Count>,
    /// Buffers that stood in the file more than once.
    pub duplicates: u64,
    /// Freezes.
    pub freezes: u64,
    /// What was to be recorded from when on.
    pub controls: Controls,
    /// Records that loss notes tell of, by cause.
    pub lost: Lost,
    /// Segments of kinds this version does not know.
    pub unknown_segments: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Damaged places; the first of them are listed.
    pub damage_count: u64,
    /// The first damaged places.
    pub damages: Vec<Damage>,
    /// What does not add up, for people; empty when the capture is whole and agrees with its summary.
    pub findings: Vec<String>,
}

/// Records and buffers of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Records.
    pub records: u64,
    /// Buffers.
    pub buffers: u64,
}

impl Census {
    /// Whole, in agreement with its summary, and without loss.
    pub fn is_good(&self) -> bool {
        self.findings.is_empty() && self.summary.as_ref().is_some_and(|summary| summary.report.lossless)
    }

    /// Records and buffers of all pools of a subsystem.
    pub fn of_subsystem(&self, subsystem: Subsystem) -> Count {
        self.pools.iter().filter(|(pool, _)| pool.subsystem == subsystem).fold(
            Count::default(),
            |sum, (_, count)| Count {
                records: sum.records + count.records,
                buffers: sum.buffers + count.buffers,
            },
        )
    }
}

impl Census {
    /// The report of the run: as its summary has it, held against what is there, or, when the run did not come to its
    /// end, what the capture itself tells. Every finding stands among what is wrong, and with one of them the report is
    /// not lossless: what is not there, or was under way when the run broke off, is not known.
    pub fn into_report(self) -> Report {
        let Some(summary) = self.summary else {
            let manifest = self.manifest.unwrap_or_default();
            let mut dfx = BTreeMap::new();
            for (pool, count) in &self.pools {
                let Some(name) = pool.subsystem.name() else { continue };
                let subsystem: &mut Dfx = dfx.entry(name.to_owned()).or_default();
                subsystem.collected += count.records;
            }
            for subsystem in Subsystem::KNOWN {
                let Some(first) = self.controls.first(*subsystem) else { continue };
                let figures: &mut Dfx = dfx.entry(subsystem.to_string()).or_default();
                figures.extent = first.clone();
                figures.changes = self.controls.changes(*subsystem).to_vec();
            }
            let mut wrong = self.findings;
            wrong.push("the run broke off: records after its last whole segment are unknown".into());
            return Report {
                device: manifest.device,
                arch: self.header.arch.name().into(),
                run: self.header.run.0,
                gate_scope: manifest.gate_scope,
                interrupted: true,
                broken_off: true,
                wrong,
                model: Model { name: manifest.model, tpbs: manifest.tpbs, ..Model::default() },
                dfx,
                ..Report::default()
            };
        };
        let mut report = summary.report;
        report.lossless &= self.findings.is_empty();
        report.wrong.extend(self.findings.into_iter().map(|finding| format!("capture: {finding}")));
        report
    }
}

/// Reads a capture from its first to its last segment.
pub fn census<R: Read + Seek>(reader: &mut Reader<R>) -> io::Result<Census> {
    let header = *reader.header();
    let mut census = Census {
        header,
        manifest: None,
        summary: None,
        pools: BTreeMap::new(),
        duplicates: 0,
        freezes: 0,
        controls: Controls::default(),
        lost: Lost::default(),
        unknown_segments: 0,
        bytes: 0,
        damage_count: 0,
        damages: Vec::new(),
        findings: Vec::new(),
    };
    let (mut seen, mut findings) = (Seen::default(), Findings::default());
    let mut lost_buffers = 0;
    // Of buffers that are still to come.
    let mut payload_bytes: BTreeMap<(Pool, u32), u64> = BTreeMap::new();
    while let Some(segment) = reader.read()? {
        match segment {
            Segment::Manifest(manifest) => {
                census.manifest.get_or_insert(*manifest);
            }
            Segment::Buffer(buffer, records) => {
                let pool = buffer.pool();
                if let Err(wrong) = fits_contract(header.arch, &buffer) {
                    findings.add(|| format!("{pool} buffer {}: {wrong}", buffer.buffer_seq));
                }
                if pool.subsystem == Subsystem::DEP_GEN {
                    for broken in chains(records).filter_map(Result::err) {
                        findings.add(|| format!("{pool} buffer {}: {broken}", buffer.buffer_seq));
                    }
                }
                if pool.subsystem == Subsystem::ARGS_DUMP {
                    let there = payload_bytes.remove(&(pool, buffer.buffer_seq)).unwrap_or_default();
                    let stated = stated_payload_bytes(records);
                    if there < stated {
                        findings.add(|| {
                            format!(
                                "{pool} buffer {}: {there} bytes of payloads are there, its records state {stated}",
                                buffer.buffer_seq
                            )
                        });
                    }
                }
                match seen.admit(pool, buffer.buffer_seq) {
                    Verdict::New => {
                        let count = census.pools.entry(pool).or_default();
                        count.records += u64::from(buffer.records);
                        count.buffers += 1;
                    }
                    Verdict::Duplicate => census.duplicates += 1,
                    Verdict::Scattered => findings.add(|| {
                        format!(
                            "{pool} buffer {}: sequence numbers too scattered to follow",
                            buffer.buffer_seq
                        )
                    }),
                }
            }
            Segment::Payload(payload, bytes) => {
                let place = (payload.pool(), payload.buffer_seq);
                if payload_bytes.len() < MAX_OPEN_PAYLOADS || payload_bytes.contains_key(&place) {
                    *payload_bytes.entry(place).or_default() += bytes.len() as u64;
                }
            }
            Segment::Freezes(freezes) => census.freezes += freezes.len() as u64,
            Segment::Losses(losses) => {
                for loss in losses {
                    lost_buffers += u64::from(loss.buffer_seq != u32::MAX);
                    census.lost.add(loss.cause.name().unwrap_or_default(), loss.records);
                }
            }
            Segment::Controls(notes) => {
                for note in notes {
                    if let Some(wrong) = census.controls.add(&note) {
                        findings.add(|| wrong);
                    }
                }
            }
            Segment::End(summary) => census.summary = Some(*summary),
            Segment::Unknown(_) => census.unknown_segments += 1,
            Segment::ClockPairs(_)
            | Segment::HostPhases(_)
            | Segment::DevicePhases(_)
            | Segment::Waits(_)
            | Segment::Transits(_) => {}
        }
    }
    census.bytes = reader.position_bytes();
    census.damage_count = reader.damage_count();
    census.damages = reader.damages().to_vec();
    reader.damages().iter().for_each(|damage| findings.add(|| damage.to_string()));
    findings.more += reader.damage_count() - reader.damages().len() as u64;
    let missing: u64 = seen.gaps().map(|(_, gap)| gap.end - gap.start).sum();
    if missing > lost_buffers {
        for (pool, gap) in seen.gaps() {
            findings.add(|| match gap.end - gap.start {
                1 => format!("{pool}: buffer {} is not there", gap.start),
                _ => format!("{pool}: buffers {} to {} are not there", gap.start, gap.end - 1),
            });
        }
    }
    if census.manifest.is_none() {
        findings.add(|| "no manifest: the run did not come to its start".into());
    }
    match &census.summary {
        None => findings.add(|| "no summary: the run did not come to its end".into()),
        Some(summary) => {
            compare(&census.pools, &summary.pools, &mut findings);
            compare_controls(&census.controls, &summary.report, &mut findings);
        }
    }
    census.findings = findings.into_texts();
    Ok(census)
}

fn compare(counted: &BTreeMap<Pool, Count>, stated: &[PoolTotals], findings: &mut Findings) {
    let stated: BTreeMap<Pool, &PoolTotals> =
        stated.iter().filter_map(|totals| Some((totals.pool()?, totals))).collect();
    let pools = counted.keys().chain(stated.keys().filter(|pool| !counted.contains_key(pool)));
    for pool in pools {
        let count = counted.get(pool).copied().unwrap_or_default();
        let (records, buffers) = stated.get(pool).map_or((0, 0), |totals| (totals.collected, totals.buffers));
        if (count.records, count.buffers) != (records, buffers) {
            findings.add(|| {
                let (found, in_buffers) =
                    (Many(count.records, "record", "records"), Many(count.buffers, "buffer", "buffers"));
                format!("{pool}: {found} in {in_buffers} here, the run counted {records} in {buffers}")
            });
        }
    }
}

/// Holds the settings that are noted against those that the run tells of; captures of older versions have none.
fn compare_controls(controls: &Controls, report: &Report, findings: &mut Findings) {
    let known = |name: &str| Subsystem::named(name);
    let stated = report.dfx.iter().filter_map(|(name, dfx)| Some((known(name)?, dfx)));
    for (subsystem, dfx) in stated.filter(|_| !controls.is_empty()) {
        let noted = (controls.first(subsystem), controls.changes(subsystem));
        if noted != (Some(&dfx.extent), &dfx.changes[..]) {
            findings.add(|| {
                let (here, told) = (noted.1.len() as u64, dfx.changes.len() as u64);
                let here = Many(here, "change", "changes");
                format!("{subsystem}: {here} of what was recorded here, the run tells of {told} or of others")
            });
        }
    }
}

/// The build of a pool's buffers; `None` when the wire contract this program knows has no such pool.
pub fn layout_of(arch: ArchId, pool: Pool) -> Option<BufferLayout> {
    let region = layout::region(pool.subsystem.id()?, Shape::full(arch));
    region.array(pool.kind).filter(|array| pool.instance < array.instances).map(|array| array.buffer)
}

/// Bytes of all payloads that records of arguments tell of.
fn stated_payload_bytes(records: &[u8]) -> u64 {
    let records = Items::<args_dump::Record>::new(records);
    records.map(|record| record.payload_size).fold(0, u64::saturating_add)
}

/// Whether records and count are such as the pool can hold. Pools of later versions pass.
fn fits_contract(arch: ArchId, buffer: &BufferHeader) -> Result<(), String> {
    let pool = buffer.pool();
    match layout_of(arch, pool) {
        None if pool.subsystem.id().is_some() => Err(format!("{arch} has no such pool")),
        Some(layout) if layout.record_bytes != buffer.record_bytes as usize => {
            Err(format!("records of {} bytes, want {}", buffer.record_bytes, layout.record_bytes))
        }
        Some(layout) if layout.capacity < buffer.records => {
            Err(format!("{} records, at most {}", buffer.records, layout.capacity))
        }
        _ => Ok(()),
    }
}

/// A list that stops growing.
#[derive(Default)]
struct Findings {
    texts: Vec<String>,
    more: u64,
}

impl Findings {
    fn add(&mut self, text: impl FnOnce() -> String) {
        if self.texts.len() < MAX_FINDINGS {
            self.texts.push(text());
        } else {
            self.more += 1;
        }
    }

    fn into_texts(mut self) -> Vec<String> {
        if self.more > 0 {
            self.texts.push(format!("and {} more", self.more));
        }
        self.texts
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use sluice_core::layout::PoolKind;

    use zerocopy::{FromZeros, IntoBytes};

    use super::super::payload::{LossCause, LossNote, PayloadHeader};
    use super::super::writer::Writer;
    use super::super::writer::tests::{HEADER, POOL};
    use super::*;
    use crate::dfx::PayloadMeta;

    struct Story {
        buffers: Vec<(u32, u32)>,
        losses: Vec<u32>,
        totals: (u64, u64),
    }

    fn told(story: &Story) -> Census {
        let writer = Writer::start(Vec::new(), &HEADER).unwrap();
        writer.append_manifest(&Manifest::default()).unwrap();
        for &(seq, records) in &story.buffers {
            let header = BufferHeader::new(POOL, seq, records, 32);
            writer.append_buffer(&header, &vec![0; 32 * records as usize]).unwrap();
        }
        for &seq in &story.losses {
            writer.append_losses(&[LossNote::new(POOL, Some(seq), LossCause::CORRUPT, 5, 0)]).unwrap();
        }
        let (collected, buffers) = story.totals;
        let report = Report { lossless: story.losses.is_empty(), ..Report::default() };
        let totals = PoolTotals {
            subsystem: "swimlane".into(),
            kind: POOL.kind.0,
            instance: POOL.instance,
            produced: collected,
            collected,
            dropped: 0,
            buffers,
        };
        writer.append_summary(&Summary { report, pools: vec![totals] }).unwrap();
        census(&mut Reader::new(Cursor::new(writer.into_storage())).unwrap()).unwrap()
    }

    #[test]
    fn duplicates_are_left_out_and_the_sum_agrees() {
        let census =
            told(&Story { buffers: vec![(0, 1000), (1, 7), (0, 1000)], losses: vec![], totals: (1007, 2) });
        assert_eq!(census.findings, [""; 0]);
        assert_eq!((census.duplicates, census.is_good()), (1, true));
        assert_eq!(census.of_subsystem(Subsystem::SWIMLANE), Count { records: 1007, buffers: 2 });
        assert_eq!(census.of_subsystem(Subsystem::PMU), Count::default());
    }

    #[test]
    fn a_missing_buffer_is_named_unless_it_was_noted() {
        let story = Story { buffers: vec![(0, 10), (3, 10)], losses: vec![], totals: (20, 2) };
        let census = told(&story);
        assert_eq!(census.findings, ["swimlane/aicpu_task[2]: buffers 1 to 2 are not there"]);
        assert!(!census.is_good());
        let report = census.into_report();
        assert_eq!((report.lossless, report.is_good()), (false, false));
        assert_eq!(report.wrong, ["capture: swimlane/aicpu_task[2]: buffers 1 to 2 are not there"]);
        let noted = told(&Story { losses: vec![1, 2], ..story });
        assert_eq!(noted.findings, [""; 0]);
        assert_eq!((noted.lost.corrupt, noted.is_good()), (10, false));
    }

    #[test]
    fn bytes_of_payloads_that_are_not_there_are_named() {
        let pool = Pool { subsystem: Subsystem::ARGS_DUMP, kind: PoolKind::SOLE, instance: 1 };
        let record = args_dump::Record { payload_size: 100, ..args_dump::Record::new_zeroed() };
        let says = |pieces: &[usize]| {
            let writer = Writer::start(Vec::new(), &HEADER).unwrap();
            let mut meta = PayloadMeta {
                lane: layout::Lane(1),
                sequence: 0,
                record: 0,
                task: 1,
                arg_index: 0,
                stage: args_dump::Stage::BEFORE_DISPATCH,
                offset_bytes: 0,
                total_bytes: 100,
            };
            for &piece in pieces {
                writer.append_payload(&PayloadHeader::new(pool, &meta), &vec![0; piece]).unwrap();
                meta.offset_bytes += piece as u64;
            }
            writer.append_buffer(&BufferHeader::new(pool, 0, 1, 128), record.as_bytes()).unwrap();
            let census = census(&mut Reader::new(Cursor::new(writer.into_storage())).unwrap()).unwrap();
            census.findings.into_iter().find(|finding| finding.contains("payloads"))
        };
        assert_eq!(says(&[60, 40]), None);
        let missing = "args_dump[1] buffer 0: 60 bytes of payloads are there, its records state 100";
        assert_eq!(says(&[60]).as_deref(), Some(missing));
    }

    #[test]
    fn disagreement_with_the_summary_is_named() {
        let census = told(&Story { buffers: vec![(0, 10)], losses: vec![], totals: (11, 1) });
        assert_eq!(
            census.findings,
            ["swimlane/aicpu_task[2]: 10 records in 1 buffer here, the run counted 11 in 1"]
        );
        let census = told(&Story { buffers: vec![], losses: vec![], totals: (1, 1) });
        assert_eq!(census.findings.len(), 1);
    }

    #[test]
    fn a_run_without_an_end_is_named() {
        let writer = Writer::start(Vec::new(), &HEADER).unwrap();
        let census = census(&mut Reader::new(Cursor::new(writer.into_storage())).unwrap()).unwrap();
        assert_eq!(census.findings.len(), 2);
        assert!(!census.is_good());
        let report = census.into_report();
        assert_eq!((report.run, report.lossless, report.is_good()), (HEADER.run.0, false, false));
        assert_eq!((report.broken_off, report.wrong.len()), (true, 3));
    }

    #[test]
    fn buffers_outside_the_contract_are_named() {
        let says = |pool: Pool, records, record_bytes| {
            fits_contract(ArchId::A2a3, &BufferHeader::new(pool, 0, records, record_bytes))
        };
        assert_eq!(says(POOL, 1000, 32), Ok(()));
        assert_eq!(says(POOL, 1001, 32), Err("1001 records, at most 1000".into()));
        assert_eq!(says(POOL, 1, 64), Err("records of 64 bytes, want 32".into()));
        assert_eq!(says(Pool { instance: 72, ..POOL }, 1, 32), Err("a2a3 has no such pool".into()));
        assert_eq!(says(Pool { subsystem: Subsystem(77), ..POOL }, 1, 9), Ok(()));
        let pmu = Pool { subsystem: Subsystem::PMU, kind: PoolKind::SOLE, instance: 71 };
        assert_eq!(says(pmu, 512, 64), Ok(()));
        assert_eq!(says(pmu, 513, 64), Err("513 records, at most 512".into()));
        assert_eq!(says(Pool { instance: 72, ..pmu }, 1, 64), Err("a2a3 has no such pool".into()));
        let no_kind = Pool { kind: PoolKind::ORCH_PHASE, ..pmu };
        assert_eq!(says(no_kind, 1, 64), Err("a2a3 has no such pool".into()));
    }
}
