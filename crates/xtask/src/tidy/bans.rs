//! Rule: nothing unfinished in the sources. The compiler's lints refuse some of it, but can be allowed away
//! and see no comments; this rule has no way around it. Open work goes to the issue tracker.

use super::tokens::Code;
use super::tree::{Tree, Violation};

const MACROS: &[&str] = &["todo", "unimplemented", "dbg"];

/// Put together here, or this file would break its own rule.
const WORDS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X")];

pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.rust_files() {
        for call in Code::whole(text).tokens.windows(3) {
            // The bracket tells a call of the macro from a comparison, `dbg != x`.
            let is_call = call[1].text == "!" && ["(", "[", "{"].contains(&call[2].text.as_str());
            let name = &call[0];
            if is_call && MACROS.contains(&name.text.as_str()) {
                let message = format!("{}! is for unfinished code; finish it or take it out", name.text);
                violations.push(Violation::new(path, name.line, message));
            }
        }
        for (index, line) in text.lines().enumerate() {
            for word in WORDS.iter().filter(|word| has_word(line, word)) {
                let message = format!("{word} is a note to nobody; do it, or open an issue");
                violations.push(Violation::new(path, index + 1, message));
            }
        }
    }
    violations
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|sign: char| !sign.is_alphanumeric() && sign != '_').any(|found| found == word)
}

#[cfg(test)]
mod tests {
    use super::super::tree::shown;
    use super::*;

    const PATH: &str = "crates/store/src/lib.rs";

    #[test]
    fn finished_code_passes() {
        let text = "// Not todo!() but a comment, and no dbg!.\n\
                    fn todo() { let dbg = \"unimplemented!()\"; if dbg != x {} }\n";
        assert!(check(&Tree::of(&[(PATH, text), ("docs/a.md", WORDS[0])])).is_empty());
    }

    #[test]
    fn unfinished_code_is_refused_at_its_line() {
        let text = "fn a() {\n    todo!();\n    b(dbg!(1));\n    unimplemented!(\"c\")\n}\n";
        assert_eq!(
            shown(&check(&Tree::of(&[(PATH, text)]))),
            ["todo", "dbg", "unimplemented"]
                .iter()
                .zip(2..)
                .map(|(name, line)| format!("{PATH}:{line}: {name}! is for unfinished code; finish it or take it out"))
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn notes_to_nobody_are_refused_also_in_comments() {
        for word in WORDS {
            assert_eq!(check(&Tree::of(&[(PATH, &format!("// {word}: later\n"))])).len(), 1);
            assert!(check(&Tree::of(&[(PATH, &format!("// {word}L\n"))])).is_empty());
        }
    }
}
