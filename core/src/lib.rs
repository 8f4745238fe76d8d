//! The part of Sluice that firmware and host share: no `std`, no allocation.
//!
//! Layers, each importing only those above it:
//! `mem` → `mmio` → `layout` → `gate` → `producer` → `fmap` → `dma` → `exec`.
#![no_std]

#[cfg(any(test, feature = "test-utils"))]
extern crate std;

pub mod dma;
pub mod exec;
pub mod fmap;
pub mod gate;
pub mod layout;
pub mod mem;
pub mod mmio;
pub mod producer;
