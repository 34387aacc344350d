//! Rule: ARCHITECTURE.md does not rot. Every numbered invariant names, between back-ticks after "test:", a
//! test that holds it, and every type the page names is defined in the sources.

use std::collections::BTreeMap;

use super::markdown::{code_spans, prose};
use super::tokens::{Code, Names};
use super::tree::{Tree, Violation};

const PAGE: &str = "ARCHITECTURE.md";

/// Types and products that are not ours but may be named.
const FOREIGN: &[&str] = &[
    "Arc",
    "BTreeMap",
    "BTreeSet",
    "Box",
    "Debian",
    "Err",
    "Future",
    "HashMap",
    "None",
    "Ok",
    "Option",
    "PostgreSQL",
    "Result",
    "Rust",
    "SQLite",
    "Send",
    "Some",
    "String",
    "Sync",
    "Vec",
];

struct Invariant {
    number: String,
    line: usize,
    text: String,
}

pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let Some(text) = tree.text(PAGE) else {
        let message = "expected the page of the architecture, found none; write it";
        return vec![Violation::new(PAGE, 1, message)];
    };
    let mut names = Names::default();
    for (_, source) in tree.rust_files() {
        names.add(Code::whole(source));
    }
    let mut violations = check_invariants(text, &names);
    for (line, content) in prose(text) {
        let messages = code_spans(content).filter_map(|span| check_type(span, &names));
        violations.extend(messages.map(|message| Violation::new(PAGE, line, message)));
    }
    violations
}

fn check_invariants(text: &str, names: &Names) -> Vec<Violation> {
    let invariants = invariants(text);
    if invariants.is_empty() {
        let message = "expected invariants numbered as **I1**, found none; write them";
        return vec![Violation::new(PAGE, 1, message)];
    }
    let mut violations = Vec::new();
    let mut seen = BTreeMap::new();
    for invariant in &invariants {
        let Invariant { number, line, text } = invariant;
        if let Some(first) = seen.insert(number, line) {
            let message = format!("{number} is taken by line {first}; give this one a new number");
            violations.push(Violation::new(PAGE, *line, message));
        }
        let tests = named_tests(text);
        if tests.is_empty() {
            let message = format!("{number} names no test; end it with (test: `name_of_the_test`)");
            violations.push(Violation::new(PAGE, *line, message));
        }
        for test in tests.into_iter().filter(|test| !names.functions.contains(*test)) {
            let message = format!("{number} names the test `{test}`, found no such function");
            violations.push(Violation::new(PAGE, *line, message));
        }
    }
    violations
}

/// An invariant begins at its number and ends at the next one, at an empty line or at a heading.
fn invariants(text: &str) -> Vec<Invariant> {
    let mut found: Vec<Invariant> = Vec::new();
    let mut is_open = false;
    for (line, content) in prose(text) {
        if let Some(number) = invariant_number(content) {
            found.push(Invariant { number, line, text: content.to_owned() });
            is_open = true;
        } else if content.trim().is_empty() || content.starts_with('#') {
            is_open = false;
        } else if is_open && let Some(last) = found.last_mut() {
            last.text.push(' ');
            last.text.push_str(content.trim());
        }
    }
    found
}

/// The number in `**I7**`, `**I7.**` or `**I7: title**`. A mention such as `I7` in running text is none.
fn invariant_number(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("**I")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let is_closed = rest[digits.len()..].starts_with(|next: char| !next.is_alphanumeric());
    (!digits.is_empty() && is_closed).then(|| format!("I{digits}"))
}

/// The last part of each path in `(test: …)` or `(tests: …)`.
fn named_tests(text: &str) -> Vec<&str> {
    let mut tests = Vec::new();
    for rest in text.split("(test").skip(1) {
        let Some(list) = rest.strip_prefix(": ").or_else(|| rest.strip_prefix("s: ")) else {
            continue;
        };
        let list = list.split(')').next().unwrap_or(list);
        tests.extend(code_spans(list).map(|path| path.rsplit("::").next().unwrap_or(path)));
    }
    tests
}

