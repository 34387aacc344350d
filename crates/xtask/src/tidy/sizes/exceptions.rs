//! The list of what may be larger than the rule says. A line is right only at the present size of what it
//! names, so the list can't keep room for growth or outlive its reason.

use std::collections::BTreeMap;

use super::super::tree::Violation;
use super::{Kind, Measure, Subject};

pub(super) const PATH: &str = "crates/xtask/tidy-exceptions.txt";

const SHAPE: &str = "kind path[::function] limit reason";

struct Exception {
    subject: Subject,
    limit: usize,
    line: usize,
}

pub(super) struct Exceptions {
    list: Vec<Exception>,
    malformed: Vec<Violation>,
}

impl Exceptions {
    pub(super) fn read(text: &str) -> Exceptions {
        let mut exceptions = Exceptions { list: Vec::new(), malformed: Vec::new() };
        for (index, content) in text.lines().enumerate() {
            let line = index + 1;
            if content.trim().is_empty() || content.starts_with('#') {
                continue;
            }
            match parse(content) {
                Some((subject, limit)) => exceptions.list.push(Exception { subject, limit, line }),
                None => {
                    let message = format!("expected `{SHAPE}`, with kind `file` or `function`; found `{content}`");
                    exceptions.malformed.push(Violation::new(PATH, line, message));
                }
            }
        }
        exceptions
    }

    pub(super) fn limit_of(&self, subject: &Subject) -> Option<usize> {
        self.list.iter().find(|exception| exception.subject == *subject).map(|exception| exception.limit)
    }

    /// What is wrong with the list itself, given what its lines name.
    pub(super) fn judge(&self, measures: &BTreeMap<Subject, Measure>) -> Vec<Violation> {
        let mut violations = self.malformed.clone();
        for (index, exception) in self.list.iter().enumerate() {
            let (kind, name) = &exception.subject;
            let lines = measures.get(&exception.subject).map(|measure| measure.lines);
            let is_repeated = self.list[..index].iter().any(|earlier| earlier.subject == exception.subject);
            let message = match lines {
                _ if is_repeated => format!("{name} has a line already; remove this one"),
                None => format!("there is no {} {name}; remove this line", kind.name()),
                Some(lines) if lines <= kind.lines_max() => {
                    format!("{name} has {lines} lines and needs no exception; remove this line")
                }
                Some(lines) if lines < exception.limit => {
                    format!("{name} has {lines} lines; write {lines} instead of {}", exception.limit)
                }
                Some(_) => continue,
            };
            violations.push(Violation::new(PATH, exception.line, message));
        }
        violations
    }
}

fn parse(line: &str) -> Option<(Subject, usize)> {
    let mut words = line.split_whitespace();
    let kind_name = words.next()?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == kind_name)?;
    let name = words.next()?;
    let limit = words.next()?.parse().ok()?;
    // An exception without a reason is a wish.
    words.next()?;
    Some(((kind, name.to_owned()), limit))
}

#[cfg(test)]
mod tests {
    use super::super::super::tree::shown;
    use super::*;

    const FILE: &str = "crates/a/src/b.rs";

    fn judge(text: &str, lines: usize) -> Vec<String> {
        let measure = Measure { path: FILE.to_owned(), line: 1, lines };
        let measures = BTreeMap::from([((Kind::File, FILE.to_owned()), measure)]);
        shown(&Exceptions::read(text).judge(&measures))
    }

    #[test]
    fn an_exception_at_the_present_size_is_right() {
        let text = format!("# why we have these\n\nfile {FILE} 700 one table of codes\n");
        assert!(judge(&text, 700).is_empty());
        assert_eq!(Exceptions::read(&text).limit_of(&(Kind::File, FILE.to_owned())), Some(700));
        assert_eq!(Exceptions::read(&text).limit_of(&(Kind::Function, FILE.to_owned())), None);
    }

    #[test]
    fn an_exception_with_room_says_which_number_to_write() {
        let found = judge(&format!("file {FILE} 700 one table of codes"), 650);
        assert_eq!(found, [format!("{PATH}:1: {FILE} has 650 lines; write 650 instead of 700")]);
    }

    #[test]
    fn an_exception_nobody_needs_is_to_be_removed() {
        assert!(judge(&format!("file {FILE} 700 one table of codes"), 600)[0].contains("needs no exception"));
        assert!(judge("file crates/gone.rs 700 one table", 600)[0].contains("there is no file crates/gone.rs"));
        let twice = format!("file {FILE} 700 a\nfile {FILE} 800 b\n");
        assert_eq!(judge(&twice, 700), [format!("{PATH}:2: {FILE} has a line already; remove this one")]);
    }

    #[test]
    fn a_line_without_kind_or_limit_or_reason_is_refused() {
        for line in ["folder a 7 because", "file a because", "file a 7"] {
            assert!(judge(line, 0)[0].contains("expected `kind path"), "{line}");
        }
    }
}
