//! A lane and its buffer switches.

use core::fmt;

use super::switch::Stage;
use super::{
    Append, DropCause, FreeLook, Hooks, HostSigns, Latch, Patience, Pool, Progress, ReadyRing, Records,
    RingLook, Slot, Subsystem, Switch, SwitchEnd, WaitLog,
};
use crate::gate::{Gate, Gates, WaitEnv};
use crate::layout::extension::{LaneActivity, WaitRecord};
use crate::mem::{Clock, Deadline, Memory, Own, OwnCount};

/// What a lane remembers between switches; plain data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LaneState {
    /// The host-gone latch.
    pub latch: Latch,
    /// Switches that found the ready ring full or frozen at least once.
    pub waits_rq: u32,
    /// Switches that found a free queue empty or frozen at least once.
    pub waits_fq: u32,
    /// Times it stood at a shut gate.
    pub parks: u32,
    /// Deadlines that passed.
    pub expiries: u32,
    /// Records lost, all pools together, wrapping.
    pub dropped: u32,
    /// Most entries seen in the ready ring just after a publication.
    pub ready_high_water: u32,
    /// Ticks that waits took that have ended, at the push and at the pop gate. Not measured where nobody can read it.
    pub waited_cycles: [u64; 2],
}

/// The words in which a lane shows its state to the host (extension block).
pub struct LaneWords<M: Memory> {
    /// A [`LaneActivity`].
    pub state: Own<M::Word>,
    /// 1 once everything is published.
    pub flushed: Own<M::Word>,
    /// Cycle count when the present wait began.
    pub parked_since: OwnCount<M::Word>,
    /// Mirrors [`LaneState::waits_rq`].
    pub waits_rq: Own<M::Word>,
    /// Mirrors [`LaneState::waits_fq`].
    pub waits_fq: Own<M::Word>,
    /// Mirrors [`LaneState::parks`].
    pub parks: Own<M::Word>,
    /// Mirrors [`LaneState::expiries`].
    pub expiries: Own<M::Word>,
    /// Records lost, all pools together, wrapping.
    pub dropped: Own<M::Word>,
    /// Mirrors [`LaneState::ready_high_water`].
    pub ready_high_water: Own<M::Word>,
    /// Mirrors [`LaneState::waited_cycles`].
    pub waited: [OwnCount<M::Word>; 2],
    /// One record per wait.
    pub log: WaitLog<M>,
}

/// A record that was not stored; it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AppendError {
    /// Why.
    pub cause: DropCause,
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record lost: {:?}", self.cause)
    }
}

impl core::error::Error for AppendError {}

/// One lane of one subsystem: its ready ring, its gates, its patience.
pub struct Lane<M: Memory, S> {
    gates: Gates<M>,
    ring: ReadyRing<M>,
    words: Option<LaneWords<M>>,
    limit_cycles: u64,
    state: LaneState,
    subsystem: core::marker::PhantomData<fn() -> S>,
}

impl<M: Memory, S: Subsystem> Lane<M, S> {
    /// A lane that waits at most `limit_cycles` per switch.
    pub fn new(gates: Gates<M>, ring: ReadyRing<M>, words: Option<LaneWords<M>>, limit_cycles: u64) -> Self {
        let state = LaneState::default();
        Self { gates, ring, words, limit_cycles, state, subsystem: core::marker::PhantomData }
    }

    /// Most cycles that it waits per switch.
    pub(super) fn limit_cycles(&self) -> u64 {
        self.limit_cycles
    }

    /// The lane's gates.
    pub fn gates(&self) -> &Gates<M> {
        &self.gates
    }

    /// Producer index of the lane's ready ring: it moves with every buffer that is published.
    pub fn ready_tail(&self) -> u32 {
        self.ring.tail()
    }

    /// What the lane remembers.
    pub fn state(&self) -> LaneState {
        self.state
    }

