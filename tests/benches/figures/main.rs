//! Measures the figures of `cargo xtask bench`, which judges them.
//!
//! ```text
//!   figures [--quick] [--only NAME,…]
//!   figure NAME UNIT VALUE BASELINE=VALUE          one line each, on standard output
//! ```
//!
//! A figure stands beside a baseline that the same process measures in turns with it (see `windows`). Nothing is judged
//! here, and no test asserts a time: `cargo xtask bench` knows the goals, prints the table and keeps it.
//!
//! | module | figures |
//! |---|---|
//! | `engine` | `append_32b`, `switch_uncontended` |
//! | `handover` | `handover_1pool`, `handover_24pools`, `capture_to_file` |
//! | `flatness` | `flat_records`, `flat_pools` |
//! | `freeze` | `freeze_round_trip`, `freeze_round_trip_cold` |
//! | `scope` | `distortion_all`, `distortion_lane` |
//! | `names` | `name_lookup_64`, `name_lookup_512` |
//! | `bind` | `bind_hit`, `bind_miss` |
//! | `submit` | `submit_empty`, `submit_empty_cold` |
//! | `wait` | `wait_long` |

mod bare;
mod bind;
mod chained;
mod cores;
mod engine;
mod flatness;
mod freeze;
mod handover;
mod machine;
mod names;
mod pingpong;
mod scope;
mod submit;
mod wait;
mod windows;

use std::fmt;
use std::process::ExitCode;

use anyhow::Context;

use cores::Cores;
use windows::Effort;

/// A measured figure.
#[derive(Clone, Copy, Debug)]
struct Figure {
    name: &'static str,
    unit: &'static str,
    value: f64,
    /// What it is compared with, and the same unit of that.
    baseline: (&'static str, f64),
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, unit, value, baseline: (baseline, of_baseline) } = self;
        write!(f, "figure {name} {unit} {value:.3} {baseline}={of_baseline:.3}")
    }
}

/// One measurement: the figures that come out of it, and what measures them.
type Bench = (&'static [&'static str], fn(Effort, &Cores) -> anyhow::Result<Vec<Figure>>);

const BENCHES: &[Bench] = &[
    (&["append_32b"], engine::append),
    (&["switch_uncontended"], engine::switch),
    (&["handover_1pool"], handover::one_pool),
    (&["handover_24pools"], handover::pools),
    (&["capture_to_file"], handover::capture),
    (&["flat_records"], flatness::records),
    (&["flat_pools"], flatness::pools),
    (&["freeze_round_trip", "freeze_round_trip_cold"], freeze::round_trip),
    (&["distortion_all", "distortion_lane"], scope::distortion),
    (&["name_lookup_64"], names::lookup::<64>),
    (&["name_lookup_512"], names::lookup::<512>),
    (&["bind_hit"], bind::hit),
    (&["bind_miss"], bind::miss),
    (&["submit_empty", "submit_empty_cold"], submit::empty),
    (&["wait_long"], wait::long),
];

/// What was asked for.
#[derive(Debug, Default)]
struct Wanted {
    effort: Effort,
    /// Names of figures; all of them if there is none.
    only: Vec<String>,
}

impl Wanted {
    fn parse(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut wanted = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => wanted.effort = Effort::Quick,
                "--only" => {
                    let names = arguments.next().context("--only takes names of figures")?;
                    wanted.only.extend(names.split(',').map(str::to_owned));
                }
                // Cargo says so to every bench.
                "--bench" => {}
                _ => anyhow::bail!("what is `{argument}`?"),
            }
        }
        Ok(wanted)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let wanted = Wanted::parse(std::env::args().skip(1))?;
    let cores = Cores::allowed()?;
    let mut code = ExitCode::SUCCESS;
    for (names, measure) in BENCHES.iter().filter(|(names, _)| names.iter().any(|name| wanted.wants(name))) {
        match measure(wanted.effort, &cores) {
            Ok(figures) => {
                figures.iter().filter(|figure| wanted.wants(figure.name)).for_each(|line| println!("{line}"))
            }
            Err(error) => {
                eprintln!("{} could not run: {error:#}", names.join(", "));
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
