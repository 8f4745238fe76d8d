//! What the host wants recorded of one subsystem, and how much a lane passes over for it.
//!
//! It is decided once per item, when the item is dispatched, and once per submit, by the execution that it belongs to. What is
//! decided holds until the item has ended, so that its records fit together.

use sluice_core::layout::{Instance, Lane, PoolKind};
use sluice_core::mem::{Memory, OwnCount};
use sluice_core::producer::{AttachError, Attachment, Control, ControlWords};

/// What a subsystem makes records of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Events {
    /// Items.
    Items,
    /// Submits.
    Submits,
    /// Both.
    ItemsAndSubmits,
}

/// One lane's view of what is wanted of a subsystem.
pub(super) struct Wishes<M: Memory> {
    words: Option<ControlWords<M>>,
    control: Control,
    events: Events,
    passed_over: u64,
    shown: Option<OwnCount<M::Word>>,
}

impl<M: Memory> Wishes<M> {
    /// Everything at `level`, until the host says otherwise. What `lane` passes over it counts at its pool `at`.
    ///
    /// # Errors
    /// A lane or pool that the region does not have, or memory that cannot be reached.
    pub(super) fn attach(
        memory: &M,
        attachment: &Attachment,
        lane: Lane,
        level: u32,
        events: Events,
        at: Option<(PoolKind, Instance)>,
    ) -> Result<Self, AttachError> {
        let shown = match at {
            Some((kind, instance)) => attachment.passed_over(memory, kind, instance)?,
            None => None,
        };
        let words = attachment.control(memory, lane)?;
        Ok(Self { words, control: Control::at_level(level), events, passed_over: 0, shown })
    }

    /// The level, if what is wanted has changed.
    #[inline]
    pub(super) fn follow(&mut self) -> Option<u32> {
        self.control = self.words.as_ref()?.poll()?;
        Some(self.control.level)
    }

    /// Whether it has to be asked what is recorded.
    pub(super) fn selects(&self) -> bool {
        self.control.level == 0 || self.control.selects()
    }

    /// Whether what belongs to `execution` is recorded.
    pub(super) fn picks(&self, execution: u32, now_cycles: impl FnOnce() -> u64) -> bool {
        self.control.level > 0 && self.control.picks(execution, now_cycles)
    }

    /// Counts an item or a submit that is not recorded, if it would be but for the sample and the window.
    pub(super) fn pass_over(&mut self, event: Events) {
        if self.control.level > 0 && (self.events == event || self.events == Events::ItemsAndSubmits) {
            self.passed_over += 1;
            if let Some(shown) = &self.shown {
                shown.set(self.passed_over);
            }
        }
    }
}
