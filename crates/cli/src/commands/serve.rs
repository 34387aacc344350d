//! `abide serve`: the store over HTTP, until it is told to stop. It executes nothing itself: workers ask it for attempts.
//! Of a database it is one of the nodes, and serves its share of the shards.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use abide_runtime::{Engine, Tracer};
use abide_server::{Listening, ServeError, Server, Tls};
use clap::Args;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::descriptors;
use crate::failure::{Exit, Failure, Outcome};
use crate::input::duration;
use crate::options::{AsJson, Globals};
use crate::owner::Stay;
use crate::place::Place;
use crate::screen::Screen;
use crate::telemetry::Telemetry;
use crate::tls::{Certificate, read_again};

/// Answer over HTTP for a store.
#[derive(Debug, Args)]
#[command(after_help = "\
Everybody who asks needs a token of abide token create, unless --no-auth is given, which works on the loopback only.
Without a certificate the server speaks plain HTTP, which others on the way can read.

SIGINT and SIGTERM let it answer what was asked, and stop; a second one stops it at once. SIGHUP reads the certificate and
its key again; connections that are there go on.

Examples:
  abide token create --name ada --scope admin --in '*'
  abide serve --listen 127.0.0.1:7411
  abide serve --listen 0.0.0.0:7411 --tls-cert cert.pem --tls-key key.pem
  abide --store postgres://abide@db/shop serve --listen 0.0.0.0:7411
  abide serve --no-auth")]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) json: AsJson,
    /// Where to listen; port 0 takes any that is free
    #[arg(long, default_value = "127.0.0.1:7411", env = "ABIDE_LISTEN", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Let anybody at this machine do anything, without a token
    #[arg(long)]
    no_auth: bool,
    /// With a database: what this node is called among the others; the host's name and the port if absent
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// With a database: where other nodes reach this one; any port on the side that they see if absent
    #[arg(long, value_name = "ADDRESS")]
    node_listen: Option<SocketAddr>,
    /// With a database: the address that other nodes are told, if it is another
    #[arg(long, value_name = "HOST:PORT")]
    node_advertise: Option<String>,
    /// How long requests may take that came before it was told to stop
    #[arg(long, default_value = DRAIN, value_name = "DURATION", value_parser = duration)]
    drain: Duration,
    #[command(flatten)]
    certificate: Certificate,
    #[command(flatten)]
    telemetry: Telemetry,
    /// Whether it says what to try next.
    #[arg(skip)]
    guides: bool,
}

const DRAIN: &str = "10s";

impl Serve {
    /// One without login, that says what to try next.
    pub(crate) fn for_trying(json: AsJson, listen: SocketAddr) -> Self {
        Self {
            json,
            listen,
            no_auth: true,
            node: None,
            node_listen: None,
            node_advertise: None,
            drain: Duration::from_secs(10),
            certificate: Certificate::default(),
            telemetry: Telemetry::default(),
            guides: true,
        }
    }

    /// Whether it may listen there. Looked at before the store is opened: a wrong address leaves nothing behind.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.no_auth && !self.listen.ip().is_loopback() {
            true => Err(ServeError::OpenToAll { address: self.listen }.into()),
            false => Ok(()),
        }
    }

    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        let (screen, place) = (Screen::new(globals), Place::of(globals)?);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        self.check()?;
        descriptors::raise_limit();
        let tls = self.certificate.read()?;
        let tracer = self.telemetry.begin()?;
        let engine = Arc::new(place.serve(&runtime, &self.stay(tracer))?);
        let served = runtime.block_on(self.serve(&screen, &place, &engine, tls));
        runtime.block_on(engine.stop(Duration::from_secs(5)));
        served
    }

    /// How it is among the nodes of a database.
    fn stay(&self, tracer: Option<Arc<dyn Tracer>>) -> Stay {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "abide" } else { host.trim() };
        let named = || {
            format!("{host}-{}", if self.listen.port() == 0 { std::process::id() } else { self.listen.port().into() })
        };
        Stay {
            node: self.node.clone().unwrap_or_else(named),
            listen: self.node_listen,
            advertise: self.node_advertise.clone(),
            tracer,
        }
    }

    async fn serve(&self, screen: &Screen, place: &Place, engine: &Arc<Engine>, tls: Option<Tls>) -> Outcome {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut hangup = signal(SignalKind::hangup())?;
        let mut told = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        let server = Server::new(engine.clone());
        let server = if self.no_auth { server.without_login() } else { server };
        let server = tls.iter().fold(server, |server, tls| server.tls(tls.clone()));
        let listening = server.listen(self.listen).await?;
        self.greet(screen, place, &listening)?;
        self.warn(screen, engine, &listening)?;
        loop {
            tokio::select! {
                () = told() => break,
                _ = hangup.recv() => read_again(tls.as_ref(), screen),
            }
        }
        screen.remark("stopping: what was asked is answered first; once more stops at once");
        tokio::select! {
            () = listening.stop(self.drain) => Ok(Exit::Ok),
            () = told() => Ok(Exit::Interrupted),
        }
    }

    fn greet(&self, screen: &Screen, place: &Place, listening: &Listening) -> Result<(), Failure> {
        let url = listening.url();
        if !screen.is_text() {
            return screen.document(&json!({"url": url, "store": place.shown(), "login": !self.no_auth}));
        }
        screen.line(&format!("api      {url}/v1"))?;
        screen.line(&format!("openapi  {url}/v1/openapi.json"))?;
        screen.line(&format!("store    {}", place.shown()))?;
        if self.guides {
            let body = r#"'{"workflow":"hello","input":"Ada"}'"#;
            screen.line(&format!(
                "try      curl -H 'Content-Type: application/json' -d {body} {url}/v1/namespaces/default/runs"
            ))?;
            let shown = place.shown();
            let scheme = if shown.contains("://") { "" } else { "sqlite:" };
            screen.line(&format!("         abide --store {scheme}{shown} run list"))?;
            screen.line("workers  docs/workers.md, docs/python.md")?;
        }
        Ok(())
    }

    /// What whoever started it should know.
    fn warn(&self, screen: &Screen, engine: &Engine, listening: &Listening) -> Result<(), Failure> {
        if self.no_auth {
            screen.remark("anybody at this machine may do anything: --no-auth");
        } else if tokio::task::block_in_place(|| engine.tokens())?.is_empty() {
            screen.remark("the store has no token yet, so nobody can ask anything: stop, and abide token create");
        }
        if !self.listen.ip().is_loopback() && listening.url().starts_with("http:") {
            screen.notice(
                "warning: tokens travel in plain HTTP, and others on the way can read them: --tls-cert, --tls-key",
            );
        }
        Ok(())
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let (code, hint) = match &error {
            ServeError::OpenToAll { .. } => {
                ("open_to_all", "leave --no-auth out, and make tokens with abide token create")
            }
            _ => ("address", "another process may have it; choose another with --listen"),
        };
        Self::usage(code, error.to_string()).hint(hint)
    }
}
