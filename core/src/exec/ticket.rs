//! Tickets: the order of staged executions.
//!
//! ```text
//!     head                      tail
//!   ───┼────┬────┬────┬────┬────┼────
//!      │ 7  │ 8  │ 9  │ 10 │ 11 │ 12
//!      ends first               issued next
//! ```
//!
//! An execution takes the ticket at the tail when it is staged. Tickets are dense: no number is skipped, none is given
//! twice, but for that of an execution that was taken back from the tail. They are retired in order, by whoever harvests:
//! that a waiter timed out, was dropped or forked away keeps nobody.
//!
//! One lock guards the queue of a core (the host's request lock); nothing here is shared without it.

use core::fmt;

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

/// The tickets of one core, with room for `N` executions that are staged and not retired.
#[derive(Clone, Debug)]
pub struct TicketQueue<const N: usize> {
    head: Ticket,
    outstanding: usize,
}

impl<const N: usize> TicketQueue<N> {
    /// A queue whose first ticket is 0.
    pub const fn new() -> Self {
        Self::starting_at(Ticket(0))
    }

    /// A queue whose first ticket is `first`: for a core that has run executions before.
    pub const fn starting_at(first: Ticket) -> Self {
        Self { head: first, outstanding: 0 }
    }

    /// The ticket that is retired next, or issued next when none is outstanding.
    pub const fn head(&self) -> Ticket {
        self.head
    }

    /// The ticket that is issued next.
    pub const fn tail(&self) -> Ticket {
        Ticket(self.head.0.wrapping_add(self.outstanding() as u64))
    }

    /// Executions staged and not retired.
    pub const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Issues the next ticket.
    ///
    /// # Errors
    /// As many are outstanding as there is room for.
    pub fn issue(&mut self) -> Result<Ticket, QueueFull> {
        let ticket = self.tail();
        if self.outstanding >= N {
            return Err(QueueFull { capacity: N });
        }
        self.outstanding += 1;
        Ok(ticket)
    }

    /// Takes back the ticket that was issued last: its execution was not staged after all.
    ///
    /// # Errors
    /// Any other ticket.
    pub fn revoke(&mut self, ticket: Ticket) -> Result<(), NotOutstanding> {
        if self.outstanding > 0 && ticket.0.wrapping_add(1) == self.tail().0 {
            self.outstanding -= 1;
            return Ok(());
        }
        Err(self.not_outstanding(ticket))
    }

    /// Moves the head past `ticket`, whose execution has ended.
    ///
    /// # Errors
    /// A ticket that is not at the head.
    pub fn retire(&mut self, ticket: Ticket) -> Result<(), NotOutstanding> {
        if ticket != self.head || self.outstanding == 0 {
            return Err(self.not_outstanding(ticket));
        }
        self.outstanding -= 1;
        self.head = Ticket(self.head.0.wrapping_add(1));
        Ok(())
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
    /// The one that is retired next.
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
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

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
        Retire(u64),
    }

    fn any_op() -> impl Strategy<Value = Op> {
        let near = 0u64..7;
        prop_oneof![
            3 => Just(Op::Issue),
            1 => near.clone().prop_map(Op::Revoke),
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
            // Distances from the first ticket.
            let mut plain = BTreeSet::<u64>::new();
            let mut next = 0;
            for op in ops {
                let head = plain.first().copied().unwrap_or(next);
                let near = |offset: u64| (head + offset).wrapping_sub(1);
                let ticket = |at: u64| Ticket(first.wrapping_add(at));
                match op {
                    Op::Issue => {
                        let issued = queue.issue();
                        prop_assert_eq!(issued.ok(), (plain.len() < 5).then(|| ticket(next)));
                        if issued.is_ok() {
                            plain.insert(next);
                            next += 1;
                        }
                    }
                    Op::Revoke(offset) => {
                        let at = near(offset);
                        let last = plain.last() == Some(&at);
                        prop_assert_eq!(queue.revoke(ticket(at)).is_ok(), last);
                        if last {
                            plain.remove(&at);
                            next -= 1;
                        }
                    }
                    Op::Retire(offset) => {
                        let at = near(offset);
                        let front = plain.first() == Some(&at);
                        prop_assert_eq!(queue.retire(ticket(at)).is_ok(), front);
                        if front {
                            plain.remove(&at);
                        }
                    }
                }
                prop_assert_eq!((queue.tail(), queue.outstanding()), (ticket(next), plain.len()));
            }
        }
    }
}
