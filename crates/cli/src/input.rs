//! Payloads and durations as they are given on the command line.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use abide_kernel::{Payload, limits};

use crate::failure::Failure;

/// The payload given as text, as a file, or `-` for standard input; `null` when none is.
pub(crate) fn payload(option: &str, text: Option<&str>, file: Option<&PathBuf>) -> Result<Payload, Failure> {
    let text = match (text, file) {
        (Some("-"), _) => read(io::stdin().lock(), "standard input")?,
        (Some(text), _) => text.to_owned(),
        (None, Some(path)) if path.as_os_str() == "-" => read(io::stdin().lock(), "standard input")?,
        (None, Some(path)) => {
            let shown = path.display().to_string();
            let file = File::open(path).map_err(|error| unreadable(&shown, &error))?;
            read(file, &shown)?
        }
        (None, None) => return Ok(Payload::null()),
    };
    Payload::parse(text.trim()).map_err(|error| {
        let what = format!("{option} is not JSON: {error}");
        Failure::usage("bad_json", what).hint(r#"text needs quotes of its own: '"Ada"' or '{"name":"Ada"}'"#)
    })
}

fn unreadable(what: &str, error: &io::Error) -> Failure {
    Failure::usage("unreadable", format!("{what} cannot be read: {error}"))
}

/// Reads up to one byte more than a payload may have, so that a larger one is refused and not swallowed.
fn read(from: impl Read, what: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let most = limits::PAYLOAD_BYTES_MAX as u64 + 1;
    from.take(most).read_to_string(&mut text).map_err(|error| unreadable(what, &error))?;
    if text.len() as u64 >= most {
        let what = format!("{what} is too large: at most {} bytes", limits::PAYLOAD_BYTES_MAX);
        return Err(Failure::usage("too_large", what));
    }
    Ok(text)
}

/// A duration like `30s`, `5m` or `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<jiff::SignedDuration, _> = text.parse();
    let duration = parsed.ok().and_then(|duration| Duration::try_from(duration).ok());
    duration.ok_or_else(|| format!("expected a duration like 30s, 5m or 1h 30m, found {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_words() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5_400)));
        for wrong in ["", "30", "soon", "-5s"] {
            assert!(duration(wrong).unwrap_err().contains("30s"), "{wrong}");
        }
    }

    #[test]
    fn a_payload_is_one_json_document() {
        assert_eq!(payload("--input", Some(" [1] "), None).unwrap().text(), "[1]");
        assert_eq!(payload("--input", None, None).unwrap(), Payload::null());
        let failure = payload("--input", Some("Ada"), None).unwrap_err();
        assert_eq!(failure.code, "bad_json");
    }
}
