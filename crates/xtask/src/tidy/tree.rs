//! The files that belong to the project, as the rules see them: paths from the root with `/` between, and
//! their text. What git ignores is not here, so that build output and local stores can't make a tree untidy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// One place that breaks a rule. The order is that of reading: by path, then by line.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Violation {
    path: String,
    line: usize,
    message: String,
}

impl Violation {
    pub(crate) fn new(path: &str, line: usize, message: impl Into<String>) -> Violation {
        Violation { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

pub(crate) struct Tree {
    /// Also files that are not text, which a document may link to.
    paths: BTreeSet<String>,
    texts: BTreeMap<String, String>,
}

impl Tree {
    pub(crate) fn load(root: &Path) -> Result<Tree> {
        // An unpacked archive has no git folder, and is checked all the same.
        let listed = if root.join(".git").exists() { list_with_git(root)? } else { list_by_walking(root)? };
        let mut tree = Tree { paths: BTreeSet::new(), texts: BTreeMap::new() };
        for path in listed {
            let file = root.join(&path);
            // Git lists what was deleted but not committed yet; links may point out of the tree.
            if !fs::symlink_metadata(&file).is_ok_and(|metadata| metadata.is_file()) {
                continue;
            }
            let bytes = fs::read(&file).with_context(|| format!("{path} could not be read"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                tree.texts.insert(path.clone(), text);
            }
            tree.paths.insert(path);
        }
        Ok(tree)
    }

    /// A tree made up for a test.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        Tree {
            paths: files.iter().map(|(path, _)| (*path).to_owned()).collect(),
            texts: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Every text file with its path, in the order of paths.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub(crate) fn rust_files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// Whether there is a file of this path, or a folder with a file in it.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        let inside = self.paths.range(folder.clone()..).next().is_some_and(|found| found.starts_with(&folder));
        inside || self.paths.contains(path)
    }
}

/// What is committed or could be: new files count before they are added, or a green check would turn red at
/// the commit.
fn list_with_git(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .current_dir(root)
        // A build machine often mounts the clone under another owner.
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("git could not be started; install git")?;
    ensure!(
        output.status.success(),
        "git ls-files was expected to list the project's files, and said: {}",
        String::from_utf8_lossy(&output.stderr).trim(),
    );
    let listed = String::from_utf8(output.stdout).context("a path of the project is not UTF-8")?;
    Ok(listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

fn list_by_walking(root: &Path) -> Result<Vec<String>> {
    let mut listed = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let name = entry.file_name().into_string().ok().context("a path of the project is not UTF-8")?;
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if !entry.file_type()?.is_dir() {
                listed.push(path);
            } else if !is_build_output(&path) {
                folders.push(path);
            }
        }
    }
    Ok(listed)
}

/// Folders that git ignores, where there is no git to say so.
fn is_build_output(path: &str) -> bool {
    const IN_TYPESCRIPT: [&str; 3] = ["node_modules", "dist", "dist-tests"];
    path == "target" || path.strip_prefix("clients/typescript/").is_some_and(|folder| IN_TYPESCRIPT.contains(&folder))
}

/// The line, counted from one, that a byte of the text is on.
pub(crate) fn line_at(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
pub(crate) fn shown(violations: &[Violation]) -> Vec<String> {
    violations.iter().map(Violation::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_there_when_a_file_is_in_it() {
        let tree = Tree::of(&[("docs/errors/e1.md", "")]);
        assert!(tree.has("docs/errors/e1.md"));
        assert!(tree.has("docs/errors"));
        assert!(tree.has("docs/"));
        assert!(!tree.has("docs/err"));
        assert!(!tree.has("docs/errors/e1.md/more"));
    }

    #[test]
    fn lines_count_from_one() {
        assert_eq!(line_at("a\nb\nc", 0), 1);
        assert_eq!(line_at("a\nb\nc", 2), 2);
        assert_eq!(line_at("a\nb\nc", 4), 3);
    }

    #[test]
    fn a_violation_reads_as_editors_expect() {
        assert_eq!(Violation::new("a/b.rs", 3, "too long").to_string(), "a/b.rs:3: too long");
    }

    #[test]
    fn a_tree_without_git_is_walked_and_build_output_left_out() {
        let root = std::env::temp_dir().join(format!("abide-tidy-tree-{}", std::process::id()));
        fs::create_dir_all(root.join("crates/a")).expect("the temporary folder is writable");
        fs::create_dir_all(root.join("target/debug")).expect("the temporary folder is writable");
        fs::write(root.join("crates/a/lib.rs"), "//! a").expect("the temporary folder is writable");
        fs::write(root.join("crates/a/picture.png"), b"\xff\xfe").expect("the temporary folder is writable");
        fs::write(root.join("target/debug/out.rs"), "").expect("the temporary folder is writable");
        fs::create_dir_all(root.join("clients/typescript/node_modules/x")).expect("the temporary folder is writable");
        fs::write(root.join("clients/typescript/node_modules/x/x.rs"), "").expect("the temporary folder is writable");
        let tree = Tree::load(&root).expect("a readable folder loads");
        fs::remove_dir_all(&root).expect("the temporary folder can be removed");
        assert_eq!(tree.texts().collect::<Vec<_>>(), [("crates/a/lib.rs", "//! a")]);
        assert!(tree.has("crates/a/picture.png"));
        assert_eq!(tree.len(), 2);
    }
}
