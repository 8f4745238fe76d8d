//! A module is one idea that is read in one sitting.

use super::{Finding, Tree};

/// Lines a module may have before its unit tests.
const LIMIT: usize = 700;

pub(super) fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    let too_long = |file: &&super::File| code_lines(&file.text) > LIMIT;
    let finding = |file: &super::File| Finding {
        path: file.path.clone(),
        line: 0,
        text: format!(
            "{} lines before its tests, at most {LIMIT}: split it by concept",
            code_lines(&file.text)
        ),
    };
    Ok(tree.rust().filter(too_long).map(finding).collect())
}

/// Lines up to the unit tests at the end.
fn code_lines(text: &str) -> usize {
    let lines: Vec<_> = text.lines().collect();
    let tests =
        lines.windows(2).position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests {"));
    tests.unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_before_the_tests_count() {
        let full = "x\n".repeat(LIMIT);
        let tested = format!("{full}#[cfg(test)]\nmod tests {{\n{full}}}\n");
        let long = format!("{full}x\n");
        let tree = Tree::of(&[("a.rs", &full), ("b.rs", &tested), ("c.rs", &long), ("d.md", &long)]);
        let found: Vec<_> = check(&tree).unwrap().into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, ["c.rs"]);
    }
}
