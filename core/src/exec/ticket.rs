//! Tickets: the order in which staged executions are waited for.
//!
//! ```text
//!     head                       tail
//!   ───┼────┬────┬────┬────┬─────┼────
//!      │ 7  │ 8  │ 9✗ │ 10 │ 11  │ 12      ✗ its waiter is gone
//!      harvested first           issued next
//! ```
//!
//! An execution takes the ticket at the tail when it is staged. Tickets are dense: no number is skipped, none is given
//! twice. Only the ticket at the head may harvest the notifications of its execution, then the head moves on. A waiter
//! that timed out, was dropped or forked away abandons its ticket; whoever comes to the head of the queue next harvests
//! it on the way, so that nobody reads records of another's execution.
//!
//! One lock guards the queue of a core (the host's request lock); nothing here is shared without it.

use core::fmt;

use heapless::Deque;

/// The ordinal of one staged execution on a core, from 0. It does not wrap within the life of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Ticket(pub u64);

impl Ticket {
    /// The low 16 bits, as notification records carry them.
    pub const fn custom_id(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who is going to take a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiter {
    Present,
    Gone,
}

/// What the queue says to one who wants to harvest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is this ticket's turn.
    Mine,
    /// The head is a ticket that nobody waits for: harvest it first, on behalf of the one who left.
    Orphan(Ticket),
    /// Somebody else is to harvest first.
    Behind(Ticket),
}

/// The tickets of one core, with room for `N` executions that are staged and not harvested.
#[derive(Clone, Debug)]
pub struct TicketQueue<const N: usize> {
    head: Ticket,
    waiters: Deque<Waiter, N>,
}

impl<const N: usize> TicketQueue<N> {
    /// A queue whose first ticket is 0.
    pub const fn new() -> Self {
        Self::starting_at(Ticket(0))
    }

    /// A queue whose first ticket is `first`: for a core that has run executions before.
    pub const fn starting_at(first: Ticket) -> Self {
        Self { head: first, waiters: Deque::new() }
    }

    /// The ticket that is harvested next, or issued next when none is outstanding.
    pub const fn head(&self) -> Ticket {
        self.head
    }

    /// The ticket that is issued next.
    pub fn tail(&self) -> Ticket {
        Ticket(self.head.0.wrapping_add(self.outstanding() as u64))
    }

    /// Executions staged and not harvested.
    pub fn outstanding(&self) -> usize {
        self.waiters.len()
    }

    /// Issues the next ticket.
    ///
    /// # Errors
    /// As many are outstanding as there is room for.
    pub fn issue(&mut self) -> Result<Ticket, QueueFull> {
        let ticket = self.tail();
        match self.waiters.push_back(Waiter::Present) {
            Ok(()) => Ok(ticket),
            Err(_) => Err(QueueFull { capacity: N }),
        }
    }

    /// Takes back the ticket that was issued last: its execution was not staged after all.
    ///
    /// # Errors
    /// Any other ticket.
    pub fn revoke(&mut self, ticket: Ticket) -> Result<(), NotOutstanding> {
        if self.outstanding() > 0 && ticket.0.wrapping_add(1) == self.tail().0 {
            self.waiters.pop_back();
            return Ok(());
        }
        Err(self.not_outstanding(ticket))
    }

    /// Whose turn it is, as `ticket` sees it.
    ///
    /// # Errors
    /// A ticket that is harvested already or was never issued.
    pub fn turn(&self, ticket: Ticket) -> Result<Turn, NotOutstanding> {
        self.index(ticket)?;
        Ok(match self.waiters.front() {
            _ if ticket == self.head => Turn::Mine,
            Some(Waiter::Gone) => Turn::Orphan(self.head),
            _ => Turn::Behind(self.head),
        })
    }

    /// The head of the queue when nobody waits for it: for one who harvests without a ticket of his own.
    pub fn orphan(&self) -> Option<Ticket> {
        (self.waiters.front() == Some(&Waiter::Gone)).then_some(self.head)
    }

    /// Notes that nobody waits for `ticket` any more.
    ///
    /// # Errors
    /// A ticket that is harvested already or was never issued.
    pub fn abandon(&mut self, ticket: Ticket) -> Result<(), NotOutstanding> {
        let index = self.index(ticket)?;
        match self.waiters.iter_mut().nth(index) {
            Some(waiter) => {
                *waiter = Waiter::Gone;
                Ok(())
            }
            None => Err(self.not_outstanding(ticket)),
        }
    }

    /// Moves the head past `ticket`, whose notifications have been read.
    ///
    /// # Errors
    /// A ticket that is not at the head.
    pub fn retire(&mut self, ticket: Ticket) -> Result<(), NotOutstanding> {
        if ticket != self.head || self.waiters.pop_front().is_none() {
            return Err(self.not_outstanding(ticket));
        }
        self.head = Ticket(self.head.0.wrapping_add(1));
        Ok(())
    }

    fn index(&self, ticket: Ticket) -> Result<usize, NotOutstanding> {
        let index = ticket.0.wrapping_sub(self.head.0);
        if index < self.outstanding() as u64 { Ok(index as usize) } else { Err(self.not_outstanding(ticket)) }
    }

