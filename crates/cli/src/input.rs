//! Payloads and durations as they are given on the command line.

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use abide_kernel::{Payload, Timestamp, limits};
use abide_protocol::{BadInstant, Instant};
use jiff::SpanRelativeTo;

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

/// A duration like `30s`, `1h 30m`, `2d` or `1w`. A day has 24 hours: none of another length is known here.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<jiff::Span, _> = text.parse();
    let exact = parsed.ok().and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()).ok());
    let duration = exact.and_then(|duration| Duration::try_from(duration).ok());
    duration.ok_or_else(|| format!("expected a duration like 30s, 5m, 1h 30m, 2d or 1w, found {text:?}"))
}

/// A size like `512KiB`, `8MiB` or `1048576`, in bytes.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let unit = match text[digits..].trim() {
        "" | "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1usize << 30),
        _ => None,
    };
    let number: Option<usize> = text[..digits].parse().ok();
    let found = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    found.ok_or_else(|| format!("expected a size like 512KiB, 8MiB or 1048576, found {text:?}"))
}

/// A label like `team=ops`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    let named = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = named.ok_or_else(|| format!("expected NAME=VALUE, found {text:?}"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// An instant, or how long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// This instant.
    At(Timestamp),
    /// So long ago.
    Ago(Duration),
}

impl When {
    /// The instant, seen from now.
    pub(crate) fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(ago) => Timestamp(now.0.saturating_sub(i64::try_from(ago.as_millis()).unwrap_or(i64::MAX))),
        }
    }
}

/// An instant like `2026-11-15T21:08:02Z`, or how long ago, like `2h`.
pub(crate) fn when(text: &str) -> Result<When, String> {
    let at = text.parse().ok().map(|Instant(at)| When::At(at));
    at.or_else(|| duration(text).ok().map(When::Ago))
        .ok_or_else(|| format!("expected {}, or how long ago, like 2h or 7d, found {text:?}", BadInstant::EXPECTED))
}

/// Where to listen: an address of this machine with a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let local = || Some(SocketAddr::from((Ipv4Addr::LOCALHOST, text.strip_prefix("localhost:")?.parse().ok()?)));
    let address = text.parse().ok().or_else(local);
    address.ok_or_else(|| {
        format!("expected ADDRESS:PORT like 127.0.0.1:7411, 0.0.0.0:7411 or localhost:7411, found {text:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_words() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("90d"), Ok(Duration::from_secs(90 * 86_400)));
        assert_eq!(duration("1w 2d 3h"), Ok(Duration::from_secs(9 * 86_400 + 3 * 3_600)));
        for wrong in ["", "30", "soon", "-5s", "1mo", "-1d"] {
            assert!(duration(wrong).unwrap_err().contains("30s"), "{wrong}");
        }
    }

    #[test]
    fn when_is_an_instant_or_how_long_ago() {
        assert_eq!(when("1970-01-01T00:00:01.5Z"), Ok(When::At(Timestamp(1_500))));
        assert_eq!(when("1970-01-01T02:00:00+02:00"), Ok(When::At(Timestamp(0))));
        assert_eq!(when("2h").map(|when| when.from(Timestamp(7_200_001))), Ok(Timestamp(1)));
        for wrong in ["", "yesterday", "-2h", "2026-11-15", "1700000000", "2026-13-01T00:00:00Z"] {
            assert!(when(wrong).unwrap_err().contains("2026-11-15T21:08:02.125Z, or how long ago"), "{wrong}");
        }
    }

    #[test]
    fn an_address_to_listen_at_has_a_port() {
        assert_eq!(address("localhost:7601"), Ok(([127, 0, 0, 1], 7601).into()));
        assert_eq!(address("[::1]:0"), Ok("[::1]:0".parse().unwrap()));
        for wrong in ["", ":7601", "7601", "localhost", "example.com:80", "localhost:70000"] {
            assert!(address(wrong).unwrap_err().contains("127.0.0.1:7411"), "{wrong}");
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
