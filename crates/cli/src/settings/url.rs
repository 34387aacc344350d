//! URLs of servers and stores: what they may be, and how they are shown.

use std::net::IpAddr;

use super::Said;
use crate::failure::Failure;

/// Whether it names a server and nothing else.
pub(super) fn check_url(said: &Said) -> Result<(), Failure> {
    let host = said.value.strip_prefix("http://").or_else(|| said.value.strip_prefix("https://"));
    let host = host.map(|host| host.trim_end_matches('/')).unwrap_or_default();
    let strange = |sign: char| sign.is_control() || matches!(sign, '/' | '?' | '#' | '@' | ' ');
    if host.is_empty() || host.contains(strange) {
        let what =
            format!("{}: expected http://host:port or https://host:port, found {:?}", said.from, shown_url(said));
        return Err(Failure::usage("bad_url", what).hint("the token goes into ABIDE_TOKEN or a file, not into the URL"));
    }
    Ok(())
}

/// A URL without who logs in by it.
pub(super) fn shown_url(said: &Said) -> String {
    let (scheme, rest) = said.value.split_once("://").unwrap_or(("", &said.value));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

/// Whether a URL is one of this machine. What is not plainly so is not.
pub(super) fn is_loopback(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or_default();
    let rest = rest.trim_end_matches('/');
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !rest.ends_with(']') => (host, port),
        _ => (rest, ""),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let known = host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    known && port.bytes().all(|byte| byte.is_ascii_digit())
}
