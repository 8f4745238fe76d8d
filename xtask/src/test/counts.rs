//! How many tests a runner says it ran.

use std::ops::AddAssign;

/// Tests that ran, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed.
    pub(crate) failed: u64,
}

impl Counts {
    /// One check with its outcome.
    pub(crate) fn one(passed: bool) -> Self {
        Self { passed: passed.into(), failed: (!passed).into() }
    }

    /// Whether any test ran.
    pub(crate) fn any(self) -> bool {
        self.passed + self.failed > 0
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// The sum over all `test result:` lines, as Rust's test harness prints one per binary.
pub(crate) fn of_cargo_test(output: &str) -> Counts {
    let mut sum = Counts::default();
    for line in output.lines() {
        if let Some(counts) = line.trim_start().strip_prefix("test result: ").and_then(of_result) {
            sum += counts;
        }
    }
    sum
}

/// `ok. 3 passed; 0 failed; 1 ignored; …`
fn of_result(result: &str) -> Option<Counts> {
    let (_, numbers) = result.split_once(". ")?;
    let mut parts = numbers.split("; ");
    Some(Counts {
        passed: number_before(parts.next()?, " passed")?,
        failed: number_before(parts.next()?, " failed")?,
    })
}

/// The output's last line, when it is `N passed, M failed`; a runner of ours that did not get there has none.
pub(crate) fn of_last_line(output: &str) -> Option<Counts> {
    let line = output.lines().rev().find(|line| !line.trim().is_empty())?;
    let (passed, failed) = line.trim().split_once(", ")?;
    Some(Counts { passed: number_before(passed, " passed")?, failed: number_before(failed, " failed")? })
}

/// The last line of the protocol check, `states N, violations V, mutants caught K of T`: each mutant is a test, and the
/// shipped protocol is one.
pub(crate) fn of_model(output: &str) -> Option<Counts> {
    let line = output.lines().rev().find(|line| !line.trim().is_empty())?;
    let (states, rest) = line.strip_prefix("states ")?.split_once(", violations ")?;
    let (violations, mutants) = rest.split_once(", mutants caught ")?;
    let (caught, all) = mutants.split_once(" of ")?;
    let (violations, caught, all): (u64, u64, u64) =
        (violations.parse().ok()?, caught.parse().ok()?, all.parse().ok()?);
    let explored = states.parse::<u64>().ok()? > 0;
    let mut counts = Counts::one(explored && violations == 0);
    counts += Counts { passed: caught, failed: all.checked_sub(caught)? };
    Some(counts)
}

fn number_before(text: &str, suffix: &str) -> Option<u64> {
    text.strip_suffix(suffix)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_binaries_add_up() {
        let output = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            noise\n\
            test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(of_cargo_test(output), Counts { passed: 13, failed: 2 });
    }

    #[test]
    fn what_only_looks_like_a_result_counts_nothing() {
        assert_eq!(of_cargo_test("test result: ok\nresult: ok. 3 passed; 0 failed"), Counts::default());
        assert!(!of_cargo_test("").any());
    }

    #[test]
    fn only_the_last_line_ends_a_run() {
        assert_eq!(of_last_line("a ... ok\n4 passed, 1 failed\n\n"), Some(Counts { passed: 4, failed: 1 }));
        assert_eq!(of_last_line("4 passed, 0 failed\nhard fault"), None);
        assert_eq!(of_last_line("4 passed, x failed"), None);
        assert_eq!(of_last_line(""), None);
    }

    #[test]
    fn the_protocol_check_counts_its_mutants() {
        let counts =
            |line| of_model(&format!("noise\n{line}\n")).map(|counts| (counts.passed, counts.failed));
        assert_eq!(counts("states 12, violations 0, mutants caught 7 of 7"), Some((8, 0)));
        assert_eq!(counts("states 12, violations 2, mutants caught 5 of 7"), Some((5, 3)));
        assert_eq!(counts("states 0, violations 0, mutants caught 7 of 7"), Some((7, 1)));
        assert_eq!(counts("states 12, violations 0"), None);
        assert_eq!(counts("states 12, violations 0, mutants caught 8 of 7"), None);
    }

    #[test]
    fn the_printed_form_is_read_back() {
        let counts = Counts { passed: 7, failed: 2 };
        assert_eq!(of_last_line(&counts.to_string()), Some(counts));
    }
}
