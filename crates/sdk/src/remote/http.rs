//! Requests to a server, and what came of them.

use std::time::Duration;

use abide_kernel::RequestId;
use abide_protocol::{Problem, Secret};
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
pub struct Http {
    client: reqwest::Client,
    base: String,
    token: Option<Secret>,
    namespace: String,
    tries_max: u32,
}

/// Why a request has no answer.
#[derive(Debug)]
pub enum Trouble {
    /// The server said no.
    Problem(Box<Problem>),
    /// Nobody knows whether it arrived.
    Unreachable(String),
    /// Whoever answers there is not known to be the server.
    Distrusted(String),
    /// Whoever answers there points to another server.
    Elsewhere(String),
    /// The answer cannot be read.
    Nonsense(String),
}

impl Trouble {
    /// Whether the same request may be answered later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Problem(problem) => matches!(problem.status, 408 | 429 | 502 | 503 | 504),
            Self::Unreachable(_) => true,
            Self::Distrusted(_) | Self::Elsewhere(_) | Self::Nonsense(_) => false,
        }
    }

    /// Whether no request of this client will be answered otherwise, as long as nobody changes token, server or trust.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Problem(problem) => matches!(problem.status, 401 | 403),
            Self::Distrusted(_) | Self::Elsewhere(_) => true,
            // What stands before a server may say so for a while.
            Self::Unreachable(_) | Self::Nonsense(_) => false,
        }
    }
}

impl From<Trouble> for ClientError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Problem(problem) => Self::Problem(problem),
            Trouble::Unreachable(why) => Self::Unreachable(why),
            Trouble::Distrusted(why) => Self::Distrusted(why),
            Trouble::Elsewhere(what) | Trouble::Nonsense(what) => {
                Self::Engine(abide_runtime::Unanswered::Unexpected(what))
            }
        }
    }
}

/// How long to wait before a try.
pub(crate) fn pause(tries: u32) -> Duration {
    (Duration::from_millis(20) * 2u32.saturating_pow(tries.min(16))).min(PAUSE_MAX)
}

/// A request that is about to be sent.
pub struct Ask<'a> {
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
    /// Asks for something.
    #[must_use]
    pub fn get(path: &'a str) -> Self {
        let (query, wait) = (Vec::new(), Duration::ZERO);
        Self { over: false, method: reqwest::Method::GET, path, query, body: None, key: None, wait }
    }

    /// Sends something.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn post(path: &'a str, body: &impl Serialize) -> Result<Self, ClientError> {
        let what = || format!("what is sent to {path}");
        let body = serde_json::to_vec(body).map_err(|source| ClientError::Codec { what: what(), source })?;
        Ok(Self { method: reqwest::Method::POST, body: Some(body), ..Self::get(path) })
    }

    /// Sends something in place of what was there.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn put(path: &'a str, body: &impl Serialize) -> Result<Self, ClientError> {
        Ok(Self { method: reqwest::Method::PUT, ..Self::post(path, body)? })
    }

    /// Removes something.
    #[must_use]
    pub fn delete(path: &'a str) -> Self {
        Self { method: reqwest::Method::DELETE, ..Self::get(path) }
    }

    /// A verb that says everything by its path.
    #[must_use]
    pub fn verb(path: &'a str) -> Self {
        Self { method: reqwest::Method::POST, ..Self::get(path) }
    }

    /// It is about the store as a whole.
    #[must_use]
    pub fn over(mut self) -> Self {
        self.over = true;
        self
    }

    /// The same request under the same key is carried out once.
    #[must_use]
    pub fn key(mut self, key: RequestId) -> Self {
        self.key = Some(key);
        self
    }

    /// A parameter of the query, if there is a value.
    #[must_use]
    pub fn with(mut self, name: &'a str, value: Option<String>) -> Self {
        self.query.extend(value.map(|value| (name, value)));
        self
    }

    /// The server may take so long to answer.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