    /// Puts the lane into `state`, for a checker that explores from many states.
    pub fn restore(&mut self, state: LaneState) {
        self.state = state;
    }

    /// Begins to publish the pool's buffer, if it has one, and claim the next.
    pub fn begin_switch(&self) -> Switch {
        Switch::publish_then_claim(self.limit_cycles)
    }

    /// Begins to publish the pool's stashed buffer, if it has one.
    pub fn begin_stash_publication(&self) -> Switch {
        Switch::publish_stash(self.limit_cycles)
    }

    /// Begins to claim a buffer for a pool that has none.
    pub fn begin_claim(&self) -> Switch {
        Switch::claim_only(self.limit_cycles)
    }

    /// Counts and stores `record`, switching buffers as needed. Does not block while the buffer has room; else up to one
    /// deadline.
    ///
    /// # Errors
    /// [`AppendError`] when the record is lost; it is counted under that cause.
    #[inline]
    pub fn append<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        record: &K::Record,
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        let mut stored = pool.append(record);
        if stored == Append::NoBuffer {
            self.find_room(pool, env);
            stored = pool.try_append(record);
        }
        match stored {
            Append::Stored => Ok(()),
            Append::Full => self.append_switching(pool, env),
            Append::NoBuffer => self.lose(pool, DropCause::HostGone),
        }
    }

    /// After the record that filled the buffer: it is safe unless the buffer is given up.
    pub(super) fn append_switching<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        env: &mut impl WaitEnv,
    ) -> Result<(), AppendError> {
        match self.drive(pool, self.begin_switch(), env) {
            SwitchEnd::Switched | SwitchEnd::Unbacked | SwitchEnd::Unacknowledged => Ok(()),
            SwitchEnd::Kept { .. } => Err(AppendError { cause: DropCause::HostGone }),
        }
    }

    /// Switches, so that the pool has a buffer with room if one is to be had. The record is not given along: what is made up
    /// of parts would have to be put together in memory for it, on the way of those that find room at once.
    #[cold]
    fn find_room<K: Records>(&mut self, pool: &mut Pool<M, K, S>, env: &mut impl WaitEnv) {
        let _: SwitchEnd = self.drive(pool, self.begin_switch(), env);
    }

    /// Counts and stores one record that takes `slots` slots, all of them in one buffer; `fill` is given each with its
    /// number. Switches first if the current buffer has too few left. Blocks up to one deadline then, and up to one more when
    /// the record filled the buffer.
    ///
    /// # Errors
    /// [`AppendError`] when the record is lost; it is counted under that cause. A chain that no buffer holds, or of no slot
    /// at all, is lost to [`DropCause::NoBuffer`].
    pub fn append_chain<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        slots: u32,
        env: &mut impl WaitEnv,
        mut fill: impl FnMut(u32, &mut Slot<'_, M::Window>),
    ) -> Result<(), AppendError> {
        pool.count_attempt();
        if slots == 0 || slots > K::LAYOUT.capacity {
            return self.lose(pool, DropCause::NoBuffer);
        }
        if pool.room() < slots {
            // A buffer that is given up has room again.
            let _ = self.drive(pool, self.begin_switch(), env);
            if pool.room() < slots {
                return self.lose(pool, DropCause::HostGone);
            }
        }
        for number in 0..slots {
            if let Some(mut slot) = pool.slot(number) {
                fill(number, &mut slot);
            }
        }
        match pool.commit(slots) {
            Append::Full => self.append_switching(pool, env),
            Append::Stored | Append::NoBuffer => Ok(()),
        }
    }

    /// Counts an attempt whose record could not be made, lost to `cause`.
    ///
    /// # Errors
    /// Always, with that cause.
    pub fn forgo<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        cause: DropCause,
    ) -> Result<(), AppendError> {
        pool.count_attempt();
        self.lose(pool, cause)
    }

    #[cold]
    pub(super) fn lose<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        cause: DropCause,
    ) -> Result<(), AppendError> {
        pool.drop_records(1, cause);
        self.note_lost(1);
        Err(AppendError { cause })
    }

    /// Puts the pool's full buffer into its stash and claims the next, if the pop gate is open, a buffer waits and the stash
    /// is empty. Otherwise nothing has changed: the caller waits until the last record of the full buffer is there, and
    /// switches.
    pub fn try_rotate<K: Records>(&mut self, pool: &mut Pool<M, K, S>) -> bool {
        !self.gates.is_shut(Gate::Free)
            && pool.has_buffer()
            && pool.stashed().is_none()
            && matches!(pool.try_rotate(), FreeLook::Buffer { .. })
    }

    /// Publishes what the pool holds, at the end of a run. An empty buffer stays where it is; the host takes it back. Blocks
    /// up to one deadline.
    pub fn flush<K: Records>(&mut self, pool: &mut Pool<M, K, S>, env: &mut impl WaitEnv) -> SwitchEnd {
        let mut switch = self.begin_switch();
        let mut round = 0;
        loop {
            match self.poll_flush(pool, &mut switch, &*env) {
                Progress::Done(end) => return end,
                Progress::Moved => round = 0,
                Progress::Waiting(gate) => pause(gate, &mut round, env),
            }
        }
    }

    /// One look of a [`flush`](Lane::flush), which begins with a [`begin_switch`](Lane::begin_switch). Never blocks.
    pub fn poll_flush<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        switch: &mut Switch,
        clock: &impl Clock,
    ) -> Progress {
        if switch.stage == Stage::Claim || pool.state().count == 0 {
            return Progress::Done(SwitchEnd::Switched);
        }
        self.poll_switch(pool, switch, clock)
    }

    /// Runs `switch` to its end. Blocks up to one deadline.
    pub fn drive<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        mut switch: Switch,
        env: &mut impl WaitEnv,
    ) -> SwitchEnd {
        let mut round = 0;
        loop {
            match self.poll_switch(pool, &mut switch, &*env) {
                Progress::Done(end) => return end,
                Progress::Moved => round = 0,
                Progress::Waiting(gate) => pause(gate, &mut round, env),
            }
        }
    }

    /// One look of a switch. Never blocks.
    pub fn poll_switch<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        switch: &mut Switch,
        clock: &impl Clock,
    ) -> Progress {
        if switch.patience == Patience::Ended {
            return self.give_host_up(pool, switch, clock);
        }
        if switch.patience == Patience::Waiting && self.host_is_back(pool, switch) {
            return Progress::Moved;
        }
        match switch.stage {
            Stage::Publish => self.poll_publish(pool, switch, clock),
            Stage::BehindPublication => self.poll_behind_publication(pool, switch, clock),
            Stage::Acknowledge => self.poll_acknowledge(pool, switch, clock),
            Stage::Claim => self.poll_claim(pool, switch, clock),
            Stage::Stash => self.poll_stash(pool, switch, clock),
        }
    }

    fn poll_publish<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        switch: &mut Switch,
        clock: &impl Clock,
    ) -> Progress {
        if !pool.has_buffer() {
            self.go_behind_publication(switch);
            return Progress::Moved;
        }
        if S::RULES.gate_before_publication && !self.may_look(switch) {
            return self.fruitless(pool, switch, clock);
        }
        match self.ring.look() {
            RingLook::Room { depth } => {
                let entry = pool.entry();
                pool.hooks().before_publish();
                if S::RULES.ownership_order {
                    self.ring.publish(&entry);
                    pool.clear_current();
                } else {
                    pool.clear_current();
                    self.ring.publish(&entry);
                }
                self.note_depth(depth + 1);
                self.note_running(pool, switch, clock);
                if S::RULES.gate_before_publication {
                    pool.released();
                    self.go_behind_publication(switch);
                } else {
                    switch.next_stage(Stage::BehindPublication);
                }
                Progress::Moved
            }
            RingLook::Full | RingLook::Corrupt { .. } => {
                self.raise(switch);
                self.fruitless(pool, switch, clock)
            }
        }
    }

    fn poll_stash<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        switch: &mut Switch,
        clock: &impl Clock,
    ) -> Progress {
        if pool.stashed().is_none() {
            return Progress::Done(SwitchEnd::Switched);
        }
        if !self.may_look(switch) {
            return self.fruitless(pool, switch, clock);
        }
        match self.ring.look() {
            RingLook::Room { depth } => {
                self.ring.publish(&pool.stash_entry());
                pool.stash_released();
                self.note_depth(depth + 1);
                self.note_running(pool, switch, clock);
                Progress::Done(SwitchEnd::Switched)
            }
            RingLook::Full | RingLook::Corrupt { .. } => {
                self.raise(switch);
                self.fruitless(pool, switch, clock)
            }
        }
    }

    /// The acknowledgement alone ends this wait: a gate that is shut does not hold it, and one that opens does not end it.
    fn poll_acknowledge<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        switch: &mut Switch,
        clock: &impl Clock,
    ) -> Progress {
        if !self.may_leave_arena(pool) {
            if !self.gates.is_shut(Gate::Free) {
                self.raise(switch);
            }
            return self.fruitless(pool, switch, clock);
        }
        self.note_running(pool, switch, clock);
        if pool.has_buffer() {
            return Progress::Done(SwitchEnd::Switched);
        }
        switch.next_stage(Stage::Claim);
        Progress::Moved
    }

    fn may_leave_arena<K: Records>(&self, pool: &mut Pool<M, K, S>) -> bool {
        if !S::RULES.leave_on_acknowledgement {
            return !self.gates.is_contended(Gate::Free) && !self.gates.is_shut(Gate::Free);
        }
        !S::RULES.reuse_after_acknowledgement || pool.hooks().is_acknowledged()
    }

    fn poll_behind_publication<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        switch: &mut Switch,
        clock: &impl Clock,
    ) -> Progress {
        if self.may_look(switch) {
            pool.released();
            self.go_behind_publication(switch);
            return Progress::Moved;
        }
        self.fruitless(pool, switch, clock)
    }

    fn go_behind_publication(&self, switch: &mut Switch) {
        switch.go_behind_publication();
        if !S::RULES.one_deadline {
            switch.deadline = Deadline::after(self.limit_cycles);
        }
    }

    fn poll_claim<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        switch: &mut Switch,
        clock: &impl Clock,
    ) -> Progress {
        if !self.may_look(switch) {
            return self.fruitless(pool, switch, clock);
        }
        match pool.try_claim() {
            FreeLook::Buffer { .. } => {
                self.note_running(pool, switch, clock);
                Progress::Done(SwitchEnd::Switched)
            }
            FreeLook::Empty | FreeLook::Corrupt { .. } => {
                self.raise(switch);
                self.fruitless(pool, switch, clock)
            }
        }
    }

    /// Whether the gate lets the lane look at its queue. A lane that leaves because of a release looks once before it can be
    /// parked again: that look is what the release was for.
    ///
    /// A latched lane ignores gates, but only while the host shows no life, as every look finds out first. Otherwise a lane
    /// that always finds a buffer would never clear its latch, pass every shut gate, and keep the freeze of its peers from
    /// ending.
    fn may_look(&mut self, switch: &mut Switch) -> bool {
        if self.state.latch.is_set() || !S::RULES.common_mode {
            return true;
        }
        let gate = switch.gate();
        match switch.parked {
            None => match self.gates.arrive(gate) {
                None => true,
                Some(parked) => {
                    switch.parked = Some(parked);
                    self.state.parks = self.state.parks.wrapping_add(1);
                    if let Some(words) = &self.words {
                        words.parks.set(self.state.parks);
                    }
                    false
                }
            },
            Some(parked) => {
                let released = if S::RULES.release_epoch {
                    self.gates.may_leave(gate, parked)
                } else {
                    self.gates.is_open(gate)
                };
                if released {
                    switch.parked = None;
                }
                released
            }
        }
    }

    fn raise(&self, switch: &mut Switch) {
        if S::RULES.raise_by_level {
            self.gates.mark_contended(switch.gate());
        } else if !switch.raised {
            self.gates.mark_contended(switch.gate());
            switch.raised = true;
        }
    }

    /// After a look that found nothing: give up if the host is gone, else wait.
    #[cold]
    fn fruitless<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        switch: &mut Switch,
        clock: &impl Clock,
    ) -> Progress {
        let gate = switch.gate();
        if switch.patience == Patience::LastLook {
            switch.patience = Patience::Waiting;
            let was_served = self.state.latch.signs().is_some_and(|then| self.was_served_since(pool, &then));
            return if was_served { self.trust_again(switch) } else { self.give_up(pool, switch, clock) };
        }
        if self.state.latch.is_set() {
            return if self.host_is_back(pool, switch) {
                Progress::Moved
            } else {
                self.give_up(pool, switch, clock)
            };
        }
        let now_cycles = clock.now_cycles();
        if switch.since_cycles.is_none() {
            switch.since_cycles = Some(now_cycles);
            switch.heartbeat = self.gates.heartbeat();
            self.note_wait(gate, now_cycles);
        }
        if self.gates.is_detached() || switch.deadline.expired_at(now_cycles) {
            switch.patience = Patience::Ended;
            return Progress::Moved;
        }
        Progress::Waiting(gate)
    }

    /// Sets the latch. A lane that stood at a shut gate looks once more.
    #[cold]
    fn give_host_up<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        switch: &mut Switch,
        clock: &impl Clock,
    ) -> Progress {
        self.state.expiries = self.state.expiries.wrapping_add(1);
        let signs = HostSigns {
            gates: self.gates.signs(switch.heartbeat),
            ring_head: self.ring.head(),
            pool: pool.name(),
            queue_tail: pool.queue_tail(),
        };
        self.state.latch = Latch::with(S::RULES.latch.then_some(signs));
        let has_looked = switch.parked.take().is_none();
        if has_looked || self.gates.is_detached() || switch.stage == Stage::BehindPublication {
            return self.give_up(pool, switch, clock);
        }
        switch.patience = Patience::LastLook;
        Progress::Moved
    }

    /// Clears the latch if anything that only a living host changes has changed.
    fn host_is_back<K: Records>(&mut self, pool: &Pool<M, K, S>, switch: &mut Switch) -> bool {
        let Some(then) = self.state.latch.signs() else { return false };
        let heartbeat = self.gates.heartbeat();
        let is_back = heartbeat != then.gates.heartbeat || self.was_served_since(pool, &then);
        if is_back {
            switch.heartbeat = heartbeat;
            let _ = self.trust_again(switch);
        }
        is_back
    }

    fn was_served_since<K: Records>(&self, pool: &Pool<M, K, S>, then: &HostSigns) -> bool {
        self.gates.moved_since(&then.gates)
            || self.ring.head() != then.ring_head
            || (pool.name() == then.pool && pool.queue_tail() != then.queue_tail)
    }

    /// Clears the latch and grants a fresh deadline.
    fn trust_again(&mut self, switch: &mut Switch) -> Progress {
        self.state.latch = Latch::default();
        self.show(LaneActivity::RUNNING);
        switch.deadline = Deadline::after(self.limit_cycles);
        Progress::Moved
    }

    fn give_up<K: Records>(
        &mut self,
        pool: &mut Pool<M, K, S>,
        switch: &Switch,
        clock: &impl Clock,
    ) -> Progress {
        self.note_wait_over(pool, switch, LaneActivity::HOST_GONE, clock);
        self.show(LaneActivity::HOST_GONE);
        if let Some(words) = &self.words {
            words.expiries.set(self.state.expiries);
        }
        Progress::Done(match switch.stage {
            Stage::Publish | Stage::BehindPublication => {
                let dropped = pool.drop_buffer(DropCause::HostGone);
                self.note_lost(dropped);
                SwitchEnd::Kept { dropped }
            }
            Stage::Acknowledge => SwitchEnd::Unacknowledged,
            Stage::Claim => SwitchEnd::Unbacked,
            Stage::Stash => {
                let dropped = pool.drop_stash(DropCause::HostGone);
                self.note_lost(dropped);
                SwitchEnd::Kept { dropped }
            }
        })
    }

    fn note_depth(&mut self, depth: u32) {
        if depth > self.state.ready_high_water {
            self.state.ready_high_water = depth;
            if let Some(words) = &self.words {
                words.ready_high_water.set(depth);
            }
        }
    }

    fn note_running<K: Records>(&mut self, pool: &Pool<M, K, S>, switch: &Switch, clock: &impl Clock) {
        if switch.since_cycles.is_some() {
            self.note_wait_over(pool, switch, LaneActivity::RUNNING, clock);
            self.show(LaneActivity::RUNNING);
        }
    }

    fn note_wait(&mut self, gate: Gate, now_cycles: u64) {
        let waits = match gate {
            Gate::Ready => &mut self.state.waits_rq,
            Gate::Free => &mut self.state.waits_fq,
        };
        *waits = waits.wrapping_add(1);
        if let Some(words) = &self.words {
            words.parked_since.set(now_cycles);
            words.waits_rq.set(self.state.waits_rq);
            words.waits_fq.set(self.state.waits_fq);
        }
        self.show(activity_at(gate));
    }

    /// Measures and logs the wait of `switch`, if it waited, which ended in `next`.
    #[cold]
    fn note_wait_over<K: Records>(
        &mut self,
        pool: &Pool<M, K, S>,
        switch: &Switch,
        next: LaneActivity,
        clock: &impl Clock,
    ) {
        let (Some(words), Some(begin_cycles)) = (&self.words, switch.since_cycles) else { return };
        let end_cycles = clock.now_cycles();
        let index = match switch.gate() {
            Gate::Ready => 0,
            Gate::Free => 1,
        };
        let waited = &mut self.state.waited_cycles[index];
        *waited = waited.wrapping_add(end_cycles.wrapping_sub(begin_cycles));
        words.waited[index].set(*waited);
        let (kind, instance) = pool.name();
        let gate = activity_at(switch.gate());
        words.log.push(&WaitRecord { begin_cycles, end_cycles, gate, next, kind, instance: instance.0 });
    }

    /// Tells the host that everything is published and the counters are final.
    pub fn show_flushed(&self) {
        if let Some(words) = &self.words {
            words.flushed.publish(1);
        }
    }

    pub(super) fn note_lost(&mut self, records: u32) {
        self.state.dropped = self.state.dropped.wrapping_add(records);
        if let Some(words) = &self.words {
            words.dropped.set(self.state.dropped);
        }
    }

    /// Shows the host what the lane does.
    pub fn show(&self, activity: LaneActivity) {
        if let Some(words) = &self.words {
            words.state.publish(activity.0);
        }
    }
}

/// What a lane does that waits at `gate`.
const fn activity_at(gate: Gate) -> LaneActivity {
    match gate {
        Gate::Ready => LaneActivity::READY_GATE,
        Gate::Free => LaneActivity::FREE_GATE,
    }
}

/// One round of a wait at `gate`.
pub(super) fn pause(gate: Gate, round: &mut u32, env: &mut impl WaitEnv) {
    env.note_parked(gate);
    env.relax(*round);
    *round = round.saturating_add(1);
}
