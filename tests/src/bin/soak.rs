//! `soak [--seconds N] [--threads N] [--seed N]`: models of one unit, used by many threads at random.
//!
//! Prints what was done; exit status 1 when a byte, a ticket or memory was lost.

use std::process::ExitCode;
use std::time::Duration;

use sluice_tests::soak::{self, Until};

fn main() -> ExitCode {
    let (mut seconds, mut threads, mut seed) = (5, 16, 2026);
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok());
        match (&*option, value) {
            ("--seconds", Some(value)) => seconds = value,
            ("--threads", Some(value)) => threads = value,
            ("--seed", Some(value)) => seed = value,
            _ => {
                eprintln!("usage: soak [--seconds N] [--threads N] [--seed N]");
                return ExitCode::from(2);
            }
        }
    }
    println!("{threads} threads for {seconds} s, seed {seed}");
    match soak::run(threads, seed, Until::Elapsed(Duration::from_secs(seconds))) {
        Ok(totals) => {
            println!("{totals}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}
