//! `cargo xtask test`: every test there is, from one table.
//!
//! All steps run even when one fails; what went wrong is printed together at the end, and the last line is
//! `N passed, M failed`, the sum of what the runners themselves counted. A step in which no test ran has failed.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::components::{self, Component};
use crate::{lint, model, process, workspace};
use counts::Counts;

pub(crate) mod counts;
mod qemu;
mod sanitize;

/// Passes every test; installs what is missing first.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these steps.
    #[arg(long, value_delimiter = ',', value_name = "STEP", value_parser = step_names())]
    only: Vec<String>,
}

/// One step of a full test run.
struct Step {
    name: &'static str,
    needs: &'static [Component],
    /// Whether a developer's machine may lack what the step needs; the continuous integration never may.
    optional: bool,
    run: fn() -> anyhow::Result<Outcome>,
}

/// What a step counted, and what went wrong in it.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Tests by outcome, as the runner counted them.
    pub(crate) counts: Counts,
    /// What to repeat at the end.
    pub(crate) complaints: Vec<String>,
}

const STEPS: &[Step] = &[
    Step { name: "lint", needs: lint::NEEDS, optional: false, run: lint::outcome },
    Step { name: "host", needs: &[], optional: false, run: host },
    Step { name: "trace", needs: &[], optional: false, run: trace },
    Step { name: "model", needs: &[], optional: false, run: protocol },
    Step { name: "loom", needs: &[], optional: false, run: orders },
    Step { name: "qemu", needs: qemu::NEEDS, optional: false, run: qemu::all },
    Step { name: "miri", needs: &[Component::Miri], optional: true, run: miri },
    Step { name: "sanitize", needs: sanitize::NEEDS, optional: true, run: sanitize::races },
];

/// More than any step has needed on two cores, so that only a hang meets it.
const STEP_BOUND: Duration = Duration::from_secs(20 * 60);

/// Lines of a failed runner's output that are repeated at the end.
const REPEATED_LINES: usize = 60;

