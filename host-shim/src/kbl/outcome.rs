//! How an execution ended.

use std::fmt;

use sluice_core::exec::{ErrorClass, NrtStatus, Ticket};
use sluice_core::mem::Fault;
use sluice_core::mmio::{Engine, QueueId, TpbId};

use super::line::HalfDone;
use super::stream::{EngineState, Received};
use super::tpb::Halt;
use crate::device::process::Forked;

/// Something that went wrong in an execution on one TPB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecFault {
    /// The device reported an error.
    Device {
        /// What kind of error.
        class: ErrorClass,
        /// Number of the engine, as reported.
        engine: u8,
        /// Number of the DMA queue, as reported.
        queue: u16,
        /// When, in cycles of the device.
        time_cycles: u64,
    },
    /// An engine's records did not come in order.
    Disorder {
        /// The engine.
        engine: Engine,
        /// What it had said before.
        state: EngineState,
        /// The record that should not have come.
        got: Received,
        /// A notification queue has run over.
        overflow: bool,
    },
    /// The execution ended and an engine had not said so.
    Missing {
        /// The engine.
        engine: Engine,
        /// What it had said.
        state: EngineState,
        /// A notification queue has run over.
        overflow: bool,
    },
    /// The request could not be handed to the device, and the execution was not started.
    NoRequest {
        /// Why.
        fault: Fault,
    },
    /// The execution was not started on this TPB.
    NotStarted {
        /// Why.
        fault: Fault,
    },
    /// It went with the exec ring of a TPB that had to be set up anew, or is to be.
    Halted(Halt),
    /// The unit was closed before it began.
    Closed,
    /// The device belongs to another process.
    Forked(Forked),
    /// The unit can't be followed any more.
    HalfDone(HalfDone),
}

impl ExecFault {
    /// The status that it gives the execution.
    pub fn status(&self) -> NrtStatus {
        match *self {
            Self::Device { class, .. } => NrtStatus::of_error(class),
            Self::Disorder { overflow: true, .. } | Self::Missing { overflow: true, .. } => {
                NrtStatus::EXEC_SW_NQ_OVERFLOW
            }
            Self::Disorder { .. } | Self::Missing { .. } => NrtStatus::EXEC_COMPLETED_WITH_ERR,
            Self::NoRequest { .. } | Self::NotStarted { .. } | Self::Forked(_) => NrtStatus::FAILURE,
            Self::Halted(halt) => halt.status(),
            Self::Closed => NrtStatus::CLOSED,
            Self::HalfDone(half_done) => half_done.status(),
        }
    }
}

impl fmt::Display for ExecFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = |overflow: &bool| if *overflow { ", a notification queue ran over" } else { "" };
        match self {
            Self::Device { class, engine, queue, time_cycles } => {
                write!(f, "{class}")?;
                // The exec ring is no queue of a program: what failed is the program itself.
                if u32::from(*queue) != QueueId::EXEC.get() {
                    write!(f, " on queue {queue}")?;
                }
                write!(f, " of engine {engine} at cycle {time_cycles}")
            }
            Self::Disorder { engine, state, got, overflow } => {
                write!(f, "engine {engine} in {state} sent {got}{}", lost(overflow))
            }
            Self::Missing { engine, state, overflow } => {
                write!(f, "engine {engine} still in {state} when the execution ended{}", lost(overflow))
            }
            Self::NoRequest { fault } => {
                write!(f, "Unable to copy execution request to device: {fault}")
            }
            Self::NotStarted { fault } => write!(f, "Failed to post inference request, err: {fault}"),
            Self::Halted(halt) => halt.fmt(f),
            Self::Closed => f.write_str("the unit was closed before it began"),
            Self::Forked(forked) => forked.fmt(f),
            Self::HalfDone(half_done) => half_done.fmt(f),
        }
    }
}

/// When an engine's program began and ended, in cycles of the device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EngineTimes {
    /// Begin, as notified.
    pub start_cycles: Option<u64>,
    /// End, as notified.
    pub end_cycles: Option<u64>,
}

