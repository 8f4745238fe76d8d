//! The keeper: refills the free queues and runs the freeze, the one writer of both.
//!
//! One round is a fixed sequence of small steps:
//!
//! ```text
//!  returned buffers ─► spare lists ─► every queue with room ─► signals ─┬─ nothing frozen ─► round over
//!                                                                     └─ frozen: rings drained? pools at their limit?
//!                                                                        subsystem ready? ─► release
//! ```
//!
//! * **Open**: a signal shuts its gate (flag first, then the signal is taken, so a lane never sees neither). With
//!   [`GateScope::Lane`] nothing is shut: the refill of this very round was the service, and the signal is taken.
//! * **Release** is a conjunction: every ready ring is drained; every pool is at its limit (its free queue is full, *or* the
//!   host holds no buffer of it); the subsystem agrees. Then signals are taken, the epoch moves on, both flags open.
//!   Signals go first: a lane that still starves raises again on its next look, and a stale one opens no needless freeze.
//!
//! Buffers that the device holds never count against the limit: a lane that keeps its only buffer for an hour must not
//! keep every other lane parked.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use sluice_core::gate::Gate;
use sluice_core::mem::{Fault, Memory, Word};
use sluice_core::producer::Rules;

use super::ledger::{BufferId, Directory, GivenSide, PoolId};
use super::release::ReleaseReady;
use super::{FreeQueueFeed, GateControl, Occupancy, Pipe, RingWatch};

/// Whom a starving lane stops.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum GateScope {
    /// Every lane that reaches a gate, until the whole subsystem is served.
    #[default]
    All,
    /// Only itself.
    Lane,
}

/// Which gates are shut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Shut {
    /// The push gate.
    pub ready: bool,
    /// The pop gate.
    pub free: bool,
}

impl Shut {
    /// Whether any is.
    pub const fn any(self) -> bool {
        self.ready || self.free
    }

    const fn gate(self, gate: Gate) -> bool {
        match gate {
            Gate::Ready => self.ready,
            Gate::Free => self.free,
        }
    }

    fn set(&mut self, gate: Gate, shut: bool) {
        match gate {
            Gate::Ready => self.ready = shut,
            Gate::Free => self.free = shut,
        }
    }
}

/// Where in its round the keeper is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Step {
    /// Takes returned buffers.
    #[default]
    Returns,
    /// Fills this pool's free queue.
    Refill(u32),
    /// Looks at this gate's signal; 0 is the push gate.
    Signal(u8),
    /// Takes the signal of a gate just shut.
    Take(u8),
    /// Looks whether this ring is drained.
    Ring(u32),
    /// Looks whether this pool is at its limit.
    Limit(u32),
    /// Asks the subsystem.
    Agree,
    /// Takes signals, moves the epoch, opens the gates; steps 0 to 4.
    Release(u8),
    /// Nothing is left to do in this round.
    Over,
}

/// What one poll did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Kept {
    /// A step without an event.
    Step,
    /// A buffer went into its pool's free queue.
    Refilled(BufferId),
    /// A gate was shut.
    Opened(Gate),
    /// A signal was served without a freeze.
    Served(Gate),
    /// The freeze ended.
    Released,
    /// A free queue's counter was out of range.
    CorruptHead {
        /// The pool.
        pool: PoolId,
        /// What its head read.
        head: u32,
    },
    /// The round is over; `moved` buffers were taken back or given out in it.
    RoundOver {
        /// Buffers moved.
        moved: u32,
    },
}

/// A pool of which ledger, spare list and queue do not agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Imbalance {
    /// The pool.
    pub pool: PoolId,
    /// Buffers in the keeper's list.
    pub spare: u32,
    /// Buffers that the ledger counts as the host's.
    pub host_held: u32,
    /// Buffers in the free queue.
    pub queued: u32,
    /// Buffers that the ledger counts as the device's.
    pub device_held: u32,
}

