//! Nothing is left for later in a comment: what is not done is an issue, not a line of source.

use super::{Finding, Tree, has_word};

/// The words people leave, in two halves so that this file does not have them.
const WORDS: &[(&str, &str)] = &[("TO", "DO"), ("FIX", "ME"), ("todo", "!"), ("unimplemented", "!")];

pub(super) fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    let words: Vec<String> = WORDS.iter().map(|(a, b)| format!("{a}{b}")).collect();
    let judge = |line: &str| {
        let word = words.iter().find(|word| has_word(line, word))?;
        Some(format!("`{word}` left in the source"))
    };
    Ok(tree.files.iter().flat_map(|file| file.findings(judge)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_left_behind_is_found() {
        let text = ["fine\n// TO", "DO: later\ntodos\n"].concat();
        let findings = check(&Tree::of(&[("core/src/x.rs", &text)])).unwrap();
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    }
}
