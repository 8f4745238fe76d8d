//! Attaching the device's side to a subsystem's region and, if there is one, to the extension block.

use core::fmt;
use core::mem::offset_of;

use super::{
    ControlWords, CountWords, DropCause, Lane, LaneWords, Pool, PoolSetup, ReadyRing, Records, Subsystem,
    WaitLog,
};
use crate::gate::{ExtensionGateAddrs, Gates};
use crate::layout::extension::{
    self, AnswerCode, Extension, Head, Heartbeat, LaneStatus, PoolStatus, Service, WAIT_RECORDS,
    WaitLog as LogLines,
};
use crate::layout::{self, ArchId, Instance, PoolKind, Region, Shape, SubsystemId};
use crate::mem::{DevAddr, Fault, LongOwn, Memory, Own, OwnCount, Peer};

/// Why a device could not attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AttachError {
    /// Memory that the host named cannot be reached.
    Fault(Fault),
    /// The region has no such lane.
    NoLane(layout::Lane),
    /// The region has no such pool.
    NoPool {
        /// Kind asked for.
        kind: PoolKind,
        /// Number asked for.
        instance: Instance,
    },
    /// The extension block is not one that this device understands.
    Refused(AnswerCode),
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => write!(f, "{fault}"),
            Self::NoLane(lane) => write!(f, "no lane {}", lane.0),
            Self::NoPool { kind, instance } => write!(f, "no pool {} of kind {}", instance.0, kind.0),
            Self::Refused(answer) => {
                write!(f, "extension block refused: {}", answer.name().unwrap_or("unknown"))
            }
        }
    }
}

impl core::error::Error for AttachError {}

impl From<Fault> for AttachError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// What a device of this `shape` says of the extension block at `at`.
///
/// # Errors
/// [`Fault`] when the head cannot be reached.
pub fn judge<M: Memory>(memory: &M, at: DevAddr, shape: Shape) -> Result<AnswerCode, Fault> {
    let word = |offset: usize| memory.word(at.offset(offset as u64)).map(Peer::new);
    let read = |offset: usize| -> Result<u32, Fault> { word(extension::HEAD + offset)?.try_observe() };
    if read(offset_of!(Head, magic))? != extension::MAGIC {
        return Ok(AnswerCode::NONE);
    }
    if read(offset_of!(Head, version))? != extension::VERSION {
        return Ok(AnswerCode::BAD_VERSION);
    }
    let hash =
        DevAddr::join(read(offset_of!(Head, layout_hash))?, read(offset_of!(Head, layout_hash) + 4)?).0;
    if hash != extension::layout_hash(shape.arch()) {
        return Ok(AnswerCode::BAD_LAYOUT);
    }
    let lanes = read(offset_of!(Head, lanes))?;
    let cores = read(offset_of!(Head, cores))?;
    let bytes = read(offset_of!(Head, bytes))?;
    if lanes != shape.lanes() || cores != shape.cores() || bytes as usize != Extension::new(shape).bytes() {
        return Ok(AnswerCode::BAD_SHAPE);
    }
    Ok(AnswerCode::ACCEPTED)
}

/// Reads the extension block's head at `at` and answers it; call once per session, on one lane.
///
/// # Errors
/// [`AttachError::Refused`] when version, layout hash or size differ from what this device was built with; the answer word
/// says so too, so the host can print it.
pub fn answer<M: Memory>(memory: &M, at: DevAddr, shape: Shape) -> Result<(), AttachError> {
    let code = judge(memory, at, shape)?;
    reply(memory, at, shape.arch(), code)?;
    if code == AnswerCode::ACCEPTED { Ok(()) } else { Err(AttachError::Refused(code)) }
}

/// Writes `code` and the layout hash of a device of `arch` into the extension block at `at`; for one lane.
///
/// # Errors
/// [`Fault`] when the block cannot be reached.
pub fn reply<M: Memory>(memory: &M, at: DevAddr, arch: ArchId, code: AnswerCode) -> Result<(), Fault> {
    let own_hash = DevAddr(extension::layout_hash(arch));
    let hash_at = at.offset((extension::ANSWER + offset_of!(extension::Answer, answer_layout_hash)) as u64);
    LongOwn::at(memory, hash_at)?.publish(own_hash);
    let answer_at = at.offset((extension::ANSWER + offset_of!(extension::Answer, answer)) as u64);
    Own::new(memory.word(answer_at)?).publish(code.0);
    Ok(())
}

/// A subsystem's region, and the extension block beside it, as the device reaches them.
#[derive(Clone, Copy, Debug)]
pub struct Attachment {
    subsystem: SubsystemId,
    region: Region,
    region_at: DevAddr,
    extension: Option<(Extension, DevAddr)>,
    limit_cycles: u64,
}

