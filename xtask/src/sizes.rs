//! `cargo xtask sizes`: what each image takes of its board's memory, and that it is no more than it may.
//!
//! | column | sections |
//! |---|---|
//! | text | instructions |
//! | constants | what is only read |
//! | data | what has a value from the start |
//! | bss | what begins as zeros, without stacks |
//! | stack | stacks of all processors |

use std::fmt;
use std::process::ExitCode;

use anyhow::Context;

use crate::components::{self, Component};
use crate::elf::{Elf, Section, Use};
use crate::image::{self, Image};
use crate::test::Outcome;
use crate::test::counts::Counts;
use crate::toolchain::Target;

/// Prints the size of each image, and fails if one is above its budget.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// An image and the most bytes of instructions that it may have.
struct Budget {
    name: &'static str,
    image: &'static Image,
    text_bytes: u64,
}

/// The goal is 64 KiB for an image with all five subsystems. What stands in its way are the recorders of eight kinds of pool,
/// which the compiler writes out once per kind.
const BUDGETS: &[Budget] = &[
    Budget { name: "virt", image: &image::VIRT, text_bytes: 128 << 10 },
    Budget { name: "virt-stub", image: &image::VIRT_STUB, text_bytes: 8 << 10 },
];

const NEEDS: &[Component] = &[Component::Target(Target::Aarch64)];

pub(crate) fn run(_: Args) -> anyhow::Result<ExitCode> {
    components::ensure(NEEDS)?;
    let outcome = outcome()?;
    outcome.complaints.iter().for_each(|complaint| println!("{complaint}"));
    Ok(if outcome.counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints all sizes. Each image is a test, which it passes within its budget.
pub(crate) fn outcome() -> anyhow::Result<Outcome> {
    println!(
        "{:12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12}",
        "image", "text", "constants", "data", "bss", "stack", "most text"
    );
    let mut all = Outcome::default();
    for Budget { name, image, text_bytes } in BUDGETS {
        let path = image::build(image)?;
        let file = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let sizes = Sizes::of(&Elf::read(&file)?.sections);
        println!("{name:12} {sizes} {text_bytes:>12}");
        all.counts += Counts::one(sizes.text <= *text_bytes);
        if sizes.text > *text_bytes {
            all.complaints
                .push(format!("`{name}` has {} bytes of text and may have {text_bytes}", sizes.text));
        }
    }
    Ok(all)
}

/// Bytes by use.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sizes {
    text: u64,
    constants: u64,
    data: u64,
    bss: u64,
    stack: u64,
}

impl Sizes {
    fn of(sections: &[Section]) -> Self {
        let mut sizes = Self::default();
        for Section { name, bytes, use_ } in sections {
            let sum = match use_ {
                Use::Text => &mut sizes.text,
                Use::Constants => &mut sizes.constants,
                Use::Data => &mut sizes.data,
                Use::Zeros if name.starts_with(".stack") => &mut sizes.stack,
                Use::Zeros => &mut sizes.bss,
            };
            *sum += bytes;
        }
        sizes
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, constants, data, bss, stack } = self;
        write!(f, "{text:>9} {constants:>9} {data:>9} {bss:>9} {stack:>9}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_told_from_other_zeros() {
        let section = |name: &str, bytes, use_| Section { name: name.into(), bytes, use_ };
        let sizes = Sizes::of(&[
            section(".init", 1, Use::Text),
            section(".text", 2, Use::Text),
            section(".rodata", 4, Use::Constants),
            section(".data", 8, Use::Data),
            section(".bss", 16, Use::Zeros),
            section(".stack", 32, Use::Zeros),
        ]);
        assert_eq!(sizes, Sizes { text: 3, constants: 4, data: 8, bss: 16, stack: 32 });
    }
}
