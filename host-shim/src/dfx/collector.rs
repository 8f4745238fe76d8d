//! A collector thread: copies each buffer out, hands its records on, and lets the buffer go back.
//!
//! A buffer goes back whatever became of its records: a copy or a sink that fails is tried a few times, then the records are
//! counted as lost and the buffer is the device's again. While buffers come in quick succession the thread does not sleep but
//! serves the device between them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluice_core::gate::Gate;
use sluice_core::layout::args_dump::Record;
use sluice_core::layout::{BufferLayout, Instance, Lane, PoolKind, Region, SubsystemId};
use sluice_core::mem::{CopyMemory, DevAddr, Fault, Word};

use super::account::FreezeStats;
use super::again::attempt;
use super::arena::{ArenaPlace, PayloadsUnderWay, has_payload, records_of};
use super::ledger::{BufferId, Directory};
use super::pipe::WaitPipe;
use super::server::ToCollect;
use super::service::{Orders, Serve};
use super::sink::{BufferMeta, PayloadMeta, Sink, Wait};
use super::waits::UNDER_WAY;
use super::{Full, Pipe};

/// Longest wait for a buffer before the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);
/// How long after a buffer the thread looks for the next one before it sleeps.
const HOT: Duration = Duration::from_micros(100);
/// Longest sleep in a pause before the thread looks whether it is over.
const PAUSE_LOOK: Duration = Duration::from_millis(1);
/// Most bytes of a payload that are copied at once.
const PIECE_BYTES: usize = 4 << 20;

/// Waits that are handed on at once while there are buffers to collect.
const WAITS: usize = 256;

/// What was collected of one pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    /// Records the sink has.
    pub(super) collected: u64,
    /// Records that could not be copied, or that the sink would not take.
    pub(super) copy_failed: u64,
    /// Most records that stood in buffers of which not even the count could be read.
    pub(super) uncounted: u64,
    /// Buffers.
    pub(super) buffers: u64,
    /// Payloads that lie nowhere in the arena.
    pub(super) bad_payloads: u64,
    /// Payloads of records that could not be copied, or that the sink would not take.
    pub(super) lost_payloads: u64,
}

/// Payloads of one lane that are safe.
#[derive(Clone, Copy, Default, Debug)]
struct Completed {
    count: u64,
    /// The lane does not know yet.
    is_owed: bool,
}

/// What was collected of one subsystem.
#[derive(Clone, Debug, Default)]
pub(super) struct Collected {
    /// By pool, in the directory's order.
    pub(super) pools: Vec<Tally>,
    /// Freezes of the push gate.
    pub(super) rq: FreezeStats,
    /// Freezes of the pop gate.
    pub(super) fq: FreezeStats,
}

impl Collected {
    /// Adds what another collector has of the same subsystem.
    pub(super) fn add(&mut self, other: &Self) {
        for (tally, other) in self.pools.iter_mut().zip(&other.pools) {
            tally.collected += other.collected;
            tally.copy_failed += other.copy_failed;
            tally.uncounted += other.uncounted;
            tally.buffers += other.buffers;
            tally.bad_payloads += other.bad_payloads;
            tally.lost_payloads += other.lost_payloads;
        }
        self.rq.add(&other.rq);
        self.fq.add(&other.fq);
    }
}

/// One subsystem as collectors know it.
pub(super) struct Source {
    pub(super) subsystem: SubsystemId,
    pub(super) region: Region,
    pub(super) directory: Arc<Directory>,
    pub(super) returned: Arc<WaitPipe<BufferId>>,
    /// By lane; none of a subsystem without payloads.
    pub(super) arenas: Vec<ArenaPlace>,
    pub(super) payloads: Arc<PayloadsUnderWay>,
    pub(super) waits: Arc<WaitPipe<Wait>>,
}

impl Source {
    fn layout_of(&self, kind: PoolKind) -> Option<BufferLayout> {
        self.region.array(kind).map(|array| array.buffer)
    }
}

