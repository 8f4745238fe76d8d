//! A wire to the other side: any `embedded-hal` output pin as a doorbell or as an attention line.
//!
//! ```text
//!   doorbell    ────┐      ┌──────┐      ┌──      every ring is an edge; the receiver takes both edges
//!                   └──────┘      └──────┘
//!   attention   ────┐                    ┌──      from raise to lower (here active low); the receiver takes the level
//!                   └────────────────────┘
//! ```
//!
//! A line carries no data. It ends the other side's sleep early, and what there is to find stands in memory: the words are
//! stored first, then the line is driven, behind a memory barrier. A pin that can't be driven costs the other side its
//! bounded sleep and nothing else, so it is counted and not an error of whoever rings.

use embedded_hal::digital::{OutputPin, PinState};

use crate::mem::barrier;

/// A pin and the level it was last driven to.
#[derive(Debug)]
struct Driven<P> {
    pin: P,
    level: PinState,
    failures: u32,
}

impl<P: OutputPin> Driven<P> {
    fn new(pin: P, level: PinState) -> Self {
        let mut driven = Self { pin, level, failures: 0 };
        driven.drive(level);
        driven
    }

    /// Drives the pin behind everything stored before. On failure the level counts as unchanged.
    fn drive(&mut self, level: PinState) {
        barrier();
        match self.pin.set_state(level) {
            Ok(()) => self.level = level,
            Err(_) => self.failures = self.failures.saturating_add(1),
        }
    }
}

/// A line on which every ring is an edge.
#[derive(Debug)]
pub struct DoorbellLine<P>(Driven<P>);

impl<P: OutputPin> DoorbellLine<P> {
    /// A doorbell on `pin`, which is driven high.
    pub fn new(pin: P) -> Self {
        Self(Driven::new(pin, PinState::High))
    }

    /// Rings. Call it after the words that the other side is to find were stored. Does not block longer than the pin does.
    pub fn ring(&mut self) {
        let level = !self.0.level;
        self.0.drive(level);
    }

    /// How often the pin could not be driven.
    pub const fn failures(&self) -> u32 {
        self.0.failures
    }
}

/// A line whose level says that there is something to be done.
#[derive(Debug)]
pub struct AttentionLine<P> {
    driven: Driven<P>,
    active: PinState,
}

impl<P: OutputPin> AttentionLine<P> {
    /// An attention line on `pin`, which asks for attention at level `active` and is lowered now.
    pub fn new(pin: P, active: PinState) -> Self {
        Self { driven: Driven::new(pin, !active), active }
    }

    /// Asks for attention. A pin that is at that level already is not touched.
    pub fn raise(&mut self) {
        self.set(self.active);
    }

    /// Nothing is left to be done. A pin that is at that level already is not touched.
    pub fn lower(&mut self) {
        self.set(!self.active);
    }

    /// Whether attention is asked for.
    pub fn is_raised(&self) -> bool {
        self.driven.level == self.active
    }

    /// How often the pin could not be driven.
    pub const fn failures(&self) -> u32 {
        self.driven.failures
    }

    fn set(&mut self, level: PinState) {
        if self.driven.level != level {
            self.driven.drive(level);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use embedded_hal::digital::{Error, ErrorKind, ErrorType};

    use super::*;

    /// Records the levels it is driven to; fails as long as it is stuck.
    #[derive(Debug, Default)]
    struct Wire {
        driven: Vec<PinState>,
        stuck: bool,
    }

    #[derive(Debug)]
    struct Stuck;

    impl Error for Stuck {
        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    impl ErrorType for Wire {
        type Error = Stuck;
    }

    impl OutputPin for Wire {
        fn set_low(&mut self) -> Result<(), Stuck> {
            self.set_state(PinState::Low)
        }

        fn set_high(&mut self) -> Result<(), Stuck> {
            self.set_state(PinState::High)
        }

        fn set_state(&mut self, state: PinState) -> Result<(), Stuck> {
            if self.stuck {
                return Err(Stuck);
            }
            self.driven.push(state);
            Ok(())
        }
    }

    #[test]
    fn every_ring_is_an_edge() {
        let mut bell = DoorbellLine::new(Wire::default());
        for _ in 0..3 {
            bell.ring();
        }
        assert_eq!(bell.0.pin.driven, [PinState::High, PinState::Low, PinState::High, PinState::Low]);
    }

    #[test]
    fn a_ring_that_failed_is_counted_and_the_next_one_is_still_an_edge() {
        let mut bell = DoorbellLine::new(Wire::default());
        bell.0.pin.stuck = true;
        bell.ring();
        assert_eq!(bell.failures(), 1);
        bell.0.pin.stuck = false;
        bell.ring();
        assert_eq!(bell.0.pin.driven, [PinState::High, PinState::Low]);
    }

    #[test]
    fn attention_is_a_level_of_either_polarity() {
        for active in [PinState::Low, PinState::High] {
            let mut line = AttentionLine::new(Wire::default(), active);
            line.raise();
            line.raise();
            assert!(line.is_raised());
            line.lower();
            line.lower();
            assert!(!line.is_raised());
            assert_eq!(line.driven.pin.driven, [!active, active, !active]);
            assert_eq!(line.failures(), 0);
        }
    }

    #[test]
    fn attention_that_could_not_be_asked_for_is_asked_for_again() {
        let mut line = AttentionLine::new(Wire { stuck: true, ..Wire::default() }, PinState::High);
        line.raise();
        assert!(!line.is_raised());
        line.driven.pin.stuck = false;
        line.raise();
        assert!(line.is_raised());
        assert_eq!((line.driven.pin.driven.as_slice(), line.failures()), (&[PinState::High][..], 2));
    }
}
