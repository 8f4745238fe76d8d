//! `sluice export`: a capture in the form that another tool reads.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use sluice_host::capture::{Reader, folder};
use sluice_host::export::perfetto;
use sluice_host::report::units::{Bytes, Count};

/// Convert a capture
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Capture file
    capture: PathBuf,
    /// What to write
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// File to write
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Format {
    /// Trace for ui.perfetto.dev
    #[default]
    Perfetto,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut reader = Reader::open(&args.capture)?;
    let exported = match args.format {
        Format::Perfetto => folder::write_file(&args.output, |out| perfetto::write(&mut reader, out)),
    };
    let exported = exported.with_context(|| format!("cannot write {}", args.output.display()))?;
    eprintln!("{}: {} slices, {}", args.output.display(), Count(exported.slices), Bytes(exported.bytes));
    for damage in reader.damages() {
        eprintln!("sluice: {}: {damage}", args.capture.display());
    }
    Ok(ExitCode::SUCCESS)
}
