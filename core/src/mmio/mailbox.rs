//! An engine's mailbox: the lane that owns the engine hands items to the compute-core agent, one at a time.
//!
//! ```text
//!   lane                                agent
//!   instruction, dispatch_token = n ──► sees n
//!                                       finds the slot of its own record, if it is to make one
//!                                       ack_token = n
//!                                       … runs …
//!   sees n  ◄── status, bytes, fin_token = n
//! ```
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `dispatch_token` | lane → agent | release → acquire | the instruction's address, where the core records it, and all that the item may read |
//! | `ack_token` | agent → lane | release → acquire | the item was taken |
//! | `fin_token` | agent → lane | release → acquire | status, bytes, descriptors, and all that the item wrote |
//!
//! Tokens count the items of an engine over the device's life, from 1; 0 is "none yet".

use core::num::NonZeroU32;

use crate::mem::{DevAddr, Fault, Memory, Own, Peer, Word};

use super::map::{Engine, QueueId, TpbRegisters};

const DISPATCH_TOKEN: u64 = 0x00;
const INSTRUCTION_LOW: u64 = 0x04;
const INSTRUCTION_HIGH: u64 = 0x08;
const RECORD_RUN: u64 = 0x10;
const RECORD_HEAD: u64 = 0x14;
const ACK_TOKEN: u64 = 0x20;
const FIN_TOKEN: u64 = 0x24;
const STATUS: u64 = 0x28;
const BYTES_MOVED: u64 = 0x2C;
const DESCRIPTORS: u64 = 0x30;

/// What became of an item, as one word: 0, or an error class and the DMA queue it arose on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemStatus(u32);

impl ItemStatus {
    /// The item ran to its end.
    pub const DONE: Self = Self(0);

    /// The item failed with error class `class` (never 0) on `queue`.
    pub const fn failed(class: u16, queue: QueueId) -> Self {
        Self(class as u32 | queue.get() << 16)
    }

    /// The status that `word` stands for.
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }

    /// The word that stands for it.
    pub const fn word(self) -> u32 {
        self.0
    }

    /// The class and the queue, unless the item ran to its end. A queue that cannot be reads as the execution queue.
    pub fn failure(self) -> Option<(u16, QueueId)> {
        let class = self.0 as u16;
        (class != 0).then(|| (class, QueueId::new(self.0 >> 16).unwrap_or(QueueId::EXEC)))
    }
}

/// What an agent reports of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemReport {
    /// How it ended.
    pub status: ItemStatus,
    /// Bytes that its copies moved, wrapping.
    pub bytes_moved: u32,
    /// Descriptor pairs it ran.
    pub descriptors: u32,
}

/// Where a core records an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreRecording {
    /// Tells runs apart, never 0: what the core knows of a pool holds within one.
    pub run: NonZeroU32,
    /// The pool's words that show its current buffer.
    pub head: DevAddr,
}

/// An item that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its token.
    pub token: u32,
    /// Where its instruction lies.
    pub instruction: DevAddr,
    /// Where the core records it, if it does.
    pub recording: Option<CoreRecording>,
}

/// The lane's side.
#[derive(Clone, Debug)]
pub struct LaneMailbox<W> {
    dispatch: Own<W>,
    instruction: [Own<W>; 2],
    run: Own<W>,
    head: [Own<W>; 2],
    ack: Peer<W>,
    fin: Peer<W>,
    report: [Peer<W>; 3],
}

impl<W: Word> LaneMailbox<W> {
    /// The mailbox of `engine`.
    ///
    /// # Errors
    /// [`Fault`] when it lies outside device memory.
    pub fn attach<M: Memory<Word = W>>(memory: &M, tpb: TpbRegisters, engine: Engine) -> Result<Self, Fault> {
        let at = |offset| memory.word(tpb.mailbox(engine).offset(offset));
        Ok(Self {
            dispatch: Own::new(at(DISPATCH_TOKEN)?),
            instruction: [Own::new(at(INSTRUCTION_LOW)?), Own::new(at(INSTRUCTION_HIGH)?)],
            run: Own::new(at(RECORD_RUN)?),
            head: [Own::new(at(RECORD_HEAD)?), Own::new(at(RECORD_HEAD + 4)?)],
            ack: Peer::new(at(ACK_TOKEN)?),
            fin: Peer::new(at(FIN_TOKEN)?),
            report: [Peer::new(at(STATUS)?), Peer::new(at(BYTES_MOVED)?), Peer::new(at(DESCRIPTORS)?)],
        })
    }

    /// The token of the last item handed over.
    pub fn token(&self) -> u32 {
        self.dispatch.get()
    }

    /// Hands over the instruction at `address`, to be recorded by the core as `recording` says, and returns the item's token.
    /// Call only when the last item is finished.
    pub fn dispatch(&self, address: DevAddr, recording: Option<CoreRecording>) -> u32 {
        let (low, high) = address.split();
        self.instruction[0].set(low);
        self.instruction[1].set(high);
        self.run.set(recording.map_or(0, |recording| recording.run.get()));
        if let Some(CoreRecording { head, .. }) = recording {
            let (low, high) = head.split();
            self.head[0].set(low);
            self.head[1].set(high);
        }
        // 0 means that nothing was ever handed over.
        let token = self.dispatch.get().wrapping_add(1).max(1);
        self.dispatch.publish(token);
        token
    }

