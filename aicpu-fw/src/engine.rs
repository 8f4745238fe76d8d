//! One engine as its lane serves it: walks the engine's program, one item at a time.
//!
//! ```text
//!   ┌──────┐ started: start notification  ┌───────┐ RUN_BLOCK  ┌─────────┐ semaphores  ┌─────────┐
//!   │ idle │ ───────────────────────────► │ fetch │ ─────────► │ waiting │ ──────────► │ running │
//!   └──────┘                              └───────┘            └─────────┘  dispatch   └─────────┘
//!      ▲            HALT: end notification   │ ▲                                            │ FIN
//!      └─────────────────────────────────────┘ └──── record, signal, next instruction ──────┘
//! ```
//!
//! A waiting item stays where it is, too, while its core owes a record that a full buffer needs.
//!
//! An engine without a program starts and ends at once. An engine whose first instruction is none of ours is opaque: one
//! item, whose time the agent takes, then the end. After a failure, its own or another engine's, an engine ends without a
//! notification and its agent is given nothing more.
//!
//! An engine with nothing to do can be given an item that belongs to no execution, for the record that its core makes of it.

use heapless::Vec;
use sluice_core::exec::{
    Channel, CoreIndex, ErrorClass, INSTRUCTION_BYTES, Instruction, InstructionBytes, LaneIndex, MAX_WAITS,
    Notification, NotificationSender, RunBlock, SubType,
};
use sluice_core::mem::{DevAddr, DeviceMemory, Fault, Word};
use sluice_core::mmio::{ItemReport, ItemStatus, LaneMailbox, QueueId, SemaphoreId, TpbRegisters};
use zerocopy::{FromZeros, IntoBytes};

use crate::board::{EngineBoard, Execution};
use crate::copy::CopyEngine;
use crate::platform::{Activity, Context, Platform};
use crate::record::{Dispatch, Finish, Grant, ItemAt, Picked, Recorder};

/// Where in the program an item stands and what follows it.
#[derive(Clone, Copy, Debug)]
struct Item {
    instruction: DevAddr,
    kernel: u32,
    signal: Option<SemaphoreId>,
    last: bool,
}

impl Item {
    fn at(&self, execution: Execution) -> ItemAt {
        ItemAt { execution: execution.ordinal(), instruction: self.instruction }
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Fetch { execution: Execution, at: DevAddr, first: bool },
    Waiting { execution: Execution, item: Item },
    Running { execution: Execution, item: Item, token: u32, dispatch_cycles: Option<u64>, picked: Picked },
    MadeUp { token: u32 },
}

/// One engine of one TPB, as the lane that owns it sees it.
pub(crate) struct EngineService<M: DeviceMemory> {
    core: CoreIndex,
    registers: TpbRegisters,
    board: EngineBoard<M>,
    mailbox: LaneMailbox<M::Word>,
    status: NotificationSender<M>,
    state: State,
    /// What the item that waits waits for. Apart from the state, which is moved at every step.
    waits: Vec<(M::Word, u32), MAX_WAITS>,
    /// Looks since the last dispatch that found the waiting item not ready.
    misses: u32,
}

/// What an engine needs of its lane during a poll.
pub(crate) struct Surroundings<'a, P: Platform, const CORES: usize> {
    pub(crate) cx: &'a Context<P>,
    pub(crate) record: &'a mut Recorder<P::Memory, CORES>,
    /// Round of the lane's loop.
    pub(crate) iteration: u32,
    now_cycles: Option<u64>,
}

impl<'a, P: Platform, const CORES: usize> Surroundings<'a, P, CORES> {
    /// What engines share in round `iteration` of a lane.
    pub(crate) fn new(
        cx: &'a Context<P>,
        record: &'a mut Recorder<P::Memory, CORES>,
        iteration: u32,
    ) -> Self {
        Self { cx, record, iteration, now_cycles: None }
    }

    /// The time of the round: engines that begin in the same round begin at the same time.
    fn round_cycles(&mut self) -> u64 {
        *self.now_cycles.get_or_insert_with(|| self.cx.now_cycles())
    }
}

