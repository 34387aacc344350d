//! Weaves many changes into one source, each behind a switch that is read while the tests run: one build then holds them
//! all. A change is made in the tree and not in the text, so `a && b && c` with its first `&&` changed is `(a || b) && c`.

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::{Context, Result};
use serde_json::Value;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The switch, as a module of the changed crate. What it is called is no word of the kernel's.
pub(super) const SWITCH: &str = r#"
#[doc(hidden)]
pub mod __switch {
    extern crate std;
    use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

    /// Whether change `id` is made now. Where it is asked for, the first time that each change is reached is written down.
    pub fn on(id: u32) -> bool {
        static ON: AtomicU32 = AtomicU32::new(u32::MAX);
        static REACHED: [AtomicU8; 8192] = [const { AtomicU8::new(0) }; 8192];
        if ON.load(Relaxed) == u32::MAX {
            let wanted = std::env::var("ABIDE_MUTANT").ok().and_then(|id| id.parse().ok());
            ON.store(wanted.unwrap_or(u32::MAX - 1), Relaxed);
        }
        if ON.load(Relaxed) == u32::MAX - 1 && REACHED[id as usize].swap(1, Relaxed) == 0 {
            if let Ok(path) = std::env::var("ABIDE_MUTANTS_REACHED") {
                use std::io::Write;
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
                file.write_all(std::format!("{id}\n").as_bytes()).unwrap();
            }
        }
        ON.load(Relaxed) == id
    }
}
"#;

/// A change that cargo-mutants proposes.
#[derive(Clone, Debug)]
pub(super) struct Mutant {
    /// Its place among all of them.
    pub(super) id: usize,
    /// Its file, within the workspace.
    pub(super) file: String,
    /// Its file, line, column and what is changed, in one line.
    pub(super) name: String,
    genre: String,
    replacement: String,
    lines: [(usize, usize); 2],
}

impl Mutant {
    /// Reads one entry of `cargo mutants --list --json`.
    pub(super) fn read(id: usize, value: &Value) -> Result<Self> {
        let text = |name: &str| value[name].as_str().map(str::to_owned).with_context(|| format!("{name} in {value}"));
        let place = |at: &str, name: &str| value["span"][at][name].as_u64().with_context(|| format!("{at} in {value}"));
        let place =
            |at: &str| -> Result<(usize, usize)> { Ok((place(at, "line")? as usize, place(at, "column")? as usize)) };
        Ok(Self {
            id,
            file: text("file")?,
            name: text("name")?,
            genre: text("genre")?,
            replacement: text("replacement")?,
            lines: [place("start")?, place("end")?],
        })
    }

    /// Which bytes of its file it replaces.
    fn range(&self, source: &str) -> Range<usize> {
        let at = |(line, column): (usize, usize)| {
            let start = source.split_inclusive('\n').take(line - 1).map(str::len).sum::<usize>();
            let rest = source[start..].char_indices().nth(column - 1);
            rest.map_or(source.len(), |(offset, _)| start + offset)
        };
        at(self.lines[0])..at(self.lines[1])
    }

    /// The source with this change alone, and no switch.
    pub(super) fn replace(&self, source: &str) -> String {
        let range = self.range(source);
        format!("{}{}{}", &source[..range.start], self.replacement, &source[range.end..])
    }
}

/// A source with its changes, and those that have no place behind a switch, such as changes of constants.
pub(super) struct Woven {
    pub(super) text: String,
    pub(super) left: BTreeSet<usize>,
}

/// Puts every change of one source behind its switch.
pub(super) fn weave(source: &str, mutants: &[Mutant]) -> Result<Woven> {
    let places = mutants.iter().map(|mutant| (mutant, mutant.range(source))).collect();
    let mut finder = Finder { places, nodes: Vec::new(), woven: BTreeSet::new() };
    finder.visit_file(&syn::parse_file(source).context("parsing")?);
    let Finder { mut nodes, woven, .. } = finder;
    nodes.sort_by_key(|node| (node.range.start, usize::MAX - node.range.end));
    let text = render(source, 0..source.len(), &nodes.iter().collect::<Vec<_>>());
    let left = mutants.iter().map(|mutant| mutant.id).filter(|id| !woven.contains(id)).collect();
    Ok(Woven { text, left })
}

