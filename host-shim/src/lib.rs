//! Host library of Sluice.
//!
//! Layers, each importing only those above it:
//! `device` → `neff` → `kbl` → `dfx` → `report` → `capture` → `verify` → `export`.

pub mod advise;
pub mod capture;
pub mod device;
pub mod dfx;
pub mod export;
pub mod kbl;
pub mod neff;
mod patience;
pub mod report;
mod sync;
pub mod verify;

// Their types stand in signatures of this library.
#[cfg(feature = "sim")]
pub use sluice_aicpu_fw;
pub use sluice_core;
