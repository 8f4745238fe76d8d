//! `cargo xtask bench`: the table of figures.
//!
//! ```text
//!   figures (tests/benches, optimised) ──► figure NAME UNIT VALUE BASELINE=VALUE ──► table, target/sluice/bench.json
//! ```
//!
//! The program measures, this command judges: it knows which way a unit goes and what each figure is to reach. A ratio is
//! value over baseline for a time and baseline over value for a rate, so smaller is better everywhere.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use crate::{process, workspace};

/// Measures every figure, prints them beside their baselines and goals, and writes `target/sluice/bench.json`.
///
/// A goal that is missed is printed as such; the exit status only says whether everything could be measured.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only look whether everything runs: short, and the figures are rough.
    #[arg(long)]
    quick: bool,
    /// Measure only these figures.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = names())]
    only: Vec<String>,
}

/// Every figure with the greatest ratio that it is to have; `None` where it is only reported.
const FIGURES: &[(&str, Option<f64>)] = &[
    ("append_32b", Some(1.3)),
    ("switch_uncontended", Some(2.5)),
    ("handover_1pool", Some(3.0)),
    ("handover_24pools", Some(1.5)),
    ("capture_to_file", Some(1.5)),
    ("flat_records", Some(1.1)),
    ("flat_pools", Some(1.5)),
    ("freeze_round_trip", Some(20.0)),
    ("freeze_round_trip_cold", None),
    ("distortion_all", None),
    ("distortion_lane", None),
    ("name_lookup_64", Some(1.35)),
    ("name_lookup_512", Some(1.35)),
    ("bind_hit", Some(0.05)),
    ("bind_miss", Some(1.7)),
    ("submit_empty", Some(10.0)),
    ("submit_empty_cold", None),
    ("wait_long", Some(0.02)),
];

/// More than all figures have taken, building included, so that only a hang meets it.
const BOUND: Duration = Duration::from_secs(20 * 60);

/// Where the figures are kept.
const FILE: &str = "bench.json";

fn names() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(FIGURES.iter().map(|(name, _)| name))
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut command = workspace::cargo();
    command.current_dir(workspace::root());
    command.args(["bench", "--package", "sluice-tests", "--features", "bench", "--bench", "figures", "--"]);
    if args.quick {
        command.arg("--quick");
    }
    if !args.only.is_empty() {
        command.arg("--only").arg(args.only.join(","));
    }
    let finished = process::run_bounded(command, BOUND, &mut std::io::stdout())?;
    let measured = finished.output.lines().filter_map(Figure::parse).collect::<Vec<_>>();
    let missing = missing(&measured, &args.only);

    let file = workspace::artefact(FILE);
    std::fs::create_dir_all(file.parent().context("a file lies in a folder")?)?;
    let text = serde_json::to_string_pretty(&as_json(&measured))? + "\n";
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;

    print!("{}", Table(&measured));
    println!("written to {}", file.display());
    for name in &missing {
        println!("{name} could not run");
    }
    let complaint = finished.complaint();
    complaint.iter().for_each(|complaint| println!("the bench program {complaint}"));
    Ok(if complaint.is_none() && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A figure as the program printed it.
#[derive(Clone, PartialEq, Debug)]
struct Figure<'a> {
    name: &'a str,
    unit: &'a str,
    value: f64,
    baseline: &'a str,
    baseline_value: f64,
}

impl<'a> Figure<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.strip_prefix("figure ")?.split(' ');
        let (name, unit, value) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
        let (baseline, baseline_value) = words.next()?.split_once('=')?;
        Some(Self { name, unit, value, baseline, baseline_value: baseline_value.parse().ok()? })
    }

    /// How far from its baseline, the smaller the better.
    fn ratio(&self) -> f64 {
        if self.unit.ends_with("/s") {
            self.baseline_value / self.value
        } else {
            self.value / self.baseline_value
        }
    }

    fn goal(&self) -> Option<f64> {
        FIGURES.iter().find(|(name, _)| *name == self.name)?.1
    }
}

