//! PMU records: one per work item and execution, in the pool of its core.
//!
//! | field | want |
//! |---|---|
//! | task id | `core << 32 \| token`, each of the core's tokens 1, 2, … n once |
//! | function | the kernel of the item |
//! | core type | by the core's engine |
//! | total | anything: it is measured |
//! | counters | what an agent counts for the event of each slot; 0 in slots without one |

use sluice_core::exec::CoreIndex;
use sluice_core::layout::ArchId;
use sluice_core::layout::pmu::{CoreType, a2a3, a5};
use sluice_core::layout::pmu_events::{Counted, Event, event_group};
use sluice_core::mmio::{Engine, TpbId};

use super::{Expectation, ExpectedItem, ExpectedRecords, Extent, Once, RecordCheck};
use crate::capture::{Items, Pool};

/// What has been met of each core.
pub(super) struct Ledger {
    arch: ArchId,
    events: &'static [Event],
    cores: Vec<Core>,
}

struct Core {
    number: u32,
    core_type: CoreType,
    items: Vec<ExpectedItem>,
    tasks: Once,
}

/// A record of either architecture.
struct Record {
    task_id: u64,
    kernel: u32,
    core_type: CoreType,
    total_cycles: u64,
    counters: Vec<u32>,
}

impl Ledger {
    pub(super) fn of(run: &ExpectedRecords, extent: &Extent, arch: ArchId) -> Self {
        let cores = run.cores.iter().map(|core| Core {
            number: core.core,
            core_type: core_type(core.core),
            items: core.items.clone(),
            tasks: Once::of_executions(run.executions, core.items.len() as u64, |execution, _| {
                extent.has(execution)
            }),
        });
        let events = event_group(arch, run.event_group).map_or(&[][..], |group| group.events);
        Self { arch, events, cores: cores.collect() }
    }
}

/// The kind of core that `number` counts.
fn core_type(number: u32) -> CoreType {
    let engine = CoreIndex::all(TpbId::COUNT).nth(number as usize).map(CoreIndex::engine);
    if engine == Some(Engine::Pe) { CoreType::AIC } else { CoreType::AIV }
}

fn records(arch: ArchId, bytes: &[u8]) -> Vec<Record> {
    macro_rules! of {
        ($arch:ident) => {
            Items::<$arch::Record>::new(bytes)
                .map(|record| Record {
                    task_id: record.task_id,
                    kernel: record.func_id,
                    core_type: record.core_type,
                    total_cycles: record.pmu_total_cycles,
                    counters: record.pmu_counters.to_vec(),
                })
                .collect()
        };
    }
    match arch {
        ArchId::A2a3 => of!(a2a3),
        ArchId::A5 => of!(a5),
    }
}

/// What a counter reads after an item that took `total_cycles`.
fn count(counted: Counted, item: &ExpectedItem, total_cycles: u64) -> u32 {
    match counted {
        Counted::Cycles => total_cycles as u32,
        Counted::Pairs => item.pairs,
        Counted::Bytes => item.bytes as u32,
        Counted::Items => 1,
        Counted::Nothing => 0,
    }
}

impl Expectation for Ledger {
    fn count(&self) -> u64 {
        self.cores.iter().map(|core| core.tasks.count).sum()
    }

    fn meet(&mut self, pool: Pool, bytes: &[u8], check: &mut RecordCheck) {
        let Some(core) = self.cores.iter_mut().find(|core| core.number == pool.instance) else {
            return check.find(|| format!("{pool}: records of a core that has no work"));
        };
        for record in records(self.arch, bytes) {
            let (of_core, token) = ((record.task_id >> 32) as u32, record.task_id as u32);
            let number = u64::from(token).checked_sub(1).filter(|_| of_core == core.number);
            let Some(number) = number.filter(|&number| core.tasks.meet(number)) else {
                check.find(|| format!("{pool}: task {:#x} is not expected, or here again", record.task_id));
                continue;
            };
            let item = &core.items[(number % core.items.len() as u64) as usize];
            if (record.kernel, record.core_type) != (item.kernel, core.core_type) {
                check.find(|| {
                    format!(
                        "{pool}: token {token} is of kernel {} on {}, want {} on {}",
                        record.kernel, record.core_type, item.kernel, core.core_type
                    )
                });
            }
            for (slot, &found) in record.counters.iter().enumerate() {
                let event = self.events.iter().find(|event| event.slot == slot);
                let want = event.map_or(0, |event| count(event.agent, item, record.total_cycles));
                if found != want {
                    let name = event.map_or("no event", |event| event.name);
                    check.find(|| format!("{pool}: token {token} counts {found} of {name}, want {want}"));
                }
            }
        }
    }

