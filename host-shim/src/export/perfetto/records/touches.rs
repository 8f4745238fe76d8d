//! What each item of a model takes and gives, as argument records say, in words.
//!
//! Arguments of an item are the same in every execution, so the first execution of which a record is met counts. Memory: two
//! texts per item of the manifest.

use std::collections::HashMap;
use std::io::{self, Read, Seek};

use sluice_core::exec::tasks::{ElementType, TaskId};
use sluice_core::layout::args_dump::{MAX_DIMS, Record, Stage};

use crate::capture::segment::Segment;
use crate::capture::{Items, Kind, Manifest, Reader, Subsystem};

/// Most arguments of an item that are named.
const MAX_NAMED: usize = 8;

/// By core and place in its program.
#[derive(Default)]
pub(in super::super) struct Touches(HashMap<(u32, u32), Arguments>);

/// Arguments of one item in one execution.
#[derive(Default)]
struct Arguments {
    execution: u32,
    /// Before the item and after it.
    named: [Vec<String>; 2],
    /// Records of another execution have been met: no more are to come.
    is_whole: bool,
    texts: [Option<String>; 2],
}

impl Touches {
    /// Reads the argument records of a capture, from its beginning, until each item is known.
    pub(in super::super) fn of<R: Read + Seek>(
        reader: &mut Reader<R>,
        manifest: &Manifest,
    ) -> io::Result<Self> {
        let mut touches = Self::default();
        let items: usize = manifest.cores.iter().map(|core| core.items.len()).sum();
        reader.rewind()?;
        while touches.0.values().filter(|arguments| arguments.is_whole).count() < items
            && let Some(segment) = reader.read_of(|kind| kind == Kind::BUFFER)?
        {
            match segment {
                Segment::Buffer(buffer, records) if buffer.pool().subsystem == Subsystem::ARGS_DUMP => {
                    Items::<Record>::new(records).for_each(|record| touches.meet(manifest, &record));
                }
                _ => {}
            }
        }
        for arguments in touches.0.values_mut() {
            arguments.texts = arguments.named.each_ref().map(|named| text(named));
        }
        Ok(touches)
    }

    fn meet(&mut self, manifest: &Manifest, record: &Record) {
        let task = TaskId(record.task_id);
        let core = manifest.cores.get(task.core() as usize);
        let place = task.ordinal().checked_sub(1);
        let Some(item) = core.zip(place).and_then(|(core, place)| core.items.get(place as usize)) else {
            return;
        };
        let execution = task.execution();
        let fresh = || Arguments { execution, ..Arguments::default() };
        let arguments = self.0.entry((task.core(), task.ordinal())).or_insert_with(fresh);
        if arguments.execution != execution {
            arguments.is_whole = true;
            return;
        }
        let after = usize::from(record.stage == Stage::AFTER_COMPLETION);
        let name = item.args.get(record.arg_index as usize).map(String::as_str);
        arguments.named[after].push(describe(name, record));
    }

    /// What the item at that place of `core` takes, and what it gives, if it is known.
    pub(super) fn of_item(&self, core: u32, ordinal: u32) -> [Option<&str>; 2] {
        match self.0.get(&(core, ordinal)) {
            Some(arguments) => arguments.texts.each_ref().map(Option::as_deref),
            None => [None; 2],
        }
    }
}

/// Such as `x: float32[16, 64], 4096 bytes recorded`.
fn describe(name: Option<&str>, record: &Record) -> String {
    let (number, bytes) = (record.arg_index, record.payload_size);
    let name = name.map_or_else(|| format!("argument {number}"), str::to_owned);
    let dtype = ElementType(record.dtype).name().unwrap_or("unknown type");
    let shape = &record.shapes[..usize::from(record.ndims).min(MAX_DIMS)];
    let cut = if record.truncated == 0 { "" } else { ", cut" };
    format!("{name}: {dtype}{shape:?}, {bytes} bytes recorded{cut}")
}

fn text(named: &[String]) -> Option<String> {
    let more = named.len().saturating_sub(MAX_NAMED);
    let named = &named[..named.len() - more];
    match (named, more) {
        ([], _) => None,
        (_, 0) => Some(named.join("; ")),
        (_, more) => Some(format!("{}; and {more} more", named.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::layout::args_dump::Role;
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn arguments_are_named_with_type_shape_and_bytes() {
        let mut record = Record { role: Role::INPUT, arg_index: 2, ndims: 2, ..Record::new_zeroed() };
        (record.shapes[0], record.shapes[1], record.payload_size) = (16, 64, 4096);
        assert_eq!(describe(Some("x"), &record), "x: float32[16, 64], 4096 bytes recorded");
        (record.dtype, record.ndims, record.payload_size, record.truncated) = (200, 99, 8, 1);
        let text = describe(None, &record);
        assert!(
            text.starts_with("argument 2: unknown type[16, 64, 0, 0, 0], 8 bytes recorded, cut"),
            "{text}"
        );
    }

    #[test]
    fn of_many_arguments_the_first_are_named() {
        let named: Vec<_> = (0..10).map(|number| number.to_string()).collect();
        assert_eq!(text(&named[..0]), None);
        assert_eq!(text(&named[..2]).as_deref(), Some("0; 1"));
        assert_eq!(text(&named).as_deref(), Some("0; 1; 2; 3; 4; 5; 6; 7; and 2 more"));
    }
}
