//! A core's performance counters, as registers beside its mailbox.
//!
//! ```text
//!   lane                              agent
//!   selectors, ring, control = 1 ───► counts every item from 0
//!                                     total, counters (or into the ring), then the mailbox's fin_token
//!   sees fin_token ── total, counters
//! ```
//!
//! | word | writer → reader | order | what it publishes |
//! |---|---|---|---|
//! | `control` | lane → agent | release → acquire | selectors and ring; 1: count, 0: do not |
//! | `selector[n]` | lane → agent | by `control` | what counter `n` counts, 0: nothing |
//! | `ring` | lane → agent | by `control` | where the counts go instead ([`CoreStaging`](super::CoreStaging)), null: here |
//! | `total`, `counter[n]` | agent → lane | by the mailbox's `fin_token` | cycles and events of the last item |

use crate::layout::pmu_events::Event;
use crate::mem::{DevAddr, Fault, Memory, Own, Peer, Words};

use super::map::{Engine, TpbRegisters};

/// Counters of a core: the most of any architecture.
pub const COUNTERS: usize = 10;

/// Bytes of a core's block: a line for each side.
pub(super) const BLOCK_BYTES: u64 = 0x80;

const CONTROL: u64 = 0x00;
const SELECTORS: u64 = 0x04;
const RING_LOW: u64 = 0x30;
const RING_HIGH: u64 = 0x34;
const TOTAL_LOW: u64 = 0x40;
const TOTAL_HIGH: u64 = 0x44;
const VALUES: u64 = 0x48;

const _: () = {
    let words = 4 * COUNTERS as u64;
    assert!(SELECTORS + words <= RING_LOW && RING_HIGH < TOTAL_LOW && VALUES + words <= BLOCK_BYTES);
};

/// What the counters of a core read after an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Cycles of the whole item.
    pub total_cycles: u64,
    /// Events, by counter, wrapping.
    pub events: [u32; COUNTERS],
}

/// What a lane wants counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CountOrder {
    /// What each counter is to count, 0 for nothing.
    pub selectors: [u32; COUNTERS],
    /// The ring that the counts go to; null for the counters' own registers.
    pub ring: DevAddr,
}

