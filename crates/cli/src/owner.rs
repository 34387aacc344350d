//! The owner of a store, for a moment: an engine that executes nothing. A file is owned as a whole; of a database it is a
//! guest among the nodes that share it, and serves only what nobody else would.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::shard::{Answer, Command, Settling};
use abide_kernel::{LetterId, RunId, Slot, Str};
use abide_runtime::{Config, Engine, Letter, Link, Mailbox, Tracer, Wire};
use abide_store::postgres::PostgresStore;
use abide_store::sqlite::SqliteStore;
use abide_store::{Cluster, Durability, Fault, Member, Membership, PostgresUrl, Reader, Store, StoreUrl, postgres};
use tokio::runtime::{Handle, Runtime};

use crate::failure::{Exit, Failure};
use crate::place::{At, Place};

/// How long the node that serves a run may take to answer: longer than a dead one is believed to live.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long others believe that a guest lives which was killed.
const LEASE: Duration = Duration::from_secs(5);
/// What nodes know each other by, where it is not what the store keeps.
const SECRET: &str = "ABIDE_CLUSTER_SECRET";

impl Place {
    /// Owns a store that exists for as long as `change` takes.
    pub(crate) fn change<T>(&self, change: impl AsyncFnOnce(&Owner) -> Result<T, Failure>) -> Result<T, Failure> {
        self.at.check_exists()?;
        self.change_or_make(change)
    }

    /// Owns the store, or a new one, for as long as `change` takes. The engine has no workers and executes nothing.
    pub(crate) fn change_or_make<T>(
        &self,
        change: impl AsyncFnOnce(&Owner) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let owner = Owner { engine: self.own(&runtime)? };
        runtime.block_on(async {
            let changed = change(&owner).await;
            owner.engine.stop(Duration::from_secs(5)).await;
            changed
        })
    }
}

/// How an engine is among the nodes of a database.
#[derive(Clone)]
pub(crate) struct Stay {
    /// What it is called.
    pub(crate) node: String,
    /// Where other nodes reach it; any port on the side of this machine that they see, if absent.
    pub(crate) listen: Option<SocketAddr>,
    /// The address that they are told, if it is another.
    pub(crate) advertise: Option<String>,
    /// Who is told of spans.
    pub(crate) tracer: Option<Arc<dyn Tracer>>,
}

impl Place {
    /// An engine on the store, made if it is not there, that stays: of a database it serves its share. It executes nothing,
    /// and lets workers outside do so.
    pub(crate) fn serve(&self, runtime: &Runtime, stay: &Stay) -> Result<Engine, Failure> {
        match &self.at {
            At::File { path, durability } => {
                let mut config = config();
                config.tracer.clone_from(&stay.tracer);
                own_file(runtime, path, *durability, config)
            }
            At::Database(url) => join(runtime, url, stay),
        }
    }

    /// An engine on the store that lives in the runtime of whoever asks, which waits meanwhile.
    pub(crate) fn own_here(&self) -> Result<Engine, Failure> {
        match &self.at {
            At::File { path, durability } => Ok(Engine::open(Box::new(open_file(path, *durability)?), config())?),
            At::Database(url) => visit(&Handle::current(), url),
        }
    }

    /// An engine on the store, made if it is not there. It executes nothing, and lives in `runtime`.
    fn own(&self, runtime: &Runtime) -> Result<Engine, Failure> {
        match &self.at {
            At::File { path, durability } => own_file(runtime, path, *durability, config()),
            At::Database(url) => visit(runtime.handle(), url),
        }
    }
}

/// What this process is called among those that own stores.
pub(crate) fn name() -> String {
    format!("abide-cli-{}", std::process::id())
}

fn config() -> Config {
    let mut config = Config::default();
    config.node = name();
    config.pools = Vec::new();
    config
}

impl At {
    /// The store as one who writes to it has it; it is made with so many shards if it is not there.
    pub(crate) fn open(&self, shards: Option<u16>) -> Result<Box<dyn Store>, Fault> {
        match self {
            Self::File { path, durability } => {
                Ok(Box::new(SqliteStore::open(path, *durability, shards.unwrap_or(1), &name())?))
            }
            Self::Database(url) => {
                let usual = StoreUrl::Postgres(url.clone()).shards_default();
                Ok(Box::new(PostgresStore::open(url, shards.unwrap_or(usual))?))
            }
        }
    }
}

/// The store in a file, owned by this process.
fn open_file(path: &Path, durability: Durability) -> Result<SqliteStore, Failure> {
    SqliteStore::open(path, durability, 1, &name()).map_err(|fault| {
        let held = SqliteStore::holder(path).is_some();
        let cause = fault.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        let closed = cause.is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied);
        let mut failure = Failure::from(fault);
        if closed {
            failure.hint = Some("have this user write there, or name another store: --store sqlite:PATH".into());
        }
        if held {
            failure.code = "store_in_use".into();
            let hint = "reading verbs work beside it: abide run list, show, history, explain; if it is a server, ask it: --url";
            failure.hint = Some(hint.into());
        }
        failure
    })
}

