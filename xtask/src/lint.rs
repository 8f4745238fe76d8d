//! `cargo xtask lint`: everything that is judged without running the code.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::components::{self, Component};
use crate::lints::{self, Finding};
use crate::test::Outcome;
use crate::test::counts::Counts;
use crate::toolchain::{self, Builder, Target};
use crate::{process, workspace};

/// Judges formatting, clippy, documentation and the project's own rules.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the project's own rules, which need no build.
    #[arg(long)]
    rules: bool,
}

/// What the checks of bare-metal crates need.
pub(crate) const NEEDS: &[Component] =
    &[Component::Target(Target::Thumbv7m), Component::Target(Target::Aarch64)];

/// Longer than a first build of everything takes on two cores.
const BOUND: Duration = Duration::from_secs(20 * 60);

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Outcome { counts, complaints } = if args.rules {
        let mut outcome = Outcome::default();
        check_rules(&mut outcome)?;
        outcome
    } else {
        components::ensure(NEEDS)?;
        outcome()?
    };
    for complaint in &complaints {
        println!("{complaint}");
    }
    println!("{counts}");
    Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs every check, each counted as one test.
///
/// # Errors
/// When a tool cannot be started or the source tree cannot be read.
pub(crate) fn outcome() -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    for (name, command) in commands() {
        let finished = process::run_bounded(command, BOUND, &mut std::io::stdout())?;
        let complaint =
            finished.complaint().map(|end| format!("{}\n{end}", process::tail(&finished.output, 80)));
        record(&mut outcome, &name, complaint);
    }
    check_rules(&mut outcome)?;
    Ok(outcome)
}

fn check_rules(outcome: &mut Outcome) -> anyhow::Result<()> {
    let tree = lints::Tree::read(&workspace::root())?;
    for (name, check) in lints::ALL {
        let findings = check(&tree)?;
        record(outcome, name, (!findings.is_empty()).then(|| listed(&findings)));
    }
    Ok(())
}

fn record(outcome: &mut Outcome, name: &str, complaint: Option<String>) {
    println!("lint {name} ... {}", if complaint.is_none() { "ok" } else { "FAILED" });
    outcome.counts += Counts::one(complaint.is_none());
    outcome.complaints.extend(complaint.map(|text| format!("{name}: {text}")));
}

fn listed(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The checks that other tools make.
fn commands() -> Vec<(String, Command)> {
    let root = workspace::root();
    let mut commands = vec![
        ("rustfmt".to_owned(), cargo(&root, &["fmt", "--all", "--check"])),
        (
            "clippy".to_owned(),
            cargo(
                &root,
                &[
                    "clippy",
                    "--workspace",
                    "--all-targets",
                    "--features",
                    "sluice-tests/loom,sluice-tests/bench",
                    "--",
                    "--deny",
                    "warnings",
                ],
            ),
        ),
    ];
    for target in [Target::Thumbv7m, Target::Aarch64] {
        if let Some(builder) = toolchain::builder(target) {
            commands.push((format!("bare metal {}", target.triple()), bare_metal(&builder, target)));
        }
    }
    let mut documentation = cargo(&root, &["doc", "--workspace", "--no-deps"]);
    documentation.env("RUSTDOCFLAGS", "--deny warnings");
    commands.push(("rustdoc".to_owned(), documentation));
    commands
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = workspace::cargo();
    command.current_dir(root).args(arguments);
    command
}

/// Clippy where the target's libraries are prebuilt; a compiler that builds them need not have it, so its own warnings
/// judge.
fn bare_metal(builder: &Builder, target: Target) -> Command {
    let prebuilt = *builder == Builder::Prebuilt;
    let mut command = builder.cargo(if prebuilt { "clippy" } else { "check" }, target);
    command.args(["--package", "sluice-core", "--package", "sluice-aicpu-fw"]);
    match target {
        Target::Thumbv7m => {
            command.args(["--package", "sluice-target-tests", "--features", "sluice-target-tests/image"]);
        }
        Target::Aarch64 => {
            command.args(["--features", "sluice-aicpu-fw/virt"]);
        }
        Target::Thumbv8m => {}
    }
    if prebuilt {
        command.args(["--", "--deny", "warnings"])
    } else {
        command.env("RUSTFLAGS", "--deny warnings")
    };
    command
}
