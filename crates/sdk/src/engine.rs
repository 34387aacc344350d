//! The engine inside the user's process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::shard::{Rule, Rules};
#[cfg(feature = "postgres")]
use abide_runtime::Wire;
use abide_runtime::{Clock, Config, Metrics, Notifier, Pool, Program, Stopped, Tracer};
#[cfg(feature = "postgres")]
use abide_store::postgres::PostgresStore;
use abide_store::sqlite::SqliteStore;
use abide_store::{Durability, Store, StoreUrl};

use crate::{Client, Limit, StartError, Workflow};

/// An engine that runs workflows in this process.
pub struct Engine {
    inner: Inner,
}

enum Inner {
    /// It is here, on its store.
    Here(Arc<abide_runtime::Engine>),
    /// It is a server's; only the workflows are executed here.
    #[cfg(feature = "http")]
    There(crate::remote::Http, Arc<crate::remote::Hired>),
}

#[cfg(feature = "http")]
impl Drop for Engine {
    fn drop(&mut self) {
        if let Inner::There(_, hired) = &self.inner {
            hired.close();
        }
    }
}

impl Engine {
    /// Describes an engine on a store: `sqlite:path`, `sqlite:path?durability=relaxed`, `postgres://…`, or `memory:`. See
    /// [`Durability`] for what an acknowledgement means then. Engines on the same schema of a PostgreSQL database share its
    /// work.
    ///
    /// With `http://…` or `https://…` it is the engine of a server: what is registered is executed here, for it, with the same code and
    /// the same promises.
    ///
    /// ```no_run
    /// use abide::{Engine, Machine, done};
    ///
    /// # async fn work() -> Result<(), Box<dyn std::error::Error>> {
    /// let greet = Machine::<String>::new("greet").step("greet", async |_, name| Ok(done(&format!("hello {name}"))));
    /// let engine = Engine::open("http://127.0.0.1:7411").token("…").register(greet).start().await?;
    /// let greeting: String = engine.client().start("greet", "Ada").await?.result().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(url: &str) -> EngineBuilder {
        EngineBuilder {
            url: url.into(),
            workflows: Vec::new(),
            config: Config::default(),
            pools: Vec::new(),
            limits: Vec::new(),
            shards: None,
            durability: None,
            listens: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertises: None,
            secret: None,
            token: None,
            namespace: None,
            trusted: Vec::new(),
        }
    }

    /// A client of this engine.
    #[must_use]
    pub fn client(&self) -> Client {
        match &self.inner {
            Inner::Here(engine) => Client::new(engine.clone()),
            #[cfg(feature = "http")]
            Inner::There(http, hired) => {
                Client { way: crate::client::Way::Hired(Arc::new(http.clone()), hired.clone()) }
            }
        }
    }

    /// The engine of the runtime, for those who serve it to others. There is none here when it is a server's.
    #[must_use]
    pub fn runtime(&self) -> Option<Arc<abide_runtime::Engine>> {
        match &self.inner {
            Inner::Here(engine) => Some(engine.clone()),
            #[cfg(feature = "http")]
            Inner::There(..) => None,
        }
    }

    /// What the engine counted so far; of a server's only what executes here.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        match &self.inner {
            Inner::Here(engine) => engine.metrics(),
            #[cfg(feature = "http")]
            Inner::There(_, hired) => Metrics { executing: hired.executing(), ..Metrics::default() },
        }
    }

    /// Why it asks a server for no more, if it does not: the token was revoked or may not, the server points elsewhere, or its
    /// certificate is not believed. An engine on a store of its own never stops asking.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        match &self.inner {
            Inner::Here(_) => None,
            #[cfg(feature = "http")]
            Inner::There(_, hired) => hired.failure(),
        }
    }

    /// Waits until it asks a server for no more, and says why; see [`failure`](Self::failure).
    pub async fn failed(&self) -> String {
        match &self.inner {
            Inner::Here(_) => std::future::pending().await,
            #[cfg(feature = "http")]
            Inner::There(_, hired) => hired.failed().await,
        }
    }

    /// Claims nothing more, waits at most `limit` for steps that execute, and closes the store.
    pub async fn stop(&self, limit: Duration) -> Stopped {
        match &self.inner {
            Inner::Here(engine) => engine.stop(limit).await,
            #[cfg(feature = "http")]
            Inner::There(_, hired) => hired.stop(limit).await,
        }
    }
}

/// An engine that is being described.
#[must_use = "the engine begins with start()"]
pub struct EngineBuilder {
    url: String,
    workflows: Vec<Result<Arc<dyn Program>, (String, String)>>,
    config: Config,
    pools: Vec<Pool>,
    limits: Vec<Rule>,
    shards: Option<u16>,
    durability: Option<Durability>,
    listens: SocketAddr,
    advertises: Option<String>,
    secret: Option<Vec<u8>>,
    token: Option<String>,
    namespace: Option<String>,
    trusted: Vec<Vec<u8>>,
}

