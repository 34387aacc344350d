//! Rule: the kernel is pure. The compiler keeps the standard library out through `#![no_std]`; this rule
//! keeps that line in, and refuses the words a clock, chance, output or waiting would come in by. Code for
//! tests is free.

use std::collections::BTreeSet;

use super::tokens::Code;
use super::tree::{Tree, Violation};

const KERNEL: &str = "crates/kernel/src/";

/// Words no kernel code may contain, and what to do instead.
const FORBIDDEN: &[(&str, &str)] = &[
    ("std", "use core or alloc"),
    ("SystemTime", "take the time as an argument"),
    ("Instant", "take the time as an argument"),
    ("rand", "take the seed as an argument"),
    ("println", "return what is to be said"),
    ("eprintln", "return what is to be said"),
    ("async", "wait in the runtime"),
    ("await", "wait in the runtime"),
];

pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let root = format!("{KERNEL}lib.rs");
    if let Some(text) = tree.text(&root)
        && !text.lines().any(|line| line.trim() == "#![no_std]")
    {
        violations.push(Violation::new(
            &root,
            1,
            "expected the line #![no_std], found none; the kernel must build without std",
        ));
    }
    let sources: Vec<(&str, Code)> = tree
        .rust_files()
        .filter(|(path, _)| path.starts_with(KERNEL))
        .map(|(path, text)| (path, Code::product(text)))
        .collect();
    let test_modules: BTreeSet<String> = sources.iter().flat_map(|(path, code)| module_paths(path, code)).collect();
    for (path, code) in &sources {
        if test_modules.iter().any(|module| is_of_module(path, module)) {
            continue;
        }
        for token in &code.tokens {
            if let Some((word, instead)) = FORBIDDEN.iter().find(|(word, _)| *word == token.text) {
                let message = format!("the kernel may not name `{word}`; {instead}");
                violations.push(Violation::new(path, token.line, message));
            }
        }
    }
    violations
}

/// Where the modules live that a file declares for tests only, without `.rs`.
fn module_paths(path: &str, code: &Code) -> Vec<String> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let home = match file {
        "lib.rs" | "mod.rs" => folder,
        _ => path.strip_suffix(".rs").unwrap_or(path),
    };
    code.test_modules.iter().map(|name| format!("{home}/{name}")).collect()
}

fn is_of_module(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::super::tree::shown;
    use super::*;

    const LIB: &str = "crates/kernel/src/lib.rs";

    #[test]
    fn a_pure_kernel_passes_and_its_tests_may_do_anything() {
        let text = "//! No std:: and no rand here.\n#![no_std]\nextern crate alloc;\n/// Not an Instant.\n\
                    pub fn brand(operand: u8) -> &'static str { \"std::time\" }\n\
                    #[cfg(test)]\nmod tests { extern crate std; fn now() { std::time::Instant::now(); } }\n";
        assert!(check(&Tree::of(&[(LIB, text)])).is_empty());
    }

    #[test]
    fn a_test_module_in_its_own_file_is_free_and_its_neighbour_is_not() {
        let tree = Tree::of(&[
            (LIB, "#![no_std]\nmod claim;\n#[cfg(test)]\nmod transcripts;\n"),
            ("crates/kernel/src/transcripts.rs", "use std::fs;"),
            ("crates/kernel/src/transcripts/read.rs", "use std::fs;"),
            ("crates/kernel/src/transcripts_of.rs", "use std::fs;"),
            ("crates/kernel/src/claim.rs", "#[cfg(test)] mod tests;"),
            ("crates/kernel/src/claim/tests.rs", "use std::fs;"),
        ]);
        assert_eq!(
            shown(&check(&tree)),
            ["crates/kernel/src/transcripts_of.rs:1: the kernel may not name `std`; use core or alloc"]
        );
    }

    #[test]
    fn every_impure_word_is_refused_at_its_line() {
        for impure in [
            "use std::vec::Vec;",
            "fn a(now: SystemTime) {}",
            "fn a(now: Instant) {}",
            "use rand::Rng;",
            "fn a() { println!(\"x\"); }",
            "async fn a() {}",
            "fn a() { b.await; }",
        ] {
            let text = format!("#![no_std]\n{impure}\n");
            let found = shown(&check(&Tree::of(&[(LIB, &text)])));
            assert_eq!(found.len(), 1, "{impure}");
            assert!(found[0].starts_with("crates/kernel/src/lib.rs:2: "), "{impure}");
        }
    }

    #[test]
    fn a_kernel_with_std_is_refused_and_other_crates_are_not_looked_at() {
        assert_eq!(check(&Tree::of(&[(LIB, "//! A kernel.\n")])).len(), 1);
        assert!(check(&Tree::of(&[("crates/runtime/src/lib.rs", "use std::fs;")])).is_empty());
    }
}
