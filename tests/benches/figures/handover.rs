//! What a lane hands over to its host: records per second from the first append to the end of the stop.
//!
//! ```text
//!   core 0   lane ── append … append ──► flush
//!   core 1   service, collector ── drain, copy out, count, refill ──► stop
//! ```
//!
//! The baselines are the same lane appending round as many buffers with nobody to hand them to, and, for the capture, the same
//! bytes written to a file in the same pieces.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use sluice_core::layout::swimlane::{AicpuTaskRecord, Level};
use sluice_core::layout::{ArchId, PoolKind, Shape, SubsystemId};
use sluice_core::mem::DevAddr;
use sluice_core::producer::swimlane::AicpuTasks;
use sluice_core::producer::{PoolState, Records};
use sluice_host::capture::{BufferHeader, FileHeader, Pool, RunId, Writer};
use sluice_host::dfx::{BufferCounts, BufferMeta, DfxConfig, Freeze, Session, Sink, SubsystemConfig};
use zerocopy::FromZeros;

use crate::Figure;
use crate::bare::{BareDevice, BareLane};
use crate::cores::{Cores, pin};
use crate::windows::Effort;

/// Buffers of each pool.
const BUFFERS: u32 = 4;

/// Records of a pool between two looks whether the host is to be told of full buffers.
const BATCH: u64 = 64;

/// A session's own memory would do for less; this many make its beginning and end small beside them.
const fn records(effort: Effort) -> u64 {
    match effort {
        Effort::Full => 50_000_000,
        Effort::Quick => 1_000_000,
    }
}

const fn rounds(effort: Effort) -> u32 {
    match effort {
        Effort::Full => 8,
        Effort::Quick => 1,
    }
}

fn shape(cores: u32) -> anyhow::Result<Shape> {
    Ok(Shape::new(ArchId::A2a3, 1, cores)?)
}

fn config(shape: Shape) -> DfxConfig {
    let buffers = BufferCounts::uniform(1).with(PoolKind::AICPU_TASK, BUFFERS);
    DfxConfig::new(shape).with(
        SubsystemId::Swimlane,
        SubsystemConfig {
            level: Level::TASK.0,
            buffers,
            ..SubsystemConfig::new(SubsystemId::Swimlane, shape)
        },
    )
}

fn task(number: u64) -> AicpuTaskRecord {
    AicpuTaskRecord { dispatch_time: number, finish_time: number, ..AicpuTaskRecord::new_zeroed() }
}

/// Counts what it is given.
#[derive(Default)]
pub(crate) struct Counting(AtomicU64);

impl Sink for Counting {
    fn buffer(&self, meta: &BufferMeta, _records: &[u8]) -> io::Result<()> {
        self.0.fetch_add(meta.count.into(), Ordering::Relaxed);
        Ok(())
    }

    fn freeze(&self, _freeze: &Freeze) -> io::Result<()> {
        Ok(())
    }
}

/// Writes what it is given into a capture.
struct IntoCapture(Writer<File>);

impl Sink for IntoCapture {
    fn buffer(&self, meta: &BufferMeta, records: &[u8]) -> io::Result<()> {
        let pool = Pool { subsystem: meta.subsystem.into(), kind: meta.kind, instance: meta.instance.0 };
        let record_bytes = size_of::<AicpuTaskRecord>() as u32;
        self.0.append_buffer(&BufferHeader::new(pool, meta.sequence, meta.count, record_bytes), records)
    }

    fn freeze(&self, _freeze: &Freeze) -> io::Result<()> {
        Ok(())
    }
}

/// Records per second that reach `sink`.
pub(crate) fn rate(cores: &Cores, pools: u32, records: u64, sink: Arc<dyn Sink>) -> anyhow::Result<f64> {
    rate_watched(cores, pools, records, sink, |_| {})
}

/// Records per second that reach `sink`. The lane shows `watch` how many each pool has had, every [`BATCH`] records.
pub(crate) fn rate_watched(
    cores: &Cores,
    pools: u32,
    records: u64,
    sink: Arc<dyn Sink>,
    mut watch: impl FnMut(u64) + Send,
) -> anyhow::Result<f64> {
    let [host, lane_core] = cores.two()?;
    let shape = shape(pools)?;
    let records = records / u64::from(pools) * u64::from(pools);
    let device = Arc::new(BareDevice::new()?);
    // The session's threads run where this one does.
    pin(host)?;
    let session = Session::start(&device, &device.heap(), config(shape), sink)?;
    let (done, is_done) = std::sync::mpsc::channel();
    let (started, stopped) = thread::scope(|scope| {
        let lane = scope.spawn(|| {
            pin(lane_core)?;
            let mut lane = BareLane::attach(&device, shape)?;
            let started = Instant::now();
            for number in 0..records / u64::from(pools) {
                (0..pools as usize).for_each(|core| lane.record(core, &task(number)));
                if number % BATCH == 0 {
                    watch(number);
                    lane.tell();
                }
            }
            lane.tell();
            done.send(()).context("nobody stops the session")?;
            lane.finish()?;
            anyhow::Ok(started)
        });
        is_done.recv().context("the lane did not come to its end")?;
        let accounts = session.stop()?;
        let stopped = Instant::now();
        let account = accounts.get(&SubsystemId::Swimlane).context("no account of the swimlane")?;
        anyhow::ensure!(account.collected() == records, "{} of {records} arrived", account.collected());
        let started = lane.join().map_err(|_| anyhow::anyhow!("the lane panicked"))??;
        anyhow::Ok((started, stopped))
    })?;
    Ok(records as f64 / (stopped - started).as_secs_f64())
}

