//! Rust source as a flat list of words and signs. Comments and literals are gone, so that a rule about code
//! does not trip over prose; the bodies of macros are kept, so that nothing hides in them.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree, token_stream};

/// An identifier, one sign of punctuation, or a bracket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// The code of one file.
#[derive(Default)]
pub(crate) struct Code {
    pub(crate) tokens: Vec<Token>,
    /// Modules that are declared here, compiled for tests only, and live in a file of their own.
    pub(crate) test_modules: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TestCode {
    Keep,
    Skip,
}

impl Code {
    /// All code of the file. Source that is no Rust has no code; the rule of sizes reports it.
    pub(crate) fn whole(text: &str) -> Code {
        Code::read(text, TestCode::Keep)
    }

    /// The code of the file without what stands under `#[cfg(test)]`.
    pub(crate) fn product(text: &str) -> Code {
        Code::read(text, TestCode::Skip)
    }

    fn read(text: &str, test_code: TestCode) -> Code {
        let mut code = Code::default();
        if let Ok(stream) = text.parse::<TokenStream>() {
            code.flatten(stream, test_code);
        }
        code
    }

    fn flatten(&mut self, stream: TokenStream, test_code: TestCode) {
        let mut trees = stream.into_iter();
        while let Some(tree) = trees.next() {
            match tree {
                TokenTree::Group(group) if test_code == TestCode::Skip && is_cfg_test(&group) => {
                    self.skip_item(&mut trees);
                }
                TokenTree::Group(group) => {
                    let (open, close) = brackets(group.delimiter());
                    self.push(open, group.span_open());
                    let close_span = group.span_close();
                    self.flatten(group.stream(), test_code);
                    self.push(close, close_span);
                }
                TokenTree::Ident(word) => self.push(&word.to_string(), word.span()),
                TokenTree::Punct(sign) => self.push(&sign.as_char().to_string(), sign.span()),
                TokenTree::Literal(_) => {}
            }
        }
    }

    fn push(&mut self, text: &str, span: proc_macro2::Span) {
        self.tokens.push(Token { text: text.to_owned(), line: span.start().line });
    }

    /// An item ends with its body in braces or with a semicolon, whichever comes first.
    fn skip_item(&mut self, trees: &mut token_stream::IntoIter) {
        let mut words = Vec::new();
        for tree in trees {
            match tree {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => return,
                TokenTree::Punct(sign) if sign.as_char() == ';' => break,
                TokenTree::Ident(word) => words.push(word.to_string()),
                TokenTree::Group(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
        if let [.., keyword, name] = words.as_slice()
            && keyword == "mod"
        {
            self.test_modules.push(name.clone());
        }
    }
}

fn is_cfg_test(group: &Group) -> bool {
    let text = group.stream().to_string();
    group.delimiter() == Delimiter::Bracket && text.split_whitespace().collect::<String>() == "cfg(test)"
}

fn brackets(delimiter: Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

/// The names a tree of sources defines or uses.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) functions: BTreeSet<String>,
    pub(crate) types: BTreeSet<String>,
    /// Every identifier: also variants, fields and constants.
    pub(crate) all: BTreeSet<String>,
}

impl Names {
    pub(crate) fn add(&mut self, code: Code) {
        let mut before = String::new();
        for token in code.tokens {
            match before.as_str() {
                "fn" => drop(self.functions.insert(token.text.clone())),
                "struct" | "enum" | "trait" | "type" | "union" => drop(self.types.insert(token.text.clone())),
                _ => {}
            }
            self.all.insert(token.text.clone());
            before = token.text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(code: &Code) -> Vec<&str> {
        code.tokens.iter().map(|token| token.text.as_str()).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        let code = Code::whole("//! std::time\n/* rand */ fn a() { let b = r#\"std::fs\"#; /// rand\n c(); }");
        assert!(!words(&code).contains(&"std"));
        assert!(!words(&code).contains(&"rand"));
        assert_eq!(words(&Code::whole("// x\nfn a()")), ["fn", "a", "(", ")"]);
    }

    #[test]
    fn a_token_knows_its_line() {
        let code = Code::whole("fn a() {\n    b!(\n c);\n}");
        let c = code.tokens.iter().find(|token| token.text == "c").expect("macro bodies are code");
        assert_eq!(c.line, 3);
    }

    #[test]
    fn test_code_ends_where_its_item_ends() {
        let code = Code::product(
            "#[cfg(test)] extern crate a; b; #[cfg(test)] #[x] mod tests { c } d; #[cfg(test)] use e::{f}; g",
        );
        let kept: Vec<&str> = words(&code).into_iter().filter(|text| text.chars().all(char::is_alphabetic)).collect();
        assert_eq!(kept, ["b", "d", "g"]);
    }

    #[test]
    fn a_test_module_in_its_own_file_is_remembered() {
        let code = Code::product("#[cfg(test)]\npub(crate) mod transcripts;\nmod claim;");
        assert_eq!(code.test_modules, ["transcripts"]);
    }

    #[test]
    fn code_for_tests_or_a_feature_is_product_code() {
        let code = Code::product("#[cfg(any(test, feature = \"x\"))] mod a { b }");
        assert!(words(&code).contains(&"b"));
    }

    #[test]
    fn definitions_are_named_by_kind() {
        let mut names = Names::default();
        names.add(Code::whole(
            "// struct Old;\nstruct Run; enum Phase { Ready } trait Store { fn append(); } type Rev = u64;",
        ));
        assert_eq!(names.types.iter().collect::<Vec<_>>(), ["Phase", "Rev", "Run", "Store"]);
        assert_eq!(names.functions.iter().collect::<Vec<_>>(), ["append"]);
        assert!(names.all.contains("Ready"));
    }
}
