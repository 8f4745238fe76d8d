//! The page on failures that cannot happen names tests that exist, one or more for each.

use std::collections::HashSet;

use super::{Finding, Tree};

const PAGE: &str = "docs/failures.md";

pub(super) fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    let functions: HashSet<_> = tree.rust().flat_map(|file| file.text.lines().filter_map(function)).collect();
    let judge = |line: &str| {
        let row = line.strip_prefix("| D")?;
        let (_, cell) = row.trim_end().strip_suffix('|')?.rsplit_once('|')?;
        let names: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            return Some("names no test".to_owned());
        }
        let missing: Vec<_> = names.into_iter().filter(|name| !functions.contains(name)).collect();
        (!missing.is_empty()).then(|| format!("no such test: {}", missing.join(", ")))
    };
    let page = tree.files.iter().filter(|file| file.path == PAGE);
    Ok(page.flat_map(|file| file.findings(judge)).collect())
}

/// The name of the function that a line begins.
fn function(line: &str) -> Option<&str> {
    let (name, _) = line.trim_start().strip_prefix("fn ")?.split_once('(')?;
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_gone_is_found_and_so_is_a_row_without_one() {
        let page = "# Failures\n| D1 | what | why | `one`, `two` |\n| D2 | `what` | why | |\n| D3 | a | b | `one` |\n";
        let tree = Tree::of(&[
            (PAGE, page),
            ("core/src/a.rs", "    #[test]\n    fn one() {\n"),
            ("b.rs", "// fn two()"),
        ]);
        let found = check(&tree).unwrap();
        let found: Vec<_> = found.iter().map(|finding| (finding.line, finding.text.as_str())).collect();
        assert_eq!(found, [(2, "no such test: two"), (3, "names no test")]);
    }

    #[test]
    fn the_page_has_a_row_for_each_failure_that_is_known() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let page = std::fs::read_to_string(root.join(PAGE)).unwrap();
        let rows: Vec<_> =
            page.lines().filter_map(|line| line.strip_prefix("| D")?.split_once(' ')).collect();
        assert!(rows.iter().map(|(number, _)| *number).eq((1..=35).map(|number| number.to_string())));
    }
}
