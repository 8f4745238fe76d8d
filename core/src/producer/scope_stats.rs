//! The ScopeStats recorder: how full rings and heap are whenever a scope begins or ends.
//!
//! | pool | instance | record | when |
//! |---|---|---|---|
//! | ScopeStats | 0 | site, depth, begin or end, occupancy | a scope was entered or left |
//!
//! One lane orchestrates, and it alone has the pool; every other lane has nothing to record and says so. Scopes nest on a
//! stack ([`Scopes`]), one for each ring. Those deeper than the contract's depth are counted, so that what is left again is
//! the scope that was entered; their records are lost to `no_buffer`. Scopes that run beside each other inside one are
//! *leaves*: nothing nests in them, so they are not on the stack.

use core::ops::Range;

use heapless::Vec;
use zerocopy::FromZeros;

use super::{AppendError, AttachError, Attachment, DropCause, Lane, Pool, Records, Subsystem, SwitchEnd};
use crate::gate::WaitEnv;
use crate::layout::extension::LaneActivity;
use crate::layout::scope_stats::{BUFFER, MAX_SCOPE_DEPTH, Record, SITE_BYTES, ScopePhase};
use crate::layout::{self, BufferLayout, Instance, PoolKind};
use crate::mem::Memory;

/// The ScopeStats subsystem.
#[derive(Debug)]
pub struct ScopeStats;

impl Subsystem for ScopeStats {}

/// The pool of scopes.
#[derive(Debug)]
pub struct ScopeRecords;

impl Records for ScopeRecords {
    type Record = Record;
    type Hooks<M: Memory> = ();
    const LAYOUT: BufferLayout = BUFFER;
    const KIND: PoolKind = PoolKind::SOLE;
}

/// Where a scope is, in words. Asked for every record: no name is remembered by where it lies.
pub trait Site {
    /// The source file, or what stands for one; cut to the 31 bytes that a record holds.
    fn file(&self) -> &str;

    /// The line, or what stands for one.
    fn line(&self) -> i32;
}

/// The scopes that are open on one ring, outermost first.
#[derive(Clone, Debug)]
pub struct Scopes<S> {
    open: Vec<S, MAX_SCOPE_DEPTH>,
    /// Scopes inside the deepest of those.
    too_deep: u32,
}

/// What was left.
enum Left<S> {
    /// A scope that has a record of its begin.
    Recorded { site: S, depth: i16 },
    /// One that was too deep for it.
    TooDeep,
    /// Nothing was open.
    Nothing,
}

impl<S> Scopes<S> {
    /// None open.
    pub const fn new() -> Self {
        Self { open: Vec::new(), too_deep: 0 }
    }

    /// How many are open.
    pub fn depth(&self) -> u32 {
        self.open.len() as u32 + self.too_deep
    }

    /// Forgets all that are open.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// The depth of the new scope; `None` when that is more than a record may say.
    fn enter(&mut self, site: S) -> Option<i16> {
        let depth = self.open.len() as i16;
        match self.open.push(site) {
            Ok(()) => Some(depth),
            Err(_) => {
                self.too_deep = self.too_deep.saturating_add(1);
                None
            }
        }
    }

    fn leave(&mut self) -> Left<S> {
        if let Some(fewer) = self.too_deep.checked_sub(1) {
            self.too_deep = fewer;
            return Left::TooDeep;
        }
        match self.open.pop() {
            Some(site) => Left::Recorded { site, depth: self.open.len() as i16 },
            None => Left::Nothing,
        }
    }
}

impl<S> Default for Scopes<S> {
    fn default() -> Self {
        Self::new()
    }
}

/// How full things are. Ranges run from the oldest that is still held to the newest; counters run freely.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Occupancy {
    /// Tasks of the ring.
    pub tasks: Range<u32>,
    /// Entries of the ring's dependency pool.
    pub dependencies: Range<u32>,
    /// Bytes of the heap, as they have been handed out and taken back in all.
    pub heap_bytes: Range<u64>,
    /// Live entries of the tensor map.
    pub tensors: u32,
}

