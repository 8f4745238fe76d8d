//! A core's own record of an item: what its agent knows of the pool, and the record.
//!
//! ```text
//!  offered ─► reserve a slot ─► ACK ─► start ─► runs ─► end ─► FIN ─► record, token last
//! ```
//!
//! The agent goes by the pool's words, as the wire contract has it: with another sequence than it knows it takes the pointer
//! and begins with slot 0, else it takes the next slot. The lane counts the same way, and moves neither word while an item
//! that it wants recorded is on its way to the core.

use core::mem::offset_of;
use core::num::NonZeroU32;

use sluice_core::layout::swimlane::{AICORE_TASK_BUFFER, AicoreTaskRecord, AicpuTaskPool};
use sluice_core::mem::{DevAddr, DeviceMemory, Fault, Memory, Word};
use sluice_core::mmio::CoreRecording;
use zerocopy::{FromZeros, IntoBytes};

/// From a pool's pointer word to its sequence.
const SEQUENCE: u64 = (offset_of!(AicpuTaskPool, head.current_buf_seq)
    - offset_of!(AicpuTaskPool, head.current_buf_ptr)) as u64;
/// The word of a record that says that the rest is there.
const TOKEN: usize = offset_of!(AicoreTaskRecord, reg_task_id);
const RECEIVE_TO_START: usize = offset_of!(AicoreTaskRecord, receive_to_start_cycles);

/// What an agent knows of its core's pool.
#[derive(Debug, Default)]
pub(crate) struct CoreSlots {
    run: Option<NonZeroU32>,
    sequence: u32,
    buffer: DevAddr,
    taken: u32,
}

impl CoreSlots {
    /// The slot for the next record of the run, if the pool has one.
    pub(crate) fn reserve<M: Memory>(&mut self, memory: &M, recording: &CoreRecording) -> Option<DevAddr> {
        let CoreRecording { run, head } = *recording;
        let read =
            |offset: u64| -> Result<u32, Fault> { Ok(memory.word(head.offset(offset))?.load_acquire()) };
        // Partner of the lane's release stores of the pointer, then of the sequence.
        let sequence = read(SEQUENCE).ok()?;
        if self.run != Some(run) || self.sequence != sequence {
            let buffer = DevAddr::join(read(0).ok()?, read(4).ok()?);
            *self = Self { run: Some(run), sequence, buffer, taken: 0 };
        }
        let slot = AICORE_TASK_BUFFER.record(self.taken).filter(|_| !self.buffer.is_null())?;
        self.taken += 1;
        Some(self.buffer.offset(slot as u64))
    }
}

/// The record of an item that is on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreRecord {
    slot: DevAddr,
    record: AicoreTaskRecord,
}

impl CoreRecord {
    /// The record of the item under `token`, which was received then and starts now.
    pub(crate) fn begin(slot: DevAddr, token: u32, received_cycles: u64, start_cycles: u64) -> Self {
        let record = AicoreTaskRecord {
            start_time: start_cycles,
            reg_task_id: token,
            receive_to_start_cycles: start_cycles.saturating_sub(received_cycles) as u32,
            ..FromZeros::new_zeroed()
        };
        Self { slot, record }
    }

    /// What the item turned out to be.
    pub(crate) fn name(&mut self, ring: u32, number: u32) {
        self.record.task_token_raw = u64::from(ring) << 32 | u64::from(number);
    }

    /// The item ends now.
    pub(crate) fn end(&mut self, end_cycles: u64) {
        self.record.end_time = end_cycles;
    }

    /// Leaves the record in its slot, the token last. Memory that cannot be reached is the lane's to count: it misses the
    /// token.
    pub(crate) fn store<M: DeviceMemory>(&self, memory: &M) {
        let Self { slot, record } = self;
        let at = |offset: usize| slot.offset(offset as u64);
        let _ = memory
            .write_bytes(*slot, &record.as_bytes()[..TOKEN])
            .and_then(|()| {
                memory.write_bytes(at(RECEIVE_TO_START), record.receive_to_start_cycles.as_bytes())
            })
            .and_then(|()| memory.publish(at(TOKEN), record.reg_task_id));
    }
}
