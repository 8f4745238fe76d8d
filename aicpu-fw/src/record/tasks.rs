//! The task table of the execution that a TPB runs, where the execution names one.
//!
//! The word that names it is written by the execution ring, before the start, and cleared here when the execution has ended,
//! or when recorders attach that read it: an execution that names none has none, whatever ran before it.

use sluice_core::exec::tasks::TaskTable;
use sluice_core::mem::{DevAddr, LongOwn, LongPeer};
use sluice_core::mmio::TpbId;

use crate::platform::{Context, Platform};

/// The table of the execution that `tpb` runs. One that cannot be read is none.
pub(super) fn table<P: Platform>(cx: &Context<P>, tpb: TpbId) -> Option<TaskTable<P::Memory>> {
    let registers = cx.map().registers.tpb(tpb).ok()?;
    let bindings = LongPeer::at(cx.memory(), registers.tasks()).ok()?.try_observe().ok()?;
    TaskTable::open(cx.memory(), cx.map().ram, bindings).ok()
}

/// The execution of `tpb` has ended.
pub(super) fn forget<P: Platform>(cx: &Context<P>, tpb: TpbId) {
    if let Ok(registers) = cx.map().registers.tpb(tpb)
        && let Ok(word) = LongOwn::at(cx.memory(), registers.tasks())
    {
        word.publish(DevAddr::NULL);
    }
}

/// What was executed before is not of this run.
pub(super) fn forget_all<P: Platform>(cx: &Context<P>) {
    let tpbs = (0..cx.map().registers.tpbs()).filter_map(|tpb| TpbId::new(tpb).ok());
    tpbs.for_each(|tpb| forget(cx, tpb));
}
