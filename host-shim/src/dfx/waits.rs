//! The waits of lanes, as they log them: read in every turn of the service, handed on in batches.
//!
//! ```text
//!   lane: records, then waits_logged ──► service: reads them, then taken ──► pipe ──► collector: Sink::waits
//! ```
//!
//! A lane never waits for room in its log, and the service never for room in the pipe: what finds none stays in the log or
//! was never logged. So every wait is either handed on once, in order, or counted as unlogged at the end of the session.

use std::mem::offset_of;
use std::sync::Arc;

use sluice_core::gate::Gate;
use sluice_core::layout::extension::{LaneActivity, LaneStatus, WAIT_RECORDS, WaitLog, WaitRecord};
use sluice_core::layout::{Instance, Lane, PoolKind, SubsystemId};
use sluice_core::mem::{DevAddr, Fault, Memory, Own, Peer, Words};

use super::Pipe;
use super::again::again;
use super::pipe::WaitPipe;
use super::plan::Plan;
use super::sink::Wait;

/// 32-bit words of a record.
const RECORD_WORDS: usize = size_of::<WaitRecord>() / 4;
/// Waits of one subsystem that may be under way to its collector.
pub(super) const UNDER_WAY: usize = 1024;

/// What one look at a log came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Logged {
    /// All that was there is handed on, or there is no room for more now.
    Taken,
    /// The lane's counter or one of its records is nonsense; what it had logged is passed over.
    Corrupt {
        /// The lane.
        lane: Lane,
    },
}

/// The logs of one subsystem's lanes.
pub(super) struct WaitLogs<M: Memory> {
    subsystem: SubsystemId,
    lanes: Vec<Log<M>>,
    pipe: Arc<WaitPipe<Wait>>,
}

struct Log<M: Memory> {
    records: M::Words,
    logged: Peer<M::Word>,
    taken: Own<M::Word>,
    /// Records read; what `taken` says once it could be stored.
    read: u32,
}

impl<M: Memory> WaitLogs<M> {
    /// The logs of `lanes` lanes of `subsystem`; what is read goes into `pipe`.
    ///
    /// # Errors
    /// [`Fault`] when a word lies outside device memory.
    pub(super) fn attach(
        memory: &M,
        plan: &Plan,
        subsystem: SubsystemId,
        lanes: u32,
        pipe: Arc<WaitPipe<Wait>>,
    ) -> Result<Self, Fault> {
        let log = |lane| {
            let records = plan.wait_log(subsystem, lane, offset_of!(WaitLog, records))?;
            let logged = plan.lane_word(subsystem, lane, offset_of!(LaneStatus, waits_logged))?;
            let taken = plan.wait_log(subsystem, lane, offset_of!(WaitLog, taken))?;
            Log::at(memory, records, logged, taken)
        };
        Ok(Self { subsystem, lanes: (0..lanes).map(log).collect::<Result<_, _>>()?, pipe })
    }

    /// Hands on what lanes have logged since the last look. `each` hears of every lane.
    ///
    /// # Errors
    /// [`Fault`] when the transport fails; nothing is handed on twice when it is tried again.
    pub(super) fn take(&mut self, mut each: impl FnMut(Logged)) -> Result<(), Fault> {
        for (log, lane) in self.lanes.iter_mut().zip(0..) {
            each(log.take(self.subsystem, Lane(lane), &self.pipe)?);
        }
        Ok(())
    }
}

impl<M: Memory> Log<M> {
    fn at(memory: &M, records: DevAddr, logged: DevAddr, taken: DevAddr) -> Result<Self, Fault> {
        let taken = Own::new(memory.word(taken)?);
        Ok(Self {
            records: memory.words(records, (WAIT_RECORDS * RECORD_WORDS) as u32)?,
            logged: Peer::new(memory.word(logged)?),
            read: taken.get(),
            taken,
        })
    }

    fn take(&mut self, subsystem: SubsystemId, lane: Lane, pipe: &WaitPipe<Wait>) -> Result<Logged, Fault> {
        // Partner of the lane's store: the records up to it are whole.
        let logged = self.logged.try_observe()?;
        let mut found = Logged::Taken;
        if logged.wrapping_sub(self.read) > WAIT_RECORDS as u32 {
            self.read = logged;
            found = Logged::Corrupt { lane };
        }
        while self.read != logged && pipe.len() < UNDER_WAY {
            let mut words = [0; RECORD_WORDS];
            let slot = self.read % WAIT_RECORDS as u32;
            self.records.try_read(slot * RECORD_WORDS as u32, &mut words)?;
            self.read = self.read.wrapping_add(1);
            match wait(subsystem, lane, words) {
                Some(wait) => pipe.push(wait),
                None => found = Logged::Corrupt { lane },
            }
        }
        if self.taken.get() != self.read {
            self.taken.try_publish(self.read)?;
        }
        Ok(found)
    }
}

