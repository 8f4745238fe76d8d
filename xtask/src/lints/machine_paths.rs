//! No file names a folder that exists on one machine only.

use super::{Finding, Tree};

/// Starts of such paths, in two halves so that this file does not name one.
const STARTS: &[(&str, &str)] =
    &[("/ho", "me/"), ("/ro", "ot/"), ("/Us", "ers/"), ("/wo", "rk/"), ("C:", "\\Users")];

pub(super) fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    let starts: Vec<String> = STARTS.iter().map(|(a, b)| format!("{a}{b}")).collect();
    let judge = |line: &str| {
        let start = starts.iter().find(|start| names_path(line, start))?;
        Some(format!("`{start}…` exists on one machine only"))
    };
    Ok(tree.files.iter().flat_map(|file| file.findings(judge)).collect())
}

/// Whether `start` stands in `line` as the beginning of a path, not as a part of a longer one.
fn names_path(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(at, _)| {
        !line[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}' | '/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_are_found_and_relative_ones_are_not() {
        let bad = ["cd /ho", "me/someone/x"].concat();
        let good = ["see docs/ho", "me/index.md"].concat();
        let tree = Tree::of(&[("README.md", &format!("one\n{bad}\n{good}\n"))]);
        let findings = check(&tree).unwrap();
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].path.as_str(), findings[0].line), ("README.md", 2));
    }
}
