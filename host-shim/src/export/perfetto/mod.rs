//! A capture as a Perfetto trace: `trace.pftrace`, opened by ui.perfetto.dev.
//!
//! ```text
//! sim a2a3 (process)                      host (process)
//! ├─ lanes                                └─ thread 4711        load, build, submit, wait, verify
//! │  ├─ lane 0 phases        run, orchestration, scheduling, what came after
//! │  ├─ lane 0 scheduler     dispatch, complete
//! │  ├─ lane 0 orchestrator  submit
//! │  ├─ lane 0 waits         at the gates of any subsystem
//! │  └─ TPB0 scopes          the same submits with how full rings and heap were
//! ├─ cores
//! │  ├─ TPB0 PE              one slice per task, dispatch to finish, by the lane's clock reads
//! │  ├─ TPB0 PE kernel       the same tasks by the core's own, where it records
//! │  └─ TPB0 PE counters     the same tasks with what the core counted
//! ├─ freezes
//! │  └─ swimlane fq          closed gates: the lanes above have a gap
//! ├─ losses                  a mark where records were lost
//! └─ recording               a mark where a subsystem began to record more, less or something else
//! ```
//!
//! Times are host monotonic ns; device cycles are converted as [`clock`](super::clock) says, and every slice also
//! carries its cycles as arguments; a task that was seen late, because its lane waited, carries its duration with and without
//! those waits ([`stall`](super::stall)), and arrows lead to a task from those that it waits for. A slice that overlaps the
//! one before it on its track gets a track of its own
//! beside it, because slices on one track must nest. Track ids count from 1, names are stored once. A record whose
//! end lies before its start becomes a mark, not a slice.
//!
//! Memory: names of the manifest, one entry per track, one segment of the capture, of each core at most some thousand tasks
//! that wait for their counts or counts that wait for their task, and the waits of lanes, up to a bound.

mod records;
mod schema;
mod trace;

use std::io::{self, Read, Seek, Write};

use super::clock::DeviceTime;
use super::stall::{Late, Stalls};
use crate::capture::dedup::{Seen, Verdict};
use crate::capture::payload::{NO_EXECUTION, NO_LANE};
use crate::capture::segment::Segment;
use crate::capture::{ControlNote, ControlStage, FreezeEvent, HostPhase, Kind, LossNote, Manifest, Reader};
use records::Records;
use trace::{Group, TraceWriter, Track};

/// What an export came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Slices: tasks, phases, freezes.
    pub slices: u64,
    /// Marks: losses, and records that make no slice.
    pub marks: u64,
    /// Records whose end lies before their start, or of which too many overlap.
    pub malformed: u64,
    /// Buffers that stood in the capture more than once and were left out.
    pub duplicates: u64,
    /// Buffers of a kind that this version does not show.
    pub not_shown: u64,
    /// Records that have no time of their own and whose task the capture does not have.
    pub unplaced: u64,
    /// Tasks whose completion was seen late.
    pub late: Late,
    /// Waits of lanes that were too many to be held against the tasks.
    pub waits_omitted: u64,
    /// Bytes of the trace.
    pub bytes: u64,
}