/// Records per second of the lane alone: every buffer that has room for one more record only is put down for the next.
fn rate_alone(cores: &Cores, pools: u32, records: u64) -> anyhow::Result<f64> {
    let [_, lane_core] = cores.two()?;
    pin(lane_core)?;
    let device = Arc::new(BareDevice::new()?);
    let session =
        Session::start(&device, &device.heap(), config(shape(pools)?), Arc::new(Counting::default()))?;
    let mut lane = BareLane::attach(&device, shape(pools)?)?;
    let rate = {
        let bytes = AicpuTasks::LAYOUT.bytes.next_multiple_of(64) as u64;
        let first = device.spare();
        let buffer = |pool: u64, number: u64| {
            let number = pool * u64::from(BUFFERS) + number % u64::from(BUFFERS);
            PoolState { buffer: DevAddr(first.0 + number * bytes), ..PoolState::default() }
        };
        let per_buffer = u64::from(AicpuTasks::LAYOUT.capacity) - 1;
        let mut refused = 0;
        let started = Instant::now();
        for round in 0..records / (per_buffer * u64::from(pools)) {
            for (number, pool) in (0u64..).zip(&mut lane.pools) {
                refused += u32::from(pool.restore(buffer(number, round)).is_err());
            }
            for number in 0..per_buffer {
                (0..pools as usize).for_each(|core| lane.record(core, &task(number)));
            }
        }
        anyhow::ensure!(refused == 0, "{refused} buffers lie outside memory");
        let whole_rounds = records / (per_buffer * u64::from(pools)) * per_buffer * u64::from(pools);
        whole_rounds as f64 / started.elapsed().as_secs_f64()
    };
    drop((lane, session));
    Ok(rate)
}

fn handover(effort: Effort, cores: &Cores, pools: u32, name: &'static str) -> anyhow::Result<Vec<Figure>> {
    let (mut value, mut alone) = (0f64, 0f64);
    for _ in 0..rounds(effort) {
        alone = alone.max(rate_alone(cores, pools, records(effort))?);
        value = value.max(rate(cores, pools, records(effort), Arc::new(Counting::default()))?);
    }
    Ok(vec![Figure { name, unit: "records/s", value, baseline: ("no_hand_over", alone) }])
}

/// One pool of four buffers.
pub(crate) fn one_pool(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    handover(effort, cores, 1, "handover_1pool")
}

/// Twenty-four of them.
pub(crate) fn pools(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    handover(effort, cores, 24, "handover_24pools")
}

/// A folder on tmpfs for files that are compared.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let path = Path::new("/dev/shm").join(format!("sluice-figures-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Records per second into a capture, from the first append to the end of the stop.
pub(crate) fn capture(effort: Effort, cores: &Cores) -> anyhow::Result<Vec<Figure>> {
    /// What a capture puts in front of a buffer's records.
    const HEADERS_BYTES: usize = 64;
    let records = records(effort) / 4;
    let scratch = Scratch::new()?;
    let [host, _] = cores.two()?;
    let (mut value, mut written) = (0f64, 0f64);
    for _ in 0..rounds(effort) {
        let file = scratch.0.join("capture");
        let header = FileHeader {
            run: RunId::fresh(),
            arch: ArchId::A2a3,
            clock_hz: 1_000_000_000,
            started_unix_ns: 0,
        };
        let writer = Writer::start(File::create(&file)?, &header)?;
        value = value.max(rate(cores, 1, records, Arc::new(IntoCapture(writer)))?);
        std::fs::remove_file(&file)?;

        pin(host)?;
        let chunk =
            vec![0x5Au8; HEADERS_BYTES + AicpuTasks::LAYOUT.capacity as usize * size_of::<AicpuTaskRecord>()];
        let started = Instant::now();
        let mut file = File::create(scratch.0.join("bytes"))?;
        for _ in 0..records / u64::from(AicpuTasks::LAYOUT.capacity) {
            file.write_all(&chunk)?;
        }
        written = written.max(records as f64 / started.elapsed().as_secs_f64());
        std::fs::remove_file(scratch.0.join("bytes"))?;
    }
    Ok(vec![Figure { name: "capture_to_file", unit: "records/s", value, baseline: ("write", written) }])
}