fn record(site: &impl Site, depth: i16, ring: i16, phase: ScopePhase, at: &Occupancy) -> Record {
    let mut file = [0; SITE_BYTES];
    let name = site.file();
    let mut bytes = name.len().min(SITE_BYTES - 1);
    while !name.is_char_boundary(bytes) {
        bytes -= 1;
    }
    file[..bytes].copy_from_slice(&name.as_bytes()[..bytes]);
    Record {
        site_file_basename: file,
        site_line: site.line(),
        heap_start: at.heap_bytes.start,
        heap_end: at.heap_bytes.end,
        task_start: at.tasks.start as i32,
        task_end: at.tasks.end as i32,
        dep_pool_start: at.dependencies.start as i32,
        dep_pool_end: at.dependencies.end as i32,
        tensormap_used: at.tensors as i32,
        depth,
        ring_id: ring,
        phase,
        ..FromZeros::new_zeroed()
    }
}

/// What one lane records.
pub struct ScopeRecorder<M: Memory> {
    lane: Lane<M, ScopeStats>,
    pool: Option<Pool<M, ScopeRecords, ScopeStats>>,
}

impl<M: Memory> ScopeRecorder<M> {
    /// A recorder for `lane`, which records scopes if it `orchestrates`.
    ///
    /// # Errors
    /// A lane that the region does not have, or memory that cannot be reached.
    pub fn attach(
        memory: &M,
        attachment: &Attachment,
        lane: layout::Lane,
        orchestrates: bool,
    ) -> Result<Self, AttachError> {
        let recorder = Self {
            lane: attachment.lane(memory, lane)?,
            pool: orchestrates.then(|| attachment.pool(memory, Instance(0))).transpose()?,
        };
        recorder.lane.show(LaneActivity::RUNNING);
        Ok(recorder)
    }

    /// A scope at `site` begins inside those of `scopes`, which belong to `ring`.
    ///
    /// # Errors
    /// [`AppendError`] when the record is lost; it is counted.
    pub fn begin<S: Site + Copy>(
        &mut self,
        scopes: &mut Scopes<S>,
        site: S,
        ring: i16,
        at: &Occupancy,
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        match scopes.enter(site) {
            Some(depth) => self.append(&record(&site, depth, ring, ScopePhase::BEGIN, at), env),
            None => self.forgo(),
        }
    }

    /// The innermost scope of `scopes` ends. Where none is open nothing is recorded.
    ///
    /// # Errors
    /// [`AppendError`] when the record is lost; it is counted.
    pub fn end<S: Site>(
        &mut self,
        scopes: &mut Scopes<S>,
        ring: i16,
        at: &Occupancy,
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        match scopes.leave() {
            Left::Recorded { site, depth } => {
                self.append(&record(&site, depth, ring, ScopePhase::END, at), env)
            }
            Left::TooDeep => self.forgo(),
            Left::Nothing => Ok(()),
        }
    }

    /// A leaf at `site` inside `scopes` begins or ends.
    ///
    /// # Errors
    /// [`AppendError`] when the record is lost; it is counted.
    pub fn leaf<S: Site>(
        &mut self,
        scopes: &Scopes<S>,
        site: &S,
        phase: ScopePhase,
        ring: i16,
        at: &Occupancy,
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        match scopes.depth() as usize {
            depth @ 0..MAX_SCOPE_DEPTH => self.append(&record(site, depth as i16, ring, phase, at), env),
            _ => self.forgo(),
        }
    }

    fn append(&mut self, record: &Record, env: &mut impl WaitEnv) -> Result<(), AppendError> {
        match &mut self.pool {
            Some(pool) => self.lane.append(pool, record, env),
            None => Ok(()),
        }
    }

    fn forgo(&mut self) -> Result<(), AppendError> {
        match &mut self.pool {
            Some(pool) => self.lane.forgo(pool, DropCause::NoBuffer),
            None => Ok(()),
        }
    }