impl Attachment {
    /// The region of `subsystem` at `region_at`, with an extension block at `extension_at` unless that is null. The deadline
    /// is the extension's, or the architecture's default.
    ///
    /// # Errors
    /// [`AttachError::Fault`] when the block cannot be reached.
    pub fn open<M: Memory>(
        memory: &M,
        subsystem: SubsystemId,
        region_at: DevAddr,
        extension_at: DevAddr,
        shape: Shape,
    ) -> Result<Self, AttachError> {
        let mut limit_cycles = shape.arch().facts().default_deadline_cycles();
        let extension = if extension_at.is_null() {
            None
        } else {
            let at = extension_at.offset((extension::HEAD + offset_of!(Head, deadline_cycles)) as u64);
            let low = Peer::new(memory.word(at)?).try_observe()?;
            let high = Peer::new(memory.word(at.offset(4))?).try_observe()?;
            let asked = DevAddr::join(low, high).0;
            if asked != 0 {
                limit_cycles = asked;
            }
            Some((Extension::new(shape), extension_at))
        };
        let region = layout::region(subsystem, shape);
        Ok(Self { subsystem, region, region_at, extension, limit_cycles })
    }

    /// The region's layout.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Most cycles that one switch may wait.
    pub fn limit_cycles(&self) -> u64 {
        self.limit_cycles
    }

    /// One lane's side: gates, ready ring and status line.
    ///
    /// # Errors
    /// A lane that the region does not have, or memory that cannot be reached.
    pub fn lane<M: Memory, S: Subsystem>(
        &self,
        memory: &M,
        lane: layout::Lane,
    ) -> Result<Lane<M, S>, AttachError> {
        let (gates, ring, words) = self.lane_parts(memory, lane)?;
        Ok(Lane::new(gates, ring, words, self.limit_cycles))
    }

    /// What a lane is made of, whatever its subsystem.
    #[expect(clippy::type_complexity, reason = "the arguments of `Lane::new`")]
    fn lane_parts<M: Memory>(
        &self,
        memory: &M,
        lane: layout::Lane,
    ) -> Result<(Gates<M>, ReadyRing<M>, Option<LaneWords<M>>), AttachError> {
        let offsets = self.region.lane(lane).ok_or(AttachError::NoLane(lane))?;
        let gates = Gates::attach(memory, self.region_at, self.region.gates(), self.gate_addrs())?;
        let ring = ReadyRing::attach(memory, self.region_at, offsets, self.region.ready_entries())?;
        let words = match self.extension {
            None => None,
            Some((block, at)) => {
                let missing = AttachError::NoLane(lane);
                let line = block.lane(self.subsystem, lane).ok_or(missing)?;
                let log = block.wait_log(self.subsystem, lane).ok_or(missing)?;
                Some(lane_words(memory, at.offset(line as u64), at.offset(log as u64))?)
            }
        };
        Ok((gates, ring, words))
    }

    /// What the host wants `lane` to record; `None` with a peer that cannot say.
    ///
    /// # Errors
    /// A lane that the region does not have, or memory that cannot be reached.
    pub fn control<M: Memory>(
        &self,
        memory: &M,
        lane: layout::Lane,
    ) -> Result<Option<ControlWords<M>>, AttachError> {
        let Some((block, at)) = self.extension else { return Ok(None) };
        let line = block.lane(self.subsystem, lane).ok_or(AttachError::NoLane(lane))?;
        let service = at.offset(extension::service(self.subsystem) as u64);
        Ok(Some(ControlWords::attach(memory, service, at.offset(line as u64))?))
    }

    /// Where the lane of a pool counts what it passes over; `None` with a peer that asks for no sample.
    ///
    /// # Errors
    /// A pool that the region does not have, or memory that cannot be reached.
    pub fn passed_over<M: Memory>(
        &self,
        memory: &M,
        kind: PoolKind,
        instance: Instance,
    ) -> Result<Option<OwnCount<M::Word>>, AttachError> {
        let Some((block, at)) = self.extension else { return Ok(None) };
        let missing = AttachError::NoPool { kind, instance };
        let number = self.region.pool_number(kind, instance).ok_or(missing)?;
        let line = block.pool(self.subsystem, number).ok_or(missing)?;
        Ok(Some(OwnCount::at(memory, at.offset((line + offset_of!(PoolStatus, passed_over)) as u64))?))
    }

    /// One pool.
    ///
    /// # Errors
    /// A pool that the region does not have, or memory that cannot be reached.
    pub fn pool<M: Memory, K: Records, S: Subsystem>(
        &self,
        memory: &M,
        instance: Instance,
    ) -> Result<Pool<M, K, S>, AttachError> {
        let (setup, counts) = self.pool_parts(memory, K::KIND, instance)?;
        Ok(Pool::attach(memory, &setup, counts)?)
    }