impl<M: DeviceMemory> EngineService<M> {
    /// The service of `core`, an engine of the TPB with these registers.
    ///
    /// # Errors
    /// [`Fault`] when registers lie outside device memory.
    pub(crate) fn attach(memory: &M, core: CoreIndex, registers: TpbRegisters) -> Result<Self, Fault> {
        Ok(Self {
            core,
            registers,
            board: EngineBoard::attach(memory, registers, core.engine())?,
            mailbox: LaneMailbox::attach(memory, registers, core.engine())?,
            status: NotificationSender::attach(memory, registers, Channel::Status(core.engine()))?,
            state: State::Idle,
            waits: Vec::new(),
            misses: 0,
        })
    }

    /// Makes at most one step. Never blocks, but for recording.
    pub(crate) fn poll<P: Platform<Memory = M>, const CORES: usize>(
        &mut self,
        lane: &mut Surroundings<'_, P, CORES>,
    ) -> Activity {
        match self.state {
            State::Idle => {
                let Some(execution) = self.board.started() else { return Activity::Idle };
                self.begin(lane.cx, execution, lane.round_cycles());
                Activity::Busy
            }
            State::Fetch { execution, at, first } => {
                self.fetch(lane.cx, execution, at, first);
                Activity::Busy
            }
            State::Waiting { execution, item } => self.poll_waiting(lane, execution, item),
            State::Running { execution, item, token, dispatch_cycles, picked } => {
                let Some(report) = self.mailbox.finished() else { return Activity::Idle };
                let finish = Finish {
                    core: self.core,
                    token,
                    kernel: item.kernel,
                    item: Some(item.at(execution)),
                    iteration: lane.iteration,
                    dispatch_cycles,
                    finish_cycles: lane.record.item_clock(lane.cx),
                    picked,
                };
                self.finish(lane, execution, item, &finish, report);
                Activity::Busy
            }
            State::MadeUp { token } => {
                if self.mailbox.finished().is_none() {
                    return Activity::Idle;
                }
                lane.record.finished(lane.cx, &Finish::made_up(self.core, token, lane.iteration));
                self.state = State::Idle;
                Activity::Busy
            }
        }
    }

    /// Gives the core an item that belongs to no execution, if the engine has nothing to do and its core owes no record.
    ///
    /// # Errors
    /// What the lane is to do before it asks again.
    pub(crate) fn make_up<P: Platform<Memory = M>, const CORES: usize>(
        &mut self,
        lane: &mut Surroundings<'_, P, CORES>,
        instruction: DevAddr,
    ) -> Result<(), Activity> {
        let State::Idle = self.state else { return Err(Activity::Idle) };
        let Surroundings { cx, record, .. } = lane;
        let recording = match record.grant(cx, self.core, Picked::ALL) {
            Grant::Granted(recording) => recording,
            Grant::Withheld { until_cycles } => return Err(Activity::Until(until_cycles)),
        };
        let token = self.mailbox.dispatch(instruction, recording);
        cx.wake_agent(self.core);
        self.state = State::MadeUp { token };
        if recording.is_some() {
            record.dispatched_made_up(cx, self.core, token);
        }
        Ok(())
    }

    /// Whether the core has an item that belongs to no execution.
    pub(crate) fn has_made_up_item(&self) -> bool {
        matches!(self.state, State::MadeUp { .. })
    }

