//! The board: how the sequencer of a TPB and the lanes that own its engines follow an execution together.
//!
//! ```text
//!   0x00  started   aborted   program base low, high × 5      sequencer
//!   0x40  ended     failure   one line per engine             lane that owns the engine
//! ```
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `started` | sequencer → lanes | release → acquire | program bases, zeroed semaphores, re-armed queues |
//! | `aborted` | sequencer → lanes | release → acquire | execution that failed: run no more of it |
//! | `ended` | lane → sequencer | release → acquire | the engine's failure, its notifications, all that it wrote |
//!
//! Words that name an execution hold its [`Execution::count`]. All lie in the firmware's page of the TPB and read 0 at the
//! start.

use sluice_core::mem::{DevAddr, Fault, LongOwn, LongPeer, Memory, Own, Peer};
use sluice_core::mmio::{Engine, ItemStatus, TpbRegisters};

const STARTED: u64 = 0x00;
const ABORTED: u64 = 0x04;
const BASES: u64 = 0x08;
const ENGINES: u64 = 0x40;
const ENGINE_BYTES: u64 = 0x40;
const ENDED: u64 = 0x00;
const FAILURE: u64 = 0x04;

/// One execution of a TPB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Execution(u32);

impl Execution {
    /// The one that follows when `done` executions are done.
    pub(crate) const fn after(done: u32) -> Self {
        Self(done.wrapping_add(1))
    }

    /// How many are done once it is.
    pub(crate) const fn count(self) -> u32 {
        self.0
    }

    /// Its number among the TPB's executions, from 0; notifications and records carry it.
    pub(crate) const fn ordinal(self) -> u32 {
        self.0.wrapping_sub(1)
    }
}

fn base_address(tpb: TpbRegisters, engine: Engine) -> DevAddr {
    tpb.firmware().offset(BASES + 8 * engine as u64)
}

fn engine_address(tpb: TpbRegisters, engine: Engine) -> DevAddr {
    tpb.firmware().offset(ENGINES + ENGINE_BYTES * engine as u64)
}

/// The sequencer's side.
pub(crate) struct SequencerBoard<M: Memory> {
    start: Own<M::Word>,
    abort: Own<M::Word>,
    bases: [LongOwn<M::Word>; Engine::COUNT],
    ended: [Peer<M::Word>; Engine::COUNT],
    failure: [Peer<M::Word>; Engine::COUNT],
}

fn each<T>(mut make: impl FnMut(Engine) -> Result<T, Fault>) -> Result<[T; Engine::COUNT], Fault> {
    let [pe, act, pool, dve, sp] = Engine::ALL;
    Ok([make(pe)?, make(act)?, make(pool)?, make(dve)?, make(sp)?])
}

impl<M: Memory> SequencerBoard<M> {
    /// The board of `tpb`.
    ///
    /// # Errors
    /// [`Fault`] when it lies outside device memory.
    pub(crate) fn attach(memory: &M, tpb: TpbRegisters) -> Result<Self, Fault> {
        let peer = |at| memory.word(at).map(Peer::new);
        Ok(Self {
            start: Own::new(memory.word(tpb.firmware().offset(STARTED))?),
            abort: Own::new(memory.word(tpb.firmware().offset(ABORTED))?),
            bases: each(|engine| LongOwn::at(memory, base_address(tpb, engine)))?,
            ended: each(|engine| peer(engine_address(tpb, engine).offset(ENDED)))?,
            failure: each(|engine| peer(engine_address(tpb, engine).offset(FAILURE)))?,
        })
    }

    /// Starts `execution` with these programs.
    pub(crate) fn start(&self, execution: Execution, bases: [DevAddr; Engine::COUNT]) {
        for (word, base) in self.bases.iter().zip(bases) {
            word.publish(base);
        }
        if self.abort.get() == execution.count() {
            // Counts have gone once round since that one failed.
            self.abort.publish(execution.ordinal());
        }
        self.start.publish(execution.count());
    }

    /// Has the lanes run no more of `execution`.
    pub(crate) fn abort(&self, execution: Execution) {
        self.abort.publish(execution.count());
    }

    /// How `engine` ended `execution`, once it has.
    pub(crate) fn ended(&self, engine: Engine, execution: Execution) -> Option<ItemStatus> {
        let engine = engine.index();
        (self.ended[engine].observe() == execution.count())
            .then(|| ItemStatus::from_word(self.failure[engine].observe()))
    }
}

/// The side of the lane that owns an engine.
pub(crate) struct EngineBoard<M: Memory> {
    start: Peer<M::Word>,
    abort: Peer<M::Word>,
    base: LongPeer<M::Word>,
    ended: Own<M::Word>,
    failure: Own<M::Word>,
}

impl<M: Memory> EngineBoard<M> {
    /// The board of `tpb` as `engine` sees it.
    ///
    /// # Errors
    /// [`Fault`] when it lies outside device memory.
    pub(crate) fn attach(memory: &M, tpb: TpbRegisters, engine: Engine) -> Result<Self, Fault> {
        let peer = |at| memory.word(at).map(Peer::new);
        let own = |at| memory.word(at).map(Own::new);
        Ok(Self {
            start: peer(tpb.firmware().offset(STARTED))?,
            abort: peer(tpb.firmware().offset(ABORTED))?,
            base: LongPeer::at(memory, base_address(tpb, engine))?,
            ended: own(engine_address(tpb, engine).offset(ENDED))?,
            failure: own(engine_address(tpb, engine).offset(FAILURE))?,
        })
    }

    /// The execution that was started and that this engine has not ended.
    pub(crate) fn started(&self) -> Option<Execution> {
        let count = self.start.observe();
        (count != self.ended.get()).then_some(Execution(count))
    }

    /// Where the engine's program starts; null when it has none.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub(crate) fn base(&self) -> Result<DevAddr, Fault> {
        self.base.try_observe()
    }

    /// Whether `execution` was given up.
    pub(crate) fn is_aborted(&self, execution: Execution) -> bool {
        self.abort.observe() == execution.count()
    }

    /// Ends the engine's part of `execution`.
    pub(crate) fn end(&self, execution: Execution, status: ItemStatus) {
        self.failure.set(status.word());
        self.ended.publish(execution.count());
    }
}
