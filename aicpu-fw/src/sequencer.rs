//! The sequencer of a TPB: takes executions from the execution ring and sees them through, one at a time.
//!
//! ```text
//!              doorbell > done            start event set
//!   ┌──────┐ ────────────────► ┌─────────┐ ─────────────► ┌─────────┐
//!   │ idle │                   │ staging │                │ running │──┐ an engine failed:
//!   └──────┘ ◄─────────────┐   └─────────┘                └─────────┘◄─┘ abort the rest
//!      ▲                   │        │ bad pair                 │
//!      │ set up anew       │   ┌─────────┐                     │ all five engines ended
//!      └───────────────────┼───│ stopped │ ◄── stop record     │
//!                          │   └─────────┘                     │
//!                          └────────── executions_done + 1 ────┘
//! ```
//!
//! *Staging* consumes pairs of queue 15 in order, never past `exec_posted_pairs`: pointer and queue-base swaps, the request,
//! tail increments of the prologue queue, which is run at once, last the event. The pair that sets the TPB's start event ends
//! the batch. Then semaphores are zeroed, the model's queues go back to the start of their rings (so a ring that the host
//! filled once serves every execution), and the lanes are told.
//!
//! A pair of the execution ring that cannot be carried out stops the sequencer: what follows it in the ring can't be trusted.
//! Once the stop word is set, executions that have not begun count as done without having run.
//! A stop record, a pair whose destination is the stop word, stops it in order and counts as an execution done. It goes on
//! when the host has set the TPB up again. A failure inside a program, or a host that gives it up, ends that
//! execution alone: no engine is given a further item or sends an end notification, the error queue says why, and the
//! execution counts as done.

use heapless::Vec;
use sluice_core::exec::vitals::DevicePhase;
use sluice_core::exec::{Channel, ErrorClass, ExecRequest, Notification, NotificationSender, REQUEST_BYTES};
use sluice_core::mem::{DeviceMemory, Fault, Word, Words};
use sluice_core::mmio::{Engine, EventId, QueueId, SemaphoreId, SequencerControl, TpbId, TpbRegisters};

use crate::board::{Execution, SequencerBoard};
use crate::copy::CopyEngine;
use crate::platform::{Activity, Context, Platform};
use crate::queue::{Ahead, DmaQueue, QueueRun};
use crate::record::{EngineEnd, Recorder, Submit};

/// Pairs of the execution ring that one poll consumes at most.
const PAIRS_PER_POLL: u32 = 64;

/// Queues that belong to models.
const MODEL_QUEUES: u32 = QueueId::EXEC.get();

/// How far a batch of the execution ring got in one poll.
enum Batch {
    /// There is more of it.
    GoesOn,
    /// The rest is not there yet.
    Waits,
    /// To its end.
    Starts,
    /// To a stop record.
    Stops,
}

/// The engines that have ended an execution, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Ended(u8);

impl Ended {
    const ALL: Self = Self((1 << Engine::COUNT) - 1);

    const fn has(self, engine: Engine) -> bool {
        self.0 & 1 << engine.index() != 0
    }

    const fn insert(&mut self, engine: Engine) {
        self.0 |= 1 << engine.index();
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Staging {
        /// When it began, if that was recorded then.
        since_cycles: Option<u64>,
    },
    Running {
        execution: Execution,
        ended: Ended,
        aborted: bool,
    },
    /// Until the host's count of set-ups is another than this.
    Stopped {
        setups: u32,
    },
}

/// One TPB's sequencer.
pub(crate) struct Sequencer<M: DeviceMemory> {
    tpb: TpbId,
    control: SequencerControl<M::Word>,
    board: SequencerBoard<M>,
    errors: NotificationSender<M>,
    exec: DmaQueue<M>,
    exec_ahead: Ahead,
    prologue: DmaQueue<M>,
    prologue_ahead: Ahead,
    model_queues: Vec<DmaQueue<M>, { MODEL_QUEUES as usize }>,
    start_event: M::Word,
    request: M::Words,
    semaphores: M::Words,
    submits: u32,
    state: State,
}

impl<M: DeviceMemory> Sequencer<M> {
    /// The sequencer of `tpb`, whose registers are `registers`.
    ///
    /// # Errors
    /// [`Fault`] when registers lie outside device memory.
    pub(crate) fn attach(memory: &M, tpb: TpbId, registers: TpbRegisters) -> Result<Self, Fault> {
        let mut model_queues = Vec::new();
        for queue in (0..MODEL_QUEUES).filter_map(|queue| QueueId::new(queue).ok()) {
            // As many as there is room for.
            let _ = model_queues.push(DmaQueue::attach(memory, registers, queue)?);
        }
        let first_semaphore = registers.semaphore(SemaphoreId::FIRST);
        Ok(Self {
            tpb,
            control: SequencerControl::attach(memory, registers)?,
            board: SequencerBoard::attach(memory, registers)?,
            errors: NotificationSender::attach(memory, registers, Channel::Errors)?,
            exec: DmaQueue::attach(memory, registers, QueueId::EXEC)?,
            exec_ahead: Ahead::default(),
            prologue: DmaQueue::attach(memory, registers, QueueId::PROLOGUE)?,
            prologue_ahead: Ahead::default(),
            model_queues,
            start_event: memory.word(registers.event(EventId::START))?,
            request: memory.words(registers.request(), (REQUEST_BYTES / 4) as u32)?,
            semaphores: memory.words(first_semaphore, SemaphoreId::COUNT)?,
            submits: 0,
            state: State::Idle,
        })
    }

