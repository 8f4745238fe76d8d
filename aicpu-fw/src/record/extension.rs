//! The extension block as a lane uses it: checks the head, finds the lane's own lines, answers.

use core::mem::offset_of;

use sluice_core::exec::{CoreIndex, LaneIndex};
use sluice_core::gate::ExtensionGateAddrs;
use sluice_core::layout::extension::{
    ANSWER, Answer, AnswerCode, Extension, HEAD, HEARTBEAT, Head, LaneStatus, MAGIC, PoolStatus, Service,
    VERSION, layout_hash, service,
};
use sluice_core::layout::{Lane, Shape, SubsystemId};
use sluice_core::mem::{DevAddr, DeviceMemory, Fault, LongOwn, Memory, Own, Word};
use sluice_core::producer::{CountWords, LaneWords};
use zerocopy::{FromZeros, IntoBytes};

use crate::platform::{Context, Platform};

/// An extension block that this device accepts.
pub(super) struct ExtensionBlock<M: Memory> {
    memory: M,
    at: DevAddr,
    layout: Extension,
    shape: Shape,
    deadline_cycles: u64,
}

/// Words in which a lane says that it is done.
pub(super) struct FlushWords<W> {
    /// 1 once everything is published.
    pub(super) flushed: Own<W>,
    /// Records lost, all pools of the lane together.
    pub(super) dropped_records: Own<W>,
}

impl<M: DeviceMemory> ExtensionBlock<M> {
    /// The block at `at`; `None` at the null address, which stands for a host without one.
    ///
    /// # Errors
    /// The answer with which the device refuses it.
    pub(super) fn open<P: Platform<Memory = M>>(
        cx: &Context<P>,
        at: DevAddr,
    ) -> Result<Option<Self>, AnswerCode> {
        if at.is_null() {
            return Ok(None);
        }
        let outside = |_: Fault| AnswerCode::BAD_SHAPE;
        let magic = at.offset((HEAD + offset_of!(Head, magic)) as u64);
        if cx.memory().word(magic).map_err(outside)?.load_acquire() != MAGIC {
            return Err(AnswerCode::BAD_VERSION);
        }
        let mut head = Head::new_zeroed();
        cx.memory().read_bytes(at.offset(HEAD as u64), head.as_mut_bytes()).map_err(outside)?;
        if head.version != VERSION {
            return Err(AnswerCode::BAD_VERSION);
        }
        if head.layout_hash != layout_hash(cx.arch()) {
            return Err(AnswerCode::BAD_LAYOUT);
        }
        let shape = Shape::new(cx.arch(), head.lanes, head.cores).map_err(|_| AnswerCode::BAD_SHAPE)?;
        let cores = CoreIndex::all(cx.map().registers.tpbs()).count();
        let layout = Extension::new(shape);
        if head.lanes != cx.map().lanes
            || (head.cores as usize) < cores
            || (head.bytes as usize) < layout.bytes()
        {
            return Err(AnswerCode::BAD_SHAPE);
        }
        let deadline_cycles = match head.deadline_cycles {
            0 => cx.arch().facts().default_deadline_cycles(),
            cycles => cycles,
        };
        Ok(Some(Self { memory: cx.memory().clone(), at, layout, shape, deadline_cycles }))
    }

    /// The run that the host describes.
    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// Most cycles that one buffer switch may wait.
    pub(super) fn deadline_cycles(&self) -> u64 {
        self.deadline_cycles
    }

    /// The words that the gates of `subsystem` need.
    pub(super) fn gate_addrs(&self, subsystem: SubsystemId) -> ExtensionGateAddrs {
        let line = self.at.offset(service(subsystem) as u64);
        ExtensionGateAddrs {
            release_epoch: line.offset(offset_of!(Service, release_epoch) as u64),
            host_detached: line.offset(offset_of!(Service, host_detached) as u64),
            host_heartbeat: self.at.offset(HEARTBEAT as u64),
        }
    }

