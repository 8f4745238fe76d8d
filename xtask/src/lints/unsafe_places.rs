//! `unsafe` stands only in the modules that exist to hold it.

use super::{Finding, Tree, has_word, numbered, rust_text};

/// Where it may stand. The compiler's own lint denies it per crate; this list keeps the exceptions few.
const PLACES: &[&str] = &[
    "core/src/mem.rs",
    "core/src/mem/",
    "host-shim/src/device/",
    "host-shim/src/ffi/",
    "host-shim/src/ffi.rs",
    "aicpu-fw/src/bin/",
    "tests/cortex-m/src/board.rs",
];

pub(super) fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !PLACES.iter().any(|place| file.path.starts_with(place))) {
        let code = rust_text::code(&file.text);
        findings.extend(numbered(&code).filter(|(_, line)| opens_unsafe(line)).map(|(line, _)| Finding {
            path: file.path.clone(),
            line,
            text: "unsafe code outside the modules that exist to hold it".to_owned(),
        }));
    }
    Ok(findings)
}

/// A use of the keyword, or a lint attribute that lets one in.
fn opens_unsafe(line: &str) -> bool {
    let lint_opened = has_word(line, "unsafe_code")
        && ["allow(", "expect(", "warn("].iter().any(|word| line.contains(word));
    has_word(line, "unsafe") || lint_opened
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_outside_the_places_is_found() {
        let tree = Tree::of(&[
            ("core/src/mem.rs", "unsafe {}"),
            ("core/src/gate.rs", "// unsafe\nlet unsafe_word = \"unsafe\";\nunsafe { f() }"),
            ("core/src/lib.rs", "#![forbid(unsafe_code)]"),
            ("core/src/exec.rs", "#![allow(unsafe_code)]"),
        ]);
        let found: Vec<_> =
            check(&tree).unwrap().into_iter().map(|finding| (finding.path, finding.line)).collect();
        assert_eq!(found, [("core/src/gate.rs".to_owned(), 3), ("core/src/exec.rs".to_owned(), 1)]);
    }
}
