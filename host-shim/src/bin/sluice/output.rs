//! Standard output that may be closed early, as `head` does.

use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;

/// Prints `text`; a reader that has seen enough is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}