    /// The words in which `lane` shows what it does.
    pub(super) fn lane_words(
        &self,
        subsystem: SubsystemId,
        lane: LaneIndex,
    ) -> Result<LaneWords<M::Word>, Fault> {
        let own = |offset| self.lane_word(subsystem, lane, offset);
        let since = offset_of!(LaneStatus, parked_since_cycles);
        Ok(LaneWords {
            state: own(offset_of!(LaneStatus, state))?,
            parked_since: [own(since)?, own(since + 4)?],
            waits_rq: own(offset_of!(LaneStatus, waits_rq))?,
            waits_fq: own(offset_of!(LaneStatus, waits_fq))?,
            parks: own(offset_of!(LaneStatus, parks))?,
            expiries: own(offset_of!(LaneStatus, expiries))?,
            ready_high_water: own(offset_of!(LaneStatus, ready_high_water))?,
        })
    }

    /// The words in which `lane` says that it is done.
    pub(super) fn flush_words(
        &self,
        subsystem: SubsystemId,
        lane: LaneIndex,
    ) -> Result<FlushWords<M::Word>, Fault> {
        Ok(FlushWords {
            flushed: self.lane_word(subsystem, lane, offset_of!(LaneStatus, flushed))?,
            dropped_records: self.lane_word(subsystem, lane, offset_of!(LaneStatus, dropped_records))?,
        })
    }

    fn lane_word(
        &self,
        subsystem: SubsystemId,
        lane: LaneIndex,
        offset: usize,
    ) -> Result<Own<M::Word>, Fault> {
        self.own(self.layout.lane(subsystem, Lane(lane.get())), offset)
    }

    /// The word `offset` bytes into a line of the block; a line that the block does not have is outside device memory.
    fn own(&self, line: Option<usize>, offset: usize) -> Result<Own<M::Word>, Fault> {
        let at = line.map_or(DevAddr::NULL, |line| self.at.offset((line + offset) as u64));
        self.memory.word(at).map(Own::new)
    }

    /// The words of pool `number` that the wire contract has no place for.
    pub(super) fn count_words(
        &self,
        subsystem: SubsystemId,
        number: u32,
    ) -> Result<CountWords<M::Word>, Fault> {
        let own = |offset| self.own(self.layout.pool(subsystem, number), offset);
        let drops = offset_of!(PoolStatus, drops);
        Ok(CountWords {
            total_high: own(offset_of!(PoolStatus, total_records_hi))?,
            dropped_high: own(offset_of!(PoolStatus, dropped_records_hi))?,
            by_cause: [own(drops)?, own(drops + 4)?, own(drops + 8)?, own(drops + 12)?],
            free_low_water: own(offset_of!(PoolStatus, free_low_water))?,
        })
    }

    /// The device's sign of life in this block.
    pub(super) fn heartbeat(&self) -> Heartbeat<M> {
        let at = self.at.offset((ANSWER + offset_of!(Answer, heartbeat_device)) as u64);
        let word = self.memory.word(at).map(Own::new).ok();
        let count = word.as_ref().map_or(0, Own::get);
        Heartbeat { word, count }
    }
}

/// Writes the device's answer into the block at `at`, if there is one to write to.
pub(super) fn answer<P: Platform>(cx: &Context<P>, at: DevAddr, code: AnswerCode) {
    if at.is_null() {
        return;
    }
    let line = at.offset(ANSWER as u64);
    let hash = line.offset(offset_of!(Answer, answer_layout_hash) as u64);
    let code_word = cx.memory().word(line.offset(offset_of!(Answer, answer) as u64));
    // An address outside device memory has no place for an answer: the host then finds none.
    if let (Ok(hash), Ok(word)) = (LongOwn::at(cx.memory(), hash), code_word) {
        hash.publish(DevAddr(layout_hash(cx.arch())));
        word.store_release(code.0);
    }
}

/// The device's sign of life; counts rounds of lane 0.
pub(super) struct Heartbeat<M: Memory> {
    word: Option<Own<M::Word>>,
    count: u32,
}

impl<M: Memory> Heartbeat<M> {
    /// No sign: another lane, or nobody to see it.
    pub(super) fn silent() -> Self {
        Self { word: None, count: 0 }
    }

    /// One more round.
    #[inline]
    pub(super) fn beat(&mut self) {
        if let Some(word) = &self.word {
            self.count = self.count.wrapping_add(1);
            word.publish(self.count);
        }
    }
}
