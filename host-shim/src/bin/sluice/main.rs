//! The `sluice` command.

mod inspect;
mod output;
mod pack;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "sluice", version, about = "Runs compiled models and records them without losing a record")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Inspect(inspect::Args),
    Pack(pack::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Inspect(args) => inspect::run(&args),
        Command::Pack(args) => pack::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice: {error:#}");
            ExitCode::FAILURE
        }
    }
}
