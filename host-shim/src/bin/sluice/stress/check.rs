//! Every made-up record is looked at on its way: its number, the bytes of its argument, its chain.

use std::io;
use std::sync::Arc;

use sluice_core::exec::Workload;
use sluice_host::capture::{Pool, PoolTotals};
use sluice_host::dfx::{BufferMeta, Change, Freeze, LanePhase, PayloadMeta, Sink, Wait};
use sluice_host::report::units::Many;
use sluice_host::report::{self, Report};
use sluice_host::verify::{ChainCheck, PayloadCheck, SequenceCheck};

/// What is looked at; what the workload has none of is not.
pub(super) struct Checks {
    numbers: SequenceCheck,
    payloads: Option<PayloadCheck>,
    chains: Option<ChainCheck>,
}

impl Checks {
    pub(super) fn new(workload: &Workload) -> Self {
        Self {
            numbers: SequenceCheck::default(),
            payloads: (workload.payload_bytes > 0).then(|| PayloadCheck::new(workload)),
            chains: (workload.chain > 1).then(|| ChainCheck::new(workload)),
        }
    }

    /// Writes into the report what was found in each of the pools.
    pub(super) fn note(&self, pools: &[PoolTotals], report: &mut Report) {
        self.note_numbers(pools, report);
        report.payloads = self.payloads.as_ref().map(PayloadCheck::found);
        if let Some(found) = report.payloads {
            let mut note = |number, what: &str| {
                if number > 0 {
                    let payloads = Many(number, "argument", "arguments");
                    report.wrong.push(format!("args_dump: {payloads} {what}"));
                }
            };
            note(found.wrong, "came with other bytes than theirs");
            note(found.missing, "came without their bytes");
        }
        report.chains = self.chains.as_ref().map(ChainCheck::found);
        if let Some(found) = report.chains.filter(|found| found.torn > 0) {
            let chains = Many(found.torn, "chain is", "chains are");
            report.wrong.push(format!("dep_gen: {chains} not whole, or not that of the task"));
        }
    }

    fn note_numbers(&self, pools: &[PoolTotals], report: &mut Report) {
        let mut all = report::Sequences::default();
        for totals in pools {
            let Some(pool) = totals.pool() else { continue };
            let found = self.numbers.of(pool, totals.produced);
            all.records += found.records;
            all.missing += found.missing;
            all.repeated += found.repeated;
            // What is counted as lost is said elsewhere.
            let unexplained = found.missing.saturating_sub(totals.dropped);
            if unexplained > 0 {
                let records = Many(unexplained, "record is", "records are");
                report.wrong.push(format!("{pool}: {records} missing and not counted as lost"));
            }
            if found.repeated > 0 {
                let records = Many(found.repeated, "record", "records");
                report.wrong.push(format!("{pool}: {records} came twice or out of order"));
            }
        }
        report.sequences = Some(all);
    }
}

/// A sink with the checks in front of it.
pub(super) struct Checked {
    pub(super) inner: Arc<dyn Sink>,
    pub(super) checks: Arc<Checks>,
}

impl Sink for Checked {
    fn buffer(&self, meta: &BufferMeta, records: &[u8]) -> io::Result<()> {
        self.inner.buffer(meta, records)?;
        let pool = Pool { subsystem: meta.subsystem.into(), kind: meta.kind, instance: meta.instance.0 };
        let Checks { numbers, payloads, chains } = &*self.checks;
        numbers.buffer(pool, records);
        if let Some(payloads) = payloads {
            payloads.records(meta, records);
        }
        if let Some(chains) = chains {
            chains.records(meta, records);
        }
        Ok(())
    }

    fn payload(&self, meta: &PayloadMeta, bytes: &[u8]) -> io::Result<()> {
        self.inner.payload(meta, bytes)?;
        if let Some(payloads) = &self.checks.payloads {
            payloads.piece(meta, bytes);
        }
        Ok(())
    }

    fn freeze(&self, freeze: &Freeze) -> io::Result<()> {
        self.inner.freeze(freeze)
    }

    fn waits(&self, waits: &[Wait]) -> io::Result<()> {
        self.inner.waits(waits)
    }

    fn phases(&self, phases: &[LanePhase]) -> io::Result<()> {
        self.inner.phases(phases)
    }

    fn change(&self, change: &Change) -> io::Result<()> {
        self.inner.change(change)
    }
}
