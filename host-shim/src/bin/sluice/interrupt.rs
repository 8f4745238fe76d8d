//! SIGINT and SIGTERM as a question a run asks between two steps.
//!
//! After a signal a run ends what it has begun: lanes flush, the capture gets its end, the report is written. What only reads
//! the capture again, and may take minutes for a long one, gets [`PATIENCE`] and is then left out.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

/// How long after a signal something may go on that can be made up for later.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A wait that a person notices.
const NOTICED: Duration = Duration::from_secs(2);

/// Whether the run was asked to stop, and by which signal.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    signal: Arc<AtomicUsize>,
    /// When the signal was first noticed.
    since: Arc<OnceLock<Instant>>,
}

impl Interrupt {
    /// From now on the signals no longer end the process: it stops cleanly instead. Further signals change nothing.
    pub(crate) fn listen() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        Ok(Self { signal, since: Arc::default() })
    }

    /// Whether a signal has come.
    pub(crate) fn has_come(&self) -> bool {
        let has_come = self.signal.load(Ordering::Relaxed) != 0;
        if has_come {
            self.since.get_or_init(Instant::now);
        }
        has_come
    }

    /// Whether a signal has come so long ago that what can be made up for later is left out.
    pub(crate) fn is_overdue(&self) -> bool {
        self.has_come() && self.since.get().is_some_and(|since| since.elapsed() >= PATIENCE)
    }

    /// The status a shell expects of a process that a signal stopped, if one did.
    pub(crate) fn exit_code(&self) -> Option<ExitCode> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(ExitCode::from(128 + signal as u8)),
        }
    }

    /// Writes to `out` until an interrupt is overdue; says what `doing` is when that takes long.
    pub(crate) fn guard<'a, W: Write>(&'a self, out: W, doing: &'a str) -> Guarded<'a, W> {
        Guarded { out, interrupt: self, doing, started: Some(Instant::now()) }
    }
}

/// A writer that ends when a signal came.
pub(crate) struct Guarded<'a, W> {
    out: W,
    interrupt: &'a Interrupt,
    doing: &'a str,
    /// Until it is said that this takes long.
    started: Option<Instant>,
}

impl<W: Write> Write for Guarded<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.interrupt.is_overdue() {
            return Err(io::Error::other("interrupted"));
        }
        if self.started.is_some_and(|started| started.elapsed() >= NOTICED) {
            self.started = None;
            eprintln!("sluice: {}; interrupt to leave it out", self.doing);
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guarded_writer_goes_on_for_a_while_after_a_signal_and_then_fails() {
        let interrupt = Interrupt { signal: Arc::default(), since: Arc::default() };
        let mut written = Vec::new();
        interrupt.guard(&mut written, "nothing").write_all(b"before").unwrap();
        interrupt.signal.store(SIGINT as usize, Ordering::Relaxed);
        assert!(interrupt.has_come() && !interrupt.is_overdue());
        interrupt.guard(&mut written, "nothing").write_all(b", soon after").unwrap();
        let long_ago = Instant::now().checked_sub(PATIENCE).expect("a clock that ran as long");
        let late = Interrupt { since: Arc::new(OnceLock::from(long_ago)), ..interrupt };
        let error = late.guard(&mut written, "nothing").write_all(b"late").unwrap_err();
        assert_eq!(error.to_string(), "interrupted");
        assert_eq!(written, b"before, soon after");
        assert_eq!(late.exit_code(), Some(ExitCode::from(130)));
    }
}