/// The lane's side.
#[derive(Debug)]
pub struct LaneCounters<M: Memory> {
    control: Own<M::Word>,
    selectors: M::Words,
    ring: [Own<M::Word>; 2],
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
            ring: [Own::new(at(RING_LOW)?), Own::new(at(RING_HIGH)?)],
            total: [Peer::new(at(TOTAL_LOW)?), Peer::new(at(TOTAL_HIGH)?)],
            values: memory.words(tpb.counters(engine).offset(VALUES), COUNTERS as u32)?,
        })
    }

    /// Has the `events` of every item from now on counted, into `ring` unless that is null, and returns what
    /// [`restore`](Self::restore) is to be given at the end.
    pub fn start(&self, events: &[Event], ring: DevAddr) -> u32 {
        let control = self.control.get();
        self.control.publish(0);
        (0..COUNTERS as u32).for_each(|counter| self.selectors.set(counter, 0));
        events.iter().for_each(|event| self.selectors.set(event.slot as u32, event.selector));
        let (low, high) = ring.split();
        self.ring[0].set(low);
        self.ring[1].set(high);
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
    ring: [Peer<M::Word>; 2],
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
            ring: [Peer::new(at(RING_LOW)?), Peer::new(at(RING_HIGH)?)],
            total: [Own::new(at(TOTAL_LOW)?), Own::new(at(TOTAL_HIGH)?)],
            values: memory.words(tpb.counters(engine).offset(VALUES), COUNTERS as u32)?,
        })
    }

    /// Whether items are counted.
    pub fn is_on(&self) -> bool {
        // Partner of the lane's release store: selectors and ring.
        self.control.observe() == 1
    }

    /// What is to be counted; `None` while nothing is.
    pub fn order(&self) -> Option<CountOrder> {
        self.is_on().then(|| CountOrder {
            selectors: core::array::from_fn(|counter| self.selectors.get(counter as u32)),
            ring: DevAddr::join(self.ring[0].observe(), self.ring[1].observe()),
        })
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
    use core::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::layout::ArchId;
    use crate::layout::pmu_events::event_groups;
    use crate::mem::{Line, Mapped, Slab, Window, Word};
    use crate::mmio::{RegisterMap, TpbId};

    const WINDOW: DevAddr = DevAddr(0x10_0000);

    fn tpb() -> TpbRegisters {
        RegisterMap::new(WINDOW, 1).unwrap().tpb(TpbId::FIRST).unwrap()
    }

    #[test]
    fn a_lane_reads_what_the_agent_counted_for_its_group() {
        let mut lines = std::vec![Line::ZERO; 0x8_0000 / 64];
        let memory = Mapped::new(Slab::over(&mut lines, WINDOW));
        for engine in Engine::ALL {
            let lane = LaneCounters::attach(&memory, tpb(), engine).unwrap();
            let agent = AgentCounters::attach(&memory, tpb(), engine).unwrap();
            assert_eq!(agent.order(), None);
            for group in event_groups(ArchId::A5) {
                let ring = DevAddr(u64::from(group.number) << 32 | 0x40);
                let control = lane.start(group.events, ring);
                let order = agent.order().unwrap();
                assert_eq!(order.ring, ring);
                for (slot, selector) in order.selectors.into_iter().enumerate() {
                    let event = group.events.iter().find(|event| event.slot == slot);
                    assert_eq!(selector, event.map_or(0, |event| event.selector));
                }
                let counts = Counts { total_cycles: 7 << 32 | 9, events: order.selectors };
                agent.show(&counts);
                assert_eq!(lane.read(), counts);
                lane.restore(control);
                assert_eq!(agent.order(), None);
            }
        }
    }

    /// Registers of a core whose total goes on by `step` with every look at either half.
    #[derive(Clone)]
    struct Running {
        total: Rc<Cell<u64>>,
        step: u64,
    }

    struct Register(Option<(Running, u32)>);

    impl Word for Register {
        fn load_relaxed(&self) -> u32 {
            let Some((Running { total, step }, shift)) = &self.0 else { return 0 };
            (total.replace(total.get() + step) >> shift) as u32
        }

        fn load_acquire(&self) -> u32 {
            self.load_relaxed()
        }

        fn store_relaxed(&self, _: u32) {}

        fn store_release(&self, _: u32) {}
    }

    impl Words for Register {
        fn get(&self, _: u32) -> u32 {
            0
        }

        fn set(&self, _: u32, _: u32) {}
    }

    impl Window for Register {
        fn write(&mut self, _: u32, _: &[u8]) -> bool {
            false
        }

        fn read(&self, _: u32, _: &mut [u8]) -> bool {
            false
        }
    }

    impl Memory for Running {
        type Word = Register;
        type Words = Register;
        type Window = Register;

        fn word(&self, at: DevAddr) -> Result<Register, Fault> {
            let counters = tpb().counters(Engine::Pe);
            let half = [TOTAL_LOW, TOTAL_HIGH].into_iter().position(|half| at == counters.offset(half));
            Ok(Register(half.map(|half| (self.clone(), 32 * half as u32))))
        }

        fn words(&self, _: DevAddr, _: u32) -> Result<Register, Fault> {
            Ok(Register(None))
        }

        fn window(&self, _: DevAddr, _: u32) -> Result<Register, Fault> {
            Ok(Register(None))
        }
    }

    #[test]
    fn a_total_that_carries_while_it_is_read_is_not_torn() {
        for step in [1, 1 << 30] {
            for before_carry in 0..6 {
                let begin = (5 << 32) - before_carry * step;
                let running = Running { total: Rc::new(Cell::new(begin)), step };
                let lane = LaneCounters::attach(&running, tpb(), Engine::Pe).unwrap();
                let read = lane.read().total_cycles;
                let end = running.total.get();
                assert!((begin..=end).contains(&read), "{begin:#x} to {end:#x}: {read:#x}");
            }
        }
    }
}
