//! What the host wants recorded, written where lanes look for it.

use std::mem::offset_of;

use sluice_core::layout::extension::Service;
use sluice_core::mem::{DevAddr, Fault, Memory, Word};
use sluice_core::producer::{Control, Span};

/// Writes `control` into the words at `service`. Its number goes last: it tells lanes that the rest has changed. What was
/// written before must have been seen by all of them.
pub(super) fn write<M: Memory>(
    memory: &M,
    service: DevAddr,
    control: &Control,
    sequence: u32,
) -> Result<(), Fault> {
    let (unit, Span { from, to }) = control.window.words();
    let (start, stop) = (offset_of!(Service, window_start), offset_of!(Service, window_stop));
    let words = [
        (offset_of!(Service, level), control.level),
        (offset_of!(Service, sample_every), control.sample_every),
        (offset_of!(Service, window_unit), unit.0),
        (start, from as u32),
        (start + 4, (from >> 32) as u32),
        (stop, to as u32),
        (stop + 4, (to >> 32) as u32),
        (offset_of!(Service, control_seq), sequence),
    ];
    words
        .into_iter()
        .try_for_each(|(offset, value)| memory.word(service.offset(offset as u64))?.try_store(value))
}
