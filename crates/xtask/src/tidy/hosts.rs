//! Rule: the tree is of no machine. A path of somebody's home or a package registry's address works for its
//! author only, and tells strangers more than they should know.

use super::tree::{Tree, Violation};

// The marks are put together here, or this file would break its own rule.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// How addresses of registries and settings that point to another one are recognised.
const REGISTRY_MARKS: &[&str] = &[
    concat!("sparse", "+http"),
    concat!("registry", "+http"),
    concat!("replace", "-with"),
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("registry.", "npmjs.org"),
    concat!("pypi.", "org/simple"),
    concat!("files.", "pythonhosted.org"),
    concat!("deb.", "debian.org"),
];

/// What cargo writes for every package of the public registry, whatever mirror it came from.
const PUBLIC_SOURCE: &str = concat!("source = \"registry", "+https://github.com/rust-lang/crates.io-index\"");

pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.texts() {
        for (index, line) in text.lines().enumerate() {
            if let Some(message) = complaint(path, line) {
                violations.push(Violation::new(path, index + 1, message));
            }
        }
    }
    violations
}

fn complaint(path: &str, line: &str) -> Option<String> {
    if let Some(found) = MACHINE_PATHS.iter().find(|mark| has_absolute(line, mark)) {
        return Some(format!("{found} is a path of one machine; write it from the root of the repository"));
    }
    if path.ends_with("Cargo.lock") && line.starts_with("source = ") {
        return (line != PUBLIC_SOURCE).then(|| format!("expected a package of crates.io, found {line}"));
    }
    let found = REGISTRY_MARKS.iter().find(|mark| line.contains(**mark))?;
    Some(format!("{found} points to a registry; keep that in your own cargo settings"))
}

/// Whether the path stands there as the beginning of one: `docs/x/` and `https://host/x/` go on from
/// something.
fn has_absolute(line: &str, path: &str) -> bool {
    line.match_indices(path)
        .any(|(at, _)| !line[..at].ends_with(|before: char| before.is_alphanumeric() || "_-.~/*>})".contains(before)))
}

#[cfg(test)]
mod tests {
    use super::super::tree::shown;
    use super::*;

    #[test]
    fn a_tree_of_no_machine_passes() {
        for path in MACHINE_PATHS {
            let text = format!("see docs{path}a.md and https://example.org{path} and ..{path}b");
            assert!(check(&Tree::of(&[("README.md", &text)])).is_empty(), "{path}");
        }
        let text = "https://crates.io/crates/abide\n";
        assert!(check(&Tree::of(&[("README.md", text), ("Cargo.lock", PUBLIC_SOURCE)])).is_empty());
    }

    #[test]
    fn a_path_of_one_machine_is_refused() {
        for path in MACHINE_PATHS {
            let text = format!("one\nopen(\"{path}abide.db\")\n");
            let found = shown(&check(&Tree::of(&[("docs/a.md", &text)])));
            assert_eq!(found.len(), 1, "{path}");
            assert!(found[0].starts_with("docs/a.md:2: "), "{path}");
        }
    }

    #[test]
    fn a_registry_is_refused_in_settings_and_in_the_lock() {
        for mark in REGISTRY_MARKS {
            let text = format!("url = \"{mark}://mirror\"\n");
            assert_eq!(check(&Tree::of(&[(".cargo/config.toml", &text)])).len(), 1, "{mark}");
        }
        let foreign = "source = \"git+https://example.org/x\"\n";
        assert_eq!(check(&Tree::of(&[("Cargo.lock", foreign)])).len(), 1);
    }
}