/// What a lane wrote, if it can be.
fn wait(subsystem: SubsystemId, lane: Lane, words: [u32; RECORD_WORDS]) -> Option<Wait> {
    let [begin_low, begin_high, end_low, end_high, gate, next, kind, instance] = words;
    let cycles = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    let wait = Wait {
        subsystem,
        lane,
        gate: match LaneActivity(gate) {
            LaneActivity::READY_GATE => Gate::Ready,
            LaneActivity::FREE_GATE => Gate::Free,
            _ => return None,
        },
        kind: PoolKind(kind),
        instance: Instance(instance),
        begin_cycles: cycles(begin_low, begin_high),
        end_cycles: cycles(end_low, end_high),
        gave_up: LaneActivity(next) == LaneActivity::HOST_GONE,
    };
    (wait.begin_cycles <= wait.end_cycles).then_some(wait)
}

/// What lanes waited in one subsystem, by their own account.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waits {
    /// Waits for room in a ready ring.
    pub rq: u64,
    /// Waits for an empty buffer.
    pub fq: u64,
    /// Device cycles of the former that have ended, all lanes together.
    pub rq_cycles: u64,
    /// Device cycles of the latter that have ended, all lanes together.
    pub fq_cycles: u64,
    /// Waits that are in no log, or in one that was not read: it was full, or the wait has not ended.
    pub unlogged: u64,
}

impl Waits {
    /// What the lanes of `subsystem` say.
    ///
    /// # Errors
    /// [`Fault`] when it cannot be read.
    pub(super) fn of<M: Memory>(
        memory: &M,
        plan: &Plan,
        subsystem: SubsystemId,
        lanes: u32,
    ) -> Result<Self, Fault> {
        let mut sum = Self::default();
        for lane in 0..lanes {
            let word = |at| again(|| Peer::new(memory.word(at)?).try_observe());
            let of = |offset| word(plan.lane_word(subsystem, lane, offset)?);
            let cycles = |offset| Ok::<_, Fault>(u64::from(of(offset + 4)?) << 32 | u64::from(of(offset)?));
            let (rq, fq) = (of(offset_of!(LaneStatus, waits_rq))?, of(offset_of!(LaneStatus, waits_fq))?);
            let taken = word(plan.wait_log(subsystem, lane, offset_of!(WaitLog, taken))?)?;
            sum.rq += u64::from(rq);
            sum.fq += u64::from(fq);
            sum.rq_cycles = sum.rq_cycles.saturating_add(cycles(offset_of!(LaneStatus, waited_rq_cycles))?);
            sum.fq_cycles = sum.fq_cycles.saturating_add(cycles(offset_of!(LaneStatus, waited_fq_cycles))?);
            // Counters run freely.
            sum.unlogged += u64::from(rq.wrapping_add(fq).wrapping_sub(taken));
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::mem::testing::{Double, Mishap};
    use sluice_core::producer;

    use super::*;

    const RECORDS: DevAddr = DevAddr(64);
    const LOGGED: DevAddr = DevAddr(8);
    const TAKEN: DevAddr = DevAddr(0);

    /// Logs five waits, reads each until all are there; the waits and the last memory.
    fn course(memory: &Double) -> (Vec<Wait>, Vec<u32>) {
        let lane = producer::WaitLog::attach(memory, RECORDS, WAIT_RECORDS as u32, TAKEN, LOGGED).unwrap();
        let mut log = Log::at(memory, RECORDS, LOGGED, TAKEN).unwrap();
        let pipe = WaitPipe::with_capacity(UNDER_WAY);
        let mut waits = Vec::new();
        for number in 0..5 {
            lane.push(&WaitRecord {
                begin_cycles: number << 33,
                end_cycles: (number << 33) + 1,
                gate: LaneActivity::FREE_GATE,
                next: LaneActivity::RUNNING,
                kind: PoolKind(2),
                instance: 3,
            });
            while log.read != log.logged.observe() || log.taken.get() != log.read {
                let _ = log.take(SubsystemId::Pmu, Lane(1), &pipe);
            }
            waits.extend(pipe.pop());
        }
        (waits, memory.snapshot())
    }

    #[test]
    fn a_transport_that_fails_neither_loses_nor_doubles_a_wait() {
        let memory = || Double::new(DevAddr(0), 64 + (WAIT_RECORDS * size_of::<WaitRecord>()) as u64);
        let undisturbed = memory();
        let whole = course(&undisturbed);
        assert_eq!(whole.0.len(), 5);
        assert!(whole.0.iter().zip(0..).all(|(wait, number)| wait.begin_cycles == number << 33));
        for mishap in [Mishap::Refused, Mishap::AnswerLost] {
            for later in 0..undisturbed.fallible_accesses() {
                let memory = memory();
                memory.fail_later(later, mishap);
                assert_eq!(course(&memory), whole, "access {later}: {mishap:?}");
            }
        }
    }
}
