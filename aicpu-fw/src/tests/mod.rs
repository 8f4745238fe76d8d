//! Whole executions on one node, put in front of it by a hand-written host.

mod bench;
mod counting;
mod execution;
mod failure;
mod pmu;
mod recording;
mod scopes;
mod tasks;
