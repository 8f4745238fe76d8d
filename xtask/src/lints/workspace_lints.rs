//! Every crate takes the workspace's lints: a crate without the section would have none of them.

use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    let manifests = tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let bare = manifests.filter(|file| has_section(&file.text, "[package]") && !takes_lints(&file.text));
    let finding = |file: &super::File| Finding {
        path: file.path.clone(),
        line: 0,
        text: "no `[lints]` section with `workspace = true`".to_owned(),
    };
    Ok(bare.map(finding).collect())
}

fn has_section(manifest: &str, header: &str) -> bool {
    manifest.lines().any(|line| line.trim() == header)
}

fn takes_lints(manifest: &str) -> bool {
    let after = manifest.lines().skip_while(|line| line.trim() != "[lints]").skip(1);
    after.take_while(|line| !line.starts_with('[')).any(|line| line.trim() == "workspace = true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_the_section_is_found() {
        let tree = Tree::of(&[
            ("a/Cargo.toml", "[package]\nname = \"a\"\n[lints]\nworkspace = true\n"),
            ("b/Cargo.toml", "[package]\nname = \"b\"\n[lints]\n[x]\nworkspace = true\n"),
            ("Cargo.toml", "[workspace]\n"),
        ]);
        let found: Vec<_> = check(&tree).unwrap().into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, ["b/Cargo.toml"]);
    }
}
