//! Describing a way to a server.

use std::sync::Arc;

use abide_protocol::Secret;

use crate::client::Way;
use crate::remote::Http;
use crate::{Client, StartError};

/// A client of a server that is being described.
#[must_use = "the client begins with open()"]
#[derive(Clone, Debug)]
pub struct Connect {
    url: String,
    token: Option<Secret>,
    namespace: String,
    trusted: Vec<Vec<u8>>,
}

impl Connect {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.into(), token: None, namespace: "default".into(), trusted: Vec::new() }
    }

    /// The token by which the server knows who asks, as `abide token create` gave it.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(Secret::new(token));
        self
    }

    /// The namespace that is asked about; `default` unless it is said otherwise.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Believes the certificate of an `https://` server if this authority signed it, given as PEM, or one that the machine
    /// knows; also one that nobody else signed, if it is this one.
    #[cfg(feature = "https")]
    pub fn trust(mut self, authority: impl Into<Vec<u8>>) -> Self {
        self.trusted.push(authority.into());
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
        let host = self.url.strip_prefix("http://").or_else(|| self.url.strip_prefix("https://"));
        let host = host.ok_or_else(|| bad("expected http://host:port or https://host:port"))?.trim_end_matches('/');
        if host.is_empty() || host.contains(['/', '?', '#', '@', ' ']) {
            return Err(bad("expected http://host:port and nothing behind it; give the token with token(…)"));
        }
        let client = crate::remote::http::client(&self.url, &self.trusted).map_err(|error| bad(&error))?;
        Ok(Http::new(client, &self.url, &self.namespace, self.token.clone()))
    }
}

/// Whether a URL names a server and not a store.
pub(crate) fn is_server(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AB-16: a program that logs what it connects with tells no secret.
    #[test]
    fn the_token_of_a_connection_is_not_shown() {
        let connect = Connect::new("http://127.0.0.1:1").token("abide_hush");
        assert!(!format!("{connect:?}").contains("hush"));
        assert!(!format!("{:?}", connect.http().unwrap()).contains("hush"));
    }
}
