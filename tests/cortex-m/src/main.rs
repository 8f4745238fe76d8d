//! Unit tests of `sluice-core` on a Cortex-M3 (`mps2-an385`), under semihosting.
//!
//! They keep the core honest where `usize` has 32 bits and memory is what the board says it is: the very functions
//! that firmware calls run on the board's shared memory, with a host emulated by direct stores to the words it owns.
//! Device addresses of the tests lie above 4 GiB on purpose.
//!
//! One line per test, then `N passed, M failed`, then an exit code. `cargo xtask test --only qemu` runs it.
#![no_std]
#![no_main]

mod board;
mod dma;
mod fmap;
mod gate;
mod harness;
mod host;
mod producer;
mod vectors;

use harness::Test;

/// Every test, in the order in which they run.
const TESTS: &[&[Test]] = &[fmap::TESTS, dma::TESTS, gate::TESTS, producer::TESTS];
