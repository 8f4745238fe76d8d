//! Instructions of the engines that a simulator of the DMA side can run.
//!
//! Every instruction is 64 bytes; byte 0 is the opcode, byte 1 is 0x10. Ours are two, the rest is opaque:
//!
//! ```text
//!  0 opcode 0xE1, 0x10   4 block id     12 wait count   16 4 × {semaphore u16, 0u16, value u32}
//!  2 queue u16           8 pairs u32    14 signal u16   48 kernel id u32, zero to 64
//! ```
//!
//! RUN_BLOCK starts one block of a queue when every semaphore it waits for has reached its value; at the end it adds
//! one to its own semaphore. HALT (0xE0) ends the program.

use sluice_core::mmio::{QueueId, SemaphoreId};

/// Length of an instruction.
pub const INSTRUCTION_BYTES: usize = 64;

/// Most semaphores that an instruction waits for.
pub const MAX_WAITS: usize = 4;

const RUN_BLOCK: u8 = 0xE1;
const HALT: u8 = 0xE0;
const MARK: u8 = 0x10;
const NO_SIGNAL: u16 = 0xFFFF;

/// Start when the semaphore is at least `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Number of the semaphore.
    pub semaphore: SemaphoreId,
    /// Least value.
    pub value: u32,
}

/// One block to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunBlock {
    /// Ring number of the queue.
    pub queue: QueueId,
    /// The block.
    pub block: u32,
    /// Descriptor pairs of the block.
    pub pairs: u32,
    /// What to wait for, at most [`MAX_WAITS`].
    pub waits: Vec<Wait>,
    /// Semaphore that gets one more at the end.
    pub signal: Option<SemaphoreId>,
    /// Name of the work, as a number.
    pub kernel: u32,
}

/// What a program consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    Run(RunBlock),
    Halt,
}

/// Whether a program that starts with this instruction is one of ours.
pub(super) fn is_ours(first: &[u8; INSTRUCTION_BYTES]) -> bool {
    matches!(first[..2], [RUN_BLOCK | HALT, MARK])
}

impl Instruction {
    pub(super) fn decode(raw: &[u8; INSTRUCTION_BYTES]) -> Result<Self, String> {
        let u16_at = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let semaphore = |number: u16| SemaphoreId::new(number.into()).map_err(|error| error.to_string());
        match raw[..2] {
            [HALT, MARK] => return Ok(Self::Halt),
            [RUN_BLOCK, MARK] => {}
            _ => return Err(format!("unknown opcode {:#04x} {:#04x} among known ones", raw[0], raw[1])),
        }
        let count = usize::from(u16_at(12));
        if count > MAX_WAITS {
            return Err(format!("waits for {count} semaphores, at most {MAX_WAITS}"));
        }
        let wait = |index: usize| {
            let at = 16 + 8 * index;
            Ok(Wait { semaphore: semaphore(u16_at(at))?, value: u32_at(at + 4) })
        };
        Ok(Self::Run(RunBlock {
            queue: QueueId::new(u16_at(2).into()).map_err(|error| error.to_string())?,
            block: u32_at(4),
            pairs: u32_at(8),
            waits: (0..count).map(wait).collect::<Result<_, String>>()?,
            signal: Some(u16_at(14)).filter(|&number| number != NO_SIGNAL).map(semaphore).transpose()?,
            kernel: u32_at(48),
        }))
    }

    pub(super) fn encode(&self) -> [u8; INSTRUCTION_BYTES] {
        let mut raw = [0; INSTRUCTION_BYTES];
        raw[1] = MARK;
        let Self::Run(run) = self else {
            raw[0] = HALT;
            return raw;
        };
        let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[RUN_BLOCK]);
        put(2, &(run.queue.get() as u16).to_le_bytes());
        put(4, &run.block.to_le_bytes());
        put(8, &run.pairs.to_le_bytes());
        put(12, &(run.waits.len() as u16).to_le_bytes());
        put(14, &run.signal.map_or(NO_SIGNAL, |semaphore| semaphore.get() as u16).to_le_bytes());
        for (wait, at) in run.waits.iter().zip((16..48).step_by(8)) {
            put(at, &(wait.semaphore.get() as u16).to_le_bytes());
            put(at + 4, &wait.value.to_le_bytes());
        }
        put(48, &run.kernel.to_le_bytes());
        raw
    }
}