/// Writes the trace of a capture. The reader is rewound first and walked five times, once more if lanes waited.
pub fn write<R: Read + Seek, W: Write>(reader: &mut Reader<R>, out: W) -> io::Result<Exported> {
    let (manifest, time) = survey(reader)?;
    let waits = records::Waits::of(reader, &manifest)?;
    let touches = records::Touches::of(reader, &manifest)?;
    let header = *reader.header();
    let device = if manifest.device.is_empty() { "device" } else { &manifest.device };
    let core_names = manifest.cores.iter().map(|core| core.name.clone()).collect();
    let mut trace = TraceWriter::begin(out, format!("{device} {}", header.arch), core_names);
    let recorded = manifest.recorded.iter().map(|(subsystem, extent)| format!("{subsystem} {extent}"));
    let recorded = recorded.collect::<Vec<_>>().join("; ");
    trace.mark(
        Track::Capture,
        "capture",
        time.anchor_ns(),
        &[
            ("run", header.run.0.into()),
            ("model", manifest.model.as_str().into()),
            ("executions", manifest.executions.into()),
            ("lanes", manifest.lanes.into()),
            ("gate_scope", manifest.gate_scope.as_str().into()),
            ("recorded", recorded.as_str().into()),
            ("clock_hz", header.clock_hz.into()),
            ("clock_method", time.method().as_str().into()),
            ("clock_error_bound_ns", time.error_bound_ns().into()),
        ],
    )?;
    let stalls = Stalls::read(reader, &manifest.cores)?;
    let mut shown = Records::new(header.arch, &manifest, time, waits, touches, &stalls);
    let mut seen = Seen::default();
    let mut exported = Exported::default();
    reader.rewind()?;
    while let Some(segment) = reader.read()? {
        match segment {
            Segment::Buffer(buffer, records) => match seen.admit(buffer.pool(), buffer.buffer_seq) {
                Verdict::New => {
                    if !shown.show(&mut trace, &buffer, records)? {
                        exported.not_shown += 1;
                    }
                }
                Verdict::Duplicate => exported.duplicates += 1,
                Verdict::Scattered => exported.not_shown += 1,
            },
            Segment::Freezes(freezes) => {
                for freeze in freezes {
                    show_freeze(&mut trace, &freeze)?;
                }
            }
            Segment::HostPhases(phases) => {
                for phase in phases {
                    show_phase(&mut trace, &phase)?;
                }
            }
            Segment::DevicePhases(phases) => {
                for phase in phases {
                    shown.phase_of_lane(&mut trace, &phase)?;
                }
            }
            Segment::Waits(waits) => {
                for wait in waits {
                    shown.wait_of_lane(&mut trace, &wait)?;
                }
            }
            Segment::Controls(controls) => {
                for control in controls {
                    show_control(&mut trace, time, &control)?;
                }
            }
            Segment::Losses(losses) => {
                for loss in losses {
                    show_loss(&mut trace, &loss)?;
                }
            }
            Segment::Payload(..)
            | Segment::Manifest(_)
            | Segment::Transits(_)
            | Segment::ClockPairs(_)
            | Segment::End(_)
            | Segment::Unknown(_) => {}
        }
    }
    let written = trace.finish()?;
    Ok(Exported {
        slices: written.slices,
        marks: written.marks,
        malformed: written.malformed,
        unplaced: shown.unplaced(),
        late: shown.late(),
        waits_omitted: stalls.omitted(),
        bytes: written.bytes,
        ..exported
    })
}

/// The first pass: the manifest and the clocks.
fn survey<R: Read + Seek>(reader: &mut Reader<R>) -> io::Result<(Manifest, DeviceTime)> {
    let mut manifest = None;
    let mut time = DeviceTime::new(reader.header().clock_hz);
    reader.rewind()?;
    while let Some(segment) = reader.read_of(|kind| [Kind::MANIFEST, Kind::CLOCK_PAIRS].contains(&kind))? {
        match segment {
            Segment::Manifest(found) => _ = manifest.get_or_insert(*found),
            Segment::ClockPairs(pairs) => pairs.for_each(|pair| time.add(pair)),
            _ => {}
        }
    }
    Ok((manifest.unwrap_or_default(), time))
}

fn show_freeze<W: Write>(trace: &mut TraceWriter<W>, freeze: &FreezeEvent) -> io::Result<()> {
    let group = Group::Freezes { subsystem: freeze.subsystem, gate: freeze.gate };
    let opened_by = (freeze.opened_by != NO_LANE).then_some(("opened_by_lane", freeze.opened_by.into()));
    let arguments = [
        Some(("gate", freeze.gate.name().unwrap_or("unknown").into())),
        opened_by,
        Some(("lanes_parked", freeze.lanes_parked.into())),
        Some(("buffers_drained", freeze.buffers_drained.into())),
        Some(("duration_ns", freeze.released_ns.saturating_sub(freeze.opened_ns).into())),
    ];
    let name = match freeze.gate {
        crate::capture::Gate::READY => "frozen: ready ring full",
        crate::capture::Gate::FREE => "frozen: free queue empty",
        _ => "frozen",
    };
    trace.slice(group, name, freeze.opened_ns, freeze.released_ns, arguments.into_iter().flatten())
}

fn show_phase<W: Write>(trace: &mut TraceWriter<W>, phase: &HostPhase) -> io::Result<()> {
    let execution = (phase.execution != NO_EXECUTION).then_some(("execution", phase.execution.into()));
    let group = Group::HostThread(phase.thread);
    trace.slice(group, &phase.phase.name(), phase.start_ns, phase.end_ns, execution)
}

fn show_control<W: Write>(
    trace: &mut TraceWriter<W>,
    time: DeviceTime,
    control: &ControlNote,
) -> io::Result<()> {
    let (subsystem, stage, extent) = (control.subsystem, control.stage, control.extent().to_string());
    let name = match stage {
        ControlStage::FOLLOWED => format!("{subsystem}: {extent}"),
        _ => format!("{subsystem}: about to be {extent}"),
    };
    trace.mark(
        Track::Recording,
        &name,
        time.ns(control.device_cycles),
        &[
            ("number", control.number.into()),
            ("stage", stage.name().unwrap_or("unknown").into()),
            ("recorded", extent.as_str().into()),
            ("level", control.level.into()),
            ("sampled_every", control.sample_every.into()),
            ("device_cycles", control.device_cycles.into()),
        ],
    )
}