impl fmt::Display for Imbalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool: PoolId(pool), spare, host_held, queued, device_held } = self;
        write!(
            f,
            "pool {pool}: host holds {host_held} buffers, {spare} of them spare; device holds {device_held}, {queued} of \
             them queued"
        )
    }
}

/// What the keeper remembers between polls; plain data.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct KeeperState {
    /// Place in the round.
    pub step: Step,
    /// Gates that are shut.
    pub shut: Shut,
    /// Buffers at hand, oldest first, per pool.
    pub spare: Vec<VecDeque<BufferId>>,
    /// Buffers moved in this round.
    pub moved: u32,
    /// The number under which the first spare buffer of the pool at hand was put into its queue, if that may have failed.
    pub pushing: Option<u32>,
}

/// The keeper of one subsystem.
pub struct Keeper<M: Memory, W> {
    directory: Arc<Directory>,
    queues: Vec<FreeQueueFeed<M>>,
    rings: Vec<RingWatch<M>>,
    gates: GateControl<M>,
    ledger: GivenSide<W>,
    scope: GateScope,
    rules: Rules,
    state: KeeperState,
}

/// The shared words a keeper serves.
pub struct KeeperViews<M: Memory> {
    /// Free queues of all pools, in the directory's order.
    pub queues: Vec<FreeQueueFeed<M>>,
    /// Ready rings of all lanes.
    pub rings: Vec<RingWatch<M>>,
    /// The gates.
    pub gates: GateControl<M>,
}

impl<M: Memory, W: Word> Keeper<M, W> {
    /// A keeper that holds `spare` buffers and finds the gates as `shut` says.
    pub fn new(
        directory: Arc<Directory>,
        views: KeeperViews<M>,
        ledger: GivenSide<W>,
        scope: GateScope,
        rules: Rules,
        spare: impl IntoIterator<Item = BufferId>,
        shut: Shut,
    ) -> Self {
        let spare_lists = vec![VecDeque::new(); directory.pools().len()];
        let mut state = KeeperState { shut, spare: spare_lists, ..KeeperState::default() };
        for buffer in spare {
            state.spare[directory.pool_of(buffer).0 as usize].push_back(buffer);
        }
        let KeeperViews { queues, rings, gates } = views;
        Self { directory, queues, rings, gates, ledger, scope, rules, state }
    }

    /// What the keeper remembers.
    pub fn state(&self) -> &KeeperState {
        &self.state
    }

    /// Puts the keeper into `state`, for a checker that explores from many states.
    pub fn restore(&mut self, state: KeeperState) {
        self.state = state;
    }

    /// Makes one step. `ready` is the subsystem's word that a freeze may end.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails; the step is made again by the next poll.
    pub fn poll<R: ReleaseReady + ?Sized>(
        &mut self,
        returned: &impl Pipe<BufferId>,
        ready: &mut R,
    ) -> Result<Kept, Fault> {
        match self.state.step {
            Step::Returns => self.take_returned(returned),
            Step::Refill(pool) => self.refill(PoolId(pool)),
            Step::Signal(gate) => self.look_at_signal(gate_number(gate)),
            Step::Take(gate) => self.take_signal(gate_number(gate)),
            Step::Ring(ring) => {
                let next =
                    if ring + 1 < self.rings.len() as u32 { Step::Ring(ring + 1) } else { Step::Limit(0) };
                let drained = self.rings[ring as usize].is_drained()?;
                self.advance_if(drained, next)
            }
            Step::Limit(pool) => {
                let next =
                    if pool + 1 < self.queues.len() as u32 { Step::Limit(pool + 1) } else { Step::Agree };
                let reached = self.at_limit(PoolId(pool))?;
                self.advance_if(reached, next)
            }
            Step::Agree => {
                let agrees = ready.is_ready()?;
                self.advance_if(agrees, Step::Release(0))
            }
            Step::Release(step) => self.release(step),
            Step::Over => {
                self.state.step = Step::Returns;
                Ok(self.round_over())
            }
        }
    }

