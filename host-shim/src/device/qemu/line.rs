//! The doorbell line: a socket on which a byte either way says "look at memory".
//!
//! A thread reads all the time, because a board whose bytes nobody takes stands still, and hands what it hears on as progress.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sluice_core::exec::link::Listener;

use super::board::Board;
use super::{MappedMemory, Progress, QemuError, SHARED};

/// The line, and the thread that listens at it.
pub(super) struct Line {
    socket: UnixStream,
    listener: Option<JoinHandle<()>>,
}

impl Line {
    /// Connects to the board as soon as QEMU has made the socket.
    pub(super) fn connect(
        board: &Board,
        memory: &MappedMemory,
        progress: &Arc<Progress>,
        bound: Duration,
    ) -> Result<Self, QemuError> {
        let started = Instant::now();
        let socket = loop {
            match UnixStream::connect(board.socket()) {
                Ok(socket) => break socket,
                Err(error) if started.elapsed() >= bound => return Err(QemuError::Line(error)),
                Err(_) => {}
            }
            if let Some(how) = board.ended() {
                return Err(QemuError::Ended(how));
            }
            thread::sleep(Duration::from_millis(1));
        };
        let mut incoming = socket.try_clone().map_err(QemuError::Line)?;
        let (listener, progress) = (Listener::on_host(memory, SHARED)?, Arc::clone(progress));
        let listen = move || {
            let mut bytes = [0; 64];
            loop {
                match incoming.read(&mut bytes) {
                    Ok(0) => break,
                    Ok(_) => {
                        listener.hear();
                        progress.raise();
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            // Nobody will ring any more: whoever waits is to look once more.
            progress.raise();
        };
        let listener = thread::Builder::new().name("sluice-line".into()).spawn(listen);
        Ok(Self { socket, listener: Some(listener.map_err(QemuError::Line)?) })
    }

    /// Sends a byte. A board that has gone takes none, and there is nobody to tell.
    pub(super) fn send(&self) {
        let _ = (&self.socket).write_all(b"!");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Ends the thread's read; a socket that is closed already ends it as well.
        let _ = self.socket.shutdown(Shutdown::Both);
        if let Some(listener) = self.listener.take()
            && listener.join().is_err()
        {
            tracing::error!("the thread at the doorbell line panicked");
        }
    }
}