fn step_names() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(STEPS.iter().map(|step| step.name))
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut total = Counts::default();
    let mut summary = Vec::new();
    let mut complaints = Vec::new();
    for step in
        STEPS.iter().filter(|step| args.only.is_empty() || args.only.iter().any(|name| name == step.name))
    {
        println!("== {}", step.name);
        let started = Instant::now();
        let (counts, said) = match attempt(step) {
            Ok(Some(outcome)) => judge(outcome),
            Ok(None) => {
                summary.push(format!("{:8} not run: {}", step.name, missing(step)));
                continue;
            }
            Err(error) => (Counts::one(false), vec![format!("{error:#}")]),
        };
        summary.push(format!("{:8} {counts} in {:.1} s", step.name, started.elapsed().as_secs_f64()));
        complaints.extend(said.into_iter().map(|text| (step.name, text)));
        total += counts;
    }
    for (name, text) in &complaints {
        println!("== {name} failed\n{text}");
    }
    println!("== summary");
    summary.iter().for_each(|line| println!("{line}"));
    println!("{total}");
    Ok(if total.failed == 0 && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Installs what a step needs and runs it; `None` when it may be and has to be left out.
fn attempt(step: &Step) -> anyhow::Result<Option<Outcome>> {
    if !step.optional {
        components::ensure(step.needs)?;
    } else if !components::ensure_where_possible(step.needs)? {
        return Ok(None);
    }
    (step.run)().map(Some)
}

fn missing(step: &Step) -> String {
    let names: Vec<_> = step.needs.iter().filter(|need| !need.is_present()).map(|need| need.name()).collect();
    format!("{} missing", names.join(" and "))
}

/// A step whose failure left no failed test behind, or that ran none, still counts as one failure.
fn judge(outcome: Outcome) -> (Counts, Vec<String>) {
    let Outcome { mut counts, mut complaints } = outcome;
    if !counts.any() {
        complaints.push("ran no test".to_owned());
    }
    if !complaints.is_empty() && counts.failed == 0 {
        counts.failed = 1;
    }
    (counts, complaints)
}

/// Runs `command` and judges it by its status and by what `count` reads in its output.
pub(crate) fn run_counted(
    command: Command,
    bound: Duration,
    count: fn(&str) -> Counts,
) -> anyhow::Result<Outcome> {
    Ok(outcome_of(&process::run_bounded(command, bound, &mut std::io::stdout())?, count))
}

/// Runs several commands of cargo's test harness, each of which has to run some test.
fn run_all(commands: impl IntoIterator<Item = Command>) -> anyhow::Result<Outcome> {
    let mut all = Outcome::default();
    for command in commands {
        let asked = format!("{command:?} ran no test");
        let Outcome { counts, complaints } = run_counted(command, STEP_BOUND, counts::of_cargo_test)?;
        all.complaints.extend((!counts.any()).then_some(asked));
        all.complaints.extend(complaints);
        all.counts += counts;
    }
    Ok(all)
}

/// The same for commands that each keep one processor busy, all at once.
fn run_at_once(commands: impl IntoIterator<Item = Command>) -> anyhow::Result<Outcome> {
    let runs: Vec<_> =
        commands.into_iter().map(|command| std::thread::spawn(move || run_all([command]))).collect();
    let mut all = Outcome::default();
    for run in runs {
        let outcome = run.join().map_err(|_| anyhow::anyhow!("a command was not watched to its end"))??;
        all.counts += outcome.counts;
        all.complaints.extend(outcome.complaints);
    }
    Ok(all)
}

fn outcome_of(finished: &process::Finished, count: fn(&str) -> Counts) -> Outcome {
    let counts = count(&finished.output);
    let complaints = match finished.complaint() {
        Some(end) => vec![format!("{}\n{end}", process::tail(&finished.output, REPEATED_LINES))],
        None => Vec::new(),
    };
    Outcome { counts, complaints }
}

/// Unit, property, documentation and whole-system tests on this machine.
fn host() -> anyhow::Result<Outcome> {
    let mut command = workspace::cargo();
    command.current_dir(workspace::root()).args(["test", "--workspace", "--no-fail-fast"]);
    run_counted(command, STEP_BOUND, counts::of_cargo_test)
}

/// Traces, decoded by bindings made from the viewer's own schema. They take minutes to compile, hence a step of their own.
fn trace() -> anyhow::Result<Outcome> {
    let mut build = workspace::cargo();
    build.current_dir(workspace::root()).args(["build", "--package", "sluice-host", "--bin", "sluice"]);
    let built = process::run_bounded(build, STEP_BOUND, &mut std::io::stdout())?;
    if let Some(end) = built.complaint() {
        return Err(anyhow::anyhow!("{}\n{end}", process::tail(&built.output, REPEATED_LINES)));
    }
    let mut command = workspace::cargo();
    command.current_dir(workspace::root()).args(["test", "--package", "sluice-tests"]);
    command.args(["--features", "perfetto", "--test", "trace"]);
    run_counted(command, STEP_BOUND, counts::of_cargo_test)
}

/// The protocol in every interleaving, and what notices each rule that is left out.
fn protocol() -> anyhow::Result<Outcome> {
    let mut command = model::command(true);
    command.current_dir(workspace::root());
    run_counted(command, STEP_BOUND, |output| counts::of_model(output).unwrap_or_default())
}

/// The orders that the protocol needs of shared words, and that each one left out is noticed; then the host's own pieces,
/// which have loom's locks in a build that nothing else can use.
fn orders() -> anyhow::Result<Outcome> {
    let mut protocol = model::loom_tests("");
    protocol.current_dir(workspace::root());
    let mut host = workspace::cargo();
    host.current_dir(workspace::root()).args(["test", "--release", "--no-fail-fast"]);
    host.args(["--package", "sluice-host", "--lib", "interleavings::"]);
    host.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", workspace::root().join("target/loom"));
    run_all([protocol, host])
}

/// The same unit tests of `core`, and of the roles that serve a session, under an interpreter that knows undefined behaviour
/// and races when it sees them.
///
/// Interpreting is slow and finds nothing in arithmetic: property tests run a few cases, the largest of them mark themselves
/// as ignored there, and tests that need a whole device or its threads are left to the sanitizer. An interpreter keeps one
/// processor busy whatever it interprets, so several of them share the tests.
fn miri() -> anyhow::Result<Outcome> {
    let test = |package: &str, filter: &[&str]| {
        let mut command = Command::new("rustup");
        command.current_dir(workspace::root()).args(["run", "nightly", "cargo", "miri", "test"]);
        command.args(["--lib", "--no-fail-fast", "--package", package, "--"]).args(filter);
        // Property tests look for earlier failures in files beside the source, which isolation would forbid.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "2");
        command
    };
    let roles =
        ["ledger", "tests::attach", "tests::copied", "tests::drain", "tests::keeper", "tests::owners"];
    let roles = roles.map(|of| format!("dfx::{of}::"));
    let shares = [
        test("sluice-core", &["producer::"]),
        test("sluice-core", &["--skip", "producer::"]),
        test("sluice-host", &roles.each_ref().map(String::as_str)),
    ];
    run_at_once(shares).context("miri")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(passed: u64, failed: u64, complaints: &[&str]) -> Outcome {
        Outcome {
            counts: Counts { passed, failed },
            complaints: complaints.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    #[test]
    fn a_step_without_tests_has_failed() {
        let (counts, complaints) = judge(outcome(0, 0, &[]));
        assert_eq!(counts, Counts { passed: 0, failed: 1 });
        assert_eq!(complaints, ["ran no test"]);
    }

    #[test]
    fn a_runner_that_fails_beside_its_tests_counts_as_one() {
        assert_eq!(judge(outcome(5, 0, &["does not build"])).0, Counts { passed: 5, failed: 1 });
        assert_eq!(judge(outcome(5, 2, &["exit status 101"])).0, Counts { passed: 5, failed: 2 });
        assert_eq!(judge(outcome(5, 0, &[])).0, Counts { passed: 5, failed: 0 });
    }

    #[test]
    fn a_failing_command_keeps_its_counts_and_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test result: FAILED. 4 passed; 1 failed; 0 ignored'; exit 101"]);
        let finished = process::run_bounded(command, Duration::from_secs(60), &mut std::io::sink()).unwrap();
        let outcome = outcome_of(&finished, counts::of_cargo_test);
        assert_eq!(outcome.counts, Counts { passed: 4, failed: 1 });
        assert!(outcome.complaints[0].contains("FAILED. 4 passed") && outcome.complaints[0].ends_with("101"));
    }
}
