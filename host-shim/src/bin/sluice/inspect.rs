//! `sluice inspect`: what a compiled model says, and what a load and a build make of it.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use sluice_core::exec::NrtStatus;
use sluice_host::kbl::{self, Plan};
use sluice_host::neff::inspect::Summary;
use sluice_host::neff::{Neff, NeffError, ReadOptions};

use crate::output;

/// Show what is in a compiled model, and what is built for it
///
/// A model that no device could load is shown as well; the exit status is 1 then.
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
    let (build, refused) = match kbl::plan(&neff) {
        Ok(plan) => (Some(plan), None),
        Err(error) => (None, Some(refusal(&error, error.status()).to_string())),
    };
    let page = Page { container: neff.summary(), build, refused };
    let text =
        if args.json { format!("{}\n", serde_json::to_string_pretty(&page)?) } else { page.to_string() };
    output::print(&text)?;
    match page.refused {
        Some(refused) => Err(anyhow::anyhow!("{}: cannot be loaded: {refused}", args.file.display())),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// A container, and what a runtime would make of it.
#[derive(Serialize)]
struct Page<'a> {
    #[serde(flatten)]
    container: Summary<'a>,
    /// What would be loaded and built.
    build: Option<Plan>,
    /// Why nothing would.
    refused: Option<String>,
}

impl Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.container)?;
        if let Some(build) = &self.build {
            write!(f, "\nWhat is built\n{build}")?;
        }
        if let Some(refused) = &self.refused {
            writeln!(f, "\nCannot be loaded: {refused}")?;
        }
        Ok(())
    }
}

/// A refused container with the status that a runtime reports for it.
pub(crate) fn with_status(error: NeffError) -> anyhow::Error {
    refusal(&error, error.status())
}

/// What was refused, with the status that a runtime reports for it.
pub(crate) fn refusal(what: impl Display, status: NrtStatus) -> anyhow::Error {
    anyhow::anyhow!("{what} (status {}, {status})", status.0)
}
