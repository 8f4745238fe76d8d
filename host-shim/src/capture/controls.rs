//! What was to be recorded from when on, put together from the notes of a session.
//!
//! ```text
//!  1 followed ─► 2 told ─► 2 followed ─► 3 told ─► 3 followed …     of each subsystem
//! ```
//!
//! A change is noted before lanes are told, so whatever was recorded by it stands behind its first note, even in a capture
//! that broke off; its second note says from when on nothing is recorded by the one before.

use core::fmt;
use std::collections::BTreeMap;

use sluice_core::layout::extension::WindowUnit;
use sluice_core::producer::{Control, RecordWindow, Span};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::payload::{Subsystem, named_number};
use crate::dfx;
use crate::report::{Change, Extent};

named_number! {
    /// How far a change of what is recorded has come.
    pub struct ControlStage {
        /// It is about to be told; some lanes may soon record by it.
        TOLD = 0, "told";
        /// Every lane records by it.
        FOLLOWED = 1, "followed";
    }
}

/// What is to be recorded of a subsystem, and when that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ControlNote {
    /// Of which.
    pub subsystem: Subsystem,
    /// Its number, counted from 1; the first is what the session began with.
    pub number: u32,
    /// How far it has come.
    pub stage: ControlStage,
    /// In the subsystem's own levels; 0 = nothing.
    pub level: u32,
    /// Every how many executions one is recorded.
    pub sample_every: u32,
    /// What the window counts.
    pub window_unit: WindowUnit,
    /// The first that is recorded.
    pub window_start: u64,
    /// The first behind it that is not.
    pub window_stop: u64,
    /// Host monotonic ns.
    pub host_ns: u64,
    /// Device counter.
    pub device_cycles: u64,
}

impl ControlNote {
    /// Describes `change`, of which the host's clock says `host_ns`.
    pub fn new(change: &dfx::Change, host_ns: u64) -> Self {
        let Control { level, sample_every, window } = change.control;
        let (window_unit, Span { from, to }) = window.words();
        Self {
            subsystem: change.subsystem.into(),
            number: change.number,
            stage: if change.is_followed { ControlStage::FOLLOWED } else { ControlStage::TOLD },
            level,
            sample_every,
            window_unit,
            window_start: from,
            window_stop: to,
            host_ns,
            device_cycles: change.at_cycles,
        }
    }

    /// As reports have it.
    pub fn extent(&self) -> Extent {
        let span = || Span { from: self.window_start, to: self.window_stop };
        let window = RecordWindow::of_words(self.window_unit, span);
        let control = Control { level: self.level, sample_every: self.sample_every, window };
        Extent::of(self.subsystem.id(), &control)
    }
}

const _: () = assert!(size_of::<ControlNote>() == 56);

/// Most changes that are kept, those of all subsystems together.
const MAX_CHANGES: usize = 1 << 12;

/// What each subsystem recorded, and when that changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    settings: BTreeMap<Subsystem, Vec<Change>>,
    kept: usize,
}

impl Controls {
    /// Adds the next note. What is wrong with it, if it does not follow those before.
    pub fn add(&mut self, note: &ControlNote) -> Option<String> {
        let &ControlNote { subsystem, number, stage, host_ns, .. } = note;
        let settings = self.settings.entry(subsystem).or_default();
        let (told_ns, extent) = (host_ns, note.extent());
        match (settings.last_mut(), stage) {
            (Some(last), ControlStage::FOLLOWED)
                if last.number == number && last.followed_ns.is_none() && last.extent == extent =>
            {
                last.followed_ns = Some(host_ns);
                return None;
            }
            (None, ControlStage::FOLLOWED) if number == 1 => {}
            (Some(last), ControlStage::TOLD) if last.number.checked_add(1) == Some(number) => {}
            (last, _) => {
                let last = last.map_or(0, |last| last.number);
                return Some(format!("{subsystem}: setting {number} ({stage}) comes behind setting {last}"));
            }
        }
        if self.kept == MAX_CHANGES {
            return Some(format!("{subsystem}: setting {number} is one too many to be followed"));
        }
        self.kept += 1;
        let followed_ns = (stage == ControlStage::FOLLOWED).then_some(host_ns);
        settings.push(Change { number, told_ns, followed_ns, extent });
        None
    }

    /// Whether nothing was noted, as in captures of older versions.
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// What a subsystem recorded at the beginning.
    pub fn first(&self, subsystem: Subsystem) -> Option<&Extent> {
        self.settings.get(&subsystem)?.first().map(|first| &first.extent)
    }

    /// What it recorded from later times on.
    pub fn changes(&self, subsystem: Subsystem) -> &[Change] {
        self.settings.get(&subsystem).and_then(|settings| settings.get(1..)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::layout::SubsystemId;

    use super::*;

    fn note(number: u32, control: Control, is_followed: bool, host_ns: u64) -> ControlNote {
        let subsystem = SubsystemId::Swimlane;
        let change = dfx::Change { subsystem, number, control, is_followed, at_cycles: host_ns };
        ControlNote::new(&change, host_ns)
    }

    #[test]
    fn settings_are_put_together_from_their_notes() {
        let window = RecordWindow::Executions(Span { from: 3, to: 9 });
        let sampled = Control { level: 2, sample_every: 5, window };
        let mut controls = Controls::default();
        for note in [
            note(1, Control::at_level(4), true, 10),
            note(2, sampled, false, 20),
            note(2, sampled, true, 21),
            note(3, Control::at_level(0), false, 30),
        ] {
            assert_eq!(controls.add(&note), None);
        }
        let said = |number, told_ns, followed_ns, extent: &str| {
            let change = controls.changes(Subsystem::SWIMLANE)[number as usize - 2].clone();
            assert_eq!((change.number, change.told_ns, change.followed_ns), (number, told_ns, followed_ns));
            assert_eq!(change.extent.to_string(), extent);
        };
        said(2, 20, Some(21), "task, one execution in 5, executions 3 to 9, the last one excluded");
        said(3, 30, None, "off");
        assert_eq!(controls.first(Subsystem::SWIMLANE).map(|extent| &*extent.level), Some("full"));
        assert_eq!((controls.first(Subsystem::PMU), controls.changes(Subsystem::PMU).len()), (None, 0));
    }

    #[test]
    fn a_note_that_is_missing_is_named() {
        let [full, off] = [4, 0].map(Control::at_level);
        let says = |notes: &[ControlNote]| {
            let mut controls = Controls::default();
            notes.iter().find_map(|note| controls.add(note))
        };
        let first = note(1, full, true, 0);
        for (notes, finding) in [
            (&[note(2, off, false, 1)][..], "swimlane: setting 2 (told) comes behind setting 0"),
            (&[first, note(3, off, false, 1)], "swimlane: setting 3 (told) comes behind setting 1"),
            (&[first, note(2, off, true, 1)], "swimlane: setting 2 (followed) comes behind setting 1"),
            (&[first, first], "swimlane: setting 1 (followed) comes behind setting 1"),
        ] {
            assert_eq!(says(notes).as_deref(), Some(finding));
        }
        let many: Vec<_> = (2..).take(MAX_CHANGES).map(|number| note(number, off, false, 1)).collect();
        let text = format!("swimlane: setting {} is one too many to be followed", MAX_CHANGES + 1);
        assert_eq!(says(&[&[first], &many[..]].concat()), Some(text));
    }
}
