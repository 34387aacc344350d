//! A call: a request that was let in, with what a route needs to carry it out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::limits::NAME_BYTES_MAX;
use abide_kernel::shard::{Answer, Command};
use abide_kernel::{RequestId, Run, RunId, Slot, Str, Timestamp, TraceContext};
use abide_protocol::limits::{JSON_DEPTH_MAX, PAGE};
use abide_protocol::{BadInstant, IdempotencyKey, Instant, Operation, Problem, Scope};
use abide_runtime::Engine;
use abide_store::Page;
use axum::body::Bytes;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::Limits;
use crate::answer::Refused;
use crate::auth::{Guard, Principal};
use crate::blocking::Blocking;
use crate::limits::PATIENCE;
use crate::places::Places;
use crate::serve::Logins;

/// A request that was let in.
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) engine: Arc<Engine>,
    pub(crate) guard: Arc<Guard>,
    pub(crate) logins: Arc<Logins>,
    pub(crate) places: Arc<Places>,
    pub(crate) blocking: Arc<Blocking>,
    pub(crate) limits: Limits,
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) principal: Principal,
    pub(crate) path: HashMap<String, String>,
    pub(crate) query: Vec<(String, String)>,
    /// The last event that a reader of a stream got.
    pub(crate) last_event: Option<String>,
    /// The place in a trace at which it was asked.
    pub(crate) trace: Option<TraceContext>,
    pub(crate) body: Bytes,
    pub(crate) key: Option<IdempotencyKey>,
}

impl Call {
    fn parameter(&self, name: &str) -> &str {
        self.path.get(name).map_or("", String::as_str)
    }

    /// The namespace that the path names, in which whoever asks may ask.
    pub(crate) fn namespace(&self) -> Str {
        self.parameter("namespace").into()
    }

    /// An id in the path.
    pub(crate) fn id<T: std::str::FromStr<Err = abide_kernel::BadId>>(&self, name: &str) -> Result<T, Refused> {
        self.parameter(name).parse().map_err(|bad: abide_kernel::BadId| {
            Problem::new("bad_id", bad.to_string()).but(bad.expected, bad.found.clone()).into()
        })
    }

    /// Text in the path.
    pub(crate) fn word(&self, name: &str) -> &str {
        self.parameter(name)
    }

    /// A parameter of the query.
    pub(crate) fn asked(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A number in the query: that it is one was looked at before.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.asked(name)?.parse().ok()
    }

    /// The page of runs that is asked for.
    pub(crate) fn page(&self) -> Result<Page, Refused> {
        let most = self.number("limit").unwrap_or(PAGE) as usize;
        Ok(Page { most, before: self.run_asked("before")? })
    }

    /// A run that the query names.
    pub(crate) fn run_asked(&self, name: &str) -> Result<Option<RunId>, Refused> {
        let parse = |text: &str| text.parse().map_err(|bad: abide_kernel::BadId| bad_query(name, bad.expected, text));
        self.asked(name).map(parse).transpose()
    }

    /// An instant that the query names.
    pub(crate) fn instant_asked(&self, name: &str) -> Result<Option<Timestamp>, Refused> {
        let parse = |text: &str| text.parse().map_err(|_: BadInstant| bad_query(name, BadInstant::EXPECTED, text));
        Ok(self.asked(name).map(parse).transpose()?.map(|Instant(at)| at))
    }

    /// The body. None at all stands for an empty one; where that is not enough the route says so before.
    pub(crate) fn body<T: DeserializeOwned>(&self) -> Result<T, Refused> {
        let text: &[u8] = if self.body.is_empty() { b"{}" } else { &self.body };
        // A list would be taken for the fields of a struct in their order.
        if text.trim_ascii_start().first() != Some(&b'{') {
            let problem = Problem::new("malformed", "the body is not a JSON object");
            return Err(problem.but("a JSON object", format!("{} bytes that are none", text.len())).into());
        }
        let deep = depth(text);
        if deep > JSON_DEPTH_MAX {
            let problem = Problem::new("too_deep", "lists and objects of the body lie too deep in each other");
            return Err(problem.but(format!("at most {JSON_DEPTH_MAX} deep"), deep.to_string()).into());
        }
        serde_json::from_slice(text).map_err(|error| Problem::new("malformed", format!("the body: {error}")).into())
    }

