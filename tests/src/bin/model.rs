//! `model [--quick] [--more CAUGHT/MUTANTS]`: explores the shipped protocol code exhaustively, then every rule left out once.
//!
//! Last line: `states N, violations 0, mutants caught K of K`; exit status 1 when a property of the protocol is broken or an
//! omission goes unnoticed. Mutants that ran elsewhere are counted as `--more` says.

use std::process::ExitCode;
use std::time::Instant;

use sluice_tests::model::explore::{Report, Violation};
use sluice_tests::model::suite::{EXPLORATIONS, MUTANTS};

fn main() -> ExitCode {
    let Some(Options { is_quick, mut caught, mutants }) = options(std::env::args().skip(1)) else {
        eprintln!("usage: model [--quick] [--more CAUGHT/MUTANTS]");
        return ExitCode::from(2);
    };
    let mutants = mutants + MUTANTS.len();
    let (mut states, mut violations) = (0, 0);
    for exploration in EXPLORATIONS {
        if exploration.is_long && is_quick {
            println!("{:<32} left out of the short run", exploration.name);
            continue;
        }
        let started = Instant::now();
        let report = exploration.run();
        states += report.states;
        print_report(exploration.name, &report, started);
        if let Some(violation) = report.violation {
            violations += 1;
            print_trace(&violation);
        }
    }
    for mutant in MUTANTS {
        let started = Instant::now();
        let report = mutant.run();
        print_report(&format!("without {}", mutant.rule), &report, started);
        match report.violation {
            Some(violation) => {
                caught += 1;
                println!(
                    "    {}: caught by the {} check: {}",
                    mutant.omission, violation.check, violation.what
                );
            }
            None => println!("    {}: NOT CAUGHT", mutant.omission),
        }
    }
    println!("states {states}, violations {violations}, mutants caught {caught} of {mutants}");
    ExitCode::from(u8::from(violations > 0 || caught < mutants))
}

/// What the command line says.
#[derive(Default)]
struct Options {
    is_quick: bool,
    /// Mutants that were caught elsewhere.
    caught: usize,
    /// Mutants that ran elsewhere.
    mutants: usize,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => options.is_quick = true,
            "--more" => {
                let more = arguments.next()?;
                let (caught, mutants) = more.split_once('/')?;
                (options.caught, options.mutants) = (caught.parse().ok()?, mutants.parse().ok()?);
            }
            _ => return None,
        }
    }
    Some(options)
}

fn print_report(name: &str, report: &Report, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    println!("{name:<32} {:>10} states {:>11} steps {seconds:>7.1} s", report.states, report.steps);
}

fn print_trace(violation: &Violation) {
    println!("    {}: {}", violation.check, violation.what);
    for (number, process) in violation.trace.iter().enumerate() {
        println!("    {number:>4} {process:?}");
    }
    println!("{}", violation.state);
}