    /// Opens both gates for good, at the end of a session.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails; may be called again.
    pub fn open_all(&mut self) -> Result<(), Fault> {
        if !self.rules.open_at_stop {
            return Ok(());
        }
        self.gates.bump_epoch()?;
        for gate in [Gate::Ready, Gate::Free] {
            self.gates.set_shut(gate, false)?;
            self.state.shut.set(gate, false);
        }
        // A buffer whose push may have failed is pushed again first, under the same number.
        if self.state.pushing.is_none() {
            self.state.step = Step::Returns;
        }
        Ok(())
    }

    /// Holds the ledger against what lies in the spare lists and the queues: every buffer is on one side, a spare one on the
    /// host's, and no more wait in a queue than the device holds. Returns the first pool of which that is not so.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn imbalance(&self) -> Result<Option<Imbalance>, Fault> {
        // A buffer whose push may have failed is in two places until it is pushed again.
        if self.state.pushing.is_some() {
            return Ok(None);
        }
        for (number, queue) in (0..).zip(&self.queues) {
            let buffers = self.directory.pool(PoolId(number)).buffers.clone();
            let spare = &self.state.spare[number as usize];
            let (mut host_held, mut device_held) = (0, 0);
            for buffer in buffers.clone().map(BufferId) {
                host_held += u32::from(self.ledger.is_host_held(buffer));
                device_held += u32::from(self.ledger.is_device_held(buffer));
            }
            let queued = match queue.occupancy()? {
                Occupancy::Waiting(waiting) => waiting,
                // Named elsewhere; what lies there cannot be told.
                Occupancy::Corrupt { .. } => 0,
            };
            if host_held + device_held != buffers.len() as u32
                || spare.len() > host_held as usize
                || spare.iter().any(|&buffer| !self.ledger.is_host_held(buffer))
                || queued > device_held
            {
                let spare = spare.len() as u32;
                return Ok(Some(Imbalance { pool: PoolId(number), spare, host_held, queued, device_held }));
            }
        }
        Ok(None)
    }

    /// Runs one whole round. Returns the buffers it moved.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails; the round goes on from there.
    pub fn round<R: ReleaseReady + ?Sized>(
        &mut self,
        returned: &impl Pipe<BufferId>,
        ready: &mut R,
        mut event: impl FnMut(Kept),
    ) -> Result<u32, Fault> {
        loop {
            match self.poll(returned, ready)? {
                Kept::Step => {}
                Kept::RoundOver { moved } => return Ok(moved),
                kept => event(kept),
            }
        }
    }

    fn take_returned(&mut self, returned: &impl Pipe<BufferId>) -> Result<Kept, Fault> {
        match returned.pop() {
            Some(buffer) => {
                self.state.spare[self.directory.pool_of(buffer).0 as usize].push_back(buffer);
                self.state.moved += 1;
            }
            None => self.state.step = if self.queues.is_empty() { Step::Signal(0) } else { Step::Refill(0) },
        }
        Ok(Kept::Step)
    }

    fn refill(&mut self, pool: PoolId) -> Result<Kept, Fault> {
        let index = pool.0 as usize;
        let next = if index + 1 < self.queues.len() { Step::Refill(pool.0 + 1) } else { Step::Signal(0) };
        let Some(&buffer) = self.state.spare[index].front() else {
            self.state.step = next;
            return Ok(Kept::Step);
        };
        let queue = &self.queues[index];
        let tail = match self.state.pushing {
            Some(tail) => tail,
            None => match queue.occupancy()? {
                Occupancy::Waiting(waiting) if waiting < queue.slots() => {
                    // From here on the lane may have it, whatever the transport says.
                    self.ledger.give(buffer);
                    *self.state.pushing.insert(queue.tail())
                }
                Occupancy::Waiting(_) => {
                    self.state.step = next;
                    return Ok(Kept::Step);
                }
                Occupancy::Corrupt { head } => {
                    self.state.step = next;
                    return Ok(Kept::CorruptHead { pool, head });
                }
            },
        };
        queue.push(tail, self.directory.address(buffer))?;
        self.state.pushing = None;
        self.state.spare[index].pop_front();
        self.state.moved += 1;
        Ok(Kept::Refilled(buffer))
    }

    fn look_at_signal(&mut self, gate: Gate) -> Result<Kept, Fault> {
        let next = match gate {
            Gate::Ready => Step::Signal(1),
            Gate::Free if self.state.shut.any() => self.begin_release(),
            Gate::Free => Step::Returns,
        };
        if self.state.shut.gate(gate) || !self.gates.is_raised(gate)? {
            return Ok(self.after_signals(next));
        }
        match self.scope {
            GateScope::All => {
                if !self.rules.shut_before_consume {
                    self.gates.consume(gate)?;
                }
                self.write(self.gates.set_shut(gate, true))?;
                self.state.shut.set(gate, true);
                self.state.step = Step::Take(number(gate));
                Ok(Kept::Opened(gate))
            }
            GateScope::Lane => {
                self.gates.consume(gate)?;
                self.state.step = if next == Step::Returns { Step::Over } else { next };
                Ok(Kept::Served(gate))
            }
        }
    }

    fn take_signal(&mut self, gate: Gate) -> Result<Kept, Fault> {
        self.gates.consume(gate)?;
        self.state.step = match gate {
            Gate::Ready => Step::Signal(1),
            Gate::Free => self.begin_release(),
        };
        Ok(Kept::Step)
    }

    fn begin_release(&self) -> Step {
        if self.rules.drained_before_release { Step::Ring(0) } else { Step::Limit(0) }
    }

    /// What a write of a flag came to. Only on success may the state move.
    fn write(&self, result: Result<(), Fault>) -> Result<(), Fault> {
        if self.rules.retry_writes { result } else { Ok(()) }
    }

    fn after_signals(&mut self, next: Step) -> Kept {
        self.state.step = next;
        if next == Step::Returns { self.round_over() } else { Kept::Step }
    }

    fn advance_if(&mut self, met: bool, next: Step) -> Result<Kept, Fault> {
        if met {
            self.state.step = next;
            return Ok(Kept::Step);
        }
        self.state.step = Step::Returns;
        Ok(self.round_over())
    }

    fn round_over(&mut self) -> Kept {
        Kept::RoundOver { moved: std::mem::take(&mut self.state.moved) }
    }

    fn at_limit(&self, pool: PoolId) -> Result<bool, Fault> {
        let queue = &self.queues[pool.0 as usize];
        let buffers = self.directory.pool(pool).buffers.clone();
        if !self.rules.attainable_limit {
            let wanted = queue.slots().min(buffers.len() as u32);
            return Ok(matches!(queue.occupancy()?, Occupancy::Waiting(waiting) if waiting >= wanted));
        }
        if !self.ledger.holds_any(buffers) {
            return Ok(true);
        }
        Ok(match queue.occupancy()? {
            Occupancy::Waiting(waiting) => waiting >= queue.slots(),
            // A device whose counter is nonsense cannot be served; it must not hold the others.
            Occupancy::Corrupt { .. } => true,
        })
    }

    fn release(&mut self, step: u8) -> Result<Kept, Fault> {
        match step {
            0 => self.gates.consume(Gate::Ready)?,
            1 => self.gates.consume(Gate::Free)?,
            2 => self.gates.bump_epoch()?,
            3 => {
                if self.state.shut.ready {
                    self.write(self.gates.set_shut(Gate::Ready, false))?;
                }
            }
            _ => {
                if self.state.shut.free {
                    self.write(self.gates.set_shut(Gate::Free, false))?;
                }
                self.state.shut = Shut::default();
                self.state.step = Step::Over;
                return Ok(Kept::Released);
            }
        }
        self.state.step = Step::Release(step + 1);
        Ok(Kept::Step)
    }
}

const fn gate_number(number: u8) -> Gate {
    if number == 0 { Gate::Ready } else { Gate::Free }
}

const fn number(gate: Gate) -> u8 {
    match gate {
        Gate::Ready => 0,
        Gate::Free => 1,
    }
}