impl EngineBuilder {
    /// Makes a workflow known. Several versions of one workflow can stand side by side.
    pub fn register(mut self, workflow: impl Workflow) -> Self {
        self.workflows.push(workflow.into_program());
        self
    }

    /// Serves a queue with at most `concurrency` attempts at once. Without this, `default` with 256.
    pub fn queue(mut self, queue: &str, concurrency: usize) -> Self {
        self.pools.push(Pool { queue: queue.into(), concurrency });
        self
    }

    /// Keeps a queue, a workflow or a namespace to a cap or a rate; see [`Limit`].
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit.into());
        self
    }

    /// How long a claim lasts without a heartbeat.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// How long an attempt waits when its queue is served here and its workflow, version or definition is not. Then it
    /// becomes a dead letter; its run is kept, and requeueing puts it back. A day, unless it is said otherwise.
    pub fn definition_wait(mut self, wait: Duration) -> Self {
        self.config.definition_wait = wait;
        self
    }

    /// The node's name, as inspection shows it.
    pub fn node(mut self, name: &str) -> Self {
        self.config.node = name.into();
        self
    }

    /// How many shards a store that is made new gets: 1, or 64 where nodes share it. A store that exists keeps its own.
    pub fn shards(mut self, shards: u16) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Where this node listens for the other nodes of a shared store. Any port of the loopback, unless it is said
    /// otherwise: nodes on several machines need an address that the others reach.
    ///
    /// ```no_run
    /// # async fn node() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = abide::Engine::open("postgres://abide_engine@db/shop")
    ///     .node("shop-1")
    ///     .listen("10.0.0.5:7412".parse()?)
    ///     .start()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listens = address;
        self
    }

    /// The address that other nodes are told, as `host:port`, where it is not the one that this node listens at.
    pub fn advertise(mut self, address: &str) -> Self {
        self.advertises = Some(address.into());
        self
    }

    /// The secret by which the nodes of a shared store know each other, in place of the one that the store keeps.
    pub fn cluster_secret(mut self, secret: &[u8]) -> Self {
        self.secret = Some(secret.to_vec());
        self
    }

    /// How long this node of a shared store is believed to live after it last said so; ten seconds, unless it is said
    /// otherwise. Then the others take over what it served.
    pub fn node_lease(mut self, lease: Duration) -> Self {
        self.config.sharing.lease = lease;
        self
    }

    /// The token by which a server knows this worker and its clients, as `abide token create` gave it.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The namespace of a server whose runs are executed here and which its clients ask about; `default`, unless it is
    /// said otherwise. An engine on a store of its own serves all of them.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Believes the certificate of an `https://` server if this authority signed it, given as PEM, or one that the machine
    /// knows.
    #[cfg(feature = "https")]
    pub fn trust(mut self, authority: impl Into<Vec<u8>>) -> Self {
        self.trusted.push(authority.into());
        self
    }

    /// What an acknowledgement means, in place of what the store's URL says. With [`Durability::Relaxed`] it survives the
    /// end of the process, but the last moments may be lost with the power; without a word it survives that as well.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// Told of attempts that can be claimed, after they are durable.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.config.notifier = Some(notifier);
        self
    }

    /// Told of spans of attempts and runs when they have ended, such as `otlp::Otlp`.
    pub fn tracer(mut self, tracer: impl Tracer + 'static) -> Self {
        self.config.tracer = Some(Arc::new(tracer));
        self
    }

    /// How many runs may change before their index rows are written behind. More is faster; fewer means less to fold
    /// when the store is opened after a crash.
    pub fn flush_after(mut self, runs: usize) -> Self {
        self.config.flush_runs = runs.max(1);
        self
    }

    /// Where instants come from.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.config.clock = clock;
        self
    }

    /// Opens the store, brings it in order and begins to work; for a server, asks it once.
    ///
    /// # Errors
    /// When the URL, the store, a workflow or a limit is not as it should be, or the server will never answer it: the token
    /// is not known or may not, the server points elsewhere, or its certificate is not believed. One that cannot be reached
    /// may come, and is waited for.
    pub async fn start(self) -> Result<Engine, StartError> {
        #[cfg(feature = "http")]
        if crate::remote::is_server(&self.url) {
            return self.start_for_server().await;
        }
        if self.token.is_some() || self.namespace.is_some() || !self.trusted.is_empty() {
            let problem = "token, namespace and trust are for a server, http://host:port; a store has none".into();
            return Err(StartError::Server { url: self.url, problem });
        }
        let mut url: StoreUrl = self.url.parse()?;
        if let Some(wanted) = self.durability {
            url = url.with_durability(wanted);
        }
        let node = self.config.node.clone();
        let shards = self.shards.unwrap_or_else(|| url.shards_default());
        // Opening may read and sync a lot; the caller's runtime goes on meanwhile.
        let opening = std::thread::spawn(move || {
            let mut store = open_store(&url, shards, &node)?;
            let secret = store.cluster().map(|cluster| cluster.secret()).transpose()?;
            Ok::<_, StartError>((store, secret))
        });
        let (store, secret) = wait(opening).await?;
        #[cfg(feature = "postgres")]
        if let Some(kept) = secret {
            return self.start_shared(store, kept).await;
        }
        #[cfg(not(feature = "postgres"))]
        drop(secret);
        self.start_on(store)
    }

    /// Begins to work beside the other nodes of a store that is shared.
    #[cfg(feature = "postgres")]
    async fn start_shared(mut self, store: Box<dyn Store>, kept: Vec<u8>) -> Result<Engine, StartError> {
        let secret = self.secret.take().unwrap_or(kept);
        let at = self.listens;
        let (wire, address, mailbox) =
            Wire::listen(at, secret).await.map_err(|source| StartError::Address { address: at, source })?;
        self.config.sharing.address = self.advertises.take().unwrap_or_else(|| address.to_string());
        self.config.sharing.link = wire;
        // Taking shards reads a lot, and must not be done by a thread of the caller's runtime.
        let handle = tokio::runtime::Handle::current();
        let opening = std::thread::spawn(move || {
            let _inside = handle.enter();
            self.start_on(store)
        });
        let engine = wait(opening).await?;
        engine.runtime().into_iter().for_each(|engine| engine.receives(&mailbox));
        Ok(engine)
    }

    /// Begins to work for a server.
    #[cfg(feature = "http")]
    async fn start_for_server(mut self) -> Result<Engine, StartError> {
        let mut connect = crate::Connect::new(&self.url);
        if let Some(token) = &self.token {
            connect = connect.token(token);
        }
        if let Some(namespace) = &self.namespace {
            connect = connect.namespace(namespace);
        }
        #[cfg(feature = "https")]
        for authority in &self.trusted {
            connect = connect.trust(authority.clone());
        }
        let http = connect.http()?;
        if !self.limits.is_empty() || self.durability.is_some() || self.shards.is_some() {
            let problem = "limits, durability and shards are the server's to say".into();
            return Err(StartError::Server { url: self.url, problem });
        }
        self.check_programs()?;
        let worker = crate::remote::Worker {
            name: self.config.node,
            lease: self.config.lease,
            pools: if self.pools.is_empty() { self.config.pools } else { self.pools },
            programs: self.config.programs,
            clock: self.config.clock,
        };
        let hired = worker.hire(http.clone()).map_err(abide_runtime::OpenError::from)?;
        let url = self.url;
        hired.begin_to_work().await.map_err(|error| StartError::Server { url, problem: error.to_string() })?;
        Ok(Engine { inner: Inner::There(http, hired) })
    }

    /// Begins to work on a store that is open already.
    ///
    /// # Errors
    /// When the store, a workflow or a limit is not as it should be.
    pub fn start_on(mut self, store: Box<dyn Store>) -> Result<Engine, StartError> {
        self.check_programs()?;
        if !self.pools.is_empty() {
            self.config.pools = self.pools;
        }
        self.config.limits = Rules::new(self.limits)?;
        let inner = abide_runtime::Engine::open(store, self.config)?;
        Ok(Engine { inner: Inner::Here(Arc::new(inner)) })
    }

    /// Takes over what was registered, if it is well formed and each version is there once.
    fn check_programs(&mut self) -> Result<(), StartError> {
        for workflow in std::mem::take(&mut self.workflows) {
            let program = workflow.map_err(|(workflow, problem)| StartError::Workflow { workflow, problem })?;
            let definition = program.definition();
            let same = |known: &Arc<dyn Program>| {
                let known = known.definition();
                known.workflow == definition.workflow && known.version == definition.version
            };
            if self.config.programs.iter().any(same) {
                let problem = format!(
                    "version {} is registered twice; give each version a number of its own",
                    definition.version
                );
                return Err(StartError::Workflow { workflow: definition.workflow.to_string(), problem });
            }
            self.config.programs.push(program);
        }
        Ok(())
    }
}

fn open_store(url: &StoreUrl, shards: u16, owner: &str) -> Result<Box<dyn Store>, StartError> {
    match url {
        StoreUrl::Memory => Ok(Box::new(abide_store::memory::MemoryStore::new(shards))),
        StoreUrl::Sqlite { path, durability } => Ok(Box::new(SqliteStore::open(path, *durability, shards, owner)?)),
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => Ok(Box::new(PostgresStore::open(url, shards)?)),
        #[cfg(not(feature = "postgres"))]
        StoreUrl::Postgres(url) => {
            let message = format!("{url}: this build of abide has no PostgreSQL; add its feature `postgres`");
            Err(abide_store::Fault::new(abide_store::FaultKind::Unusable, message).into())
        }
    }
}

async fn wait<T: Send + 'static>(thread: std::thread::JoinHandle<T>) -> T {
    // A thread of our own that neither panics nor outlives the call; joining it blocks for as long as opening takes.
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
