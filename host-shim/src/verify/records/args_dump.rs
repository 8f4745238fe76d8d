//! Argument records: one per part of a bound tensor that an item touches, before it runs if it reads the part, after it has
//! run if it writes it, and the bytes that stood there; of all parts or of those that were chosen, as the level says.

use std::collections::HashMap;

use sluice_core::exec::CoreIndex;
use sluice_core::exec::tasks::TaskId;
use sluice_core::layout::args_dump::{Level, MAX_DIMS, Record, Role, Stage};
use sluice_core::mmio::TpbId;

use super::{Expectation, ExpectedRecords, Extent, Once, RecordCheck};
use crate::capture::{Items, PayloadHeader, Pool};
use crate::verify::content::{Content, MAX_FILLED_BYTES};
use crate::verify::origin::{Origins, Source, Tensor};
use crate::verify::parts::{Held, ItemKey, Part, When, parts_of};

/// What has been met of each argument.
pub(super) struct Ledger {
    /// By core and place in its program.
    items: HashMap<(u32, u32), ExpectedItem>,
    tensors: Vec<Tensor>,
    held: Held,
    contents: Option<Contents>,
    executions: u64,
    levels: Extent,
    /// Records of an execution of which all are recorded.
    per_execution: u64,
    met: Once,
    /// Payloads of which the last byte has been met.
    complete: Once,
}

struct ExpectedItem {
    key: ItemKey,
    /// Number of the first of its records.
    first: u64,
    parts: Vec<Part>,
    chosen: u64,
}

impl ExpectedItem {
    fn is_chosen(&self, arg: usize) -> bool {
        self.chosen >> arg.min(63) & 1 != 0
    }

    fn has_bytes(&self, arg: usize, level: Level) -> bool {
        level == Level::FULL || self.is_chosen(arg)
    }

    fn is_recorded(&self, arg: usize, level: Level) -> bool {
        is_recorded(self.is_chosen(arg), level)
    }

    /// Records of an argument, where it is recorded.
    fn records(&self, arg: usize) -> u64 {
        let part = &self.parts[arg];
        u64::from(part.is_read) + u64::from(part.is_written)
    }
}

fn is_recorded(is_chosen: bool, level: Level) -> bool {
    match level {
        Level::OFF => false,
        Level::PARTIAL => is_chosen,
        _ => true,
    }
}

const fn role_of(part: &Part) -> Role {
    match (part.is_read, part.is_written) {
        (true, true) => Role::INOUT,
        (true, false) => Role::INPUT,
        _ => Role::OUTPUT,
    }
}

/// A record that was expected.
#[derive(Clone, Copy)]
struct Met<'a> {
    item: &'a ExpectedItem,
    arg: usize,
    when: When,
    number: u64,
}

impl Ledger {
    pub(super) fn of(run: &ExpectedRecords, extent: &Extent) -> Self {
        let (parts, tensors) = (parts_of(&run.programs), Origins::tensors_of(&run.programs));
        let held = Held::of(&run.programs, &parts);
        let mut keys: Vec<ItemKey> = parts.keys().copied().collect();
        keys.sort_unstable();
        let (mut items, mut first) = (HashMap::new(), 0);
        // Of each record of an execution, by its number.
        let mut is_chosen = Vec::new();
        for key in keys {
            let (program, engine, index) = key;
            let Ok(tpb) = TpbId::new(program as u32) else { continue };
            let (core, parts) = (CoreIndex::of(tpb, engine).get() as u32, parts[&key].clone());
            let named = |part: &Part| (role_of(part), part.tensor, part.pattern.len_bytes());
            let named = parts.iter().map(named);
            let chosen =
                run.choice.mask(named.map(|(role, tensor, bytes)| (role, &*tensors[tensor].name, bytes)));
            let item = ExpectedItem { key, first, parts, chosen };
            for arg in 0..item.parts.len() {
                first += item.records(arg);
                is_chosen.resize(first as usize, item.is_chosen(arg));
            }
            items.insert((core, index as u32 + 1), item);
        }
        let is_due =
            |execution, place| is_recorded(is_chosen[place as usize], Level(extent.level(execution)));
        Self {
            met: Once::of_executions(run.executions, first, is_due),
            levels: extent.clone(),
            items,
            tensors,
            held,
            contents: run.seed.map(Contents::new),
            executions: run.executions,
            per_execution: first,
            complete: Once::new(first * run.executions),
        }
    }

    fn level(&self, task: TaskId) -> Level {
        Level(self.levels.level(task.execution().into()))
    }