pub(super) struct Collector<M> {
    memory: M,
    sources: Arc<[Source]>,
    pipes: Arc<[WaitPipe<ToCollect>]>,
    /// Which of the pipes is this collector's.
    number: usize,
    sink: Arc<dyn Sink>,
    desk: Arc<dyn Serve>,
    bytes: Vec<u8>,
    /// Bytes of payloads on their way.
    piece: Vec<u8>,
    /// Payloads that are safe, by part and lane, of the pools that are this collector's.
    completed: Vec<Vec<Completed>>,
    waits: Vec<Wait>,
    pub(super) collected: Vec<Collected>,
    refusals_noted: u32,
}

impl<M: CopyMemory> Collector<M> {
    pub(super) fn new(
        memory: M,
        sources: Arc<[Source]>,
        pipes: Arc<[WaitPipe<ToCollect>]>,
        number: usize,
        sink: Arc<dyn Sink>,
        desk: Arc<dyn Serve>,
    ) -> Self {
        let arrays = sources.iter().flat_map(|source| source.region.arrays());
        let largest = arrays.map(|array| array.buffer.bytes).max().unwrap_or(0);
        let empty = |source: &Source| Collected {
            pools: vec![Tally::default(); source.directory.pools().len()],
            ..Collected::default()
        };
        let collected = sources.iter().map(empty).collect();
        let completed = sources.iter().map(|source| vec![Completed::default(); source.arenas.len()]);
        let completed = completed.collect();
        let has_arenas = sources.iter().any(|source| !source.arenas.is_empty());
        let piece = vec![0; if has_arenas { PIECE_BYTES } else { 0 }];
        let (bytes, waits) = (vec![0; largest], Vec::with_capacity(UNDER_WAY));
        Self {
            memory,
            sources,
            pipes,
            number,
            sink,
            desk,
            bytes,
            piece,
            completed,
            waits,
            collected,
            refusals_noted: 0,
        }
    }

    /// Collects until told to stop and nothing is left. A sink that panics ends the session's service too.
    pub(super) fn run(mut self, orders: &Orders) -> Vec<Collected> {
        let _guard = TellIfPanicking(orders);
        let mut last_buffer = Instant::now();
        while !orders.abandoned.load(Ordering::Acquire) {
            if orders.is_paused() {
                std::thread::sleep(PAUSE_LOOK);
                continue;
            }
            let pipe = &self.pipes[self.number];
            let is_hot = last_buffer.elapsed() < HOT;
            let item = if is_hot {
                pipe.pop()
            } else {
                self.desk.leave();
                pipe.pop_wait(LOOK)
            };
            let is_busy = item.is_some();
            if let Some(item) = item {
                self.take(item);
                last_buffer = Instant::now();
            }
            self.hand_on_waits(if is_busy || is_hot { WAITS } else { 1 });
            if !is_busy && !self.acknowledge_all() && orders.collector_stop.load(Ordering::Acquire) {
                self.hand_on_waits(1);
                break;
            }
            if !self.desk.try_turn(orders.is_paused()) && !is_busy {
                std::thread::yield_now();
            }
        }
        self.collected
    }

    /// Hands on the waits of each subsystem that has so many of them. The first collector does that.
    pub(super) fn hand_on_waits(&mut self, at_least: usize) {
        if self.number != 0 {
            return;
        }
        for part in 0..self.sources.len() {
            let waits = &self.sources[part].waits;
            if waits.len() < at_least {
                continue;
            }
            while self.waits.len() < UNDER_WAY
                && let Some(wait) = waits.pop()
            {
                self.waits.push(wait);
            }
            if let Err(error) = attempt(|| self.sink.waits(&self.waits)) {
                let text = format!("{} waits not recorded: {error}", self.waits.len());
                self.note(&text);
            }
            self.waits.clear();
        }
    }

    pub(super) fn take(&mut self, item: ToCollect) {
        match item {
            ToCollect::Buffer { part, full, drained } => {
                self.collect(part, full, drained);
                let Source { directory, returned, payloads, .. } = &self.sources[part];
                payloads.finish(directory.pool(directory.pool_of(full.buffer)).instance);
                returned.push(full.buffer);
            }
            ToCollect::Freeze { part, freeze } => {
                if let Err(error) = self.sink.freeze(&freeze) {
                    self.note(&format!("freeze not recorded: {error}"));
                }
                let stats = match freeze.gate {
                    Gate::Ready => &mut self.collected[part].rq,
                    Gate::Free => &mut self.collected[part].fq,
                };
                stats.note(freeze.released_ns.saturating_sub(freeze.opened_ns));
            }
        }
    }

