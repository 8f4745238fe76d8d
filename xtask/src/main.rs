//! The one command to remember: `cargo xtask COMMAND`.
//!
//! Every command is a file of its own with an `Args` struct (its doc comment is the help text) and a
//! `run(Args) -> anyhow::Result<ExitCode>`. A new command is one `mod` line and one line of the table.

use std::process::ExitCode;

use clap::Parser;

mod bench;
mod components;
mod elf;
mod flash;
mod fmt;
mod image;
mod layout;
mod lint;
mod lints;
mod load;
mod model;
mod pack;
mod process;
mod run;
mod setup;
mod sizes;
mod soak;
mod test;
mod toolchain;
mod vectors;
mod workspace;

/// Declares the subcommand enum and its dispatch from one table.
macro_rules! commands {
    ($($name:ident => $module:ident),+ $(,)?) => {
        #[derive(clap::Subcommand)]
        enum Command {
            $($name($module::Args),)+
        }

        impl Command {
            fn run(self) -> anyhow::Result<ExitCode> {
                match self {
                    $(Command::$name(args) => $module::run(args),)+
                }
            }
        }
    };
}

commands! {
    Setup => setup,
    Run => run,
    Test => test,
    Model => model,
    Soak => soak,
    Bench => bench,
    Sizes => sizes,
    Load => load,
    Flash => flash,
    Fmt => fmt,
    Lint => lint,
    Layout => layout,
    Vectors => vectors,
}

/// Builds, runs, checks and packages Sluice.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
