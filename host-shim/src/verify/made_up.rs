//! What made-up records hold beside their number: bytes of arguments, and chains of dependencies.
//!
//! ```text
//!   source   │ 8 bytes │ 8 bytes │ 8 bytes │ …        no two places hold the same
//!   argument n:        └─ n mod 1024 steps in ──┤ payload ├
//!   task n:  1 + n mod longest slots; waits for n − 1, n − 2, n − 3, …
//! ```
//!
//! So bytes from any other place, of any other argument or lap of the arena are told from those that belong there, and so is
//! a link of another chain.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use sluice_core::exec::Workload;
use sluice_core::layout::SubsystemId;
use sluice_core::layout::args_dump::{ArgKind, Record};
use sluice_core::layout::dep_gen::{MAX_EXPLICIT_DEPS, OVERFLOW_DEPS};
use zerocopy::FromBytes;

use crate::capture::chains::{Submitted, chains};
use crate::dfx::{BufferMeta, PayloadMeta};
use crate::report::{Chains, Payloads};

/// The bytes that made-up arguments are taken from.
pub fn source(workload: &Workload) -> Vec<u8> {
    let steps = workload.source_bytes().div_ceil(size_of::<u64>() as u64);
    // An odd factor: no two products are alike.
    let mut bytes: Vec<u8> =
        (1..=steps).flat_map(|step| step.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()).collect();
    bytes.truncate(workload.source_bytes() as usize);
    bytes
}

/// Arguments of one lane that came since its last buffer of records.
#[derive(Debug, Default)]
struct Arrived {
    /// Places of the records of those that are right.
    right: Vec<u32>,
    /// Whether a piece of the present one was not.
    is_wrong: bool,
}

/// The bytes of every argument, against those of the source.
#[derive(Debug)]
pub struct PayloadCheck {
    source: Vec<u8>,
    payload_bytes: u64,
    state: Mutex<(BTreeMap<u32, Arrived>, Payloads)>,
}

impl PayloadCheck {
    /// For arguments of `workload`.
    pub fn new(workload: &Workload) -> Self {
        let payload_bytes = workload.payload_bytes.into();
        Self { source: source(workload), payload_bytes, state: Mutex::default() }
    }

    /// Looks at a piece of an argument.
    pub fn piece(&self, meta: &PayloadMeta, bytes: &[u8]) {
        let place = meta.task % u64::from(Workload::PAYLOAD_STARTS);
        let start = place * u64::from(Workload::PAYLOAD_STEP_BYTES);
        let start = start.saturating_add(meta.offset_bytes) as usize;
        let expected = self.source.get(start..).and_then(|source| source.get(..bytes.len()));
        let is_right = expected == Some(bytes) && meta.total_bytes == self.payload_bytes;
        let end_bytes = meta.offset_bytes + bytes.len() as u64;
        let (arrived, found) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let arrived = arrived.entry(meta.lane.0).or_default();
        if meta.offset_bytes == 0 {
            // What is offered once more counts once.
            arrived.right.truncate(arrived.right.partition_point(|record| *record < meta.record));
            arrived.is_wrong = false;
        }
        arrived.is_wrong |= !is_right;
        match (end_bytes >= meta.total_bytes, arrived.is_wrong) {
            (false, _) => {}
            (true, true) => found.wrong += 1,
            (true, false) => arrived.right.push(meta.record),
        }
    }

    /// Looks whether each record of a buffer has the bytes of its argument. They come before it.
    pub fn records(&self, meta: &BufferMeta, records: &[u8]) {
        if meta.subsystem != SubsystemId::ArgsDump {
            return;
        }
        let (arrived, found) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let right = std::mem::take(&mut arrived.entry(meta.instance.0).or_default().right);
        let mut right = right.into_iter().peekable();
        for (place, record) in (0..).zip(records.chunks_exact(size_of::<Record>())) {
            let has_bytes = Record::read_from_bytes(record).is_ok_and(|record| {
                let size_bytes = record.payload_size;
                record.kind == ArgKind::TENSOR && record.truncated == 0 && size_bytes == self.payload_bytes
            });
            if right.next_if_eq(&place).is_some() && has_bytes {
                found.count += 1;
                found.bytes += self.payload_bytes;
            } else {
                found.missing += 1;
            }
        }
    }

