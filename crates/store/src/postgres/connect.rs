//! Making a connection: how, by which TLS, and with which settings of its session.

use std::fmt;
use std::future::poll_fn;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls_tokio_postgres::MakeRustlsConnect;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};

use super::fault::Trouble;
use super::link::Live;
use crate::url::{PostgresUrl, Tls};
use crate::{Durability, Fault, FaultKind};

/// How long reaching a host may take, unless the URL says otherwise, and so long again what follows: TLS, the login, the session.
const CONNECTING: Duration = Duration::from_secs(10);
/// After so long without a sign of the other side a connection is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// The server releases a shard's row at the latest when a statement has taken this long.
const STATEMENT: Duration = Duration::from_secs(30);
const READING: Duration = Duration::from_secs(300);
const LOCK: Duration = Duration::from_secs(10);
/// The oldest server that has all that is used.
const VERSION_MIN: i32 = 130_000;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Writing what a node's shards decide, and reading what they need.
    Owner,
    /// Looking at it.
    Reader,
    /// Taking in what is asked by SQL.
    Intake,
    /// The users' own work, in transactions of theirs.
    User,
}

impl Role {
    fn statement(self) -> Duration {
        match self {
            Self::Owner | Self::Intake | Self::User => STATEMENT,
            Self::Reader => READING,
        }
    }

    /// How long an answer is waited for: a little longer than the server tries.
    pub(super) fn patience(self) -> Duration {
        self.statement() + Duration::from_secs(5)
    }
}

/// Where a store is and how it is reached.
pub(super) struct Settings {
    /// One for each host, in the order in which they are tried.
    hosts: Vec<Config>,
    /// Nothing for a socket of this machine, which has no TLS.
    tls: Option<MakeRustlsConnect>,
    pub(super) schema: String,
    durability: Durability,
    strict: bool,
}

