//! A capture as CSV: one row per record.
//!
//! ```text
//! subsystem,pool,instance,buffer_seq,index,dispatch_time,finish_time,reg_task_id,…
//! swimlane,aicpu_task,0,17,1023,88213,88540,4711,…
//! ```
//!
//! `pool` is the name of the kind of pool, `index` the record's place in its buffer. The other columns are the fields of all
//! kinds of record, under their names in the wire contract and as the device wrote them; where a record has no such field its
//! cell is empty. Three are computed for tasks: `late` (1 when the lane waited before it saw the end), `raw_cycles` from
//! dispatch to finish, and `corrected_cycles`, the same without the waits of the lane ([`stall`](super::stall)).
//!
//! Lists have blanks between their numbers. The bytes of arguments are in the capture alone.
//!
//! Buffers that stand in the capture twice come once. Buffers that no pool of the wire contract has are left out and counted.

use std::io::{self, Read, Seek, Write};
use std::mem::offset_of;

use sluice_core::layout::swimlane::{
    AicoreTaskRecord, AicpuOrchPhaseRecord, AicpuSchedPhaseRecord, AicpuTaskRecord, SchedPhaseKind,
};
use sluice_core::layout::{self, ArchId, PoolKind, Shape, SubsystemId, args_dump, dep_gen, pmu, scope_stats};
use zerocopy::FromBytes;

use super::stall::{Late, Stalls};
use crate::capture::check::layout_of;
use crate::capture::dedup::{Seen, Verdict};
use crate::capture::segment::Segment;
use crate::capture::{Items, Kind, Pool, Reader};

/// What an export came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Rows, the head not counted.
    pub rows: u64,
    /// Buffers that stood in the capture more than once and were left out.
    pub duplicates: u64,
    /// Buffers of a kind that this version does not show.
    pub not_shown: u64,
    /// Tasks whose completion was seen late.
    pub late: Late,
    /// Waits of lanes that were too many to be held against the tasks.
    pub waits_omitted: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// How a field is written.