    /// The record of an argument at a stage, if there is to be one.
    fn find(&self, task: TaskId, arg: u32, stage: u32) -> Option<Met<'_>> {
        let item = self.items.get(&(task.core(), task.ordinal()))?;
        let part = item.parts.get(arg as usize)?;
        let (when, is_due) = match u8::try_from(stage).map(Stage) {
            Ok(Stage::BEFORE_DISPATCH) => (When::Before, part.is_read),
            Ok(Stage::AFTER_COMPLETION) => (When::After, part.is_written),
            _ => return None,
        };
        let execution = u64::from(task.execution());
        let arg = arg as usize;
        if !is_due || !item.is_recorded(arg, self.level(task)) || execution >= self.executions {
            return None;
        }
        let before: u64 = (0..arg).map(|arg| item.records(arg)).sum();
        let own = u64::from(when == When::After && part.is_read);
        let number = execution * self.per_execution + item.first + before + own;
        Some(Met { item, arg, when, number })
    }

    fn meet_record(&mut self, pool: Pool, record: &Record, check: &mut RecordCheck) {
        let (task, arg) = (TaskId(record.task_id), record.arg_index);
        let Some(met) = self.find(task, arg, record.stage.0.into()) else {
            let stage = record.stage;
            return check.find(|| format!("{pool}: {task}: argument {arg} {stage} is not expected"));
        };
        let (number, part) = (met.number, &met.item.parts[met.arg]);
        let role = role_of(part);
        let bytes = if met.item.has_bytes(met.arg, self.level(task)) { part.pattern.len_bytes() } else { 0 };
        let is_whole = record.payload_size == bytes && record.truncated == 0;
        let is_cut = record.payload_size < bytes && record.truncated == 1;
        let has_no_view = record.ndims == 0 && part.pattern.dims().len() > MAX_DIMS;
        if record.role != role || !(is_whole || is_cut || has_no_view && record.payload_size == 0) {
            let (found, size) = (record.role, record.payload_size);
            check.find(|| {
                format!(
                    "{pool}: {task}: argument {arg} is an {found} of {size} bytes, want an {role} of {bytes}"
                )
            });
        }
        if record.payload_size > 0 && !self.complete.has(number) {
            check.find(|| format!("{pool}: {task}: the bytes of argument {arg} are not there"));
        }
        if !self.met.meet(number) {
            check.find(|| format!("{pool}: {task}: argument {arg} is here again"));
        }
    }
}

impl Expectation for Ledger {
    fn count(&self) -> u64 {
        self.met.count
    }

    fn meet(&mut self, pool: Pool, records: &[u8], check: &mut RecordCheck) {
        Items::<Record>::new(records).for_each(|record| self.meet_record(pool, &record, check));
    }

    fn meet_payload(&mut self, payload: &PayloadHeader, bytes: &[u8], check: &mut RecordCheck) {
        let (pool, task, arg) = (payload.pool(), TaskId(payload.task), payload.arg_index);
        let mut contents = self.contents.take();
        let Some(Met { item, arg: number, when, number: record }) = self.find(task, arg, payload.stage)
        else {
            self.contents = contents;
            return check.find(|| format!("{pool}: {task}: bytes of argument {arg}, which is not expected"));
        };
        if let Some(contents) = &mut contents {
            let part = &item.parts[number];
            let is_output = self.tensors[part.tensor].is_output;
            let source = self.held.source(item.key, number, part, is_output, when);
            let execution = u64::from(task.execution());
            let wrong = bytes.iter().enumerate().find_map(|(at, &found)| {
                let at = payload.offset_bytes as usize + at;
                let expected = contents.byte(&self.tensors, execution, source(at)?)?;
                (expected != found).then_some((at, found, expected))
            });
            if let Some((at, found, expected)) = wrong {
                let name = &self.tensors[part.tensor].name;
                check.find(|| {
                    format!(
                        "{pool}: {task}: argument {arg}, of `{name}`, differs first at byte {at}: {found:#04x}, \
                         expected {expected:#04x}"
                    )
                });
            }
        }
        if payload.offset_bytes + bytes.len() as u64 == payload.total_bytes {
            self.complete.meet(record);
        }
        self.contents = contents;
    }

    fn close(&self, check: &mut RecordCheck) {
        let (missing, expected) = (self.met.missing(), self.met.count);
        if missing > 0 {
            check.find(|| format!("arguments: {missing} of {expected} records are not there"));
        }
    }
}

/// What tensors hold before an execution. Of each tensor the content that was asked for last is kept.
struct Contents {
    content: Content,
    filled: HashMap<usize, (u64, Vec<u8>)>,
}

impl Contents {
    fn new(seed: u64) -> Self {
        Self { content: Content::new(seed), filled: HashMap::new() }
    }

