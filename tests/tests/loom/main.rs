//! The orders of the protocol, in every execution that loom allows, with tables and payload that report a missing order as
//! a data race.
//!
//! Rings, queues, lanes, drain, keeper and scan are the shipped ones; only the memory is loom's. Each order is shown to be
//! needed: the same scenario with one store or load left without its order must be reported.
//!
//! | scenario | words whose order it needs |
//! |---|---|
//! | [`tables`]: a ready ring, a free queue, each alone | `queue_tails`, `queue_heads`, `free_queue.tail`, `free_queue.head` |
//! | [`gates`]: a freeze, a release, a host that returns | `*_freeze_active`, `*_contended`, release epoch, host heartbeat |
//! | [`journeys`]: buffers on their whole way, a scan, a flush | ring and queue indices again, `current_buf_ptr`, lane flushed |
//! | [`staging`]: counts of a core that runs on | token, counts |
//! | [`arena`]: payloads of a lane that goes round | `completed_payload_count` |
//!
//! loom lets no load see a store that comes later in the run, so it says nothing about loads that a machine moves behind a
//! later store; such an order shows here all the same where it guards a table or payload.
//!
//! Two lanes beside a host are more than can be explored in full: there a run has at most one preemption, as the scenario
//! says. All others are explored without that bound. In all, a run in which one thread has looked twice in vain goes on but
//! branches no more.

mod arena;
mod gates;
mod journeys;
mod memory;
mod stage;
mod staging;
mod tables;

use sluice_core::layout::{LaneOffsets, PoolOffsets};
use sluice_core::producer::tiny;

const RING: LaneOffsets = tiny::ring(0);
const POOL: PoolOffsets = tiny::pool(0);

/// More visible accesses than any run of a scenario makes, so that only an endless one meets it.
const MAX_ACCESSES: usize = 20_000;

/// Explores `scenario`, with at most `preemptions` in a run, if bounded. A thread that waits gives way; that is none.
fn explore(preemptions: Option<usize>, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = MAX_ACCESSES;
    builder.check(scenario);
}
