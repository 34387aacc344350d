//! Rule: files and functions stay small enough to be read at one sitting. What is larger needs a line with a
//! reason in the list of exceptions, at exactly its present size: such a line can be lowered or removed, and
//! growth shows in the review.

mod exceptions;

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, ItemImpl, ItemTrait, Signature, TraitItemFn, Type};

use super::tree::{Tree, Violation};
use exceptions::Exceptions;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    File,
    Function,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::File, Kind::Function];

    fn name(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Function => "function",
        }
    }

    fn lines_max(self) -> usize {
        match self {
            Kind::File => 600,
            Kind::Function => 70,
        }
    }
}

/// A file, or a function as `path::function` or `path::Type::function`.
type Subject = (Kind, String);

struct Measure {
    path: String,
    line: usize,
    lines: usize,
}

pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut measures: BTreeMap<Subject, Measure> = BTreeMap::new();
    for (path, text) in tree.rust_files() {
        let lines = text.lines().count();
        let measure = Measure { path: path.to_owned(), line: 1, lines };
        measures.insert((Kind::File, path.to_owned()), measure);
        match syn::parse_file(text) {
            Ok(file) => {
                let mut visitor = Functions { path, owner: None, measures: &mut measures };
                visitor.visit_file(&file);
            }
            Err(error) => {
                let line = error.span().start().line;
                let message = format!("expected Rust, found: {error}");
                violations.push(Violation::new(path, line, message));
            }
        }
    }
    let exceptions = Exceptions::read(tree.text(exceptions::PATH).unwrap_or_default());
    violations.extend(too_large(&measures, &exceptions));
    violations.extend(exceptions.judge(&measures));
    violations
}

fn too_large(measures: &BTreeMap<Subject, Measure>, exceptions: &Exceptions) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (subject, measure) in measures {
        let (kind, name) = subject;
        let allowed = exceptions.limit_of(subject).unwrap_or(kind.lines_max());
        if measure.lines > allowed {
            let message = format!(
                "expected at most {allowed} lines in {} {}, found {}; split it by verb",
                kind.name(),
                name.strip_prefix(&format!("{}::", measure.path)).unwrap_or(name),
                measure.lines,
            );
            violations.push(Violation::new(&measure.path, measure.line, message));
        }
    }
    violations
}

/// Walks a file and measures its functions, also those inside of functions and modules.
struct Functions<'t> {
    path: &'t str,
    owner: Option<String>,
    measures: &'t mut BTreeMap<Subject, Measure>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &Signature, body: &Block) {
        let line = signature.fn_token.span.start().line;
        let lines = body.brace_token.span.close().end().line - line + 1;
        let owner = self.owner.as_ref().map(|owner| format!("{owner}::")).unwrap_or_default();
        let subject = (Kind::Function, format!("{}::{owner}{}", self.path, signature.ident));
        // Two functions of one name, as in two implementations for one type: the longer one speaks for both.
        if self.measures.get(&subject).is_none_or(|other| other.lines < lines) {
            let path = self.path.to_owned();
            self.measures.insert(subject, Measure { path, line, lines });
        }
    }

    fn within(&mut self, owner: Option<String>, walk: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.owner, owner);
        walk(self);
        self.owner = outer;
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        // A function inside of a method is not the type's.
        self.within(None, |this| {
            this.measure(&item.sig, &item.block);
            visit::visit_item_fn(this, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(body) = &item.default {
            self.measure(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        self.within(type_name(&item.self_ty), |this| {
            visit::visit_item_impl(this, item);
        });
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.within(Some(item.ident.to_string()), |this| {
            visit::visit_item_trait(this, item);
        });
    }
}

fn type_name(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        Type::Reference(reference) => type_name(&reference.elem),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::shown;
    use super::*;

    const PATH: &str = "crates/store/src/append.rs";

    fn function(name: &str, lines: usize) -> String {
        assert!(lines >= 2);
        format!("fn {name}() {{\n{}}}\n", "    work();\n".repeat(lines - 2))
    }

    fn check_with(text: &str, exceptions: &str) -> Vec<String> {
        shown(&check(&Tree::of(&[(PATH, text), (exceptions::PATH, exceptions)])))
    }

    #[test]
    fn what_fits_the_limits_passes() {
        assert!(check_with(&function("append", 70), "").is_empty());
        assert!(check_with(&"// a\n".repeat(600), "").is_empty());
    }

    #[test]
    fn a_long_file_and_a_long_function_are_refused() {
        assert_eq!(
            check_with(&"// a\n".repeat(601), ""),
            [format!("{PATH}:1: expected at most 600 lines in file {PATH}, found 601; split it by verb")]
        );
        let text = format!("struct A;\nimpl A {{\n/// Documented.\n{}}}\n", function("append", 71));
        assert_eq!(
            check_with(&text, ""),
            [format!("{PATH}:4: expected at most 70 lines in function A::append, found 71; split it by verb")]
        );
    }

    #[test]
    fn braces_in_strings_and_comments_end_no_function() {
        let text = format!("fn a() {{ let b = \"}}\"; // }}\n{}}}\n", "    c('}');\n".repeat(70));
        assert_eq!(check_with(&text, "").len(), 1);
    }

    #[test]
    fn the_longest_of_a_name_speaks_for_it() {
        let text = format!("impl X for A {{\n{}}}\nimpl Y for A {{\n{}}}\n", function("f", 80), function("f", 75));
        let allowed = format!("function {PATH}::A::f 80 one table, read top to bottom");
        assert!(check_with(&text, &allowed).is_empty());
        assert_eq!(check_with(&text, "").len(), 1);
    }

    #[test]
    fn trait_and_nested_functions_are_measured() {
        let text =
            format!("trait T {{\n{}}}\nimpl T for A {{ fn o() {{\n{}}} }}\n", function("d", 71), function("n", 71));
        let found = check_with(&text, "").join("\n");
        assert!(found.contains("function T::d"), "{found}");
        assert!(found.contains("function n,"), "{found}");
        assert!(found.contains("function A::o"), "{found}");
    }

    #[test]
    fn a_file_that_is_no_rust_is_reported() {
        assert!(check_with("fn a( {", "")[0].contains("expected Rust"));
    }
}