    fn not_outstanding(&self, ticket: Ticket) -> NotOutstanding {
        NotOutstanding { ticket, head: self.head, tail: self.tail() }
    }
}

impl<const N: usize> Default for TicketQueue<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// As many executions are outstanding as a queue has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QueueFull {
    /// Executions there is room for.
    pub capacity: usize,
}

impl fmt::Display for QueueFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "execution queue full: {0} of {0} outstanding", self.capacity)
    }
}

impl core::error::Error for QueueFull {}

/// A ticket for which the operation makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NotOutstanding {
    /// The ticket.
    pub ticket: Ticket,
    /// The one that is harvested next.
    pub head: Ticket,
    /// The one that is issued next.
    pub tail: Ticket,
}

impl fmt::Display for NotOutstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ticket, head, tail } = self;
        write!(f, "ticket {ticket} is out of place: head {head}, tail {tail}")
    }
}

impl core::error::Error for NotOutstanding {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_ticket_behind_one_that_was_left_harvests_both() {
        let mut queue = TicketQueue::<4>::new();
        let [first, second, third] = [(); 3].map(|()| queue.issue().unwrap());
        assert_eq!(queue.turn(first), Ok(Turn::Mine));
        assert_eq!(queue.turn(third), Ok(Turn::Behind(first)));
        queue.abandon(first).unwrap();
        assert_eq!(queue.turn(third), Ok(Turn::Orphan(first)));
        assert_eq!(queue.orphan(), Some(first));
        queue.retire(first).unwrap();
        assert_eq!(queue.turn(third), Ok(Turn::Behind(second)));
        queue.retire(second).unwrap();
        assert_eq!(queue.turn(third), Ok(Turn::Mine));
    }

    #[test]
    fn only_the_last_ticket_can_be_taken_back() {
        let mut queue = TicketQueue::<2>::new();
        let (first, second) = (queue.issue().unwrap(), queue.issue().unwrap());
        assert_eq!(queue.issue(), Err(QueueFull { capacity: 2 }));
        assert_eq!(
            queue.revoke(first),
            Err(NotOutstanding { ticket: first, head: Ticket(0), tail: Ticket(2) })
        );
        queue.revoke(second).unwrap();
        assert_eq!(queue.issue(), Ok(second), "the number is not lost");
    }

    #[derive(Clone, Debug)]
    enum Op {
        Issue,
        Revoke(u64),
        Abandon(u64),
        Retire(u64),
    }

    fn any_op() -> impl Strategy<Value = Op> {
        let near = 0u64..7;
        prop_oneof![
            3 => Just(Op::Issue),
            1 => near.clone().prop_map(Op::Revoke),
            1 => near.clone().prop_map(Op::Abandon),
            3 => near.prop_map(Op::Retire),
        ]
    }

    proptest! {
        /// Against a plain map of the outstanding tickets, across the wrap of the counter.
        #[test]
        #[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
        fn tickets_are_dense_and_retired_in_order(start in 0u64..8, ops in prop::collection::vec(any_op(), 0..100)) {
            let first = u64::MAX - start;
            let mut queue = TicketQueue::<5>::starting_at(Ticket(first));
            // Distance from the first ticket → abandoned.
            let mut plain = BTreeMap::<u64, bool>::new();
            let mut next = 0;
            for op in ops {
                let head = plain.keys().next().copied().unwrap_or(next);
                let near = |offset: u64| (head + offset).wrapping_sub(1);
                let ticket = |at: u64| Ticket(first.wrapping_add(at));
                match op {
                    Op::Issue => {
                        let issued = queue.issue();
                        prop_assert_eq!(issued.ok(), (plain.len() < 5).then(|| ticket(next)));
                        if issued.is_ok() {
                            plain.insert(next, false);
                            next += 1;
                        }
                    }
                    Op::Revoke(offset) => {
                        let at = near(offset);
                        let last = plain.keys().next_back() == Some(&at);
                        prop_assert_eq!(queue.revoke(ticket(at)).is_ok(), last);
                        if last {
                            plain.remove(&at);
                            next -= 1;
                        }
                    }
                    Op::Abandon(offset) => {
                        let at = near(offset);
                        prop_assert_eq!(queue.abandon(ticket(at)).is_ok(), plain.contains_key(&at));
                        plain.entry(at).and_modify(|gone| *gone = true);
                    }
                    Op::Retire(offset) => {
                        let at = near(offset);
                        let front = plain.keys().next() == Some(&at);
                        prop_assert_eq!(queue.retire(ticket(at)).is_ok(), front);
                        if front {
                            plain.remove(&at);
                        }
                    }
                }
                let front = plain.iter().next().map(|(at, gone)| (*at, *gone));
                prop_assert_eq!(queue.orphan(), front.and_then(|(at, gone)| gone.then(|| ticket(at))));
                prop_assert_eq!((queue.tail(), queue.outstanding()), (ticket(next), plain.len()));
            }
        }
    }
}