/// Without its configuration, which has a password.
impl fmt::Debug for Settings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Settings").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Settings {
    pub(super) fn of(url: &PostgresUrl) -> Result<Self, Fault> {
        let unusable = |what: String| Fault::new(FaultKind::Unusable, what);
        let mut config: Config =
            url.address().parse().map_err(|error| unusable(format!("the URL of the database is wrong: {error}")))?;
        let mode = match url.tls() {
            Tls::Off => SslMode::Disable,
            Tls::Prefer => SslMode::Prefer,
            Tls::Require | Tls::Verify => SslMode::Require,
        };
        config.ssl_mode(mode).keepalives_idle(SILENCE);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECTING);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE);
        }
        if config.get_application_name().is_none() {
            config.application_name(format!("abide {}", url.schema()));
        }
        let is_local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        let tls = (!is_local).then(|| tls(url.tls(), url.root_certificate())).transpose()?.flatten();
        if is_local && matches!(url.tls(), Tls::Require | Tls::Verify) {
            return Err(unusable("a socket of this machine has no TLS: give a host, or take sslmode out".into()));
        }
        let (hosts, schema) = (each_host(&config), url.schema().to_owned());
        Ok(Self { hosts, tls, schema, durability: url.durability(), strict: url.strict() })
    }

    /// A connection whose session is set up. The server has not been asked what it is yet. Whoever waits for `heard` is
    /// told of notifications, and of its end.
    pub(super) async fn connect(&self, role: Role, heard: &Arc<Notify>) -> Result<Live, Trouble> {
        let (client, task) = self.dial(role, heard).await?;
        Ok(Live::new(client, task))
    }

    /// A client whose session is set up, and the task that serves it: of the first host that answers in time. The client's own
    /// limit is for the socket alone; a proxy, or a server that was stopped, takes the connection and says nothing.
    async fn dial(&self, role: Role, heard: &Arc<Notify>) -> Result<(Client, JoinHandle<()>), Trouble> {
        let mut unreachable = None;
        for config in &self.hosts {
            let limit = config.get_connect_timeout().copied().unwrap_or(CONNECTING) * 2;
            let why = match timeout(limit, self.reach(config, role, heard)).await {
                Ok(Ok(reached)) => return Ok(reached),
                Ok(Err(error)) => Trouble::Unreachable("the database cannot be reached".into(), Some(error)),
                Err(_) => {
                    let why = format!("the database cannot be reached: no answer after {} s", limit.as_secs());
                    Trouble::Unreachable(why, None)
                }
            };
            unreachable = Some(why);
        }
        Err(unreachable.unwrap_or_else(|| Trouble::Unreachable("the URL names no host".into(), None)))
    }

    async fn reach(
        &self,
        config: &Config,
        role: Role,
        heard: &Arc<Notify>,
    ) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let (client, task) = match &self.tls {
            Some(tls) => {
                let (client, connection) = config.connect(tls.clone()).await?;
                (client, tokio::spawn(listen(connection, heard.clone())))
            }
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                (client, tokio::spawn(listen(connection, heard.clone())))
            }
        };
        client.batch_execute(&self.session(role)).await?;
        Ok((client, task))
    }

    /// Names are looked for in the store's schema only. Every statement is written for the indexes there are: a planner
    /// that has seen the tables small, or not at all, must not choose to read them whole.
    pub(super) fn session(&self, role: Role) -> String {
        let particular = match role {
            Role::User => return self.user_session(),
            Role::Owner => "SET plan_cache_mode = force_generic_plan;".to_owned(),
            Role::Intake => format!("SET plan_cache_mode = force_generic_plan; LISTEN \"{}\";", self.schema),
            Role::Reader => "SET default_transaction_read_only = on;".to_owned(),
        };
        let text = format!(
            "SET search_path = \"{}\", pg_temp; SET statement_timeout = {}; SET lock_timeout = {}; \
             SET idle_in_transaction_session_timeout = {}; SET default_transaction_isolation = 'read committed'; \
             SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; \
             SET enable_mergejoin = off; SET jit = off; SET max_parallel_workers_per_gather = 0; \
             SET client_min_messages = warning; SET timezone = 'UTC';",
            self.schema,
            role.statement().as_millis(),
            LOCK.as_millis(),
            role.patience().as_millis(),
        );
        [text, particular, self.synchronous().to_owned()].concat()
    }

    fn synchronous(&self) -> &'static str {
        match self.durability {
            Durability::Full => "",
            Durability::Relaxed => "SET synchronous_commit = off;",
        }
    }

    /// The users' sessions are as their role has them. One that is forgotten in the middle of a transaction must not hold
    /// its locks for ever.
    fn user_session(&self) -> String {
        let idle = Role::User.patience().as_millis();
        format!("SET idle_in_transaction_session_timeout = {idle}; {}", self.synchronous())
    }

    /// Whether the server is one that can hold a store, and keeps what it acknowledges.
    pub(super) async fn check(&self, live: &mut Live) -> Result<(), Trouble> {
        let row = live
            .query_one(
                "SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'),
                        current_setting('fsync'), current_setting('full_page_writes'),
                        current_setting('synchronous_commit'), pg_is_in_recovery()",
                &[],
            )
            .await?;
        let unusable = |what: String| Err(Fault::new(FaultKind::Unusable, what).into());
        let version: i32 = row.try_get(0)?;
        if version < VERSION_MIN {
            return unusable(format!("expected PostgreSQL 13 or newer, found version number {version}"));
        }
        let encoding: &str = row.try_get(1)?;
        if encoding != "UTF8" {
            return unusable(format!("expected a database whose encoding is UTF8, found {encoding}"));
        }
        if row.try_get(5)? {
            return unusable("the server is a standby, which only reads: give the URL of the primary".into());
        }
        let mut wrong = Vec::new();
        for (column, name) in [(2, "fsync"), (3, "full_page_writes")] {
            if row.try_get::<_, &str>(column)? == "off" {
                wrong.push(name);
            }
        }
        if self.durability == Durability::Full && row.try_get::<_, &str>(4)? == "off" {
            wrong.push("synchronous_commit");
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => self.unsafe_server(&wrong).map_err(Into::into),
        }
    }

    /// The server may lose what it acknowledged.
    fn unsafe_server(&self, wrong: &[&str]) -> Result<(), Fault> {
        let what = format!(
            "the server has {} off: what was acknowledged may be lost with its power; turn it on, or say durability=relaxed if that is meant",
            wrong.join(" and ")
        );
        if self.strict {
            return Err(Fault::new(FaultKind::Unusable, what));
        }
        tracing::warn!(schema = self.schema, "{what}");
        Ok(())
    }
}