/// The innermost change whose code holds byte `at` of a woven source.
pub(super) fn change_at(woven: &str, at: usize) -> Option<usize> {
    let mut open: Vec<usize> = Vec::new();
    for mark in woven[..at].split("/*").skip(1) {
        let Some((mark, _)) = mark.split_once("*/") else { continue };
        if let Some(id) = mark.strip_prefix('<').and_then(|id| id.parse().ok()) {
            open.push(id);
        } else if mark.strip_suffix('>').is_some_and(|id| id.parse().ok() == open.last().copied()) {
            open.pop();
        }
    }
    open.last().copied()
}

/// A piece of the source with changes, and how it is written with them.
struct Node {
    range: Range<usize>,
    kind: Kind,
}

/// What is changed, under which ids and to what.
enum Kind {
    Binary {
        left: Range<usize>,
        operator: Range<usize>,
        right: Range<usize>,
        to: Vec<(usize, String)>,
    },
    Unary {
        operand: Range<usize>,
        id: usize,
    },
    /// A guard of a match arm; the arm itself may be deleted too.
    Guard {
        deleted: Option<usize>,
        to: Vec<(usize, String)>,
    },
    /// The end of a pattern whose arm may be deleted.
    Pattern {
        deleted: usize,
    },
    Fields(Vec<(usize, Range<usize>)>),
    /// The beginning of a function's body.
    Body(Vec<(usize, String)>),
}

struct Finder<'a> {
    places: Vec<(&'a Mutant, Range<usize>)>,
    nodes: Vec<Node>,
    woven: BTreeSet<usize>,
}

impl Finder<'_> {
    /// The changes of a genre that begin at a place.
    fn take(&mut self, genre: &str, start: usize) -> Vec<(usize, String)> {
        let here = self.places.iter().filter(|(mutant, range)| mutant.genre == genre && range.start == start);
        let found: Vec<_> = here.map(|(mutant, _)| (mutant.id, mutant.replacement.clone())).collect();
        self.woven.extend(found.iter().map(|(id, _)| *id));
        found
    }
}

