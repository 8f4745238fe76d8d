//! SIGINT and SIGTERM as a question a run asks between two steps.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether the run was asked to stop, and by which signal.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// From now on the signals no longer end the process: it stops cleanly instead. Further signals change nothing.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        Ok(Self { signal })
    }

    /// Whether a signal has come.
    pub(crate) fn has_come(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// The status a shell expects of a process that a signal stopped, if one did.
    pub(crate) fn exit_code(&self) -> Option<ExitCode> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(ExitCode::from(128 + signal as u8)),
        }
    }
}
