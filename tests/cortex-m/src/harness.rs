//! The smallest test harness: a test is a function that says what it found wrong.

use core::fmt::Debug;
use core::sync::atomic::{AtomicU32, Ordering};

use cortex_m_semihosting::{hprint, hprintln};
use sluice_core::mem::{CopyMemory, DevAddr};

use crate::board::{SHARED_BASE, Shared};

/// Bytes at the start of the shared memory that tests may use; zero when a test starts.
pub(crate) const SCRATCH_BYTES: u64 = 1 << 20;

/// A check that did not hold.
pub(crate) struct Failure {
    /// Source line of the check.
    pub(crate) line: u32,
}

/// How a test ends.
pub(crate) type Outcome = Result<(), Failure>;

/// A test and its name.
pub(crate) struct Test {
    /// What holds when it passes.
    pub(crate) name: &'static str,
    /// The test, given zeroed shared memory.
    pub(crate) run: fn(&Shared) -> Outcome,
}

/// Ends the test unless the condition holds.
macro_rules! check {
    ($condition:expr) => {
        if !$condition {
            cortex_m_semihosting::hprintln!("  not true: {}", stringify!($condition));
            return Err($crate::harness::Failure { line: line!() });
        }
    };
}

/// Ends the test unless both sides are equal.
macro_rules! check_eq {
    ($left:expr, $right:expr) => {
        $crate::harness::equal(stringify!($left), &$left, &$right, line!())?
    };
}

pub(crate) use {check, check_eq};

/// Says what differs.
pub(crate) fn equal<L: Debug + PartialEq<R> + ?Sized, R: Debug>(
    what: &str,
    left: &L,
    right: &R,
    line: u32,
) -> Outcome {
    if left == right {
        return Ok(());
    }
    hprintln!("  {} is {:x?}, not {:x?}", what, left, right);
    Err(Failure { line })
}

static PASSED: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);

/// Runs every test; whether all passed.
pub(crate) fn run_all(groups: &[&[Test]], shared: &Shared) -> bool {
    for test in groups.iter().copied().flatten() {
        clear(shared);
        hprint!("test {} ... ", test.name);
        match (test.run)(shared) {
            Ok(()) => {
                hprintln!("ok");
                count(&PASSED);
            }
            Err(failure) => {
                hprintln!("FAILED at line {}", failure.line);
                count(&FAILED);
            }
        }
    }
    finish()
}

/// A test panicked: nothing can run after it.
pub(crate) fn abandoned() {
    count(&FAILED);
    finish();
}

fn finish() -> bool {
    let (passed, failed) = (PASSED.load(Ordering::Relaxed), FAILED.load(Ordering::Relaxed));
    hprintln!("{} passed, {} failed", passed, failed);
    failed == 0
}

/// One core, no interrupts: a plain load and store do.
fn count(counter: &AtomicU32) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

fn clear(shared: &Shared) {
    const ZEROS: [u8; 1024] = [0; 1024];
    for at in (0..SCRATCH_BYTES).step_by(ZEROS.len()) {
        // The scratch part lies inside the shared memory by the board's map.
        let _ = shared.write_bytes(scratch(at), &ZEROS);
    }
}

/// Device address of the scratch byte at `offset`.
pub(crate) const fn scratch(offset: u64) -> DevAddr {
    SHARED_BASE.offset(offset)
}