impl Http {
    pub(crate) fn new(client: reqwest::Client, base: &str, namespace: &str, token: Option<Secret>) -> Self {
        let base = base.trim_end_matches('/').to_owned();
        Self { client, base, token, namespace: namespace.to_owned(), tries_max: TRIES_MAX }
    }

    /// A request is sent again at most so often.
    #[must_use]
    pub fn tries(mut self, most: u32) -> Self {
        self.tries_max = most;
        self
    }

    /// The namespace that is asked about.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The same server, and another namespace.
    pub(crate) fn within(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self.clone() }
    }

    /// A request as it is sent.
    pub(crate) fn request(&self, ask: &Ask<'_>) -> reqwest::RequestBuilder {
        let mut url = format!("{}{}", self.base, abide_protocol::PREFIX);
        if !ask.over {
            url.push_str(&format!("/namespaces/{}", escape(&self.namespace)));
        }
        url.push_str(ask.path);
        for (number, (name, value)) in ask.query.iter().enumerate() {
            url.push(if number == 0 { '?' } else { '&' });
            url.push_str(&format!("{name}={}", escape(value)));
        }
        let mut request = self.client.request(ask.method.clone(), url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(&**token);
        }
        if let Some(key) = ask.key {
            request = request.header("Idempotency-Key", key.to_string());
        }
        if let Some(body) = &ask.body {
            request = request.header("Content-Type", "application/json").body(body.clone());
        }
        request
    }

    /// Sends a request once.
    ///
    /// # Errors
    /// When there is no answer, or the answer is a problem.
    pub async fn once<T: DeserializeOwned>(&self, ask: &Ask<'_>) -> Result<T, Trouble> {
        let request = self.request(ask).timeout(ask.wait + PATIENCE);
        let answer = request.send().await.map_err(unreachable)?;
        if !answer.status().is_success() {
            return Err(problem(answer).await);
        }
        let bytes = answer.bytes().await.map_err(unreachable)?;
        let body: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(body).map_err(|error| Trouble::Nonsense(format!("an answer of another shape: {error}")))
    }

    /// Sends a request until it is answered, as long as that may help. It must be one that may be sent twice.
    ///
    /// # Errors
    /// When there is no answer, or the answer is a problem.
    pub async fn ask<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Result<T, Trouble> {
        let mut tries = 0;
        loop {
            match self.once(&ask).await {
                Err(trouble) if trouble.may_pass() && tries < self.tries_max => {
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
    // Where the token goes is for whoever named the server to say, not for the server.
    let builder = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    #[cfg(feature = "https")]
    let builder = builder.tls_backend_preconfigured(crate::tls::config(url, trusted)?);
    #[cfg(not(feature = "https"))]
    if url.starts_with("https://") || !trusted.is_empty() {
        return Err("this build of abide speaks no TLS; add its feature `https`".into());
    }
    builder.build().map_err(|error| chain(&error))
}

/// What is in the way when no answer came.
pub(crate) fn unreachable(error: reqwest::Error) -> Trouble {
    let distrusted = is_distrust(&error);
    let why = chain(&error.without_url());
    if distrusted { Trouble::Distrusted(why) } else { Trouble::Unreachable(why) }
}

/// What an answer says that is no success.
pub(crate) async fn problem(answer: reqwest::Response) -> Trouble {
    let status = answer.status();
    if status.is_redirection() {
        let location = answer.headers().get("location").and_then(|location| location.to_str().ok());
        let location = location.map_or_else(String::new, |location| format!(", which points to {location}"));
        return Trouble::Elsewhere(format!("{status}{location}; redirects are not followed, name that server itself"));
    }
    let bytes = match answer.bytes().await {
        Ok(bytes) => bytes,
        Err(error) => return unreachable(error),
    };
    match serde_json::from_slice::<Problem>(&bytes) {
        Ok(problem) => Trouble::Problem(Box::new(problem)),
        Err(_) if status.is_server_error() => Trouble::Unreachable(format!("the answer is {status}")),
        Err(_) => Trouble::Nonsense(format!("{status} without a problem; is this an Abide server?")),
    }
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
#[must_use]
pub fn escape(text: &str) -> String {
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
