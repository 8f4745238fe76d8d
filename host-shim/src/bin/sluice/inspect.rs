//! `sluice inspect`: what a compiled model says.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use sluice_core::exec::NrtStatus;
use sluice_host::neff::{Neff, NeffError, ReadOptions};

use crate::output;

/// Show what is in a compiled model
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compiled model
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Compare the hash in the header with the payload
    #[arg(long)]
    verify_hash: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = ReadOptions { verify_hash: args.verify_hash, ..ReadOptions::default() };
    let neff = Neff::open(&args.file, &options).map_err(with_status)?;
    let summary = neff.summary();
    let text = if args.json {
        format!("{}\n", serde_json::to_string_pretty(&summary)?)
    } else {
        summary.to_string()
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A refused container with the status that a runtime reports for it.
pub(crate) fn with_status(error: NeffError) -> anyhow::Error {
    refusal(&error, error.status())
}

/// What was refused, with the status that a runtime reports for it.
pub(crate) fn refusal(what: impl Display, status: NrtStatus) -> anyhow::Error {
    anyhow::anyhow!("{what} (status {}, {status})", status.0)
}
