//! Bytes that two blocks touch in no order, at least one of them to write: what they hold is a matter of luck.
//!
//! ```text
//!   a byte that w wrote last, and that r1 and r2 have read since
//!      r reads     w is over before r begins                    or w and r race for it
//!      v writes    w, r1 and r2 are over before v begins        or they race for it
//! ```
//!
//! Blocks of different programs are in no order at all.

use std::collections::HashMap;

use super::follow::{Followed, Mover};
use super::order::Order;

/// Who has touched a byte.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Touch {
    /// Place in [`Touches::movers`] plus one; 0 for nobody, and with [`RACE`] the place of a pair.
    writer: u32,
    /// Place in [`Touches::crowds`].
    readers: u32,
}

const RACE: u32 = 1 << 31;

/// The races of one execution of all programs.
pub(super) struct Races {
    /// By place.
    bytes: Vec<Vec<Touch>>,
    pairs: Vec<[Mover; 2]>,
}

impl Races {
    /// Looks at everything that is moved; `orders` are those of the programs.
    pub(super) fn of(followed: &Followed<'_>, orders: &[Order]) -> Self {
        let mut touches = Touches::new(orders);
        let places = followed.places.iter();
        let mut bytes: Vec<_> = places.map(|place| vec![Touch::default(); place.bytes]).collect();
        for transfer in &followed.transfers {
            let mover = touches.number(transfer.by);
            // Neighbours mostly have the same past.
            let (mut read, mut written) = (None, None);
            for (from, to) in transfer.bytes() {
                let byte = &mut bytes[transfer.source()][from];
                *byte = again(&mut read, *byte, |touch| touches.read(touch, mover));
                let byte = &mut bytes[transfer.destination()][to];
                *byte = again(&mut written, *byte, |touch| touches.write(touch, mover));
            }
        }
        Self { bytes, pairs: touches.pairs }
    }

    /// The number of the race for a byte.
    pub(super) fn at(&self, place: usize, offset: usize) -> Option<usize> {
        let writer = self.bytes[place][offset].writer;
        (writer & RACE != 0).then_some((writer & !RACE) as usize)
    }

    /// Who races.
    pub(super) fn pair(&self, number: usize) -> [Mover; 2] {
        self.pairs[number]
    }
}

/// What `touch` comes to, as it did the last time if it is the same.
fn again(last: &mut Option<[Touch; 2]>, touch: Touch, look: impl FnOnce(Touch) -> Touch) -> Touch {
    match *last {
        Some([before, after]) if before == touch => after,
        _ => {
            let after = look(touch);
            *last = Some([touch, after]);
            after
        }
    }
}

struct Touches<'a> {
    orders: &'a [Order],
    movers: Vec<Mover>,
    /// Readers of a byte, but for those that are over before another of them begins.
    crowds: Vec<Vec<u32>>,
    known: HashMap<Vec<u32>, u32>,
    pairs: Vec<[Mover; 2]>,
}

impl<'a> Touches<'a> {
    fn new(orders: &'a [Order]) -> Self {
        let mut touches =
            Self { orders, movers: Vec::new(), crowds: Vec::new(), known: HashMap::new(), pairs: Vec::new() };
        touches.crowd(Vec::new());
        touches
    }

    /// The number of a mover; all transfers of one come one after the other.
    fn number(&mut self, mover: Mover) -> u32 {
        if self.movers.last() != Some(&mover) {
            self.movers.push(mover);
        }
        self.movers.len() as u32
    }

    fn crowd(&mut self, readers: Vec<u32>) -> u32 {
        *self.known.entry(readers).or_insert_with_key(|readers| {
            self.crowds.push(readers.clone());
            self.crowds.len() as u32 - 1
        })
    }

    fn read(&mut self, touch: Touch, reader: u32) -> Touch {
        if touch.writer & RACE != 0 {
            return touch;
        }
        if !self.is_before(touch.writer, reader) {
            return self.race(touch.writer, reader);
        }
        let mut readers = self.crowds[touch.readers as usize].clone();
        readers.retain(|&earlier| !self.is_before(earlier, reader));
        readers.push(reader);
        Touch { readers: self.crowd(readers), ..touch }
    }

    fn write(&mut self, touch: Touch, writer: u32) -> Touch {
        if touch.writer & RACE != 0 {
            return touch;
        }
        let mut earlier = self.crowds[touch.readers as usize].iter().copied().chain([touch.writer]);
        let racing = earlier.find(|&earlier| !self.is_before(earlier, writer));
        match racing {
            Some(earlier) => self.race(earlier, writer),
            None => Touch { writer, readers: 0 },
        }
    }

    fn race(&mut self, first: u32, then: u32) -> Touch {
        self.pairs.push([first, then].map(|mover| self.movers[mover as usize - 1]));
        Touch { writer: RACE | (self.pairs.len() as u32 - 1), readers: 0 }
    }

    /// Whether `first`, who may be nobody, is over whenever `then` begins, or is the same.
    fn is_before(&self, first: u32, then: u32) -> bool {
        let Some(first) = first.checked_sub(1) else { return true };
        let (first, then) = (self.movers[first as usize], self.movers[then as usize - 1]);
        first == then
            || first.program == then.program && self.orders[first.program].is_before(first.run, then.run)
    }
}