    /// Publishes what there is now, for a host that is not to wait for more. Blocks up to one deadline.
    pub fn publish(&mut self, env: &mut impl WaitEnv) {
        if let Some(pool) = &mut self.pool {
            let _: SwitchEnd = self.lane.flush(pool, env);
        }
    }

    /// Publishes everything and tells the host so. Blocks as [`publish`](Self::publish) does.
    pub fn flush(&mut self, env: &mut impl WaitEnv) {
        self.publish(env);
        self.lane.show(LaneActivity::FLUSHED);
        self.lane.show_flushed();
    }

    /// The lane, for its counters.
    pub fn lane(&self) -> &Lane<M, ScopeStats> {
        &self.lane
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use std::vec::Vec;

    use super::*;
    use crate::layout::scope_stats::{RECORDS, region};
    use crate::layout::{ArchId, Region, Shape, SubsystemId};
    use crate::mem::testing::{BlockMemory, Poke, block};
    use crate::mem::{CopyMemory, DevAddr};
    use crate::producer::still::Still;
    use zerocopy::FromBytes;

    const BASE: DevAddr = DevAddr(0x10_0000);
    const BUFFER_AT: DevAddr = DevAddr(BASE.0 + 0x1_0000);

    /// A site by number.
    impl Site for u32 {
        fn file(&self) -> &str {
            "by_number"
        }

        fn line(&self) -> i32 {
            *self as i32
        }
    }

    struct Bench {
        memory: BlockMemory,
        region: Region,
        recorder: ScopeRecorder<BlockMemory>,
    }

    fn attach(memory: &BlockMemory, shape: Shape) -> ScopeRecorder<BlockMemory> {
        let attachment =
            Attachment::open(memory, SubsystemId::ScopeStats, BASE, DevAddr::NULL, shape).unwrap();
        ScopeRecorder::attach(memory, &attachment, layout::Lane(0), true).unwrap()
    }

    fn bench() -> Bench {
        let memory = block(BASE, 0x2_0000);
        let shape = Shape::new(ArchId::A5, 1, 1).unwrap();
        let region = region(shape);
        let pool = region.pool(PoolKind::SOLE, Instance(0)).unwrap();
        memory.poke_address(BASE.offset(pool.free_ptrs as u64), BUFFER_AT);
        memory.poke(BASE.offset(pool.free_tail as u64), 1);
        Bench { recorder: attach(&memory, shape), memory, region }
    }

    impl Bench {
        fn records(&self) -> Vec<Record> {
            let count = self.memory.peek(BUFFER_AT.offset(BUFFER.count as u64));
            let record = |index| {
                let mut bytes = [0; size_of::<Record>()];
                let at = BUFFER_AT.offset(BUFFER.record(index).unwrap() as u64);
                self.memory.read_bytes(at, &mut bytes).unwrap();
                Record::read_from_bytes(&bytes).unwrap()
            };
            (0..count).map(record).collect()
        }

        /// Attempts and losses.
        fn counts(&self) -> (u32, u32) {
            let pool = self.region.pool(PoolKind::SOLE, Instance(0)).unwrap();
            let get = |offset: usize| self.memory.peek(BASE.offset(offset as u64));
            (get(pool.total_records.unwrap()), get(pool.dropped_records))
        }
    }

    #[test]
    fn scopes_too_deep_to_record_leave_the_depth_right() {
        let mut bench = bench();
        let mut scopes = Scopes::new();
        let at = Occupancy::default();
        let deepest = MAX_SCOPE_DEPTH as u32;
        for site in 0..deepest + 2 {
            let begun = bench.recorder.begin(&mut scopes, site, 0, &at, &mut Still);
            assert_eq!(begun.is_ok(), site < deepest, "{site}");
        }
        assert_eq!(scopes.depth(), deepest + 2);
        for _ in 0..2 {
            assert!(bench.recorder.end(&mut scopes, 0, &at, &mut Still).is_err());
        }
        assert_eq!(scopes.depth(), deepest);
        for _ in 0..deepest {
            bench.recorder.end(&mut scopes, 0, &at, &mut Still).unwrap();
        }
        bench.recorder.end(&mut scopes, 0, &at, &mut Still).expect("nothing is open, nothing to record");
        assert_eq!(scopes.depth(), 0);
        assert_eq!(bench.counts(), (2 * deepest + 4, 4));
        let records = bench.records();
        let (begins, ends) = records.split_at(MAX_SCOPE_DEPTH);
        for (begin, end) in begins.iter().zip(ends.iter().rev()) {
            assert_eq!((begin.phase, end.phase), (ScopePhase::BEGIN, ScopePhase::END));
            assert_eq!((begin.site_line, begin.depth), (end.site_line, end.depth));
            assert_eq!(begin.site_line, i32::from(begin.depth));
        }
        assert_eq!(records.len(), 2 * MAX_SCOPE_DEPTH);
        const { assert!(2 * MAX_SCOPE_DEPTH < RECORDS) };
    }

    /// A site whose name lies in memory that is used again.
    #[derive(Clone, Copy)]
    struct Loaded<'a>(&'a Cell<&'static str>);

    impl Site for Loaded<'_> {
        fn file(&self) -> &str {
            self.0.get()
        }

        fn line(&self) -> i32 {
            7
        }
    }

