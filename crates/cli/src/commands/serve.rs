//! `abide serve`: the store over HTTP, until it is told to stop. It executes nothing itself: workers ask it for attempts.
//! Of a database it is one of the nodes, and serves its share of the shards.

use std::convert::Infallible;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use abide_runtime::{Engine, Tracer};
use abide_server::{Listening, Open, ServeError, Server, Tls, first};
use clap::Args;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::dev::{Example, Trial};
use crate::bounds::Bounds;
use crate::descriptors;
use crate::failure::{Exit, Failure, Outcome};
use crate::input::{address, duration};
use crate::nearby::Nearby;
use crate::options::Globals;
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

What is said here may also be said in the table [serve] of abide.toml or config.toml: abide config show says what holds.

SIGINT and SIGTERM let it answer what was asked, and stop; a second one stops it at once. SIGHUP reads the certificate and
its key again; connections that are there go on.

Examples:
  abide token create --name ada --scope admin --in '*'
  abide serve --listen 127.0.0.1:7411
  abide serve --listen 0.0.0.0:7411 --tls-cert cert.pem --tls-key key.pem
  abide --store postgres://abide@db/shop serve --listen 0.0.0.0:7411
  abide serve --no-auth")]
pub(crate) struct Serve {
    /// Where to listen; port 0 takes any that is free
    #[arg(long, default_value = "127.0.0.1:7411", env = "ABIDE_LISTEN", value_name = "ADDRESS", value_parser = address)]
    listen: SocketAddr,
    /// Let anybody at this machine do anything, without a token
    #[arg(long)]
    no_auth: bool,
    /// With a database: what this node is called among the others; the host's name and the port if absent
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// With a database: where other nodes reach this one; any port on the side that they see if absent
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    node_listen: Option<SocketAddr>,
    /// With a database: the address that other nodes are told, if it is another
    #[arg(long, value_name = "HOST:PORT")]
    node_advertise: Option<String>,
    /// How long requests may take that came before it was told to stop
    #[arg(long, default_value = DRAIN, value_name = "DURATION", value_parser = duration)]
    drain: Duration,
    /// How long it is kept who changed what; for ever if absent
    #[arg(long, env = "ABIDE_AUDIT_KEEP", value_name = "DURATION", value_parser = duration)]
    audit_keep: Option<Duration>,
    /// A file with the first token, which may do everything: made known to a store that has none
    #[arg(long, env = "ABIDE_FIRST_TOKEN_FILE", value_name = "FILE", conflicts_with = "no_auth")]
    first_token_file: Option<PathBuf>,
    #[command(flatten)]
    certificate: Certificate,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    telemetry: Telemetry,
    /// What it does for one who tries it out.
    #[arg(skip)]
    trial: Option<Trial>,
}

const DRAIN: &str = "10s";
/// The most that is read of a file with a token: it is a line of text.
const TOKEN_BYTES_MAX: u64 = 4_096;
/// How often it is looked at what a server that stops waits for.
const TOLD_EVERY: Duration = Duration::from_millis(500);

