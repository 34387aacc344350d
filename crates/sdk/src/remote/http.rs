//! Requests to a server, and what came of them.

use std::time::Duration;

use abide_kernel::RequestId;
use abide_protocol::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ClientError;

/// How long an answer may take beyond what was asked to be waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a request is sent again that was not answered, or that the server says may be.
const TRIES_MAX: u32 = 10;
/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A way to a server, for one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    client: reqwest::Client,
    base: String,
    token: Option<String>,
    namespace: String,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The server said no.
    Problem(Box<Problem>),
    /// Nobody knows whether it arrived.
    Unreachable(String),
    /// Whoever answers there is not known to be the server.
    Distrusted(String),
    /// The answer cannot be read.
    Nonsense(String),
}

impl Trouble {
    /// Whether the same request may be answered later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Problem(problem) => matches!(problem.status, 408 | 429 | 502 | 503 | 504),
            Self::Unreachable(_) => true,
            Self::Distrusted(_) | Self::Nonsense(_) => false,
        }
    }
}

impl From<Trouble> for ClientError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Problem(problem) => Self::Problem(problem),
            Trouble::Unreachable(why) => Self::Unreachable(why),
            Trouble::Distrusted(why) => Self::Distrusted(why),
            Trouble::Nonsense(what) => Self::Engine(abide_runtime::Unanswered::Unexpected(what)),
        }
    }
}

/// How long to wait before a try.
pub(crate) fn pause(tries: u32) -> Duration {
    (Duration::from_millis(20) * 2u32.saturating_pow(tries.min(16))).min(PAUSE_MAX)
}

/// A request that is about to be sent.
pub(crate) struct Ask<'a> {
    /// Whether it is about the store as a whole, and not about a namespace.
    over: bool,
    method: reqwest::Method,
    path: &'a str,
    query: Vec<(&'a str, String)>,
    body: Option<Vec<u8>>,
    key: Option<RequestId>,
    wait: Duration,
}

impl<'a> Ask<'a> {
    pub(crate) fn get(path: &'a str) -> Self {
        let (query, wait) = (Vec::new(), Duration::ZERO);
        Self { over: false, method: reqwest::Method::GET, path, query, body: None, key: None, wait }
    }

    pub(crate) fn post(path: &'a str, body: &impl Serialize) -> Result<Self, ClientError> {
        let what = || format!("what is sent to {path}");
        let body = serde_json::to_vec(body).map_err(|source| ClientError::Codec { what: what(), source })?;
        Ok(Self { method: reqwest::Method::POST, body: Some(body), ..Self::get(path) })
    }

    /// A verb that says everything by its path.
    pub(crate) fn verb(path: &'a str) -> Self {
        Self { method: reqwest::Method::POST, ..Self::get(path) }
    }

    /// It is about the store as a whole.
    pub(crate) fn over(mut self) -> Self {
        self.over = true;
        self
    }

    /// The same request under the same key is carried out once.
    pub(crate) fn key(mut self, key: RequestId) -> Self {
        self.key = Some(key);
        self
    }

    pub(crate) fn with(mut self, name: &'a str, value: Option<String>) -> Self {
        self.query.extend(value.map(|value| (name, value)));
        self
    }

    /// The server may take so long to answer.
    pub(crate) fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

impl Http {
    pub(crate) fn new(client: reqwest::Client, base: &str, namespace: &str, token: Option<String>) -> Self {
        Self { client, base: base.trim_end_matches('/').to_owned(), token, namespace: namespace.to_owned() }
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The same server, and another namespace.
    pub(crate) fn within(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self.clone() }
    }

    /// Sends a request once.
    pub(crate) async fn once<T: DeserializeOwned>(&self, ask: &Ask<'_>) -> Result<T, Trouble> {
        let mut url = format!("{}{}", self.base, abide_protocol::PREFIX);
        if !ask.over {
            url.push_str(&format!("/namespaces/{}", escape(&self.namespace)));
        }
        url.push_str(ask.path);
        for (number, (name, value)) in ask.query.iter().enumerate() {
            url.push(if number == 0 { '?' } else { '&' });
            url.push_str(&format!("{name}={}", escape(value)));
        }
        let mut request = self.client.request(ask.method.clone(), url).timeout(ask.wait + PATIENCE);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(key) = ask.key {
            request = request.header("Idempotency-Key", key.to_string());
        }
        if let Some(body) = &ask.body {
            request = request.header("Content-Type", "application/json").body(body.clone());
        }
        let unreachable = |error: reqwest::Error| {
            let distrusted = is_distrust(&error);
            let why = chain(&error.without_url());
            if distrusted { Trouble::Distrusted(why) } else { Trouble::Unreachable(why) }
        };
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(unreachable)?;
        if status.is_success() {
            let body: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
            return serde_json::from_slice(body)
                .map_err(|error| Trouble::Nonsense(format!("an answer of another shape: {error}")));
        }
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(Trouble::Problem(Box::new(problem))),
            Err(_) if status.is_server_error() => Err(Trouble::Unreachable(format!("the answer is {status}"))),
            Err(_) => Err(Trouble::Nonsense(format!("{status} without a problem; is this an Abide server?"))),
        }
    }

    /// Sends a request until it is answered, as long as that may help. It must be one that may be sent twice.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Result<T, Trouble> {
        let mut tries = 0;
        loop {
            match self.once(&ask).await {
                Err(trouble) if trouble.may_pass() && tries < TRIES_MAX => {
                    tokio::time::sleep(pause(tries)).await;
                    tries += 1;
                }
                answered => return answered,
            }
        }
    }
}

/// Whether a certificate was shown that is not believed: asking again changes nothing.
#[cfg(feature = "https")]
fn is_distrust(error: &(dyn std::error::Error + 'static)) -> bool {
    if matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))) {
        return true;
    }
    // An error of a stream keeps its cause inside, and names the causes of that as its own.
    let inside = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    inside.is_some_and(|inside| is_distrust(inside)) || error.source().is_some_and(is_distrust)
}

#[cfg(not(feature = "https"))]
fn is_distrust(_: &(dyn std::error::Error + 'static)) -> bool {
    false
}

/// What speaks with the server at a URL, and believes these authorities beside those of the machine.
pub(super) fn client(url: &str, trusted: &[Vec<u8>]) -> Result<reqwest::Client, String> {
    let builder = reqwest::Client::builder().no_proxy();
    #[cfg(feature = "https")]
    let builder = builder.tls_backend_preconfigured(crate::tls::config(url, trusted)?);
    #[cfg(not(feature = "https"))]
    if url.starts_with("https://") || !trusted.is_empty() {
        return Err("this build of abide speaks no TLS; add its feature `https`".into());
    }
    builder.build().map_err(|error| chain(&error))
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// A part of a path or query, with everything escaped that could mean something there.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => escaped.push(byte as char),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_mean_something_is_escaped() {
        assert_eq!(escape("shop-1_a.b~"), "shop-1_a.b~");
        assert_eq!(escape("a/b?c=ж&d"), "a%2Fb%3Fc%3D%D0%B6%26d");
    }

    #[test]
    fn pauses_grow_and_stay_short() {
        assert_eq!(pause(0), Duration::from_millis(20));
        assert!(pause(1) > pause(0));
        assert_eq!(pause(60), PAUSE_MAX);
    }
}
