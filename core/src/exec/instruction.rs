//! Programs of an engine: 64-byte instructions, of which a device that only moves data knows two.
//!
//! ```text
//!    0      1      2      4          8      12          14      16                48         52
//!    0xE1   0x10   queue  block id   pairs  wait count  signal  4 × wait          kernel id  0
//!    0xE0   0x10   0 …
//!                                                               0          2  4
//!                                                               semaphore  0  value
//! ```
//!
//! A program is a run of RUN_BLOCK ended by HALT. The encoding is ours: real programs have other opcodes, and an engine
//! whose *first* instruction is none of ours is opaque: it completes after a set time and executes nothing.

use core::fmt;

use heapless::Vec;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::mmio::{QueueId, SemaphoreId};

/// Bytes of an instruction.
pub const INSTRUCTION_BYTES: usize = 64;

/// Semaphores that one block can wait for.
pub const MAX_WAITS: usize = 4;

/// A condition under which a block starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SemaphoreWait {
    /// The semaphore.
    pub semaphore: SemaphoreId,
    /// Its least value.
    pub at_least: u32,
}

/// Runs some descriptor pairs of a queue once all semaphores have their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunBlock {
    /// The queue whose next pairs these are; never the execution queue.
    pub queue: QueueId,
    /// Which block of the program this is.
    pub block: u32,
    /// Descriptor pairs of the block; 0 only signals.
    pub pairs: u32,
    /// What has to be reached first.
    pub waits: Vec<SemaphoreWait, MAX_WAITS>,
    /// Semaphore that goes up by one when the block is done.
    pub signal: Option<SemaphoreId>,
    /// What the block computes, for traces.
    pub kernel: u32,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Moves a block of data.
    RunBlock(RunBlock),
    /// Ends the program.
    Halt,
    /// Anything else.
    Opaque {
        /// Its first two bytes.
        opcode: u16,
    },
}

/// An instruction with one of our opcodes that cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum BadInstruction {
    /// A block on a queue that is not a model's.
    Queue {
        /// The number.
        queue: u16,
    },
    /// More waits than an instruction has room for.
    Waits {
        /// The number of waits.
        count: u16,
    },
    /// No such semaphore.
    Semaphore {
        /// The number.
        semaphore: u16,
    },
}

impl fmt::Display for BadInstruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue { queue } => write!(f, "block on queue {queue}: models have queues 0 to 14"),
            Self::Waits { count } => write!(f, "block waits for {count} semaphores, at most {MAX_WAITS} fit"),
            Self::Semaphore { semaphore } => {
                write!(f, "semaphore {semaphore}: there are {}", SemaphoreId::COUNT)
            }
        }
    }
}

impl core::error::Error for BadInstruction {}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WaitBytes {
    semaphore: U16,
    pad: U16,
    value: U32,
}

/// An instruction as it lies in memory.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InstructionBytes {
    opcode: U16,
    queue: U16,
    block: U32,
    pairs: U32,
    wait_count: U16,
    signal: U16,
    waits: [WaitBytes; MAX_WAITS],
    kernel: U32,
    zero: [u8; 12],
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<InstructionBytes>() == INSTRUCTION_BYTES);
    assert!(offset_of!(InstructionBytes, queue) == 2 && offset_of!(InstructionBytes, block) == 4);
    assert!(offset_of!(InstructionBytes, pairs) == 8 && offset_of!(InstructionBytes, wait_count) == 12);
    assert!(offset_of!(InstructionBytes, signal) == 14 && offset_of!(InstructionBytes, waits) == 16);
    assert!(offset_of!(InstructionBytes, kernel) == 48 && offset_of!(InstructionBytes, zero) == 52);
};

impl InstructionBytes {
    const RUN_BLOCK: u16 = 0x10E1;
    const HALT: u16 = 0x10E0;
    const NO_SIGNAL: u16 = 0xFFFF;

    const EMPTY: Self = Self {
        opcode: U16::ZERO,
        queue: U16::ZERO,
        block: U32::ZERO,
        pairs: U32::ZERO,
        wait_count: U16::ZERO,
        signal: U16::ZERO,
        waits: [WaitBytes { semaphore: U16::ZERO, pad: U16::ZERO, value: U32::ZERO }; MAX_WAITS],
        kernel: U32::ZERO,
        zero: [0; 12],
    };

    /// The bytes of `instruction`. An opaque one has only its opcode.
    pub fn encode(instruction: &Instruction) -> Self {
        let run = match instruction {
            Instruction::RunBlock(run) => run,
            Instruction::Halt => return Self { opcode: U16::new(Self::HALT), ..Self::EMPTY },
            Instruction::Opaque { opcode } => return Self { opcode: U16::new(*opcode), ..Self::EMPTY },
        };
        let mut waits = Self::EMPTY.waits;
        for (bytes, wait) in waits.iter_mut().zip(&run.waits) {
            bytes.semaphore = U16::new(wait.semaphore.get() as u16);
            bytes.value = U32::new(wait.at_least);
        }
        Self {
            opcode: U16::new(Self::RUN_BLOCK),
            queue: U16::new(run.queue.get() as u16),
            block: U32::new(run.block),
            pairs: U32::new(run.pairs),
            wait_count: U16::new(run.waits.len() as u16),
            signal: U16::new(run.signal.map_or(Self::NO_SIGNAL, |semaphore| semaphore.get() as u16)),
            waits,
            kernel: U32::new(run.kernel),
            ..Self::EMPTY
        }
    }

