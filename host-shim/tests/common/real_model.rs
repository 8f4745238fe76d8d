//! A real compiled model, if this machine has it.
//!
//! Its path comes from `SLUICE_NEFF`, or it lies in the data folder next to the workspace. Where it is absent the tests
//! that want it say so and pass, unless `CI=true`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The real model, if this machine has it.
pub(crate) fn path() -> Option<PathBuf> {
    let path = std::env::var_os("SLUICE_NEFF")
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/matmul_small.neff"));
    if path.is_file() {
        return Some(path);
    }
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{} is missing", path.display());
    // Past the macros, whose output the test harness keeps to itself.
    let skipped = format!("SKIPPED: {} is missing, set SLUICE_NEFF\n", path.display());
    std::io::stderr().write_all(skipped.as_bytes()).unwrap();
    None
}