fn show_loss<W: Write>(trace: &mut TraceWriter<W>, loss: &LossNote) -> io::Result<()> {
    let name = format!("lost: {}", loss.cause);
    trace.mark(
        Track::Losses,
        &name,
        loss.noted_ns,
        &[
            ("pool", loss.pool().to_string().as_str().into()),
            ("buffer_seq", loss.buffer_seq.into()),
            ("records", loss.records.into()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use sluice_core::layout::swimlane::AicpuTaskRecord;
    use sluice_core::layout::{ArchId, PoolKind, SubsystemId};
    use sluice_core::producer::Control;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::capture::{BufferHeader, FileHeader, Pool, RunId, Subsystem, Writer};
    use crate::dfx::Change;

    fn task(dispatch_time: u64, finish_time: u64, reg_task_id: u32) -> AicpuTaskRecord {
        AicpuTaskRecord { dispatch_time, finish_time, reg_task_id, tail: 0, tail_end: 0 }
    }

    fn capture(instance: u32, buffers: &[(u32, &[AicpuTaskRecord])]) -> Vec<u8> {
        let header =
            FileHeader { run: RunId(1), arch: ArchId::A5, clock_hz: 1_000_000_000, started_unix_ns: 0 };
        let writer = Writer::start(Vec::new(), &header).unwrap();
        let pool = Pool { subsystem: Subsystem::SWIMLANE, kind: PoolKind::AICPU_TASK, instance };
        for (seq, records) in buffers {
            let header = BufferHeader::new(pool, *seq, records.len() as u32, 32);
            writer.append_buffer(&header, records.as_bytes()).unwrap();
        }
        writer.into_storage()
    }

    fn exported(capture: &[u8]) -> Exported {
        let mut trace = Vec::new();
        let exported = write(&mut Reader::new(Cursor::new(capture)).unwrap(), &mut trace).unwrap();
        assert_eq!(exported.bytes, trace.len() as u64);
        Exported { bytes: 0, ..exported }
    }

    #[test]
    fn an_empty_capture_gives_the_mark_of_the_capture_alone() {
        assert_eq!(exported(&capture(0, &[])), Exported { marks: 1, ..Exported::default() });
    }

    #[test]
    fn each_record_is_shown_once() {
        let records = [task(10, 20, 1), task(15, 25, 2), task(30, 30, 3)];
        let twice = capture(3, &[(0, &records), (1, &records[..1]), (0, &records)]);
        assert_eq!(exported(&twice), Exported { slices: 4, marks: 1, duplicates: 1, ..Exported::default() });
    }

    #[test]
    fn records_that_make_no_slice_become_marks() {
        let records: Vec<_> = (0..70).map(|token| task(10, 20, token)).chain([task(30, 29, 71)]).collect();
        assert_eq!(
            exported(&capture(0, &[(0, &records)])),
            Exported { slices: 64, marks: 1, malformed: 7, ..Exported::default() }
        );
    }

    #[test]
    fn a_task_that_was_seen_late_says_by_how_much() {
        use crate::export::stall::tests::{Tale, task};
        let tale = Tale::begin()
            .tasks(0, 0, &[task(1, 0, 300), task(2, 300, 400)])
            .wait(Subsystem::PMU, 1, 100, 200)
            .owns(0, 0, &[(1, 10, 120), (2, 310, 390)]);
        let mut trace = Vec::new();
        let exported = write(&mut tale.reader(), &mut trace).unwrap();
        assert_eq!((exported.slices, exported.marks), (5, 1), "tasks twice and the wait");
        assert_eq!(exported.late, Late { tasks: 1, raw_cycles: 300, corrected_cycles: 220 });
        for name in ["raw_cycles", "corrected_cycles"] {
            assert!(trace.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_change_of_what_is_recorded_is_marked() {
        let header =
            FileHeader { run: RunId(1), arch: ArchId::A5, clock_hz: 1_000_000_000, started_unix_ns: 0 };
        let writer = Writer::start(Vec::new(), &header).unwrap();
        let change = |number, level, is_followed| Change {
            subsystem: SubsystemId::Swimlane,
            number,
            control: Control::at_level(level),
            is_followed,
            at_cycles: 7,
        };
        let changes = [change(1, 4, true), change(2, 1, false), change(2, 1, true)];
        writer.append_controls(&changes.map(|change| ControlNote::new(&change, 9))).unwrap();
        let mut trace = Vec::new();
        let mut reader = Reader::new(Cursor::new(writer.into_storage())).unwrap();
        assert_eq!(write(&mut reader, &mut trace).unwrap().marks, 4, "and that of the capture");
        for name in ["recording", "swimlane: full", "swimlane: about to be core", "swimlane: core"] {
            assert!(trace.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn pools_outside_the_contract_are_counted() {
        let outside = capture(108, &[(0, &[task(1, 2, 1)])]);
        assert_eq!(exported(&outside), Exported { marks: 1, not_shown: 1, ..Exported::default() });
    }
}