/// What is wrong with a code span that names a type: `Run`, `store::Store`, `Run::check()`, `Phase::Leased`.
fn check_type(span: &str, names: &Names) -> Option<String> {
    let path = span.split_once('(').map_or(span, |(path, _)| path);
    let is_of_a_path = |sign: char| sign.is_ascii_alphanumeric() || sign == '_' || sign == ':';
    if !path.chars().all(is_of_a_path) {
        return None;
    }
    let mut segments = path.split("::").skip_while(|segment| !is_camel_case(segment));
    let of_type = segments.next()?;
    if FOREIGN.contains(&of_type) {
        return None;
    }
    if !names.types.contains(of_type) {
        return Some(format!("`{span}` names the type {of_type}, found no such definition"));
    }
    let unknown = segments.find(|segment| !names.all.contains(*segment))?;
    Some(format!("`{span}` names {unknown}, found nothing of that name"))
}

fn is_camel_case(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_uppercase())
        && word.contains(|sign: char| sign.is_ascii_lowercase())
        && word.chars().all(|sign| sign.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::super::tree::shown;
    use super::*;

    const GOOD: &str = "- **I1** Nothing leaves early (test: `nothing_leaves_early`).\n";

    fn check_page(page: &str) -> Vec<String> {
        let source = "pub struct Run; enum Phase { Leased } impl Run { fn check() {} }\n\
                      /* fn only_in_a_comment() {} */\n\
                      #[test]\nfn nothing_leaves_early() {}\n#[test]\nfn time_is_given() {}\n";
        shown(&check(&Tree::of(&[("ARCHITECTURE.md", page), ("crates/kernel/src/lib.rs", source)])))
    }

    #[test]
    fn invariants_with_tests_that_exist_pass_in_every_layout() {
        let page = "# Page\n\n- **I1** One, over\n  two lines (tests: `nothing_leaves_early`,\n\
                    `kernel::tests::time_is_given`).\n\
                    - **I2.** Two (test: `time_is_given`)\n\n| **I3** | three | (test: `time_is_given`) |\n\n\
                    As I1 says. **Important** and **I/O**.\n";
        assert!(check_page(page).is_empty(), "{:?}", check_page(page));
    }

    #[test]
    fn an_invariant_without_a_test_is_refused() {
        let found = check_page("**I1** One.\n**I2** Two (test: `time_is_given`).\n");
        assert_eq!(found, ["ARCHITECTURE.md:1: I1 names no test; end it with (test: `name_of_the_test`)"]);
        assert_eq!(check_page("**I1** One.\n\nAnother paragraph (test: `time_is_given`).\n").len(), 1);
    }

    #[test]
    fn a_test_that_does_not_exist_is_refused() {
        let found = check_page("**I1** One (tests: `time_is_given`, `only_in_a_comment`).");
        assert_eq!(found, ["ARCHITECTURE.md:1: I1 names the test `only_in_a_comment`, found no such function"]);
    }

    #[test]
    fn a_number_used_twice_and_a_page_without_invariants_are_refused() {
        assert!(check_page(&format!("{GOOD}{GOOD}"))[0].contains("I1 is taken by line 1"));
        assert_eq!(check_page("# Architecture\n").len(), 1);
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }

    #[test]
    fn types_that_exist_and_foreign_names_pass() {
        let spans = "`Run` `kernel::Run` `Run::check()` `Phase::Leased` `SQLite` `Vec` `decide` `WAL` \
                     `Run, Phase` `std::fs`";
        assert!(check_page(&format!("{GOOD}\n{spans}")).is_empty());
    }

    #[test]
    fn a_type_or_method_that_is_gone_is_refused() {
        let found = check_page(&format!("{GOOD}\n`Flow` and `Run::verify()`"));
        assert_eq!(
            found,
            [
                "ARCHITECTURE.md:3: `Flow` names the type Flow, found no such definition",
                "ARCHITECTURE.md:3: `Run::verify()` names verify, found nothing of that name",
            ]
        );
    }
}
