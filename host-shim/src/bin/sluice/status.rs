//! `sluice status`: what a device in another process says of itself.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use sluice_host::device::qemu::shared;
use sluice_host::device::status::DeviceStatus;
use sluice_host::report::units::OneLine;

use crate::output;

/// Show what a device is doing, without a part in it
///
/// Looks at the memory that a board in QEMU shares with the process that drives it. Exit status 1 when a processor of it has
/// stopped by a fault.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Process that drives the board, or QEMU itself
    #[arg(value_name = "PID", required_unless_present = "shared", conflicts_with = "shared")]
    process: Option<u32>,
    /// The file that is the board's memory
    #[arg(long, value_name = "FILE")]
    shared: Option<PathBuf>,
    /// Print JSON: an array with an object for each board
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut files: Vec<PathBuf> = args.shared.iter().cloned().collect();
    if let Some(process) = args.process {
        files.extend(shared::files_of(process)?);
    }
    let read = |file: PathBuf| Ok((shared::status_in(&file)?, file));
    let boards: Vec<(DeviceStatus, PathBuf)> = files.into_iter().map(read).collect::<anyhow::Result<_>>()?;
    let text = match args.json {
        true => {
            let board = |(status, file): &(_, PathBuf)| json!({"shared": file, "status": status});
            format!("{}\n", serde_json::to_string_pretty(&boards.iter().map(board).collect::<Vec<_>>())?)
        }
        false => boards.iter().map(|(status, file)| as_text(status, file)).collect(),
    };
    output::print(&text)?;
    let has_faulted = boards.iter().any(|(status, _)| status.faults().next().is_some());
    Ok(if has_faulted { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn as_text(status: &DeviceStatus, file: &std::path::Path) -> String {
    let mut text = format!(
        "{}: {}, build {}, {} Hz\n",
        file.display(),
        status.phase,
        OneLine(&status.build),
        status.frequency_hz
    );
    for (number, lane) in status.lanes.iter().enumerate() {
        let _ = writeln!(text, "lane {number:<6} processor {}, {}", lane.processor, OneLine(lane));
    }
    for (number, processor) in status.processors.iter().enumerate() {
        let _ = writeln!(text, "processor {number:<1} {}", OneLine(processor));
    }
    text
}
