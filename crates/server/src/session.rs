//! Sessions: what a browser gets for a name and a password. A session is a token that ends soon and travels in a cookie, which
//! a browser sends along whoever asks it to; so that whatever changes something must also bring what only our own pages know.

use std::collections::HashMap;
use std::time::Instant;

use abide_protocol::Problem;
use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;

use crate::answer::Refused;
use crate::limits::{LOGIN_NAMES_MAX, LOGIN_TRIES, LOGIN_TRY_AGAIN, SESSION};

/// The header that says that a page of ours asks.
pub(crate) const CSRF: &str = "x-csrf-token";

/// How cookies are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Plain,
    Tls,
}

impl Transport {
    /// The name of the cookie. One that begins with `__Host-` is taken by browsers only over TLS, and from no other host.
    fn cookie(self) -> &'static str {
        match self {
            Self::Plain => "abide_session",
            Self::Tls => "__Host-abide_session",
        }
    }

    fn secure(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Tls => "; Secure",
        }
    }

    /// The header that gives a browser its session.
    pub(crate) fn give(self, secret: &str) -> HeaderValue {
        self.header(secret, SESSION.as_secs())
    }

    /// The header that takes it away.
    pub(crate) fn take(self) -> HeaderValue {
        self.header("", 0)
    }

    fn header(self, value: &str, seconds: u64) -> HeaderValue {
        let (name, secure) = (self.cookie(), self.secure());
        let text = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
        let mut header = HeaderValue::from_str(&text).expect("a secret is made of letters and digits");
        header.set_sensitive(true);
        header
    }

    /// The session that a request brings.
    pub(crate) fn of(self, headers: &HeaderMap) -> Option<&str> {
        let pairs = headers.get_all(COOKIE).iter().filter_map(|header| header.to_str().ok());
        let mut pairs = pairs.flat_map(|header| header.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == self.cookie()).map(|(_, value)| value)
    }
}

/// How often each name was tried lately.
#[derive(Default)]
pub(crate) struct Tries(Mutex<HashMap<String, Tried>>);

/// How many tries are used up, and when that was.
struct Tried {
    used: f64,
    at: Instant,
    /// Whether one was refused since the last that was not.
    refused: bool,
}

impl Tried {
    /// What is still used up now: each pause gives one back.
    fn now(&self, now: Instant) -> f64 {
        let given_back = now.saturating_duration_since(self.at).as_secs_f64() / LOGIN_TRY_AGAIN.as_secs_f64();
        (self.used - given_back).max(0.0)
    }
}

/// A name that was tried too often.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TooOften {
    /// For the first time since it was looked at.
    First,
    /// As before.
    Again,
}

impl From<TooOften> for Refused {
    fn from(_: TooOften) -> Self {
        let seconds = LOGIN_TRY_AGAIN.as_secs();
        let problem = Problem::new("too_many_logins", "this name was tried too often");
        problem.but(format!("{LOGIN_TRIES} tries, and one more every {seconds} s"), "more").into()
    }
}

impl Tries {
    /// One more try under a name, whether there is such a user or not.
    pub(crate) fn begin(&self, name: &str, now: Instant) -> Result<(), TooOften> {
        let name: String = name.chars().take(200).collect();
        let mut all = self.0.lock();
        if all.len() >= LOGIN_NAMES_MAX && !all.contains_key(&name) {
            forget_least(&mut all, now);
        }
        let tried = all.entry(name).or_insert(Tried { used: 0.0, at: now, refused: false });
        let known = tried.now(now);
        if known + 1.0 > LOGIN_TRIES {
            let again = std::mem::replace(&mut tried.refused, true);
            return Err(if again { TooOften::Again } else { TooOften::First });
        }
        *tried = Tried { used: known + 1.0, at: now, refused: false };
        Ok(())
    }

    /// The try was right: it is not held against anybody.
    pub(crate) fn right(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

/// Makes room: whoever makes up names must not keep out those who have one. What was tried least goes first, so that a
/// name that is guessed at stays known for longer than those that are made up to have it forgotten.
fn forget_least(all: &mut HashMap<String, Tried>, now: Instant) {
    all.retain(|_, tried| tried.now(now) > 0.0);
    if all.len() >= LOGIN_NAMES_MAX {
        let least = all.iter().min_by(|(_, one), (_, other)| one.now(now).total_cmp(&other.now(now)));
        if let Some(name) = least.map(|(name, _)| name.clone()) {
            all.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AB-16
    #[test]
    fn a_name_is_tried_so_often_and_others_do_not_pay_for_it() {
        let (tries, begin) = (Tries::default(), Instant::now());
        let tried = |name: &str, pauses: u32| tries.begin(name, begin + LOGIN_TRY_AGAIN * pauses).is_ok();
        let most = LOGIN_TRIES as usize;
        assert_eq!((0..most + 2).filter(|_| tried("ada", 0)).count(), most);
        assert!(tried("bob", 0));
        assert!(tried("ada", 1) && !tried("ada", 1), "a pause gives one back");
        tries.right("ada");
        assert!(tried("ada", 1));
    }

    /// AB-16: made-up names lock nobody out, and do not have a name forgotten that is guessed at.
    #[test]
    fn more_names_than_can_be_remembered_lock_nobody_out() {
        let (tries, now) = (Tries::default(), Instant::now());
        while tries.begin("ada", now).is_ok() {}
        for number in 0..LOGIN_NAMES_MAX + 100 {
            tries.begin(&number.to_string(), now).unwrap();
        }
        assert_eq!(tries.begin("bob", now), Ok(()));
        assert_eq!(tries.begin("ada", now), Err(TooOften::Again));
        assert!(tries.0.lock().len() <= LOGIN_NAMES_MAX);
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let headers: HeaderMap = [
            (COOKIE, HeaderValue::from_static("a=b; abide_session=one")),
            (COOKIE, HeaderValue::from_static("__Host-abide_session=two; c=d")),
        ]
        .into_iter()
        .collect();
        assert_eq!((Transport::Plain.of(&headers), Transport::Tls.of(&headers)), (Some("one"), Some("two")));
        assert_eq!(Transport::Plain.of(&HeaderMap::new()), None);
        let given = Transport::Tls.give("abide_x");
        let text = given.to_str().unwrap();
        assert!(text.starts_with("__Host-abide_session=abide_x; Path=/; "), "{text}");
        assert!(["HttpOnly", "SameSite=Strict", "Secure", "Max-Age="].iter().all(|word| text.contains(word)), "{text}");
        assert!(!Transport::Plain.give("abide_x").to_str().unwrap().contains("Secure"));
        assert!(Transport::Tls.take().to_str().unwrap().contains("Max-Age=0"));
    }
}
