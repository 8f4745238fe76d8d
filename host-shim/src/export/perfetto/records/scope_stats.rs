//! ScopeStats records: a slice per execution over the time of its submit, with how full everything was when it began and
//! when it had ended.
//!
//! These records have no times either. The submit in the swimlane has, under the same TPB and number; begin, end and submit
//! wait for each other as counts and tasks do. Scopes inside an execution are in the capture alone: nothing says when an
//! engine ended.

use std::collections::BTreeMap;
use std::io::{self, Write};

use sluice_core::layout::scope_stats::{Record, ScopePhase};

use super::super::trace::{Group, TraceWriter};
use super::Records;
use super::pmu::MOST_WAITING;
use crate::capture::Items;

/// An execution of a TPB: the TPB, then the number.
type Execution = (u32, u32);

/// Executions of which something is still to come.
#[derive(Default)]
pub(super) struct Pending {
    is_on: bool,
    executions: BTreeMap<Execution, Parts>,
    unplaced: u64,
}

#[derive(Clone, Copy, Default)]
struct Parts {
    /// Begin and end of the submit, cycles.
    submit: Option<[u64; 2]>,
    begin: Option<Record>,
    end: Option<Record>,
}

impl Parts {
    fn records(&self) -> u64 {
        u64::from(self.begin.is_some()) + u64::from(self.end.is_some())
    }
}

impl Pending {
    /// Executions wait for their scopes only if scopes were recorded.
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, ..Self::default() }
    }

    /// Begins and ends of executions without a submit so far.
    pub(super) fn unplaced(&self) -> u64 {
        self.unplaced + self.executions.values().map(Parts::records).sum::<u64>()
    }

    /// Adds what was met; returns the execution once it is whole.
    fn add(
        &mut self,
        execution: Execution,
        add: impl FnOnce(&mut Parts),
    ) -> Option<([u64; 2], Record, Record)> {
        let parts = self.executions.entry(execution).or_default();
        add(parts);
        if let Parts { submit: Some(times), begin: Some(begin), end: Some(end) } = *parts {
            self.executions.remove(&execution);
            return Some((times, begin, end));
        }
        if self.executions.len() > MOST_WAITING {
            self.unplaced += self.executions.pop_first().map_or(0, |(_, parts)| parts.records());
        }
        None
    }
}

impl Records<'_> {
    /// Shows the executions of a buffer that are whole with it.
    pub(super) fn scopes<W: Write>(
        &mut self,
        trace: &mut TraceWriter<W>,
        records: &[u8],
    ) -> io::Result<bool> {
        for record in Items::<Record>::new(records).filter(|record| record.depth == 0) {
            let execution = (record.ring_id as u32, record.site_line as u32);
            let whole = self.pending.add(execution, |parts| match record.phase {
                ScopePhase::BEGIN => parts.begin = Some(record),
                _ => parts.end = Some(record),
            });
            self.execution(trace, execution, whole)?;
        }
        Ok(true)
    }

    /// A submit was met: shows its execution if its scopes have been.
    pub(super) fn submit_met<W: Write>(
        &mut self,
        trace: &mut TraceWriter<W>,
        execution: Execution,
        times: [u64; 2],
    ) -> io::Result<()> {
        if !self.pending.is_on {
            return Ok(());
        }
        let whole = self.pending.add(execution, |parts| parts.submit = Some(times));
        self.execution(trace, execution, whole)
    }

    fn execution<W: Write>(
        &self,
        trace: &mut TraceWriter<W>,
        (tpb, number): Execution,
        whole: Option<([u64; 2], Record, Record)>,
    ) -> io::Result<()> {
        let Some(([start, finish], begin, end)) = whole else { return Ok(()) };
        let tasks = |at: &Record| at.task_end.wrapping_sub(at.task_start) as u32;
        let pairs = |at: &Record| at.dep_pool_end.wrapping_sub(at.dep_pool_start) as u32;
        let heap_bytes = |at: &Record| at.heap_end.saturating_sub(at.heap_start);
        let arguments = [
            ("tpb", tpb.into()),
            ("execution", number.into()),
            ("begin_tasks", tasks(&begin).into()),
            ("end_tasks", tasks(&end).into()),
            ("begin_ring_pairs", pairs(&begin).into()),
            ("end_ring_pairs", pairs(&end).into()),
            ("begin_heap_bytes", heap_bytes(&begin).into()),
            ("end_heap_bytes", heap_bytes(&end).into()),
            ("begin_notifications", (begin.tensormap_used as u32).into()),
            ("end_notifications", (end.tensormap_used as u32).into()),
        ];
        self.slice(trace, Group::Scopes { tpb }, "execution", start, finish, arguments)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn an_execution_is_whole_whatever_comes_last() {
        let record = Record::new_zeroed();
        for last in 0..3 {
            let mut pending = Pending::new(true);
            let mut add = |part| {
                pending
                    .add((0, 1), |parts| match part {
                        0 => parts.submit = Some([1, 2]),
                        1 => parts.begin = Some(record),
                        _ => parts.end = Some(record),
                    })
                    .is_some()
            };
            assert!((0..3).filter(|part| *part != last).all(|part| !add(part)));
            assert!(add(last));
            assert_eq!(pending.unplaced(), 0);
        }
    }

    #[test]
    fn what_waits_is_bounded_and_what_gives_way_is_counted() {
        let mut pending = Pending::new(true);
        for number in 0..MOST_WAITING as u32 + 3 {
            assert!(pending.add((0, number), |parts| parts.begin = Some(Record::new_zeroed())).is_none());
        }
        assert_eq!(pending.executions.len(), MOST_WAITING);
        assert_eq!(pending.unplaced(), MOST_WAITING as u64 + 3);
    }
}
