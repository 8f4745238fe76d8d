//! `sluice plan`: how many buffers would have kept the lanes from waiting.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use sluice_host::advise::Advice;
use sluice_host::capture::{Reader, census};
use sluice_host::report::units::{Bytes, Count, Many, Span};

use crate::options::capture_at;
use crate::output::{self, note_findings};

/// Recommend buffer counts from a capture
///
/// Replays the traffic of a run with lanes that never wait, on a host as fast as it was, and says how many buffers of
/// each kind were in use at most. Exits with 1 when the capture is damaged, broken off, or disagrees with its summary, or does
/// not say when buffers were drained: what it tells of is then not all that there was.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Capture file, or the folder of a run
    capture: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut reader = Reader::open(&capture_at(&args.capture))?;
    let findings = census(&mut reader)?.findings;
    let advice = Advice::of(&mut reader)?;
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&as_json(&advice))?),
        false => as_text(&advice),
    };
    output::print(&text)?;
    note_findings(&args.capture, &findings);
    let is_whole = findings.is_empty() && !advice.kinds.is_empty();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_json(advice: &Advice) -> serde_json::Value {
    let kind = |kind: &sluice_host::advise::KindAdvice| {
        json!({
            "subsystem": kind.subsystem.name(),
            "pool": kind.name,
            "pools": kind.pools,
            "had": kind.had,
            "recommended": kind.recommended,
            "device_bytes": kind.device_bytes,
            "evidence": {
                "buffers": kind.buffers,
                "peak": kind.peak,
                "peak_instance": kind.peak_instance,
                "peak_ns": kind.peak_ns,
                "waits": kind.waits,
                "waited_ns": kind.waited_ns,
            },
        })
    };
    let ring = |ring: &sluice_host::advise::RingAdvice| {
        json!({
            "subsystem": ring.subsystem.name(), "lane": ring.lane, "peak": ring.peak, "room": ring.room,
            "full": ring.is_full(),
        })
    };
    json!({
        "buffers": advice.buffers_option(),
        "kinds": advice.kinds.iter().map(kind).collect::<Vec<_>>(),
        "rings": advice.rings.iter().map(ring).collect::<Vec<_>>(),
        "freezes": advice.freezes,
        "freezes_avoided": advice.freezes_avoided,
        "host_load": advice.host_load,
        "host_busy": advice.is_host_busy(),
        "buffers_without_times": advice.buffers_without_times,
        "waits_unlogged": advice.waits_unlogged,
    })
}

fn as_text(advice: &Advice) -> String {
    let Some(option) = advice.buffers_option() else {
        return "the capture does not say when any buffer was drained and collected\n".into();
    };
    let mut text = format!(
        "{:16} {:>5} {:>6} {:>12} {:>12}  evidence\n",
        "pool", "pools", "had", "recommended", "memory"
    );
    let mut line = |line: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{line}");
    };
    for kind in &advice.kinds {
        let had = kind.had.map_or_else(|| "?".into(), |had| had.to_string());
        line(format_args!(
            "{:16} {:>5} {had:>6} {:>12} {:>12}  {}, at most {} at once under way, of pool {} at {}; {} of {} together",
            kind.name,
            kind.pools,
            kind.recommended,
            Bytes(kind.device_bytes).to_string(),
            Many(kind.buffers, "buffer", "buffers"),
            kind.peak,
            kind.peak_instance,
            Span(kind.peak_ns),
            Many(kind.waits, "wait", "waits"),
            Span(kind.waited_ns),
        ));
    }
    for ring in advice.rings.iter().filter(|ring| ring.is_full()) {
        line(format_args!(
            "{} lane {}: {} entries at once, the ready ring holds {}: no number of buffers keeps that lane from waiting",
            ring.subsystem, ring.lane, ring.peak, ring.room
        ));
    }
    if advice.is_host_busy() {
        line(format_args!(
            "the host was busy for {:.0} % of the time: more buffers put a wait off, and do not avoid it",
            100.0 * advice.host_load
        ));
    }
    if advice.buffers_without_times + advice.waits_unlogged > 0 {
        line(format_args!(
            "not looked at: {} without times, {} that no log held",
            Many(advice.buffers_without_times, "buffer", "buffers"),
            Many(advice.waits_unlogged, "wait", "waits"),
        ));
    }
    line(format_args!("freezes avoided: {} of {}", Count(advice.freezes_avoided), Count(advice.freezes)));
    line(format_args!("use: --buffers {option}"));
    text
}