#[derive(Clone, Copy, Debug)]
enum Form {
    U8,
    U16,
    U32,
    U64,
    I16,
    I32,
    /// A text closed by NUL, of at most so many bytes.
    Text(usize),
    /// So many numbers of 32 bits, with blanks.
    U32s(usize),
    /// Numbers of 64 bits, with blanks, as many as the 16-bit word there says and the record holds.
    U64s {
        count_at: usize,
        most: usize,
    },
    /// A number that has names; one without is written as a number.
    Named(fn(u32) -> Option<&'static str>),
}

/// A field of a record.
#[derive(Clone, Copy, Debug)]
struct Field {
    name: &'static str,
    offset: usize,
    form: Form,
}

/// The fields of one kind of record.
macro_rules! fields {
    ($record:ty: $($field:ident $(@ $index:literal)? $(as $name:literal)?: $form:expr),+ $(,)?) => {
        &[$(Field {
            name: fields!(name $field $($name)?),
            offset: offset_of!($record, $field) $(+ $index)?,
            form: $form,
        }),+]
    };
    (name $field:ident) => { stringify!($field) };
    (name $field:ident $name:literal) => { $name };
}

const TASK: &[Field] = fields!(AicpuTaskRecord:
    dispatch_time: Form::U64, finish_time: Form::U64, reg_task_id: Form::U32);
const OWN_TASK: &[Field] = fields!(AicoreTaskRecord:
    start_time: Form::U64, end_time: Form::U64, task_token_raw: Form::U64, reg_task_id: Form::U32,
    receive_to_start_cycles: Form::U32);
const SCHED_PHASE: &[Field] = fields!(AicpuSchedPhaseRecord:
    start_time: Form::U64, end_time: Form::U64, loop_iter: Form::U32,
    kind: Form::Named(|kind| SchedPhaseKind(kind).name()), tasks_processed: Form::U32,
    phase_data @ 0 as "phase_data_0": Form::U32, phase_data @ 4 as "phase_data_1": Form::U32);
const SUBMIT: &[Field] = fields!(AicpuOrchPhaseRecord:
    start_time: Form::U64, end_time: Form::U64, task_id: Form::U64, submit_idx: Form::U32);
const SCOPE: &[Field] = fields!(scope_stats::Record:
    site_file_basename: Form::Text(scope_stats::SITE_BYTES), site_line: Form::I32, heap_start: Form::U64,
    heap_end: Form::U64, task_start: Form::I32, task_end: Form::I32, dep_pool_start: Form::I32,
    dep_pool_end: Form::I32, tensormap_used: Form::I32, depth: Form::I16, ring_id: Form::I16, phase: Form::I16);

const DEPENDENCIES: &[Field] = fields!(dep_gen::Record:
task_id: Form::U64, flags: Form::U32, tensor_count: Form::U16, block_num: Form::U32,
kernel_id @ 0 as "kernel_id_0": Form::I32, kernel_id @ 4 as "kernel_id_1": Form::I32,
kernel_id @ 8 as "kernel_id_2": Form::I32,
explicit_deps as "deps": Form::U64s {
    count_at: offset_of!(dep_gen::Record, explicit_dep_count),
    most: dep_gen::MAX_EXPLICIT_DEPS,
});
const MORE_DEPENDENCIES: &[Field] = fields!(dep_gen::OverflowRecord:
task_id: Form::U64, flags: Form::U32,
deps: Form::U64s {
    count_at: offset_of!(dep_gen::OverflowRecord, dep_count),
    most: dep_gen::OVERFLOW_DEPS,
});
const ARGUMENT: &[Field] = fields!(args_dump::Record:
    task_id: Form::U64, role: Form::U8, stage: Form::U8, ndims: Form::U8, arg_index: Form::U32, dtype: Form::U8,
    truncated: Form::U8, is_contiguous: Form::U8, payload_offset: Form::U64, payload_size: Form::U64,
    scalar_value: Form::U64, kind as "arg_kind": Form::U8, flags as "arg_flags": Form::U8,
    start_offset: Form::U64, strides: Form::U32s(args_dump::MAX_DIMS), shapes: Form::U32s(args_dump::MAX_DIMS));

/// The counters of either architecture; a5 has two more.
macro_rules! counts {
    ($arch:ident $(, $more:ident)*) => {
        fields!(pmu::$arch::Record:
            task_id: Form::U64, func_id: Form::U32,
            core_type: Form::Named(|kind| pmu::CoreType(kind).name()), pmu_total_cycles: Form::U64,
            pmu_counters @ 0 as "pmu_counter_0": Form::U32, pmu_counters @ 4 as "pmu_counter_1": Form::U32,
            pmu_counters @ 8 as "pmu_counter_2": Form::U32, pmu_counters @ 12 as "pmu_counter_3": Form::U32,
            pmu_counters @ 16 as "pmu_counter_4": Form::U32, pmu_counters @ 20 as "pmu_counter_5": Form::U32,
            pmu_counters @ 24 as "pmu_counter_6": Form::U32, pmu_counters @ 28 as "pmu_counter_7": Form::U32
            $(, pmu_counters @ 32 as "pmu_counter_8": $more::U32, pmu_counters @ 36 as "pmu_counter_9": $more::U32)*)
    };
}
const COUNTS_A2A3: &[Field] = counts!(a2a3);
const COUNTS_A5: &[Field] = counts!(a5, Form);

/// Every kind of record, in the order in which their fields make columns.
const ALL: &[&[Field]] =
    &[TASK, OWN_TASK, SCHED_PHASE, SUBMIT, COUNTS_A5, DEPENDENCIES, MORE_DEPENDENCIES, ARGUMENT, SCOPE];
/// Columns before the fields, and those that are computed.
const FIRST: &str = "subsystem,pool,instance,buffer_seq,index";
const COMPUTED: &str = "late,raw_cycles,corrected_cycles";

/// The fields of `record` of a pool, where this version knows them.
fn fields_of(arch: ArchId, pool: Pool, record: &[u8]) -> Option<&'static [Field]> {
    Some(match (pool.subsystem.id()?, pool.kind) {
        (SubsystemId::Swimlane, PoolKind::AICPU_TASK) => TASK,
        (SubsystemId::Swimlane, PoolKind::AICORE_TASK) => OWN_TASK,
        (SubsystemId::Swimlane, PoolKind::SCHED_PHASE) => SCHED_PHASE,
        (SubsystemId::Swimlane, PoolKind::ORCH_PHASE) => SUBMIT,
        (SubsystemId::Pmu, _) if arch == ArchId::A2a3 => COUNTS_A2A3,
        (SubsystemId::Pmu, _) => COUNTS_A5,
        (SubsystemId::DepGen, _) => {
            let flags = record.get(offset_of!(dep_gen::Record, flags)..)?.first_chunk()?;
            let flags = dep_gen::RecordFlags::from_bits_retain(u32::from_le_bytes(*flags));
            let is_more = flags.contains(dep_gen::RecordFlags::IS_OVERFLOW);
            if is_more { MORE_DEPENDENCIES } else { DEPENDENCIES }
        }
        (SubsystemId::ArgsDump, _) => ARGUMENT,
        (SubsystemId::ScopeStats, _) => SCOPE,
        _ => return None,
    })
}

