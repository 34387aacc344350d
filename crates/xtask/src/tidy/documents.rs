//! Rule: what a document names exists. Paths between back-ticks are written from the root of the repository;
//! links are relative to the document, as browsers read them. Fenced code is left alone: examples may name
//! files of the reader.

use super::markdown::{code_spans, link_targets, prose};
use super::tree::{Tree, Violation};

const AT_THE_ROOT: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"];
const ENDINGS: &[&str] = &[".rs", ".md", ".toml", ".txt"];
const FOLDERS: &[&str] = &["crates/", "docs/"];

/// Signs of a pattern, a placeholder or an address: `tests/*.txt`, `docs/<name>.md`.
const NO_PLAIN_PATH: &[&str] = &["*", "<", ">", "{", "}", "$", "…", "...", "://", " "];

pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| is_document(path)) {
        for (line, content) in prose(text) {
            for named in code_spans(content).filter_map(repository_path).filter(|named| !tree.has(named)) {
                let message = format!("`{named}` does not exist; write the path from the root");
                violations.push(Violation::new(path, line, message));
            }
            for target in link_targets(content) {
                if !resolves(tree, path, &target) {
                    violations.push(Violation::new(path, line, format!("the link to {target} leads nowhere")));
                }
            }
        }
    }
    violations
}

fn is_document(path: &str) -> bool {
    AT_THE_ROOT.contains(&path) || (path.starts_with("docs/") && path.ends_with(".md"))
}

/// The path that a code span names, if it names one: `crates/a/src/b.rs::item` and `crates/a/src/b.rs:7` name
/// a file.
fn repository_path(span: &str) -> Option<&str> {
    let path = span.split(':').next().filter(|_| !NO_PLAIN_PATH.iter().any(|sign| span.contains(sign)))?;
    let path = path.strip_prefix("./").unwrap_or(path);
    // From the root of a machine or a user's home: not ours.
    if path.starts_with(['/', '~']) || !path.contains('/') {
        return None;
    }
    let looks_ours =
        ENDINGS.iter().any(|ending| path.ends_with(ending)) || FOLDERS.iter().any(|folder| path.starts_with(folder));
    looks_ours.then_some(path)
}

fn resolves(tree: &Tree, document: &str, target: &str) -> bool {
    let has_scheme = target.contains("://") || target.starts_with("mailto:");
    let path = target.split('#').next().unwrap_or_default();
    if has_scheme || path.is_empty() {
        return true;
    }
    let mut segments: Vec<&str> = document.split('/').collect();
    segments.pop();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            // A link that climbs out of the repository works on no other machine.
            ".." if segments.pop().is_none() => return false,
            ".." => {}
            name => segments.push(name),
        }
    }
    segments.is_empty() || tree.has(&segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::tree::shown;
    use super::*;

    fn check_readme(text: &str) -> Vec<String> {
        shown(&check(&Tree::of(&[
            ("README.md", text),
            ("docs/contract.md", "[home](../README.md) and [here](#rows)"),
            ("crates/kernel/src/limits.rs", ""),
        ])))
    }

    #[test]
    fn what_exists_may_be_named_and_what_is_no_path_is_left_alone() {
        let text = "`crates/kernel/src/limits.rs`, `crates/kernel/src/limits.rs::MAX`, `crates/kernel/`\n\
                    `docs/contract.md:3` `crates/*/src/lib.rs` `docs/<name>.md` `https://example.org/a.md`\n\
                    `a/b` `limits.rs` `/etc/x.toml` [docs](docs/) [contract](docs/contract.md#rows)\n\
                    [web](https://example.org) [mail](mailto:a@b.c)\n\
                    ```\n`docs/none.md` [x](none.md)\n```\n";
        assert!(check_readme(text).is_empty(), "{:?}", check_readme(text));
    }

    #[test]
    fn a_path_that_is_gone_is_reported_at_its_line() {
        assert_eq!(
            check_readme("one\nsee `crates/kernel/src/bounds.rs`"),
            ["README.md:2: `crates/kernel/src/bounds.rs` does not exist; write the path from the root"]
        );
        assert_eq!(check_readme("`crates/nothing` and `kernel/limits.rs` and `../shared/design.md`").len(), 3);
    }

    #[test]
    fn a_dead_link_is_reported() {
        assert_eq!(check_readme("[a](docs/none.md)"), ["README.md:1: the link to docs/none.md leads nowhere"]);
        assert_eq!(check_readme("[a](../outside.md)").len(), 1);
        let tree = Tree::of(&[("docs/a/b.md", "[c](../c.md) [d](d.md)"), ("docs/c.md", "")]);
        assert_eq!(shown(&check(&tree)), ["docs/a/b.md:1: the link to d.md leads nowhere"]);
    }
}
