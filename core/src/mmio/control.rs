//! The control page: counters through which host and firmware follow each other's progress on one TPB.
//!
//! Every 64-byte line has one writing side. Counters run freely.
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `exec_posted_pairs` | host → sequencer | release → acquire | descriptor pairs in the execution ring |
//! | `doorbell` | host → sequencer | release → acquire | executions kicked off |
//! | `stop` | host → sequencer | release → acquire | non-zero: start no further execution, and count those that were kicked off as done. As the destination of a pair of the execution ring: the stop record, never stored |
//! | `setups` | host → sequencer | release → acquire | exec rings and counters are set up anew: one that has stopped goes on |
//! | `given_up` | host → sequencer | release → acquire | count of an execution that is to be cut short |
//! | `opaque_engine_cycles` | host → agents | relaxed, before a doorbell | how long a program takes that cannot be interpreted |
//! | `nq_head[engine]`, `err_nq_head` | host → device | release → acquire | the records harvested, their slots are free |
//! | `exec_head_pairs` | sequencer → host | release → acquire | the pairs consumed, their slots are free |
//! | `executions_done` | sequencer → host | release → acquire | outputs and notifications of the executions finished |
//! | `err_nq_tail` | sequencer → host | release → acquire | error records |
//! | `err_nq_lost` | sequencer → host | release → acquire | error records that found their queue full |
//! | `nq_tail[engine]` | lane that owns the engine → host | release → acquire | status records |
//! | `nq_lost[engine]` | lane that owns the engine → host | release → acquire | status records that found their queue full |
//! | request | execution ring → sequencer | by the ring's order | what to run |
//! | task bindings, 8 bytes | execution ring, and the lane that records → lanes | by the ring's order, then by the start | where it is said what the items of the execution are; null: nowhere |

use crate::mem::{DevAddr, Fault, Memory, Own, Peer, Tally, Word};

use super::map::{Engine, TpbRegisters};

/// A word of the control page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlWord {
    /// Pairs committed to the execution ring.
    ExecPostedPairs,
    /// Executions kicked off.
    Doorbell,
    /// Stop after the current execution.
    Stop,
    /// How often a host has set the TPB up.
    Setups,
    /// Count of an execution that the host has given up.
    GivenUp,
    /// Low half of the cycles that an opaque program takes.
    OpaqueCyclesLow,
    /// High half of them.
    OpaqueCyclesHigh,
    /// Status records harvested from an engine's queue.
    NqHead(Engine),
    /// Error records harvested.
    ErrNqHead,
    /// Pairs consumed from the execution ring.
    ExecHeadPairs,
    /// Executions finished.
    ExecutionsDone,
    /// Error records written.
    ErrNqTail,
    /// Status records written to an engine's queue.
    NqTail(Engine),
    /// Error records that found their queue full.
    ErrNqLost,
    /// Status records that found an engine's queue full.
    NqLost(Engine),
}

impl ControlWord {
    /// Bytes from the start of the page.
    pub const fn offset_bytes(self) -> u64 {
        match self {
            Self::ExecPostedPairs => 0x00,
            Self::Doorbell => 0x04,
            Self::Stop => 0x08,
            Self::OpaqueCyclesLow => 0x0C,
            Self::OpaqueCyclesHigh => 0x10,
            Self::NqHead(engine) => 0x14 + 4 * engine as u64,
            Self::ErrNqHead => 0x28,
            Self::Setups => 0x2C,
            Self::GivenUp => 0x30,
            Self::ExecHeadPairs => 0x40,
            Self::ExecutionsDone => 0x44,
            Self::ErrNqTail => 0x48,
            Self::ErrNqLost => 0x4C,
            Self::NqTail(engine) => 0x80 + 4 * engine as u64,
            Self::NqLost(engine) => 0x94 + 4 * engine as u64,
        }
    }
}

impl TpbRegisters {
    /// Where the execution request stands in the control page, in bytes.
    pub const REQUEST_OFFSET_BYTES: u32 = 0xC0;
    /// Where the address of the execution's task bindings stands in the control page, in bytes: behind the request.
    pub const TASKS_OFFSET_BYTES: u32 = 0xF8;

