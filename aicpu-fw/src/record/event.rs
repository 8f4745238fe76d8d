//! What a lane tells its recorders, and what a recorder is.

use sluice_core::exec::CoreIndex;
use sluice_core::layout::SubsystemId;
use sluice_core::mem::DevAddr;
use sluice_core::mmio::{CoreRecording, Engine, TpbId};
use sluice_core::producer::Settlement;

use super::batch::Batch;
use super::parking::Parking;
use super::wishes::Wishes;
use crate::platform::Platform;

/// Which recorders are told of an item, by their places in the list of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Picked(pub(super) u8);

impl Picked {
    /// All.
    pub(crate) const ALL: Self = Self(u8::MAX);
}

/// Times that some recorder wants. The clock is not read for any other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stamps {
    /// Begin and end of a submit.
    pub(crate) submits: bool,
    /// Dispatch and finish of an item.
    pub(crate) items: bool,
}

/// Whether an item may go to its core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Grant {
    /// It may, and has to. The core records it as said, if at all.
    Granted(Option<CoreRecording>),
    /// Not before the core has left a record that it owes; ask again, before these cycles at the latest.
    Withheld {
        /// When the core's time is over.
        until_cycles: u64,
    },
}

impl Stamps {
    /// What either wants.
    pub(super) fn or(self, other: Self) -> Self {
        Self { submits: self.submits || other.submits, items: self.items || other.items }
    }
}

/// One submit as the sequencer took it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Submit {
    /// Whose.
    pub(crate) tpb: TpbId,
    /// Number of the execution among those of the TPB.
    pub(crate) ordinal: u32,
    /// Submits of the TPB before this one.
    pub(crate) index: u32,
    /// When staging began, if that was stamped.
    pub(crate) start_cycles: Option<u64>,
    /// When the lanes were told, if that was stamped.
    pub(crate) end_cycles: Option<u64>,
}

/// An engine that has ended its part of an execution, as the sequencer saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EngineEnd {
    /// Whose.
    pub(crate) tpb: TpbId,
    /// Which engine.
    pub(crate) engine: Engine,
    /// Number of the execution among those of the TPB.
    pub(crate) ordinal: u32,
}

/// Where the item of a core stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ItemAt {
    /// Ordinal of the execution among those of the TPB.
    pub(crate) execution: u32,
    /// Its instruction.
    pub(crate) instruction: DevAddr,
}

/// An item that was handed to its core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dispatch {
    /// Which core.
    pub(crate) core: CoreIndex,
    /// Dispatch token, counted per core over the device's life from 1.
    pub(crate) token: u32,
    /// Round of the lane's loop.
    pub(crate) iteration: u32,
    /// Looks at the core's next item, since the dispatch before, that found it not ready yet.
    pub(crate) misses: u32,
    /// Just before the dispatch was written, if that was stamped.
    pub(crate) dispatch_cycles: Option<u64>,
    /// Whether the core was told to record it.
    pub(crate) is_recorded_by_core: bool,
    /// Who records it.
    pub(crate) picked: Picked,
}

/// An item that its core has finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Finish {
    /// Which core.
    pub(crate) core: CoreIndex,
    /// Dispatch token, counted per core over the device's life from 1.
    pub(crate) token: u32,
    /// The kernel that the program names; 0 for none.
    pub(crate) kernel: u32,
    /// Which item; `None` for one that is made up.
    pub(crate) item: Option<ItemAt>,
    /// Round of the lane's loop.
    pub(crate) iteration: u32,
    /// Just before the dispatch was written, if that was stamped.
    pub(crate) dispatch_cycles: Option<u64>,
    /// When the completion was seen, if that was stamped.
    pub(crate) finish_cycles: Option<u64>,
    /// Who records it.
    pub(crate) picked: Picked,
}

impl Finish {
    /// The end of an item that is made up.
    pub(crate) fn made_up(core: CoreIndex, token: u32, iteration: u32) -> Self {
        let (dispatch_cycles, finish_cycles) = (None, None);
        let (item, picked) = (None, Picked::ALL);
        Self { core, token, kernel: 0, item, iteration, dispatch_cycles, finish_cycles, picked }
    }

    /// The item's identity, as records carry it: the core in the upper half, its dispatch token in the lower.
    pub(super) fn task_id(&self) -> u64 {
        (self.core.get() as u64) << 32 | u64::from(self.token)
    }
}

/// What one lane records for one subsystem. An event that a subsystem has no use for it does not name.
///
/// An event may block at a gate, up to the deadline of one switch.
pub(super) trait Recording<P: Platform> {
    /// Whose gates it may stand at; `None` of one that never waits.
    const SUBSYSTEM: Option<SubsystemId>;

    /// The times it wants.
    fn stamps(&self) -> Stamps;

    /// A number that moves with every buffer that is published.
    fn published(&self) -> u32 {
        0
    }

    /// Records that it has lost, by a count that runs freely.
    fn dropped(&self) -> u32 {
        0
    }

    /// What the host wants of it; `None` of one that always records.
    fn wishes(&mut self) -> Option<&mut Wishes<P::Memory>> {
        None
    }

    /// The host wants another level.
    fn set_level(&mut self, _level: u32) {}

    /// An execution of `tpb` was started that it does not record.
    fn passed_over(&mut self, _tpb: TpbId) {}

    /// Whether cores record for it, so that it is asked before every dispatch.
    fn grants(&self) -> bool {
        false
    }

    /// Whether `core` may be given the next item.
    fn grant(&mut self, _core: CoreIndex, _env: &mut Parking<'_, P>) -> Grant {
        Grant::Granted(None)
    }

    /// The sequencer started an execution. Told on its lane alone.
    fn submitted(&mut self, _submit: &Submit, _env: &mut Parking<'_, P>) {}

    /// A core is given an item next: all that it waited for is there.
    fn dispatching(&mut self, _core: CoreIndex, _item: &ItemAt, _env: &mut Parking<'_, P>) {}

    /// A core was given an item.
    fn dispatched(&mut self, _dispatch: &Dispatch, _env: &mut Parking<'_, P>) {}

    /// A core has finished an item; nobody who waits for it knows yet.
    fn finished(&mut self, _finish: &Finish, _env: &mut Parking<'_, P>) {}

    /// Those who wait for the item have been told.
    fn completed(&mut self, _finish: &Finish, _env: &mut Parking<'_, P>) {}

    /// An engine has ended its part of an execution. Told on the sequencer's lane alone.
    fn engine_ended(&mut self, _end: &EngineEnd, _env: &mut Parking<'_, P>) {}

    /// All engines have ended an execution of `tpb`; the host does not know yet. Told on the sequencer's lane alone.
    fn execution_ended(&mut self, _tpb: TpbId, _env: &mut Parking<'_, P>) {}

    /// A sequencer can go on no further, and the host does not know yet. Told on its lane alone.
    fn failed(&mut self, _env: &mut Parking<'_, P>) {}

    /// Makes up the records of `batch`, if they are of a kind that it records. What it leaves in the batch is made by nobody.
    fn make_up(&mut self, _batch: &mut Batch<'_>, _env: &mut Parking<'_, P>) {}

    /// Recording is over: whether all is there that is to be flushed. Asked until it is, and never blocks; what is dispatched
    /// meanwhile is not recorded.
    fn settle(&mut self, _env: &mut Parking<'_, P>) -> Settlement {
        Settlement::Settled
    }

    /// Recording is over: everything is to be published, and the host told that it is.
    fn flush(&mut self, env: &mut Parking<'_, P>);
}
