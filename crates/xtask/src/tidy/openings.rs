//! Rule: a source file opens by saying what it is for. The words are for people and can't be checked; that
//! there are some can.

use super::tree::{Tree, Violation};

pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    tree.rust_files()
        .filter(|(path, _)| is_source(path))
        .filter(|(_, text)| !opens_with_purpose(text))
        .map(|(path, _)| {
            Violation::new(path, 1, "expected a first line `//! …` that says what the file is for; write it")
        })
        .collect()
}

/// Files in `crates/<crate>/src/`, at any depth.
fn is_source(path: &str) -> bool {
    path.strip_prefix("crates/").and_then(|rest| rest.split_once('/')).is_some_and(|(_, rest)| rest.starts_with("src/"))
}

fn opens_with_purpose(text: &str) -> bool {
    text.lines().next().and_then(|line| line.strip_prefix("//!")).is_some_and(|purpose| !purpose.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::tree::shown;
    use super::*;

    #[test]
    fn a_file_with_a_purpose_passes_and_tests_need_none() {
        let tree = Tree::of(&[
            ("crates/store/src/memory.rs", "//! Keeps facts in memory.\n"),
            ("crates/store/tests/conformance.rs", "use abide_store::Store;\n"),
        ]);
        assert!(check(&tree).is_empty());
    }

    #[test]
    fn a_file_without_a_purpose_is_refused() {
        for text in
            ["", "use x;\n//! Late.\n", "//!\n//! An empty first line.\n", "/// Of the next item.\n", "\n//! Late.\n"]
        {
            let found = check(&Tree::of(&[("crates/store/src/sqlite/append.rs", text)]));
            assert!(shown(&found)[0].starts_with("crates/store/src/sqlite/append.rs:1: "), "{text:?}");
        }
    }
}