    #[test]
    fn a_site_of_an_earlier_run_is_not_named() {
        let mut bench = bench();
        let name = Cell::new("first.rs");
        let shape = bench.region.shape();
        for run in ["first.rs", "second.rs"] {
            name.set(run);
            let mut scopes = Scopes::new();
            let at = Occupancy::default();
            bench.recorder.begin(&mut scopes, Loaded(&name), 0, &at, &mut Still).unwrap();
            bench.recorder.end(&mut scopes, 0, &at, &mut Still).unwrap();
            for record in bench.records() {
                let file = record.site_file_basename;
                assert_eq!(&file[..run.len() + 1], [run.as_bytes(), &[0]].concat());
            }
            // The next run has the same memory, code and sites.
            let pool = bench.region.pool(PoolKind::SOLE, Instance(0)).unwrap();
            bench.memory.poke(BASE.offset(pool.free_tail as u64), 2);
            bench
                .memory
                .poke_address(BASE.offset(pool.free_slot(1, bench.region.free_slots()) as u64), BUFFER_AT);
            bench.recorder = attach(&bench.memory, shape);
        }
    }

    #[test]
    fn a_record_says_how_full_everything_is() {
        let mut bench = bench();
        let mut scopes = Scopes::new();
        let wrapped = |newest: u32| newest.wrapping_sub(3)..newest;
        let at = Occupancy {
            tasks: 3..5,
            dependencies: wrapped(2),
            heap_bytes: 1 << 40..(1 << 40) + 7,
            tensors: 9,
        };
        bench.recorder.begin(&mut scopes, 11u32, 2, &at, &mut Still).unwrap();
        bench.recorder.leaf(&scopes, &12, ScopePhase::END, 2, &at, &mut Still).unwrap();
        let records = bench.records();
        assert_eq!(
            records.iter().map(|one| (one.site_line, one.depth)).collect::<Vec<_>>(),
            [(11, 0), (12, 1)]
        );
        for record in records {
            assert_eq!((record.task_start, record.task_end), (3, 5));
            assert_eq!((record.dep_pool_start, record.dep_pool_end), (-1, 2), "counters run freely");
            assert_eq!((record.heap_start, record.heap_end), (1 << 40, (1 << 40) + 7));
            assert_eq!((record.tensormap_used, record.ring_id), (9, 2));
        }
    }

    #[test]
    fn a_name_is_cut_between_its_characters() {
        struct Long;
        impl Site for Long {
            fn file(&self) -> &str {
                "a_name_of_thirty_bytes_and_an_äöü"
            }

            fn line(&self) -> i32 {
                0
            }
        }
        let record = record(&Long, 0, 0, ScopePhase::BEGIN, &Occupancy::default());
        let file = core::str::from_utf8(&record.site_file_basename).expect("whole characters");
        assert_eq!(file.trim_end_matches('\0'), "a_name_of_thirty_bytes_and_an_");
    }
}
