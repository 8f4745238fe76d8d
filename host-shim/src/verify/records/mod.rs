//! The exact set of records of a run, and whether a capture holds it.
//!
//! | subsystem | module | records |
//! |---|---|---|
//! | swimlane | `swimlane` | tasks per core, phases per lane, submits |
//! | scope_stats | `scope_stats` | a tree of scopes per execution and TPB |
//! | pmu | `pmu` | what the counters of each core read, task by task |
//! | args_dump | `args_dump` | every argument of each item of each execution, and the bytes of its tensor |
//! | dep_gen | `dep_gen` | what each item of each execution waits for |
//!
//! A subsystem is a module here and a line in `expectation`. What is recorded of one that has none goes unchecked.

mod args_dump;
mod dep_gen;
mod pmu;
mod scope_stats;
mod swimlane;

use std::io::{self, Read, Seek};

use sluice_core::layout::{ArchId, SubsystemId};
use sluice_core::producer::Control;

use crate::capture::dedup::{Seen, Verdict};
use crate::capture::segment::Segment;
use crate::capture::{Kind, PayloadHeader, Pool, Reader};
use crate::kbl::ArgChoice;
use crate::neff::Program;

/// Most findings listed.
const MAX_FINDINGS: usize = 16;

/// A core that has work in a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpectedCore {
    /// Its number, as task pools count cores.
    pub core: u32,
    /// The lane that serves it.
    pub lane: u32,
    /// Work items of one execution, in program order.
    pub items: Vec<ExpectedItem>,
}

/// A work item of a core.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ExpectedItem {
    /// Its kernel.
    pub kernel: u32,
    /// Descriptor pairs that it runs.
    pub pairs: u32,
    /// Bytes that it moves.
    pub bytes: u64,
}

/// How much of a run a subsystem records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Which subsystem.
    pub subsystem: SubsystemId,
    /// What it begins with.
    pub first: Control,
    /// What it records instead from an execution on, in the order of executions.
    pub changes: Vec<(u64, Control)>,
}

impl Extent {
    /// The same from beginning to end.
    pub const fn new(subsystem: SubsystemId, first: Control) -> Self {
        Self { subsystem, first, changes: Vec::new() }
    }

    /// All that there is.
    pub const fn full(subsystem: SubsystemId) -> Self {
        Self::new(subsystem, Control::at_level(subsystem.full_level()))
    }

    fn control(&self, execution: u64) -> &Control {
        let last = self.changes.iter().rev().find(|(from, _)| *from <= execution);
        last.map_or(&self.first, |(_, control)| control)
    }

    /// At which level that execution is recorded; 0 = not at all.
    pub fn level(&self, execution: u64) -> u32 {
        let control = self.control(execution);
        if control.picks(execution as u32, || 0) { control.level } else { 0 }
    }

    /// Whether anything of that execution is recorded.
    pub fn has(&self, execution: u64) -> bool {
        self.level(execution) > 0
    }

    /// How many of so many executions are recorded.
    pub fn of(&self, executions: u64) -> u64 {
        (0..executions).filter(|&execution| self.has(execution)).count() as u64
    }

    /// How many of so many executions are not recorded although the subsystem is not off.
    pub fn passed_over(&self, executions: u64) -> u64 {
        let is_passed = |&execution: &u64| !self.has(execution) && self.control(execution).level > 0;
        (0..executions).filter(is_passed).count() as u64
    }
}

/// What a run of a model has to record.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ExpectedRecords {
    /// Who records.
    pub subsystems: Vec<Extent>,
    /// Cores with work.
    pub cores: Vec<ExpectedCore>,
    /// TPBs with a program.
    pub tpbs: u32,
    /// Executions that came to their end.
    pub executions: u64,
    /// The group of events that cores count.
    pub event_group: u32,
    /// The programs, in the order of the TPBs that run them.
    pub programs: Vec<Program>,
    /// Arguments that were chosen.
    pub choice: ArgChoice,
    /// What the contents of tensors follow from; bytes are compared only if that is known.
    pub seed: Option<u64>,
}

/// How a capture compares.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RecordCheck {
    /// Records that should be there.
    pub expected: u64,
    /// Records that are.
    pub found: u64,
    /// What is missing, too many or wrong, for people; the first of them.
    pub findings: Vec<String>,
    /// Findings, those not listed included.
    pub finding_count: u64,
}

impl RecordCheck {
    /// The sets are equal.
    pub fn is_right(&self) -> bool {
        self.finding_count == 0
    }

    fn find(&mut self, text: impl FnOnce() -> String) {
        self.finding_count += 1;
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(text());
        }
    }
}

/// What one subsystem has to record, and what of it has been met.
trait Expectation {
    /// How many records that is.
    fn count(&self) -> u64;