    /// Does what can be done now, a bounded amount. Never blocks, but for recording.
    pub(crate) fn poll<P: Platform<Memory = M>, const CORES: usize>(
        &mut self,
        cx: &Context<P>,
        record: &mut Recorder<M, CORES>,
    ) -> Activity {
        match self.state {
            State::Idle => self.poll_idle(cx, record),
            State::Staging { since_cycles } => self.poll_staging(cx, record, since_cycles),
            State::Running { execution, ended, aborted } => {
                self.poll_running(cx, record, execution, ended, aborted)
            }
            State::Stopped { setups } => self.poll_stopped(setups),
        }
    }

    /// Executions that were kicked off and are not done. A doorbell behind the count means none.
    fn waiting(&self) -> u32 {
        let waiting = self.control.doorbell.observe().wrapping_sub(self.control.executions_done.get());
        if waiting > u32::MAX / 2 { 0 } else { waiting }
    }

    /// Whether an execution is under way.
    #[inline]
    pub(crate) fn is_executing(&self) -> bool {
        matches!(self.state, State::Staging { .. } | State::Running { .. })
    }

    /// Whether a doorbell was rung that it would heed now.
    pub(crate) fn has_news(&self) -> bool {
        matches!(self.state, State::Idle) && self.waiting() > 0
    }

    fn poll_idle<P: Platform<Memory = M>, const CORES: usize>(
        &mut self,
        cx: &Context<P>,
        record: &mut Recorder<M, CORES>,
    ) -> Activity {
        let waiting = self.waiting();
        if waiting == 0 {
            return Activity::Idle;
        }
        if self.control.stop.observe() != 0 {
            // None of them ever begins. Partner of the host's acquire load: what they were to use is its own again.
            let done = self.control.executions_done.get();
            self.control.executions_done.publish(done.wrapping_add(waiting));
            cx.note_host_news();
            return Activity::Busy;
        }
        cx.show_phase(DevicePhase::EXECUTING);
        let since_cycles = record.submit_clock(cx);
        self.state = State::Staging { since_cycles };
        self.poll_staging(cx, record, since_cycles)
    }

    fn poll_stopped(&mut self, setups: u32) -> Activity {
        // Partner of the host's release store: exec rings and counters as they are to be now.
        if self.control.setups.observe() == setups {
            return Activity::Idle;
        }
        self.state = State::Idle;
        Activity::Busy
    }

    fn poll_staging<P: Platform<Memory = M>, const CORES: usize>(
        &mut self,
        cx: &Context<P>,
        record: &mut Recorder<M, CORES>,
        since_cycles: Option<u64>,
    ) -> Activity {
        match self.run_batch(cx) {
            Ok(Batch::Waits) => Activity::Idle,
            Ok(Batch::GoesOn) => Activity::Busy,
            Ok(Batch::Starts) => self.start(cx, record, since_cycles),
            Ok(Batch::Stops) => {
                let setups = self.control.setups.observe();
                let done = self.control.executions_done.get();
                self.control.executions_done.publish(done.wrapping_add(1));
                cx.note_host_news();
                self.state = State::Stopped { setups };
                Activity::Busy
            }
            Err((queue, class)) => self.stop(cx, record, queue, class),
        }
    }

    /// Consumes pairs of the execution ring, no more than [`PAIRS_PER_POLL`].
    fn run_batch<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
    ) -> Result<Batch, (QueueId, ErrorClass)> {
        let mut consumed = self.control.exec_head_pairs.get();
        let posted = self.control.exec_posted_pairs.observe().wrapping_sub(consumed);
        let now = posted.min(PAIRS_PER_POLL);
        let mut run = self.exec.begin(now).map_err(|class| (QueueId::EXEC, class))?;
        let result = self.run_pairs(cx, &mut run, &mut consumed);
        self.exec.store(&run);
        // The host may overwrite the pairs from here on.
        self.control.exec_head_pairs.publish(consumed);
        match result? {
            Batch::Waits if now < posted => Ok(Batch::GoesOn),
            batch => Ok(batch),
        }
    }

    fn run_pairs<P: Platform<Memory = M>>(
        &mut self,
        cx: &Context<P>,
        run: &mut QueueRun,
        consumed: &mut u32,
    ) -> Result<Batch, (QueueId, ErrorClass)> {
        let engine = CopyEngine::new(cx.memory(), cx.map()).with_queues(self.tpb, &self.model_queues);
        while let Some(done) = run.step(&engine, &mut self.exec_ahead) {
            let effects = done.map_err(|class| (QueueId::EXEC, class))?.effects();
            *consumed = consumed.wrapping_add(1);
            if effects.started_prologue() {
                run_prologue(&self.prologue, &engine, &mut self.prologue_ahead)
                    .map_err(|class| (QueueId::PROLOGUE, class))?;
            }
            if effects.has_stopped(self.tpb) {
                return Ok(Batch::Stops);
            }
            if effects.has_started(self.tpb) {
                return Ok(Batch::Starts);
            }
        }
        Ok(Batch::Waits)
    }

