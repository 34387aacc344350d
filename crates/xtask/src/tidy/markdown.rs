//! As much of Markdown as the rules about documents need: prose without fenced code, code spans, and link
//! targets. Not a parser; what it does not understand it passes over.

/// The lines outside of fenced code, numbered from one.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, Some(opened)) => fence = Some(opened),
            (Some(open), Some(closed)) if open == closed => fence = None,
            (None, None) => return Some((index + 1, line)),
            (Some(_), _) => {}
        }
        None
    })
}

/// What stands between back-ticks on a line.
pub(crate) fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    let is_closed = line.matches('`').count();
    // The last piece of an odd number of back-ticks is not closed on this line.
    line.split('`').enumerate().filter(move |(index, _)| index % 2 == 1 && *index < is_closed).map(|(_, span)| span)
}

/// Where the links of a line lead, without title: `[text](target)` and `[name]: target`.
pub(crate) fn link_targets(line: &str) -> Vec<String> {
    // Code may look like a link: `list[0](x)`.
    let plain: String = line.split('`').step_by(2).collect();
    let inline = plain.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let defined = plain
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
        .filter(|(name, _)| !name.contains(']'))
        .map(|(_, target)| target);
    inline.chain(defined).filter_map(|target| target.split_whitespace().next()).map(unwrapped).collect()
}

fn unwrapped(target: &str) -> String {
    target.trim_start_matches('<').trim_end_matches('>').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_code_is_not_prose() {
        let text = "one\n```rust\n~~~\ntwo\n```\nthree\n  ~~~\nfour\n~~~\nfive";
        assert_eq!(prose(text).collect::<Vec<_>>(), [(1, "one"), (6, "three"), (10, "five")]);
    }

    #[test]
    fn code_spans_come_in_order_and_an_open_one_is_none() {
        assert_eq!(code_spans("a `b` c `d/e.rs` f").collect::<Vec<_>>(), ["b", "d/e.rs"]);
        assert_eq!(code_spans("a `b` c `d").collect::<Vec<_>>(), ["b"]);
        assert_eq!(code_spans("plain").count(), 0);
    }

    #[test]
    fn links_are_found_inline_and_defined() {
        assert_eq!(link_targets("[a](b.md), ![c](d.png \"title\") and [`e`](<f.md>)"), ["b.md", "d.png", "f.md"]);
        assert_eq!(link_targets("[contract]: docs/contract.md"), ["docs/contract.md"]);
        assert!(link_targets("`list[0](x)` and [x] (y)").is_empty());
    }
}