    /// Meets the records of one buffer.
    fn meet(&mut self, pool: Pool, records: &[u8], check: &mut RecordCheck);

    /// Meets bytes of a payload, which come before the record that they belong to.
    fn meet_payload(&mut self, _payload: &PayloadHeader, _bytes: &[u8], _check: &mut RecordCheck) {}

    /// All buffers have been met.
    fn close(&self, check: &mut RecordCheck);
}

/// What a subsystem has to record in `run`.
fn expectation(extent: &Extent, run: &ExpectedRecords, arch: ArchId) -> Box<dyn Expectation> {
    match extent.subsystem {
        SubsystemId::Swimlane => Box::new(swimlane::Ledger::of(run, extent)),
        SubsystemId::Pmu => Box::new(pmu::Ledger::of(run, extent, arch)),
        SubsystemId::ScopeStats => Box::new(scope_stats::Ledger::of(run, extent)),
        SubsystemId::ArgsDump => Box::new(args_dump::Ledger::of(run, extent)),
        SubsystemId::DepGen => Box::new(dep_gen::Ledger::of(run, extent)),
    }
}

impl ExpectedRecords {
    fn expectations(&self, arch: ArchId) -> Vec<(SubsystemId, Box<dyn Expectation>)> {
        let each = self.subsystems.iter();
        each.map(|extent| (extent.subsystem, expectation(extent, self, arch))).collect()
    }

    /// How many records of `subsystem` that is, on a device of `arch`.
    pub fn count(&self, subsystem: SubsystemId, arch: ArchId) -> u64 {
        let expectations = self.expectations(arch);
        expectations
            .iter()
            .filter(|(of, _)| *of == subsystem)
            .map(|(_, expectation)| expectation.count())
            .sum()
    }

    /// Compares with what a capture holds, duplicates of buffers left out. Costs a bit of memory per expected record.
    pub fn check<R: Read + Seek>(&self, reader: &mut Reader<R>) -> io::Result<RecordCheck> {
        let mut expectations = self.expectations(reader.header().arch);
        let expected = expectations.iter().map(|(_, expectation)| expectation.count()).sum();
        let mut check = RecordCheck { expected, ..RecordCheck::default() };
        let mut seen = Seen::default();
        reader.rewind()?;
        while let Some(segment) = reader.read_of(|kind| kind == Kind::BUFFER || kind == Kind::PAYLOAD)? {
            let pool = match &segment {
                Segment::Buffer(buffer, _) => buffer.pool(),
                Segment::Payload(payload, _) => payload.pool(),
                _ => continue,
            };
            let of_pool = expectations.iter_mut().find(|(of, _)| pool.subsystem == (*of).into());
            let Some((_, expectation)) = of_pool else { continue };
            let (buffer, records) = match segment {
                Segment::Buffer(buffer, records) => (buffer, records),
                Segment::Payload(payload, bytes) => {
                    expectation.meet_payload(&payload, bytes, &mut check);
                    continue;
                }
                _ => continue,
            };
            if seen.admit(pool, buffer.buffer_seq) != Verdict::Duplicate {
                check.found += u64::from(buffer.records);
                expectation.meet(pool, records, &mut check);
            }
        }
        expectations.iter().for_each(|(_, expectation)| expectation.close(&mut check));
        Ok(check)
    }
}

/// Some of the numbers 0 to n − 1, each to be met once.
#[derive(Debug)]
struct Once {
    /// A bit per number: met, or not to be met.
    met: Vec<u64>,
    numbers: u64,
    /// How many are to be met.
    count: u64,
}

impl Once {
    fn new(count: u64) -> Self {
        Self { met: vec![0; count.div_ceil(64) as usize], numbers: count, count }
    }

    /// Those of so many executions, with `each` numbers of each of them, that are due by execution and place in it.
    fn of_executions(executions: u64, each: u64, is_due: impl Fn(u64, u64) -> bool) -> Self {
        let mut once = Self::new(executions * each);
        for execution in 0..executions {
            for place in (0..each).filter(|&place| !is_due(execution, place)) {
                once.meet(execution * each + place);
                once.count -= 1;
            }
        }
        once
    }

    /// Whether `number` is one of the numbers and is met for the first time.
    fn meet(&mut self, number: u64) -> bool {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        let first = number < self.numbers && self.met[word] & bit == 0;
        if first {
            self.met[word] |= bit;
        }
        first
    }

    /// Whether `number` has been met.
    fn has(&self, number: u64) -> bool {
        number < self.numbers && self.met[(number / 64) as usize] & (1 << (number % 64)) != 0
    }

    fn missing(&self) -> u64 {
        self.numbers - self.met.iter().map(|word| u64::from(word.count_ones())).sum::<u64>()
    }
}
