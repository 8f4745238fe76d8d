//! What a run should have done, worked out from the model alone and held against what it did.
//!
//! | question | module | source of the answer | held against |
//! |---|---|---|---|
//! | which bytes do the outputs hold? | [`origin`] | patterns of the program, byte by byte | output tensors |
//! | and which can't be told? | `race` over `follow`, `order` | what the semaphores leave open | – |
//! | what do the tensors hold before? | [`content`] | seed, name, number of the execution | – |
//! | which records are there? | [`records`] | work items, executions, lanes | the capture |
//! | did made-up records come once? | [`sequence`] | the numbers that lanes give them | the buffers on their way |
//! | and whole? | [`made_up`] | what follows from their number | the buffers and payloads on their way |
//!
//! Nothing here shares a line with what is checked: not the transfers that descriptors are made of, and not the order in
//! which a device happened to run.

pub mod content;
mod follow;
pub mod made_up;
mod order;
pub mod origin;
mod parts;
mod race;
pub mod records;
pub mod sequence;

pub use content::Content;
pub use follow::{MAX_COPIED_BYTES, MAX_FOLLOWED_BYTES, Unverifiable};
pub use made_up::{ChainCheck, PayloadCheck};
pub use origin::{Difference, Origins, Tensor, Unordered};
pub use records::{ExpectedRecords, Extent, RecordCheck};
pub use sequence::SequenceCheck;
