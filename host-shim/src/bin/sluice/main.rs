//! The `sluice` command.

mod check;
mod export;
mod inspect;
mod interrupt;
mod load;
mod options;
mod output;
mod pack;
mod plan;
mod recording;
mod report;
mod run;
mod status;
mod stress;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sluice_host::report::units::OneLine;

#[derive(Debug, Parser)]
#[command(name = "sluice", version, about = "Runs compiled models and records them without losing a record")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Args),
    Export(export::Args),
    Inspect(inspect::Args),
    Load(load::Args),
    Pack(pack::Args),
    Plan(plan::Args),
    Report(report::Args),
    Run(run::Args),
    Status(status::Args),
    Stress(stress::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Check(args) => check::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Stress(args) => stress::run(&args),
    };
    result.unwrap_or_else(|error| {
        if let Some(usage) = error.downcast_ref::<clap::Error>() {
            usage.exit();
        }
        eprintln!("sluice: {}", OneLine(format_args!("{error:#}")));
        ExitCode::FAILURE
    })
}