/// The names of all fields, each once.
fn columns() -> Vec<&'static str> {
    let mut columns = Vec::new();
    for field in ALL.iter().copied().flatten() {
        if !columns.contains(&field.name) {
            columns.push(field.name);
        }
    }
    columns
}

fn find(fields: &'static [Field], name: &str) -> Option<&'static Field> {
    fields.iter().find(|field| field.name == name)
}

/// The name of a kind of pool, as `--buffers` knows it.
fn pool_name(arch: ArchId, pool: Pool) -> &'static str {
    let region = pool.subsystem.id().map(|subsystem| layout::region(subsystem, Shape::full(arch)));
    region.and_then(|region| region.array(pool.kind).map(|array| array.name)).unwrap_or("unknown")
}

/// Writes the rows of a capture. The reader is rewound first.
///
/// # Errors
/// What the system says about reading and writing.
pub fn write<R: Read + Seek, W: Write>(reader: &mut Reader<R>, out: W) -> io::Result<Exported> {
    let arch = reader.header().arch;
    let mut cores = Vec::new();
    reader.rewind()?;
    while let Some(segment) = reader.read_of(|kind| kind == Kind::MANIFEST)? {
        if let Segment::Manifest(manifest) = segment {
            cores = manifest.cores;
            break;
        }
    }
    let stalls = Stalls::read(reader, &cores)?;
    let columns = columns();
    let mut rows = Rows { out, row: Vec::new(), exported: Exported::default() };
    rows.row.extend(FIRST.bytes());
    for name in &columns {
        rows.row.push(b',');
        rows.row.extend(name.bytes());
    }
    write!(rows.row, ",{COMPUTED}")?;
    rows.end()?;
    let mut seen = Seen::default();
    reader.rewind()?;
    while let Some(segment) = reader.read_of(|kind| kind == Kind::BUFFER)? {
        let Segment::Buffer(buffer, records) = segment else { continue };
        let pool = buffer.pool();
        match seen.admit(pool, buffer.buffer_seq) {
            Verdict::New => {}
            Verdict::Duplicate => {
                rows.exported.duplicates += 1;
                continue;
            }
            Verdict::Scattered => {
                rows.exported.not_shown += 1;
                continue;
            }
        }
        let is_whole =
            layout_of(arch, pool).is_some_and(|layout| layout.record_bytes == buffer.record_bytes as usize);
        if !is_whole {
            rows.exported.not_shown += 1;
            continue;
        }
        let front =
            format!("{},{},{},{},", pool.subsystem, pool_name(arch, pool), pool.instance, buffer.buffer_seq);
        for (record, index) in records.chunks_exact(buffer.record_bytes as usize).zip(0..) {
            let fields = fields_of(arch, pool, record).unwrap_or_default();
            rows.record(&front, index, record, columns.iter().map(|name| find(fields, name)))?;
            if pool.kind == PoolKind::AICPU_TASK && pool.subsystem.id() == Some(SubsystemId::Swimlane) {
                rows.task(pool.instance, record, &stalls)?;
            } else {
                rows.row.extend(b",,,");
            }
            rows.end()?;
            rows.exported.rows += 1;
        }
    }
    rows.out.flush()?;
    Ok(Exported { waits_omitted: stalls.omitted(), ..rows.exported })
}