    fn start<P: Platform<Memory = M>, const CORES: usize>(
        &mut self,
        cx: &Context<P>,
        record: &mut Recorder<M, CORES>,
        since_cycles: Option<u64>,
    ) -> Activity {
        let execution = Execution::after(self.control.executions_done.get());
        self.start_event.store_relaxed(0);
        if !self.semaphores.are_zero(SemaphoreId::COUNT) {
            (0..SemaphoreId::COUNT).for_each(|semaphore| self.semaphores.set(semaphore, 0));
        }
        for queue in &self.model_queues {
            queue.rearm();
        }
        self.board.start(execution, Engine::ALL.map(|engine| ExecRequest::base_in(&self.request, engine)));
        cx.wake_lanes();
        let submit = Submit {
            tpb: self.tpb,
            ordinal: execution.ordinal(),
            index: self.submits,
            start_cycles: since_cycles,
            end_cycles: record.submit_clock(cx),
        };
        record.submitted(cx, &submit);
        self.submits = self.submits.wrapping_add(1);
        self.state = State::Running { execution, ended: Ended::default(), aborted: false };
        Activity::Busy
    }

    fn poll_running<P: Platform<Memory = M>, const CORES: usize>(
        &mut self,
        cx: &Context<P>,
        record: &mut Recorder<M, CORES>,
        execution: Execution,
        mut ended: Ended,
        mut aborted: bool,
    ) -> Activity {
        let mut activity = Activity::Idle;
        if !aborted && self.control.given_up.observe() == execution.count() {
            aborted = true;
            activity = Activity::Busy;
            cx.note_error(ErrorClass::GIVEN_UP);
            let engine = Engine::ALL.into_iter().find(|&engine| !ended.has(engine)).unwrap_or(Engine::Sp);
            self.report(
                cx,
                &Notification::error(engine, QueueId::EXEC, ErrorClass::GIVEN_UP, cx.now_cycles()),
            );
            self.abort(cx, execution);
        }
        for engine in Engine::ALL {
            if ended.has(engine) {
                continue;
            }
            let Some(status) = self.board.ended(engine, execution) else { continue };
            ended.insert(engine);
            activity = Activity::Busy;
            record.engine_ended(cx, &EngineEnd { tpb: self.tpb, engine, ordinal: execution.ordinal() });
            if let Some((class, queue)) = status.failure() {
                self.report(cx, &Notification::error(engine, queue, ErrorClass(class), cx.now_cycles()));
                if !aborted {
                    aborted = true;
                    self.abort(cx, execution);
                }
            }
        }
        if ended == Ended::ALL {
            record.execution_ended(cx, self.tpb);
            // Partner of the host's acquire load: outputs and notifications of this execution.
            self.control.executions_done.publish(execution.count());
            cx.note_host_news();
            self.state = State::Idle;
        } else {
            self.state = State::Running { execution, ended, aborted };
        }
        activity
    }

    /// Has the lanes give no more items of `execution` to their agents.
    fn abort<P: Platform<Memory = M>>(&self, cx: &Context<P>, execution: Execution) {
        self.board.abort(execution);
        cx.wake_lanes();
    }

    fn report<P: Platform<Memory = M>>(&mut self, cx: &Context<P>, error: &Notification) {
        let _ = self.errors.send(error);
        cx.note_host_news();
    }

    fn stop<P: Platform<Memory = M>, const CORES: usize>(
        &mut self,
        cx: &Context<P>,
        record: &mut Recorder<M, CORES>,
        queue: QueueId,
        class: ErrorClass,
    ) -> Activity {
        record.failed(cx);
        cx.note_error(class);
        // Before the report: a host that has read it sets the TPB up.
        let setups = self.control.setups.observe();
        self.report(cx, &Notification::stopped(queue, class, cx.now_cycles()));
        self.state = State::Stopped { setups };
        Activity::Busy
    }
}

/// Runs what is pending in a prologue queue.
fn run_prologue<M: DeviceMemory>(
    prologue: &DmaQueue<M>,
    engine: &CopyEngine<'_, M>,
    ahead: &mut Ahead,
) -> Result<(), ErrorClass> {
    // Nothing but this sequencer's own pairs starts more of them meanwhile.
    let pending = prologue.pending();
    if pending == 0 {
        return Ok(());
    }
    let mut run = prologue.begin(pending)?;
    let mut result = Ok(());
    while let (Ok(()), Some(done)) = (result, run.step(engine, ahead)) {
        // Only the execution ring itself starts an execution.
        result = done.map(|_| ());
    }
    prologue.store(&run);
    result
}
