//! A core's performance counters, as registers beside its mailbox.
//!
//! ```text
//!   lane                              agent
//!   selectors, control = 1 ─────────► counts every item from 0
//!                                     total, counters, then the mailbox's fin_token
//!   sees fin_token ── total, counters
//! ```
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `control` | lane → agent | release → acquire | the selectors; 1: count, 0: do not |
//! | `selector[n]` | lane → agent | by `control` | what counter `n` counts, 0: nothing |
//! | `total`, `counter[n]` | agent → lane | by the mailbox's `fin_token` | cycles and events of the last item |

use crate::layout::pmu_events::EventGroup;
use crate::mem::{Fault, Memory, Own, Peer, Words};

use super::map::{Engine, TpbRegisters};

/// Counters of a core: the most of any architecture.
pub const COUNTERS: usize = 10;

/// Bytes of a core's block: a line for each side.
pub(super) const BLOCK_BYTES: u64 = 0x80;

const CONTROL: u64 = 0x00;
const SELECTORS: u64 = 0x04;
const TOTAL_LOW: u64 = 0x40;
const TOTAL_HIGH: u64 = 0x44;
const VALUES: u64 = 0x48;

const _: () = {
    let words = 4 * COUNTERS as u64;
    assert!(SELECTORS + words <= TOTAL_LOW && VALUES + words <= BLOCK_BYTES);
};

/// What the counters of a core read after an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Cycles of the whole item.
    pub total_cycles: u64,
    /// Events, by counter, wrapping.
    pub events: [u32; COUNTERS],
}

/// The lane's side.
#[derive(Debug)]
pub struct LaneCounters<M: Memory> {
    control: Own<M::Word>,
    selectors: M::Words,
    total: [Peer<M::Word>; 2],
    values: M::Words,
}

impl<M: Memory> LaneCounters<M> {
    /// The counters of `engine`.
    ///
    /// # Errors
    /// [`Fault`] when they lie outside device memory.
    pub fn attach(memory: &M, tpb: TpbRegisters, engine: Engine) -> Result<Self, Fault> {
        let at = |offset| memory.word(tpb.counters(engine).offset(offset));
        Ok(Self {
            control: Own::new(at(CONTROL)?),
            selectors: memory.words(tpb.counters(engine).offset(SELECTORS), COUNTERS as u32)?,
            total: [Peer::new(at(TOTAL_LOW)?), Peer::new(at(TOTAL_HIGH)?)],
            values: memory.words(tpb.counters(engine).offset(VALUES), COUNTERS as u32)?,
        })
    }

    /// Has every item from now on counted for `group`, and returns what [`restore`](Self::restore) is to be given at the end.
    pub fn start(&self, group: &EventGroup) -> u32 {
        let control = self.control.get();
        (0..COUNTERS as u32).for_each(|counter| self.selectors.set(counter, 0));
        group.events.iter().for_each(|event| self.selectors.set(event.slot as u32, event.selector));
        self.control.publish(1);
        control
    }

    /// Leaves the control register as it was found.
    pub fn restore(&self, control: u32) {
        self.control.publish(control);
    }

    /// What the last item came to. Call once the mailbox says that it is finished.
    pub fn read(&self) -> Counts {
        let [low, high] = &self.total;
        // A carry between the halves shows in the high one, which is then read with a low one behind it.
        let before = high.observe();
        let (mut low_half, high_half) = (low.observe(), high.observe());
        if before != high_half {
            low_half = low.observe();
        }
        Counts {
            total_cycles: u64::from(high_half) << 32 | u64::from(low_half),
            events: core::array::from_fn(|counter| self.values.get(counter as u32)),
        }
    }
}

/// The agent's side.
#[derive(Debug)]
pub struct AgentCounters<M: Memory> {
    control: Peer<M::Word>,
    selectors: M::Words,
    total: [Own<M::Word>; 2],
    values: M::Words,
}

impl<M: Memory> AgentCounters<M> {
    /// The counters of `engine`.
    ///
    /// # Errors
    /// [`Fault`] when they lie outside device memory.
    pub fn attach(memory: &M, tpb: TpbRegisters, engine: Engine) -> Result<Self, Fault> {
        let at = |offset| memory.word(tpb.counters(engine).offset(offset));
        Ok(Self {
            control: Peer::new(at(CONTROL)?),
            selectors: memory.words(tpb.counters(engine).offset(SELECTORS), COUNTERS as u32)?,
            total: [Own::new(at(TOTAL_LOW)?), Own::new(at(TOTAL_HIGH)?)],
            values: memory.words(tpb.counters(engine).offset(VALUES), COUNTERS as u32)?,
        })
    }

    /// What each counter is to count, 0 for nothing; `None` while nothing is counted.
    pub fn selectors(&self) -> Option<[u32; COUNTERS]> {
        // Partner of the lane's release store: the selectors.
        (self.control.observe() == 1)
            .then(|| core::array::from_fn(|counter| self.selectors.get(counter as u32)))
    }

    /// Shows what an item came to; the mailbox's `fin_token` publishes it.
    pub fn show(&self, counts: &Counts) {
        self.total[0].set(counts.total_cycles as u32);
        self.total[1].set((counts.total_cycles >> 32) as u32);
        (0..).zip(counts.events).for_each(|(counter, events)| self.values.set(counter, events));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::ArchId;
    use crate::layout::pmu_events::event_groups;
    use crate::mem::{DevAddr, Line, Mapped, Slab};
    use crate::mmio::{RegisterMap, TpbId};

    const WINDOW: DevAddr = DevAddr(0x10_0000);

    #[test]
    fn a_lane_reads_what_the_agent_counted_for_its_group() {
        let mut lines = std::vec![Line::ZERO; 0x8_0000 / 64];
        let memory = Mapped::new(Slab::over(&mut lines, WINDOW));
        let tpb = RegisterMap::new(WINDOW, 1).unwrap().tpb(TpbId::FIRST).unwrap();
        for engine in Engine::ALL {
            let lane = LaneCounters::attach(&memory, tpb, engine).unwrap();
            let agent = AgentCounters::attach(&memory, tpb, engine).unwrap();
            assert_eq!(agent.selectors(), None);
            for group in event_groups(ArchId::A5) {
                let control = lane.start(group);
                let selectors = agent.selectors().unwrap();
                for (slot, selector) in selectors.into_iter().enumerate() {
                    let event = group.events.iter().find(|event| event.slot == slot);
                    assert_eq!(selector, event.map_or(0, |event| event.selector));
                }
                let counts = Counts { total_cycles: 7 << 32 | 9, events: selectors };
                agent.show(&counts);
                assert_eq!(lane.read(), counts);
                lane.restore(control);
                assert_eq!(agent.selectors(), None);
            }
        }
    }
}