fn own_file(runtime: &Runtime, path: &Path, durability: Durability, config: Config) -> Result<Engine, Failure> {
    let store = open_file(path, durability)?;
    let _inside = runtime.enter();
    Ok(Engine::open(Box::new(store), config)?)
}

/// The store in a database, made if it is not there.
pub(crate) fn open_database(url: &PostgresUrl) -> Result<PostgresStore, Failure> {
    Ok(PostgresStore::open(url, StoreUrl::Postgres(url.clone()).shards_default())?)
}

/// Enters a database as a guest.
fn visit(runtime: &Handle, url: &PostgresUrl) -> Result<Engine, Failure> {
    let mut store = open_database(url)?;
    let seen = postgres::open_read_only(url)?.membership()?.unwrap_or_default();
    let (wire, address, mailbox) = runtime.block_on(listen(&mut store, &seen))?;
    let mut config = config();
    config.sharing.lease = LEASE;
    config.sharing.address = address.to_string();
    config.sharing.link = wire;
    config.sharing.guest = true;
    let _inside = runtime.enter();
    let engine = Engine::open(Box::new(store), config)?;
    engine.receives(&mailbox);
    Ok(engine)
}

/// Joins the nodes of a database, for good.
fn join(runtime: &Runtime, url: &PostgresUrl, stay: &Stay) -> Result<Engine, Failure> {
    let mut store = open_database(url)?;
    let seen = postgres::open_read_only(url)?.membership()?.unwrap_or_default();
    let at = stay.listen.unwrap_or_else(|| SocketAddr::new(side_towards(&seen), 0));
    let secret = secret(&mut store)?;
    let (wire, address, mailbox) = runtime.block_on(Wire::listen(at, secret))?;
    let mut config = config();
    config.node.clone_from(&stay.node);
    config.any_workflow = true;
    config.tracer.clone_from(&stay.tracer);
    config.sharing.address = stay.advertise.clone().unwrap_or_else(|| address.to_string());
    config.sharing.link = wire;
    let _inside = runtime.enter();
    let engine = Engine::open(Box::new(store), config)?;
    engine.receives(&mailbox);
    Ok(engine)
}

/// What nodes know each other by.
fn secret(store: &mut PostgresStore) -> Result<Vec<u8>, Failure> {
    match std::env::var(SECRET) {
        Ok(secret) => Ok(secret.into_bytes()),
        Err(_) => Ok(store.secret()?),
    }
}

/// A way to the other nodes, and from them to here.
async fn listen(store: &mut PostgresStore, seen: &Membership) -> Result<(Arc<Wire>, SocketAddr, Mailbox), Failure> {
    let secret = secret(store)?;
    Ok(Wire::listen(SocketAddr::new(side_towards(seen), 0), secret).await?)
}

/// Lets nodes look at the store now and not only when their leases want it. Word that is lost costs time and nothing else.
pub(crate) async fn rouse(store: &mut PostgresStore, seen: &Membership) -> Result<Arc<Wire>, Failure> {
    let (wire, address, _) = listen(store, seen).await?;
    let name: Str = name().into();
    let here = Member { process: name.clone(), node: name, address: address.to_string().into(), draining: true };
    seen.living.iter().for_each(|living| wire.send(&here, &living.member, Letter::Joined));
    Ok(wire)
}

/// The address of this machine that other nodes see: the one from which the first of them is reached that is elsewhere.
/// Nothing is sent to find out.
fn side_towards(seen: &Membership) -> IpAddr {
    let addresses = seen.living.iter().filter_map(|living| living.member.address.to_socket_addrs().ok()).flatten();
    let elsewhere = addresses.into_iter().find(|address| !address.ip().is_loopback());
    let side = |towards: SocketAddr| {
        let any: SocketAddr = if towards.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(towards).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    elsewhere.and_then(side).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The owner of a store, for a moment.
pub(crate) struct Owner {
    pub(crate) engine: Engine,
}

impl Owner {
    /// Sends a command until its outcome is known, if sending it again is safe.
    pub(crate) async fn ask(&self, slot: Slot, command: Command) -> Result<Answer, Failure> {
        Ok(in_time(self.engine.ask_until_known(slot, command)).await??)
    }

    /// Sends a command about a run.
    pub(crate) async fn tell(&self, run: RunId, command: Command) -> Result<Answer, Failure> {
        self.ask(run.slot(), command).await
    }

    /// Puts a message that was set aside back in line, or gives it up.
    pub(crate) async fn settle(&self, letter: LetterId, how: Settling) -> Result<(), Failure> {
        Ok(in_time(self.engine.settle(letter, how)).await??)
    }
}

/// What comes of a question, unless whoever has to answer it is not to be reached.
async fn in_time<T>(question: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(PATIENCE, question).await.map_err(|_| {
        let what = format!("nobody answered within {} s; it may have been done", PATIENCE.as_secs());
        let hint = "abide node list shows who serves; the nodes must be able to reach this machine, and know each other by \
                    the secret that the store keeps, or by the one in ABIDE_CLUSTER_SECRET";
        Failure::new(Exit::Unknown, "no_answer", what).hint(hint)
    })
}
