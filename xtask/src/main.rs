//! The one command to remember.

fn main() {}