    /// Address of a control word.
    pub const fn control_word(self, word: ControlWord) -> DevAddr {
        self.control().offset(word.offset_bytes())
    }

    /// Address of the execution request.
    pub const fn request(self) -> DevAddr {
        self.control().offset(Self::REQUEST_OFFSET_BYTES as u64)
    }

    /// Address of the address of the execution's task bindings.
    pub const fn tasks(self) -> DevAddr {
        self.control().offset(Self::TASKS_OFFSET_BYTES as u64)
    }
}

fn own<M: Memory>(memory: &M, tpb: TpbRegisters, word: ControlWord) -> Result<Own<M::Word>, Fault> {
    Ok(Own::new(memory.word(tpb.control_word(word))?))
}

fn tally<M: Memory>(memory: &M, tpb: TpbRegisters, word: ControlWord) -> Result<Tally<M::Word>, Fault> {
    Tally::take(memory.word(tpb.control_word(word))?)
}

fn peer<M: Memory>(memory: &M, tpb: TpbRegisters, word: ControlWord) -> Result<Peer<M::Word>, Fault> {
    Ok(Peer::new(memory.word(tpb.control_word(word))?))
}

/// The host's view of one TPB's control page, but for the notification queues' counters.
#[derive(Clone, Debug)]
pub struct HostControl<W> {
    /// Pairs committed to the execution ring.
    pub exec_posted_pairs: Own<W>,
    /// Executions kicked off.
    pub doorbell: Own<W>,
    /// Stop after the current execution.
    pub stop: Own<W>,
    setups: Own<W>,
    /// Count of an execution to cut short, counting from 1.
    pub given_up: Own<W>,
    /// Pairs consumed.
    pub exec_head_pairs: Peer<W>,
    /// Executions finished.
    pub executions_done: Peer<W>,
    opaque_cycles: [Own<W>; 2],
}

impl<W: Word> HostControl<W> {
    /// The words of `tpb`.
    ///
    /// # Errors
    /// [`Fault`] when the page lies outside device memory.
    pub fn attach<M: Memory<Word = W>>(memory: &M, tpb: TpbRegisters) -> Result<Self, Fault> {
        Ok(Self {
            exec_posted_pairs: own(memory, tpb, ControlWord::ExecPostedPairs)?,
            doorbell: own(memory, tpb, ControlWord::Doorbell)?,
            stop: own(memory, tpb, ControlWord::Stop)?,
            setups: own(memory, tpb, ControlWord::Setups)?,
            given_up: own(memory, tpb, ControlWord::GivenUp)?,
            exec_head_pairs: peer(memory, tpb, ControlWord::ExecHeadPairs)?,
            executions_done: peer(memory, tpb, ControlWord::ExecutionsDone)?,
            opaque_cycles: [
                own(memory, tpb, ControlWord::OpaqueCyclesLow)?,
                own(memory, tpb, ControlWord::OpaqueCyclesHigh)?,
            ],
        })
    }

    /// Lets the sequencer go on with the exec rings that its registers describe. It has to be idle or stopped; nothing of an
    /// earlier owner is run.
    ///
    /// # Errors
    /// A device that can't be reached. The sequencer may then not go on.
    pub fn take_over(&self) -> Result<TakenOver, Fault> {
        let taken = TakenOver {
            consumed: self.exec_head_pairs.try_observe()?,
            done: self.executions_done.try_observe()?,
        };
        self.exec_posted_pairs.try_publish(taken.consumed)?;
        self.doorbell.try_publish(taken.done)?;
        self.stop.try_publish(0)?;
        // One that is over.
        self.given_up.try_publish(taken.done)?;
        // Last, for a sequencer that had stopped goes on from here.
        self.setups.try_publish(self.setups.get().wrapping_add(1))?;
        Ok(taken)
    }