    /// What was found.
    pub fn found(&self) -> Payloads {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

/// Every chain of dependencies, link by link.
#[derive(Debug)]
pub struct ChainCheck {
    longest: u64,
    found: Mutex<Chains>,
}

impl ChainCheck {
    /// For tasks of `workload`.
    pub fn new(workload: &Workload) -> Self {
        Self { longest: workload.chain.max(1).into(), found: Mutex::default() }
    }

    /// Looks at the chains of one buffer.
    pub fn records(&self, meta: &BufferMeta, records: &[u8]) {
        if meta.subsystem != SubsystemId::DepGen {
            return;
        }
        let mut seen = Chains::default();
        for task in chains(records) {
            match task.ok().and_then(|task| self.links(&task)) {
                Some(links) => (seen.tasks, seen.links) = (seen.tasks + 1, seen.links + links),
                None => seen.torn += 1,
            }
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.tasks += seen.tasks;
        found.links += seen.links;
        found.torn += seen.torn;
    }

    /// How many slots the chain of a task took beside its own; `None` when it is not the task's.
    fn links(&self, task: &Submitted) -> Option<u64> {
        let number = task.task.0;
        let links = number % self.longest;
        let deps = task.deps.len();
        let fewest = |links: u64| MAX_EXPLICIT_DEPS + (links as usize) * OVERFLOW_DEPS + 1;
        let takes_as_many = match links {
            0 => deps <= MAX_EXPLICIT_DEPS,
            links => (fewest(links - 1)..fewest(links)).contains(&deps),
        };
        let mut expected = (1..).map(|back| u64::from((number as u32).wrapping_sub(back)));
        let are_right = task.deps.iter().all(|dep| expected.next() == Some(dep.0));
        (takes_as_many && are_right).then_some(links)
    }

    /// What was found.
    pub fn found(&self) -> Chains {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use sluice_core::layout::args_dump::Stage;
    use sluice_core::layout::{Instance, Lane, PoolKind};
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::capture::chains::tests::slots;

    const WANTED: Workload = Workload { payload_bytes: 20, chain: 3, ..Workload::NONE };

    fn buffer(subsystem: SubsystemId) -> BufferMeta {
        let (kind, instance) = (PoolKind::SOLE, Instance(1));
        BufferMeta { subsystem, kind, instance, sequence: 0, count: 0, drained: Instant::now() }
    }

    fn piece(task: u64, record: u32, offset_bytes: u64) -> PayloadMeta {
        let (lane, stage) = (Lane(1), Stage::BEFORE_DISPATCH);
        let total_bytes = 20;
        PayloadMeta { lane, sequence: 0, record, task, arg_index: 0, stage, offset_bytes, total_bytes }
    }

    fn record(payload_size: u64) -> Record {
        Record { kind: ArgKind::TENSOR, payload_size, ..Record::new_zeroed() }
    }

    fn found(check: &PayloadCheck, records: &[Record]) -> (u64, u64, u64) {
        check.records(&buffer(SubsystemId::DepGen), records.as_bytes());
        check.records(&buffer(SubsystemId::ArgsDump), records.as_bytes());
        let Payloads { count, bytes, wrong, missing } = check.found();
        assert_eq!(bytes, count * 20);
        (count, wrong, missing)
    }

    #[test]
    fn arguments_are_told_apart_by_their_bytes() {
        let all = source(&WANTED);
        assert_eq!(all.len(), 20 + 1023 * 8);
        let of = |task: usize| &all[task % 1024 * 8..][..20];
        let check = PayloadCheck::new(&WANTED);
        check.piece(&piece(7, 0, 0), of(7));
        check.piece(&piece(1025, 1, 0), &of(1)[..5]);
        check.piece(&piece(1025, 1, 5), &of(1)[5..]);
        assert_eq!(found(&check, &[record(20), record(20)]), (2, 0, 0));
        check.piece(&piece(8, 0, 0), of(7));
        check.piece(&piece(9, 1, 0), of(9));
        assert_eq!(
            found(&check, &[record(20), record(20), record(20)]),
            (3, 1, 2),
            "one wrong, one never came"
        );
        check.piece(&piece(10, 0, 0), of(10));
        assert_eq!(found(&check, &[record(0)]), (3, 1, 3), "and one that says it has none");
        assert_eq!(found(&check, &[record(20)]), (3, 1, 4), "which is not kept for the next");
    }

    #[test]
    fn an_argument_that_is_offered_again_counts_once() {
        let all = source(&WANTED);
        let check = PayloadCheck::new(&WANTED);
        check.piece(&piece(0, 0, 0), &all[..20]);
        check.piece(&piece(1, 1, 0), &all[8..16]);
        for (task, from) in [(0, 0), (1, 8)] {
            check.piece(&piece(task, task as u32, 0), &all[from..][..8]);
            check.piece(&piece(task, task as u32, 8), &all[from + 8..][..12]);
        }
        assert_eq!(found(&check, &[record(20), record(20)]), (2, 0, 0));
    }

    #[test]
    fn a_chain_is_as_long_as_its_task_has_it_and_its_own() {
        let task = |number: u64, deps: u64| {
            let deps: Vec<u64> =
                (1..=deps).map(|back| u64::from((number as u32).wrapping_sub(back as u32))).collect();
            slots(number, &deps, &[])
        };
        let whole: Vec<u8> = [task(3, 5), task(4, 65), task(5, 1228), task(6, 64)].concat();
        let torn: [Vec<u8>; 5] =
            [task(4, 64), task(4, 647), task(3, 65), task(5, 1229), slots(4, &[9; 65], &[])];
        let check = ChainCheck::new(&WANTED);
        check.records(&buffer(SubsystemId::ArgsDump), &whole);
        assert_eq!(check.found(), Chains::default());
        check.records(&buffer(SubsystemId::DepGen), &whole);
        assert_eq!(check.found(), Chains { tasks: 4, links: 3, torn: 0 });
        torn.iter().for_each(|task| check.records(&buffer(SubsystemId::DepGen), task));
        assert_eq!(check.found(), Chains { tasks: 4, links: 3, torn: 5 });
        let slot = size_of::<sluice_core::layout::dep_gen::Record>();
        check.records(&buffer(SubsystemId::DepGen), &whole[slot..3 * slot - slot]);
        assert_eq!(check.found().torn, 6, "a chain that another buffer goes on with");
    }
}
