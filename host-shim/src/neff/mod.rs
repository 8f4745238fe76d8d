//! The compiled-model container: reading, writing and describing it.

pub mod pattern;
pub mod program;

pub use pattern::{Dim, DmaCopy, Pattern, PatternError, Transfer};
pub use program::{
    Backing, CarveOut, DmaBlock, DmaOp, Engine, EngineKind, Program, Queue, QueueKind, Tables, Target, Var,
    VarId, VarKind,
};