    /// Whether the agent has taken the last item.
    pub fn is_acknowledged(&self) -> bool {
        self.ack.observe() == self.dispatch.get()
    }

    /// What became of the last item, once it is finished.
    pub fn finished(&self) -> Option<ItemReport> {
        if self.fin.observe() != self.dispatch.get() {
            return None;
        }
        let [status, bytes_moved, descriptors] = &self.report;
        Some(ItemReport {
            status: ItemStatus::from_word(status.observe()),
            bytes_moved: bytes_moved.observe(),
            descriptors: descriptors.observe(),
        })
    }
}

/// The agent's side.
#[derive(Clone, Debug)]
pub struct AgentMailbox<W> {
    dispatch: Peer<W>,
    instruction: [Peer<W>; 2],
    run: Peer<W>,
    head: [Peer<W>; 2],
    ack: Own<W>,
    fin: Own<W>,
    report: [Own<W>; 3],
}

impl<W: Word> AgentMailbox<W> {
    /// The mailbox of `engine`.
    ///
    /// # Errors
    /// [`Fault`] when it lies outside device memory.
    pub fn attach<M: Memory<Word = W>>(memory: &M, tpb: TpbRegisters, engine: Engine) -> Result<Self, Fault> {
        let at = |offset| memory.word(tpb.mailbox(engine).offset(offset));
        Ok(Self {
            dispatch: Peer::new(at(DISPATCH_TOKEN)?),
            instruction: [Peer::new(at(INSTRUCTION_LOW)?), Peer::new(at(INSTRUCTION_HIGH)?)],
            run: Peer::new(at(RECORD_RUN)?),
            head: [Peer::new(at(RECORD_HEAD)?), Peer::new(at(RECORD_HEAD + 4)?)],
            ack: Own::new(at(ACK_TOKEN)?),
            fin: Own::new(at(FIN_TOKEN)?),
            report: [Own::new(at(STATUS)?), Own::new(at(BYTES_MOVED)?), Own::new(at(DESCRIPTORS)?)],
        })
    }

    /// The item that was handed over since the last one was acknowledged.
    pub fn offered(&self) -> Option<Offer> {
        let token = self.dispatch.observe();
        if token == self.ack.get() {
            return None;
        }
        let join = |[low, high]: &[Peer<W>; 2]| DevAddr::join(low.observe(), high.observe());
        let run = NonZeroU32::new(self.run.observe());
        Some(Offer {
            token,
            instruction: join(&self.instruction),
            recording: run.map(|run| CoreRecording { run, head: join(&self.head) }),
        })
    }

    /// Acknowledges `offer`: the item is taken.
    pub fn acknowledge(&self, offer: &Offer) {
        self.ack.publish(offer.token);
    }

    /// The token of the item taken last.
    pub fn token(&self) -> u32 {
        self.ack.get()
    }

    /// Reports the item taken last as finished.
    pub fn finish(&self, report: ItemReport) {
        self.report[0].set(report.status.word());
        self.report[1].set(report.bytes_moved);
        self.report[2].set(report.descriptors);
        self.fin.publish(self.ack.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_class_and_queue() {
        assert_eq!(ItemStatus::DONE.failure(), None);
        let queue = QueueId::new(9).unwrap();
        assert_eq!(ItemStatus::failed(3, queue).failure(), Some((3, queue)));
        assert_eq!(ItemStatus(1 | 99 << 16).failure(), Some((1, QueueId::EXEC)));
    }

    #[test]
    fn items_go_over_and_back_one_at_a_time() {
        use crate::mem::{Line, Mapped, Slab};
        use crate::mmio::{RegisterMap, TpbId};
        let mut lines = std::vec![Line::ZERO; 0x8_0000 / 64];
        let memory = Mapped::new(Slab::over(&mut lines, DevAddr(0x1000)));
        let tpb = RegisterMap::new(DevAddr(0x1000), 1).unwrap().tpb(TpbId::new(0).unwrap()).unwrap();
        let lane = LaneMailbox::attach(&memory, tpb, Engine::Dve).unwrap();
        let agent = AgentMailbox::attach(&memory, tpb, Engine::Dve).unwrap();
        assert_eq!(agent.offered(), None);
        let recording =
            |run| Some(CoreRecording { run: NonZeroU32::new(run)?, head: DevAddr(0x9_0000_0040) });
        for (token, recording) in (1..).zip([None, recording(7), None]) {
            let instruction = DevAddr(0x7_0000_0000 + u64::from(token));
            assert_eq!(lane.dispatch(instruction, recording), token);
            assert!(!lane.is_acknowledged());
            let offer = Offer { token, instruction, recording };
            assert_eq!(agent.offered(), Some(offer));
            agent.acknowledge(&offer);
            assert_eq!(agent.offered(), None);
            assert!(lane.is_acknowledged() && lane.finished().is_none());
            let report = ItemReport { status: ItemStatus::DONE, bytes_moved: token * 10, descriptors: token };
            agent.finish(report);
            assert_eq!(lane.finished(), Some(report));
        }
        assert_eq!(lane.token(), 3);
    }
}
