//! The dependency records of a buffer: each task with the chain of slots behind it.

use core::fmt;

use sluice_core::exec::tasks::TaskId;
use sluice_core::layout::dep_gen::{
    MAX_EXPLICIT_DEPS, MAX_TENSORS, OVERFLOW_DEPS, OverflowRecord, Record, RecordFlags,
};
use zerocopy::FromBytes;

/// A submitted task, as its record and the chain behind it say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submitted {
    /// Which.
    pub task: TaskId,
    /// Its kernels on the matrix core and the two vector cores; −1 = none.
    pub kernels: [i32; 3],
    /// Blocks it is split into.
    pub blocks: u32,
    /// What it waits for.
    pub deps: Vec<TaskId>,
    /// Kind of each tensor.
    pub tensors: Vec<u8>,
}

/// A slot that continues no chain, or a chain without an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The slot, counted from 0.
    pub slot: usize,
    what: &'static str,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}: {}", self.slot, self.what)
    }
}

/// The tasks of a buffer, read by copy. A chain that is broken is reported in its place; the next task goes on from there.
pub fn chains(records: &[u8]) -> Chains<'_> {
    Chains { slots: records, next: 0 }
}

/// Iterator of [`chains`].
#[derive(Clone, Debug)]
pub struct Chains<'a> {
    slots: &'a [u8],
    next: usize,
}

impl Chains<'_> {
    fn slot<T: FromBytes>(&self, number: usize) -> Option<T> {
        const { assert!(size_of::<Record>() == size_of::<OverflowRecord>()) };
        let at = number * size_of::<Record>();
        T::read_from_bytes(self.slots.get(at..at + size_of::<Record>())?).ok()
    }

    fn broken<T>(slot: usize, what: &'static str) -> Result<T, Broken> {
        Err(Broken { slot, what })
    }

    fn read(&mut self, record: &Record) -> Result<Submitted, Broken> {
        let first = self.next;
        self.next += 1;
        if record.flags.contains(RecordFlags::IS_OVERFLOW) {
            return Self::broken(first, "an overflow record without a task before it");
        }
        let (deps, tensors) = (usize::from(record.explicit_dep_count), usize::from(record.tensor_count));
        if deps > MAX_EXPLICIT_DEPS || tensors > MAX_TENSORS {
            return Self::broken(first, "more dependencies or tensors than a record holds");
        }
        let mut task = Submitted {
            task: TaskId(record.task_id),
            kernels: record.kernel_id,
            blocks: record.block_num,
            deps: record.explicit_deps[..deps].iter().copied().map(TaskId).collect(),
            tensors: record.arg_types[..tensors].to_vec(),
        };
        let mut goes_on = record.flags.contains(RecordFlags::HAS_OVERFLOW);
        while goes_on {
            let slot = self.next;
            let Some(link) = self.slot::<OverflowRecord>(slot) else {
                return Self::broken(slot, "the chain of a task goes on behind the end of its buffer");
            };
            if !link.flags.contains(RecordFlags::IS_OVERFLOW) || link.task_id != record.task_id {
                return Self::broken(slot, "not the next link of the chain before it");
            }
            self.next += 1;
            let Some(deps) = link.deps.get(..usize::from(link.dep_count)) else {
                return Self::broken(slot, "more dependencies than a record holds");
            };
            task.deps.extend(deps.iter().copied().map(TaskId));
            goes_on = !link.flags.contains(RecordFlags::LAST_OVERFLOW);
        }
        Ok(task)
    }
}

const _: () = assert!(OVERFLOW_DEPS > MAX_EXPLICIT_DEPS);

impl Iterator for Chains<'_> {
    type Item = Result<Submitted, Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.slot::<Record>(self.next)?;
        Some(self.read(&record))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    /// The slots of a task, as the wire contract has them.
    pub(crate) fn slots(task: u64, deps: &[u64], tensors: &[u8]) -> Vec<u8> {
        let (own, rest) = deps.split_at(deps.len().min(MAX_EXPLICIT_DEPS));
        let mut record = Record::new_zeroed();
        (record.task_id, record.kernel_id, record.block_num) = (task, [-1; 3], 1);
        record.explicit_dep_count = own.len() as u16;
        record.explicit_deps[..own.len()].copy_from_slice(own);
        record.tensor_count = tensors.len() as u16;
        record.arg_types[..tensors.len()].copy_from_slice(tensors);
        record.flags.set(RecordFlags::HAS_OVERFLOW, !rest.is_empty());
        let mut bytes = record.as_bytes().to_vec();
        let mut links = rest.chunks(OVERFLOW_DEPS).peekable();
        while let Some(deps) = links.next() {
            let mut link = OverflowRecord::new_zeroed();
            (link.task_id, link.dep_count) = (task, deps.len() as u16);
            link.deps[..deps.len()].copy_from_slice(deps);
            link.flags = RecordFlags::IS_OVERFLOW;
            link.flags.set(RecordFlags::LAST_OVERFLOW, links.peek().is_none());
            bytes.extend_from_slice(link.as_bytes());
        }
        bytes
    }

    fn read(records: &[u8]) -> Vec<Result<(u64, usize), String>> {
        let of = |read: Result<Submitted, Broken>| match read {
            Ok(task) => Ok((task.task.0, task.deps.len())),
            Err(broken) => Err(broken.to_string()),
        };
        chains(records).map(of).collect()
    }

    #[test]
    fn chains_are_read_whole() {
        let deps: Vec<u64> = (1..=700).collect();
        let buffer = [slots(5, &deps[..64], &[0, 1]), slots(6, &deps, &[]), slots(7, &[], &[])].concat();
        assert_eq!(read(&buffer), [Ok((5, 64)), Ok((6, 700)), Ok((7, 0))]);
        let whole = chains(&buffer).nth(1).unwrap().unwrap();
        assert_eq!(whole.deps, deps.iter().copied().map(TaskId).collect::<Vec<_>>());
        assert_eq!(chains(&buffer).next().unwrap().unwrap().tensors, [0, 1]);
    }

    #[test]
    fn broken_chains_are_named_and_the_next_task_is_read() {
        const SLOT: usize = size_of::<Record>();
        let long = slots(6, &[1; 700], &[]);
        let (behind, next) = ("the chain of a task goes on behind the end of its buffer", slots(7, &[], &[]));
        assert_eq!(read(&long[..SLOT]), [Err(format!("slot 1: {behind}"))]);
        let gap = [&long[..SLOT], &next].concat();
        assert_eq!(read(&gap), [Err("slot 1: not the next link of the chain before it".into()), Ok((7, 0))]);
        let orphan = [&long[SLOT..], &next[..]].concat();
        let lone = |slot| Err(format!("slot {slot}: an overflow record without a task before it"));
        assert_eq!(read(&orphan), [lone(0), lone(1), Ok((7, 0))]);
        let mut many = next.clone();
        many[14] = 65;
        assert_eq!(read(&many), [Err("slot 0: more dependencies or tensors than a record holds".into())]);
    }
}
