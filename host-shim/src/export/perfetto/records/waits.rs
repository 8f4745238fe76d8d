//! What each item of a model waits for, as dependency records say, in words.
//!
//! Dependencies of an item are the same in every execution, so the first of its records that is met counts. Memory: a text
//! per item of the manifest.

use std::collections::HashMap;
use std::io::{self, Read, Seek};

use sluice_core::exec::tasks::TaskId;

use crate::capture::chains::chains;
use crate::capture::segment::Segment;
use crate::capture::{Kind, Manifest, Reader, Subsystem};

/// Most tasks that are named of those that an item waits for.
const MAX_NAMED: usize = 8;

/// By core and place in its program.
#[derive(Default)]
pub(in super::super) struct Waits(HashMap<(u32, u32), String>);

impl Waits {
    /// Reads the dependency records of a capture, from its beginning, until each item is known.
    pub(in super::super) fn of<R: Read + Seek>(
        reader: &mut Reader<R>,
        manifest: &Manifest,
    ) -> io::Result<Self> {
        let mut waits = Self::default();
        let items: usize = manifest.cores.iter().map(|core| core.items.len()).sum();
        reader.rewind()?;
        while waits.0.len() < items
            && let Some(segment) = reader.read_of(|kind| kind == Kind::BUFFER)?
        {
            let Segment::Buffer(buffer, records) = segment else { continue };
            if buffer.pool().subsystem != Subsystem::DEP_GEN {
                continue;
            }
            for task in chains(records).filter_map(Result::ok) {
                let place = (task.task.core(), task.task.ordinal());
                if name_of(manifest, task.task).is_some() {
                    waits.0.entry(place).or_insert_with(|| text(manifest, &task.deps));
                }
            }
        }
        Ok(waits)
    }

    /// What the item at that place of `core` waits for, if it is known.
    pub(super) fn of_item(&self, core: u32, ordinal: u32) -> Option<&str> {
        self.0.get(&(core, ordinal)).map(String::as_str)
    }
}

fn name_of(manifest: &Manifest, task: TaskId) -> Option<String> {
    let core = manifest.cores.get(task.core() as usize)?;
    let item = core.items.get(task.ordinal().checked_sub(1)? as usize)?;
    Some(format!("{} ({})", item.name, core.name))
}

fn text(manifest: &Manifest, deps: &[TaskId]) -> String {
    let name = |&dep: &TaskId| name_of(manifest, dep).unwrap_or_else(|| dep.to_string());
    let mut names: Vec<_> = deps.iter().take(MAX_NAMED).map(name).collect();
    if deps.len() > MAX_NAMED {
        names.push(format!("and {} more", deps.len() - MAX_NAMED));
    }
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}
