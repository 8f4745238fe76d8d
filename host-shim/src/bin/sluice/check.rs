//! `sluice check`: whether a capture is whole and agrees with what its run said.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use sluice_host::capture::{Census, Reader, census};
use sluice_host::report::units::{Bytes, Count, Many};

use crate::options::capture_at;
use crate::output;

/// Verify a capture
///
/// Exits with 1 when it is damaged, disagrees with its summary, or records were lost.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Capture file, or the folder of a run
    capture: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let census = census(&mut Reader::open(&capture_at(&args.capture))?)?;
    let text = if args.json {
        format!("{}\n", serde_json::to_string_pretty(&as_json(&census))?)
    } else {
        as_text(&census)
    };
    output::print(&text)?;
    Ok(if census.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_json(census: &Census) -> serde_json::Value {
    let pools: Vec<_> = census
        .pools
        .iter()
        .map(|(pool, count)| {
            json!({"pool": pool.to_string(), "records": count.records, "buffers": count.buffers})
        })
        .collect();
    json!({
        "good": census.is_good(),
        "complete": census.summary.is_some(),
        "lossless": census.is_good(),
        "run": census.header.run.0,
        "arch": census.header.arch.name(),
        "clock_hz": census.header.clock_hz,
        "bytes": census.bytes,
        "duplicates": census.duplicates,
        "freezes": census.freezes,
        "damages": census.damage_count,
        "pools": pools,
        "findings": census.findings,
    })
}

fn as_text(census: &Census) -> String {
    let header = &census.header;
    let mut text =
        format!("run {} on {} at {} Hz, {}\n", header.run, header.arch, header.clock_hz, Bytes(census.bytes));
    for (pool, count) in &census.pools {
        text += &format!(
            "  {:28} {:>14} records {:>10} buffers\n",
            pool.to_string(),
            Count(count.records).to_string(),
            Count(count.buffers).to_string()
        );
    }
    text += &format!(
        "  {}, {}, {}\n",
        Many(census.freezes, "freeze", "freezes"),
        Many(census.duplicates, "duplicate buffer left out", "duplicate buffers left out"),
        Many(census.damage_count, "damaged place", "damaged places"),
    );
    for finding in &census.findings {
        text += &format!("  {finding}\n");
    }
    text += match (&census.summary, census.findings.is_empty()) {
        (_, false) => "not whole\n",
        (Some(summary), true) if !summary.report.lossless => "whole, and records were lost in the run\n",
        (_, true) => "whole, nothing lost\n",
    };
    text
}