/// The figures that were asked for, all of them if none was named, and did not come.
fn missing<'a>(measured: &[Figure<'_>], only: &'a [String]) -> Vec<&'a str> {
    let all = FIGURES.iter().map(|(name, _)| *name);
    let wanted: Vec<&str> =
        if only.is_empty() { all.collect() } else { only.iter().map(String::as_str).collect() };
    wanted.into_iter().filter(|name| measured.iter().all(|figure| figure.name != *name)).collect()
}

/// `{NAME: {"value", "unit", "baseline": {NAME: value}, "ratio"}, …}`.
fn as_json(measured: &[Figure<'_>]) -> Value {
    let entry = |figure: &Figure<'_>| {
        json!({
            "value": figure.value,
            "unit": figure.unit,
            "baseline": { figure.baseline: figure.baseline_value },
            "ratio": figure.ratio(),
        })
    };
    json!(measured.iter().map(|figure| (figure.name, entry(figure))).collect::<BTreeMap<_, _>>())
}

/// The figures as a person reads them.
struct Table<'a>(&'a [Figure<'a>]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, [name, value, unit, baseline, ratio, goal, met]: [&str; 7]| {
            writeln!(f, "{name:20} {value:>12} {unit:10} {baseline:32} {ratio:>7} {goal:>7}  {met}")
        };
        row(f, ["figure", "value", "unit", "baseline", "ratio", "goal", "result"])?;
        for figure in self.0 {
            let (value, ratio) = (format!("{:.1}", figure.value), format!("{:.3}", figure.ratio()));
            let baseline = format!("{:.1} {}", figure.baseline_value, figure.baseline);
            let (goal, met) = match figure.goal() {
                Some(goal) if figure.ratio() <= goal => (format!("≤ {goal}"), "met"),
                Some(goal) => (format!("≤ {goal}"), "missed"),
                None => (String::new(), "reported"),
            };
            row(f, [figure.name, &value, figure.unit, &baseline, &ratio, &goal, met])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "   Compiling a v1.0.0\nfigure name_lookup_64 ns 15.000 map=10.000\nfigure rate records/s 50.0 memcpy=100.0\nfigure half\n";

    fn measured() -> Vec<Figure<'static>> {
        OUTPUT.lines().filter_map(Figure::parse).collect()
    }

    #[test]
    fn smaller_ratios_are_better_for_times_and_for_rates() {
        let ratios: Vec<_> = measured().iter().map(|figure| (figure.name, figure.ratio())).collect();
        assert_eq!(ratios, [("name_lookup_64", 1.5), ("rate", 2.0)]);
    }

    #[test]
    fn the_file_has_the_documented_shape() {
        assert_eq!(
            as_json(&measured()),
            json!({
                "name_lookup_64": { "value": 15.0, "unit": "ns", "baseline": { "map": 10.0 }, "ratio": 1.5 },
                "rate": { "value": 50.0, "unit": "records/s", "baseline": { "memcpy": 100.0 }, "ratio": 2.0 },
            })
        );
    }

    #[test]
    fn a_goal_is_met_or_missed_and_one_without_is_reported() {
        let table = Table(&measured()).to_string();
        let lines: Vec<_> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(lines[1], ["name_lookup_64", "15.0", "ns", "10.0", "map", "1.500", "≤", "1.35", "missed"]);
        assert_eq!(lines[2], ["rate", "50.0", "records/s", "100.0", "memcpy", "2.000", "reported"]);
        let met = Figure { value: 13.5, ..measured()[0].clone() };
        assert!(Table(&[met]).to_string().trim_end().ends_with("met"));
    }

    #[test]
    fn what_was_asked_for_and_did_not_come_is_missing() {
        let only = ["name_lookup_64", "name_lookup_512"].map(str::to_owned);
        assert_eq!(missing(&measured(), &only), ["name_lookup_512"]);
        assert_eq!(missing(&measured(), &only[..1]), [""; 0]);
        assert!(missing(&[], &[]).len() == FIGURES.len());
    }
}
