//! The project's own rules about its source, one small file per rule.
//!
//! A rule is a function from the tree to its findings. To add one: a file here, one line in [`ALL`].

use std::fmt;
use std::path::Path;

use anyhow::Context;

mod licences;
mod machine_paths;
mod module_size;
mod named_tests;
mod rust_text;
mod unfinished;
mod unsafe_places;
mod workspace_lints;

/// A rule: everything in the tree that breaks it.
pub(crate) type Check = fn(&Tree) -> anyhow::Result<Vec<Finding>>;

/// Every rule, with the name it is reported under.
pub(crate) const ALL: &[(&str, Check)] = &[
    ("unsafe only where it may stand", unsafe_places::check),
    ("no path of one machine", machine_paths::check),
    ("nothing left unfinished", unfinished::check),
    ("modules of readable size", module_size::check),
    ("tests named in docs/failures.md exist", named_tests::check),
    ("every crate has the workspace lints", workspace_lints::check),
    ("licences and sources as in deny.toml", licences::check),
];

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// File, relative to the root.
    pub(crate) path: String,
    /// Line, counted from 1; 0 for the file as a whole.
    pub(crate) line: usize,
    /// What is wrong there.
    pub(crate) text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}

/// A text file of the project.
#[derive(Debug)]
pub(crate) struct File {
    /// Path relative to the root, with `/` between its parts.
    pub(crate) path: String,
    /// Its content.
    pub(crate) text: String,
}

impl File {
    /// One finding for each line that `judge` has something to say about.
    fn findings(&self, judge: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
        numbered(&self.text)
            .filter_map(|(line, text)| Some(Finding { path: self.path.clone(), line, text: judge(text)? }))
            .collect()
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Lines with their numbers, counted from 1.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// Whether `word` stands in `line` with no letter, digit or underscore beside it.
fn has_word(line: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(joins) && !line[at + word.len()..].starts_with(joins))
}

/// All text files below the root, without what is built or hidden.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: Vec<File>,
}

impl Tree {
    /// Reads the tree.
    ///
    /// # Errors
    /// When a folder or file cannot be read.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn read_folder(&mut self, root: &Path, relative: &str) -> anyhow::Result<()> {
        let folder = root.join(relative);
        for entry in
            std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?
        {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if relative.is_empty() { name.clone() } else { format!("{relative}/{name}") };
            let kind = entry.file_type()?;
            if kind.is_dir() && !matches!(name.as_str(), "target" | ".git" | "node_modules") {
                self.read_folder(root, &path)?;
            } else if kind.is_file() && name != ".git" {
                let bytes = std::fs::read(entry.path()).with_context(|| format!("cannot read {path}"))?;
                // What is not text is data, which these rules do not judge.
                if let Ok(text) = String::from_utf8(bytes) {
                    self.files.push(File { path, text });
                }
            }
        }
        Ok(())
    }

    fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let files =
            files.iter().map(|(path, text)| File { path: (*path).to_owned(), text: (*text).to_owned() });
        Self { files: files.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_not_a_part_of_a_longer_one() {
        assert!(has_word("an unsafe block", "unsafe") && has_word("unsafe{", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe") && !has_word("makeunsafe", "unsafe"));
        assert!(has_word("unsafe_code, unsafe", "unsafe"));
    }

    #[test]
    fn the_tree_has_this_file_and_nothing_that_was_built() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let tree = Tree::read(root).unwrap();
        assert!(tree.rust().any(|file| file.path == "xtask/src/lints/mod.rs"));
        assert!(tree.files.iter().all(|file| !file.path.starts_with("target/")));
    }

    #[test]
    fn a_finding_names_its_place() {
        let mut finding = Finding { path: "a.rs".to_owned(), line: 3, text: "bad".to_owned() };
        assert_eq!(finding.to_string(), "a.rs:3: bad");
        finding.line = 0;
        assert_eq!(finding.to_string(), "a.rs: bad");
    }
}