    fn collect(&mut self, part: usize, full: Full, drained: Instant) {
        let Source { subsystem, directory, .. } = &self.sources[part];
        let pool = directory.pool_of(full.buffer);
        let named = directory.pool(pool);
        let (at, kind, instance) = (directory.address(full.buffer), named.kind, named.instance);
        let Some(layout) = self.sources[part].layout_of(kind) else { return };
        let tally = &mut self.collected[part].pools[pool.0 as usize];
        tally.buffers += 1;
        let buffer =
            |what: &str| format!("{subsystem} pool {kind} {}, buffer {}: {what}", instance.0, full.sequence);
        // The device's number is read once.
        let count = match attempt(|| self.memory.word(at.offset(layout.count as u64))?.try_load()) {
            Ok(count) if count <= layout.capacity => count,
            Ok(count) => {
                let text = buffer(&format!("{count} records stated, room for {}", layout.capacity));
                self.note(&text);
                return self.give_up_payloads(part, &full);
            }
            Err(fault) => {
                tally.uncounted += u64::from(layout.capacity);
                let text = buffer(&format!("count not copied: {fault}"));
                self.note(&text);
                return self.give_up_payloads(part, &full);
            }
        };
        let mut bytes = std::mem::take(&mut self.bytes);
        let records = &mut bytes[..count as usize * layout.record_bytes];
        self.collect_records(part, &full, drained, count, records);
        self.bytes = bytes;
    }

    /// Copies the records of a buffer out, and the payloads that they have, and hands all of them on.
    fn collect_records(
        &mut self,
        part: usize,
        full: &Full,
        drained: Instant,
        count: u32,
        records: &mut [u8],
    ) {
        let Source { subsystem, directory, .. } = &self.sources[part];
        let pool = directory.pool_of(full.buffer);
        let named = directory.pool(pool);
        let (at, kind, instance) = (directory.address(full.buffer), named.kind, named.instance);
        let Some(layout) = self.sources[part].layout_of(kind) else { return };
        let buffer =
            |what: &str| format!("{subsystem} pool {kind} {}, buffer {}: {what}", instance.0, full.sequence);
        let tally = &mut self.collected[part].pools[pool.0 as usize];
        if let Err(fault) = attempt(|| read(&self.memory, at.offset(layout.records as u64), records)) {
            tally.copy_failed += u64::from(count);
            let text = buffer(&format!("{count} records not copied: {fault}"));
            self.note(&text);
            return self.give_up_payloads(part, full);
        }
        let meta =
            BufferMeta { subsystem: *subsystem, kind, instance, sequence: full.sequence, count, drained };
        let payloads = self.collect_payloads(part, &meta, records);
        let written = payloads.and_then(|payloads| {
            attempt(|| self.sink.buffer(&meta, records))?;
            Ok(payloads)
        });
        let payloads = if self.completed[part].is_empty() {
            0
        } else {
            let found = || records_of(records).filter(has_payload).count() as u64;
            said(full, layout).unwrap_or_else(found)
        };
        let tally = &mut self.collected[part].pools[pool.0 as usize];
        match written {
            Ok(bad_payloads) => {
                tally.collected += u64::from(count);
                tally.bad_payloads += bad_payloads;
            }
            Err(error) => {
                tally.copy_failed += u64::from(count);
                tally.lost_payloads += payloads;
                let text = format!("{meta}: {count} records not written: {error}");
                self.note(&text);
            }
        }
        self.complete(part, instance, payloads);
    }

    /// Nobody gets the payloads of a buffer that cannot be read: the lane must not wait for them.
    fn give_up_payloads(&mut self, part: usize, full: &Full) {
        let Source { directory, .. } = &self.sources[part];
        let pool = directory.pool_of(full.buffer);
        let named = directory.pool(pool);
        let Some(layout) = self.sources[part].layout_of(named.kind) else { return };
        let (instance, payloads) = (named.instance, said(full, layout).unwrap_or(0));
        self.collected[part].pools[pool.0 as usize].lost_payloads += payloads;
        self.complete(part, instance, payloads);
    }

