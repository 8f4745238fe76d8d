//! What each item of a model waits for, as dependency records say: in words, and as arrows between tasks.
//!
//! Dependencies of an item are the same in every execution, so the first of its records that is met counts. Memory: a text
//! and some numbers per item of the manifest.

use std::collections::HashMap;
use std::io::{self, Read, Seek};

use sluice_core::exec::tasks::TaskId;

use super::super::trace::Flows;
use crate::capture::chains::chains;
use crate::capture::segment::Segment;
use crate::capture::{Kind, Manifest, Reader, Subsystem};

/// Most tasks that are named of those that an item waits for, and from which there are arrows.
const MAX_NAMED: usize = 8;

/// Core and place in its program, from 1.
type Place = (u32, u32);

/// What is known of each item.
#[derive(Default)]
pub(in super::super) struct Waits {
    texts: HashMap<Place, String>,
    /// Arrows of one execution.
    arrows: u64,
    /// Those that begin at an item and those that end there.
    ends: HashMap<Place, [Vec<u64>; 2]>,
}

impl Waits {
    /// Reads the dependency records of a capture, from its beginning, until each item is known.
    pub(in super::super) fn of<R: Read + Seek>(
        reader: &mut Reader<R>,
        manifest: &Manifest,
    ) -> io::Result<Self> {
        let mut waits = Self::default();
        let items: usize = manifest.cores.iter().map(|core| core.items.len()).sum();
        reader.rewind()?;
        while waits.texts.len() < items
            && let Some(segment) = reader.read_of(|kind| kind == Kind::BUFFER)?
        {
            let Segment::Buffer(buffer, records) = segment else { continue };
            if buffer.pool().subsystem != Subsystem::DEP_GEN {
                continue;
            }
            for task in chains(records).filter_map(Result::ok) {
                let place = place_of(task.task);
                if name_of(manifest, task.task).is_some() && !waits.texts.contains_key(&place) {
                    waits.texts.insert(place, text(manifest, &task.deps));
                    waits.draw(place, &task.deps);
                }
            }
        }
        Ok(waits)
    }

    /// What the item at that place of `core` waits for, if it is known.
    pub(super) fn of_item(&self, core: u32, ordinal: u32) -> Option<&str> {
        self.texts.get(&(core, ordinal)).map(String::as_str)
    }

    /// Arrows from what is waited for.
    fn draw(&mut self, place: Place, deps: &[TaskId]) {
        for dep in deps.iter().take(MAX_NAMED) {
            self.ends.entry(place_of(*dep)).or_default()[0].push(self.arrows);
            self.ends.entry(place).or_default()[1].push(self.arrows);
            self.arrows += 1;
        }
    }

    /// The arrows of an item in one execution.
    pub(super) fn flows(&self, core: u32, ordinal: u32, execution: u64) -> Flows {
        let Some([begin, end]) = self.ends.get(&(core, ordinal)) else { return Flows::default() };
        // 0 is no number of an arrow.
        let number = |arrow: &u64| execution.wrapping_mul(self.arrows).wrapping_add(arrow + 1);
        Flows { begin: begin.iter().map(number).collect(), end: end.iter().map(number).collect() }
    }
}

fn place_of(task: TaskId) -> Place {
    (task.core(), task.ordinal())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_an_arrow_know_its_number() {
        let mut waits = Waits::default();
        let task = |core: u64, ordinal: u64| TaskId(core << 56 | ordinal << 32);
        waits.draw((1, 1), &[task(0, 1), task(0, 2)]);
        waits.draw((0, 2), &[task(0, 1)]);
        for execution in [0, 1, 1000] {
            let first = execution * 3;
            let flows = |core, ordinal| {
                let Flows { begin, end } = waits.flows(core, ordinal, execution);
                (begin, end)
            };
            assert_eq!(flows(0, 1), (vec![first + 1, first + 3], vec![]));
            assert_eq!(flows(0, 2), (vec![first + 2], vec![first + 3]));
            assert_eq!(flows(1, 1), (vec![], vec![first + 1, first + 2]));
            assert_eq!(flows(7, 1), (vec![], vec![]));
        }
        waits.draw((2, 1), &[task(3, 1); 100]);
        assert_eq!(waits.flows(2, 1, 0).end.len(), MAX_NAMED);
    }
}
