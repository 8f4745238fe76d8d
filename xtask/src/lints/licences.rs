//! Every dependency comes from crates.io under a licence that `deny.toml` allows.
//!
//! The same list serves `cargo deny`, which is not needed to run this check.

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Finding, Tree};
use crate::{process, workspace};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
const POLICY: &str = "deny.toml";

pub(super) fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    let policy = tree.files.iter().find(|file| file.path == POLICY).context("deny.toml is missing")?;
    let allowed = allowed(&policy.text)?;
    let mut metadata = workspace::cargo();
    metadata.current_dir(workspace::root());
    metadata.args(["metadata", "--format-version", "1", "--all-features"]);
    // Crates that only other systems would build are not part of what is shipped.
    metadata.args([
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
        "--filter-platform",
        "thumbv7m-none-eabi",
    ]);
    metadata.args(["--filter-platform", "aarch64-unknown-none"]);
    let text = process::capture(metadata).context("`cargo metadata` failed")?;
    judge(&serde_json::from_str(&text).context("`cargo metadata` printed no JSON")?, &allowed)
}

/// The crates of a `cargo metadata` answer that the policy refuses.
fn judge(metadata: &Value, allowed: &[&str]) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let packages = metadata["packages"].as_array().context("metadata without packages")?;
    for package in packages.iter().filter(|package| is_used(metadata, package)) {
        let mut refuse = |text: String| {
            let name = format!("{} {}", package["name"], package["version"]).replace('"', "");
            findings.push(Finding { path: POLICY.to_owned(), line: 0, text: format!("{name}: {text}") });
        };
        match package["source"].as_str() {
            None | Some(CRATES_IO) => {}
            Some(source) => refuse(format!("comes from {source}")),
        }
        match package["license"].as_str() {
            None => refuse("names no licence".to_owned()),
            Some(expression) if satisfies(expression, allowed)? => {}
            Some(expression) => refuse(format!("licence `{expression}` is not allowed")),
        }
    }
    Ok(findings)
}

/// Whether the resolved graph has the package; metadata lists more than it resolves.
fn is_used(metadata: &Value, package: &Value) -> bool {
    metadata["resolve"]["nodes"]
        .as_array()
        .is_some_and(|nodes| nodes.iter().any(|node| node["id"] == package["id"]))
}

/// The quoted names between the brackets of `allow = [ … ]` in the policy.
fn allowed(policy: &str) -> anyhow::Result<Vec<&str>> {
    let list = policy
        .split_once("[licenses]")
        .and_then(|(_, section)| section.split_once("allow = ["))
        .and_then(|(_, list)| list.split_once(']'))
        .context("deny.toml has no list `allow` in `[licenses]`")?
        .0;
    Ok(list.split('"').skip(1).step_by(2).collect())
}

/// Whether an SPDX expression can be met by the allowed licences alone.
///
/// # Errors
/// When the expression does not parse.
fn satisfies(expression: &str, allowed: &[&str]) -> anyhow::Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let (met, rest) = any_of(&words, allowed).with_context(|| format!("licence `{expression}`"))?;
    if !rest.is_empty() {
        bail!("licence `{expression}`: nothing expected from `{}` on", rest.join(" "));
    }
    Ok(met)
}

type Parsed<'a, 'b> = anyhow::Result<(bool, &'b [&'a str])>;

fn any_of<'a, 'b>(words: &'b [&'a str], allowed: &[&str]) -> Parsed<'a, 'b> {
    let (mut met, mut rest) = all_of(words, allowed)?;
    while let Some(("OR", after)) = rest.split_first().map(|(word, after)| (*word, after)) {
        let (other, after) = all_of(after, allowed)?;
        met |= other;
        rest = after;
    }
    Ok((met, rest))
}

fn all_of<'a, 'b>(words: &'b [&'a str], allowed: &[&str]) -> Parsed<'a, 'b> {
    let (mut met, mut rest) = one(words, allowed)?;
    while let Some(("AND", after)) = rest.split_first().map(|(word, after)| (*word, after)) {
        let (other, after) = one(after, allowed)?;
        met &= other;
        rest = after;
    }
    Ok((met, rest))
}

/// A name, a name with an exception, or an expression in parentheses.
fn one<'a, 'b>(words: &'b [&'a str], allowed: &[&str]) -> Parsed<'a, 'b> {
    match words {
        ["(", rest @ ..] => match any_of(rest, allowed)? {
            (met, [")", rest @ ..]) => Ok((met, rest)),
            _ => bail!("a parenthesis is never closed"),
        },
        [name, "WITH", exception, rest @ ..] => {
            let full = format!("{name} WITH {exception}");
            Ok((allowed.contains(&full.as_str()), rest))
        }
        [name, rest @ ..] => Ok((allowed.contains(name), rest)),
        [] => bail!("a name is missing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ALLOWED: &[&str] = &["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];

    #[test]
    fn expressions_are_met_by_allowed_licences_only() {
        for met in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR GPL-3.0) AND Apache-2.0"] {
            assert!(satisfies(met, ALLOWED).unwrap(), "{met}");
        }
        for unmet in ["GPL-3.0", "MIT AND GPL-3.0", "GPL-3.0 OR (MIT AND ISC)", "MIT WITH LLVM-exception"] {
            assert!(!satisfies(unmet, ALLOWED).unwrap(), "{unmet}");
        }
        assert!(satisfies("Apache-2.0 WITH LLVM-exception AND MIT", ALLOWED).unwrap());
        for broken in ["", "MIT OR", "(MIT", "MIT MIT"] {
            assert!(satisfies(broken, ALLOWED).is_err(), "{broken}");
        }
    }

    #[test]
    fn the_list_is_read_from_its_own_section() {
        let policy = "[x]\nallow = [\"A\"]\n[licenses]\nallow = [\n  \"B\", # c\n  \"D\",\n]\n";
        assert_eq!(allowed(policy).unwrap(), ["B", "D"]);
        assert!(allowed("[licenses]\n").is_err());
    }

    #[test]
    fn a_foreign_source_and_a_foreign_licence_are_found() {
        let metadata = json!({
            "packages": [
                {"id": "a", "name": "a", "version": "1.0.0", "license": "MIT", "source": CRATES_IO},
                {"id": "b", "name": "b", "version": "2.0.0", "license": "GPL-3.0", "source": CRATES_IO},
                {"id": "c", "name": "c", "version": "3.0.0", "license": "MIT", "source": "git+https://example.org"},
                {"id": "d", "name": "d", "version": "4.0.0", "license": null, "source": null},
                {"id": "e", "name": "e", "version": "5.0.0", "license": "GPL-3.0", "source": CRATES_IO},
            ],
            "resolve": {"nodes": [{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "d"}]},
        });
        let texts: Vec<_> =
            judge(&metadata, ALLOWED).unwrap().into_iter().map(|finding| finding.text).collect();
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert_eq!(texts[0], "b 2.0.0: licence `GPL-3.0` is not allowed");
        assert_eq!(texts[1], "c 3.0.0: comes from git+https://example.org");
        assert_eq!(texts[2], "d 4.0.0: names no licence");
    }
}
