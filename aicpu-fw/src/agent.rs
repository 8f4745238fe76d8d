//! A compute-core agent: plays the part of one engine's core. Takes an item, acknowledges it, runs it, reports.
//!
//! ```text
//!   mailbox ── take: ACK ──► RUN_BLOCK: rings RX then TX of the queue, runs exactly its pairs ──┐
//!                       └──► opaque program: takes its set time, moves nothing                  ├─► FIN ─► own record
//!                       └──► anything that cannot be carried out: error class and queue         │       │
//!                                                                   seeded delay, if any ───────┴───────┘
//! ```
//!
//! The core's own record of the item, where the lane wants one, follows the FIN; the next item is taken after it.
//!
//! A poll runs a bounded number of pairs, so that agents which share a processor take turns.

use sluice_core::exec::{CoreIndex, ErrorClass, Instruction, InstructionBytes, RunBlock};
use sluice_core::layout::ArchId;
use sluice_core::mem::{DevAddr, DeviceMemory, Fault};
use sluice_core::mmio::{AgentMailbox, ItemReport, ItemStatus, Offer, OpaqueCycles, QueueId, TpbRegisters};
use zerocopy::{FromZeros, IntoBytes};

use crate::copy::{CopyEngine, Effects};
use crate::counting::Counting;
use crate::platform::{Activity, Context, Platform};
use crate::queue::{Ahead, DmaQueue};
use crate::record::{CoreRecord, CoreSlots};

/// Pairs that one poll runs at most.
const PAIRS_PER_POLL: u32 = 64;

/// Extra time that items take, the same for the same seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AgentDelays {
    /// Tells runs apart.
    pub seed: u64,
    /// Most cycles that an item takes longer; 0 for none.
    pub max_cycles: u64,
}

impl AgentDelays {
    /// The delay of `part` of item number `item` of `core`, in cycles.
    fn cycles(&self, core: CoreIndex, item: u32, part: Part) -> u64 {
        if self.max_cycles == 0 {
            return 0;
        }
        // splitmix64 of the item's place in the run.
        let mut x = self.seed ^ (core.get() as u64) << 32 ^ u64::from(item) ^ (part as u64) << 56;
        x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ x >> 31) % self.max_cycles.saturating_add(1)
    }
}

/// What of an item is delayed.
#[derive(Clone, Copy)]
enum Part {
    Run = 0,
    Record = 1,
}

enum State<M: DeviceMemory> {
    Idle,
    Running { id: QueueId, queue: DmaQueue<M>, left: u32, report: ItemReport, earliest_cycles: u64 },
    Holding { report: ItemReport, until_cycles: u64 },
    Recording { until_cycles: u64 },
}

/// The agent of one core.
pub(crate) struct Agent<M: DeviceMemory> {
    core: CoreIndex,
    registers: TpbRegisters,
    mailbox: AgentMailbox<M::Word>,
    opaque: OpaqueCycles<M::Word>,
    counting: Counting<M>,
    delays: AgentDelays,
    items: u32,
    slots: CoreSlots,
    /// The record of the present item, if the core makes one.
    record: Option<CoreRecord>,
    state: State<M>,
}

const NOTHING_DONE: ItemReport = ItemReport { status: ItemStatus::DONE, bytes_moved: 0, descriptors: 0 };

impl<M: DeviceMemory> Agent<M> {
    /// The agent of `core`, an engine of the TPB with these registers.
    ///
    /// # Errors
    /// [`Fault`] when its mailbox lies outside device memory.
    pub(crate) fn attach(
        memory: &M,
        arch: ArchId,
        core: CoreIndex,
        registers: TpbRegisters,
        delays: AgentDelays,
    ) -> Result<Self, Fault> {
        Ok(Self {
            core,
            registers,
            mailbox: AgentMailbox::attach(memory, registers, core.engine())?,
            opaque: OpaqueCycles::attach(memory, registers)?,
            counting: Counting::attach(memory, arch, registers, core.engine())?,
            delays,
            items: 0,
            slots: CoreSlots::default(),
            record: None,
            state: State::Idle,
        })
    }

    /// Does what can be done now, a bounded amount. Never blocks.
    pub(crate) fn poll<P: Platform<Memory = M>>(&mut self, cx: &Context<P>) -> Activity {
        if matches!(self.state, State::Idle) {
            // Nearly every poll ends here: a look costs less than to move the state.
            let Some(offer) = self.mailbox.offered() else { return Activity::Idle };
            self.acknowledge(cx, &offer);
            self.counting.begin(|| cx.now_cycles());
            self.state = self.take_up(cx, offer.instruction);
            return Activity::Busy;
        }
        match core::mem::replace(&mut self.state, State::Idle) {
            State::Idle => Activity::Idle,
            State::Running { id, queue, left, report, earliest_cycles } => {
                self.state = self.run(cx, id, queue, left, report, earliest_cycles);
                Activity::Busy
            }
            State::Holding { report, until_cycles } if until_cycles <= cx.now_cycles() => {
                self.counting.end(self.mailbox.token(), &report, || cx.now_cycles());
                self.finish(cx, report);
                Activity::Busy
            }
            State::Recording { until_cycles } if until_cycles <= cx.now_cycles() => {
                self.leave_record(cx);
                cx.wake_lane(self.core.lane(cx.map().lanes));
                Activity::Busy
            }
            State::Holding { report, until_cycles } => {
                self.state = State::Holding { report, until_cycles };
                Activity::Until(until_cycles)
            }
            State::Recording { until_cycles } => {
                self.state = State::Recording { until_cycles };
                Activity::Until(until_cycles)
            }
        }
    }