fn range(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

fn has_let(expr: &syn::Expr) -> bool {
    match expr {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    // Nothing can be switched where the compiler computes.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}

    fn visit_expr_binary(&mut self, expr: &'ast syn::ExprBinary) {
        // A chain with `let` in it cannot stand in brackets.
        if !has_let(&expr.left) && !has_let(&expr.right) {
            let operator = range(&expr.op);
            let to = self.take("BinaryOperator", operator.start);
            if !to.is_empty() {
                let (left, right) = (range(&*expr.left), range(&*expr.right));
                self.nodes
                    .push(Node { range: left.start..right.end, kind: Kind::Binary { left, operator, right, to } });
            }
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'ast syn::ExprUnary) {
        let whole = range(expr);
        if let Some((id, _)) = self.take("UnaryOperator", whole.start).pop() {
            self.nodes.push(Node { range: whole, kind: Kind::Unary { operand: range(&*expr.expr), id } });
        }
        visit::visit_expr_unary(self, expr);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let pattern = range(&arm.pat);
        match &arm.pat {
            syn::Pat::Guard(guarded) => {
                let guard = range(&*guarded.guard);
                let deleted = self.take("MatchArm", pattern.start).pop().map(|(id, _)| id);
                let to = self.take("MatchArmGuard", guard.start);
                if deleted.is_some() || !to.is_empty() {
                    self.nodes.push(Node { range: guard, kind: Kind::Guard { deleted, to } });
                }
                self.visit_expr(&guarded.guard);
            }
            // Deleted, one that takes all the rest leaves a match that is not whole, and behind a guard it would be so at once.
            syn::Pat::Ident(_) | syn::Pat::Wild(_) => {}
            _ => {
                if let Some((deleted, _)) = self.take("MatchArm", pattern.start).pop() {
                    self.nodes.push(Node { range: pattern.end..pattern.end, kind: Kind::Pattern { deleted } });
                }
            }
        }
        self.visit_expr(&arm.body);
    }

    fn visit_expr_struct(&mut self, expr: &'ast syn::ExprStruct) {
        let mut fields = Vec::new();
        for pair in expr.fields.pairs() {
            let field = range(pair.value());
            let end = pair.punct().map_or(field.end, |comma| range(comma).end);
            fields.extend(self.take("StructField", field.start).into_iter().map(|(id, _)| (id, field.start..end)));
        }
        if !fields.is_empty() {
            self.nodes.push(Node { range: range(expr), kind: Kind::Fields(fields) });
        }
        visit::visit_expr_struct(self, expr);
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        let open = block.brace_token.span.open().byte_range().end;
        if let Some(first) = block.stmts.first().map(|first| range(first).start) {
            let to = self.take("FnValue", first);
            if !to.is_empty() {
                self.nodes.push(Node { range: open..open, kind: Kind::Body(to) });
            }
        }
        visit::visit_block(self, block);
    }
}

/// A piece of the source, with the changes of the nodes in it; these come outermost first.
fn render(source: &str, piece: Range<usize>, nodes: &[&Node]) -> String {
    let mut out = String::new();
    let mut at = piece.start;
    let mut rest = nodes;
    while let Some((node, after)) = rest.split_first() {
        let inner = after.iter().take_while(|next| next.range.start < node.range.end).count();
        let (inside, after) = after.split_at(inner);
        out.push_str(&source[at..node.range.start]);
        out.push_str(&write(source, node, inside));
        at = node.range.end;
        rest = after;
    }
    out.push_str(&source[at..piece.end]);
    out
}

fn write(source: &str, node: &Node, inside: &[&Node]) -> String {
    let part = |range: Range<usize>| {
        let within = |node: &&&Node| node.range.start >= range.start && node.range.end <= range.end;
        let nodes: Vec<&Node> = inside.iter().filter(within).copied().collect();
        render(source, range, &nodes)
    };
    let when = |id: usize, then: &str| format!("if crate::__switch::on({id}) {{/*<{id}*/ {then} /*{id}>*/}} else ");
    match &node.kind {
        Kind::Binary { left, operator, right, to } => {
            let (left, right) = (part(left.clone()), part(right.clone()));
            let changed: String = to.iter().map(|(id, to)| when(*id, &format!("{left} {to} {right}"))).collect();
            format!("({changed}{{ {left} {} {right} }})", &source[operator.clone()])
        }
        Kind::Unary { operand, id } => {
            let operator = &source[node.range.start..operand.start];
            let operand = part(operand.clone());
            format!("({}{{ {operator}{operand} }})", when(*id, &operand))
        }
        Kind::Guard { deleted, to } => {
            let deleted = deleted.map_or(String::new(), |id| when(id, "false"));
            let changed: String = to.iter().map(|(id, to)| when(*id, to)).collect();
            format!("{deleted}{changed}{{ {} }}", part(node.range.clone()))
        }
        Kind::Pattern { deleted } => format!(" if !/*<{deleted}*/crate::__switch::on({deleted})/*{deleted}>*/"),
        Kind::Fields(fields) => {
            let without = |field: &Range<usize>| part(node.range.start..field.start) + &part(field.end..node.range.end);
            let changed: String = fields.iter().map(|(id, field)| when(*id, &without(field))).collect();
            format!("({changed}{{ {} }})", part(node.range.clone()))
        }
        Kind::Body(to) => to.iter().map(|(id, to)| format!(" {} {{}} ", when(*id, &format!("return {to};")))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "fn f(a: u8) -> u8 {\n    match a {\n        1 if a < 2 => !a,\n        _ => 3,\n    }\n}\n";

    fn mutant(id: usize, genre: &str, replacement: &str, start: (usize, usize), end: (usize, usize)) -> Mutant {
        let (genre, replacement) = (genre.to_owned(), replacement.to_owned());
        Mutant { id, file: "f.rs".into(), name: format!("{id}"), genre, replacement, lines: [start, end] }
    }

    #[test]
    fn every_change_is_behind_its_switch() {
        let mutants = [
            mutant(1, "FnValue", "0", (2, 5), (5, 6)),
            mutant(2, "MatchArmGuard", "true", (3, 14), (3, 19)),
            mutant(3, "BinaryOperator", ">", (3, 16), (3, 17)),
            mutant(4, "UnaryOperator", "", (3, 23), (3, 24)),
            mutant(5, "MatchArm", "", (4, 9), (4, 16)),
        ];
        let woven = weave(SOURCE, &mutants).unwrap();
        assert_eq!(woven.left, BTreeSet::from([5]), "what takes all the rest is not switched");
        let plain = woven.text.replace("crate::__switch::on", "on");
        for expected in [
            "fn f(a: u8) -> u8 { if on(1) {/*<1*/ return 0; /*1>*/} else  {} ",
            "1 if if on(2) {/*<2*/ true /*2>*/} else { (if on(3) {/*<3*/ a > 2 /*3>*/} else { a < 2 }) } =>",
            "(if on(4) {/*<4*/ a /*4>*/} else { !a }),",
        ] {
            assert!(plain.contains(expected), "{expected} in {plain}");
        }
        let place = woven.text.find("a > 2").unwrap();
        assert_eq!((change_at(&woven.text, place), change_at(&woven.text, 0)), (Some(3), None));
        assert!(mutants[2].replace(SOURCE).contains("if a > 2 =>"));
    }
}