    /// Sets how long a program takes that the device cannot interpret. Holds for executions kicked off later.
    pub fn set_opaque_engine_cycles(&self, cycles: u64) {
        self.opaque_cycles[0].set(cycles as u32);
        self.opaque_cycles[1].set((cycles >> 32) as u32);
    }
}

/// Where the device's counters stood when an owner took a TPB over: it counts on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenOver {
    /// Pairs consumed.
    pub consumed: u32,
    /// Executions finished.
    pub done: u32,
}

/// The sequencer's view of its control page.
#[derive(Debug)]
pub struct SequencerControl<W> {
    /// Pairs committed to the execution ring.
    pub exec_posted_pairs: Peer<W>,
    /// Executions kicked off.
    pub doorbell: Peer<W>,
    /// Stop after the current execution.
    pub stop: Peer<W>,
    /// How often a host has set the TPB up.
    pub setups: Peer<W>,
    /// Count of an execution to cut short.
    pub given_up: Peer<W>,
    /// Pairs consumed.
    pub exec_head_pairs: Tally<W>,
    /// Executions finished.
    pub executions_done: Tally<W>,
}

impl<W: Word> SequencerControl<W> {
    /// The words of `tpb`.
    ///
    /// # Errors
    /// [`Fault`] when the page lies outside device memory.
    pub fn attach<M: Memory<Word = W>>(memory: &M, tpb: TpbRegisters) -> Result<Self, Fault> {
        Ok(Self {
            exec_posted_pairs: peer(memory, tpb, ControlWord::ExecPostedPairs)?,
            doorbell: peer(memory, tpb, ControlWord::Doorbell)?,
            stop: peer(memory, tpb, ControlWord::Stop)?,
            setups: peer(memory, tpb, ControlWord::Setups)?,
            given_up: peer(memory, tpb, ControlWord::GivenUp)?,
            exec_head_pairs: tally(memory, tpb, ControlWord::ExecHeadPairs)?,
            executions_done: tally(memory, tpb, ControlWord::ExecutionsDone)?,
        })
    }
}

/// How long an opaque program takes, as the device reads it.
#[derive(Clone, Debug)]
pub struct OpaqueCycles<W>([Peer<W>; 2]);

impl<W: Word> OpaqueCycles<W> {
    /// The words of `tpb`.
    ///
    /// # Errors
    /// [`Fault`] when the page lies outside device memory.
    pub fn attach<M: Memory<Word = W>>(memory: &M, tpb: TpbRegisters) -> Result<Self, Fault> {
        Ok(Self([
            peer(memory, tpb, ControlWord::OpaqueCyclesLow)?,
            peer(memory, tpb, ControlWord::OpaqueCyclesHigh)?,
        ]))
    }

    /// The value, in cycles of the device. The host sets it while nothing runs, so it is never read half changed.
    pub fn get(&self) -> u64 {
        let [low, high] = &self.0;
        u64::from(low.observe()) | u64::from(high.observe()) << 32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn words_are_apart_and_each_line_has_one_writing_side() {
        use ControlWord::*;
        let mut host = Vec::from([
            ExecPostedPairs,
            Doorbell,
            Stop,
            Setups,
            GivenUp,
            OpaqueCyclesLow,
            OpaqueCyclesHigh,
            ErrNqHead,
        ]);
        let mut device = Vec::from([ExecHeadPairs, ExecutionsDone, ErrNqTail, ErrNqLost]);
        host.extend(Engine::ALL.map(NqHead));
        device.extend(Engine::ALL.map(NqTail));
        device.extend(Engine::ALL.map(NqLost));
        let lines =
            |words: &[ControlWord]| words.iter().map(|w| w.offset_bytes() / 64).collect::<BTreeSet<_>>();
        assert!(lines(&host).is_disjoint(&lines(&device)));
        let offsets: BTreeSet<_> = host.iter().chain(&device).map(|w| w.offset_bytes()).collect();
        assert_eq!(offsets.len(), host.len() + device.len());
        assert!(offsets.iter().all(|offset| offset % 4 == 0));
        assert!(*offsets.last().unwrap() < u64::from(TpbRegisters::REQUEST_OFFSET_BYTES));
    }
}
