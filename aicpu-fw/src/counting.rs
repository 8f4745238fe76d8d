//! What an agent counts of an item while its core's counters are on.
//!
//! ```text
//!   item taken ── counters on? ──► since when, and what each counter is to count
//!   item over  ── cycles, pairs, bytes ──► counters, or the core's staging ring ──► mailbox: finished
//! ```

use sluice_core::layout::ArchId;
use sluice_core::layout::pmu_events::{Counted, event_groups};
use sluice_core::mem::{DeviceMemory, Fault};
use sluice_core::mmio::{
    AgentCounters, COUNTERS, CoreStaging, CountOrder, Counts, Engine, ItemReport, TpbRegisters,
};

/// The counters of one core.
pub(crate) struct Counting<M: DeviceMemory> {
    memory: M,
    counters: AgentCounters<M>,
    arch: ArchId,
    /// The order that was read last, what its selectors stand for, and its ring.
    order: CountOrder,
    counted: [Counted; COUNTERS],
    staging: Option<CoreStaging<M>>,
    /// When the present item began, while it is counted.
    since_cycles: Option<u64>,
}

impl<M: DeviceMemory> Counting<M> {
    /// The counters of `engine`, which count nothing yet.
    ///
    /// # Errors
    /// [`Fault`] when they lie outside device memory.
    pub(crate) fn attach(
        memory: &M,
        arch: ArchId,
        registers: TpbRegisters,
        engine: Engine,
    ) -> Result<Self, Fault> {
        Ok(Self {
            memory: memory.clone(),
            counters: AgentCounters::attach(memory, registers, engine)?,
            arch,
            order: CountOrder::default(),
            counted: [Counted::Nothing; COUNTERS],
            staging: None,
            since_cycles: None,
        })
    }

    /// An item begins. The clock is read only if it is counted.
    pub(crate) fn begin(&mut self, now_cycles: impl FnOnce() -> u64) {
        let Some(order) = self.counters.order() else {
            self.since_cycles = None;
            return;
        };
        if order != self.order {
            self.order = order;
            self.counted = order.selectors.map(|selector| counted(self.arch, selector));
            // The lane misses what is left nowhere.
            self.staging =
                (!order.ring.is_null()).then(|| CoreStaging::attach(&self.memory, order.ring).ok()).flatten();
        }
        self.since_cycles = Some(now_cycles());
    }

    /// The item with this dispatch token is over, and about to be reported.
    pub(crate) fn end(&mut self, token: u32, report: &ItemReport, now_cycles: impl FnOnce() -> u64) {
        let Some(since_cycles) = self.since_cycles.take() else { return };
        let total_cycles = now_cycles().saturating_sub(since_cycles);
        let events = self.counted.map(|counted| match counted {
            Counted::Cycles => total_cycles as u32,
            Counted::Pairs => report.descriptors,
            Counted::Bytes => report.bytes_moved,
            Counted::Items => 1,
            Counted::Nothing => 0,
        });
        let counts = Counts { total_cycles, events };
        match &self.staging {
            None => self.counters.show(&counts),
            // A ring is the host's again once the counters are off.
            Some(staging) if self.counters.is_on() => staging.show(token, &counts),
            Some(_) => {}
        }
    }
}

/// What a counter with this selector counts. No two groups differ about a selector.
fn counted(arch: ArchId, selector: u32) -> Counted {
    let mut events = event_groups(arch).iter().flat_map(|group| group.events);
    events.find(|event| event.selector == selector).map_or(Counted::Nothing, |event| event.agent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_agree_on_what_a_selector_stands_for() {
        for arch in ArchId::ALL {
            for event in event_groups(arch).iter().flat_map(|group| group.events) {
                assert_eq!(counted(arch, event.selector), event.agent, "{arch:?} {}", event.name);
            }
            assert_eq!(counted(arch, 0), Counted::Nothing);
        }
    }
}
