//! A flag that two threads on two cores hand back and forth: the least that any exchange between them costs.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::cores::pin;

/// What the other thread is told at the end, instead of the number of a round.
const END: u32 = u32::MAX;

/// A word on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Flag(AtomicU32);

impl Flag {
    fn raise(&self, round: u32) {
        self.0.store(round, Ordering::Release);
    }

    /// Waits for anything but `last`.
    fn next(&self, last: u32) -> u32 {
        loop {
            match self.0.load(Ordering::Acquire) {
                round if round == last => hint::spin_loop(),
                round => return round,
            }
        }
    }
}

/// Runs `work` with a function that goes to a thread on core `there` and back. That thread keeps its core busy meanwhile.
pub(crate) fn with<R>(there: usize, work: impl FnOnce(&mut dyn FnMut()) -> R) -> anyhow::Result<R> {
    let [ping, pong] = &[Flag::default(), Flag::default()];
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            let pinned = pin(there);
            let mut round = 0;
            loop {
                round = ping.next(round);
                pong.raise(round);
                if round == END {
                    return pinned;
                }
            }
        });
        let mut round = 0;
        let result = work(&mut || {
            ping.raise(round + 1);
            round = pong.next(round);
        });
        ping.raise(END);
        other.join().map_err(|_| anyhow::anyhow!("the other thread of a ping-pong panicked"))??;
        Ok(result)
    })
}