impl Serve {
    /// One without login, for one who tries it out.
    pub(super) fn for_trying(listen: SocketAddr, telemetry: Telemetry, trial: Trial) -> Self {
        Self {
            listen,
            no_auth: true,
            node: None,
            node_listen: None,
            node_advertise: None,
            drain: Duration::from_secs(10),
            audit_keep: None,
            first_token_file: None,
            certificate: Certificate::default(),
            bounds: Bounds::default(),
            telemetry,
            trial: Some(trial),
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
        if let Some(path) = &self.first_token_file {
            first_token(&screen, &engine, path)?;
        }
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
        let listening = self.listen(screen, engine, tls.as_ref()).await?;
        let _note = match (&self.trial, place.file(), Nearby::find(Path::new(""))) {
            (Some(_), Some(_), Some(other)) => {
                screen.remark(&format!("other commands in this folder ask {}, unless --url names this one", other.url));
                None
            }
            (Some(_), Some(store), None) => {
                let note = Nearby::announce(Path::new(""), &listening.url(), store);
                let untold = |error| {
                    let how = format!("other commands here need --url {}", listening.url());
                    screen.remark(&format!("{how}: nothing can be written into this folder: {error}"));
                };
                note.map_err(untold).ok()
            }
            _ => None,
        };
        let example = match &self.trial {
            Some(trial) if trial.example => Some(Example::begin(&listening.url()).await?),
            _ => None,
        };
        self.greet(screen, place, &listening)?;
        self.warn(screen, engine, &listening)?;
        loop {
            tokio::select! {
                () = told() => break,
                _ = hangup.recv() => read_again(tls.as_ref(), screen),
            }
        }
        screen.remark("stopping: what was asked is answered first; once more stops at once");
        let open = listening.open();
        let end = async {
            if let Some(example) = &example {
                example.end(self.drain).await;
            }
            listening.stop(self.drain).await;
        };
        tokio::select! {
            () = end => Ok(Exit::Ok),
            () = told() => Ok(Exit::Interrupted),
            never = tell_what_is_open(screen, &open, example.as_ref()) => match never {},
        }
    }

    /// Listens where it should, or, for one who tries it out, at the next port that is free.
    async fn listen(&self, screen: &Screen, engine: &Arc<Engine>, tls: Option<&Tls>) -> Result<Listening, ServeError> {
        let mut address = self.listen;
        let last = address.port().saturating_add(self.trial.as_ref().map_or(0, |trial| trial.ports.saturating_sub(1)));
        loop {
            let server = Server::new(engine.clone()).limits(self.bounds.limits());
            let server = if self.no_auth { server.without_login() } else { server };
            let server = self.audit_keep.into_iter().fold(server, Server::keep_audit);
            let server = if self.certificate.is_before() { server.behind_tls() } else { server };
            let server = tls.into_iter().fold(server, |server, tls| server.tls(tls.clone()));
            match server.listen(address).await {
                Err(ServeError::Address { source, .. })
                    if source.kind() == ErrorKind::AddrInUse && address.port() < last =>
                {
                    screen.remark(&format!("port {} is taken by another process: trying the next", address.port()));
                    address.set_port(address.port() + 1);
                }
                listening => return listening,
            }
        }
    }

    fn greet(&self, screen: &Screen, place: &Place, listening: &Listening) -> Result<(), Failure> {
        let url = listening.url();
        if !screen.is_text() {
            return screen.document(&json!({"url": url, "store": place.shown(), "login": !self.no_auth}));
        }
        if let Some(trial) = &self.trial {
            screen.line(&format!("ready in {:.1} s", trial.begun.elapsed().as_secs_f64()))?;
        }
        screen.line(&format!("api      {url}/v1"))?;
        screen.line(&format!("openapi  {url}/v1/openapi.json"))?;
        screen.line(&format!("store    {}", place.described()))?;
        if let Some(trial) = &self.trial {
            trial.guide(place, &url).iter().try_for_each(|line| screen.line(line))?;
        }
        Ok(())
    }

    /// What whoever started it should know.
    fn warn(&self, screen: &Screen, engine: &Engine, listening: &Listening) -> Result<(), Failure> {
        if self.no_auth {
            screen.remark("anybody at this machine may do anything, without a token");
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

/// Makes the token of a file known to a store that has none. A store that has some is asked by those alone: whoever
/// revoked the first means it.
fn first_token(screen: &Screen, engine: &Engine, path: &Path) -> Result<(), Failure> {
    let unreadable = |error: std::io::Error| {
        let what = format!("the first token in {} cannot be read: {error}", path.display());
        Failure::usage("bad_first_token", what).hint("mount the file, or leave --first-token-file out")
    };
    let mut text = String::new();
    File::open(path).map_err(unreadable)?.take(TOKEN_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    let stored = first(text.trim(), engine.now()).ok_or_else(|| {
        let what = format!("{} has no token in it", path.display());
        let hint = "expected abide_, 16 hex digits, _ and 64 hex digits: echo abide_$(openssl rand -hex 8)_$(openssl rand -hex 32)";
        Failure::usage("bad_first_token", what).hint(hint)
    })?;
    if engine.tokens()?.is_empty() {
        engine.write_token(&stored)?;
        screen.remark(&format!("the token of {} is the first of this store, and may do everything", path.display()));
    }
    Ok(())
}

/// Tells what a server that stops waits for, whenever that has changed. What ends at once is not worth a word.
async fn tell_what_is_open(screen: &Screen, open: &Open, example: Option<&Example>) -> Infallible {
    let mut said = String::new();
    loop {
        tokio::time::sleep(TOLD_EVERY).await;
        let now = waits_for(open.count(), example.map_or(0, Example::executing));
        if now != said && !now.is_empty() {
            screen.remark(&format!("waiting for {now}"));
        }
        said = now;
    }
}

/// What is open, in words.
fn waits_for(requests: usize, attempts: usize) -> String {
    let counted = |number: usize, one: &str| match number {
        0 => None,
        1 => Some(format!("1 {one}")),
        more => Some(format!("{more} {one}s")),
    };
    let attempts = counted(attempts, "attempt").map(|attempts| format!("{attempts} of the example"));
    let all: Vec<String> = attempts.into_iter().chain(counted(requests, "open request")).collect();
    all.join(" and ")
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