    /// What these bytes say.
    ///
    /// # Errors
    /// One of our opcodes with a field that cannot be.
    pub fn decode(&self) -> Result<Instruction, BadInstruction> {
        match self.opcode.get() {
            Self::RUN_BLOCK => self.decode_run().map(Instruction::RunBlock),
            Self::HALT => Ok(Instruction::Halt),
            opcode => Ok(Instruction::Opaque { opcode }),
        }
    }

    fn decode_run(&self) -> Result<RunBlock, BadInstruction> {
        let queue = match QueueId::new(u32::from(self.queue.get())) {
            Ok(queue) if queue != QueueId::EXEC => queue,
            _ => return Err(BadInstruction::Queue { queue: self.queue.get() }),
        };
        let count = self.wait_count.get();
        let listed = self.waits.get(..usize::from(count)).ok_or(BadInstruction::Waits { count })?;
        let mut waits = Vec::new();
        for wait in listed {
            let wait = SemaphoreWait { semaphore: semaphore(wait.semaphore)?, at_least: wait.value.get() };
            // As many waits as the instruction itself has room for.
            let _ = waits.push(wait);
        }
        let signal = match self.signal.get() {
            Self::NO_SIGNAL => None,
            _ => Some(semaphore(self.signal)?),
        };
        let (block, pairs, kernel) = (self.block.get(), self.pairs.get(), self.kernel.get());
        Ok(RunBlock { queue, block, pairs, waits, signal, kernel })
    }
}

fn semaphore(number: U16) -> Result<SemaphoreId, BadInstruction> {
    let semaphore = number.get();
    SemaphoreId::new(u32::from(semaphore)).map_err(|_| BadInstruction::Semaphore { semaphore })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run_block() -> impl Strategy<Value = RunBlock> {
        let wait = (0u32..256, any::<u32>())
            .prop_map(|(id, at_least)| SemaphoreWait { semaphore: SemaphoreId::new(id).unwrap(), at_least });
        let waits = prop::collection::vec(wait, 0..=MAX_WAITS);
        (0u32..15, any::<[u32; 3]>(), waits, prop::option::of(0u32..256)).prop_map(
            |(queue, [block, pairs, kernel], waits, signal)| RunBlock {
                queue: QueueId::new(queue).unwrap(),
                block,
                pairs,
                waits: waits.into_iter().collect(),
                signal: signal.map(|id| SemaphoreId::new(id).unwrap()),
                kernel,
            },
        )
    }

    #[test]
    fn bytes_lie_where_the_table_says() {
        let run = RunBlock {
            queue: QueueId::new(3).unwrap(),
            block: 0x0403_0201,
            pairs: 2,
            waits: [SemaphoreWait { semaphore: SemaphoreId::new(7).unwrap(), at_least: 9 }]
                .into_iter()
                .collect(),
            signal: None,
            kernel: 0xAA,
        };
        let bytes = InstructionBytes::encode(&Instruction::RunBlock(run));
        let mut expected = [0; INSTRUCTION_BYTES];
        expected[..16].copy_from_slice(&[0xE1, 0x10, 3, 0, 1, 2, 3, 4, 2, 0, 0, 0, 1, 0, 0xFF, 0xFF]);
        (expected[16], expected[20], expected[48]) = (7, 9, 0xAA);
        assert_eq!(bytes.as_bytes(), expected);
        assert_eq!(InstructionBytes::encode(&Instruction::Halt).as_bytes()[..3], [0xE0, 0x10, 0]);
    }

    #[test]
    fn fields_that_cannot_be_are_named() {
        let base =
            InstructionBytes { opcode: U16::new(InstructionBytes::RUN_BLOCK), ..InstructionBytes::EMPTY };
        let bad = |change: fn(&mut InstructionBytes)| {
            let mut bytes = base;
            change(&mut bytes);
            bytes.decode().unwrap_err()
        };
        assert_eq!(bad(|i| i.queue = U16::new(15)), BadInstruction::Queue { queue: 15 });
        assert_eq!(bad(|i| i.wait_count = U16::new(5)), BadInstruction::Waits { count: 5 });
        assert_eq!(bad(|i| i.signal = U16::new(256)), BadInstruction::Semaphore { semaphore: 256 });
        let wait = bad(|i| {
            i.wait_count = U16::new(1);
            i.waits[0].semaphore = U16::new(999);
        });
        assert_eq!(wait, BadInstruction::Semaphore { semaphore: 999 });
    }

    proptest! {
        #[test]
        fn blocks_survive_the_wire(run in run_block()) {
            let instruction = Instruction::RunBlock(run);
            prop_assert_eq!(InstructionBytes::encode(&instruction).decode(), Ok(instruction));
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes: [u8; 32], ours: bool) {
            let mut whole = [0; INSTRUCTION_BYTES];
            whole[..32].copy_from_slice(&bytes);
            if ours {
                whole[..2].copy_from_slice(&[0xE1, 0x10]);
            }
            let instruction = InstructionBytes::read_from_bytes(&whole).unwrap();
            match instruction.decode() {
                Ok(Instruction::Opaque { opcode }) => prop_assert_eq!(opcode.to_le_bytes(), [whole[0], whole[1]]),
                Ok(_) => prop_assert_eq!(whole[1], 0x10),
                Err(_) => prop_assert_eq!(whole[0], 0xE1),
            }
        }
    }
}
