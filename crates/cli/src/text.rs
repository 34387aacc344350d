//! Text for people: nothing that a terminal would obey, instants and durations in words.

use std::borrow::Cow;

use abide_kernel::Timestamp;

/// Whether a terminal might obey the character, or show other text than there is.
fn is_unsafe(sign: char) -> bool {
    sign.is_control()
        || matches!(sign, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The text with everything spelled out that a terminal might obey.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::with_capacity(text.len() + 8);
    for sign in text.chars() {
        if is_unsafe(sign) {
            cleaned.extend(sign.escape_default());
        } else {
            cleaned.push(sign);
        }
    }
    Cow::Owned(cleaned)
}

/// JSON text on one line, with everything escaped that a terminal might obey. JSON has control characters in strings
/// only as escapes already, and between them only as white space.
pub(crate) fn safe_json(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '\n' | '\r' | '\t' => safe.push(' '),
            sign if is_unsafe(sign) => {
                let mut units = [0; 2];
                for unit in sign.encode_utf16(&mut units) {
                    safe.push_str(&format!("\\u{unit:04x}"));
                }
            }
            sign => safe.push(sign),
        }
    }
    safe
}

/// At most so many characters, with a mark where something was cut.
pub(crate) fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some(_) => {
            let kept: String = text.chars().take(most.saturating_sub(1)).collect();
            Cow::Owned(kept + "…")
        }
    }
}

/// An instant like `2026-11-15T21:08:02.125Z`.
pub(crate) fn iso(at: Timestamp) -> String {
    match jiff::Timestamp::from_millisecond(at.0) {
        Ok(instant) => format!("{instant:.3}"),
        Err(_) => format!("{} ms", at.0),
    }
}

/// A span of time in at most two units, like `1m 30s`.
pub(crate) fn span(ms: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    if ms < 1_000 {
        return format!("{ms}ms");
    }
    if ms < 10_000 {
        return format!("{}.{}s", ms / 1_000, ms % 1_000 / 100);
    }
    let first = UNITS.iter().position(|(_, unit)| ms >= *unit).unwrap_or(3);
    let (name, unit) = UNITS[first];
    let rest = UNITS.get(first + 1).map(|(name, unit_below)| (name, ms % unit / unit_below));
    match rest {
        Some((below, count)) if count > 0 && ms / unit < 10 => format!("{}{name} {count}{below}", ms / unit),
        _ => format!("{}{name}", ms / unit),
    }
}

/// An instant seen from `now`, like `3m ago` or `in 2h`.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    if at > now { format!("in {}", span(at.since(now))) } else { format!("{} ago", span(now.since(at))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        assert_eq!(clean("a\u{1b}[31mred\r\n"), "a\\u{1b}[31mred\\r\\n");
        assert_eq!(clean("\u{9b}2J \u{202e}txt.exe \u{7f}"), "\\u{9b}2J \\u{202e}txt.exe \\u{7f}");
        assert!(matches!(clean("größe 大"), Cow::Borrowed(_)));
        assert_eq!(safe_json("{\n \"a\":\"\u{9b}2J\u{2066}\"}"), "{  \"a\":\"\\u009b2J\\u2066\"}");
    }

    #[test]
    fn times_read_well() {
        let now = Timestamp(1_700_000_000_000);
        assert_eq!(iso(now), "2023-11-14T22:13:20.000Z");
        assert_eq!(relative(Timestamp(now.0 - 90_000), now), "1m 30s ago");
        assert_eq!(relative(Timestamp(now.0 + 7_200_000), now), "in 2h");
        assert_eq!(span(12), "12ms");
        assert_eq!(span(1_250), "1.2s");
        assert_eq!(span(36 * 86_400_000), "36d");
        assert_eq!(cut("abcdef", 4), "abc…");
    }
}