    /// Takes the item, with a slot for its record if there is to be one.
    fn acknowledge<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, offer: &Offer) {
        let Some(recording) = &offer.recording else { return self.mailbox.acknowledge(offer) };
        let received_cycles = cx.now_cycles();
        let slot = self.slots.reserve(cx.memory(), recording);
        self.mailbox.acknowledge(offer);
        self.record = slot.map(|slot| CoreRecord::begin(slot, offer.token, received_cycles, cx.now_cycles()));
    }

    /// Reports the item finished and then leaves its record. The lane is woken when both are there, unless the record takes
    /// time of its own.
    fn finish<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, report: ItemReport) {
        if let Some(record) = &mut self.record {
            record.end(cx.now_cycles());
        }
        self.mailbox.finish(report);
        if self.record.is_some() {
            match self.delays.cycles(self.core, self.items, Part::Record) {
                0 => self.leave_record(cx),
                delay_cycles => {
                    let until_cycles = cx.now_cycles().saturating_add(delay_cycles);
                    self.state = State::Recording { until_cycles };
                }
            }
        }
        cx.wake_lane(self.core.lane(cx.map().lanes));
    }

    fn leave_record<P: Platform<Memory = M>>(&mut self, cx: &Context<P>) {
        if let Some(record) = self.record.take() {
            record.store(cx.memory());
        }
    }

    fn take_up<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, instruction: DevAddr) -> State<M> {
        let delay_cycles = self.delays.cycles(self.core, self.items, Part::Run);
        let earliest_cycles = match delay_cycles {
            // Without a delay the clock need not be read.
            0 => 0,
            _ => cx.now_cycles().saturating_add(delay_cycles),
        };
        self.items = self.items.wrapping_add(1);
        let mut bytes = InstructionBytes::new_zeroed();
        if let Err(class) = CopyEngine::new(cx.memory(), cx.map()).fetch(instruction, bytes.as_mut_bytes()) {
            return failed(class, QueueId::EXEC, NOTHING_DONE);
        }
        match bytes.decode() {
            Ok(Instruction::RunBlock(block)) => {
                if let Some(record) = &mut self.record {
                    record.name(block.queue.get(), block.block);
                }
                match self.start(cx, &block) {
                    Ok(queue) => {
                        let (id, left) = (block.queue, block.pairs);
                        State::Running { id, queue, left, report: NOTHING_DONE, earliest_cycles }
                    }
                    Err(class) => failed(class, block.queue, NOTHING_DONE),
                }
            }
            Ok(Instruction::Opaque { .. }) => {
                let until_cycles =
                    cx.now_cycles().saturating_add(self.opaque.get()).saturating_add(delay_cycles);
                State::Holding { report: NOTHING_DONE, until_cycles }
            }
            Ok(Instruction::Halt) | Err(_) => {
                failed(ErrorClass::BAD_INSTRUCTION, QueueId::EXEC, NOTHING_DONE)
            }
        }
    }

    fn start<P: Platform<Memory = M>>(
        &self,
        cx: &Context<P>,
        block: &RunBlock,
    ) -> Result<DmaQueue<M>, ErrorClass> {
        let queue = DmaQueue::attach(cx.memory(), self.registers, block.queue)
            .map_err(|_| ErrorClass::OUT_OF_BOUNDS)?;
        if block.pairs > 0 {
            queue.start(block.pairs)?;
        }
        Ok(queue)
    }

    fn run<P: Platform<Memory = M>>(
        &self,
        cx: &Context<P>,
        id: QueueId,
        queue: DmaQueue<M>,
        left: u32,
        mut report: ItemReport,
        earliest_cycles: u64,
    ) -> State<M> {
        let now = left.min(PAIRS_PER_POLL);
        if let Err(class) = run_pairs(cx, &queue, now, &mut report) {
            return failed(class, id, report);
        }
        match left - now {
            0 => State::Holding { report, until_cycles: earliest_cycles },
            left => State::Running { id, queue, left, report, earliest_cycles },
        }
    }
}

fn failed<M: DeviceMemory>(class: ErrorClass, queue: QueueId, report: ItemReport) -> State<M> {
    let report = ItemReport { status: ItemStatus::failed(class.0, queue), ..report };
    State::Holding { report, until_cycles: 0 }
}

fn run_pairs<P: Platform>(
    cx: &Context<P>,
    queue: &DmaQueue<P::Memory>,
    pairs: u32,
    report: &mut ItemReport,
) -> Result<(), ErrorClass> {
    if pairs == 0 {
        return Ok(());
    }
    let engine = CopyEngine::new(cx.memory(), cx.map());
    let mut run = queue.begin(pairs)?;
    let mut ahead = Ahead::default();
    let mut outcome = Ok(());
    while let Some(done) = run.step(&engine, &mut ahead) {
        match done {
            Ok(done) => {
                report.bytes_moved = report.bytes_moved.wrapping_add(done.bytes());
                report.descriptors = report.descriptors.wrapping_add(1);
                announce(cx, done.effects());
            }
            Err(class) => {
                outcome = Err(class);
                break;
            }
        }
    }
    queue.store(&run);
    outcome
}

/// A program can raise semaphores by descriptors of its own. Its tail increments and events wake nobody: blocks ring their
/// own queues, and an execution is started by its ring alone.
fn announce<P: Platform>(cx: &Context<P>, effects: Effects) {
    if effects.raised_semaphore() {
        cx.wake_lanes();
    }
}
