//! `sluice export`: a capture in the form that another tool reads.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use sluice_host::capture::{Reader, census, folder};
use sluice_host::export::{csv, perfetto};
use sluice_host::report::units::{Bytes, Many, OneLine};

use crate::options::capture_at;
use crate::output::note_findings;

/// Convert a capture
///
/// Exports what is there, and exits with 1 when the capture is damaged, broken off, or disagrees with its summary.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Capture file, or the folder of a run
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
    /// One row per record, with the durations of tasks with and without the waits of their lane
    Csv,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let capture = capture_at(&args.capture);
    if is_same_file(&capture, &args.output) {
        bail!("{} is the capture itself, which is not written over", args.output.display());
    }
    let mut reader = Reader::open(&capture)?;
    let findings = census(&mut reader)?.findings;
    let failed = || format!("cannot write {}", args.output.display());
    let output = args.output.display();
    match args.format {
        Format::Perfetto => {
            let exported = folder::write_file(&args.output, |out| perfetto::write(&mut reader, out));
            let exported = exported.with_context(failed)?;
            let slices = Many(exported.slices, "slice", "slices");
            eprintln!("{}", OneLine(format_args!("{output}: {slices}, {}", Bytes(exported.bytes))));
            if exported.unplaced > 0 {
                let records = Many(exported.unplaced, "record", "records");
                eprintln!("sluice: {records} left out: the capture does not say when their tasks ran");
            }
        }
        Format::Csv => {
            let exported = folder::write_file(&args.output, |out| csv::write(&mut reader, out));
            let exported = exported.with_context(failed)?;
            let rows = Many(exported.rows, "row", "rows");
            eprintln!("{}", OneLine(format_args!("{output}: {rows}, {}", Bytes(exported.bytes))));
            if exported.not_shown > 0 {
                let buffers = Many(exported.not_shown, "buffer", "buffers");
                eprintln!("sluice: {buffers} left out: of a kind that this version does not show");
            }
        }
    }
    note_findings(&args.capture, &findings);
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether both name one file that is there, by whatever way.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    file(one).is_some_and(|one| file(other) == Some(one))
}
