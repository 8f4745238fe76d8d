//! Tasks whose completion was seen late, because their lane waited at a gate meanwhile.
//!
//! ```text
//!   core   ───────[ runs            ]
//!   lane   ──dispatch─────[ waits at a gate      ]──finish──
//!                                   ├─ stalled ──┤
//!   raw        finish − dispatch
//!   corrected  raw − what waits of the lane cover between the end and the finish
//! ```
//!
//! The end is the core's own, where the core recorded the task; without it every wait after the dispatch counts, and the
//! corrected duration is the least that the task may have taken. A lane waits for one buffer at a time, whichever subsystem
//! it is of, so its waits in all of them count.
//!
//! Memory: 24 bytes per wait and 16 per late task of a core that records, at most [`MOST`] of either; those beyond are
//! counted, or fall back on the lane's view.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read, Seek};

use sluice_core::layout::swimlane::{AicoreTaskRecord, AicpuTaskRecord};
use sluice_core::layout::{PoolKind, SubsystemId};

use super::intervals::Intervals;
use crate::capture::check::layout_of;
use crate::capture::segment::Segment;
use crate::capture::{Core, Items, Kind, Reader, WaitNote};

/// Most waits, and most late tasks with an end of their own, that are kept.
pub const MOST: usize = 1 << 20;
/// Most tasks of a core that wait for its record of them, or records for the task.
const MOST_OPEN: usize = 8192;

/// A task whose completion was seen late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stalled {
    /// From dispatch to finish, as recorded.
    pub raw_cycles: u64,
    /// The same without the waits of the lane.
    pub corrected_cycles: u64,
}

/// Late tasks, all together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Late {
    /// How many.
    pub tasks: u64,
    /// Their durations as recorded.
    pub raw_cycles: u64,
    /// Their durations without the waits of their lane.
    pub corrected_cycles: u64,
}

impl Late {
    /// Adds one more.
    pub fn add(&mut self, task: Stalled) {
        self.tasks += 1;
        self.raw_cycles = self.raw_cycles.saturating_add(task.raw_cycles);
        self.corrected_cycles = self.corrected_cycles.saturating_add(task.corrected_cycles);
    }
}

/// What is known of waits in a capture.
#[derive(Debug, Default)]
pub struct Stalls {
    lane_of_core: Vec<u32>,
    lanes: BTreeMap<u32, Intervals>,
    /// By core and token: when the core ended a task that its lane may have seen late.
    own_ends: HashMap<(u32, u32), u64>,
    kept: usize,
    omitted: u64,
}

impl Stalls {
    /// Reads the waits of a capture whose cores are `cores`, and if there are any, what is needed of its tasks. The reader is
    /// rewound first and walked once, or twice.
    pub fn read<R: Read + Seek>(reader: &mut Reader<R>, cores: &[Core]) -> io::Result<Self> {
        let lane_of_core = cores.iter().map(|core| core.lane).collect();
        let mut stalls = Self { lane_of_core, ..Self::default() };
        reader.rewind()?;
        while let Some(segment) = reader.read_of(|kind| kind == Kind::WAITS)? {
            if let Segment::Waits(waits) = segment {
                waits.for_each(|wait| stalls.add(&wait));
            }
        }
        stalls.lanes.values_mut().for_each(Intervals::put_in_order);
        if stalls.kept > 0 {
            stalls.find_own_ends(reader)?;
        }
        Ok(stalls)
    }

    /// Waits that were not kept.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// What a task of `core` is late, if it is.
    pub fn of(&self, core: u32, task: &AicpuTaskRecord) -> Option<Stalled> {
        let raw_cycles = task.finish_time.checked_sub(task.dispatch_time)?;
        let end = self.own_ends.get(&(core, task.reg_task_id)).copied().unwrap_or(0);
        let stalled = self.covered(core, end.max(task.dispatch_time), task.finish_time);
        (stalled > 0).then(|| Stalled { raw_cycles, corrected_cycles: raw_cycles - stalled })
    }

    fn add(&mut self, wait: &WaitNote) {
        if self.kept == MOST {
            self.omitted += 1;
        } else if wait.begin_cycles < wait.end_cycles {
            self.lanes.entry(wait.lane).or_default().push(wait.begin_cycles, wait.end_cycles);
            self.kept += 1;
        }
    }

    /// Cycles between `from` and `to` that the lane of `core` waited.
    fn covered(&self, core: u32, from: u64, to: u64) -> u64 {
        let lane = self.lane_of_core.get(core as usize).and_then(|lane| self.lanes.get(lane));
        lane.map_or(0, |waits| waits.between(from, to))
    }