    /// Where a pool and its counts lie, whatever its kind.
    #[expect(clippy::type_complexity, reason = "the arguments of `Pool::attach`")]
    fn pool_parts<M: Memory>(
        &self,
        memory: &M,
        kind: PoolKind,
        instance: Instance,
    ) -> Result<(PoolSetup, Option<CountWords<M::Word>>), AttachError> {
        let missing = AttachError::NoPool { kind, instance };
        let offsets = self.region.pool(kind, instance).ok_or(missing)?;
        let counts = match self.extension {
            None => None,
            Some((block, at)) => {
                let number = self.region.pool_number(kind, instance).ok_or(missing)?;
                let line = block.pool(self.subsystem, number).ok_or(missing)?;
                Some(count_words(memory, at.offset(line as u64))?)
            }
        };
        let setup =
            PoolSetup { region: self.region_at, offsets, free_slots: self.region.free_slots(), instance };
        Ok((setup, counts))
    }

    /// Where a pool shows its current buffer and its sequence: what the core that writes it goes by.
    ///
    /// # Errors
    /// A pool that the region does not have.
    pub fn pool_head(&self, kind: PoolKind, instance: Instance) -> Result<DevAddr, AttachError> {
        let pool = self.region.pool(kind, instance).ok_or(AttachError::NoPool { kind, instance })?;
        Ok(self.region_at.offset(pool.current_ptr as u64))
    }

    fn gate_addrs(&self) -> Option<ExtensionGateAddrs> {
        let (_, at) = self.extension?;
        let service = at.offset(extension::service(self.subsystem) as u64);
        Some(ExtensionGateAddrs {
            release_epoch: service.offset(offset_of!(Service, release_epoch) as u64),
            host_detached: service.offset(offset_of!(Service, host_detached) as u64),
            host_heartbeat: at.offset((extension::HEARTBEAT + offset_of!(Heartbeat, heartbeat_host)) as u64),
        })
    }
}

fn lane_words<M: Memory>(memory: &M, line: DevAddr, log: DevAddr) -> Result<LaneWords<M>, Fault> {
    let word = |offset: usize| memory.word(line.offset(offset as u64)).map(Own::new);
    let count = |offset: usize| OwnCount::at(memory, line.offset(offset as u64));
    Ok(LaneWords {
        state: word(offset_of!(LaneStatus, state))?,
        flushed: word(offset_of!(LaneStatus, flushed))?,
        parked_since: count(offset_of!(LaneStatus, parked_since_cycles))?,
        waits_rq: word(offset_of!(LaneStatus, waits_rq))?,
        waits_fq: word(offset_of!(LaneStatus, waits_fq))?,
        parks: word(offset_of!(LaneStatus, parks))?,
        expiries: word(offset_of!(LaneStatus, expiries))?,
        dropped: word(offset_of!(LaneStatus, dropped_records))?,
        ready_high_water: word(offset_of!(LaneStatus, ready_high_water))?,
        waited: [
            count(offset_of!(LaneStatus, waited_rq_cycles))?,
            count(offset_of!(LaneStatus, waited_fq_cycles))?,
        ],
        log: WaitLog::attach(
            memory,
            log.offset(offset_of!(LogLines, records) as u64),
            WAIT_RECORDS as u32,
            log.offset(offset_of!(LogLines, taken) as u64),
            line.offset(offset_of!(LaneStatus, waits_logged) as u64),
        )?,
    })
}

fn count_words<M: Memory>(memory: &M, line: DevAddr) -> Result<CountWords<M::Word>, Fault> {
    let word = |offset: usize| memory.word(line.offset(offset as u64)).map(Own::new);
    let lost = |cause: DropCause| {
        OwnCount::at(memory, line.offset((offset_of!(PoolStatus, drops) + cause.index() * 8) as u64))
    };
    let [host_gone, no_buffer, corrupt, core_busy, mismatch] = DropCause::ALL;
    Ok(CountWords {
        total_low: Some(word(offset_of!(PoolStatus, total_records_lo))?),
        total_high: word(offset_of!(PoolStatus, total_records_hi))?,
        overflow_high: word(offset_of!(PoolStatus, overflow_records_hi))?,
        by_cause: [lost(host_gone)?, lost(no_buffer)?, lost(corrupt)?, lost(core_busy)?, lost(mismatch)?],
        free_low_water: word(offset_of!(PoolStatus, free_low_water))?,
        stash: LongOwn::at(memory, line.offset(offset_of!(PoolStatus, stash_ptr) as u64))?,
        stash_sequence: word(offset_of!(PoolStatus, stash_seq))?,
    })
}