    /// The byte that comes from there; `None` where that is not known.
    fn byte(&mut self, tensors: &[Tensor], execution: u64, source: Source) -> Option<u8> {
        let (tensor, offset) = match source {
            Source::Before { tensor, offset } => (tensor, offset),
            Source::Constant(value) => return Some(value),
            Source::Contested(_) | Source::Unwritten => return None,
        };
        let (of, bytes) = self.filled.entry(tensor).or_insert((u64::MAX, Vec::new()));
        if *of != execution {
            bytes.resize(tensors[tensor].size_bytes.min(MAX_FILLED_BYTES) as usize, 0);
            self.content.fill(tensor, execution, bytes);
            *of = execution;
        }
        bytes.get(offset).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use sluice_core::layout::{ArchId, PoolKind, SubsystemId};
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::capture::{BufferHeader, FileHeader, Reader, RunId, Subsystem, Writer};
    use crate::dfx::PayloadMeta;
    use crate::neff::{Neff, ReadOptions, models, pack};

    const POOL: Pool = Pool { subsystem: Subsystem::ARGS_DUMP, kind: PoolKind::SOLE, instance: 0 };

    fn expected() -> ExpectedRecords {
        let bytes = pack("gather", models::builtin("gather").unwrap()).unwrap();
        let programs = Neff::parse("gather", &bytes, &ReadOptions::default()).unwrap().programs;
        let subsystems = vec![Extent::full(SubsystemId::ArgsDump)];
        ExpectedRecords { subsystems, tpbs: 2, executions: 2, programs, seed: Some(3), ..Default::default() }
    }

    /// Every record of two executions, with its bytes.
    fn right() -> Vec<(Record, Vec<u8>)> {
        let ledger = Ledger::of(&expected(), &Extent::full(SubsystemId::ArgsDump));
        let mut contents = Contents::new(3);
        let mut records = Vec::new();
        for execution in 0..2 {
            for (&(core, ordinal), item) in &ledger.items {
                for (number, part) in item.parts.iter().enumerate() {
                    let core = CoreIndex::all(2).nth(core as usize).unwrap();
                    let bytes = part.pattern.len_bytes();
                    let record = Record {
                        task_id: TaskId::new(core, ordinal, execution).0,
                        arg_index: number as u32,
                        role: if part.is_written { Role::OUTPUT } else { Role::INPUT },
                        stage: if part.is_written { Stage::AFTER_COMPLETION } else { Stage::BEFORE_DISPATCH },
                        ndims: 1,
                        payload_size: bytes,
                        ..Record::new_zeroed()
                    };
                    let when = if part.is_written { When::After } else { When::Before };
                    let is_output = ledger.tensors[part.tensor].is_output;
                    let source = ledger.held.source(item.key, number, part, is_output, when);
                    let byte = |at| contents.byte(&ledger.tensors, execution.into(), source(at)?);
                    let bytes: Option<Vec<u8>> = (0..bytes as usize).map(byte).collect();
                    records.push((record, bytes.expect("every byte of the model is known")));
                }
            }
        }
        records
    }

    fn check(records: &[(Record, Vec<u8>)]) -> RecordCheck {
        let header = FileHeader { run: RunId(1), arch: ArchId::A5, clock_hz: 1, started_unix_ns: 0 };
        let writer = Writer::start(Vec::new(), &header).unwrap();
        for (sequence, (record, bytes)) in (0..).zip(records) {
            let mut meta = PayloadMeta {
                lane: sluice_core::layout::Lane(0),
                sequence,
                record: 0,
                task: record.task_id,
                arg_index: record.arg_index,
                stage: record.stage,
                offset_bytes: 0,
                total_bytes: bytes.len() as u64,
            };
            for piece in bytes.chunks(50_000) {
                writer.append_payload(&PayloadHeader::new(POOL, &meta), piece).unwrap();
                meta.offset_bytes += piece.len() as u64;
            }
            let header = BufferHeader::new(POOL, sequence, 1, 128);
            writer.append_buffer(&header, record.as_bytes()).unwrap();
        }
        let mut reader = Reader::new(Cursor::new(writer.into_storage())).unwrap();
        expected().check(&mut reader).unwrap()
    }

    #[test]
    fn the_right_set_is_right_and_every_change_is_noticed() {
        let right = right();
        let all = right.len() as u64;
        assert_eq!(check(&right), RecordCheck { expected: all, found: all, ..RecordCheck::default() });
        type Change = fn(&mut Vec<(Record, Vec<u8>)>, usize);
        let changes: [Change; 7] = [
            |records, at| drop(records.remove(at)),
            |records, at| records.push(records[at].clone()),
            |records, at| *records[at].1.last_mut().unwrap() ^= 1,
            |records, at| records[at].1[0] ^= 0x80,
            |records, at| records[at].1.clear(),
            |records, at| records[at].0.stage.0 ^= 1,
            |records, at| records[at].0.payload_size -= 1,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            for at in [0, right.len() / 2, right.len() - 1] {
                let mut records = right.clone();
                change(&mut records, at);
                assert!(!check(&records).is_right(), "change {number} of record {at}");
            }
        }
    }
}
