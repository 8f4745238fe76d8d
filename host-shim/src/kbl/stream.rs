//! Notification records of one engine, followed as a state machine.
//!
//! ```text
//!                 start(n)                end(n)
//!   START_PENDING ────────► END_PENDING ─────────► COMPLETE = START_PENDING of n + 1
//! ```
//!
//! A record is what the device claims. One that does not come next in this picture is not believed: it marks the
//! execution that was due as disordered. If it is the start of a later execution that has been kicked off, the machine
//! goes on from there, so that one lost record spoils one execution only.

use std::fmt;

use sluice_core::exec::{Notification, SubType};

/// What an engine has said about one execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineState {
    /// No start yet.
    StartPending,
    /// Started.
    EndPending,
    /// Ended.
    Complete,
}

impl fmt::Display for EngineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StartPending => "START_PENDING",
            Self::EndPending => "END_PENDING",
            Self::Complete => "COMPLETE",
        })
    }
}

/// A record as it was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// What it says.
    pub sub_type: SubType,
    /// Low half of the ordinal of the execution that it is about.
    pub custom_id: u16,
    /// When, in cycles of the device.
    pub time_cycles: u64,
}

impl From<&Notification> for Received {
    fn from(record: &Notification) -> Self {
        Self { sub_type: record.sub_type(), custom_id: record.custom_id(), time_cycles: record.time_cycles() }
    }
}

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sub_type: SubType(sub_type), custom_id, time_cycles } = self;
        write!(f, "sub-type {sub_type}, id {custom_id}, at cycle {time_cycles}")
    }
}

/// What a record says, once it is believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    Start,
    End,
}

/// What became of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Accepted {
    /// The execution whose record should have come instead.
    pub(super) disordered: Option<u32>,
    /// What it says of which execution.
    pub(super) event: Option<(u32, Event)>,
}

/// The machine of one engine. Ordinals count the executions of a TPB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    ordinal: u32,
    started: bool,
    last: Option<Received>,
}

impl Stream {
    /// A machine whose next record is the start of execution `ordinal`.
    pub(super) fn starting_at(ordinal: u32) -> Self {
        Self { ordinal, started: false, last: None }
    }

    /// Takes the next record; executions before `kicked` may have started.
    pub(super) fn accept(&mut self, record: &Notification, kicked: u32) -> Accepted {
        let received = Received::from(record);
        self.last = Some(received);
        let (due, ordinal) = (if self.started { Event::End } else { Event::Start }, self.ordinal);
        let said = match received.sub_type {
            SubType::START => Event::Start,
            SubType::END => Event::End,
            // Custom and collective records say nothing about the program.
            SubType(6..=8) => return Accepted { disordered: None, event: None },
            _ => return Accepted { disordered: Some(ordinal), event: None },
        };
        if said == due && received.custom_id == ordinal as u16 && ordinal != kicked {
            self.advance(ordinal, said);
            return Accepted { disordered: None, event: Some((ordinal, said)) };
        }
        let ahead = u32::from(received.custom_id.wrapping_sub(ordinal as u16));
        let later = ordinal.wrapping_add(ahead);
        let event = (said == Event::Start && ahead > 0 && ahead < kicked.wrapping_sub(ordinal)).then(|| {
            self.advance(later, said);
            (later, said)
        });
        Accepted { disordered: Some(ordinal), event }
    }

    /// Gives up on execution `ordinal`, if it is not past it.
    pub(super) fn skip_past(&mut self, ordinal: u32) {
        if self.state_of(ordinal) != EngineState::Complete {
            (self.ordinal, self.started) = (ordinal.wrapping_add(1), false);
        }
    }

    /// What was said about execution `ordinal`.
    pub(super) fn state_of(&self, ordinal: u32) -> EngineState {
        // Executions in flight are few, so half the range tells before from after.
        match ordinal.wrapping_sub(self.ordinal) as i32 {
            0 if self.started => EngineState::EndPending,
            0.. => EngineState::StartPending,
            _ => EngineState::Complete,
        }
    }

    /// The record that came last.
    pub(super) fn last(&self) -> Option<Received> {
        self.last
    }