/// Rows on their way out.
struct Rows<W> {
    out: W,
    row: Vec<u8>,
    exported: Exported,
}

impl<W: Write> Rows<W> {
    fn record(
        &mut self,
        front: &str,
        index: u32,
        record: &[u8],
        cells: impl Iterator<Item = Option<&'static Field>>,
    ) -> io::Result<()> {
        self.row.extend(front.bytes());
        write!(self.row, "{index}")?;
        for cell in cells {
            self.row.push(b',');
            if let Some(field) = cell {
                put(&mut self.row, record, field)?;
            }
        }
        Ok(())
    }

    fn task(&mut self, core: u32, record: &[u8], stalls: &Stalls) -> io::Result<()> {
        let Ok(task) = AicpuTaskRecord::read_from_bytes(record) else { return Ok(()) };
        let raw_cycles = task.finish_time.saturating_sub(task.dispatch_time);
        match stalls.of(core, &task) {
            Some(late) => {
                self.exported.late.add(late);
                write!(self.row, ",1,{},{}", late.raw_cycles, late.corrected_cycles)
            }
            None => write!(self.row, ",0,{raw_cycles},{raw_cycles}"),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.row.push(b'\n');
        self.out.write_all(&self.row)?;
        self.exported.bytes += self.row.len() as u64;
        self.row.clear();
        Ok(())
    }
}

/// Writes a field of `record`; nothing where the record ends before it does.
fn put(row: &mut Vec<u8>, record: &[u8], field: &Field) -> io::Result<()> {
    let bytes = record.get(field.offset..).unwrap_or_default();
    macro_rules! number {
        ($type:ty) => {
            match <$type>::read_from_prefix(bytes) {
                Ok((number, _)) => write!(row, "{number}"),
                Err(_) => Ok(()),
            }
        };
    }
    match field.form {
        Form::U8 => number!(u8),
        Form::U16 => number!(u16),
        Form::U32 => number!(u32),
        Form::U64 => number!(u64),
        Form::I16 => number!(i16),
        Form::I32 => number!(i32),
        Form::U32s(count) => list(row, Items::<u32>::new(bytes).take(count)),
        Form::U64s { count_at, most } => {
            let count = record.get(count_at..).and_then(|count| count.first_chunk());
            let count = count.map_or(0, |count| u16::from_le_bytes(*count)).into();
            list(row, Items::<u64>::new(bytes).take(most.min(count)))
        }
        Form::Named(name) => match u32::read_from_prefix(bytes) {
            Ok((number, _)) => match name(number) {
                Some(name) => write!(row, "{name}"),
                None => write!(row, "{number}"),
            },
            Err(_) => Ok(()),
        },
        Form::Text(most) => {
            let text = bytes.iter().take(most).take_while(|&&byte| byte != 0);
            // Nothing that ends a cell or a row stands in it, whatever the device wrote.
            let plain =
                |&byte: &u8| if byte.is_ascii_graphic() && !b",\"".contains(&byte) { byte } else { b'?' };
            row.extend(text.map(plain));
            Ok(())
        }
    }
}

fn list<T: std::fmt::Display>(row: &mut Vec<u8>, numbers: impl Iterator<Item = T>) -> io::Result<()> {
    for (number, place) in numbers.zip(0..) {
        write!(row, "{}{number}", if place == 0 { "" } else { " " })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::stall::tests::{Tale, task};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::capture::Subsystem;

    /// Rows as maps of what is in their cells, in order.
    fn rows(tale: Tale) -> (Vec<Vec<(String, String)>>, Exported) {
        let mut out = Vec::new();
        let exported = write(&mut tale.reader(), &mut out).unwrap();
        assert_eq!(exported.bytes, out.len() as u64);
        let text = String::from_utf8(out).unwrap();
        let mut lines = text.lines();
        let names: Vec<_> = lines.next().unwrap().split(',').map(str::to_owned).collect();
        let row = |line: &str| {
            let cells: Vec<_> = line.split(',').map(str::to_owned).collect();
            assert_eq!(cells.len(), names.len(), "{line}");
            names.iter().cloned().zip(cells).filter(|(_, cell)| !cell.is_empty()).collect()
        };
        (lines.map(row).collect(), exported)
    }

    fn cells(text: &str) -> Vec<(String, String)> {
        let cell = |cell: &str| {
            let (name, value) = cell.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        };
        text.split(' ').map(cell).collect()
    }

    #[test]
    fn a_record_is_a_row_and_a_late_task_has_both_durations() {
        let tale = Tale::begin()
            .tasks(0, 7, &[task(1, 0, 300), task(2, 300, 400)])
            .wait(Subsystem::PMU, 1, 100, 200)
            .tasks(0, 7, &[task(1, 0, 300)])
            .owns(0, 0, &[(1, 10, 120)]);
        let (rows, exported) = rows(tale);
        let front = "subsystem=swimlane pool=aicpu_task instance=0 buffer_seq=7";
        let expected = [
            format!(
                "{front} index=0 dispatch_time=0 finish_time=300 reg_task_id=1 late=1 raw_cycles=300 \
                 corrected_cycles=220"
            ),
            format!(
                "{front} index=1 dispatch_time=300 finish_time=400 reg_task_id=2 late=0 raw_cycles=100 \
                 corrected_cycles=100"
            ),
            "subsystem=swimlane pool=aicore_task instance=0 buffer_seq=0 index=0 reg_task_id=1 start_time=10 \
             end_time=120 task_token_raw=0 receive_to_start_cycles=0"
                .to_owned(),
        ];
        assert_eq!(rows, expected.map(|row| cells(&row)));
        let late = Late { tasks: 1, raw_cycles: 300, corrected_cycles: 220 };
        assert_eq!((exported.rows, exported.duplicates, exported.late), (3, 1, late));
    }

    #[test]
    fn every_recorded_kind_has_its_fields_inside_its_record() {
        for arch in ArchId::ALL {
            for &subsystem in crate::dfx::RECORDED {
                for array in layout::region(subsystem, Shape::full(arch)).arrays() {
                    let pool = Pool { subsystem: subsystem.into(), kind: array.kind, instance: 0 };
                    let slot = vec![0; array.buffer.record_bytes];
                    let fields = fields_of(arch, pool, &slot).expect("a table");
                    for field in fields {
                        let bytes = match field.form {
                            Form::U8 => 1,
                            Form::U16 | Form::I16 => 2,
                            Form::U32s(count) => 4 * count,
                            Form::U64s { most, .. } => 8 * most,
                            Form::U32 | Form::I32 | Form::Named(_) => 4,
                            Form::U64 => 8,
                            Form::Text(most) => most,
                        };
                        let fits = field.offset + bytes <= array.buffer.record_bytes;
                        assert!(fits && columns().contains(&field.name), "{field:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn lists_are_as_long_as_the_record_says_and_can_hold() {
        let form = Form::U64s { count_at: 0, most: 2 };
        let field = Field { name: "deps", offset: 8, form };
        for (count, expected) in [(0, ""), (1, "7"), (2, "7 8"), (u64::from(u16::MAX), "7 8")] {
            let mut row = Vec::new();
            put(&mut row, [count, 7, 8, 9].as_bytes(), &field).unwrap();
            assert_eq!(row, expected.as_bytes());
        }
        let pool = Pool { subsystem: Subsystem::DEP_GEN, kind: PoolKind::SOLE, instance: 0 };
        let names = |flags: u64| {
            let fields = fields_of(ArchId::A5, pool, [0, flags].as_bytes()).unwrap();
            fields.iter().map(|field| field.name).collect::<Vec<_>>()
        };
        assert!(names(0).contains(&"kernel_id_0"));
        assert_eq!(names(4), ["task_id", "flags", "deps"], "the rest of the slot is dependencies");
    }

    #[test]
    fn a_text_of_the_device_ends_no_cell() {
        let mut row = Vec::new();
        let field = Field { name: "site", offset: 1, form: Form::Text(9) };
        put(&mut row, b"-a,b\n\"c\"\0d", &field).unwrap();
        assert_eq!(row, b"a?b??c?");
    }
}