    /// Looks for the cores' own ends of tasks that may be late.
    fn find_own_ends<R: Read + Seek>(&mut self, reader: &mut Reader<R>) -> io::Result<()> {
        let arch = reader.header().arch;
        let mut open: HashMap<u32, Open> = HashMap::new();
        reader.rewind()?;
        while let Some(segment) = reader.read_of(|kind| kind == Kind::BUFFER)? {
            let Segment::Buffer(buffer, records) = segment else { continue };
            let pool = buffer.pool();
            let is_known = layout_of(arch, pool)
                .is_some_and(|layout| layout.record_bytes == buffer.record_bytes as usize);
            if pool.subsystem.id() != Some(SubsystemId::Swimlane) || !is_known {
                continue;
            }
            let core = pool.instance;
            let open = open.entry(core).or_default();
            match pool.kind {
                PoolKind::AICPU_TASK => {
                    for task in Items::<AicpuTaskRecord>::new(records) {
                        let own_end = open.ends.remove(&task.reg_task_id);
                        if self.covered(core, task.dispatch_time, task.finish_time) > 0 {
                            match own_end {
                                Some(end) => self.keep(core, task.reg_task_id, end),
                                None => open.late(task.reg_task_id),
                            }
                        }
                    }
                }
                PoolKind::AICORE_TASK => {
                    for own in Items::<AicoreTaskRecord>::new(records) {
                        if open.late.remove(&own.reg_task_id) {
                            self.keep(core, own.reg_task_id, own.end_time);
                        } else {
                            open.end(own.reg_task_id, own.end_time);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn keep(&mut self, core: u32, token: u32, end: u64) {
        if self.own_ends.len() < MOST {
            self.own_ends.insert((core, token), end);
        }
    }
}

/// Of one core: late tasks whose own end has not been met, and ends whose task has not.
#[derive(Default)]
struct Open {
    late: BTreeSet<u32>,
    ends: BTreeMap<u32, u64>,
}

impl Open {
    fn late(&mut self, token: u32) {
        self.late.insert(token);
        if self.late.len() > MOST_OPEN {
            self.late.pop_first();
        }
    }

    fn end(&mut self, token: u32, end: u64) {
        self.ends.insert(token, end);
        if self.ends.len() > MOST_OPEN {
            self.ends.pop_first();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Cursor;

    use sluice_core::layout::ArchId;
    use zerocopy::{FromZeros, Immutable, IntoBytes};

    use super::*;
    use crate::capture::{BufferHeader, FileHeader, Gate, Manifest, Pool, RunId, Subsystem, Writer};

    pub(in crate::export) fn task(token: u32, dispatch_time: u64, finish_time: u64) -> AicpuTaskRecord {
        AicpuTaskRecord { dispatch_time, finish_time, reg_task_id: token, ..FromZeros::new_zeroed() }
    }

    fn own(token: u32, start_time: u64, end_time: u64) -> AicoreTaskRecord {
        let (task_token_raw, receive_to_start_cycles) = (0, 0);
        AicoreTaskRecord { start_time, end_time, task_token_raw, reg_task_id: token, receive_to_start_cycles }
    }

    /// A capture of two cores, the first of which lane 1 serves, made by hand.
    pub(in crate::export) struct Tale(Writer<Vec<u8>>);

    impl Tale {
        pub(in crate::export) fn begin() -> Self {
            let header =
                FileHeader { run: RunId(1), arch: ArchId::A5, clock_hz: 1_000_000_000, started_unix_ns: 0 };
            let writer = Writer::start(Vec::new(), &header).unwrap();
            let cores = [1, 0].map(|lane| Core { lane, ..Core::default() }).into();
            writer.append_manifest(&Manifest { cores, ..Manifest::default() }).unwrap();
            Self(writer)
        }

        pub(in crate::export) fn wait(self, subsystem: Subsystem, lane: u32, begin: u64, end: u64) -> Self {
            let wait = WaitNote {
                subsystem,
                lane,
                gate: Gate::FREE,
                kind: PoolKind::AICPU_TASK,
                instance: 0,
                gave_up: 0,
                begin_cycles: begin,
                end_cycles: end,
            };
            self.0.append_waits(&[wait]).unwrap();
            self
        }

        fn buffer<T: IntoBytes + Immutable>(
            self,
            kind: PoolKind,
            instance: u32,
            seq: u32,
            records: &[T],
        ) -> Self {
            let pool = Pool { subsystem: Subsystem::SWIMLANE, kind, instance };
            let header = BufferHeader::new(pool, seq, records.len() as u32, size_of::<T>() as u32);
            self.0.append_buffer(&header, records.as_bytes()).unwrap();
            self
        }

        pub(in crate::export) fn tasks(self, core: u32, seq: u32, records: &[AicpuTaskRecord]) -> Self {
            self.buffer(PoolKind::AICPU_TASK, core, seq, records)
        }

        pub(in crate::export) fn owns(self, core: u32, seq: u32, records: &[(u32, u64, u64)]) -> Self {
            let records: Vec<_> = records.iter().map(|&(token, start, end)| own(token, start, end)).collect();
            self.buffer(PoolKind::AICORE_TASK, core, seq, &records)
        }

        pub(in crate::export) fn reader(self) -> Reader<Cursor<Vec<u8>>> {
            Reader::new(Cursor::new(self.0.into_storage())).unwrap()
        }

        fn stalls(self) -> Stalls {
            let cores = [1, 0].map(|lane| Core { lane, ..Core::default() });
            Stalls::read(&mut self.reader(), &cores).unwrap()
        }
    }

    fn stalled(raw_cycles: u64, corrected_cycles: u64) -> Option<Stalled> {
        Some(Stalled { raw_cycles, corrected_cycles })
    }

    #[test]
    fn a_task_is_late_by_what_waits_of_its_lane_cover() {
        let stalls = Tale::begin()
            .wait(Subsystem::SWIMLANE, 1, 100, 200)
            .wait(Subsystem::SWIMLANE, 1, 300, 350)
            .wait(Subsystem::SWIMLANE, 0, 0, 1000)
            .stalls();
        for (dispatch, finish, expected) in [
            (0, 100, None),
            (200, 300, None),
            (350, 400, None),
            (0, 101, stalled(101, 100)),
            (90, 210, stalled(120, 20)),
            (120, 180, stalled(60, 0)),
            (199, 201, stalled(2, 1)),
            (50, 400, stalled(350, 200)),
            (400, 50, None),
        ] {
            assert_eq!(stalls.of(0, &task(1, dispatch, finish)), expected, "{dispatch} to {finish}");
        }
        assert_eq!(stalls.of(2, &task(1, 0, 400)), None, "nobody says whose the core is");
    }

    #[test]
    fn waits_in_several_subsystems_count_once_where_they_overlap() {
        let stalls = Tale::begin()
            .wait(Subsystem::PMU, 1, 150, 250)
            .wait(Subsystem::SWIMLANE, 1, 100, 200)
            .wait(Subsystem::SCOPE_STATS, 1, 120, 130)
            .wait(Subsystem::PMU, 1, 250, 260)
            .stalls();
        assert_eq!(stalls.of(0, &task(1, 0, 300)), stalled(300, 140));
    }

    #[test]
    fn before_the_cores_own_end_a_wait_makes_no_task_late() {
        let tasks = [task(1, 0, 300), task(2, 0, 300), task(3, 0, 300), task(4, 0, 300)];
        let owns = [(1, 10, 90), (2, 10, 150), (3, 10, 250), (4, 10, 300)];
        let tale = || Tale::begin().wait(Subsystem::SWIMLANE, 1, 100, 200);
        for stalls in [
            tale().tasks(0, 0, &tasks).owns(0, 0, &owns).stalls(),
            tale().owns(0, 0, &owns).tasks(0, 0, &tasks).stalls(),
            // The tasks of another core have the same tokens.
            tale().owns(1, 0, &[(1, 10, 250)]).tasks(0, 0, &tasks).owns(0, 0, &owns).stalls(),
        ] {
            let of = |token| stalls.of(0, &task(token, 0, 300));
            assert_eq!([of(1), of(2), of(3), of(4)], [stalled(300, 200), stalled(300, 250), None, None]);
        }
    }

    #[test]
    fn without_the_cores_own_end_the_least_is_told() {
        let stalls = Tale::begin()
            .wait(Subsystem::SWIMLANE, 1, 100, 200)
            .tasks(0, 0, &[task(1, 0, 300)])
            .owns(0, 0, &[(2, 10, 90)])
            .stalls();
        assert_eq!(stalls.of(0, &task(1, 0, 300)), stalled(300, 200));
    }

    #[test]
    fn late_tasks_add_up() {
        let mut late = Late::default();
        late.add(Stalled { raw_cycles: 300, corrected_cycles: 200 });
        late.add(Stalled { raw_cycles: 50, corrected_cycles: 0 });
        assert_eq!(late, Late { tasks: 2, raw_cycles: 350, corrected_cycles: 200 });
    }
}