    /// The request: the same for the same key, or a new one.
    pub(crate) fn request(&self) -> RequestId {
        let Some(key) = self.key else { return self.engine.new_request() };
        key.request(|bytes| {
            let mut hash = Sha256::new();
            hash.update(format!("{:?}", self.operation));
            let mut named: Vec<_> = self.path.iter().collect();
            named.sort();
            for (name, value) in named {
                hash.update(format!("\0{name}\0{value}"));
            }
            hash.update([0]);
            hash.update(bytes);
            let digest: [u8; 32] = hash.finalize().into();
            u128::from_be_bytes(digest[..16].try_into().expect("a digest has more bytes"))
        })
    }

    /// A run of this namespace, by the path.
    pub(crate) async fn run(&self) -> Result<Run, Refused> {
        self.find(self.id("run")?).await
    }

    /// A run of this namespace. One of another is not here.
    pub(crate) async fn find(&self, run: RunId) -> Result<Run, Refused> {
        let found = in_time(self.engine.show(run)).await??;
        if *found.started.spec.namespace != *self.parameter("namespace") || found.is_reservation() {
            return Err(Problem::not_found(run).into());
        }
        Ok(found)
    }

    /// Sends a command until its outcome is known, if sending it again is safe.
    pub(crate) async fn ask(&self, slot: Slot, command: Command) -> Result<Answer, Refused> {
        Ok(in_time(self.engine.ask_until_known(slot, command)).await??)
    }

    /// What comes of waiting, unless it takes longer than `wait`, or the server stops.
    pub(crate) async fn within<T>(&self, wait: Duration, waiting: impl Future<Output = T>) -> Option<T> {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            biased;
            came = waiting => Some(came),
            () = tokio::time::sleep(wait.min(self.limits.wait_max)) => None,
            _ = stopping.wait_for(|stops| *stops) => None,
        }
    }

    /// Whether whoever asked may still be answered, after a wait in which their token may have been revoked.
    pub(crate) async fn still_known(&self) -> Result<(), Refused> {
        match self.guard.still_knows(&self.engine, &self.principal).await {
            true => Ok(()),
            false => Err(Problem::new("unauthenticated", "the token was revoked or has ended meanwhile").into()),
        }
    }

    /// Does what blocks where that is allowed.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let engine = self.engine.clone();
        self.blocking.perform(move || work(&engine)).await
    }
}

/// How deep lists and objects lie in each other. Payloads are not parsed, so that no parser would say so.
fn depth(text: &[u8]) -> usize {
    let (mut now, mut most) = (0usize, 0usize);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' => now += 1,
            b'}' | b']' => now = now.saturating_sub(1),
            b'"' => {
                // To the end of the string; what is escaped does not end it.
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        most = most.max(now);
    }
    most
}

/// Whether something can have that name: as the kernel has it for runs, and no word for all of them.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Refused> {
    let sound = (1..=NAME_BYTES_MAX).contains(&name.len()) && name != Scope::ANY;
    if sound && !name.chars().any(char::is_control) {
        return Ok(());
    }
    let expected = format!("a name of 1 to {NAME_BYTES_MAX} bytes other than *, without control characters");
    let found: String = name.chars().take(80).collect();
    Err(Problem::new("invalid", format!("{what}: expected {expected}, found {found:?}")).but(expected, found).into())
}

pub(crate) fn bad_query(name: &str, expected: &str, found: &str) -> Refused {
    let found: String = found.chars().take(80).collect();
    Problem::new("bad_query", format!("{name}: expected {expected}, found {found:?}")).but(expected, found).into()
}

/// What comes of a question, unless whoever has to answer it is not to be reached.
pub(crate) async fn in_time<T>(question: impl Future<Output = T>) -> Result<T, Refused> {
    let late = || Problem::new("unknown", format!("nobody answered within {} s", PATIENCE.as_secs()));
    tokio::time::timeout(PATIENCE, question).await.map_err(|_| late().into())
}

#[cfg(test)]
mod tests {
    use super::depth;

    #[test]
    fn depth_is_counted_outside_of_strings() {
        let known = [
            ("", 0),
            ("1", 0),
            ("{}", 1),
            (r#"{"a":[[1],[2]],"b":{}}"#, 3),
            (r#"["[[[[", "\"[[", "\\"]"#, 1),
            ("[[", 2),
        ];
        for (text, deep) in known {
            assert_eq!(depth(text.as_bytes()), deep, "{text}");
        }
    }
}