    fn close(&self, check: &mut RecordCheck) {
        for core in self.cores.iter().filter(|core| core.tasks.missing() > 0) {
            check.find(|| {
                let (missing, expected) = (core.tasks.missing(), core.tasks.count);
                format!("counters of core {}: {missing} of {expected} records are not there", core.number)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use sluice_core::layout::{PoolKind, SubsystemId};
    use zerocopy::{FromZeros, IntoBytes};

    use super::super::ExpectedCore;
    use super::*;
    use crate::capture::{BufferHeader, FileHeader, Reader, RunId, Subsystem, Writer};

    const MEMORY: u32 = 4;

    /// PE of TPB 1, which is core 5: two items, over three executions.
    fn expected() -> ExpectedRecords {
        let item = |kernel| ExpectedItem { kernel, pairs: 10 * kernel, bytes: 100 };
        ExpectedRecords {
            subsystems: vec![Extent::full(SubsystemId::Pmu)],
            cores: vec![ExpectedCore { core: 5, lane: 0, items: vec![item(1), item(2)] }],
            tpbs: 2,
            executions: 3,
            event_group: MEMORY,
            ..ExpectedRecords::default()
        }
    }

    fn right() -> Vec<a2a3::Record> {
        let record = |token: u32| {
            let kernel = (token - 1) % 2 + 1;
            a2a3::Record {
                task_id: 5 << 32 | u64::from(token),
                func_id: kernel,
                core_type: CoreType::AIC,
                pmu_total_cycles: 77,
                pmu_counters: [10 * kernel; 8],
                ..FromZeros::new_zeroed()
            }
        };
        (1..=6).map(record).collect()
    }

    fn check(instance: u32, records: &[a2a3::Record]) -> RecordCheck {
        let header = FileHeader { run: RunId(1), arch: ArchId::A2a3, clock_hz: 1, started_unix_ns: 0 };
        let writer = Writer::start(Vec::new(), &header).unwrap();
        let pool = Pool { subsystem: Subsystem::PMU, kind: PoolKind::SOLE, instance };
        let header = BufferHeader::new(pool, 0, records.len() as u32, size_of::<a2a3::Record>() as u32);
        writer.append_buffer(&header, records.as_bytes()).unwrap();
        expected().check(&mut Reader::new(Cursor::new(writer.into_storage())).unwrap()).unwrap()
    }

    #[test]
    fn the_right_set_is_right() {
        assert_eq!(check(5, &right()), RecordCheck { expected: 6, found: 6, ..RecordCheck::default() });
    }

    #[test]
    fn what_is_wrong_is_named() {
        let says = |change: fn(&mut Vec<a2a3::Record>)| {
            let mut records = right();
            change(&mut records);
            check(5, &records).findings.join("; ")
        };
        let missing = "counters of core 5: 1 of 6 records are not there";
        assert_eq!(says(|records| _ = records.pop()), missing);
        let again = "pmu[5]: task 0x500000001 is not expected, or here again";
        assert_eq!(says(|records| records.push(records[0])), again);
        let other = format!("pmu[5]: task 0x400000001 is not expected, or here again; {missing}");
        assert_eq!(says(|records| records[0].task_id = 4 << 32 | 1), other);
        assert_eq!(
            says(|records| records[1].func_id = 1),
            "pmu[5]: token 2 is of kernel 1 on aic, want 2 on aic"
        );
        assert_eq!(
            says(|records| records[1].core_type = CoreType::AIV),
            "pmu[5]: token 2 is of kernel 2 on aiv, want 2 on aic"
        );
        assert_eq!(
            says(|records| records[2].pmu_counters[7] = 11),
            "pmu[5]: token 3 counts 11 of main_write_req, want 10"
        );
        assert_eq!(check(6, &right()).findings[0], "pmu[6]: records of a core that has no work");
    }
}
