//! Which arguments of items are chosen: those whose bytes are recorded where a recorder does not take all of them.
//!
//! An argument is chosen by its size, its role or the name of its tensor; any of them is enough. The device is told one bit
//! per argument, and the last bit stands for all arguments from the 64th on.

use sluice_core::layout::args_dump::Role;

/// Arguments that are chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArgChoice {
    /// Those of at most so many bytes.
    max_bytes: Option<u64>,
    roles: Vec<Role>,
    names: Vec<String>,
}

impl Default for ArgChoice {
    /// All arguments.
    fn default() -> Self {
        Self::up_to(u64::MAX)
    }
}

impl ArgChoice {
    /// No argument.
    pub const NONE: Self = Self { max_bytes: None, roles: Vec::new(), names: Vec::new() };

    /// Arguments of at most so many bytes.
    pub const fn up_to(max_bytes: u64) -> Self {
        Self::NONE.and_up_to(max_bytes)
    }

    /// And those of at most so many bytes.
    #[must_use]
    pub const fn and_up_to(mut self, max_bytes: u64) -> Self {
        self.max_bytes = Some(max_bytes);
        self
    }

    /// And those that items use so.
    #[must_use]
    pub fn with_role(mut self, role: Role) -> Self {
        self.roles.push(role);
        self
    }

    /// And those that are parts of tensors of that name.
    #[must_use]
    pub fn with_tensor(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// Names of tensors that were chosen.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// One bit for each argument of an item, given in their order: role, name of the tensor, bytes.
    pub fn mask<'a>(&self, args: impl Iterator<Item = (Role, &'a str, u64)>) -> u64 {
        let chooses = |(role, name, bytes): (Role, &str, u64)| {
            self.max_bytes.is_some_and(|most| bytes <= most)
                || self.roles.contains(&role)
                || self.names.iter().any(|chosen| chosen == name)
        };
        let bits = args.enumerate().map(|(index, arg)| u64::from(chooses(arg)) << index.min(63));
        bits.fold(0, |mask, bit| mask | bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_chosen_by_size_role_or_name() {
        let args = [(Role::INPUT, "a", 100), (Role::OUTPUT, "b", 101), (Role::INOUT, "b", 4096)];
        let mask = |choice: ArgChoice| choice.mask(args.into_iter());
        assert_eq!(mask(ArgChoice::NONE), 0);
        assert_eq!(mask(ArgChoice::up_to(100)), 0b0001);
        assert_eq!(mask(ArgChoice::up_to(100).with_role(Role::OUTPUT)), 0b0011);
        assert_eq!(mask(ArgChoice::NONE.with_role(Role::INPUT)), 0b001);
        assert_eq!(mask(ArgChoice::NONE.with_tensor("b").with_tensor("x")), 0b110);
        assert_eq!(mask(ArgChoice::default()), 0b111);
    }

    #[test]
    fn the_last_bit_stands_for_all_the_rest() {
        let mask = |chosen: usize| {
            let args = (0..100).map(|index| (Role::INPUT, if index == chosen { "x" } else { "y" }, 1));
            ArgChoice::NONE.with_tensor("x").mask(args)
        };
        assert_eq!([mask(62), mask(63), mask(99), mask(100)], [1 << 62, 1 << 63, 1 << 63, 0]);
    }
}
