//! Finding out who owns each buffer, by reading shared memory alone.
//!
//! ```text
//!   free queue ──► current ─────────────────► ready ring ──► (host)
//!                     └───────► stash ─────────────┘
//!      read 1         read 2    read 3          read 4
//! ```
//!
//! A buffer on the device only moves in the direction of the arrows, and is visible in its new place before it leaves the
//! old one. Read in that order, no buffer that the device holds can be missed, so what the scan does not show is the
//! host's. What it shows only as *held* by a lane, current or stashed, may also be the trace of a publication that the dead host had already drained;
//! the [`drain`](super::drain) settles those. On memory that no device has touched yet, everything is the host's.

use std::sync::Arc;

use sluice_core::gate::Gate;
use sluice_core::mem::{DevAddr, Fault, Memory};
use sluice_core::producer::Rules;

use super::keeper::Shut;
use super::ledger::{BufferId, Directory};
use super::{FreeQueueFeed, GateControl, HeldWords, RingDrain};

/// Where a scan saw a buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Seen {
    /// In no place of the device.
    #[default]
    Nowhere,
    /// Only as one that a lane holds: its current buffer or its stash.
    Held,
    /// In a free queue or a ready ring: certainly the device's.
    Queue,
}

/// Where in its scan an attach is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Place {
    Flag(u8),
    Queue(u32),
    Current(u32),
    Stash(u32),
    Ring(u32),
    Done,
}

/// What an attach remembers between polls; plain data.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttachState {
    place: Place,
    seen: Vec<Seen>,
    shut: Shut,
}

impl AttachState {
    /// Before the first look.
    pub fn new(buffers: u32) -> Self {
        Self { place: Place::Flag(0), seen: vec![Seen::Nowhere; buffers as usize], shut: Shut::default() }
    }
}

/// What an attach found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Buffers that are the host's.
    pub host: Vec<BufferId>,
    /// Buffers that are the device's.
    pub device: Vec<BufferId>,
    /// Those of the device's buffers that were seen only as held by a lane.
    pub unsettled: Vec<BufferId>,
    /// Gates that an earlier keeper left shut.
    pub shut: Shut,
}

/// The shared words a scan reads.
pub struct ScanViews<'a, M: Memory> {
    /// Free queues of all pools, in the directory's order.
    pub queues: &'a [FreeQueueFeed<M>],
    /// What lanes show to hold of all pools, in the directory's order.
    pub held: &'a [HeldWords<M>],
    /// Ready rings of all lanes.
    pub rings: &'a [RingDrain<M>],
    /// The gates.
    pub gates: &'a GateControl<M>,
}

/// A scan of a device that may be running.
pub struct Attach {
    directory: Arc<Directory>,
    rules: Rules,
    state: AttachState,
}

impl Attach {
    /// A scan for the buffers of `directory`.
    pub fn new(directory: Arc<Directory>, rules: Rules) -> Self {
        let state = AttachState::new(directory.buffers());
        Self { directory, rules, state }
    }

    /// What the scan remembers.
    pub fn state(&self) -> &AttachState {
        &self.state
    }

    /// Puts the scan into `state`, for a checker that explores from many states.
    pub fn restore(&mut self, state: AttachState) {
        self.state = state;
    }

    /// Looks at one more place; the result once all were looked at.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails; the place is looked at again.
    pub fn poll<M: Memory>(&mut self, views: &ScanViews<'_, M>) -> Result<Option<Found>, Fault> {
        match self.state.place {
            Place::Flag(0) => {
                self.state.shut.ready = views.gates.was_shut(Gate::Ready)?;
                self.state.place = Place::Flag(1);
            }
            Place::Flag(_) => {
                self.state.shut.free = views.gates.was_shut(Gate::Free)?;
                self.state.place = self.queue_or_later(0, views);
            }
            Place::Queue(pool) => {
                for address in views.queues[pool as usize].waiting()? {
                    if let Some(buffer) = self.directory.find(address?) {
                        self.state.seen[buffer.0 as usize] = Seen::Queue;
                    }
                }
                self.state.place = self.queue_or_later(pool + 1, views);
            }
            Place::Current(pool) => {
                self.see_held(views.held[pool as usize].current.try_observe()?);
                self.state.place = self.current_or_later(pool + 1, views);
            }
            Place::Stash(pool) => {
                if let Some(stash) = &views.held[pool as usize].stash {
                    self.see_held(stash.try_observe()?);
                }
                self.state.place = stash_or_later(pool + 1, views);
            }
            Place::Ring(ring) => {
                for entry in views.rings[ring as usize].waiting()? {
                    if let Some(buffer) = self.directory.find(entry?.buffer) {
                        self.state.seen[buffer.0 as usize] = Seen::Queue;
                    }
                }
                self.state.place = ring_or_later(ring + 1, views);
            }
            Place::Done => return Ok(Some(self.found())),
        }
        Ok(None)
    }

    /// Looks at all places.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails.
    pub fn run<M: Memory>(&mut self, views: &ScanViews<'_, M>) -> Result<Found, Fault> {
        loop {
            if let Some(found) = self.poll(views)? {
                return Ok(found);
            }
        }
    }

    fn queue_or_later<M: Memory>(&self, pool: u32, views: &ScanViews<'_, M>) -> Place {
        if pool < views.queues.len() as u32 { Place::Queue(pool) } else { self.current_or_later(0, views) }
    }

    fn current_or_later<M: Memory>(&self, pool: u32, views: &ScanViews<'_, M>) -> Place {
        // A scan that forgets what lanes are filling is the omission that a test must notice.
        if !self.rules.complete_scan {
            ring_or_later(0, views)
        } else if pool < views.held.len() as u32 {
            Place::Current(pool)
        } else {
            stash_or_later(0, views)
        }
    }

    fn see_held(&mut self, address: DevAddr) {
        if let Some(buffer) = self.directory.find(address) {
            let seen = &mut self.state.seen[buffer.0 as usize];
            *seen = (*seen).max(Seen::Held);
        }
    }

    fn found(&self) -> Found {
        let with = |wanted: fn(Seen) -> bool| {
            let seen = self.state.seen.iter().zip(0..);
            seen.filter(|(seen, _)| wanted(**seen)).map(|(_, buffer)| BufferId(buffer)).collect()
        };
        Found {
            host: with(|seen| seen == Seen::Nowhere),
            device: with(|seen| seen != Seen::Nowhere),
            unsettled: with(|seen| seen == Seen::Held),
            shut: self.state.shut,
        }
    }
}

fn stash_or_later<M: Memory>(pool: u32, views: &ScanViews<'_, M>) -> Place {
    let mut later = views.held.iter().zip(0..).skip(pool as usize);
    match later.find(|(held, _)| held.stash.is_some()) {
        Some((_, pool)) => Place::Stash(pool),
        None => ring_or_later(0, views),
    }
}

fn ring_or_later<M: Memory>(ring: u32, views: &ScanViews<'_, M>) -> Place {
    if ring < views.rings.len() as u32 { Place::Ring(ring) } else { Place::Done }
}