/// How an execution ended on one TPB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TpbOutcome {
    /// Which TPB.
    pub tpb: TpbId,
    /// The execution's place among those of this TPB; `None` if it was not started there.
    pub ordinal: Option<u32>,
    /// By engine.
    pub engines: [EngineTimes; Engine::COUNT],
    /// What went wrong, oldest first. The worst decides the status.
    pub faults: Vec<ExecFault>,
    /// What else went wrong, no worse than that.
    pub omitted_faults: u64,
}

impl TpbOutcome {
    /// The worst of its faults.
    pub fn status(&self) -> NrtStatus {
        self.faults.iter().fold(NrtStatus::SUCCESS, |worst, fault| worst.merge(fault.status()))
    }

    /// From the first start to the last end of its engines, in cycles of the device.
    pub fn duration_cycles(&self) -> Option<u64> {
        let start = self.engines.iter().filter_map(|times| times.start_cycles).min()?;
        let end = self.engines.iter().filter_map(|times| times.end_cycles).max()?;
        end.checked_sub(start)
    }
}

/// How an execution ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Which execution.
    pub ticket: Ticket,
    /// By TPB.
    pub tpbs: Vec<TpbOutcome>,
}

impl Outcome {
    /// The worst status of its TPBs.
    pub fn status(&self) -> NrtStatus {
        self.tpbs.iter().fold(NrtStatus::SUCCESS, |worst, tpb| worst.merge(tpb.status()))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "execution {} ended with status {}", self.ticket, self.status().0)?;
        for tpb in &self.tpbs {
            for fault in &tpb.faults {
                write!(f, "; TPB {}: {fault}", tpb.tpb)?;
            }
            if tpb.omitted_faults > 0 {
                write!(f, "; TPB {}: and {} more", tpb.tpb, tpb.omitted_faults)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_fault_of_all_tpbs_is_the_status() {
        let tpb = |tpb, faults| TpbOutcome {
            tpb: TpbId::new(tpb).unwrap(),
            ordinal: Some(0),
            engines: [EngineTimes::default(); Engine::COUNT],
            faults,
            omitted_faults: 0,
        };
        let device = |class| ExecFault::Device { class, engine: 2, queue: 3, time_cycles: 9 };
        let missing =
            ExecFault::Missing { engine: Engine::Sp, state: EngineState::EndPending, overflow: true };
        let mut outcome = Outcome { ticket: Ticket(5), tpbs: vec![tpb(0, vec![]), tpb(1, vec![])] };
        assert_eq!(outcome.status(), NrtStatus::SUCCESS);
        outcome.tpbs[0].faults.push(device(ErrorClass::OUT_OF_BOUNDS));
        assert_eq!(outcome.status(), NrtStatus::EXEC_OOB);
        outcome.tpbs[1].faults.push(missing);
        assert_eq!(outcome.status(), NrtStatus::EXEC_SW_NQ_OVERFLOW);
        outcome.tpbs[1].faults.push(device(ErrorClass::PHASE_MISMATCH));
        assert_eq!(outcome.status(), NrtStatus::EXEC_HW_ERR_DMA_ABORT);
        assert_eq!(
            outcome.to_string(),
            "execution 5 ended with status 1203; TPB 0: out of bounds on queue 3 of engine 2 at cycle 9; \
             TPB 1: engine SP still in END_PENDING when the execution ended, a notification queue ran over; \
             TPB 1: phase mismatch on queue 3 of engine 2 at cycle 9"
        );
    }

    #[test]
    fn duration_spans_all_engines() {
        let mut outcome = TpbOutcome {
            tpb: TpbId::new(0).unwrap(),
            ordinal: Some(0),
            engines: [EngineTimes::default(); Engine::COUNT],
            faults: vec![],
            omitted_faults: 0,
        };
        assert_eq!(outcome.duration_cycles(), None);
        outcome.engines[1] = EngineTimes { start_cycles: Some(100), end_cycles: Some(150) };
        outcome.engines[4] = EngineTimes { start_cycles: Some(90), end_cycles: Some(120) };
        assert_eq!(outcome.duration_cycles(), Some(60));
    }
}