    /// Hands on the payloads of the records of a buffer. How many of them lie nowhere.
    fn collect_payloads(&mut self, part: usize, meta: &BufferMeta, records: &[u8]) -> io::Result<u64> {
        let Some(&arena) = self.sources[part].arenas.get(meta.instance.0 as usize) else { return Ok(0) };
        let mut bad = 0;
        for (number, record) in (0..).zip(records_of(records)) {
            if !has_payload(&record) {
                continue;
            }
            match arena.payload_at(&record) {
                Some(at) => self.collect_payload(meta, number, &record, at)?,
                None => {
                    bad += 1;
                    let (offset, size) = (record.payload_offset, record.payload_size);
                    self.note(&format!(
                        "{meta}: record {number} has {size} bytes at {offset}, which is no place in its arena"
                    ));
                }
            }
        }
        Ok(bad)
    }

    /// Reads the bytes of a payload, and no others, piece by piece.
    fn collect_payload(
        &mut self,
        buffer: &BufferMeta,
        number: u32,
        record: &Record,
        at: DevAddr,
    ) -> io::Result<()> {
        let mut meta = PayloadMeta {
            lane: Lane(buffer.instance.0),
            sequence: buffer.sequence,
            record: number,
            task: record.task_id,
            arg_index: record.arg_index,
            stage: record.stage,
            offset_bytes: 0,
            total_bytes: record.payload_size,
        };
        while meta.offset_bytes < meta.total_bytes {
            let bytes = (meta.total_bytes - meta.offset_bytes).min(PIECE_BYTES as u64) as usize;
            let piece = &mut self.piece[..bytes];
            attempt(|| self.memory.read_bytes(at.offset(meta.offset_bytes), piece))
                .map_err(io::Error::other)?;
            attempt(|| self.sink.payload(&meta, piece))?;
            meta.offset_bytes += bytes as u64;
        }
        Ok(())
    }

    /// All that so many payloads of a lane were good for is done: the lane may have their place.
    fn complete(&mut self, part: usize, lane: Instance, payloads: u64) {
        let Some(completed) = self.completed[part].get_mut(lane.0 as usize) else { return };
        completed.count += payloads;
        completed.is_owed |= payloads > 0;
        self.acknowledge(part, lane.0 as usize);
    }

    /// Tells a lane what it has not been told yet. Whether it has now.
    fn acknowledge(&mut self, part: usize, lane: usize) -> bool {
        let (arena, completed) = (&self.sources[part].arenas[lane], &mut self.completed[part][lane]);
        if completed.is_owed {
            completed.is_owed = arena.acknowledge(&self.memory, completed.count).is_err();
        }
        !completed.is_owed
    }

    /// Tries again what lanes could not be told. Whether one of them has been told.
    fn acknowledge_all(&mut self) -> bool {
        let mut was_told = false;
        for part in 0..self.completed.len() {
            for lane in 0..self.completed[part].len() {
                was_told |= self.completed[part][lane].is_owed && self.acknowledge(part, lane);
            }
        }
        was_told
    }

    fn note(&mut self, what: &str) {
        if self.refusals_noted < 2 {
            self.refusals_noted += 1;
            tracing::warn!("{what}");
        }
    }
}

/// Payloads of a buffer as its lane says; `None` where it does not say, or what cannot be.
fn said(full: &Full, layout: BufferLayout) -> Option<u64> {
    full.beside.get().filter(|&payloads| payloads <= layout.capacity).map(u64::from)
}

fn read<M: CopyMemory>(memory: &M, from: DevAddr, into: &mut [u8]) -> Result<(), Fault> {
    if into.is_empty() { Ok(()) } else { memory.read_bytes(from, into) }
}

struct TellIfPanicking<'a>(&'a Orders);

impl Drop for TellIfPanicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.collector_gone.store(true, Ordering::Release);
        }
    }
}
