//! `sluice report`: what a run did, read from its capture.

use std::path::PathBuf;
use std::process::ExitCode;

use sluice_host::capture::{Reader, census};
use sluice_host::report::Page;

use crate::options::capture_at;
use crate::output;

/// Show the report of a captured run
///
/// What the run counted is held against the records that are there. Exits with 1 when the capture is damaged or broken
/// off, when records were lost that were not allowed to be, or when something was wrong.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Capture file, or the folder of a run
    capture: PathBuf,
    /// Print JSON, as report.json holds it
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = census(&mut Reader::open(&capture_at(&args.capture))?)?.into_report();
    let text = if args.json {
        report.to_json()
    } else {
        Page { report: &report, folder: None, has_report: false }.to_string()
    };
    output::print(&text)?;
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