/// The same with one host each. Those that are to share the load are in an order by chance.
fn each_host(all: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) = (all.get_hosts(), all.get_hostaddrs(), all.get_ports());
    let count = hosts.len().max(addresses.len());
    let alone = |index: usize| {
        let mut one = Config::new();
        all.get_user().map(|user| one.user(user));
        all.get_password().map(|password| one.password(password));
        all.get_dbname().map(|name| one.dbname(name));
        all.get_options().map(|options| one.options(options));
        all.get_application_name().map(|name| one.application_name(name));
        all.get_connect_timeout().map(|limit| one.connect_timeout(*limit));
        all.get_tcp_user_timeout().map(|limit| one.tcp_user_timeout(*limit));
        all.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
        all.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
        one.keepalives(all.get_keepalives()).keepalives_idle(all.get_keepalives_idle());
        one.ssl_mode(all.get_ssl_mode()).ssl_negotiation(all.get_ssl_negotiation());
        one.target_session_attrs(all.get_target_session_attrs()).channel_binding(all.get_channel_binding());
        match hosts.get(index) {
            Some(Host::Tcp(name)) => drop(one.host(name)),
            Some(Host::Unix(folder)) => drop(one.host_path(folder)),
            None => {}
        }
        addresses.get(index).map(|address| one.hostaddr(*address));
        ports.get(index).or(ports.first()).map(|port| one.port(*port));
        one
    };
    if count < 2 {
        return vec![all.clone()];
    }
    let mut each: Vec<Config> = (0..count).map(alone).collect();
    if all.get_load_balance_hosts() == LoadBalanceHosts::Random {
        each.sort_by_cached_key(|_| RandomState::new().build_hasher().finish());
    }
    each
}

/// Serves a connection until it ends. How it ends is told to whoever waits for an answer.
async fn listen<S, T>(mut connection: Connection<S, T>, heard: Arc<Notify>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(_))) => heard.notify_one(),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => break,
        }
    }
    heard.notify_one();
}

/// A plain client with the session of a store's owner, for those who measure what the server can do without a store. It is
/// served by the runtime of the caller.
///
/// # Errors
/// When the database cannot be reached.
pub async fn raw_client(url: &PostgresUrl) -> Result<Client, Fault> {
    let dialled = Settings::of(url)?.dial(Role::Owner, &Arc::default()).await;
    let (client, _) = dialled.map_err(|trouble| trouble.into_fault("connecting", FaultKind::Refused))?;
    Ok(client)
}

fn tls(tls: Tls, root: Option<&Path>) -> Result<Option<MakeRustlsConnect>, Fault> {
    let unusable = |error: String| Fault::new(FaultKind::Unusable, format!("TLS cannot be set up: {error}"));
    let config = match (tls, root) {
        (Tls::Off, _) => return Ok(None),
        (Tls::Prefer, _) | (Tls::Require, None) => rustls_tokio_postgres::config_no_verify(),
        (Tls::Require | Tls::Verify, Some(root)) => rustls_tokio_postgres::config_from_ca_cert(root)
            .map_err(|error| unusable(format!("{}: {error}", root.display())))?,
        (Tls::Verify, None) => {
            rustls_tokio_postgres::config_platform_verifier().map_err(|error| unusable(error.to_string()))?
        }
    };
    Ok(Some(MakeRustlsConnect::new(config)))
}