    fn begin<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, execution: Execution, now_cycles: u64) {
        self.notify(cx, execution, SubType::START, now_cycles);
        match self.board.base() {
            Ok(DevAddr::NULL) => self.end(cx, execution, now_cycles),
            Ok(at) => self.state = State::Fetch { execution, at, first: true },
            Err(_) => self.fail(cx, execution, ErrorClass::OUT_OF_BOUNDS),
        }
    }

    fn fetch<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
        execution: Execution,
        at: DevAddr,
        first: bool,
    ) {
        let mut bytes = InstructionBytes::new_zeroed();
        if let Err(class) = CopyEngine::new(cx.memory(), cx.map()).fetch(at, bytes.as_mut_bytes()) {
            return self.fail(cx, execution, class);
        }
        match bytes.decode() {
            Ok(Instruction::Halt) => self.end(cx, execution, cx.now_cycles()),
            Ok(Instruction::RunBlock(block)) => match self.waits(cx, &block) {
                Ok(waits) => {
                    self.waits = waits;
                    let (kernel, signal) = (block.kernel, block.signal);
                    let item = Item { instruction: at, kernel, signal, last: false };
                    self.state = State::Waiting { execution, item };
                }
                Err(_) => self.fail(cx, execution, ErrorClass::OUT_OF_BOUNDS),
            },
            Ok(Instruction::Opaque { .. }) if first => {
                self.waits = Vec::new();
                let item = Item { instruction: at, kernel: 0, signal: None, last: true };
                self.state = State::Waiting { execution, item };
            }
            Ok(Instruction::Opaque { .. }) | Err(_) => self.fail(cx, execution, ErrorClass::BAD_INSTRUCTION),
        }
    }

    fn waits<P: Platform<Memory = M>>(
        &self,
        cx: &Context<P>,
        block: &RunBlock,
    ) -> Result<Vec<(M::Word, u32), MAX_WAITS>, Fault> {
        block
            .waits
            .iter()
            .map(|wait| Ok((cx.memory().word(self.registers.semaphore(wait.semaphore))?, wait.at_least)))
            .collect()
    }

    fn poll_waiting<P: Platform<Memory = M>, const CORES: usize>(
        &mut self,
        lane: &mut Surroundings<'_, P, CORES>,
        execution: Execution,
        item: Item,
    ) -> Activity {
        let Surroundings { cx, record, iteration, .. } = lane;
        if self.board.is_aborted(execution) {
            self.leave(cx, execution, ItemStatus::DONE);
            return Activity::Busy;
        }
        // Partner of the signalling lane's accumulate: what the item before wrote.
        if self.waits.iter().any(|(semaphore, at_least)| semaphore.load_acquire() < *at_least) {
            self.misses = self.misses.wrapping_add(1);
            return Activity::Idle;
        }
        let at = item.at(execution);
        let picked = record.pick(cx, at.execution);
        let recording = match record.grant(cx, self.core, picked) {
            Grant::Granted(recording) => recording,
            Grant::Withheld { until_cycles } => return Activity::Until(until_cycles),
        };
        record.dispatching(cx, self.core, &at, picked);
        let dispatch_cycles = record.dispatch_clock(cx);
        let token = self.mailbox.dispatch(item.instruction, recording);
        cx.wake_agent(self.core);
        self.state = State::Running { execution, item, token, dispatch_cycles, picked };
        let dispatch = Dispatch {
            core: self.core,
            token,
            iteration: *iteration,
            misses: core::mem::take(&mut self.misses),
            dispatch_cycles,
            is_recorded_by_core: recording.is_some(),
            picked,
        };
        record.dispatched(cx, &dispatch);
        Activity::Busy
    }

    fn finish<P: Platform<Memory = M>, const CORES: usize>(
        &mut self,
        lane: &mut Surroundings<'_, P, CORES>,
        execution: Execution,
        item: Item,
        finish: &Finish,
        report: ItemReport,
    ) {
        let Surroundings { cx, record, .. } = lane;
        record.finished(cx, finish);
        if report.status.failure().is_none()
            && let Some(semaphore) = item.signal
            && cx.memory().accumulate(self.registers.semaphore(semaphore), 1).is_ok()
        {
            cx.wake_lanes();
        }
        record.completed(cx, finish);
        if report.status.failure().is_some() {
            return self.leave(cx, execution, report.status);
        }
        if item.last {
            return self.end(cx, execution, cx.now_cycles());
        }
        match item.instruction.checked_add(INSTRUCTION_BYTES as u64) {
            Some(at) => self.state = State::Fetch { execution, at, first: false },
            None => self.fail(cx, execution, ErrorClass::OUT_OF_BOUNDS),
        }
    }

    fn end<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, execution: Execution, now_cycles: u64) {
        // An execution that was given up meanwhile did not end.
        if !self.board.is_aborted(execution) {
            self.notify(cx, execution, SubType::END, now_cycles);
        }
        self.leave(cx, execution, ItemStatus::DONE)
    }

    fn fail<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, execution: Execution, class: ErrorClass) {
        self.leave(cx, execution, ItemStatus::failed(class.0, QueueId::EXEC))
    }

    fn leave<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, execution: Execution, status: ItemStatus) {
        if let Some((class, _)) = status.failure() {
            cx.note_error(ErrorClass(class));
        }
        self.board.end(execution, status);
        cx.wake_lane(LaneIndex::SEQUENCER);
        self.state = State::Idle;
    }

    fn notify<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
        execution: Execution,
        sub_type: SubType,
        now_cycles: u64,
    ) {
        let record = Notification::status(self.core.engine(), execution.ordinal(), sub_type, now_cycles);
        let _ = self.status.send(&record);
        cx.note_host_news();
    }
}
