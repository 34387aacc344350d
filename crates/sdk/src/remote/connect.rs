//! Describing a way to a server.

use std::sync::Arc;

use crate::client::Way;
use crate::remote::Http;
use crate::{Client, StartError};

/// A client of a server that is being described.
#[must_use = "the client begins with open()"]
#[derive(Clone, Debug)]
pub struct Connect {
    url: String,
    token: Option<String>,
    namespace: String,
}

impl Connect {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.into(), token: None, namespace: "default".into() }
    }

    /// The token by which the server knows who asks, as `abide token create` gave it.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The namespace that is asked about; `default` unless it is said otherwise.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The client. Nothing is sent yet.
    ///
    /// # Errors
    /// When the URL is not one of a server.
    pub fn open(self) -> Result<Client, StartError> {
        Ok(Client { way: Way::Server(Arc::new(self.http()?)) })
    }

    /// The way there.
    ///
    /// # Errors
    /// When the URL is not one of a server.
    #[doc(hidden)]
    pub fn http(&self) -> Result<Http, StartError> {
        let bad = |problem: &str| StartError::Server { url: self.url.clone(), problem: problem.into() };
        let host = self.url.strip_prefix("http://").ok_or_else(|| bad("expected http://host:port"))?;
        let host = host.trim_end_matches('/');
        if host.is_empty() || host.contains(['/', '?', '#', '@', ' ']) {
            return Err(bad("expected http://host:port and nothing behind it; give the token with token(…)"));
        }
        Http::new(&self.url, &self.namespace, self.token.clone()).map_err(|error| bad(&error))
    }
}

/// Whether a URL names a server and not a store.
pub(crate) fn is_server(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}
