//! Standard output that may be closed early, as `head` does, and what goes beside it.

use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use anyhow::Context as _;
use sluice_host::report::units::OneLine;

/// Prints `text`; a reader that has seen enough is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// Says on standard error what is wrong with `capture`, a line each.
pub(crate) fn note_findings(capture: &Path, findings: &[String]) {
    for finding in findings {
        eprintln!("sluice: {}", OneLine(format_args!("{}: {finding}", capture.display())));
    }
}