    fn advance(&mut self, ordinal: u32, event: Event) {
        (self.ordinal, self.started) = match event {
            Event::Start => (ordinal, true),
            Event::End => (ordinal.wrapping_add(1), false),
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluice_core::mmio::Engine;

    use super::*;

    fn record(ordinal: u32, sub_type: u16) -> Notification {
        Notification::status(Engine::Dve, ordinal, SubType(sub_type), 7)
    }

    fn fine(ordinal: u32, event: Event) -> Accepted {
        Accepted { disordered: None, event: Some((ordinal, event)) }
    }

    #[test]
    fn a_start_and_an_end_complete_an_execution_across_both_wraps() {
        for first in [0, 0xFFFF, u32::MAX] {
            let mut stream = Stream::starting_at(first);
            let second = first.wrapping_add(1);
            let kicked = first.wrapping_add(2);
            assert_eq!(stream.state_of(first), EngineState::StartPending);
            assert_eq!(stream.accept(&record(first, 2), kicked), fine(first, Event::Start));
            assert_eq!(stream.state_of(first), EngineState::EndPending);
            assert_eq!(stream.accept(&record(first, 3), kicked), fine(first, Event::End));
            assert_eq!(stream.state_of(first), EngineState::Complete);
            assert_eq!(stream.state_of(second), EngineState::StartPending);
            assert_eq!(stream.accept(&record(second, 2), kicked), fine(second, Event::Start));
        }
    }

    #[test]
    fn other_sub_types_pass_and_unknown_ones_are_disorder() {
        let mut stream = Stream::starting_at(4);
        for sub_type in 6..=8 {
            let accepted = stream.accept(&record(4, sub_type), 5);
            assert_eq!(accepted, Accepted { disordered: None, event: None });
        }
        for sub_type in [0, 1, 4, 9, 0xFFFF] {
            let accepted = stream.accept(&record(4, sub_type), 5);
            assert_eq!(accepted, Accepted { disordered: Some(4), event: None });
        }
        assert_eq!(stream.last().unwrap().sub_type, SubType(0xFFFF));
    }

    #[test]
    fn a_lost_end_spoils_its_execution_only() {
        let mut stream = Stream::starting_at(0);
        stream.accept(&record(0, 2), 2);
        let accepted = stream.accept(&record(1, 2), 2);
        assert_eq!(accepted, Accepted { disordered: Some(0), event: Some((1, Event::Start)) });
        assert_eq!(stream.accept(&record(1, 3), 2), fine(1, Event::End));
    }

    #[test]
    fn records_of_executions_that_were_not_kicked_off_move_nothing() {
        let mut stream = Stream::starting_at(3);
        for (ordinal, sub_type) in [(3, 2), (4, 2), (3, 3)] {
            let accepted = stream.accept(&record(ordinal, sub_type), 3);
            assert_eq!(accepted, Accepted { disordered: Some(3), event: None });
        }
        assert_eq!(stream.state_of(3), EngineState::StartPending);
    }

    #[test]
    fn giving_up_goes_on_with_the_next() {
        let mut stream = Stream::starting_at(0);
        stream.accept(&record(0, 2), 3);
        stream.skip_past(0);
        assert_eq!(stream.state_of(0), EngineState::Complete);
        stream.skip_past(0);
        assert_eq!(stream.accept(&record(1, 2), 3), fine(1, Event::Start));
    }

    proptest! {
        #[test]
        fn whatever_arrives_the_machine_stays_within_what_was_kicked_off(
            first: u32,
            in_flight in 0u32..70,
            records in prop::collection::vec((any::<u16>(), 0u16..5), 0..100),
        ) {
            let kicked = first.wrapping_add(in_flight);
            let mut stream = Stream::starting_at(first);
            for (id, sub_type) in records {
                // Half of the ids near what is in flight, so that some are believed.
                let id = if id & 1 == 0 { (first as u16).wrapping_add(id % 80) } else { id };
                stream.accept(&record(u32::from(id), sub_type), kicked);
                prop_assert!(stream.ordinal.wrapping_sub(first) <= in_flight);
                prop_assert!(!stream.started || stream.ordinal != kicked);
            }
        }
    }
}
