//! A server that listens, until it is stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use abide_runtime::Engine;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::Limits;
use crate::asked::Open;
use crate::audit::Auditor;
use crate::auth::Guard;
use crate::connect::Doors;
use crate::limits::{LOGINS_TOGETHER, LOGINS_WAITING_MAX};
use crate::rate::Rates;
use crate::serve::{Changing, Logins, Shared, router};
use crate::session::{Transport, Tries};
use crate::tls::Tls;

/// A server that is being described. Whoever asks needs a token, unless it is said otherwise.
#[must_use = "the server begins with listen()"]
pub struct Server {
    engine: Arc<Engine>,
    limits: Limits,
    login: bool,
    tls: Option<Tls>,
    /// Whether somebody before it speaks TLS with those who come.
    behind_tls: bool,
    audit_keeps: Option<Duration>,
}

/// Why a server did not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Anybody could do anything.
    #[error(
        "{address} can be reached from other machines, and without login anybody there could do anything: expected an \
         address of the loopback, like 127.0.0.1:7411"
    )]
    OpenToAll {
        /// Where it should have listened.
        address: SocketAddr,
    },
    /// It cannot listen there.
    #[error("nobody can listen at {address}")]
    Address {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

impl Server {
    /// A server for an engine.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self { engine, limits: Limits::default(), login: true, tls: None, behind_tls: false, audit_keeps: None }
    }

    /// Lets anybody at this machine do anything.
    pub fn without_login(mut self) -> Self {
        self.login = false;
        self
    }

    /// What it takes at most.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Speaks TLS, and nothing else.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Somebody before it speaks TLS with those who come, so that browsers are told to send cookies in no other way.
    pub fn behind_tls(mut self) -> Self {
        self.behind_tls = true;
        self
    }

    /// Removes from the audit what is older than this, as further changes come.
    pub fn keep_audit(mut self, keeps: Duration) -> Self {
        self.audit_keeps = Some(keeps);
        self
    }

    /// Begins to listen.
    ///
    /// # Errors
    /// When the address cannot be had, or must not be without login.
    pub async fn listen(self, address: SocketAddr) -> Result<Listening, ServeError> {
        if !self.login && !address.ip().is_loopback() {
            return Err(ServeError::OpenToAll { address });
        }
        let failed = |source| ServeError::Address { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (stop, stopping) = watch::channel(false);
        let changing = Changing::default();
        let guard = Arc::new(if self.login { Guard::tokens() } else { Guard::Loopback });
        let shared = Shared {
            auditor: Auditor::new(self.engine.clone(), self.audit_keeps),
            rates: Rates::new(self.limits.requests_per_second_max),
            engine: self.engine,
            guard,
            logins: Arc::new(Logins {
                transport: if self.tls.is_some() || self.behind_tls { Transport::Tls } else { Transport::Plain },
                tries: Tries::default(),
                places: Arc::new(Semaphore::new(LOGINS_TOGETHER + LOGINS_WAITING_MAX)),
                turns: Arc::new(Semaphore::new(LOGINS_TOGETHER)),
                accounts: parking_lot::Mutex::default(),
            }),
            places: Arc::default(),
            blocking: Arc::default(),
            changing: changing.clone(),
            limits: self.limits,
            stopping: stopping.clone(),
        };
        let app = router(Arc::new(shared));
        let tls = self.tls.map(|tls| TlsAcceptor::from(tls.config()));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let doors = Doors::new(app, tls, self.limits, stopping);
        let open = doors.open();
        let serving = tokio::spawn(async move {
            doors.serve(listener).await;
            // Those who asked may have gone: what they asked for is brought to its end.
            drop(changing.write().await);
        });
        Ok(Listening { address, scheme, open, stop, serving })
    }
}

/// A server that listens.
#[must_use = "the server ends with this"]
pub struct Listening {
    address: SocketAddr,
    scheme: &'static str,
    open: Open,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Listening {
    /// Where.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where, as a client writes it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// What is being answered, to be looked at also while the server stops.
    #[must_use]
    pub fn open(&self) -> Open {
        self.open.clone()
    }

    /// Takes no more requests, and answers those that came: long waits end at once, the rest has `limit`.
    pub async fn stop(mut self, limit: Duration) {
        self.stop.send_replace(true);
        if tokio::time::timeout(limit, &mut self.serving).await.is_err() {
            self.serving.abort();
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
